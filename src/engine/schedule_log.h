// Writes down what an engine was asked and what it did about it, so that it can be done again:
// every request, the time of every step, cancellations as they were noticed, and of each step its
// plan, who came and who stepped aside, the tokens and the ends. One line of JSON per call of
// EngineCore. Format: docs/formats/schedule.md. schedule_replay.h does it again.
//
//   ScheduleLog log([&](std::string_view line) { file << line; });
//   DEEPMINT_TRY(core, EngineCore::create(loaded, config, clock, {.log = &log}));
//
// Holds prompts and replies: a file of it is as private as they are. The engine's thread only.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "engine/memory.h"
#include "engine/scheduler.h"

namespace deepmint {

// What shapes a schedule beside the calls.
struct ScheduleSetup {
  static constexpr int kVersion = 1;
  std::string model, isa;
  uint64_t fingerprint = 0;  // of the model
  StatePlan state;           // what the budget came to
  int32_t step_tokens = 0;
  int64_t step_attention = 0;
  bool prefix_cache = true, plan_ahead = false;
  int hash_bits = 128;

  // One list for writing and reading: v(name, field).
  template <class V>
  void visit(V&& v) {
    v("model", model), v("isa", isa), v("fingerprint", fingerprint);
    v("context_tokens", state.context_tokens), v("max_running", state.max_running);
    v("blocks", state.n_blocks), v("slots", state.n_slots), v("snapshots", state.n_snapshots);
    v("park_bytes", state.park_bytes);
    v("step_tokens", step_tokens), v("step_attention", step_attention);
    v("prefix_cache", prefix_cache), v("plan_ahead", plan_ahead), v("hash_bits", hash_bits);
  }
};

// The numbers of SamplingParams, once for writing and reading. Seed and id lists stand beside them.
template <class Params, class V>
void visit_sampling(Params& p, V&& v) {
  v("temperature", p.temperature), v("top_k", p.top_k), v("top_p", p.top_p), v("min_p", p.min_p);
  v("repetition_penalty", p.repetition_penalty), v("frequency_penalty", p.frequency_penalty);
  v("presence_penalty", p.presence_penalty), v("min_tokens", p.min_tokens);
  v("top_logprobs", p.top_logprobs), v("raw_logprobs", p.raw_logprobs);
}

class ScheduleLog {
 public:
  using Write = std::function<void(std::string_view line)>;  // with its line end
  explicit ScheduleLog(Write write) : write_(std::move(write)) {}

  void setup(ScheduleSetup setup);
  void add(const Sequence& sequence);
  void cancel_all_at(Clock::time_point when);

  // Calls that may move the schedule: open, what happened, close.
  void open(std::string_view call, uint64_t value, Clock::time_point now);
  void plan(const StepPlan& plan);
  void cancelled(const Sequence& s, bool before_plan);
  void admitted(const Sequence& s) { id(admitted_, s); }
  void set_aside(const Sequence& s) { id(aside_, s); }
  void token(const Sequence& s, TokenId token, float logprob);
  void end(const Sequence& s, FinishReason reason);
  void close();

 private:
  static void id(std::string& list, const Sequence& s);

  const Write write_;
  std::string head_, cancelled_, plan_, admitted_, aside_, late_, tokens_, ends_;
};

}  // namespace deepmint
