// safetensors reader: one file, or a folder with model.safetensors or model.safetensors.index.json.
// open() checks header size, JSON, dtypes, shapes, ranges, overlaps and holes of every file, and
// that index and files agree.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/mapped_file.h"
#include "deepmint/result.h"
#include "format/tensor.h"

namespace deepmint {

class SafetensorsModel {
 public:
  static Result<SafetensorsModel> open(const std::filesystem::path& file_or_folder);
  SafetensorsModel(SafetensorsModel&&) noexcept = default;
  SafetensorsModel& operator=(SafetensorsModel&&) noexcept = default;

  const std::vector<TensorView>& tensors() const { return tensors_; }  // sorted by name
  const TensorView* tensor(std::string_view name) const;
  // From now on the bytes of tensors()[index] are this copy of them, which the caller keeps.
  void use_copy(size_t index, std::span<const std::byte> copy) { tensors_[index].bytes = copy; }
  const std::vector<MappedFile>& files() const { return files_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  SafetensorsModel() = default;
  std::vector<MappedFile> files_;
  std::vector<TensorView> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace deepmint
