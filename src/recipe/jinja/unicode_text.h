// Python's view of characters: classes, case and line ends of str. All text is valid UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "recipe/jinja/text.h"

namespace deepmint::recipe::jinja {

struct CodePoint {
  uint32_t value;
  uint32_t length;  // in bytes, 1..4
};
CodePoint code_point_at(std::string_view s, size_t byte);  // byte < s.size()

size_t count_code_points(std::string_view s);
// Byte offset of the code point with this index; s.size() when there are not so many.
size_t byte_of(std::string_view s, size_t index);

bool is_space(uint32_t c);      // str.isspace()
bool is_printable(uint32_t c);  // str.isprintable()
bool is_alpha(uint32_t c);
bool is_decimal(uint32_t c);
bool is_digit(uint32_t c);
bool is_numeric(uint32_t c);
bool is_cased(uint32_t c);
bool is_lower(uint32_t c);
bool is_upper(uint32_t c);

// Bytes of white space at the two ends.
size_t leading_space(std::string_view s);
size_t trailing_space(std::string_view s);

enum class Case : uint8_t { kUpper, kLower, kTitle, kCapitalize, kSwap };
// str.upper(), lower(), title(), capitalize(), swapcase(). Each character keeps its origin.
Text change_case(const Text& t, Case to);

// Where str.splitlines() ends the line that begins at `begin`: the end of its text, and where the
// next one begins.
struct LineEnd {
  size_t text_end, next;
};
LineEnd line_end(std::string_view s, size_t begin);

}  // namespace deepmint::recipe::jinja
