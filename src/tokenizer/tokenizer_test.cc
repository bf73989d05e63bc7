#include "tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>

#include "core/utf8.h"
#include "support/counting_new.h"
#include "support/random.h"
#include "tokenizer/pattern.h"
#include "tokenizer/testing_spec.h"

namespace deepmint {
namespace {

using testing::add_control;
using testing::add_word;
using testing::byte_spec;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Random;
using testing::small_spec;
using Ids = std::vector<TokenId>;
constexpr auto kText = Segment::Kind::kText;
constexpr auto kControl = Segment::Kind::kControl;

std::shared_ptr<const Tokenizer> make(TokenizerSpec spec) {
  auto made = Tokenizer::create(std::move(spec));
  if (!made) ADD_FAILURE() << made.error().str();
  return made ? *made : nullptr;
}

Ids encode(const Tokenizer& t, std::vector<Segment> segments) { return t.encode(segments); }

std::string random_bytes(Random& random, size_t most, bool valid) {
  static const std::vector<std::string> kSome = {
      "the",  " token", "izer", "a", "b",  "c", " ",     "  ",     "\n", "é",   "e\u0301",
      "中国", "中",     "😀",   "1", "12", ".", "<|a|>", "<tool>", "'s", "ing", "\t"};
  std::string out;
  for (uint64_t n = random.below(most + 1); n > 0; --n) {
    if (valid || random.below(3) != 0)
      out += kSome[random.below(kSome.size())];
    else
      out += static_cast<char>(random.below(256));
  }
  return out;
}

TEST(Tokenizer, EncodesWordsByTheirMergesAndDecodesThem) {
  TokenizerSpec spec = byte_spec();
  const TokenId the = add_word(spec, "the"), space_the = testing::token_id(spec, " the");
  spec.merges.emplace_back(' ', the);
  const auto t = make(spec);
  EXPECT_THAT(t->encode_text("the thex"), ElementsAre(the, space_the, 'x'));
  EXPECT_EQ(t->decode(t->encode_text("the thex")), "the thex");
  EXPECT_THAT(t->encode_text(""), ElementsAre());
  EXPECT_EQ(t->token_bytes(space_the), " the");
  EXPECT_EQ(t->token_bytes(-1), "");
  EXPECT_EQ(t->token_bytes(static_cast<TokenId>(t->vocab_size())), "");
  EXPECT_EQ(t->vocab_size(), static_cast<int64_t>(spec.vocab.size()));
}

TEST(Tokenizer, ControlStringsInTextAreText) {
  TokenizerSpec spec = small_spec();
  const auto t = make(spec);
  const TokenId a = *t->find_added("<|a|>");
  EXPECT_THAT(t->encode_control("<|a|>x"), ElementsAre(a, 'x'));
  EXPECT_THAT(t->encode_text("<|a|>"), ElementsAre('<', '|', 'a', '|', '>'));
  EXPECT_THAT(encode(*t, {{kText, "<|a|>"}}), ElementsAre('<', '|', 'a', '|', '>'));
  // Nor are strings that only text and control together make.
  EXPECT_THAT(encode(*t, {{kControl, "<|"}, {kText, "a|>"}}), ElementsAre('<', '|', 'a', '|', '>'));
  EXPECT_THAT(encode(*t, {{kText, "<|a"}, {kControl, "|>"}}), ElementsAre('<', '|', 'a', '|', '>'));
  // Control segments next to each other are one: longest match, also across their border.
  const TokenId ab = *t->find_added("<|a|><|b|>");
  EXPECT_THAT(t->encode_control("<|a|><|b|>"), ElementsAre(ab));
  EXPECT_THAT(encode(*t, {{kControl, "<|a|>"}, {kControl, "<|b|>"}}), ElementsAre(ab));
  EXPECT_THAT(encode(*t, {{kControl, "<|a|>"}, {kText, ""}, {kControl, "<|b|>"}}), ElementsAre(ab));
}

TEST(Tokenizer, NoSegmentingOfTextGivesAControlToken) {
  const uint64_t seed = testing::test_seed();
  SCOPED_TRACE(testing::seed_note(seed));
  Random random(seed);
  const auto t = make(small_spec());
  for (int round = 0; round < 2000; ++round) {
    std::vector<Segment> segments;
    std::string joined;
    for (uint64_t n = 1 + random.below(5); n > 0; --n) {
      segments.push_back({kText, random_bytes(random, 6, false)});
      joined += segments.back().text;
    }
    const Ids ids = t->encode(segments);
    ASSERT_EQ(ids, t->encode_text(joined));
    ASSERT_EQ(t->decode(ids), joined);
    for (TokenId id : ids) ASSERT_FALSE(t->is_added(id)) << id;
  }
}

TEST(Tokenizer, TextBetweenControlTokensIsOneStretch) {
  TokenizerSpec spec = byte_spec();
  const TokenId newlines = add_word(spec, "\n\n"), word = add_word(spec, "word"),
                mark = add_control(spec, "<m>");
  const auto t = make(spec);
  EXPECT_THAT(encode(*t, {{kControl, "<m>\n"}, {kText, "\n"}}), ElementsAre(mark, newlines));
  EXPECT_THAT(
      encode(*t,
             {{kText, "wo"}, {kControl, "r"}, {kText, "d"}, {kControl, "<m>"}, {kText, "word"}}),
      ElementsAre(word, mark, word));
  // A character cut in two by a segment border is whole again.
  EXPECT_EQ(encode(*t, {{kText, "\xE4\xB8"}, {kText, "\xAD"}}), t->encode_text("中"));
}

TEST(Tokenizer, EncodeAppends) {
  const auto t = make(small_spec());
  Ids ids = {7};
  const Segment segment{kText, "ab"};
  t->encode({&segment, 1}, ids);
  EXPECT_EQ(ids.size(), 2u);
  EXPECT_EQ(ids[0], 7);
}

TEST(Tokenizer, InvalidUtf8IsEncodedByteForByte) {
  const auto t = make(small_spec());
  EXPECT_THAT(t->encode_text("\xFF\xE4\xB8"), ElementsAre(0xFF, 0xE4, 0xB8));
  // Text on both sides is encoded as if it stood alone: the space before the byte stays single, the
  // words keep their tokens.
  const std::string_view left = "the token  ", right = " token";
  Ids expected = t->encode_text(left);
  expected.push_back(0xC0);
  for (TokenId id : t->encode_text(right)) expected.push_back(id);
  EXPECT_EQ(t->encode_text(std::string(left) + '\xC0' + std::string(right)), expected);
}

TEST(Tokenizer, DecodingWhatWasEncodedGivesTheBytesBack) {
  const uint64_t seed = testing::test_seed();
  SCOPED_TRACE(testing::seed_note(seed));
  for (const auto pre : {std::optional(PreTokenizer::kGpt2), std::optional(PreTokenizer::kLlama3),
                         std::optional(PreTokenizer::kQwen2), std::optional(PreTokenizer::kSmolLm),
                         std::optional(PreTokenizer::kDeepSeekV3), std::optional<PreTokenizer>()}) {
    Random random(seed);
    const auto t = make(small_spec(pre));
    for (int round = 0; round < 1000; ++round) {
      const std::string bytes = random_bytes(random, 40, round % 2 == 0);
      ASSERT_EQ(t->decode(t->encode_text(bytes)), bytes);
      ASSERT_EQ(t->decode(t->encode_control(bytes)), bytes);
    }
  }
}

TEST(Tokenizer, PatternsGiveWhatTheKnownPreTokenizerGives) {
  const uint64_t seed = testing::test_seed();
  SCOPED_TRACE(testing::seed_note(seed));
  Random random(seed);
  for (PreTokenizer pre : {PreTokenizer::kGpt2, PreTokenizer::kLlama3, PreTokenizer::kQwen2,
                           PreTokenizer::kSmolLm, PreTokenizer::kDeepSeekV3}) {
    TokenizerSpec general = small_spec(std::nullopt);
    for (std::string_view pattern : known_patterns(pre)) general.patterns.emplace_back(pattern);
    const auto fast = make(small_spec(pre)), slow = make(general);
    for (int round = 0; round < 500; ++round) {
      const std::string text = random_bytes(random, 40, false);
      ASSERT_EQ(fast->encode_text(text), slow->encode_text(text)) << to_string(pre) << ": " << text;
    }
  }
}

TEST(Tokenizer, SpecialTokensAreLeftOutOnRequest) {
  const auto t = make(small_spec());
  const TokenId a = *t->find_added("<|a|>"), tool = *t->find_added("<tool>");
  EXPECT_TRUE(t->is_special(a));
  EXPECT_TRUE(t->is_added(tool));
  EXPECT_FALSE(t->is_special(tool));
  EXPECT_FALSE(t->is_special(-1));
  EXPECT_FALSE(t->is_added(1'000'000));
  EXPECT_EQ(t->decode(Ids{a, 'x', tool}), "<|a|>x<tool>");
  EXPECT_EQ(t->decode(Ids{a, 'x', tool}, /*skip_special=*/true), "x<tool>");
  EXPECT_EQ(t->find_added("<|nope|>"), std::nullopt);
}

TEST(Tokenizer, StrippingTakesWhiteSpaceOfNeighbouringSegments) {
  TokenizerSpec spec = byte_spec();
  const TokenId user = add_control(spec, "<user>");
  spec.added.back().rstrip = true;
  const TokenId end = add_control(spec, "<end>");
  spec.added.back().lstrip = true;
  const auto t = make(spec);
  EXPECT_THAT(encode(*t, {{kControl, "<user>"}, {kText, "\n a \u3000"}, {kControl, "<end>"}}),
              ElementsAre(user, 'a', end));
}

TEST(Tokenizer, NormalisesTextAndControlText) {
  TokenizerSpec spec = small_spec();
  spec.normalizer = Normalizer::kNfc;
  TokenizerSpec::Added added;
  added.id = static_cast<TokenId>(spec.vocab.size());
  added.text = "<\u00e9>";
  added.normalized = true;
  spec.vocab.push_back(added.text);
  spec.added.push_back(added);
  const auto t = make(spec);
  EXPECT_EQ(t->encode_text("e\u0301"), t->encode_text("\u00e9"));
  EXPECT_THAT(t->encode_control("<e\u0301>"), ElementsAre(added.id));
  EXPECT_EQ(encode(*t, {{kControl, "<|a|>e"}, {kText, "\u0301"}}),
            encode(*t, {{kControl, "<|a|>"}, {kText, "\u00e9"}}));
  EXPECT_EQ(t->decode(t->encode_text("e\u0301\xFF"
                                     "e\u0301")),
            "\u00e9\xFF\u00e9");
}

TEST(Tokenizer, EncodingAllocatesNothingOnceWarm) {
  std::string text;
  for (int i = 0; i < 200; ++i)
    text += "the tokenizers of 中国 aaabca 12345 \n\n  e\u0301 a\u0301\u0323 😀 \xFF" +
            std::to_string(i) + std::string(40, 'a') + "<|a|>";
  for (Normalizer normalizer : {Normalizer::kNone, Normalizer::kNfc}) {
    for (std::optional<PreTokenizer> pre :
         {std::optional(PreTokenizer::kQwen2), std::optional(PreTokenizer::kDeepSeekV3),
          std::optional<PreTokenizer>()}) {
      TokenizerSpec spec = small_spec(pre);
      spec.normalizer = normalizer;
      if (!pre) spec.patterns = {"\\p{L}+|\\s+"};
      const auto t = make(spec);
      const std::vector<Segment> segments = {
          {kControl, "<|a|>x"}, {kText, text}, {kControl, "<tool>"}, {kText, text}};
      Ids ids;
      t->encode(segments, ids);
      const Ids first = ids;
      ids.clear();
      const uint64_t before = testing::allocations();
      t->encode(segments, ids);
      EXPECT_EQ(testing::allocations() - before, 0u);
      EXPECT_EQ(ids, first);
    }
  }
}

TEST(Tokenizer, HostileRunsTakeLinearTime) {
  const size_t bytes = std::getenv("DEEPMINT_TEST_QUICK") != nullptr ? 100'000 : 1'000'000;
  // Far from a second each; a quadratic step would take minutes. the runner's limit is the
  // assertion.
  const std::vector<std::string> units = {
      "a",      "ab",           " ",    "\n",     "\r\n", "中",   "1",   "'", "e\u0301",
      "\u0301", "\u0323\u0301", "\xFF", "\u0378", "😀",   "<|a|", "\xE4"};
  for (Normalizer normalizer : {Normalizer::kNone, Normalizer::kNfc}) {
    for (std::optional<PreTokenizer> pre :
         {std::optional(PreTokenizer::kGpt2), std::optional(PreTokenizer::kDeepSeekV3),
          std::optional<PreTokenizer>()}) {
      TokenizerSpec spec = small_spec(pre);
      spec.normalizer = normalizer;
      const auto t = make(spec);
      for (const std::string& unit : units) {
        std::string text;
        while (text.size() < bytes) text += unit;
        const Ids ids = t->encode_text(text);
        if (normalizer == Normalizer::kNone) {
          EXPECT_EQ(t->decode(ids), text) << unit;
        }
        EXPECT_GT(t->encode_control(text).size(), 0u);
      }
    }
  }
}

TEST(Tokenizer, ManyThreadsAndTokenizersAtOnce) {
  const auto first = make(small_spec(PreTokenizer::kGpt2)),
             second = make(small_spec(PreTokenizer::kDeepSeekV3));
  std::vector<std::string> texts;
  Random random(5);
  for (int i = 0; i < 100; ++i) texts.push_back(random_bytes(random, 60, false));
  std::vector<Ids> expected;
  for (const auto& text : texts) {
    expected.push_back(first->encode_text(text));
    expected.push_back(second->encode_text(text));
  }
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int worker = 0; worker < 4; ++worker)
    threads.emplace_back([&, worker] {
      for (size_t round = 0; round < 10; ++round)
        for (size_t i = 0; i < texts.size(); ++i) {
          const size_t at = (i + static_cast<size_t>(worker) * 25) % texts.size();
          wrong += first->encode_text(texts[at]) == expected[2 * at] ? 0 : 1;
          wrong += second->encode_text(texts[at]) == expected[2 * at + 1] ? 0 : 1;
        }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Tokenizer, TheFingerprintFollowsEveryField) {
  const TokenizerSpec base = small_spec();
  const uint64_t original = make(base)->fingerprint();
  EXPECT_EQ(make(base)->fingerprint(), original);
  std::vector<TokenizerSpec> variants(14, base);
  variants[0].vocab.back() += "x";
  variants[1].merges.pop_back();
  variants[2].added[0].special = false;
  variants[3].added[0].lstrip = true;
  variants[4].normalizer = Normalizer::kNfc;
  variants[5].pre = PreTokenizer::kQwen2;
  variants[6].pre.reset();
  variants[6].patterns = {"a"};
  variants[7].ignore_merges = true;
  variants[8].unk = 3;
  variants[9].bos = 3;
  variants[10].add_bos = true;
  variants[11].end_ids = {3};
  variants[12].decode_only = {300};
  variants[13].byte_fallback = {{'x', 'y'}};
  std::vector<uint64_t> seen = {original};
  for (const auto& variant : variants) seen.push_back(make(variant)->fingerprint());
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(std::unique(seen.begin(), seen.end()), seen.end());
}

TEST(Tokenizer, WrongSpecsAreErrorsThatSayWhere) {
  const auto expect_error = [](auto damage, const char* words) {
    TokenizerSpec spec = small_spec();
    damage(spec);
    const auto made = Tokenizer::create(std::move(spec));
    ASSERT_FALSE(made) << words;
    EXPECT_THAT(made.error().str(), HasSubstr(words));
  };
  expect_error([](auto& s) { s.vocab.clear(); }, "vocabulary");
  expect_error([](auto& s) { s.merges.push_back({0, 1'000'000}); }, "token id 1000000");
  expect_error([](auto& s) { s.merges.push_back({-1, 0}); }, "token id -1");
  expect_error([](auto& s) { s.merges.push_back({'x', 'y'}); }, "\"xy\" is not in the vocabulary");
  expect_error([](auto& s) { s.added[0].id = 99'999; }, "added token \"<|a|>\"");
  expect_error([](auto& s) { s.added[0].text.clear(); }, "its text is empty");
  expect_error([](auto& s) { s.eos = -2; }, "eos");
  expect_error([](auto& s) { s.end_ids = {70'000}; }, "end of turn");
  expect_error([](auto& s) { s.decode_only = {70'000}; }, "unused token");
  expect_error([](auto& s) { s.byte_fallback = {{'x', -5}}; }, "byte fallback");
  expect_error([](auto& s) { s.patterns = {"a"}; }, "found both");
  expect_error([](auto& s) { s.pre.reset(), s.patterns = {"(?<name>a)"}; }, "pre-tokenizer");
  expect_error([](auto& s) { s.pre.reset(), s.patterns = {"a("}; }, "pre-tokenizer");
  expect_error([](auto& s) { s.pre.reset(), s.patterns = std::vector<std::string>(17, "a"); },
               "17 patterns");
  expect_error([](auto& s) { s.vocab.push_back(std::string(70'000, 'x')); }, "70000 bytes");
}

// --- Detokenizer
// -----------------------------------------------------------------------------------------------------------

std::string stream(const Tokenizer& t, const Ids& ids, bool skip_special = false) {
  Detokenizer d(t, skip_special);
  std::string out;
  for (TokenId id : ids) {
    const std::string_view piece = d.push(id);
    EXPECT_TRUE(utf8::is_valid(piece));
    out += piece;
  }
  out += d.finish();
  return out;
}

TEST(Detokenizer, HoldsACharacterBackUntilItIsWhole) {
  const auto t = make(byte_spec());
  Detokenizer d(*t);
  EXPECT_EQ(d.push(0xF0), "");
  EXPECT_EQ(d.push(0x9F), "");
  EXPECT_EQ(d.push(0x98), "");
  EXPECT_EQ(d.push(0x80), "😀");
  EXPECT_EQ(d.push('x'), "x");
  EXPECT_EQ(d.finish(), "");
}

TEST(Detokenizer, BytesThatCanNeverBecomeACharacterAreReplaced) {
  const auto t = make(byte_spec());
  Detokenizer d(*t);
  EXPECT_EQ(d.push(0xFF), "\uFFFD");
  EXPECT_EQ(d.push(0xE4), "");
  EXPECT_EQ(d.push('x'), "\uFFFDx");
  EXPECT_EQ(d.push(0xE4), "");
  EXPECT_EQ(d.finish(), "\uFFFD");
  EXPECT_EQ(d.finish(), "");
  EXPECT_EQ(d.push(0xE4), "");
  d.reset();
  EXPECT_EQ(d.push('y'), "y");
}

TEST(Detokenizer, EveryStreamEqualsTheWholeSanitised) {
  const uint64_t seed = testing::test_seed();
  SCOPED_TRACE(testing::seed_note(seed));
  Random random(seed);
  const auto t = make(small_spec());
  for (int round = 0; round < 5000; ++round) {
    Ids ids;
    for (uint64_t n = random.below(12); n > 0; --n) {
      const bool lead_byte =
          random.below(2) == 0;  // half of them bytes that begin or go on with a character
      ids.push_back(static_cast<TokenId>(
                        lead_byte ? 0x80 + random.below(0x80)
                                  : random.below(static_cast<uint64_t>(t->vocab_size()) + 3)) -
                    (lead_byte ? 0 : 1));
    }
    ASSERT_EQ(stream(*t, ids), utf8::sanitize(t->decode(ids)));
    ASSERT_EQ(stream(*t, ids, true), utf8::sanitize(t->decode(ids, true)));
  }
}

TEST(Detokenizer, EveryPairAndTripleOfBytesEqualsTheWhole) {
  const auto t = make(byte_spec());
  const Ids some = {'a',  0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2,
                    0xDF, 0xE0, 0xE1, 0xED, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5, 0xFF};
  for (TokenId a : some)
    for (TokenId b : some)
      for (TokenId c : some)
        for (TokenId d : some) {
          const Ids ids = {a, b, c, d};
          ASSERT_EQ(stream(*t, ids), utf8::sanitize(t->decode(ids)));
        }
}

TEST(Detokenizer, AllocatesNothingOnceWarm) {
  const auto t = make(small_spec());
  const Ids ids = t->encode_text("the 中国 tokenizer 😀 e\u0301 \xFF\xE4 and 龍 again");
  Detokenizer d(*t);
  for (TokenId id : ids) d.push(id);
  d.finish();
  const uint64_t before = testing::allocations();
  for (TokenId id : ids) d.push(id);
  d.finish();
  EXPECT_EQ(testing::allocations() - before, 0u);
}

}  // namespace
}  // namespace deepmint
