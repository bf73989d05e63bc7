// Numbers that GGUF files use for metadata and tensor types. Shared by the reader and by the writer
// that tests use.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "core/dtype.h"

namespace deepmint {

// Type numbers of metadata values.
enum class GgufValueType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};
inline constexpr uint32_t kGgufValueTypes = 13;

std::string_view to_string(GgufValueType type);  // "uint8", …, "float64"

// Stored bytes of one value of a fixed-size type; 0 for strings and arrays.
uint32_t gguf_value_bytes(GgufValueType type);

// Our type for a tensor type number, or nullopt when this build does not read it.
std::optional<DType> dtype_of_ggml_type(uint32_t number);
// The number of one of our types, or nullopt when GGUF has none for it.
std::optional<uint32_t> ggml_type_of_dtype(DType type);
// Name of a tensor type number ("Q4_K", "IQ2_XXS"), whether or not this build reads it; empty when
// nobody assigned it.
std::string_view ggml_type_name(uint32_t number);

}  // namespace deepmint
