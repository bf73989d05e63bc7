// Decides which rows run in the next step, and who owns which block. No threads, no clock, no
// model: plan() and the calls between two plans are a deterministic function of what was put in,
// which is what makes schedules testable and replayable.
//
//   Scheduler s(limits, arena_parts...);
//   s.enqueue(std::move(sequence));
//   const StepPlan& plan = s.plan();     // admits, grants rows, takes blocks
//   ... execute ...
//   s.advance(plan);                     // the granted rows are in the state now
//   s.finish(sequence);                  // gives everything back, exactly once
//
// Order: first come, first served. Every running sequence that decodes gets its row first; what is
// left of the step goes to prompts, in the order of admission. A waiting request is admitted when
// the blocks for its worst case are there, so a running one never has to stop for want of memory,
// and none overtakes another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "engine/sequence.h"
#include "kvcache/block_pool.h"

namespace deepmint {

struct SchedulerLimits {
  size_t max_running = 64;
  size_t step_rows = 512;       // at least max_running
  size_t step_logit_rows = 64;  // at least max_running
  size_t n_blocks = 0;
  size_t n_slots = 0;  // 0: the model keeps no private state
};

// Rows of one sequence in one step: positions [begin, begin + count).
struct Grant {
  Sequence* sequence = nullptr;
  int32_t begin = 0;
  int32_t count = 0;
  bool sample = false;      // the last row's logits choose the next token
  bool all_logits = false;  // every row's logits are wanted
  size_t logit_rows() const { return all_logits ? static_cast<size_t>(count) : sample ? 1 : 0; }
};

struct StepPlan {
  uint64_t step = 0;
  std::vector<Grant> grants;
  std::vector<Sequence*>
      admitted;  // in this plan, in order; their blocks for saved state are there
  size_t rows = 0, logit_rows = 0;
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerLimits& limits);

  void enqueue(std::unique_ptr<Sequence> sequence);

  // Valid until the next call. No allocation once as many sequences have run together as ever will.
  const StepPlan& plan();
  void advance(const StepPlan& plan);

  // Takes a sequence out, waiting or running, and returns its blocks and slot.
  std::unique_ptr<Sequence> finish(const Sequence* sequence);

  bool idle() const { return waiting_.empty() && running_.empty(); }
  const std::vector<std::unique_ptr<Sequence>>& running() const { return running_; }
  const std::deque<std::unique_ptr<Sequence>>& waiting() const { return waiting_; }
  const kvcache::BlockPool& blocks() const { return blocks_; }
  const kvcache::SlotPool& slots() const { return slots_; }
  const SchedulerLimits& limits() const { return limits_; }

  // Whether a sequence that needs room for this many positions could ever run.
  bool can_ever_fit(int32_t positions) const;

 private:
  bool admit_next();
  void grant(Sequence& sequence, int32_t count);

  const SchedulerLimits limits_;
  kvcache::BlockPool blocks_;
  kvcache::SlotPool slots_;
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<std::unique_ptr<Sequence>> running_;  // in the order of admission
  StepPlan plan_;
};

}  // namespace deepmint
