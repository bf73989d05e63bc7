// Engram row addresses: which table rows a token's 2-, 3- and 4-grams select (spec model.md 8.2).
// Pure integer arithmetic.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace deepmint::v41 {

struct EngramLayer {
  int layer = 0;
  std::vector<int64_t> primes;       // [n-grams * heads], n-gram major
  std::vector<int64_t> offsets;      // exclusive prefix sums of primes
  std::vector<int64_t> multipliers;  // [max n-gram size], odd, up to 47 bits
  int64_t rows = 0;                  // sum of primes = rows of the table
};

// Addresses for every Engram layer. max_ngram >= 2, heads >= 1, vocab_start >= 2, compressed_vocab
// >= 1.
std::vector<EngramLayer> make_engram_layers(std::span<const int> layers, int max_ngram, int heads,
                                            int64_t vocab_start, int64_t compressed_vocab);

// context[k] = compressed id of the token k positions back (0 = the token itself), max_ngram of
// them. rows: primes.size().
void engram_rows(const EngramLayer& layer, int heads, std::span<const int64_t> context,
                 std::span<int64_t> rows);

}  // namespace deepmint::v41
