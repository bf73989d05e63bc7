// Who a block of a prefix is. Every full block of kBlockTokens tokens gets a hash over everything
// before it: model, state layout, tenant salt, token ids and images. Two blocks with the same hash
// hold the same state, whoever computed it.
//
//   HashChain chain({.model_fingerprint = m, .layout_fingerprint = layout_fingerprint(parts),
//                    .salt = request.cache_salt});
//   chain.append(prompt);                     // any thread, before the engine sees the request
//   cache.match(chain.full_blocks(), prompt, now);
//   chain.append({&token, 1});                // incremental: each token is hashed once
//   HashChain next_turn = chain;              // and the next turn goes on where this one ended
//
// H(0) = SHA-256("DMKV" version, model, layout, len(salt), salt);
// H(i) = SHA-256(H(i-1), i, len(tokens), tokens, number of images, each (content, version,
// offset)). Every section carries its length, so no two different inputs give the same bytes. In
// memory a block is known by the first 128 bits. Why SHA-256 and not a faster hash:
// docs/decisions.md.
//
// One thread at a time per object; copies are independent.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/hash.h"
#include "deepmint/types.h"
#include "kvcache/state_arena.h"

namespace deepmint::kvcache {

struct BlockHash {
  Hash128 id;  // of the block and everything before it
  // A second, unrelated digest of what token ids do not say: model, layout, salt, images. A hit is
  // confirmed by it and by the ids themselves, so a collision of `id` is a miss, never a wrong bit.
  uint64_t context = 0;
  friend bool operator==(const BlockHash&, const BlockHash&) = default;
};

// What else must be equal for state to be exchangeable.
struct CacheIdentity {
  uint64_t model_fingerprint = 0;   // ModelInfo::fingerprint: weights, quantisation, rope
  uint64_t layout_fingerprint = 0;  // layout_fingerprint(): parts, their sizes, block length
  std::string_view salt = {};       // GenerationRequest::cache_salt
};

// Of the state parts, kBlockTokens and the format version of H.
uint64_t layout_fingerprint(std::span<const PartSpec> parts);

// An image inside a prompt: positions [begin, end) hold its placeholder ids.
struct ImageKey {
  Hash128 content;             // of the preprocessed pixels
  uint32_t preprocessing = 0;  // version of the preprocessing
  int64_t begin = 0, end = 0;
};

class HashChain {
 public:
  explicit HashChain(const CacheIdentity& identity);

  // Announces an image before any block that it overlaps is full. Images come in ascending order
  // and do not overlap.
  void add_image(const ImageKey& image);

  void append(std::span<const TokenId> tokens);
  void reserve(size_t tokens);  // no allocation until this many have been appended

  // Hashes of blocks 0 … tokens() / kBlockTokens - 1.
  std::span<const BlockHash> full_blocks() const { return blocks_; }
  // The first n of them: what a prompt may reuse when its last token must be run.
  std::span<const BlockHash> first_blocks(size_t n) const { return full_blocks().first(n); }
  size_t tokens() const { return blocks_.size() * kBlockTokens + n_pending_; }

 private:
  void close_block();

  std::array<std::byte, 32> head_;  // H of the last full block
  uint64_t context_;
  std::vector<BlockHash> blocks_;
  std::array<TokenId, kBlockTokens> pending_;
  size_t n_pending_ = 0;
  std::vector<ImageKey> images_;  // those that may still overlap a coming block
};

// How many full blocks of a prompt may be reused: all but the one that holds its last token, which
// must run to give logits.
constexpr size_t reusable_blocks(size_t prompt_tokens) {
  return prompt_tokens == 0 ? 0 : (prompt_tokens - 1) / kBlockTokens;
}

}  // namespace deepmint::kvcache
