// Token ids → compressed ids for the Engram tables of V4.1: tokens whose texts differ only in case,
// accents, compatibility forms or white space share one (spec/model.md 8.1). The model's hash looks
// up n-grams of compressed ids, so one wrong entry gives wrong rows; check the count.
//
//   const EngramMap map = make_engram_map(*tokenizer);
//   if (map.n_classes != config.engram_compressed_vocab) return fail(…);   // V4.1: 99,092
//   V41Model::load(folder, std::move(arithmetic), {.engram_map = map.ids});
//
// A pure function of the vocabulary; about 0.1 s for V4.1's, so make it once at load.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace deepmint {

// What the published V4.1 tokenizer gives: the number of classes, and the SHA-256 of the ids as
// little-endian int32 (tests/e2e/test_engram_map.py compares every entry with the published
// `tokenizers` package).
inline constexpr int32_t kV41EngramClasses = 99092;
inline constexpr std::string_view kV41EngramMapSha256 =
    "c60a86322ec17b4142bfef3c57a8d81fb428550cdf487f88a4320cb59fe46481";

struct EngramMap {
  std::vector<int32_t> ids;  // [vocab_size]: token id → compressed id, numbered in order of first
                             // appearance
  int32_t n_classes = 0;     // compressed ids are 0 … n_classes-1
};

EngramMap make_engram_map(const Tokenizer& tokenizer);

// Lower-case hexadecimal SHA-256 of map.ids as little-endian int32.
std::string engram_map_sha256(const EngramMap& map);

// What decides the class of a token whose text is `text` (valid UTF-8): NFKC, NFD, combining marks
// dropped, lower case, runs of blanks and line ends as one space, trimmed unless a single space is
// all there is. `text` itself when nothing is left.
std::string engram_key(std::string_view text);

}  // namespace deepmint
