// Hand-written splitters for the known pre-tokenizers: the same pieces as the patterns of
// known_patterns() give through RegexSplitter, many times faster. fast_split_test.cc holds the two
// against each other.
//
//   fast_split<PreTokenizer::kGpt2>(text, [&](const char* piece, size_t bytes) { ... });
//
// Each splitter looks at one character, sometimes at the next one, and then runs to where a class
// of characters ends, so time is linear in the text. Text must be valid UTF-8.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

namespace deepmint {
namespace fast_split_internal {

namespace u = unicode;

// Classes of ASCII; unicode_test.cc compares them with the full table.
constexpr std::array<uint8_t, 128> make_ascii_classes() {
  std::array<uint8_t, 128> out{};
  constexpr std::string_view symbols = "$+<=>^`|~";
  for (unsigned c = 0; c < 128; ++c) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const bool digit = c >= '0' && c <= '9';
    const bool space = c == ' ' || (c >= '\t' && c <= '\r');
    if (letter) out[c] = u::kLetter;
    if (digit) out[c] = u::kNumber;
    if (space) out[c] = u::kSpace;
    if (c == '\r' || c == '\n') out[c] |= u::kNewline;
    if (!letter && !digit && c > ' ' && c < 0x7F)
      out[c] = symbols.find(static_cast<char>(c)) != std::string_view::npos ? u::kSymbol
                                                                            : u::kPunctuation;
  }
  return out;
}
inline constexpr std::array<uint8_t, 128> kAsciiClasses = make_ascii_classes();

// How many of the first eight bytes at p are ASCII letters before the first that is not.
inline unsigned count_letters8(const char* p) {
  static_assert(std::endian::native == std::endian::little);
  uint64_t v;
  std::memcpy(&v, p, 8);
  constexpr uint64_t kOnes = 0x0101010101010101ull, kHigh = 0x8080808080808080ull;
  const uint64_t lower = (v | kOnes * 0x20) & ~kHigh;
  // Per byte the high bit says: at least 'a', and not above 'z'.
  const uint64_t is_letter =
      (lower + kOnes * (0x80 - 'a')) & ~(lower + kOnes * (0x7F - 'z')) & ~v & kHigh;
  const uint64_t other = ~is_letter & kHigh;
  return other == 0 ? 8 : static_cast<unsigned>(std::countr_zero(other)) >> 3;
}

// One character: its classes and its length in bytes; length 0 is the end of what the pattern sees.
struct Look {
  uint32_t classes = 0;
  uint32_t length = 0;
  bool at_end() const { return length == 0; }
  bool is(uint32_t mask) const { return (classes & mask) != 0; }
};

template <PreTokenizer kPre>
class Splitter {
 public:
  explicit Splitter(std::string_view text)
      : end_(text.data() + text.size()), table_(u::ClassTable::get()) {}

  // End of the piece that starts at p < end.
  const char* next(const char* p) {
    if constexpr (kPre == PreTokenizer::kDeepSeekV3)
      return next_deepseek(p);
    else if constexpr (kPre == PreTokenizer::kGpt2 || kPre == PreTokenizer::kSmolLm)
      return next_gpt2(p);
    else
      return next_llama3(p);
  }

 private:
  static constexpr bool kIsSmolLm = kPre == PreTokenizer::kSmolLm;

  Look look(const char* p) const {
    if (p == end_) return {};
    const auto byte = static_cast<unsigned char>(*p);
    Look out;
    if (byte < 0x80) {
      out = {kAsciiClasses[byte], 1};
    } else {
      const auto [code_point, length] = u::decode(p);
      out = {table_[code_point], length};
    }
    // The first patterns of SmolLM and DeepSeek cut the text into stretches that the last one sees
    // alone.
    if constexpr (kIsSmolLm)
      if (out.is(u::kNumber)) return {};
    if constexpr (kPre == PreTokenizer::kDeepSeekV3)
      if ((out.classes & (u::kNumber | u::kCjk)) != stretch_) return {};
    return out;
  }

  // End of the run of characters from p on that have one of the classes (or none of `without`).
  const char* run(const char* p, uint32_t classes) const {
    while (true) {
      const Look at = look(p);
      if (!at.is(classes)) return p;
      p += at.length;
    }
  }
  const char* run_without(const char* p, uint32_t without) const {
    while (true) {
      const Look at = look(p);
      if (at.at_end() || at.is(without)) return p;
      p += at.length;
    }
  }
  const char* letters(const char* p) const {
    while (end_ - p >= 8) {
      const unsigned n = count_letters8(p);
      p += n;
      if (n < 8) break;
    }
    return run(p, u::kLetter);
  }

  // "\s+(?!\S)|\s+" and, with newlines, "\s*[\r\n]+" before it. p is at white space.
  template <bool kNewlines>
  const char* white_space(const char* p) const {
    const char* last = p;  // the last character of the run
    const char* after_newline = nullptr;
    const char* q = p;
    Look at = look(p);
    while (at.is(u::kSpace)) {
      last = q;
      q += at.length;
      if (kNewlines && at.is(u::kNewline)) after_newline = q;
      at = look(q);
    }
    if (after_newline != nullptr) return after_newline;
    // The last white space before a word stays with the word.
    return at.at_end() || last == p ? q : last;
  }

  // Length of "'s", "'re", … at p, 0 when there is none. Caseless also means "'ſ" (U+017F).
  template <bool kCaseless>
  size_t contraction(const char* p) const {
    if (*p != '\'' || end_ - p < 2) return 0;
    const auto fold = [](char c) {
      return kCaseless && c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
    };
    const char first = fold(p[1]);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
    if (end_ - p < 3) return 0;
    const char second = fold(p[2]);
    if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') ||
        (first == 'l' && second == 'l'))
      return 3;
    return kCaseless && p[1] == '\xC5' && p[2] == '\xBF' ? 3 : 0;
  }

  const char* next_gpt2(const char* p) const {
    const auto byte = static_cast<unsigned char>(*p);
    const bool space = byte == ' ';
    const char* q = p + space;
    if (q != end_ && static_cast<unsigned char>(*q) < 0x80 &&
        kAsciiClasses[static_cast<unsigned char>(*q)] == u::kLetter)
      return letters(q + 1);
    if (const size_t n = contraction<false>(p)) return p + n;
    const Look at = look(q);
    if (at.is(u::kLetter)) return letters(q + at.length);
    if constexpr (kIsSmolLm) {
      if (!space && at.at_end()) return p + u::decode(p).length;  // a digit is a piece of its own
    } else if (at.is(u::kNumber)) {
      return run(q + at.length, u::kNumber);
    }
    if (!at.at_end() && !at.is(u::kSpace))
      return run_without(q + at.length, u::kSpace | u::kLetter | u::kNumber);
    return white_space<false>(p);
  }

  const char* next_llama3(const char* p) const {
    const Look first = look(p);
    if (first.is(u::kLetter)) return letters(p + first.length);
    if (first.is(u::kNumber)) {
      const char* q = p + first.length;
      if constexpr (kPre == PreTokenizer::kLlama3)
        for (int n = 1; n < 3; ++n) {
          const Look at = look(q);
          if (!at.is(u::kNumber)) break;
          q += at.length;
        }
      return q;
    }
    if (const size_t n = contraction<true>(p)) return p + n;
    const char* q = p + first.length;
    const Look second = look(q);
    if (!first.is(u::kNewline) && second.is(u::kLetter)) return letters(q + second.length);
    const auto is_other = [](const Look& at) {
      return !at.at_end() && !at.is(u::kSpace | u::kLetter | u::kNumber);
    };
    if (is_other(first) || (*p == ' ' && is_other(second)))
      return run(run_without(q, u::kSpace | u::kLetter | u::kNumber), u::kNewline);
    return white_space<true>(p);
  }

  const char* next_deepseek(const char* p) {
    const auto byte = static_cast<unsigned char>(*p);
    const Look raw = byte < 0x80 ? Look{kAsciiClasses[byte], 1}
                                 : Look{table_[u::decode(p).code_point], u::decode(p).length};
    stretch_ = raw.classes & (u::kNumber | u::kCjk);
    const char* q = p + raw.length;
    if (raw.is(u::kNumber)) {  // groups of three, counted from the start of the run
      for (int n = 1; n < 3; ++n) {
        const Look at = look(q);
        if (at.at_end()) break;
        q += at.length;
      }
      return q;
    }
    if (raw.is(u::kLetter | u::kMark)) return letters_and_marks(q);
    const bool ascii_punctuation = byte < 0x80 && raw.is(u::kPunctuation | u::kSymbol);
    if (ascii_punctuation && q != end_ && is_ascii_letter(*q)) {
      while (q != end_ && is_ascii_letter(*q)) ++q;
      return q;
    }
    const Look second = look(q);
    if (!raw.is(u::kNewline | u::kPunctuation | u::kSymbol) && second.is(u::kLetter | u::kMark))
      return letters_and_marks(q + second.length);
    if (raw.is(u::kPunctuation | u::kSymbol) ||
        (byte == ' ' && second.is(u::kPunctuation | u::kSymbol)))
      return run(run(q, u::kPunctuation | u::kSymbol), u::kNewline);
    if (raw.is(u::kSpace)) return white_space<true>(p);
    return gap(p);
  }

  // Characters that no alternative takes. The last one before a letter or mark is the optional
  // character in front of it.
  const char* gap(const char* p) const {
    const char* last = p;
    const char* q = p;
    Look at = look(p);
    while (!at.at_end() && at.classes == stretch_) {
      last = q;
      q += at.length;
      at = look(q);
    }
    return at.is(u::kLetter | u::kMark) && last != p ? last : q;
  }

  static bool is_ascii_letter(char c) {
    const unsigned lower = static_cast<unsigned char>(c) | 0x20u;
    return lower >= 'a' && lower <= 'z';
  }

  const char* letters_and_marks(const char* p) const {
    if (stretch_ == 0)
      while (end_ - p >= 8) {
        const unsigned n = count_letters8(p);
        p += n;
        if (n < 8) break;
      }
    return run(p, u::kLetter | u::kMark);
  }

  const char* end_;
  const u::ClassTable& table_;
  uint32_t stretch_ = 0;  // DeepSeek: number and CJK bits that every character of the stretch has
};

}  // namespace fast_split_internal

template <PreTokenizer kPre, class F>
void fast_split(std::string_view text, F&& piece) {
  fast_split_internal::Splitter<kPre> splitter(text);
  const char* p = text.data();
  const char* const end = p + text.size();
  while (p != end) {
    const char* q = splitter.next(p);
    piece(p, static_cast<size_t>(q - p));
    p = q;
  }
}

}  // namespace deepmint
