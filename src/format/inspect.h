// What is in a checkpoint, and whether it is whole: the library behind `deepmint inspect MODEL
// [--json]`.
//
//   DEEPMINT_TRY(report, inspect_model(path));      // fails only when there is nothing to
//   describe: kNotFound, not a model fmt::print("{}", json ? to_json(report) : to_text(report));
//   return report.whole() ? 0 : exit_code(*report.problem);
//
// A file that is there but damaged gives a report whose `problem` says what was expected, what was
// found and where.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "deepmint/result.h"

namespace deepmint {

struct InspectReport {
  struct Tensor {
    std::string name;
    DType dtype = DType::kF32;
    std::vector<uint64_t> shape;  // outermost first
    uint64_t bytes = 0;
    int file_index = 0;  // into `files`
  };
  struct File {
    std::string name;  // file name without folder
    uint64_t bytes = 0;
  };
  struct TypeTotal {
    DType dtype = DType::kF32;
    uint64_t tensors = 0, elements = 0, bytes = 0;
  };
  // Dimensions as the checkpoint states them; absent when it does not.
  struct Dimensions {
    std::optional<int64_t> layers, hidden, heads, kv_heads, head_dim, ffn, vocab, context;
    std::optional<double> rope_base;
    std::optional<int64_t> rope_dimensions;
    std::string rope_scaling;  // "linear ×4", "yarn ×32 from 4096", "llama3 ×8 from 8192", or empty
    std::optional<double> norm_epsilon;
    std::optional<bool> tied;  // the head is the embedding
  };
  struct SpecialId {
    std::string role;  // "bos", "eos", "pad", "unk", "eot", …
    int64_t id = 0;
    std::string text;  // the token, when the vocabulary is there
  };
  struct Tokenizer {
    std::string kind;  // "gpt2" (byte-level BPE), "llama", "BPE", …
    std::string pre;   // pre-tokenizer name, or the types in tokenizer.json joined by " + "
    uint64_t vocab = 0, merges = 0, added = 0;
    std::vector<SpecialId> special;
    bool chat_template = false;
  };

  std::filesystem::path path;
  std::string format;        // "GGUF v3", "safetensors"; empty when not even that could be read
  std::string architecture;  // "llama", "LlamaForCausalLM", …; may be empty
  std::string name;          // general.name, or the folder's or file's name
  Dimensions dimensions;
  std::optional<Tokenizer> tokenizer;  // nullopt: none
  std::vector<File> files;
  std::vector<Tensor> tensors;    // in file order (GGUF) or by name (safetensors)
  std::vector<TypeTotal> totals;  // by bytes, descending
  uint64_t total_tensors = 0, total_elements = 0, total_bytes = 0;

  // Whether every expected tensor is there with its shape and nothing else is: for llama, qwen2 and
  // qwen3. Checkpoints of other architectures are whole when their files are sound;
  // `checked_tensors` is then false and the verdict says so.
  bool checked_tensors = false;
  std::optional<Error> problem;  // the first thing that is wrong
  std::vector<std::string>
      problems;  // all that are known, one line each, at most 20, then "… and N more"
  bool whole() const { return !problem.has_value(); }
  std::string verdict() const;  // one line
};

// MODEL is a .gguf file, a .safetensors file or a folder in Hugging Face layout. Errors: kNotFound;
// kInvalidFile when it is none of these.
Result<InspectReport> inspect_model(const std::filesystem::path& path);

std::string to_text(
    const InspectReport& report);  // for people, several lines, ends with the verdict and a newline
std::string to_json(
    const InspectReport& report);  // one JSON object, one line, no newline at the end

}  // namespace deepmint
