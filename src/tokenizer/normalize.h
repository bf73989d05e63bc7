// Unicode normalisation form C, as the published `tokenizers` package does it: with the data of
// Unicode 9, so that combining marks which came later stay where they are (docs/tokenizer.md,
// "Unicode").
#pragma once

#include <string>
#include <string_view>

namespace deepmint {

// NFC of valid UTF-8: `text` itself when nothing changes for certain, else a view of `buffer`.
// Allocates nothing once the buffers have grown; time is linear except in runs of combining marks,
// which are sorted.
std::string_view to_nfc(std::string_view text, std::string& buffer);

// Builds the tables behind to_nfc() (a few milliseconds, once), so that the first call need not.
void prepare_nfc();

}  // namespace deepmint
