// Byte-pair encoding of one piece: starting from single bytes, the adjacent pair with the lowest
// merge rank (the leftmost one of equals) is merged until no pair has a rank.
//
// Immutable after construction; encode() may be called from many threads.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "deepmint/result.h"
#include "tokenizer/token_table.h"
#include "tokenizer/tokenizer.h"

namespace deepmint {

class Bpe {
 public:
  // `spec` must outlive the result, its ids are in range. Errors: a merge whose result is not in
  // the vocabulary.
  static Result<Bpe> create(const TokenizerSpec& spec);

  // Appends the ids of `piece`. Bytes without a token give their fallback token, else the unknown
  // token, else nothing.
  void encode(std::string_view piece, std::vector<TokenId>& out) const;

 private:
  struct Merge {
    uint64_t pair = kNoPair;
    int32_t rank = 0;
    TokenId id = 0;
  };
  static constexpr uint64_t kNoPair = ~uint64_t{0};

  Bpe() = default;
  const Merge* find_merge(TokenId left, TokenId right) const;
  void insert_merge(TokenId left, TokenId right, int32_t rank, TokenId id);
  void symbols_of(std::string_view piece, std::vector<TokenId>& symbols) const;
  void merge_short(std::vector<TokenId>& symbols) const;
  void merge_long(std::vector<TokenId>& symbols) const;

  const TokenizerSpec* spec_ = nullptr;
  TokenTable whole_;                        // tokens that text may give
  std::array<TokenId, 256> byte_id_{};      // -1: the byte has no token
  std::array<TokenId, 256> fallback_id_{};  // for bytes without a token; -1: none
  std::vector<Merge> merges_;
};

}  // namespace deepmint
