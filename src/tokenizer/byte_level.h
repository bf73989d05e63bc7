// The byte-level alphabet: every byte is written as one printable character, so that a vocabulary
// of bytes fits into JSON. Bytes 0x21–0x7E, 0xA1–0xAC and 0xAE–0xFF stand for themselves; the other
// 68 are U+0100 … U+0143 in ascending order.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace deepmint::byte_level {

// "Ġthe" -> " the". False when a character is not in the alphabet (out is then undefined) or the
// text is not UTF-8.
bool decode(std::string_view text, std::string& out);
std::string encode(std::string_view bytes);  // " the" -> "Ġthe"

// "<0x0A>" -> 0x0A; nullopt for anything else.
std::optional<unsigned char> fallback_byte(std::string_view text);

}  // namespace deepmint::byte_level
