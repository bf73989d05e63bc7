// Element types of stored tensors: plain types, and block-quantised GGUF types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace deepmint {

enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kF8E4M3,
  kF8E8M0,
  kI8,
  kU8,
  kI32,
  kI64,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ4_K,
  kQ5_K,
  kQ6_K,
};

struct DTypeInfo {
  std::string_view name;    // "F32", "Q4_1", …
  uint32_t block_elements;  // 1 for plain types, 32 or 256 for quantised ones
  uint32_t block_bytes;
};
const DTypeInfo& info(DType type);

// Bytes of `elements` values in one contiguous row; nullopt on overflow or when elements is not a
// multiple of the block.
std::optional<uint64_t> row_bytes(DType type, uint64_t elements);

}  // namespace deepmint
