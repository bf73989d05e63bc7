// The search for the encoding against merging one by one, on vocabularies that the fuzzer makes.
// Input: number of merges; two bytes for each, which pick tokens that are there already; the rest
// is text over a four-letter alphabet.
#include <string>
#include <vector>

#include "promises.h"
#include "tokenizer/bpe.h"
#include "tokenizer/testing_spec.h"

using namespace deepmint;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  TokenizerSpec spec;
  spec.vocab = {"a", "b", "c", "d"};
  size_t at = 1;
  for (unsigned n = data[0]; n > 0 && at + 1 < size; --n, at += 2) {
    const auto left = static_cast<TokenId>(data[at] % spec.vocab.size()),
               right = static_cast<TokenId>(data[at + 1] % spec.vocab.size());
    const std::string joined =
        spec.vocab[static_cast<size_t>(left)] + spec.vocab[static_cast<size_t>(right)];
    if (joined.size() > 40) continue;
    testing::token_id(spec, joined);
    spec.merges.emplace_back(left, right);
  }
  std::string text;
  for (; at < size && text.size() < 2000; ++at)
    for (int shift = 0; shift < 8; shift += 2)
      text += static_cast<char>('a' + (data[at] >> shift & 3));
  const auto bpe = Bpe::create(spec);
  fuzz::require(bpe.has_value());
  std::vector<TokenId> searched, cached, merged;
  bpe->encode(text, searched);
  bpe->encode(text, cached);
  bpe->encode_by_merging(text, merged);
  fuzz::require(searched == merged && cached == merged);
  return 0;
}
