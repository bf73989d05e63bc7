// Decides which rows run in the next step, and who owns which block. No threads, no clock, no
// model: plan() and the calls between two plans are a deterministic function of what was put in,
// which is what makes schedules testable and replayable.
//
//   Scheduler s(limits, parking);
//   s.enqueue(std::move(sequence));
//   const StepPlan& plan = s.plan();     // admits, grants rows, takes blocks
//   ... execute ...
//   s.retire(plan, true);                // the granted rows are in the state now
//   s.finish(sequence);                  // gives everything back, exactly once
//
// One more plan may be made before the last one is retired. It is then made from upper bounds: a
// sequence whose token is still being sampled is counted as one longer. If that turns out wrong (it
// ended), its row is withdrawn, or runs for nothing; what it holds is given back when the last step
// with a row of it is retired.
//
// Order: class, fairness over keys, deadline, arrival (waiting_queue.h). Decode rows come first,
// always. Then prompts in this order, inside two budgets: rows, and positions that they look at. A
// waiting request starts when the blocks for its worst case are there, so a running one never has
// to stop for want of memory, and none of its class or a lower one overtakes it. Where they are not
// there because of running requests of lower classes, the last of those step aside (Parking) and
// come back before others of their class.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/sequence.h"
#include "engine/waiting_queue.h"
#include "kvcache/block_pool.h"

namespace deepmint {

struct SchedulerLimits {
  size_t max_running = 64;
  size_t step_rows = 512;                     // at least max_running
  size_t step_logit_rows = 64;                // at least max_running
  int64_t step_attention = int64_t{4} << 20;  // positions that the prompt rows of a step look at
  size_t n_blocks = 0;
  size_t n_slots = 0;  // 0: the model keeps no private state
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
  std::vector<Sequence*>
      admitted;  // in this plan, in order; their blocks for saved state are there
  size_t rows = 0, logit_rows = 0;
  int64_t attention = 0;  // of the prompt rows
};

// Where the state of a sequence goes that steps aside. It is called before its blocks are given
// back.
class Parking {
 public:
  virtual ~Parking() = default;
  virtual bool park(Sequence& sequence) = 0;  // into sequence.saved; false: no room, it stays
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerLimits& limits, Parking* parking = nullptr);

  void enqueue(std::unique_ptr<Sequence> sequence);

  // Valid until the call after the next. No allocation once as many sequences have run together as
  // ever will.
  const StepPlan& plan();
  // Rows of a sequence that has ended leave a plan that does not run yet. Its grants then no longer
  // stand where they stood.
  void withdraw(const Sequence& sequence, const StepPlan& plan);
  // The plan has been executed, or has failed; then its positions are not in the state.
  void retire(const StepPlan& plan, bool ran);

  // Takes a sequence out, waiting or running, and returns what it holds: now, or when the last step
  // with a row of it is retired. It is destroyed by then.
  void finish(Sequence* sequence);

  // Makes a running sequence step aside, whoever waits. False: parking has no room, it is not
  // running, or a row of it is in flight.
  bool preempt(Sequence* sequence);

  bool idle() const {
    return waiting_.empty() && parked_.empty() && running_.empty() && draining_.empty();
  }
  const std::vector<std::unique_ptr<Sequence>>& running() const { return running_; }  // in order
  const std::vector<std::unique_ptr<Sequence>>& parked() const { return parked_; }
  const WaitingQueue& waiting() const { return waiting_; }
  bool blocked() const { return blocked_; }  // the last plan left somebody waiting for memory
  const kvcache::BlockPool& blocks() const { return blocks_; }
  const kvcache::SlotPool& slots() const { return slots_; }
  const SchedulerLimits& limits() const { return limits_; }

  // Whether a sequence that needs room for this many positions could ever run.
  bool can_ever_fit(int32_t positions) const;

 private:
  Sequence* next_to_start() const;
  bool take_memory(Sequence& sequence);
  bool make_room(const Sequence& next);
  void start_waiting();
  void release(Sequence& sequence);
  void grant(Sequence& sequence, int32_t count);
  void grant_prompt(Sequence& sequence);
  bool in_flight(const Sequence& sequence) const { return sequence.last_step > retired_; }

  const SchedulerLimits limits_;
  Parking* const parking_;
  kvcache::BlockPool blocks_;
  kvcache::SlotPool slots_;
  WaitingQueue waiting_;
  std::vector<std::unique_ptr<Sequence>> parked_;    // in order
  std::vector<std::unique_ptr<Sequence>> running_;   // in order
  std::vector<std::unique_ptr<Sequence>> draining_;  // ended, with a row in flight
  StepPlan plans_[2];
  StepPlan* plan_ = &plans_[0];  // the newest
  uint64_t arrivals_ = 0, step_ = 0, retired_ = 0;
  bool blocked_ = false;
};

}  // namespace deepmint
