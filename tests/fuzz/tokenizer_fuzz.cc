// Encoding and decoding of arbitrary bytes with a vocabulary that has every byte. The first byte
// picks the pre-tokenizer, the second the segmenting; decode(encode(x)) == x, and every way to the
// ids is the same way.
#include <string>
#include <string_view>
#include <vector>

#include "core/utf8.h"
#include "promises.h"
#include "tokenizer/pattern.h"
#include "tokenizer/testing_spec.h"
#include "tokenizer/tokenizer.h"

using namespace deepmint;

namespace {

constexpr PreTokenizer kPre[] = {PreTokenizer::kGpt2, PreTokenizer::kLlama3, PreTokenizer::kQwen2,
                                 PreTokenizer::kSmolLm, PreTokenizer::kDeepSeekV3};

struct Pair {
  std::shared_ptr<const Tokenizer> fast, by_patterns;
};

const std::vector<Pair>& tokenizers() {
  static const std::vector<Pair> all = [] {
    std::vector<Pair> out;
    for (Normalizer normalizer : {Normalizer::kNone, Normalizer::kNfc})
      for (PreTokenizer pre : kPre) {
        TokenizerSpec spec = testing::small_spec(pre), patterns = testing::small_spec(std::nullopt);
        for (std::string_view pattern : known_patterns(pre))
          patterns.patterns.emplace_back(pattern);
        spec.normalizer = patterns.normalizer = normalizer;
        out.push_back({*Tokenizer::create(spec), *Tokenizer::create(patterns)});
      }
    return out;
  }();
  return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const Pair& pair = tokenizers()[data[0] % tokenizers().size()];
  const Tokenizer& tokenizer = *pair.fast;
  const bool nfc = tokenizer.spec().normalizer == Normalizer::kNfc;
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);

  const std::vector<TokenId> ids = tokenizer.encode_text(text);
  fuzz::require(ids == pair.by_patterns->encode_text(text));
  const std::string decoded = tokenizer.decode(ids);
  fuzz::require(nfc || decoded == text);
  for (TokenId id : ids) fuzz::require(!tokenizer.is_added(id));

  // Cut into segments of text: the same ids.
  const size_t step = 1 + data[1] % 17;
  std::vector<Segment> segments;
  for (size_t at = 0; at < text.size(); at += step)
    segments.push_back({Segment::Kind::kText, std::string(text.substr(at, step))});
  fuzz::require(tokenizer.encode(segments) == ids);

  // As control text: other ids, the same bytes.
  const std::vector<TokenId> control = tokenizer.encode_control(text);
  fuzz::require(nfc || tokenizer.decode(control) == text);

  // Streamed: only whole characters, and in all the whole text.
  Detokenizer detokenizer(tokenizer, /*skip_special=*/false);
  std::string streamed;
  for (TokenId id : control) {
    const std::string_view piece = detokenizer.push(id);
    fuzz::require(utf8::is_valid(piece));
    streamed += piece;
  }
  streamed += detokenizer.finish();
  fuzz::require(streamed == utf8::sanitize(tokenizer.decode(control)));
  return 0;
}
