// The options with which a command lets DeepSeek-V4.1 approximate its prompt, off unless given:
// --prefill-tail, --prefill-tail-keep-tokens and, where prompts begin alike, --prefix-replay
// (docs/deepseek_v41.md). The HTTP API has the same under the same names.
//
//   Approximation approximation;
//   approximation.options(o, Approximation::Prompts::kShareBeginnings);
//   DEEPMINT_CHECK_OK(approximation.read());                    // before the model loads
//   DEEPMINT_CHECK_OK(approximation.check(*open.loaded.model));
//   approximation.apply(request);
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/options.h"
#include "deepmint/engine.h"
#include "deepmint/result.h"

namespace deepmint {
class Model;
}

namespace deepmint::cli {

class Approximation {
 public:
  enum class Prompts : uint8_t { kOne, kShareBeginnings };
  void options(Options& o, Prompts prompts);

  // What was given, or kInvalidArgument naming the option.
  Status read();
  // Whether this model can: kUnsupported (it has no tail), kInvalidArgument (too few tokens kept).
  Status check(const Model& model) const;
  void apply(GenerationRequest& request) const;

 private:
  std::string tail_ = "exact", replay_ = "exact";
  std::optional<std::string> keep_;

  std::optional<int32_t> tail_keep_tokens_;
  bool bounded_replay_ = false;
};

}  // namespace deepmint::cli
