// Writes GGUF files for tests: well-formed ones, and ones that are wrong in exactly one place.
//
//   GgufWriter w;
//   w.set("general.architecture", "llama").set("llama.block_count", uint32_t{2});
//   w.set_array("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b"});
//   w.tensor("token_embd.weight", DType::kF32, {n_vocab, hidden}, bytes);   // shape is outermost
//   first w.write(path);
//
// A caller's mistake (a size that does not fit the shape) aborts; only raw() and tensor_raw() let
// nonsense through.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/dtype.h"
#include "format/gguf_types.h"

namespace deepmint::testing {

// Little-endian byte string in the making.
template <class T>
void append_le(std::string& out, T value) {
  static_assert(std::is_arithmetic_v<T>);
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value,
              sizeof(T));  // the tests run on little-endian machines, like the product
  out.append(bytes, sizeof(T));
}
void append_gguf_string(std::string& out, std::string_view s);  // length as uint64, then the bytes

class GgufWriter {
 public:
  // Where a field lies in the file that bytes() made last: "version", "tensor_count",
  // "kv[2].key.length", …
  struct Field {
    std::string name;
    size_t offset = 0;
    size_t bytes = 0;
  };

  GgufWriter& version(uint32_t v) { return version_ = v, *this; }
  // Also writes general.alignment, unless it is the default of 32.
  GgufWriter& alignment(uint32_t bytes) { return alignment_ = bytes, *this; }

  // Adds a value, or replaces the one with this key. The metadata type is that of T exactly, so
  // write uint32_t{2}.
  template <class T>
  GgufWriter& set(std::string_view key, const T& value) {
    std::string payload;
    append_value(payload, value);
    return put(key, type_of<T>(), std::move(payload), true);
  }
  template <class T>
  GgufWriter& set_array(std::string_view key, const std::vector<T>& values) {
    std::string payload;
    append_array(payload, values);
    return put(key, GgufValueType::kArray, std::move(payload), true);
  }
  // Any bytes under any type number; never replaces, so it can make duplicate keys.
  GgufWriter& raw(std::string_view key, uint32_t type, std::string payload) {
    return put(key, static_cast<GgufValueType>(type), std::move(payload), false);
  }
  GgufWriter& erase(std::string_view key);

  // Shape is outermost first, as in TensorView. bytes must be exactly the size of the tensor.
  GgufWriter& tensor(std::string_view name, DType type, const std::vector<uint64_t>& shape,
                     std::string bytes);
  GgufWriter& tensor_f32(std::string_view name, const std::vector<uint64_t>& shape,
                         std::span<const float> values);
  // Any type number and any dimensions, innermost first as in the file. Offset: where the data
  // really lies, plus `skew`.
  GgufWriter& tensor_raw(std::string_view name, uint32_t ggml_type,
                         const std::vector<uint64_t>& dims, std::string bytes, int64_t skew = 0);
  GgufWriter& erase_tensor(std::string_view name);

  std::string bytes();                                          // the whole file
  const std::vector<Field>& fields() const { return fields_; }  // of the last bytes()
  void write(const std::filesystem::path& path);  // throws std::runtime_error when the disk refuses

  // The stored form of an array: element type, count, elements. Public so that nested arrays can be
  // built for raw().
  template <class T>
  static void append_array(std::string& out, const std::vector<T>& values) {
    append_le(out, static_cast<uint32_t>(type_of<T>()));
    append_le(out, static_cast<uint64_t>(values.size()));
    for (const T& value : values) append_value(out, value);
  }

 private:
  struct KeyValue {
    std::string key;
    GgufValueType type;
    std::string payload;
  };
  struct Tensor {
    std::string name;
    uint32_t type;
    std::vector<uint64_t> dims;
    std::string bytes;
    int64_t skew;
  };

  template <class T>
  struct IsVector : std::false_type {};
  template <class T>
  struct IsVector<std::vector<T>> : std::true_type {};

  template <class T>
  static constexpr GgufValueType type_of() {
    using V = std::decay_t<T>;
    if constexpr (std::is_same_v<V, bool>)
      return GgufValueType::kBool;
    else if constexpr (std::is_same_v<V, uint8_t>)
      return GgufValueType::kUint8;
    else if constexpr (std::is_same_v<V, int8_t>)
      return GgufValueType::kInt8;
    else if constexpr (std::is_same_v<V, uint16_t>)
      return GgufValueType::kUint16;
    else if constexpr (std::is_same_v<V, int16_t>)
      return GgufValueType::kInt16;
    else if constexpr (std::is_same_v<V, uint32_t>)
      return GgufValueType::kUint32;
    else if constexpr (std::is_same_v<V, int32_t>)
      return GgufValueType::kInt32;
    else if constexpr (std::is_same_v<V, uint64_t>)
      return GgufValueType::kUint64;
    else if constexpr (std::is_same_v<V, int64_t>)
      return GgufValueType::kInt64;
    else if constexpr (std::is_same_v<V, float>)
      return GgufValueType::kFloat32;
    else if constexpr (std::is_same_v<V, double>)
      return GgufValueType::kFloat64;
    else if constexpr (IsVector<V>::value)
      return GgufValueType::kArray;
    else {
      static_assert(std::is_convertible_v<const T&, std::string_view>,
                    "no GGUF metadata type for this C++ type");
      return GgufValueType::kString;
    }
  }
  template <class T>
  static void append_value(std::string& out, const T& value) {
    if constexpr (std::is_arithmetic_v<T>)
      append_le(out, value);
    else if constexpr (IsVector<T>::value)
      append_array(out, value);
    else
      append_gguf_string(out, value);
  }

  GgufWriter& put(std::string_view key, GgufValueType type, std::string payload, bool replace);

  uint32_t version_ = 3;
  uint32_t alignment_ = 32;
  std::vector<KeyValue> metadata_;
  std::vector<Tensor> tensors_;
  std::vector<Field> fields_;
};

}  // namespace deepmint::testing
