// The complete resumable state of a sequence, to bytes and back: what preemption, disk tiers and
// prefill/decode split move about. Everything that is not here can be derived from it. Byte layout:
// docs/formats/seqstate.md.
//
//   std::vector<std::byte> bytes = encode_seq_state(state, arena, blocks, slot);
//   DEEPMINT_TRY(view, decode_seq_state(bytes, expected));
//   restore_parts(view, arena, new_blocks, new_slot);
//
// A reader believes nothing: magic, version, lengths, checksum, model, layout and token ids are
// checked before anything is used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "deepmint/result.h"
#include "deepmint/types.h"
#include "kvcache/state_arena.h"

namespace deepmint::kvcache {

struct SeqState {
  uint64_t model_fingerprint = 0;
  std::vector<TokenId> tokens;  // prompt, then output
  int32_t prompt_tokens = 0;    // 1 … tokens.size()
  int32_t computed = 0;         // the parts hold positions [0, computed); at most tokens.size()
  uint64_t seed = 0;  // with position and choice, all there is to know about the random stream
  int32_t choice = 0;
};

// What the reader's engine is. A state of another model or layout is refused.
struct SeqStateExpectation {
  uint64_t model_fingerprint = 0;
  int64_t vocab_size = 0;
  int32_t context_tokens = 0;
  std::span<const PartSpec> parts;
};

// Views into the bytes that were decoded.
struct SeqStateView {
  SeqState state;
  std::vector<std::span<const std::byte>>
      parts;  // per part of the layout: all its blocks in order, or its slot
};

size_t blocks_for(int32_t positions);  // ceil(positions / kBlockTokens)

// blocks: at least blocks_for(state.computed); slot: kNoSlot when the layout has no private part,
// or nothing is computed: private parts are then zeros.
std::vector<std::byte> encode_seq_state(const SeqState& state, const StateArena& arena,
                                        std::span<const BlockId> blocks, SlotId slot);

// kInvalidFile: damaged, with the byte offset in `where`. kUnsupported: another version.
// kInvalidArgument: whole, but of another model, layout, vocabulary or a longer context.
Result<SeqStateView> decode_seq_state(std::span<const std::byte> bytes,
                                      const SeqStateExpectation& expected);

// Copies the parts into blocks and a slot of an arena of the same layout.
void restore_parts(const SeqStateView& view, StateArena& arena, std::span<const BlockId> blocks,
                   SlotId slot);

}  // namespace deepmint::kvcache
