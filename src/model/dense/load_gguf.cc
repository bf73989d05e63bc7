#include <utility>

#include "model/dense/load_internal.h"

namespace deepmint {

using dense::at;

bool is_dense_architecture(std::string_view a) {
  return a == "llama" || a == "qwen2" || a == "qwen3";
}

namespace {

dense::Source source_of(const GgufFile& file, std::shared_ptr<const void> owner) {
  return {.naming = dense::Source::Naming::kGguf,
          .tensors = file.tensors(),
          .files = {&file.file()},
          .owner = std::move(owner)};
}

}  // namespace

Status check_dense_gguf(const GgufFile& file) {
  const std::filesystem::path& path = file.file().path();
  DEEPMINT_TRY(config, at(dense::config_from_gguf(file), path));
  return at(dense::check_weights(config, source_of(file, nullptr)), path);
}

Result<std::shared_ptr<Model>> load_dense_gguf(std::shared_ptr<const GgufFile> file,
                                               const DenseLoadOptions& options) {
  const std::filesystem::path& path = file->file().path();
  DEEPMINT_TRY(config, at(dense::config_from_gguf(*file), path));
  return at(dense::build(std::move(config), source_of(*file, file), options), path);
}

}  // namespace deepmint
