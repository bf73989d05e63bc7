#include <utility>

#include "model/dense/load_internal.h"

namespace deepmint {

using dense::at;

bool is_dense_architecture(std::string_view a) {
  return a == "llama" || a == "qwen2" || a == "qwen3";
}

Result<std::shared_ptr<Model>> load_dense_gguf(std::shared_ptr<const GgufFile> file,
                                               const DenseLoadOptions& options) {
  const std::filesystem::path& path = file->file().path();
  DEEPMINT_TRY(config, at(dense::config_from_gguf(*file), path));
  const dense::Source source{.naming = dense::Source::Naming::kGguf,
                             .tensors = file->tensors(),
                             .files = {&file->file()},
                             .owner = file};
  return at(dense::build(std::move(config), source, options), path);
}

}  // namespace deepmint
