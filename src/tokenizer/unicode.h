// Properties of code points that pre-tokenizers ask for, from Unicode 16.0: the version inside the
// published `tokenizers` package, whatever the linked PCRE2 and utf8proc carry (docs/tokenizer.md,
// "Unicode").
//
//   const unicode::ClassTable& table = unicode::ClassTable::get();
//   if (table[code_point] & unicode::kLetter) ...
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace deepmint::unicode {

// Bits of ClassTable. A code point has at most one of letter, mark, number, punctuation, symbol.
enum Class : uint8_t {
  kLetter = 1,       // \p{L}
  kMark = 2,         // \p{M}
  kNumber = 4,       // \p{N}
  kPunctuation = 8,  // \p{P}
  kSymbol = 16,      // \p{S}
  kSpace = 32,       // \s: White_Space
  kCjk = 64,         // [一-龥぀-ゟ゠-ヿ], the second DeepSeek pattern
  kNewline = 128,    // \r and \n
};

// The classes of every code point: a two-stage table of about 60 KiB, built at first use (under a
// millisecond).
class ClassTable {
 public:
  static const ClassTable& get();
  uint8_t operator[](uint32_t code_point) const {  // code_point < 0x110000
    return blocks_[size_t{index_[code_point >> kShift]} << kShift | (code_point & kMask)];
  }

 private:
  ClassTable();
  static constexpr int kShift = 7;
  static constexpr uint32_t kMask = (1u << kShift) - 1;
  std::vector<uint16_t> index_;
  std::vector<uint8_t> blocks_;
};

using Range = std::pair<uint32_t, uint32_t>;  // first and last code point

// Ranges of a general category ("Lu") or a group of them ("L"), ascending and disjoint; nullopt for
// any other name.
std::optional<std::vector<Range>> category_ranges(std::string_view name);
// The part of category_ranges(name) that came after Unicode 14.0, which PCRE2 10.42 does not know.
std::vector<Range> category_ranges_since_14(std::string_view name);
std::vector<Range> space_ranges();  // White_Space
std::vector<Range> complement(
    const std::vector<Range>& set);  // over 0 … 0x10FFFF without surrogates

// The code point at p and its length. [p, end) must be valid UTF-8 and not empty.
struct Decoded {
  uint32_t code_point;
  uint32_t length;
};
inline Decoded decode(const char* p) {
  const auto* b = reinterpret_cast<const unsigned char*>(p);
  if (b[0] < 0x80) return {b[0], 1};
  if (b[0] < 0xE0) return {(b[0] & 0x1Fu) << 6 | (b[1] & 0x3Fu), 2};
  if (b[0] < 0xF0) return {(b[0] & 0x0Fu) << 12 | (b[1] & 0x3Fu) << 6 | (b[2] & 0x3Fu), 3};
  return {(b[0] & 0x07u) << 18 | (b[1] & 0x3Fu) << 12 | (b[2] & 0x3Fu) << 6 | (b[3] & 0x3Fu), 4};
}

}  // namespace deepmint::unicode
