// GGUF v2/v3 reader over a memory-mapped file. open() validates every count, offset, size, string
// and type before it returns, so that a GgufFile is safe to use without further checks. Layout and
// limits: docs/formats/gguf.md.
//
//   DEEPMINT_TRY(file, GgufFile::open(path));
//   DEEPMINT_TRY(arch, file.string("general.architecture"));
//   const TensorView* embed = file.tensor("token_embd.weight");
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/mapped_file.h"
#include "deepmint/result.h"
#include "format/tensor.h"

namespace deepmint {

class GgufFile {
 public:
  // One metadata value. Numbers are widened; arrays keep one element type. Strings are views into
  // the mapping.
  struct Value;
  using Array = std::variant<std::vector<int64_t>, std::vector<uint64_t>, std::vector<double>,
                             std::vector<bool>, std::vector<std::string_view>, std::vector<Value>>;
  struct Value {
    std::variant<int64_t, uint64_t, double, bool, std::string_view, Array> data;
  };

  // Errors: kNotFound; kInvalidFile naming the field, its offset, what was expected and found;
  // kUnsupported (version, big endian, split file, tensor type) naming what it is.
  static Result<GgufFile> open(const std::filesystem::path& path);
  GgufFile(GgufFile&&) noexcept = default;
  GgufFile& operator=(GgufFile&&) noexcept = default;

  uint32_t version() const { return version_; }
  const std::vector<std::pair<std::string_view, Value>>& metadata() const { return metadata_; }
  const std::vector<TensorView>& tensors() const { return tensors_; }
  const MappedFile& file() const { return file_; }

  const Value* find(std::string_view key) const;          // nullptr when absent
  const TensorView* tensor(std::string_view name) const;  // nullptr when absent

  // Typed look-ups. Missing key or wrong type: kInvalidFile naming the file, the key and both
  // types. Integers of any width convert when the value fits. The _or forms give the default when
  // the key is absent, and still fail on a wrong type.
  Result<std::string_view> string(std::string_view key) const;
  Result<int64_t> integer(std::string_view key) const;
  Result<double> number(std::string_view key) const;  // float or integer
  Result<bool> boolean(std::string_view key) const;
  Result<std::string_view> string_or(std::string_view key, std::string_view fallback) const;
  Result<int64_t> integer_or(std::string_view key, int64_t fallback) const;
  Result<double> number_or(std::string_view key, double fallback) const;
  Result<bool> boolean_or(std::string_view key, bool fallback) const;
  Result<std::vector<std::string_view>> strings(std::string_view key) const;
  Result<std::vector<int64_t>> integers(std::string_view key) const;
  Result<std::vector<double>> numbers(std::string_view key) const;

 private:
  GgufFile() = default;
  Status parse();
  tl::unexpected<Error> wrong(std::string_view key, std::string_view expected,
                              std::string_view found) const;
  tl::unexpected<Error> wrong(std::string_view key, std::string_view expected,
                              const Value* found) const;

  MappedFile file_;
  uint32_t version_ = 0;
  std::vector<std::pair<std::string_view, Value>> metadata_;
  std::vector<TensorView> tensors_;
  std::vector<uint32_t> metadata_order_, tensor_order_;  // sorted by name, for look-up
};

}  // namespace deepmint
