// The automaton of UTF-8, byte by byte: 0 between characters, 1 to 3 continuation bytes still to
// come (any), then those after E0, ED, F0 and F4, which not every byte may follow.
#pragma once

#include <array>
#include <cstdint>

namespace deepmint::grammar {

inline constexpr uint8_t kNotUtf8 = 255;
inline constexpr uint32_t kUtf8Partials = 8;
// First bytes of a character after which each of them (but 0) is reached.
inline constexpr std::array<uint8_t, kUtf8Partials> kUtf8LeadOf = {0,    0xc2, 0xe1, 0xf1,
                                                                   0xe0, 0xed, 0xf0, 0xf4};

constexpr uint8_t utf8_next(uint32_t partial, unsigned b) {
  const bool continues = b >= 0x80 && b <= 0xbf;
  switch (partial) {
    case 0:
      if (b < 0x80) return 0;
      if (b >= 0xc2 && b <= 0xdf) return 1;
      if (b == 0xe0) return 4;
      if (b == 0xed) return 5;
      if (b >= 0xe1 && b <= 0xef) return 2;
      if (b == 0xf0) return 6;
      if (b == 0xf4) return 7;
      return b >= 0xf1 && b <= 0xf3 ? 3 : kNotUtf8;
    case 4:
      return b >= 0xa0 && continues ? 1 : kNotUtf8;
    case 5:
      return continues && b <= 0x9f ? 1 : kNotUtf8;
    case 6:
      return b >= 0x90 && continues ? 2 : kNotUtf8;
    case 7:
      return continues && b <= 0x8f ? 2 : kNotUtf8;
    default:
      return continues ? static_cast<uint8_t>(partial - 1) : kNotUtf8;
  }
}

}  // namespace deepmint::grammar
