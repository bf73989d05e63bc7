// UTF-8, strictly: no surrogates, no overlong forms, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace deepmint::utf8 {

inline constexpr size_t npos = static_cast<size_t>(-1);

size_t find_invalid(
    std::string_view s);  // offset of the first byte that is not part of valid UTF-8, or npos
inline bool is_valid(std::string_view s) { return find_invalid(s) == npos; }
size_t incomplete_tail(
    std::string_view s);  // length (0..3) of a final prefix of a valid sequence that is cut off
std::string sanitize(
    std::string_view s);  // each maximal invalid subpart becomes U+FFFD (as in the WHATWG decoder)
void append(std::string& out, uint32_t code_point);  // code_point is a Unicode scalar value
uint32_t next(std::string_view s, size_t& at);  // the character at `at`, which moves behind it; s
                                                // is valid and at < s.size()

}  // namespace deepmint::utf8
