// Small helpers for text that goes into messages of one line.
#pragma once

#include <string>
#include <string_view>

namespace deepmint::cli {

// A foreign text in quotes for an error message: cut at 60 bytes, control characters spelled out,
// valid UTF-8.
std::string shown(std::string_view text);

// Control characters spelled out, valid UTF-8; nothing cut.
std::string one_line(std::string_view text);

}  // namespace deepmint::cli
