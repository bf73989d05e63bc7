// Small vocabularies for tests and fuzzers.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

#include "tokenizer/tokenizer.h"

namespace deepmint::testing {

// All 256 bytes, id = byte.
inline TokenizerSpec byte_spec(std::optional<PreTokenizer> pre = PreTokenizer::kGpt2) {
  TokenizerSpec spec;
  for (int byte = 0; byte < 256; ++byte) spec.vocab.emplace_back(1, static_cast<char>(byte));
  spec.pre = pre;
  return spec;
}

inline TokenId token_id(TokenizerSpec& spec, const std::string& text) {
  const auto it = std::find(spec.vocab.begin(), spec.vocab.end(), text);
  if (it != spec.vocab.end()) return static_cast<TokenId>(it - spec.vocab.begin());
  spec.vocab.push_back(text);
  return static_cast<TokenId>(spec.vocab.size() - 1);
}

// Makes `word` a token by merging its bytes from the left. Returns its id.
inline TokenId add_word(TokenizerSpec& spec, const std::string& word) {
  TokenId left = token_id(spec, word.substr(0, 1));
  for (size_t n = 2; n <= word.size(); ++n) {
    const TokenId right = token_id(spec, word.substr(n - 1, 1));
    const std::pair merge(left, right);
    left = token_id(spec, word.substr(0, n));
    if (std::find(spec.merges.begin(), spec.merges.end(), merge) == spec.merges.end())
      spec.merges.push_back(merge);
  }
  return left;
}

inline TokenId add_control(TokenizerSpec& spec, const std::string& text, bool special = true) {
  const TokenId id = token_id(spec, text);
  TokenizerSpec::Added added;
  added.id = id;
  added.text = text;
  added.special = special;
  spec.added.push_back(added);
  return id;
}

// Words of several scripts, white space runs and two control tokens: enough for merges of every
// kind to happen.
inline TokenizerSpec small_spec(std::optional<PreTokenizer> pre = PreTokenizer::kGpt2) {
  TokenizerSpec spec = byte_spec(pre);
  for (const char* word :
       {"the",  " the", "ing", "token", " token", "izer", "中",        "中国", "é",  "  ", "    ",
        "\n\n", "ab",   "abc", "bca",   "aa",     "aaa",  "e\xCC\x81", "😀",   "12", "..."})
    add_word(spec, word);
  add_control(spec, "<|a|>");
  add_control(spec, "<|a|><|b|>");
  add_control(spec, "<tool>", false);
  return spec;
}

}  // namespace deepmint::testing
