#include "engine/scheduler.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "core/check.h"
#include "kvcache/seq_state.h"

namespace deepmint {
namespace {

using kvcache::blocks_for;

// Rows that the prompt that is next has in every step, however far it has come and whoever is let
// pass: so that every prompt gets on.
constexpr int32_t kLeastChunk = 16;

bool before(const Sequence& a, const Sequence& b) {
  return std::tuple(a.class_index(), a.tag, a.due_key(), a.arrival) <
         std::tuple(b.class_index(), b.tag, b.due_key(), b.arrival);
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
  budget = std::min(budget, int64_t{1} << 53);  // so that nothing below overflows
  const double b = 2.0 * begin + 1;
  auto n = static_cast<int64_t>((std::sqrt(b * b + 8.0 * static_cast<double>(budget)) - b) / 2);
  const auto cost = [begin](int64_t rows) { return rows * begin + rows * (rows + 1) / 2; };
  while (n > 0 && cost(n) > budget) --n;  // the root is rounded
  while (cost(n + 1) <= budget) ++n;
  return static_cast<int32_t>(std::min<int64_t>(n, std::numeric_limits<int32_t>::max()));
}

}  // namespace

Scheduler::Scheduler(const SchedulerLimits& limits, kvcache::CacheManager& cache,
                     StateKeeper& keeper)
    : limits_(limits), cache_(cache), keeper_(keeper) {
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
  return cache_.can_ever_fit(blocks_for(positions));
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

// Everything that the sequence may come to need, with what the cache has of it; or nothing.
bool Scheduler::take_memory(Sequence& next) {
  kvcache::Match match;
  size_t wanted = 0;
  if (next.may_reuse && next.computed == 0) {
    wanted = kvcache::reusable_blocks(static_cast<size_t>(next.prompt_tokens));
    match = cache_.match(next.chain.first_blocks(wanted), next.prompt(), now_);
  }
  const size_t need = blocks_for(next.positions_needed());
  if (cache_.acquire(next.lease, match, need - match.hit_blocks, now_, wanted) !=
      kvcache::Acquired::kYes)
    return false;
  while (next.blocks().size() < blocks_for(std::max(next.computed, next.hit)))
    cache_.take(next.lease);  // a saved state brings its positions along
  next.miss = match.reason;
  keeper_.begin(next, match);
  DEEPMINT_CHECK(next.granted == next.computed);
  if (match.hit_blocks < wanted) follow(next);
  return true;
}

// ---------------------------------------------------------------- one computes, others follow

// Looks for a running sequence that is about to compute the next block that this one misses. It
// does not follow another itself, so nobody waits in a circle, and is of no lower class.
void Scheduler::follow(Sequence& next) {
  const size_t have = next.blocks().size();
  const auto mine =
      next.chain.first_blocks(kvcache::reusable_blocks(static_cast<size_t>(next.prompt_tokens)));
  for (const auto& s : running_) {
    if (s.get() == &next || s->leader != nullptr || !s->may_publish || s->ending ||
        s->computed >= s->prompt_tokens || s->class_index() > next.class_index())
      continue;
    const auto theirs = s->chain.full_blocks();
    size_t shared = have;
    while (shared < mine.size() && shared < theirs.size() && theirs[shared] == mine[shared])
      ++shared;
    if (shared == have || (have > 0 && theirs[have - 1] != mine[have - 1])) continue;
    next.leader = s.get();
    next.shared_blocks = shared;
    ++followers_;
    // Two that go apart here: a boundary at which others will come back to (a common prefix).
    const auto at = static_cast<int32_t>(shared * kBlockTokens);
    if (s->snapshot_at > at && s->granted <= at && s->snapshot_from <= at) s->snapshot_at = at;
    return;
  }
}

bool Scheduler::leader_is_done(const Sequence& s) const {
  const Sequence& leader = *s.leader;
  return leader.lease.published() >= s.shared_blocks || leader.computed >= leader.prompt_tokens;
}

void Scheduler::leave_followers(const Sequence& leader) {
  if (followers_ == 0) return;
  for (const auto& s : running_)
    if (s->leader == &leader) s->shared_blocks = 0, s->leader = s.get();  // looks again
}

// Lets the last of lower classes step aside until `next` fits, unless all of them would not do or
// their states would have no room.
bool Scheduler::make_room(const Sequence& next) {
  size_t places =
      limits_.max_running - std::min(limits_.max_running, running_.size() + draining_.size());
  const kvcache::CacheReport report = cache_.report();
  size_t free = report.blocks_free + report.blocks_cached - report.blocks_reserved;
  size_t slots = report.slots_total - report.slots_used;
  const size_t need = blocks_for(next.positions_needed());
  const auto fits = [&] {
    return places > 0 && free >= need && (report.slots_total == 0 || slots > 0);
  };
  size_t victims = 0;
  for (auto it = running_.rbegin(); it != running_.rend() && !fits(); ++it, ++victims) {
    const Sequence& s = **it;
    if (s.class_index() <= next.class_index()) return false;
    ++places, ++slots;
    free += s.blocks().size() + s.lease.reserved();
  }
  const std::span last(running_.data() + running_.size() - victims, victims);
  if (!fits() || !keeper_.has_room(last)) return false;
  bool quiet = true;
  for (const auto& s : last) {
    s->yields = yielding_ = true;
    quiet = quiet && !in_flight(*s);
  }
  if (!quiet) return false;  // at the next plan their last step will have ended
  while (victims > 0 && preempt(running_.back().get(), now_)) --victims;
  for (size_t i = 0; i < victims; ++i)  // no room to keep their state: they go on
    running_[running_.size() - 1 - i]->yields = false;
  return victims == 0;
}

void Scheduler::start_waiting() {
  blocked_ = false;
  if (yielding_)
    for (const auto& s : running_) s->yields = false;
  yielding_ = false;
  while (Sequence* next = next_to_start()) {
    const bool place = running_.size() + draining_.size() < limits_.max_running;
    if (!(place && take_memory(*next)) && !(make_room(*next) && take_memory(*next))) {
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

bool Scheduler::preempt(Sequence* sequence, Clock::time_point now) {
  const auto it = find_in(running_, sequence);
  if (it == running_.end() || in_flight(**it) || (*it)->ending || !keeper_.park(**it)) return false;
  std::unique_ptr<Sequence> s = std::move(*it);
  running_.erase(it);
  leave_followers(*s);
  if (s->leader != nullptr) s->leader = nullptr, --followers_;
  cache_.release(s->lease, now);
  s->yields = false;
  insert_in_order(parked_, std::move(s));
  return true;
}

void Scheduler::finish(Sequence* sequence, Clock::time_point now) {
  if (const auto it = find_in(running_, sequence); it != running_.end()) {
    std::unique_ptr<Sequence> s = std::move(*it);
    running_.erase(it);
    waiting_.ended(*s);
    leave_followers(*s);
    if (s->leader != nullptr) --followers_;
    if (in_flight(*s)) {
      draining_.push_back(std::move(s));
    } else {
      cache_.release(s->lease, now);
    }
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
  while (sequence.blocks().size() < blocks_for(sequence.granted + count))
    cache_.take(sequence.lease);
  sequence.granted += count;
  sequence.in_flight += g.sample ? 1 : 0;
  sequence.last_step = step_;
  plan_->rows += static_cast<size_t>(count);
  plan_->logit_rows += g.logit_rows();
  plan_->attention += g.attention();
  plan_->grants.push_back(g);
}

// front: the first in the order that wants rows. Until it has them, its least chunk is kept for it.
void Scheduler::grant_prompt(Sequence& sequence, const Sequence& front) {
  size_t room = limits_.step_rows - plan_->rows;
  if (&sequence != &front && front.last_step != step_)
    room -= std::min(room, static_cast<size_t>(std::min(front.pending(), kLeastChunk)));
  const size_t logit_room = limits_.step_logit_rows - plan_->logit_rows;
  if (sequence.request.want_prompt_logits) room = std::min(room, logit_room);
  if (room == 0 || logit_room == 0) return;
  int32_t count = static_cast<int32_t>(std::min(room, static_cast<size_t>(sequence.pending())));
  if (sequence.snapshot_at > sequence.granted)
    count = std::min(count, sequence.snapshot_at - sequence.granted);
  const int32_t visible = rows_within(limits_.step_attention - plan_->attention, sequence.granted);
  const bool first = plan_->attention == 0 || &sequence == &front;
  count = std::min(count, first ? std::max(visible, kLeastChunk) : visible);
  if (count == 0) return;
  grant(sequence, count);
  waiting_.served(sequence);
}

// In the order; but replays pass others of their class, for they are all that is between a hit and
// its reply.
void Scheduler::grant_prompts() {
  const auto wants_rows = [this](const std::unique_ptr<Sequence>& s) {
    return s->pending() > 0 && s->last_step != step_ && !s->yields && !s->ending &&
           s->leader == nullptr;
  };
  const auto front = std::ranges::find_if(running_, wants_rows);
  for (auto begin = front, end = front; begin != running_.end(); begin = end) {
    for (; end != running_.end() && (*end)->class_index() == (*begin)->class_index(); ++end)
      if (wants_rows(*end) && (*end)->granted < (*end)->hit) grant_prompt(**end, **front);
    for (; begin != end; ++begin)
      if (wants_rows(*begin)) grant_prompt(**begin, **front);
  }
}

const StepPlan& Scheduler::plan(Clock::time_point now) {
  DEEPMINT_CHECK(step_ - retired_ <= 1);
  now_ = now;
  plan_ = &plans_[++step_ % 2];
  plan_->step = step_;
  plan_->grants.clear();
  plan_->admitted.clear();
  plan_->rows = plan_->logit_rows = 0;
  plan_->attention = 0;
  start_waiting();
  for (size_t i = 0; followers_ > 0 && i < running_.size();) {
    Sequence& s = *running_[i];
    if (s.leader == nullptr || !leader_is_done(s)) {
      ++i;
      continue;
    }
    // Gives back what it has and takes more of it from the cache: that needs no more than it held,
    // unless what it held is no longer found (blocks whose hashes collide). Then it waits again.
    s.leader = nullptr, --followers_;
    cache_.release(s.lease, now);
    s.computed = s.granted = s.hit = 0;
    if (take_memory(s)) {
      if (s.leader == nullptr) plan_->admitted.push_back(&s);
      ++i;
    } else {
      DEEPMINT_CHECK(keeper_.park(s));  // there is nothing to keep
      std::unique_ptr<Sequence> back = std::move(running_[i]);
      running_.erase(running_.begin() + static_cast<ptrdiff_t>(i));
      std::erase(plan_->admitted, back.get());
      insert_in_order(parked_, std::move(back));
    }
  }
  const auto one_row = [](const Sequence& s) { return s.decoding() && s.pending() == 1; };
  bool all_decode = true;
  for (const auto& s : running_) {
    const bool decodes = one_row(*s) && !s->yields && !s->ending;
    if (decodes) grant(*s, 1);
    all_decode = all_decode && decodes;
  }
  plan_->attention = 0;  // decode never waits for prefill, and does not use up its budget
  if (!all_decode) grant_prompts();
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

void Scheduler::retire(const StepPlan& plan, bool ran, Clock::time_point now) {
  DEEPMINT_CHECK(plan.step > retired_);
  now_ = now;
  retired_ = plan.step;
  for (Grant& g : plans_[plan.step % 2].grants) {
    Sequence& s = *g.sequence;
    const bool done = s.state == RequestState::kDone;
    if (ran) {
      DEEPMINT_CHECK(s.computed == g.begin);
      s.computed += g.count;
      if (s.may_publish && !done) publish(s);
    }
    if (done) g.sequence = nullptr;
  }
  std::erase_if(draining_, [&](std::unique_ptr<Sequence>& s) {
    if (in_flight(*s)) return false;
    cache_.release(s->lease, now);
    return true;
  });
}

// Blocks that are full now are everybody's.
void Scheduler::publish(Sequence& s) {
  const auto full = static_cast<size_t>(s.computed) / kBlockTokens;
  if (full <= s.lease.published()) return;
  if (const size_t hashed = s.chain.tokens(); hashed < full * kBlockTokens)
    s.chain.append(s.tokens.known().subspan(hashed, full * kBlockTokens - hashed));
  cache_.publish(s.lease, s.chain.first_blocks(full), s.tokens.known(), now_);
}

}  // namespace deepmint
