// How the benchmark programs time a call: once to warm up, then again and again for a while; the
// median counts, because neighbours on the machine only ever add to a time.
//
//   const double seconds = bench::time_of(0.2, [&] { linear(w, x, y, n, pool); });
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

namespace deepmint::bench {

// Median seconds of one call, of at least five calls over at least `seconds`.
template <class Call>
double time_of(double seconds, Call&& call) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  constexpr size_t kFewest = 5, kMost = 100000;
  call();
  std::vector<double> times;
  const auto start = Clock::now();
  while (times.size() < kFewest || (since(start) < seconds && times.size() < kMost)) {
    const auto before = Clock::now();
    call();
    times.push_back(since(before));
  }
  std::ranges::nth_element(times, times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2));
  return times[times.size() / 2];
}

}  // namespace deepmint::bench
