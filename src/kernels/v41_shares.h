// How the threads of v41_linear() share its products: one piece of memory after the other, so that
// what a thread fetches ahead is what it reads. Internal to the kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/v41_linear.h"
#include "kernels/v41_linear_kernels.h"

namespace deepmint::kernels {

inline constexpr int64_t kV41Unit = 32;  // outputs that a thread takes at a time, for few rows

inline size_t v41_code_stride(const V41Weights& w) {  // bytes of an output's codes
  const auto k = static_cast<size_t>(w.k);
  return w.format == V41Format::kBf16 ? 2 * k : w.format == V41Format::kFp8 ? k : k / 2;
}

// Outputs [begin, end) of a matrix in memory; BF16 has no scales.
struct V41Place {
  std::span<const std::byte> codes, scales;
};
inline V41Place v41_place(const V41Weights& w, int64_t begin, int64_t end) {
  const auto from = static_cast<size_t>(begin), to = static_cast<size_t>(end),
             scales = static_cast<size_t>(w.k / kV41Step);
  const auto rows = [scales](const std::byte* p, size_t first, size_t last) {
    return std::span(p + first * scales, (last - first) * scales);
  };
  V41Place place;
  place.codes = {w.codes + from * v41_code_stride(w), (to - from) * v41_code_stride(w)};
  if (w.format == V41Format::kFp8) place.scales = rows(w.scales, from / 32, (to + 31) / 32);
  if (w.format == V41Format::kFp4) place.scales = rows(w.scales, from, to);
  return place;
}

// Every thread gets about as many bytes of the pieces, in whole units; the last begins with work
// that takes as long as `beside` bytes. Calls ends(thread, piece, unit) for all threads but the
// last, ascending: where its share ends.
template <class BytesOf, class UnitsOf, class Ends>
void v41_deal(size_t pieces, size_t beside, size_t threads, BytesOf&& bytes_of, UnitsOf&& units_of,
              Ends&& ends) {
  size_t bytes = beside, passed = 0, thread = 0;
  for (size_t i = 0; i < pieces; ++i) bytes += bytes_of(i);
  for (size_t i = 0; i < pieces; ++i) {
    const size_t all = bytes_of(i);
    for (; thread + 1 < threads && passed + all > bytes * (thread + 1) / threads; ++thread)
      ends(thread, i, (bytes * (thread + 1) / threads - passed) * units_of(i) / all);
    passed += all;
  }
  for (; thread + 1 < threads && pieces > 0; ++thread)
    ends(thread, pieces - 1, units_of(pieces - 1));
}

}  // namespace deepmint::kernels
