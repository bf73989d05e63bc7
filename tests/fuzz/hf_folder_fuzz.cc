// A Hugging Face folder whose JSON files are the input: config.json, index, tokenizer.json and
// tokenizer_config.json, separated by byte 0xFF, which no JSON text contains. A missing or empty
// part means that the file is absent. The weights are two fixed shards of a tiny Llama, so that an
// index can be right.
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "format/safetensors.h"
#include "promises.h"
#include "support/safetensors_writer.h"
#include "support/tiny_model.h"

using namespace deepmint;

namespace {

constexpr const char* kParts[] = {"config.json", "model.safetensors.index.json", "tokenizer.json",
                                  "tokenizer_config.json"};

// The folder, made once per process and removed at exit.
const std::filesystem::path& folder() {
  static const testing::TempFolder* made = [] {
    static testing::TempFolder folder;
    testing::write_tiny_hf({.n_layers = 1, .hidden = 32, .n_heads = 2, .n_kv_heads = 1, .ffn = 32},
                           folder.path());
    std::filesystem::rename(folder / "model.safetensors", folder / "a.safetensors");
    testing::SafetensorsWriter().tensor("extra", "U8", {1}, "x").write(folder / "b.safetensors");
    return &folder;
  }();
  return made->path();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  for (const char* name : kParts) {
    const std::string_view part = input.substr(0, input.find('\xff'));
    input.remove_prefix(std::min(input.size(), part.size() + 1));
    if (part.empty())
      std::filesystem::remove(folder() / name);
    else
      testing::write_text(folder() / name, part);
  }
  if (const auto report = inspect_model(folder()))
    fuzz::check_report(*report);
  else
    fuzz::check_error(report.error());
  if (const auto model = SafetensorsModel::open(folder())) {
    for (const TensorView& t : model->tensors())
      fuzz::check_tensor(t, model->files()[static_cast<size_t>(t.file_index)].bytes());
  } else {
    fuzz::check_error(model.error());
  }
  return 0;
}
