#include "tokenizer/byte_level.h"

#include <array>
#include <cstdint>

#include "core/utf8.h"

namespace deepmint::byte_level {
namespace {

constexpr bool is_own(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Alphabet {
  std::array<uint16_t, 256> of_byte{};   // code point
  std::array<int16_t, 0x144> to_byte{};  // -1: not in the alphabet
};

constexpr Alphabet make_alphabet() {
  Alphabet a;
  for (auto& b : a.to_byte) b = -1;
  unsigned next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const unsigned code_point = is_own(byte) ? byte : next++;
    a.of_byte[byte] = static_cast<uint16_t>(code_point);
    a.to_byte[code_point] = static_cast<int16_t>(byte);
  }
  return a;
}

constexpr Alphabet kAlphabet = make_alphabet();

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

bool decode(std::string_view text, std::string& out) {
  out.clear();
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned code_point = static_cast<unsigned char>(text[i]);
    if (code_point >= 0x80) {  // the alphabet ends at U+0143: one or two bytes
      if (code_point < 0xC2 || code_point > 0xC5 || i + 1 == text.size()) return false;
      const unsigned next = static_cast<unsigned char>(text[++i]);
      if ((next & 0xC0) != 0x80) return false;
      code_point = (code_point & 0x1F) << 6 | (next & 0x3F);
    }
    if (code_point >= kAlphabet.to_byte.size() || kAlphabet.to_byte[code_point] < 0) return false;
    out.push_back(static_cast<char>(kAlphabet.to_byte[code_point]));
  }
  return true;
}

std::string encode(std::string_view bytes) {
  std::string out;
  for (char c : bytes) utf8::append(out, kAlphabet.of_byte[static_cast<unsigned char>(c)]);
  return out;
}

std::optional<unsigned char> fallback_byte(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return std::nullopt;
  const int high = hex_digit(text[3]), low = hex_digit(text[4]);
  if (high < 0 || low < 0) return std::nullopt;
  return static_cast<unsigned char>(high << 4 | low);
}

}  // namespace deepmint::byte_level
