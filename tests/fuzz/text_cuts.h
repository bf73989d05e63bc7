// A text in pieces, cut between characters, as a parser of streamed text gets it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace deepmint::fuzz {

// Calls push(piece) for pieces of `step` bytes, or as many more as their last character has.
template <class Push>
void push_in_pieces(std::string_view text, size_t step, Push&& push) {
  for (size_t i = 0; i < text.size();) {
    size_t n = std::min(step, text.size() - i);
    while (i + n < text.size() && (static_cast<unsigned char>(text[i + n]) & 0xC0) == 0x80) ++n;
    push(text.substr(i, n));
    i += n;
  }
}

}  // namespace deepmint::fuzz
