// A set of byte values: the alphabet of every regular expression in this module.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace deepmint::grammar {

class ByteSet {
 public:
  constexpr ByteSet() = default;
  static constexpr ByteSet range(unsigned first,
                                 unsigned last) {  // inclusive; first <= last <= 255
    ByteSet out;
    for (unsigned b = first; b <= last; ++b) out.add(b);
    return out;
  }
  static constexpr ByteSet one(unsigned byte) { return range(byte, byte); }
  static constexpr ByteSet all() { return ~ByteSet(); }

  constexpr void add(unsigned byte) { words_[byte >> 6] |= uint64_t{1} << (byte & 63); }
  constexpr bool has(unsigned byte) const { return (words_[byte >> 6] >> (byte & 63)) & 1; }
  constexpr bool empty() const { return (words_[0] | words_[1] | words_[2] | words_[3]) == 0; }
  constexpr int count() const {
    return std::popcount(words_[0]) + std::popcount(words_[1]) + std::popcount(words_[2]) +
           std::popcount(words_[3]);
  }
  const std::array<uint64_t, 4>& words() const { return words_; }

  constexpr ByteSet operator~() const {
    ByteSet out;
    for (int w = 0; w < 4; ++w) out.words_[w] = ~words_[w];
    return out;
  }
  friend constexpr ByteSet operator|(ByteSet a, const ByteSet& b) {
    for (int w = 0; w < 4; ++w) a.words_[w] |= b.words_[w];
    return a;
  }
  friend constexpr ByteSet operator&(ByteSet a, const ByteSet& b) {
    for (int w = 0; w < 4; ++w) a.words_[w] &= b.words_[w];
    return a;
  }
  friend constexpr bool operator==(const ByteSet&, const ByteSet&) = default;

 private:
  std::array<uint64_t, 4> words_{};
};

}  // namespace deepmint::grammar
