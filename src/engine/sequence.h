// One request inside the engine: its timeline, what it holds, where its events go.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/clock.h"
#include "deepmint/engine.h"
#include "engine/request_state.h"
#include "kvcache/cache_manager.h"
#include "model/model.h"

namespace deepmint {

// What a ticket and its sequence share. The ticket may outlive the sequence and the engine.
struct RequestControl {
  uint64_t id = 0;
  std::atomic<bool> cancelled{false};
};

// The ids of a sequence, with room for all that may come. Two writers that never meet: the executor
// puts a sampled id behind what it knows, the engine's thread counts it in when it delivers it. So
// an executor may be one token ahead of what the engine's thread has seen.
class TokenTimeline {
 public:
  TokenTimeline() = default;
  TokenTimeline(std::span<const TokenId> ids, int32_t capacity)
      : ids_(std::make_unique_for_overwrite<TokenId[]>(
            std::max(ids.size(), static_cast<size_t>(capacity)))),
        known_(static_cast<int32_t>(ids.size())),
        sampled_(known_) {
    std::copy(ids.begin(), ids.end(), ids_.get());
  }

  // The engine's thread.
  int32_t size() const { return known_; }
  std::span<const TokenId> known() const { return {ids_.get(), static_cast<size_t>(known_)}; }
  void deliver() { ++known_; }
  void append_known(TokenId id) { ids_[static_cast<size_t>(known_++)] = id, sampled_ = known_; }

  // The executor.
  std::span<const TokenId> sampled() const { return {ids_.get(), static_cast<size_t>(sampled_)}; }
  void append_sampled(TokenId id) { ids_[static_cast<size_t>(sampled_++)] = id; }

 private:
  std::unique_ptr<TokenId[]> ids_;
  int32_t known_ = 0, sampled_ = 0;
};

struct Sequence {
  std::shared_ptr<RequestControl> control;
  GenerationRequest request;  // `tokens` is moved out
  std::shared_ptr<EventSink> sink;
  uint64_t seed = 0;

  TokenTimeline tokens;  // prompt, then output
  int32_t prompt_tokens = 0;
  // Rows of the prompt that need not run the whole model, as a cold run has it. Here those from
  // `full_from` on run it, which is further back where a snapshot is wanted there. The private
  // state at block boundaries from `exact_from` on is that of a full run all the same.
  Model::PromptTail tail;
  int32_t full_from = 0;
  int32_t exact_from = 0;
  int32_t limit = 0;  // length at which generation ends with kLength

  // How far it is. Positions [0, computed) are in the state parts; [0, granted) will be when the
  // steps that are planned have run; `in_flight` tokens have been asked for and not been delivered.
  int32_t computed = 0;
  int32_t granted = 0;
  int32_t in_flight = 0;
  uint64_t last_step = 0;  // the last plan with a row of it

  // What it holds in the cache, and who its blocks are. Both have room for all that may come.
  kvcache::Lease lease;
  kvcache::HashChain chain{kvcache::CacheIdentity{}};
  bool may_reuse = false;    // what others computed; not when logits of cached positions are wanted
  bool may_publish = false;  // not what came from outside
  // A running sequence that is about to compute blocks that this one wants too: it waits for them.
  Sequence* leader = nullptr;
  size_t shared_blocks = 0;     // how many of its first blocks are the leader's
  int32_t snapshot_at = 0;      // a chunk ends here and the private state is kept; 0: nowhere
  int32_t snapshot_from = 0;    // before this position the private state is not that of a cold run
  int32_t latest_snapshot = 0;  // of its output: gives way to the next; 0: none

  // How it begins after a prefix hit (Model::PrefixPlan): at `began`, and positions below `hit` are
  // not written.
  int32_t hit = 0;
  int32_t began = 0;
  int32_t window_floor = 0;
  int32_t reused = 0, replayed = 0;  // prompt tokens, for Usage
  bool replay_is_bounded = false;    // for Usage
  int32_t counted_reused = 0;        // of those: in the engine's own count
  bool mask_fed = false;
  kvcache::MissReason miss = kvcache::MissReason::kNone;

  // Its place in the order: class, tag (fairness), `due`, arrival. due: its deadline, but never
  // more than some minutes after it came, so that later ones with a deadline cannot pass it for
  // ever.
  uint64_t arrival = 0;
  std::optional<Clock::time_point> due;
  double cost = 0;  // what its key is charged: prompt work + 2 * expected output
  double tag = 0;
  double work = 0;  // of its prompt, as the queue model was told
  std::optional<Clock::time_point> started_at;

  RequestState state = RequestState::kQueued;
  bool yields = false;  // it gets no more rows, so that it can be preempted when its last step ends

  // State of a sequence that does not run: saved elsewhere, or set aside here (`parked`).
  std::vector<std::byte> saved;
  bool parked = false;

  bool cancelled = false;  // the request was found cancelled, at one of the points that look

  // Why it must end before the next step, and with what error.
  std::optional<FinishReason> ending;
  std::optional<Error> error;

  std::span<const TokenId> prompt() const {
    return tokens.known().first(static_cast<size_t>(prompt_tokens));
  }
  std::span<const TokenId> output() const {
    return tokens.known().subspan(static_cast<size_t>(prompt_tokens));
  }
  int32_t length() const { return tokens.size(); }
  std::span<const BlockId> blocks() const { return lease.blocks(); }
  SlotId slot() const { return lease.slot(); }

  // Rows that no plan has yet, those of tokens that are still being sampled included.
  int32_t pending() const { return std::min(length() + in_flight, positions_needed()) - granted; }
  bool decoding() const { return length() + in_flight > prompt_tokens; }
  // Global state reaches to the hit, private state is on its way there.
  bool replaying() const { return computed < hit; }
  int32_t last_boundary() const;  // of blocks, in the prompt before its last token
  void use_own_tail();            // the rows that a cold run runs whole
  // Positions that the state must be able to hold: the last token that may come is never run.
  int32_t positions_needed() const { return limit > prompt_tokens ? limit - 1 : prompt_tokens; }

  size_t class_index() const { return static_cast<size_t>(request.request_class); }
  int64_t due_key() const {
    return due ? due->time_since_epoch().count() : std::numeric_limits<int64_t>::max();
  }

  // False, and the request must end with kInternal, where the step is not lawful.
  [[nodiscard]] bool move_to(RequestState next) {
    if (!may_follow(state, next)) return false;
    state = next;
    return true;
  }
};

}  // namespace deepmint
