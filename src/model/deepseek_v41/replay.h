// Which rows must run again, and how far, so that a sequence can go on: plans over the row fields
// of model/model.h. Pure functions; nothing here decides which plan is used.
//
// Two things can be left out of a prompt's prefill:
//
//   the decoder (layers after the last kv source) for all but the last rows of the prompt, because
//   nothing global comes from it (spec model.md 10.3): plan_tail();
//
//   all layers for positions below a prefix-cache hit, whose global rows are there already, but for
//   as many as rebuild the window rings (10.4, serving.md 3.4): plan_replay().
//
//   DEEPMINT_TRY(plan, plan_replay(config, {.mode = ReplayMode::kExact, .hit = 4096}, prompt));
//   layout.write_history(state, sequence, tokens, plan.begin);
//   for (int32_t p = plan.begin; p < prompt; ++p) rows.push_back(plan.row(p, tokens[p]));
//
// A plan is a function of (config, hit, prompt length, options): never of chunks, so any chunking
// of its rows gives the same bits. `exact` plans give the bits of a cold, full run. `bounded` ones
// give those of their definition: window attention reads no position below the floor.
#pragma once

#include <cstdint>
#include <string_view>

#include "deepmint/result.h"
#include "deepmint/types.h"
#include "model/deepseek_v41/config.h"
#include "model/model.h"

namespace deepmint::v41 {

// ---------------------------------------------------------------- decoder tail

enum class TailMode : uint8_t {
  kFull,     // every row runs every layer
  kExact,    // the decoder runs on as many last rows as make the last logits and all rings exact
  kBounded,  // it runs on keep_tokens last rows only
};

struct TailOptions {
  TailMode mode = TailMode::kFull;
  // Of kBounded: at least the window, so that decoding finds every decoder ring full; 12 more let
  // drafts roll back.
  int32_t keep_tokens = 140;
  // Logits of all prompt positions are wanted (log-probabilities of the prompt): then no row may
  // end early.
  bool prompt_logits = false;
};

struct TailPlan {
  int32_t first_kept = 0;  // positions below it end at layer_end
  int16_t layer_end = 0;   // the last kv source, which projects its rows and stops
  void apply(Row& row) const;
};

// Rows at the end of a prompt that kExact keeps: window + (decoder layers - 1) * (window - 1);
// 2,414 at official dimensions.
int32_t exact_tail_rows(const Config& config);

// Errors: kInvalidArgument: keep_tokens below the window, prompt logits together with a mode that
// leaves rows out.
Result<TailPlan> plan_tail(const Config& config, const TailOptions& options, int32_t prompt_tokens);

// ---------------------------------------------------------------- prefix hit without window rings

enum class ReplayMode : uint8_t {
  kSnapshot,  // rings, carry and history were saved at the hit (snapshot.h): nothing runs again
  kExact,     // runs so much again that everything later equals a cold run
  kBounded,   // runs one window again, with window attention cut there: an approximation
};

struct ReplayOptions {
  ReplayMode mode = ReplayMode::kExact;
  int32_t hit = 0;           // positions below it have their global rows in the sequence's blocks
  bool every_logit = false;  // logits of all positions from the hit on are wanted, not the last
  // Of kSnapshot: whether the decoder rings that were saved are exact. Those of a run with a
  // bounded tail are not: they belong to the prompt that made them.
  bool decoder_exact = true;
  TailOptions tail = {};
};

struct ReplayPlan {
  int32_t begin = 0;              // first position to run; equal to the hit: nothing runs again
  int32_t window_floor = 0;       // of every row from `begin` to the end of the prompt
  int32_t write_global_from = 0;  // global rows below it stay what their first writer made them
  TailPlan tail;
  // The row of one prompt position, begin <= position. needs_logits is left false.
  Row row(int32_t position, TokenId token) const;
};

// A bounded hit of no more than the window gains nothing and is not taken: the plan is then a cold
// one. Errors: kInvalidArgument: a hit outside the prompt; a snapshot that cannot give the answer
// of a cold run (a bounded tail that begins before it, or its decoder rings are not exact and would
// be read); those of plan_tail().
Result<ReplayPlan> plan_replay(const Config& config, const ReplayOptions& options,
                               int32_t prompt_tokens);

}  // namespace deepmint::v41
