#include "kernels/roofs.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "core/aligned.h"
#include "core/cpu_isa.h"
#include "kernels/roofs_kernels.h"

namespace deepmint::kernels {
namespace {

using Seconds = std::chrono::duration<double>;

const RoofKernels& table() {
  static constexpr std::array<const RoofKernels*, 5> kTables = {
      &isa_x86_64::kRoofs, &isa_avx2::kRoofs, &isa_avx512::kRoofs, &isa_avx512vnni::kRoofs,
      &isa_avx512bf16::kRoofs};
  return *kTables[static_cast<size_t>(active_isa())];
}

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return Seconds(std::chrono::steady_clock::now() - start).count();
}

// Times of at least three tries over at least 60 ms, ascending: a scheduler may need some 30 ms to
// give each new thread a core of its own.
std::vector<double> times_of(const std::function<void()>& work) {
  std::vector<double> times;
  for (double sum = 0; times.size() < 3 || sum < 0.06; sum += times.back())
    times.push_back(seconds_of(work));
  std::ranges::sort(times);
  return times;
}

double arithmetic(ThreadPool& pool, double (*kernel)(int64_t)) {
  constexpr int64_t kRounds = 1 << 20;  // some 5 ms on a core of today
  const auto threads = static_cast<size_t>(pool.size());
  const double ops = kernel(1);
  // The best try: nothing outside a core can make its arithmetic faster.
  const double seconds = times_of([&] {
                           pool.run(threads, [&](size_t begin, size_t end, int) {
                             for (size_t i = begin; i < end; ++i) kernel(kRounds);
                           });
                         }).front();
  return ops * kRounds * static_cast<double>(threads) / seconds / 1e9;
}

double dram_read(ThreadPool& pool, const RoofKernels& kernels) {
  const long l3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
  // Four times the last cache, so that at most a quarter of a pass can come out of it.
  const size_t bytes = std::clamp<size_t>(l3 > 0 ? 4 * static_cast<size_t>(l3) : 0,
                                          size_t{256} << 20, size_t{2} << 30);
  auto data = AlignedBuffer<std::byte>::uninitialized(bytes);  // on huge pages, as weights are
  constexpr size_t kChunk = size_t{1} << 20;
  std::atomic<uint64_t> sink{0};
  const auto pass = [&](auto&& body) {
    pool.run(bytes / kChunk,
             [&](size_t begin, size_t end, int) { body(begin * kChunk, end * kChunk); });
  };
  // Untouched pages would all be the one zero page, which stays in the cache.
  pass([&](size_t begin, size_t end) {
    std::fill(data.data() + begin, data.data() + end, std::byte{1});
  });
  // The reading loops take turns; the best of their medians counts. A median, because neighbours on
  // the same memory make it slower and idle ones faster than what lasts; the best, because a roof
  // that a better loop could break is none.
  std::array<std::vector<double>, RoofKernels::kReads> times;
  times_of([&] {
    for (size_t i = 0; i < times.size(); ++i)
      times[i].push_back(seconds_of([&] {
        pass([&](size_t begin, size_t end) {
          sink.fetch_add(kernels.reads[i](data.data() + begin, end - begin),
                         std::memory_order_relaxed);
        });
      }));
  });
  double best = std::numeric_limits<double>::infinity();
  for (std::vector<double>& t : times) {
    std::ranges::sort(t);
    best = std::min(best, t[t.size() / 2]);
  }
  return static_cast<double>(bytes / kChunk * kChunk) / best / 1e9;
}

}  // namespace

double measure_dram_read(ThreadPool& pool) { return dram_read(pool, table()); }

Roofs measure_roofs(ThreadPool& pool) {
  const RoofKernels& kernels = table();
  Roofs roofs;
  roofs.dram_read_gb_per_s = dram_read(pool, kernels);
  roofs.f32_gflop_per_s = arithmetic(pool, kernels.f32);
  roofs.bf16_gflop_per_s = arithmetic(pool, kernels.bf16);
  roofs.int8_gop_per_s = arithmetic(pool, kernels.int8);
  return roofs;
}

}  // namespace deepmint::kernels
