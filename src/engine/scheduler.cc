#include "engine/scheduler.h"

#include <algorithm>

#include "core/check.h"
#include "kvcache/seq_state.h"

namespace deepmint {

using kvcache::blocks_for;

Scheduler::Scheduler(const SchedulerLimits& limits)
    : limits_(limits), blocks_(limits.n_blocks), slots_(limits.n_slots) {
  DEEPMINT_CHECK(limits.max_running > 0 && limits.step_rows >= limits.max_running &&
                 limits.step_logit_rows >= limits.max_running);
  running_.reserve(limits.max_running);
  plan_.grants.reserve(limits.max_running);
  plan_.admitted.reserve(limits.max_running);
}

bool Scheduler::can_ever_fit(int32_t positions) const {
  return blocks_for(positions) <= blocks_.total();
}

void Scheduler::enqueue(std::unique_ptr<Sequence> sequence) {
  waiting_.push_back(std::move(sequence));
}

// Moves the first waiting request to the running ones if its worst case fits now.
bool Scheduler::admit_next() {
  if (waiting_.empty() || running_.size() == limits_.max_running) return false;
  if (limits_.n_slots > 0 && slots_.free() == 0) return false;
  Sequence& next = *waiting_.front();
  const size_t need = blocks_for(next.positions_needed());
  if (!blocks_.reserve(need)) return false;
  next.blocks_reserved = need;
  next.blocks.reserve(need);
  if (limits_.n_slots > 0) next.slot = slots_.take();
  while (next.blocks.size() <
         blocks_for(next.computed)) {  // a saved state brings its positions along
    next.blocks.push_back(blocks_.take_reserved());
    --next.blocks_reserved;
  }
  next.admitted = true;
  plan_.admitted.push_back(&next);
  running_.push_back(std::move(waiting_.front()));
  waiting_.pop_front();
  return true;
}

void Scheduler::grant(Sequence& sequence, int32_t count) {
  Grant g;
  g.sequence = &sequence;
  g.begin = sequence.computed;
  g.count = count;
  const bool reaches_end = sequence.computed + count == sequence.length();
  g.sample = reaches_end && sequence.length() < sequence.limit;
  g.all_logits = sequence.request.want_prompt_logits && !sequence.decoding();
  while (sequence.blocks.size() < blocks_for(sequence.computed + count)) {
    DEEPMINT_CHECK(sequence.blocks_reserved > 0);
    sequence.blocks.push_back(blocks_.take_reserved());
    --sequence.blocks_reserved;
  }
  plan_.rows += static_cast<size_t>(count);
  plan_.logit_rows += g.logit_rows();
  plan_.grants.push_back(g);
}

const StepPlan& Scheduler::plan() {
  ++plan_.step;
  plan_.grants.clear();
  plan_.admitted.clear();
  plan_.rows = plan_.logit_rows = 0;
  while (admit_next()) {
  }
  for (const auto& sequence : running_)
    if (sequence->decoding() && sequence->pending() == 1) grant(*sequence, 1);
  for (const auto& sequence : running_) {
    if (sequence->decoding() && sequence->pending() == 1) continue;
    size_t room = limits_.step_rows - plan_.rows;
    const size_t logit_room = limits_.step_logit_rows - plan_.logit_rows;
    if (sequence->request.want_prompt_logits) room = std::min(room, logit_room);
    if (room == 0 || logit_room == 0) continue;
    grant(*sequence,
          static_cast<int32_t>(std::min(room, static_cast<size_t>(sequence->pending()))));
  }
  return plan_;
}

void Scheduler::advance(const StepPlan& plan) {
  for (const Grant& g : plan.grants) {
    DEEPMINT_CHECK(g.sequence->computed == g.begin);
    g.sequence->computed += g.count;
  }
}

std::unique_ptr<Sequence> Scheduler::finish(const Sequence* sequence) {
  const auto is_it = [sequence](const std::unique_ptr<Sequence>& s) { return s.get() == sequence; };
  std::unique_ptr<Sequence> out;
  if (const auto it = std::find_if(running_.begin(), running_.end(), is_it); it != running_.end()) {
    out = std::move(*it);
    running_.erase(it);
    for (auto block = out->blocks.rbegin(); block != out->blocks.rend(); ++block)
      blocks_.release(*block);
    out->blocks.clear();
    blocks_.unreserve(out->blocks_reserved);
    out->blocks_reserved = 0;
    if (out->slot != kNoSlot) slots_.release(out->slot);
    out->slot = kNoSlot;
    return out;
  }
  const auto it = std::find_if(waiting_.begin(), waiting_.end(), is_it);
  DEEPMINT_CHECK(it != waiting_.end());
  out = std::move(*it);
  waiting_.erase(it);
  return out;
}

}  // namespace deepmint
