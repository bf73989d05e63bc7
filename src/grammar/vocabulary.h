// What the tokens of a model spell: the bytes of every id, and a flat trie over them.
//
//   Vocabulary::make(bytes_of_id, /*width=*/129280, /*stop_ids=*/{1});
//
// An id without bytes (special tokens, padding up to the width of the logits) is never matched by
// text. Several ids may spell the same bytes. Immutable, shared by every grammar of a model.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "deepmint/result.h"
#include "deepmint/types.h"

namespace deepmint::grammar {

class SliceCache;

// Tokens as a trie in depth-first order: the children of a node follow it, and `skip` nodes on
// from a node comes the first one that is not below it.
struct Trie {
  struct Node {
    uint32_t skip = 1;   // nodes of the subtree, this one included
    int32_t token = -1;  // first id that ends here, or -1; more of them through Trie::same
    uint16_t depth = 1;  // bytes from the root
    uint8_t byte = 0;
  };
  std::vector<Node> nodes;       // the root, which spells nothing, is not stored
  std::vector<uint32_t> parent;  // per node; 0xffffffff below the root
  uint32_t max_depth = 0;

  size_t memory_bytes() const { return nodes.size() * (sizeof(Node) + 4); }
};

// A trie of some of the tokens, and where its nodes are in the trie of all.
struct SubTrie {
  Trie trie;
  std::vector<uint32_t> main_node;  // per node of `trie`, the node of Vocabulary::trie()
};

// Tokens of whole characters that a JSON string holds as they are (no quote, backslash, control),
// at most max_chars of them; and a trie of all the others. Where such texts cannot leave a lexeme,
// one look at the tier decides its tokens (slices.h).
struct PlainTier {
  uint32_t max_chars = 0;
  std::vector<uint32_t> bits;  // the tier's tokens
  SubTrie rest;                // of all other tokens
};

class Vocabulary {
 public:
  // Errors: kInvalidArgument when the width is below the number of ids or no id has bytes, a stop
  // id is outside the width, or a token is longer than 65,535 bytes.
  static Result<std::shared_ptr<const Vocabulary>> make(std::vector<std::string> bytes_of_id,
                                                        size_t width,
                                                        std::vector<TokenId> stop_ids);
  ~Vocabulary();

  size_t width() const { return width_; }  // of the logits, and of masks in bits
  size_t mask_words() const { return (width_ + 31) / 32; }
  std::string_view bytes(TokenId id) const;  // empty: never matched by text
  std::span<const TokenId> stop_ids() const { return stop_ids_; }
  bool is_stop(TokenId id) const;

  const Trie& trie() const { return trie_; }
  std::span<const PlainTier> plain_tiers() const { return tiers_; }  // longest texts first
  static constexpr uint32_t kShortBytes = 16;
  const SubTrie& long_tokens() const { return long_tokens_; }  // of more than kShortBytes
  const PlainTier& all_plain() const { return all_plain_; }    // plain texts of any length
  // Bits of the plain tokens of at most so many characters, below those of the first tier.
  std::span<const uint32_t> plain_up_to(uint32_t chars) const { return plain_up_to_[chars]; }
  // The next id that spells the same bytes as `id`, or -1.
  TokenId same(TokenId id) const { return same_.empty() ? -1 : same_[static_cast<size_t>(id)]; }
  SliceCache& slices() const { return *slices_; }  // locks itself

 private:
  Vocabulary();
  std::vector<std::string> bytes_;
  std::vector<TokenId> same_;
  std::vector<TokenId> stop_ids_;
  size_t width_ = 0;
  Trie trie_;
  std::vector<PlainTier> tiers_;
  SubTrie long_tokens_;
  PlainTier all_plain_;
  std::vector<std::vector<uint32_t>> plain_up_to_;
  std::unique_ptr<SliceCache> slices_;
};

}  // namespace deepmint::grammar
