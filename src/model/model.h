// One forward step over a ragged batch, and what the layers above must keep for it. A model knows
// weights and one step; it does not know scheduling, caching policy, sampling or text.
//
// The same call serves prefill, decode and verification: a row is a row. Logits and state bytes of
// a row depend on that row's own sequence only, never on the other rows, on their number, or on how
// a prompt was cut into steps.
//
//   std::vector<Row> rows = {{.sequence = 0, .position = 7, .token = 42, .needs_logits = true}};
//   std::vector<SequenceRef> sequences = {{.blocks = table, .slot = SlotId{0}}};
//   DEEPMINT_CHECK_OK(model.forward({rows, sequences, memory}, logits));
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "deepmint/result.h"
#include "deepmint/types.h"

namespace deepmint {

// One token to run. Rows of one sequence stand together in ascending, gap-free positions; each
// sequence appears once.
struct Row {
  uint32_t sequence = 0;  // index into StepInput::sequences
  int32_t position = 0;   // 0-based index of `token` in its sequence
  TokenId token = 0;
  bool needs_logits = false;  // produce the logits of position + 1
  int32_t window_floor = 0;   // window attention reads no position below this (replay)
  int32_t decoder_floor = 0;  // the same, in layers after the last global source only
  int32_t write_global_from =
      0;  // global state of positions below this is already there and must not be rewritten
  int16_t layer_begin =
      0;  // layers [layer_begin, layer_end) run for this row (decoder-tail skipping)
  int16_t layer_end = std::numeric_limits<int16_t>::max();
  int32_t image_row = -1;  // row of the step's image embeddings that replaces the token embedding
};

// Where a sequence's state lives. blocks[p / kBlockTokens] is the block of position p in every
// global part.
struct SequenceRef {
  std::span<const BlockId> blocks;
  SlotId slot = kNoSlot;  // index in every private part; kNoSlot when the model declares none
};

// A kind of state that a model keeps per sequence. The cache stores it without looking inside.
struct StatePart {
  enum class Family : uint8_t {
    kGlobal,   // addressed by block: shareable, immutable once a block is full
    kPrivate,  // addressed by slot: rings, carries, histories
  };
  std::string_view name;  // "kv", "window_ring", "index_keys", …
  Family family = Family::kGlobal;
  size_t bytes = 0;  // per block of kBlockTokens positions, or per slot; a multiple of 64
};

// Memory of one part: element i (a block or a slot) starts at base + i * bytes. 64-byte aligned.
struct PartMemory {
  std::byte* base = nullptr;
  size_t count = 0;
};

struct StepInput {
  std::span<const Row> rows;
  std::span<const SequenceRef> sequences;
  std::span<const PartMemory> state;  // in the order of Model::state_parts()
};

// Hash taps: called after every sublayer with that sublayer's output, to find the first difference
// between two runs.
class Tap {
 public:
  virtual ~Tap() = default;
  // values: [rows, width] row-major in the order of StepInput::rows; name is "embed", "attn",
  // "mlp", "norm", …
  virtual void sublayer(int layer, std::string_view name, std::span<const float> values,
                        size_t width) = 0;
};

struct ModelInfo {
  std::string architecture;  // "llama", "qwen2", "qwen3", "deepseek_v41"
  std::string name;          // from metadata, else the file name
  int64_t vocab_size = 0;
  int32_t n_layers = 0;
  int32_t hidden = 0;
  int32_t context_tokens = 0;           // what the checkpoint was made for
  uint64_t weight_bytes = 0;            // in memory, as the kernels read them
  uint64_t weight_bytes_per_token = 0;  // touched by a one-row decode step
  // Multiply-adds of a step, for benchmarks: per row, per row that needs logits (the head), and per
  // row for each position that its attention reads. 0 = not stated.
  uint64_t macs_per_row = 0, macs_per_logit_row = 0, macs_per_row_and_position = 0;
  std::string_view arithmetic = "f32";  // what most of them are done in: "int8", "bf16" or "f32"
                                        // (the roof to hold them against)
  uint64_t fingerprint = 0;  // of weights, quantisation and rope settings; part of cache identity
};

// What the steps so far took, for benchmarks. What several rows of a step share counts once.
struct StepWork {
  uint64_t bytes = 0;  // of weights and state that were read
  uint64_t macs = 0;   // multiply-adds
};

class Model {
 public:
  virtual ~Model() = default;

  virtual const ModelInfo& info() const = 0;
  // Both zero: not counted, and every step does what info() says. Any thread may ask, and sees
  // whole steps.
  virtual StepWork work() const { return {}; }
  virtual std::span<const StatePart> state_parts() const = 0;

  // Sets aside scratch for steps of up to this many rows, of which up to `max_logit_rows` need
  // logits. No later step within these limits allocates. Must be called before forward, again to
  // raise the limits.
  virtual Status reserve(size_t max_rows, size_t max_logit_rows) = 0;

  // Runs one step and writes the state of its rows. logits: [rows with needs_logits, vocab_size] in
  // row order. Errors: kInvalidArgument (token or position out of range, more rows than reserved);
  // state is then untouched. One caller at a time; uses the thread pool that the model was loaded
  // with.
  virtual Status forward(const StepInput& input, std::span<float> logits, Tap* tap = nullptr) = 0;

  // Whether every id of a sequence, each one in the vocabulary, is of a kind that this model runs.
  // Any thread may ask. Errors: kUnsupported, `where` is "tokens[i]".
  virtual Status check_tokens(std::span<const TokenId> tokens) const {
    return (void)tokens, Status{};
  }

  // Which rows of a prompt of this length may end early without changing a bit of its last logits
  // or of anything that comes after: those below first_full run only the layers before layer_end.
  // Not for prompts whose own logits are wanted.
  struct PromptTail {
    int32_t first_full = 0;
    int16_t layer_end = std::numeric_limits<int16_t>::max();
  };
  virtual PromptTail exact_prompt_tail(int32_t prompt_tokens) const {
    return (void)prompt_tokens, PromptTail{};
  }
  // The same for a tail of `keep_tokens` rows, which approximates: a choice of the request, never
  // of the caller. Errors: kUnsupported (a model in which every row runs every layer),
  // kInvalidArgument (too few rows).
  virtual Result<PromptTail> bounded_prompt_tail(int32_t prompt_tokens, int32_t keep_tokens) const {
    (void)prompt_tokens, (void)keep_tokens;
    return fail(ErrorCode::kUnsupported,
                "expected the exact tail, since every token of a prompt runs the whole of this "
                "model (" +
                    info().architecture + "), found a bounded one",
                "tail_keep_tokens");
  }

  // What a cache has of a prompt: global state of positions below `hit`, and private state as it
  // was at `snapshot` <= hit (0: none), with decoder rings as a full run has them or not.
  struct PrefixHit {
    int32_t hit = 0;
    int32_t snapshot = 0;
    bool decoder_exact = true;
    bool bounded =
        false;  // the request allows an approximation (GenerationRequest::bounded_replay)
  };
  // How the prompt goes on from there: from `begin` on, with these row fields. begin < hit: rows in
  // between run again to rebuild private state.
  struct PrefixPlan {
    int32_t begin = 0;
    bool from_snapshot = false;  // the private state at `begin` must be restored
    int32_t window_floor = 0;
    bool exact = true;  // false: what comes of it is this request's approximation
  };
  // `tail` is that of the request; `approximate_tail`: it chose a bounded one.
  virtual PrefixPlan plan_prefix(const PrefixHit& hit, int32_t prompt_tokens, PromptTail tail,
                                 bool approximate_tail) const {
    (void)prompt_tokens, (void)tail, (void)approximate_tail;
    for (const StatePart& part : state_parts())
      if (part.family == StatePart::Family::kPrivate)
        return {.begin = hit.snapshot, .from_snapshot = hit.snapshot > 0};
    return {.begin = hit.hit};
  }
  // The private state of a sequence that begins at `begin` without having run what comes before and
  // without a snapshot: what follows from the ids alone. tokens: at least [0, begin).
  virtual void begin_at(const SequenceRef& sequence, std::span<const PartMemory> state,
                        std::span<const TokenId> tokens, int32_t begin) const {
    (void)sequence, (void)state, (void)tokens, (void)begin;
  }

  // Zeroes what no row of a sequence of this length will read any more, or before it is written:
  // positions from `length` on in its last block; of private state what lies before its windows.
  // So that equal sequences have equal bytes whatever ran in that memory before, and nothing of
  // others leaves with a saved state. tail: of the request. No row of the sequence is in flight.
  virtual void clear_unread(const SequenceRef& sequence, std::span<const PartMemory> state,
                            int32_t length, PromptTail tail) const {
    (void)sequence, (void)state, (void)length, (void)tail;
  }

  // Hints that these ids will come up soon, so that rows on disk can be fetched. Never blocks.
  virtual void prefetch(std::span<const TokenId> ids) { (void)ids; }

  // Declares positions below `length` of a sequence final, so that rings may reuse older rows. A
  // pointer move.
  virtual void commit(const SequenceRef& sequence, std::span<const PartMemory> state,
                      int32_t length) {
    (void)sequence, (void)state, (void)length;
  }
};

}  // namespace deepmint
