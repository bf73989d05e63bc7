#include <fmt/format.h>

#include <utility>

#include "core/json.h"
#include "core/mapped_file.h"
#include "format/safetensors.h"
#include "model/dense/load_internal.h"

namespace deepmint {

using dense::at;

bool is_dense_hf_architecture(std::string_view a) {
  return a == "LlamaForCausalLM" || a == "Qwen2ForCausalLM" || a == "Qwen3ForCausalLM";
}

namespace {

struct Opened {
  dense::Config config;
  dense::Source source;
};

Result<Opened> open_folder(const std::filesystem::path& folder) {
  const std::filesystem::path config_path = folder / "config.json";
  DEEPMINT_TRY(text, MappedFile::open(config_path));
  const auto bytes = text.bytes();
  auto json = json::parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (!json) {
    json.error().code = ErrorCode::kInvalidFile;  // a file, not a caller's text
    return at(Result<Opened>(tl::unexpected(std::move(json).error())), config_path);
  }
  if (!json->is_object())
    return fail(ErrorCode::kInvalidFile,
                fmt::format("expected an object, found {}", json::to_string(json->kind())),
                config_path.string());
  const std::filesystem::path named =
      folder.has_filename() ? folder.filename() : folder.parent_path().filename();
  DEEPMINT_TRY(config, at(dense::config_from_hf(*json, named.string()), config_path));
  DEEPMINT_TRY(opened, SafetensorsModel::open(folder));
  const auto model = std::make_shared<const SafetensorsModel>(std::move(opened));
  dense::Source source{.naming = dense::Source::Naming::kHuggingFace,
                       .tensors = model->tensors(),
                       .files = {},
                       .owner = model};
  for (const MappedFile& file : model->files()) source.files.push_back(&file);
  return Opened{std::move(config), std::move(source)};
}

}  // namespace

Status check_dense_hf(const std::filesystem::path& folder) {
  DEEPMINT_TRY(opened, open_folder(folder));
  return at(dense::check_weights(opened.config, opened.source), folder);
}

Result<std::shared_ptr<Model>> load_dense_hf(const std::filesystem::path& folder,
                                             const DenseLoadOptions& options) {
  DEEPMINT_TRY(opened, open_folder(folder));
  return at(dense::build(std::move(opened.config), opened.source, options), folder);
}

}  // namespace deepmint
