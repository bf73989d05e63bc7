#include "format/gguf_types.h"

#include <array>

namespace deepmint {
namespace {

struct Known {
  uint32_t number;
  DType type;
};
constexpr std::array<Known, 11> kRead = {{
    {0, DType::kF32},
    {1, DType::kF16},
    {2, DType::kQ4_0},
    {3, DType::kQ4_1},
    {6, DType::kQ5_0},
    {7, DType::kQ5_1},
    {8, DType::kQ8_0},
    {12, DType::kQ4_K},
    {13, DType::kQ5_K},
    {14, DType::kQ6_K},
    {30, DType::kBF16},
}};

// Index is the number in the file. Q4_2, Q4_3 and the _4_4, _4_8, _8_8 forms were withdrawn, but
// files with them exist.
constexpr std::array<std::string_view, 43> kNames = {
    "F32",   "F16",        "Q4_0",       "Q4_1",       "Q4_2",     "Q4_3",     "Q5_0",
    "Q5_1",  "Q8_0",       "Q8_1",       "Q2_K",       "Q3_K",     "Q4_K",     "Q5_K",
    "Q6_K",  "Q8_K",       "IQ2_XXS",    "IQ2_XS",     "IQ3_XXS",  "IQ1_S",    "IQ4_NL",
    "IQ3_S", "IQ2_S",      "IQ4_XS",     "I8",         "I16",      "I32",      "I64",
    "F64",   "IQ1_M",      "BF16",       "Q4_0_4_4",   "Q4_0_4_8", "Q4_0_8_8", "TQ1_0",
    "TQ2_0", "IQ4_NL_4_4", "IQ4_NL_4_8", "IQ4_NL_8_8", "MXFP4",    "NVFP4",    "Q1_0",
    "Q2_0"};

}  // namespace

std::string_view to_string(GgufValueType type) {
  constexpr std::array<std::string_view, kGgufValueTypes> kValueNames = {
      "uint8", "int8",   "uint16", "int16",  "uint32", "int32",  "float32",
      "bool",  "string", "array",  "uint64", "int64",  "float64"};
  const auto index = static_cast<size_t>(type);
  return index < kValueNames.size() ? kValueNames[index] : std::string_view("unknown");
}

uint32_t gguf_value_bytes(GgufValueType type) {
  switch (type) {
    case GgufValueType::kUint8:
    case GgufValueType::kInt8:
    case GgufValueType::kBool:
      return 1;
    case GgufValueType::kUint16:
    case GgufValueType::kInt16:
      return 2;
    case GgufValueType::kUint32:
    case GgufValueType::kInt32:
    case GgufValueType::kFloat32:
      return 4;
    case GgufValueType::kUint64:
    case GgufValueType::kInt64:
    case GgufValueType::kFloat64:
      return 8;
    case GgufValueType::kString:
    case GgufValueType::kArray:
      return 0;
  }
  return 0;
}

std::optional<DType> dtype_of_ggml_type(uint32_t number) {
  for (const Known& known : kRead)
    if (known.number == number) return known.type;
  return std::nullopt;
}

std::optional<uint32_t> ggml_type_of_dtype(DType type) {
  for (const Known& known : kRead)
    if (known.type == type) return known.number;
  return std::nullopt;
}

std::string_view ggml_type_name(uint32_t number) {
  return number < kNames.size() ? kNames[number] : std::string_view();
}

}  // namespace deepmint
