// Unicode normalisation form C.
#pragma once

#include <string>
#include <string_view>

namespace deepmint {

// NFC of valid UTF-8: `text` itself when it is in that form for certain (no allocation), else a
// view of `buffer`.
std::string_view to_nfc(std::string_view text, std::string& buffer);

}  // namespace deepmint
