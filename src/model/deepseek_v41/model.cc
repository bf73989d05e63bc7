#include "model/deepseek_v41/model.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/check.h"
#include "model/deepseek_v41/ref_ops.h"
#include "model/deepseek_v41/replay.h"
#include "model/deepseek_v41/step.h"

namespace deepmint::v41 {

V41Model::V41Model(Config config, SafetensorsModel files, std::unique_ptr<Arithmetic> arithmetic,
                   V41Options options)
    : config_(std::move(config)),
      files_(std::move(files)),
      layout_(config_),
      options_(std::move(options)),
      arithmetic_(std::move(arithmetic)) {
  engram_ = make_engram_layers(config_.engram_layers, config_.engram_ngram, config_.engram_heads,
                               config_.engram_vocab, config_.engram_compressed_vocab);
  inv_plain_ = ref::inverse_frequencies(config_.rope_dim, config_.rope_theta, 0, 0, 0, 0);
  inv_compressed_ = ref::inverse_frequencies(config_.rope_dim, config_.compress_rope_theta,
                                             config_.yarn.factor, config_.yarn.original_positions,
                                             config_.yarn.beta_fast, config_.yarn.beta_slow);
}
V41Model::~V41Model() = default;

namespace {

tl::unexpected<Error> no_images(TokenId token, std::string where) {
  return fail(ErrorCode::kUnsupported,
              fmt::format("expected a text token, found image token {}", token), std::move(where));
}

}  // namespace

Status V41Model::check_tokens(std::span<const TokenId> tokens) const {
  const auto image = std::find(tokens.begin(), tokens.end(), config_.image_token);
  if (image == tokens.end()) return {};
  return no_images(*image, fmt::format("tokens[{}]", image - tokens.begin()));
}

Model::PromptTail V41Model::exact_prompt_tail(int32_t prompt_tokens) const {
  const auto tail = plan_tail(config_, {.mode = TailMode::kExact}, prompt_tokens);
  if (!tail || tail->first_kept == 0) return {};
  return {.first_full = tail->first_kept, .layer_end = tail->layer_end};
}

Result<Model::PromptTail> V41Model::bounded_prompt_tail(int32_t prompt_tokens,
                                                        int32_t keep_tokens) const {
  auto tail =
      plan_tail(config_, {.mode = TailMode::kBounded, .keep_tokens = keep_tokens}, prompt_tokens);
  if (!tail) {
    Error error = std::move(tail).error();
    error.where = "tail_keep_tokens";
    return tl::unexpected<Error>(std::move(error));
  }
  if (tail->first_kept == 0) return PromptTail{};
  return PromptTail{.first_full = tail->first_kept, .layer_end = tail->layer_end};
}

// A snapshot where its decoder rings are those of a cold run of this request, or are not read; else
// as many rows again as the mode asks for.
Model::PrefixPlan V41Model::plan_prefix(const PrefixHit& hit, int32_t prompt_tokens,
                                        PromptTail tail, bool approximate_tail) const {
  const auto replay = plan_replay(
      config_, {.mode = hit.bounded ? ReplayMode::kBounded : ReplayMode::kExact, .hit = hit.hit},
      prompt_tokens);
  if (hit.hit == 0 || !replay) return {};
  const bool decoder_is_read = tail.first_full < hit.snapshot;
  // A tail that leaves out no more than the exact one comes to the same answer.
  const bool cold_reads_less =
      approximate_tail && tail.first_full > exact_prompt_tail(prompt_tokens).first_full;
  if (hit.snapshot >= replay->begin && hit.snapshot > 0 &&
      (!decoder_is_read || (hit.decoder_exact && !cold_reads_less)))
    return {.begin = hit.snapshot, .from_snapshot = true};
  return {.begin = replay->begin,
          .window_floor = replay->window_floor,
          .exact = !hit.bounded || replay->begin == 0};
}

Status V41Model::check(const StepInput& input, size_t n_logits) {
  const auto bad = [](size_t row, std::string message) {
    return fail(ErrorCode::kInvalidArgument, std::move(message), fmt::format("row {}", row));
  };
  if (input.rows.size() > max_rows_)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("expected at most {} rows, found {}", max_rows_, input.rows.size()),
                "step");
  if (input.state.size() != layout_.parts().size())
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("expected {} state parts, found {}", layout_.parts().size(),
                            input.state.size()),
                "step");
  const int last_source = config_.kv_sources.empty() ? -1 : config_.kv_sources.back();
  size_t logit_rows = 0;
  seen_.assign(input.sequences.size(), 0);
  for (size_t i = 0; i < input.rows.size(); ++i) {
    const Row& r = input.rows[i];
    if (r.sequence >= input.sequences.size())
      return bad(i, fmt::format("expected a sequence below {}, found {}", input.sequences.size(),
                                r.sequence));
    const bool continues = i > 0 && input.rows[i - 1].sequence == r.sequence;
    if (!continues) {
      if (seen_[r.sequence] != 0) return bad(i, "expected the rows of a sequence side by side");
      seen_[r.sequence] = 1;
    } else if (r.position != input.rows[i - 1].position + 1) {
      return bad(i, fmt::format("expected position {}, found {}", input.rows[i - 1].position + 1,
                                r.position));
    }
    if (r.token < 0 || r.token >= config_.vocab)
      return bad(i, fmt::format("expected a token id below {}, found {}", config_.vocab, r.token));
    if (r.token == config_.image_token || r.image_row >= 0)
      return no_images(r.token, fmt::format("position {}", r.position));
    if (r.position < 0 || r.position >= config_.max_positions)
      return bad(i, fmt::format("expected a position below {}, found {}", config_.max_positions,
                                r.position));
    const SequenceRef& seq = input.sequences[r.sequence];
    if (seq.blocks.size() <= static_cast<size_t>(r.position / kBlockTokens))
      return bad(i, fmt::format("expected a block for position {}, found {} blocks", r.position,
                                seq.blocks.size()));
    if (static_cast<size_t>(seq.slot) >= input.state[2].count)
      return bad(i, fmt::format("expected a slot below {}, found {}", input.state[2].count,
                                static_cast<uint32_t>(seq.slot)));
    if (!continues)
      for (const BlockId b : seq.blocks)
        if (static_cast<size_t>(b) >= input.state[0].count)
          return bad(i, fmt::format("expected a block below {}, found {}", input.state[0].count,
                                    static_cast<uint32_t>(b)));
    if (r.layer_begin != 0)
      return bad(i, fmt::format("expected layer_begin 0, found {}", r.layer_begin));
    if (r.layer_end < config_.layers && r.layer_end != last_source)
      return bad(i, fmt::format("expected layer_end {} or at least {}, found {}", last_source,
                                config_.layers, r.layer_end));
    if (continues && r.layer_end < input.rows[i - 1].layer_end && r.layer_end < config_.layers)
      return bad(i, "expected skipped rows before kept ones");
    if (r.needs_logits) {
      ++logit_rows;
      if (r.layer_end < config_.layers)
        return bad(i, "expected the whole model for a row that needs logits");
    }
  }
  if (logit_rows > max_logit_rows_)
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("expected at most {} rows with logits, found {}", max_logit_rows_, logit_rows),
        "step");
  if (n_logits < logit_rows * static_cast<size_t>(config_.vocab))
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("expected room for {} logits, found {}",
                            logit_rows * static_cast<size_t>(config_.vocab), n_logits),
                "step");
  return {};
}

}  // namespace deepmint::v41
