#include "model/deepseek_v41/not_a_number.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>

namespace deepmint::v41 {
namespace {

constexpr size_t kRun = 4096;  // elements looked at between two decisions: loops without exits

// Index of the first element for which `is_nan(bits)` holds, or `count`.
template <class Bits, class IsNan>
size_t find(const std::byte* bytes, size_t count, const IsNan& is_nan) {
  const auto at = [bytes](size_t i) {
    Bits bits;
    std::memcpy(&bits, bytes + i * sizeof(Bits), sizeof(Bits));
    return bits;
  };
  for (size_t begin = 0; begin < count; begin += kRun) {
    const size_t end = std::min(count, begin + kRun);
    unsigned any = 0;
    for (size_t i = begin; i < end; ++i) any |= is_nan(at(i)) ? 1u : 0u;
    if (any == 0) continue;
    for (size_t i = begin; i < end; ++i)
      if (is_nan(at(i))) return i;
  }
  return count;
}

size_t first_nan(const TensorView& t) {
  const std::byte* bytes = t.bytes.data();
  const size_t count = t.elements();
  switch (t.dtype) {
    case DType::kF8E8M0:
      return find<uint8_t>(bytes, count, [](uint8_t b) { return b == 255; });
    case DType::kF8E4M3:
      return find<uint8_t>(bytes, count, [](uint8_t b) { return (b & 0x7F) == 0x7F; });
    case DType::kBF16:
      return find<uint16_t>(bytes, count, [](uint16_t b) { return (b & 0x7F80) == 0x7F80; });
    case DType::kF32:
      return find<uint32_t>(bytes, count,
                            [](uint32_t b) { return (b & 0x7F800000) == 0x7F800000; });
    default:
      return count;
  }
}

}  // namespace

Status check_numbers(const TensorView& t) {
  const size_t i = first_nan(t);
  if (i == t.elements()) return {};
  const uint64_t width = t.shape.empty() ? 1 : t.shape.back();
  const char* kind =
      t.dtype == DType::kF8E8M0 || t.dtype == DType::kF8E4M3 ? "a NaN" : "a NaN or infinity";
  return fail(
      ErrorCode::kInvalidFile,
      fmt::format("expected numbers, found {} in row {}, column {}", kind, i / width, i % width),
      fmt::format("tensor \"{}\"", t.name));
}

}  // namespace deepmint::v41
