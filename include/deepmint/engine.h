// The boundary between inference and everything above it. An Engine is loaded weights, a scheduler
// and caches; a Ticket is one request's timeline. The caller always hands over the whole token
// prefix and the engine decides what to reuse. Nobody above this header sees a tensor, nobody below
// it sees text or JSON.
//
//   DEEPMINT_TRY(ticket, engine->submit({.tokens = ids, .sampling = p, .max_tokens = 100,
//                                        .stop_ids = {eos}},
//                                       sink));
//   ...                 // sink->on_token() per token, then sink->on_finish() exactly once
//   ticket->cancel();   // any thread, any number of times; on_finish() follows within one step
//
// Threads: every method may be called from any thread. Sinks are called on the engine's thread and
// must not block.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "deepmint/result.h"
#include "deepmint/sampling.h"
#include "deepmint/types.h"

namespace deepmint {

// Who goes first when not all can: somebody reads along, a program waits, nobody waits. Batch
// requests are best effort: no promise about their first token, and they may be set aside while
// others run.
enum class RequestClass : uint8_t { kInteractive, kAgent, kBatch };
inline constexpr int kRequestClasses = 3;
std::string_view to_string(RequestClass request_class);  // "interactive", "agent", "batch"

// Restricts what may be sampled next, token by token: grammars and forced prefixes. One object per
// request; the engine calls it on its own thread, allowed() and then accept() for each token in
// order.
class TokenMask {
 public:
  virtual ~TokenMask() = default;
  // Bit (id % 32) of word id / 32 set = id may come next; [ceil(vocab / 32)] words, or none for
  // "everything". Valid until the next call. A mask with no bit set ends the request with kError.
  virtual std::span<const uint32_t> allowed() = 0;
  virtual void accept(TokenId id) = 0;  // this id was sampled; allowed() has permitted it
};

// Rows that a bounded decoder tail keeps where nobody says how many: the window and room for
// drafts.
inline constexpr int32_t kDefaultTailKeepTokens = 140;

struct GenerationRequest {
  std::vector<TokenId> tokens;  // the whole prompt, at least one id
  SamplingParams sampling;
  int32_t max_tokens = -1;  // new tokens; -1 = what is left of the context; 0 = prefill only
  std::vector<TokenId>
      stop_ids;  // generation ends after sampling one of these (it is reported as a token event)
  bool want_prompt_logits = false;  // on_prompt_logits for every prompt position (scoring)
  // DeepSeek-V4.1 only: a bounded decoder tail. Only this many last rows of the prompt run the
  // whole model, at least the window (128; 140 leaves room for drafts). The answer is then another
  // one, but still of the request alone. Unset: the exact answer. Not together with
  // want_prompt_logits.
  std::optional<int32_t> tail_keep_tokens;
  RequestClass request_class = RequestClass::kInteractive;
  std::optional<std::chrono::steady_clock::time_point> deadline;
  // Ends with kResourceExhausted if it still waits at this time; unset: engine.max_queue_ms.
  std::optional<std::chrono::steady_clock::time_point> start_by;
  // Requests of one class are served fairly over these keys (who pays, usually), in proportion to
  // the weight, 0.001 to 1000. Empty: all such requests together are one key.
  std::string fair_key;
  double fair_weight = 1;
  // Where a prompt's beginning is in the cache and the window state at its end is not, run only one
  // window again: faster, not the same bits as an exact answer, and dependent on what the cache
  // has. Without effect in models that have no window state.
  bool bounded_replay = false;
  std::string cache_salt;  // isolates cached prefixes between tenants
  int32_t choice =
      0;  // index of this timeline among the n of one API request (random stream word c3)
  std::shared_ptr<TokenMask> mask;  // null: none
};

struct TopLogprob {
  TokenId id;
  float logprob;
};

struct TokenEvent {
  TokenId id;
  int32_t choice;                   // GenerationRequest::choice
  int32_t position;                 // index of this token in the whole sequence, prompt included
  float logprob;                    // NaN when not asked for
  std::span<const TopLogprob> top;  // best first; valid during the call only
};

enum class FinishReason : uint8_t { kStop, kLength, kCancelled, kDeadline, kError };
std::string_view to_string(FinishReason reason);

// Why less of a prompt was in the cache than could have been.
enum class CacheMiss : uint8_t {
  kNone,            // all that can be reused was there
  kNeverSeen,       // nothing of this prompt is known
  kFirstDivergent,  // it leaves what is known at cached_tokens
  kEvicted,         // the rest was there and gave way to others
  kExpired,         // … and was too old
  kSalt,            // it is known under another cache_salt
};
inline constexpr size_t kCacheMisses = 6;
std::string_view to_string(CacheMiss miss);  // "none", "never_seen", …

struct Usage {
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;    // prompt tokens whose global state was reused
  int32_t replayed_tokens = 0;  // of those: run again all the same, to rebuild window state
  CacheMiss cache_miss = CacheMiss::kNone;
  // Where either is set the answer is an approximation, which the request has asked for or allowed:
  // prompt tokens that a bounded decoder tail, shorter than the exact one, left out of the last
  // layers; window state that a bounded replay made from one window.
  int32_t tail_skipped_tokens = 0;
  bool bounded_replay = false;
  int32_t output_tokens = 0;
};

struct FinishEvent {
  FinishReason reason = FinishReason::kStop;
  int32_t choice = 0;
  Usage usage;
  uint64_t seed = 0;           // the seed in force: the caller's, or the one drawn at admission
  std::optional<Error> error;  // set with kError
};

// Where a request's events go. All calls come from one thread, in order; on_finish is the last and
// comes exactly once.
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void on_prefill(int32_t done, int32_t total) {
    (void)done, (void)total;
  }  // after each prefill chunk
  // logits of the token that follows prompt position `position`; [vocab], valid during the call
  // only.
  virtual void on_prompt_logits(int32_t position, std::span<const float> logits) {
    (void)position, (void)logits;
  }
  virtual void on_token(const TokenEvent& event) = 0;
  virtual void on_finish(const FinishEvent& event) = 0;
};

// A submitted request. Dropping the last copy does not cancel it.
class Ticket {
 public:
  virtual ~Ticket() = default;
  virtual void cancel() = 0;
  virtual uint64_t id() const = 0;
};

struct EngineInfo {
  std::string model_name;    // file or folder name
  std::string architecture;  // "llama", "qwen2", "qwen3", "deepseek_v41"
  int64_t vocab_size = 0;
  int32_t context_tokens = 0;  // largest prompt + output that one request may have
  int32_t max_running = 0;     // sequences stepped together
  int64_t kv_bytes = 0;        // memory set aside for sequence state
  std::string isa;             // instruction-set class, part of "build" in the one-answer contract
  int32_t threads = 0;
};

struct EngineStats {
  int64_t running = 0, waiting = 0;
  int64_t blocks_total = 0, blocks_free = 0;  // free: of no request, cached or not
  int64_t blocks_cached = 0;                  // of those: hold a prefix that may come again
  int64_t steps = 0, rows = 0;
  int64_t prompt_tokens = 0;  // that were run, replayed ones included
  int64_t output_tokens = 0, cached_tokens = 0, replayed_tokens = 0;
  int64_t cache_evictions = 0, cache_collisions = 0;
  int64_t snapshots = 0, snapshots_restored = 0;
  int64_t finished = 0, cancelled = 0, refused = 0, failed = 0;
  int64_t preempted = 0, resumed = 0;  // set aside for a request of a better class, and back again
  int64_t parked_bytes = 0;            // memory of those that are set aside now
  // Bytes of state memory by use: running requests, what is cached, snapshots, nothing.
  int64_t bytes_running = 0, bytes_cached = 0, bytes_snapshots = 0, bytes_free = 0;
  int64_t bytes_books = 0;  // beside it: what says who holds which block, and what is in it
  // Nanoseconds that steps worked, and that lay between them and inside them without work for the
  // model's threads (planning, delivery, masks), while there were requests.
  int64_t step_ns = 0, step_gap_ns = 0;
  int64_t late_rows = 0;  // rows that ran for a request that had ended while they were planned
};

class Engine {
 public:
  virtual ~Engine() = default;

  // Validates and queues. Errors: kInvalidArgument (bad parameter or id), kUnsupported (what this
  // model does not do: an image token, a bounded decoder tail), kTooLarge (prompt longer
  // than the context, or needs more state than the whole pool holds), kResourceExhausted (waiting
  // queue full, or the first token would come too late for its class; retry_after_s says when to
  // come again), kUnavailable (stopping). On error the sink is never called.
  virtual Result<std::shared_ptr<Ticket>> submit(GenerationRequest request,
                                                 std::shared_ptr<EventSink> sink) = 0;

  virtual const EngineInfo& info() const = 0;
  virtual EngineStats stats() const = 0;

  // Stops admitting; running requests finish, or are cancelled at the deadline. Returns when the
  // engine is idle.
  virtual void drain(std::chrono::milliseconds deadline) = 0;
};

}  // namespace deepmint
