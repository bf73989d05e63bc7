#include "engine/scheduler.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "core/check.h"
#include "kvcache/seq_state.h"

namespace deepmint {
namespace {

using kvcache::blocks_for;

// Rows that the first prompt of a step may have however far it has come: so that every prompt
// gets on.
constexpr int32_t kLeastChunk = 16;

bool before(const Sequence& a, const Sequence& b) {
  return std::tuple(a.class_index(), a.tag, a.deadline_key(), a.arrival) <
         std::tuple(b.class_index(), b.tag, b.deadline_key(), b.arrival);
}

void insert_in_order(std::vector<std::unique_ptr<Sequence>>& list,
                     std::unique_ptr<Sequence> sequence) {
  const auto at = std::upper_bound(list.begin(), list.end(), sequence,
                                   [](const auto& a, const auto& b) { return before(*a, *b); });
  list.insert(at, std::move(sequence));
}

auto find_in(std::vector<std::unique_ptr<Sequence>>& list, const Sequence* sequence) {
  return std::find_if(list.begin(), list.end(),
                      [sequence](const auto& s) { return s.get() == sequence; });
}

// The largest n for which rows begin … begin + n - 1 look at no more than `budget` positions.
int32_t rows_within(int64_t budget, int32_t begin) {
  if (budget <= 0) return 0;
  const double b = 2.0 * begin + 1;
  auto n = static_cast<int64_t>((std::sqrt(b * b + 8.0 * static_cast<double>(budget)) - b) / 2);
  const auto cost = [begin](int64_t rows) { return rows * begin + rows * (rows + 1) / 2; };
  while (n > 0 && cost(n) > budget) --n;  // the root is rounded
  while (cost(n + 1) <= budget) ++n;
  return static_cast<int32_t>(std::min<int64_t>(n, std::numeric_limits<int32_t>::max()));
}

}  // namespace

Scheduler::Scheduler(const SchedulerLimits& limits, Parking* parking)
    : limits_(limits), parking_(parking), blocks_(limits.n_blocks), slots_(limits.n_slots) {
  DEEPMINT_CHECK(limits.max_running > 0 && limits.step_rows >= limits.max_running &&
                 limits.step_logit_rows >= limits.max_running && limits.step_attention > 0);
  running_.reserve(limits.max_running);
  draining_.reserve(limits.max_running);
  for (StepPlan& plan : plans_) {
    plan.grants.reserve(limits.max_running);
    plan.admitted.reserve(limits.max_running);
  }
}

bool Scheduler::can_ever_fit(int32_t positions) const {
  return blocks_for(positions) <= blocks_.total();
}

void Scheduler::enqueue(std::unique_ptr<Sequence> sequence) {
  sequence->arrival = ++arrivals_;
  waiting_.push(std::move(sequence));
}

// ---------------------------------------------------------------- who runs

// Those that were set aside come back before others of their class.
Sequence* Scheduler::next_to_start() const {
  Sequence* waiting = waiting_.front();
  if (parked_.empty()) return waiting;
  Sequence* parked = parked_.front().get();
  return waiting == nullptr || parked->class_index() <= waiting->class_index() ? parked : waiting;
}

bool Scheduler::take_memory(Sequence& next) {
  if (running_.size() + draining_.size() >= limits_.max_running) return false;
  if (limits_.n_slots > 0 && slots_.free() == 0) return false;
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
  return true;
}

// Lets the last of lower classes step aside until `next` fits, unless all of them would not do.
bool Scheduler::make_room(const Sequence& next) {
  if (parking_ == nullptr) return false;
  size_t places =
      limits_.max_running - std::min(limits_.max_running, running_.size() + draining_.size());
  size_t free = blocks_.available(), slots = slots_.free();
  const size_t need = blocks_for(next.positions_needed());
  const auto fits = [&] {
    return places > 0 && free >= need && (limits_.n_slots == 0 || slots > 0);
  };
  size_t victims = 0;
  for (auto it = running_.rbegin(); it != running_.rend() && !fits(); ++it, ++victims) {
    const Sequence& s = **it;
    if (s.class_index() <= next.class_index()) return false;
    ++places, ++slots;
    free += s.blocks.size() + s.blocks_reserved;
  }
  if (!fits()) return false;
  bool quiet = true;
  for (size_t i = 0; i < victims; ++i) {
    Sequence& s = *running_[running_.size() - 1 - i];
    s.yields = true;
    quiet = quiet && !in_flight(s);
  }
  if (!quiet) return false;  // at the next plan their last step will have ended
  while (victims > 0 && preempt(running_.back().get())) --victims;
  for (size_t i = 0; i < victims; ++i)  // no room to keep their state: they go on
    running_[running_.size() - 1 - i]->yields = false;
  return victims == 0;
}

void Scheduler::start_waiting() {
  blocked_ = false;
  for (const auto& s : running_) s->yields = false;
  while (Sequence* next = next_to_start()) {
    if (!take_memory(*next) && !(make_room(*next) && take_memory(*next))) {
      blocked_ = true;
      return;
    }
    std::unique_ptr<Sequence> started;
    if (!parked_.empty() && parked_.front().get() == next) {
      started = std::move(parked_.front());
      parked_.erase(parked_.begin());
    } else {
      started = waiting_.pop();
    }
    plan_->admitted.push_back(started.get());
    insert_in_order(running_, std::move(started));
  }
}

bool Scheduler::preempt(Sequence* sequence) {
  const auto it = find_in(running_, sequence);
  if (it == running_.end() || parking_ == nullptr || in_flight(**it) || (*it)->ending ||
      !parking_->park(**it))
    return false;
  std::unique_ptr<Sequence> s = std::move(*it);
  running_.erase(it);
  release(*s);
  s->yields = false;
  insert_in_order(parked_, std::move(s));
  return true;
}

void Scheduler::release(Sequence& s) {
  for (auto block = s.blocks.rbegin(); block != s.blocks.rend(); ++block) blocks_.release(*block);
  s.blocks.clear();
  blocks_.unreserve(s.blocks_reserved);
  s.blocks_reserved = 0;
  if (s.slot != kNoSlot) slots_.release(s.slot);
  s.slot = kNoSlot;
}

void Scheduler::finish(Sequence* sequence) {
  if (const auto it = find_in(running_, sequence); it != running_.end()) {
    waiting_.ended(*sequence);
    if (in_flight(**it)) {
      draining_.push_back(std::move(*it));
    } else {
      release(**it);
    }
    running_.erase(it);
    return;
  }
  if (const auto it = find_in(parked_, sequence); it != parked_.end()) {
    waiting_.ended(*sequence);
    parked_.erase(it);
    return;
  }
  DEEPMINT_CHECK(waiting_.remove(sequence) != nullptr);
}

// ---------------------------------------------------------------- which rows

void Scheduler::grant(Sequence& sequence, int32_t count) {
  Grant g;
  g.sequence = &sequence;
  g.begin = sequence.granted;
  g.count = count;
  const int32_t end = sequence.length() + sequence.in_flight;
  g.sample = sequence.granted + count == end && end < sequence.limit;
  g.all_logits = sequence.request.want_prompt_logits && !sequence.decoding();
  while (sequence.blocks.size() < blocks_for(sequence.granted + count)) {
    DEEPMINT_CHECK(sequence.blocks_reserved > 0);
    sequence.blocks.push_back(blocks_.take_reserved());
    --sequence.blocks_reserved;
  }
  sequence.granted += count;
  sequence.in_flight += g.sample ? 1 : 0;
  sequence.last_step = step_;
  plan_->rows += static_cast<size_t>(count);
  plan_->logit_rows += g.logit_rows();
  plan_->attention += g.attention();
  plan_->grants.push_back(g);
}

void Scheduler::grant_prompt(Sequence& sequence) {
  size_t room = limits_.step_rows - plan_->rows;
  const size_t logit_room = limits_.step_logit_rows - plan_->logit_rows;
  if (sequence.request.want_prompt_logits) room = std::min(room, logit_room);
  if (room == 0 || logit_room == 0) return;
  int32_t count = static_cast<int32_t>(std::min(room, static_cast<size_t>(sequence.pending())));
  const int32_t visible = rows_within(limits_.step_attention - plan_->attention, sequence.granted);
  const bool first = plan_->attention == 0;
  count = std::min(count, first ? std::max(visible, kLeastChunk) : visible);
  if (count == 0) return;
  grant(sequence, count);
  waiting_.served(sequence);
}

const StepPlan& Scheduler::plan() {
  DEEPMINT_CHECK(step_ - retired_ <= 1);
  plan_ = &plans_[++step_ % 2];
  plan_->step = step_;
  plan_->grants.clear();
  plan_->admitted.clear();
  plan_->rows = plan_->logit_rows = 0;
  plan_->attention = 0;
  start_waiting();
  const auto one_row = [](const Sequence& s) { return s.decoding() && s.pending() == 1; };
  for (const auto& s : running_)
    if (one_row(*s) && !s->yields && !s->ending) grant(*s, 1);
  plan_->attention = 0;  // decode never waits for prefill, and does not use up its budget
  for (const auto& s : running_)
    if (s->pending() > 0 && s->last_step != step_ && !s->yields && !s->ending) grant_prompt(*s);
  return *plan_;
}

void Scheduler::withdraw(const Sequence& sequence, const StepPlan& plan) {
  DEEPMINT_CHECK(&plan == plan_ && plan.step > retired_);
  const auto it = std::find_if(plan_->grants.begin(), plan_->grants.end(),
                               [&](const Grant& g) { return g.sequence == &sequence; });
  if (it == plan_->grants.end()) return;
  Sequence& s = *it->sequence;
  DEEPMINT_CHECK(s.last_step == plan.step);
  s.granted = it->begin;
  s.in_flight -= it->sample ? 1 : 0;
  s.last_step = retired_;
  plan_->rows -= static_cast<size_t>(it->count);
  plan_->logit_rows -= it->logit_rows();
  plan_->grants.erase(it);
}

void Scheduler::retire(const StepPlan& plan, bool ran) {
  DEEPMINT_CHECK(plan.step > retired_);
  retired_ = plan.step;
  if (ran)
    for (const Grant& g : plan.grants) {
      DEEPMINT_CHECK(g.sequence->computed == g.begin);
      g.sequence->computed += g.count;
    }
  for (Grant& g : plans_[plan.step % 2].grants)
    if (g.sequence->state == RequestState::kDone) g.sequence = nullptr;
  std::erase_if(draining_, [this](std::unique_ptr<Sequence>& s) {
    if (in_flight(*s)) return false;
    release(*s);
    return true;
  });
}

}  // namespace deepmint
