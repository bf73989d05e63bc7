// Dense models (Llama, Qwen2, Qwen3 shapes) from a GGUF file or a Hugging Face folder.
//
//   auto file = std::make_shared<const GgufFile>(std::move(*GgufFile::open(path)));
//   DEEPMINT_TRY(model, load_dense_gguf(file, {.pool = pool, .progress = show}));
//
// Every tensor's presence, type and shape is checked, and so is every setting that would change the
// arithmetic: what this build does not compute is refused by name (kUnsupported), never ignored.
// Weights are packed once into their own memory and the mapped pages dropped; only the embedding
// rows stay mapped and are read as tokens need them.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string_view>

#include "core/thread_pool.h"
#include "deepmint/result.h"
#include "format/gguf.h"
#include "model/model.h"

namespace deepmint {

struct DenseLoadOptions {
  std::shared_ptr<ThreadPool> pool;  // required; the model keeps it and runs forward() on it
  std::function<void(double fraction)> progress = {};  // 0 … 1, on the calling thread
};

bool is_dense_architecture(std::string_view gguf_architecture);   // "llama", "qwen2", "qwen3"
bool is_dense_hf_architecture(std::string_view hf_architecture);  // "LlamaForCausalLM", …

// Errors: kUnsupported (architecture, scaling, tensor type, unknown key), kInvalidFile (missing or
// inconsistent metadata or tensors), kResourceExhausted (memory).
Result<std::shared_ptr<Model>> load_dense_gguf(std::shared_ptr<const GgufFile> file,
                                               const DenseLoadOptions& options);

// folder holds config.json and the safetensors file or files.
Result<std::shared_ptr<Model>> load_dense_hf(const std::filesystem::path& folder,
                                             const DenseLoadOptions& options);

// What these would refuse, without reading a weight: settings, and each tensor's presence, type and
// shape.
Status check_dense_gguf(const GgufFile& file);
Status check_dense_hf(const std::filesystem::path& folder);

}  // namespace deepmint
