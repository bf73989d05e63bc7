// Byte-pair encoding of one piece: starting from single bytes, the adjacent pair with the lowest
// merge rank (the leftmost one of equals) is merged until no pair has a rank.
//
// The same ids without doing the merges: a sequence of tokens is the encoding of its text exactly
// when every two neighbours are the encoding of theirs, so a search that takes the longest token
// first and steps back where two neighbours would have merged across their border finds it, in time
// linear in the piece for real vocabularies. docs/tokenizer.md has the argument. Merge lists that
// are not in dependency order (no trainer makes them) are merged one by one instead.
//
// Immutable after construction; encode() may be called from many threads.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "deepmint/result.h"
#include "tokenizer/token_table.h"
#include "tokenizer/tokenizer.h"

namespace deepmint {

class Bpe {
 public:
  // `spec` must outlive the result; its ids are in range. Errors: a merge whose result is not in
  // the vocabulary.
  static Result<Bpe> create(const TokenizerSpec& spec);

  // Appends the ids of the piece [p, p + n); bytes up to readable_end (>= p + n) may be read. Bytes
  // without a token give their fallback token, else the unknown token, else nothing.
  void encode(const char* p, size_t n, const char* readable_end, std::vector<TokenId>& out) const {
    if (n <= kShortBytes) {
      const ShortKey key = short_key(p, n, readable_end);
      const TokenId id = find_short(key);
      if (id >= 0) return out.push_back(id);
      return encode_cached(key, p, n, out);
    }
    if (n <= longest_token_)
      if (const TokenId id = whole_long_.find({p, n}); id >= 0) return out.push_back(id);
    encode_parts({p, n}, out);
  }
  void encode(std::string_view piece, std::vector<TokenId>& out) const {
    if (!piece.empty()) encode(piece.data(), piece.size(), piece.data() + piece.size(), out);
  }

  // By merging one by one: the definition. For tests, and for merge lists that are out of order.
  void encode_by_merging(std::string_view piece, std::vector<TokenId>& out) const;

  bool merges_in_order() const { return in_order_; }

 private:
  static constexpr size_t kShortBytes = 15;
  static constexpr int32_t kNever = INT32_MAX;
  static constexpr uint64_t kNoPair = ~uint64_t{0};

  // Up to 15 bytes and their number in two words, zero behind the end.
  struct ShortKey {
    uint64_t low = 0, high = 0;
    friend bool operator==(const ShortKey&, const ShortKey&) = default;
  };
  struct ShortSlot {
    ShortKey key;  // all zero: free
    TokenId id = -1;
  };
  struct Merge {
    uint64_t pair = kNoPair;
    int32_t rank = 0;
    TokenId id = 0;
  };
  // How a token comes about when its own bytes are encoded.
  struct Token {
    TokenId left = -1, right = -1;  // the last merge; -1 for single bytes
    int32_t birth =
        kNever;  // rank of that merge, -1 for single bytes; kNever: no text gives this token
    TokenId prefix = -1;  // the longest token that this one properly starts with
  };
  // A node of the trie over all tokens that text may give. Its children lie side by side, in
  // ascending order of their byte.
  struct Node {
    uint32_t children = 0;  // index of the first << 8 | their number - 1; 0: none
    uint32_t token = 0;  // token << 8 | byte that leads here; kNoToken << 8 when no token ends here
  };
  static constexpr uint32_t kNoToken = 0xFFFFFF;
  struct ThreadCache;

  Bpe() = default;
  TokenTable index_vocabulary();
  Result<std::vector<TokenId>> index_merges(const TokenTable& by_bytes);
  void derive_tokens(const std::vector<TokenId>& results);
  void index_pieces(const TokenTable& by_bytes);
  void build_trie();
  void insert_short(const ShortKey& key, TokenId id);
  bool gives_symbol(TokenId id) const;

  static ShortKey short_key(const char* p, size_t n, const char* readable_end) {
    ShortKey key;
    if (readable_end - p >= 16) {
      std::memcpy(&key.low, p, 8);
      std::memcpy(&key.high, p + 8, 8);
      key.low &= kKeep[n < 8 ? n : 8];
      key.high &= kKeep[n < 8 ? 0 : n - 8];
    } else {
      char bytes[16] = {};
      std::memcpy(bytes, p, n);
      std::memcpy(&key.low, bytes, 8);
      std::memcpy(&key.high, bytes + 8, 8);
    }
    key.high |= uint64_t{n} << 56;
    return key;
  }
  static size_t hash_of(const ShortKey& key) {
    const unsigned __int128 product =
        static_cast<unsigned __int128>(key.low ^ 0x9E3779B97F4A7C15ull) *
        (key.high ^ 0xD6E8FEB86659FD93ull);
    return static_cast<size_t>(static_cast<uint64_t>(product) ^
                               static_cast<uint64_t>(product >> 64));
  }
  TokenId find_short(const ShortKey& key) const {
    const size_t mask = whole_short_.size() - 1;
    for (size_t i = hash_of(key) & mask;; i = (i + 1) & mask) {
      const ShortSlot& slot = whole_short_[i];
      if (slot.key == key) return slot.id;
      if (slot.id < 0) return -1;
    }
  }

  const Merge* find_merge(TokenId left, TokenId right) const;
  TokenId longest_token(const char* p, const char* end) const;
  uint32_t child(const Node& node, unsigned char byte) const;
  bool is_border_cached(TokenId left, TokenId right, ThreadCache& cache, uint64_t& steps) const;
  bool is_border(TokenId left, TokenId right, bool known_to_merge, uint64_t& steps) const;
  void encode_cached(const ShortKey& key, const char* p, size_t n, std::vector<TokenId>& out) const;
  void encode_parts(std::string_view piece, std::vector<TokenId>& out) const;
  void encode_search(std::string_view piece, std::vector<TokenId>& out) const;
  void symbols_of(std::string_view piece, std::vector<TokenId>& symbols) const;

  static constexpr std::array<uint64_t, 9> kKeep = {
      0,           0xFF,         0xFFFF,         0xFFFFFF,
      0xFFFFFFFF,  0xFFFFFFFFFF, 0xFFFFFFFFFFFF, 0xFFFFFFFFFFFFFF,
      ~uint64_t{0}};

  const TokenizerSpec* spec_ = nullptr;
  uint32_t serial_ = 0;                 // tells the instances apart in the per-thread cache
  TokenTable by_bytes_;                 // tokens that merges may give
  std::vector<ShortSlot> whole_short_;  // pieces that are one token
  TokenTable whole_long_;
  size_t longest_token_ = 0;
  std::array<TokenId, 256> byte_id_{};      // -1: the byte has no token
  std::array<TokenId, 256> fallback_id_{};  // for bytes without a token; -1: none
  bool all_bytes_ = false;
  bool in_order_ = false;
  std::vector<Merge> merges_;
  std::vector<uint64_t>
      maybe_;  // one bit per pair hash: most look-ups are of pairs that do not merge
  std::vector<Token> tokens_;
  std::vector<uint32_t> length_;  // in bytes
  std::vector<Node> nodes_;
  std::vector<uint32_t> start_;  // by the first two bytes: node, 0: none
};

}  // namespace deepmint
