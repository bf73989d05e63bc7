#include "tokenizer/added_tokens.h"

#include <algorithm>

#include "tokenizer/unicode.h"

namespace deepmint {
namespace {

using unicode::ClassTable;

// Start of the character before `at`, or npos when the bytes there are not UTF-8.
size_t character_before(std::string_view s, size_t at) {
  size_t start = at;
  for (int n = 0; n < 4 && start > 0; ++n)
    if ((static_cast<unsigned char>(s[--start]) & 0xC0) != 0x80) break;
  const auto first = static_cast<unsigned char>(s[start]);
  const size_t length = first < 0x80   ? 1
                        : first < 0xC2 ? 0
                        : first < 0xE0 ? 2
                        : first < 0xF0 ? 3
                        : first < 0xF5 ? 4
                                       : 0;
  return start + length == at ? start : std::string_view::npos;
}

std::string_view character_at(std::string_view s, size_t at) {
  if (at >= s.size()) return {};
  const auto first = static_cast<unsigned char>(s[at]);
  const size_t length = first < 0x80   ? 1
                        : first < 0xC2 ? 0
                        : first < 0xE0 ? 2
                        : first < 0xF0 ? 3
                        : first < 0xF5 ? 4
                                       : 0;
  if (length == 0 || at + length > s.size()) return {};
  for (size_t i = 1; i < length; ++i)
    if ((static_cast<unsigned char>(s[at + i]) & 0xC0) != 0x80) return {};
  return s.substr(at, length);
}

uint32_t code_point_of(std::string_view character) {
  const uint32_t c = unicode::decode(character.data()).code_point;
  return c < 0x110000 ? c : 0xFFFD;
}

bool is_space(std::string_view character) {
  return !character.empty() && (ClassTable::get()[code_point_of(character)] & unicode::kSpace) != 0;
}

// \w of the `regex` crate: Alphabetic, marks, decimal digits, connector punctuation and the two
// joiners.
bool is_word(std::string_view character) {
  if (character.empty()) return false;
  static const std::vector<unicode::Range> other = [] {
    std::vector<unicode::Range> out = {{0x200C, 0x200D},
                                       {0x24B6, 0x24E9},
                                       {0x1F130, 0x1F149},
                                       {0x1F150, 0x1F169},
                                       {0x1F170, 0x1F189}};
    for (std::string_view name : {"Nd", "Nl", "Pc"}) {
      const auto ranges = *unicode::category_ranges(name);
      out.insert(out.end(), ranges.begin(), ranges.end());
    }
    return out;
  }();
  const uint32_t c = code_point_of(character);
  if ((ClassTable::get()[c] & (unicode::kLetter | unicode::kMark)) != 0) return true;
  return std::any_of(other.begin(), other.end(),
                     [&](const unicode::Range& r) { return c >= r.first && c <= r.second; });
}

std::string_view last_character(std::string_view s, size_t at) {
  if (at == 0) return {};
  const size_t start = character_before(s, at);
  return start == std::string_view::npos ? std::string_view{}
                                         : character_at(s.substr(0, at), start);
}

}  // namespace

uint32_t AddedTokens::child(uint32_t node, unsigned char byte) const {
  const auto& children = nodes_[node].children;
  const auto it = std::lower_bound(children.begin(), children.end(), byte,
                                   [](const auto& c, unsigned char b) { return c.first < b; });
  return it != children.end() && it->first == byte ? it->second : 0;
}

void AddedTokens::insert(std::string_view text, const TokenizerSpec::Added& added) {
  uint32_t node = 0;
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    uint32_t next = child(node, byte);
    if (next == 0) {
      next = static_cast<uint32_t>(nodes_.size());
      nodes_.emplace_back();
      auto& children = nodes_[node].children;
      children.insert(
          std::lower_bound(children.begin(), children.end(), std::pair{byte, uint32_t{0}}),
          {byte, next});
      if (node == 0) root_[byte] = next;
    }
    node = next;
  }
  if (node == 0 || nodes_[node].token >= 0) return;
  nodes_[node].token = static_cast<int32_t>(tokens_.size());
  tokens_.push_back({added.id, added.lstrip, added.rstrip, added.single_word});
}

void AddedTokens::find_all(std::string_view sentence, size_t begin, size_t end,
                           std::vector<Match>& out) const {
  size_t taken =
      out.empty() ? 0 : out.back().end;  // end of the match before, which stripping does not pass
  size_t at = begin;
  while (at < end) {
    uint32_t node = root_[static_cast<unsigned char>(sentence[at])];
    if (node == 0) {
      ++at;
      continue;
    }
    int32_t longest = -1;
    size_t stop = at;
    for (size_t i = at + 1;; ++i) {
      if (nodes_[node].token >= 0) {
        longest = nodes_[node].token;
        stop = i;
      }
      if (i >= end) break;
      node = child(node, static_cast<unsigned char>(sentence[i]));
      if (node == 0) break;
    }
    if (longest < 0) {
      ++at;
      continue;
    }
    const Token& token = tokens_[static_cast<size_t>(longest)];
    const size_t start = at;
    at =
        stop;  // the search goes on behind the token's own text, also when the word rule refuses it
    if (token.single_word &&
        (is_word(last_character(sentence, start)) || is_word(character_at(sentence, stop))))
      continue;
    Match match{start, stop, token.id};
    if (token.lstrip)
      while (match.begin > taken && is_space(last_character(sentence, match.begin)))
        match.begin -= last_character(sentence, match.begin).size();
    if (token.rstrip)
      while (is_space(character_at(sentence, match.end)))
        match.end += character_at(sentence, match.end).size();
    out.push_back(match);
    taken = match.end;
  }
}

}  // namespace deepmint
