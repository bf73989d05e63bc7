// Decides which rows run in the next step, and who owns which block. No threads, no clock, no
// model: plan() and the calls between two plans are a deterministic function of what was put in,
// which is what makes schedules testable and replayable.
//
//   Scheduler s(limits, cache, keeper);
//   s.enqueue(std::move(sequence));
//   const StepPlan& plan = s.plan(now);  // admits, grants rows, takes blocks
//   ... execute ...
//   s.retire(plan, true, now);           // the granted rows are in the state now; full blocks are
//                                        // published
//   s.finish(sequence, now);             // gives everything back, exactly once
//
// One more plan may be made before the last one is retired. It is then made from upper bounds: a
// sequence whose token is still being sampled is counted as one longer. If that turns out wrong (it
// ended), its row is withdrawn, or runs for nothing; what it holds is given back when the last step
// with a row of it is retired.
//
// Order: class, fairness over keys, deadline, arrival (waiting_queue.h). Decode rows come first,
// always. Then prompts in this order, inside two budgets: rows, and positions that they look at; of
// a class those first that replay, but for a few rows of the prompt that is next: it gets on in
// every step. A waiting request starts when the blocks for its worst case are there, so a running
// one never has to stop for want of memory, and none of its class or a lower one overtakes it.
// Where they are not there because of running requests of lower classes, the last of those step
// aside (StateKeeper) and come back before others of their class.
//
// A request takes what the cache has of its prompt. Where a running one is about to compute more of
// it, the later one keeps its place and waits for that: n choices of one prompt, or many requests
// behind one system prompt, compute it once. Time is a parameter, for the cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/sequence.h"
#include "engine/waiting_queue.h"
#include "kvcache/cache_manager.h"

namespace deepmint {

struct SchedulerLimits {
  size_t max_running = 64;
  size_t step_rows = 512;                     // at least max_running
  size_t step_logit_rows = 64;                // at least max_running
  int64_t step_attention = int64_t{4} << 20;  // positions that the prompt rows of a step look at
};

// Rows of one sequence in one step: positions [begin, begin + count).
struct Grant {
  Sequence* sequence = nullptr;  // null after retire(): it had ended before
  int32_t begin = 0;
  int32_t count = 0;
  bool sample = false;      // the last row's logits choose the next token
  bool all_logits = false;  // every row's logits are wanted
  size_t logit_rows() const { return all_logits ? static_cast<size_t>(count) : sample ? 1 : 0; }
  // Positions that the rows look at.
  int64_t attention() const {
    return int64_t{count} * begin + int64_t{count} * (int64_t{count} + 1) / 2;
  }
};

struct StepPlan {
  uint64_t step = 0;
  std::vector<Grant> grants;
  std::vector<Sequence*> admitted;  // that got a place in this plan
  size_t rows = 0, logit_rows = 0;
  int64_t attention = 0;  // of the prompt rows
};

// Knows what states mean. Called inside plan(), on the engine's thread; the sequence has no row in
// flight.
class StateKeeper {
 public:
  virtual ~StateKeeper() = default;
  // Whether the states of all of these could be kept, rows in flight included.
  virtual bool has_room(std::span<const std::unique_ptr<Sequence>> sequences) const = 0;
  // The sequence steps aside: its state goes into sequence.saved, before its lease is released.
  // False: no room, it stays.
  virtual bool park(Sequence& sequence) = 0;
  // Its lease has been acquired with this match: puts the private state into its slot, from what
  // was saved or from a snapshot, and sets where it begins: granted = computed.
  virtual void begin(Sequence& sequence, const kvcache::Match& match) = 0;
};

class Scheduler {
 public:
  // The cache outlives the scheduler.
  Scheduler(const SchedulerLimits& limits, kvcache::CacheManager& cache, StateKeeper& keeper);

  void enqueue(std::unique_ptr<Sequence> sequence);

  // Valid until the call after the next. No allocation once as many sequences have run together as
  // ever will.
  const StepPlan& plan(Clock::time_point now);
  // Rows of a sequence that has ended leave a plan that does not run yet. Its grants then no longer
  // stand where they stood.
  void withdraw(const Sequence& sequence, const StepPlan& plan);
  // The plan has been executed, or has failed; then its positions are not in the state.
  void retire(const StepPlan& plan, bool ran, Clock::time_point now);

  // Takes a sequence out, waiting or running, and returns what it holds: now, or when the last step
  // with a row of it is retired. It is destroyed by then.
  void finish(Sequence* sequence, Clock::time_point now);

  // Makes a running sequence step aside, whoever waits. False: there is no room to keep its state,
  // it is not running, or a row of it is in flight.
  bool preempt(Sequence* sequence, Clock::time_point now);

  bool idle() const {
    return waiting_.empty() && parked_.empty() && running_.empty() && draining_.empty();
  }
  const std::vector<std::unique_ptr<Sequence>>& running() const { return running_; }  // in order
  const std::vector<std::unique_ptr<Sequence>>& parked() const { return parked_; }
  const WaitingQueue& waiting() const { return waiting_; }
  bool blocked() const { return blocked_; }  // the last plan left somebody waiting for memory
  const SchedulerLimits& limits() const { return limits_; }

  // Whether a sequence that needs room for this many positions could ever run.
  bool can_ever_fit(int32_t positions) const;

 private:
  Sequence* next_to_start() const;
  bool take_memory(Sequence& sequence);
  bool make_room(const Sequence& next);
  void start_waiting();
  void follow(Sequence& sequence);
  bool leader_is_done(const Sequence& sequence) const;
  void leave_followers(const Sequence& leader);
  void publish(Sequence& sequence);
  void grant(Sequence& sequence, int32_t count);
  void grant_prompt(Sequence& sequence, const Sequence& front);
  void grant_prompts();
  bool in_flight(const Sequence& sequence) const { return sequence.last_step > retired_; }

  const SchedulerLimits limits_;
  kvcache::CacheManager& cache_;
  StateKeeper& keeper_;
  WaitingQueue waiting_;
  std::vector<std::unique_ptr<Sequence>> parked_;    // in order
  std::vector<std::unique_ptr<Sequence>> running_;   // in order
  std::vector<std::unique_ptr<Sequence>> draining_;  // ended, with a row in flight
  StepPlan plans_[2];
  StepPlan* plan_ = &plans_[0];  // the newest
  uint64_t arrivals_ = 0, step_ = 0, retired_ = 0;
  Clock::time_point now_;  // of the call
  size_t followers_ = 0;   // sequences with a leader
  bool blocked_ = false;
  bool yielding_ = false;  // somebody may have to step aside
};

}  // namespace deepmint
