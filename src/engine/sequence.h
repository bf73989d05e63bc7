// One request inside the engine: its timeline, what it holds, where its events go.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "deepmint/engine.h"
#include "model/model.h"

namespace deepmint {

// What a ticket and its sequence share. The ticket may outlive the sequence and the engine.
struct RequestControl {
  uint64_t id = 0;
  std::atomic<bool> cancelled{false};
};

struct Sequence {
  std::shared_ptr<RequestControl> control;
  GenerationRequest request;  // `tokens` is moved out
  std::shared_ptr<EventSink> sink;
  uint64_t seed = 0;

  std::vector<TokenId> tokens;  // prompt, then output; room for all that may come
  int32_t prompt_tokens = 0;
  Model::PromptTail tail;  // rows of the prompt that need not run the whole model
  int32_t computed = 0;    // positions [0, computed) are in the state parts
  int32_t limit = 0;       // tokens.size() at which generation ends with kLength

  std::vector<BlockId>
      blocks;  // blocks[p / kBlockTokens] holds position p; room for all that may come
  size_t blocks_reserved = 0;  // set aside in the pool, not yet in `blocks`
  SlotId slot = kNoSlot;

  bool admitted = false;  // running, or was

  // A sequence that was saved elsewhere: its state, until it is admitted and gets blocks.
  std::vector<std::byte> saved;

  // Why it must end before the next step, and with what error.
  std::optional<FinishReason> ending;
  std::optional<Error> error;

  std::span<const TokenId> prompt() const {
    return std::span(tokens).first(static_cast<size_t>(prompt_tokens));
  }
  std::span<const TokenId> output() const {
    return std::span(tokens).subspan(static_cast<size_t>(prompt_tokens));
  }
  int32_t length() const { return static_cast<int32_t>(tokens.size()); }
  int32_t pending() const { return length() - computed; }  // tokens that have not been run
  bool decoding() const { return length() > prompt_tokens; }
  // Positions that the state must be able to hold: the last token that may come is never run.
  int32_t positions_needed() const { return limit > prompt_tokens ? limit - 1 : prompt_tokens; }
};

}  // namespace deepmint
