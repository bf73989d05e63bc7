#include "cli/approximation.h"

#include <fmt/format.h>

#include <utility>

#include "cli/setting_value.h"
#include "model/model.h"

namespace deepmint::cli {
namespace {

constexpr const char* kTail = "--prefill-tail";
constexpr const char* kKeep = "--prefill-tail-keep-tokens";
constexpr const char* kReplay = "--prefix-replay";

// "exact" or "bounded".
Result<bool> is_bounded(const std::string& mode, const char* option) {
  std::string known;
  auto ok = assign(known, ConfigValue::from_text(mode),
                   Shape{.limits = {.choices = {"exact", "bounded"}}});
  if (!ok) return tl::unexpected(std::move(ok).error().at(option));
  return known == "bounded";
}

}  // namespace

void Approximation::options(Options& o, Prompts prompts) {
  o.group("Approximations");
  o.text(kTail, tail_, "MODE",
         "of DeepSeek-V4.1 (docs/deepseek_v41.md): exact, or bounded: the last layers run for the "
         "last tokens of the prompt only");
  o.text(kKeep, keep_, "N",
         fmt::format("with {} bounded: how many, at least the window (128); without it, {}", kTail,
                     kDefaultTailKeepTokens));
  if (prompts == Prompts::kShareBeginnings)
    o.text(kReplay, replay_, "MODE",
           "of DeepSeek-V4.1: exact, or bounded: where the beginning of a prompt is known and its "
           "window state is "
           "not, run one window of it again instead of all that is needed");
}

Status Approximation::read() {
  DEEPMINT_TRY(tail, is_bounded(tail_, kTail));
  DEEPMINT_TRY(replay, is_bounded(replay_, kReplay));
  int32_t keep = kDefaultTailKeepTokens;
  if (keep_) {
    if (!tail)
      return fail(ErrorCode::kInvalidArgument, fmt::format("expected {} bounded beside it", kTail),
                  kKeep);
    auto ok = assign(keep, ConfigValue::from_text(*keep_), Shape{.limits = {.min = 1}});
    if (!ok) return tl::unexpected(std::move(ok).error().at(kKeep));
  }
  if (tail) tail_keep_tokens_ = keep;
  bounded_replay_ = replay;
  return {};
}

Status Approximation::check(const Model& model) const {
  if (!tail_keep_tokens_) return {};
  auto tail = model.bounded_prompt_tail(/*prompt_tokens=*/1, *tail_keep_tokens_);
  if (tail) return {};
  Error error = std::move(tail).error();
  error.where = error.code == ErrorCode::kUnsupported ? kTail : kKeep;
  return tl::unexpected(std::move(error));
}

void Approximation::apply(GenerationRequest& request) const {
  request.tail_keep_tokens = tail_keep_tokens_;
  request.bounded_replay = bounded_replay_;
}

}  // namespace deepmint::cli
