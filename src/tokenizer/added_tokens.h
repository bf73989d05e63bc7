// Finds added tokens ("<|im_start|>") in text: leftmost, longest, without overlap, with the
// stripping and word rules of Hugging Face added tokens.
//
// Immutable after construction; const methods may be called from many threads.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace deepmint {

class AddedTokens {
 public:
  struct Match {
    size_t begin = 0, end = 0;  // in the sentence; includes stripped white space
    TokenId id = 0;
  };

  AddedTokens() = default;
  // Of equal texts the first one counts. The texts are copied.
  void insert(std::string_view text, const TokenizerSpec::Added& added);
  bool empty() const { return tokens_.empty(); }

  // Appends the matches whose own text lies in sentence[begin, end); `out` holds the earlier ones
  // of the same sentence. Stripping takes white space of the whole sentence, up to the match
  // before; the word rule looks at the whole sentence.
  void find_all(std::string_view sentence, size_t begin, size_t end, std::vector<Match>& out) const;

 private:
  struct Token {
    TokenId id;
    bool lstrip, rstrip, single_word;
  };
  struct Node {
    std::vector<std::pair<unsigned char, uint32_t>> children;  // ascending
    int32_t token = -1;                                        // index into tokens_
  };
  uint32_t child(uint32_t node, unsigned char byte) const;  // 0: none

  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::array<uint32_t, 256> root_{};  // children of the root, 0: none
  std::vector<Token> tokens_;
};

}  // namespace deepmint
