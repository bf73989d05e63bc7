#include "model/deepseek_v41/replay.h"

#include <fmt/format.h>

#include <algorithm>

namespace deepmint::v41 {
namespace {

int last_source(const Config& c) { return c.kv_sources.empty() ? -1 : c.kv_sources.back(); }

// How far back the output of `layers` layers reaches through their windows.
int64_t reach(const Config& c, int layers) { return static_cast<int64_t>(layers) * (c.window - 1); }

tl::unexpected<Error> bad(std::string where, std::string message) {
  return fail(ErrorCode::kInvalidArgument, std::move(message), std::move(where));
}

}  // namespace

void TailPlan::apply(Row& row) const {
  if (first_kept == 0) return;
  if (row.position < first_kept) row.layer_end = layer_end;
  row.decoder_floor = first_kept;
}

int32_t exact_tail_rows(const Config& config) {
  // The last window of the last layer's inputs must be exact; each decoder layer before it reads
  // one window further back.
  const int decoder = config.layers - 1 - last_source(config);
  if (decoder <= 0 || last_source(config) < 0) return config.window;
  return static_cast<int32_t>(
      std::min<int64_t>(INT32_MAX, config.window + reach(config, decoder - 1)));
}

Result<TailPlan> plan_tail(const Config& config, const TailOptions& options,
                           int32_t prompt_tokens) {
  if (options.mode == TailMode::kFull) return TailPlan{};
  if (options.prompt_logits)
    return bad("tail",
               "expected every row to run the whole model when logits of the prompt are wanted, "
               "found a decoder tail");
  if (options.mode == TailMode::kBounded && options.keep_tokens < config.window)
    return bad("keep_tokens", fmt::format("expected at least the window, {}, found {}",
                                          config.window, options.keep_tokens));
  // Without global rows, or with the last source in the last layer, there is nothing to leave out.
  if (last_source(config) < 0 || last_source(config) + 1 >= config.layers) return TailPlan{};
  const int32_t keep =
      options.mode == TailMode::kExact ? exact_tail_rows(config) : options.keep_tokens;
  return TailPlan{.first_kept = std::max(0, prompt_tokens - keep),
                  .layer_end = static_cast<int16_t>(last_source(config))};
}

Row ReplayPlan::row(int32_t position, TokenId token) const {
  Row row;
  row.position = position;
  row.token = token;
  row.window_floor = window_floor;
  row.write_global_from = write_global_from;
  tail.apply(row);
  return row;
}

Result<ReplayPlan> plan_replay(const Config& config, const ReplayOptions& options,
                               int32_t prompt_tokens) {
  const int32_t hit = options.hit;
  if (hit < 0 || hit >= prompt_tokens)
    return bad("hit", fmt::format("expected 0 to {} positions, fewer than the prompt has, found {}",
                                  prompt_tokens - 1, hit));
  TailOptions tail_options = options.tail;
  tail_options.prompt_logits |= options.every_logit;
  DEEPMINT_TRY(tail, plan_tail(config, tail_options, prompt_tokens));

  ReplayPlan plan;
  plan.tail = tail;
  plan.write_global_from = hit;
  switch (options.mode) {
    case ReplayMode::kSnapshot:
      plan.begin = hit;
      if (tail_options.mode == TailMode::kBounded && tail.first_kept < hit)
        return bad("hit", fmt::format("expected a snapshot at or before {}, where the bounded tail "
                                      "of this prompt begins, found one at {}",
                                      tail.first_kept, hit));
      if (!options.decoder_exact && tail.first_kept < hit)
        return bad("hit",
                   "expected a snapshot with exact decoder rings, found one of a run with "
                   "a bounded tail");
      break;
    case ReplayMode::kBounded:
      if (hit <= config.window) {
        plan.write_global_from = 0;  // a cold run writes the same rows again
      } else {
        plan.begin = hit - config.window;
      }
      break;
    case ReplayMode::kExact: {
      // Exact rings of the last layer at the end of the prompt, exact global rows from the hit on,
      // and, when asked for, exact logits from the hit on: whatever reaches furthest back.
      int64_t begin = int64_t{prompt_tokens} - config.window - reach(config, config.layers - 1);
      // The pair that an odd hit cuts is closed again from its first half.
      begin = std::min(begin, hit - hit % 2 - reach(config, std::max(0, last_source(config))));
      if (options.every_logit) begin = std::min(begin, hit - reach(config, config.layers));
      plan.begin = static_cast<int32_t>(std::clamp<int64_t>(begin, 0, hit));
      break;
    }
  }
  // A row that is not run has nothing in the rings of this sequence; a snapshot has everything.
  if (options.mode != ReplayMode::kSnapshot) plan.window_floor = plan.begin;
  // Kept decoder rows that were never run cannot be read either.
  if (plan.tail.first_kept > 0) plan.tail.first_kept = std::max(plan.tail.first_kept, plan.begin);
  return plan;
}

}  // namespace deepmint::v41
