#include "tokenizer/fast_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "core/utf8.h"
#include "support/random.h"
#include "tokenizer/pattern.h"
#include "tokenizer/regex_splitter.h"

namespace deepmint {
namespace {

using ::testing::ElementsAre;
using testing::Random;
using Pieces = std::vector<std::string_view>;

constexpr PreTokenizer kAll[] = {PreTokenizer::kGpt2, PreTokenizer::kLlama3, PreTokenizer::kQwen2,
                                 PreTokenizer::kSmolLm, PreTokenizer::kDeepSeekV3};

Pieces fast(PreTokenizer pre, std::string_view text) {
  Pieces out;
  const auto piece = [&](const char* p, size_t n) { out.emplace_back(p, n); };
  switch (pre) {
    case PreTokenizer::kGpt2:
      fast_split<PreTokenizer::kGpt2>(text, piece);
      break;
    case PreTokenizer::kLlama3:
      fast_split<PreTokenizer::kLlama3>(text, piece);
      break;
    case PreTokenizer::kQwen2:
      fast_split<PreTokenizer::kQwen2>(text, piece);
      break;
    case PreTokenizer::kSmolLm:
      fast_split<PreTokenizer::kSmolLm>(text, piece);
      break;
    case PreTokenizer::kDeepSeekV3:
      fast_split<PreTokenizer::kDeepSeekV3>(text, piece);
      break;
  }
  return out;
}

// The definition: the patterns one after another, each on the pieces of the one before.
class Oracle {
 public:
  explicit Oracle(PreTokenizer pre) {
    for (std::string_view pattern : known_patterns(pre))
      splitters_.push_back(*RegexSplitter::compile(pattern));
  }
  Pieces operator()(std::string_view text) const {
    Pieces pieces = {text};
    if (text.empty()) pieces.clear();
    for (const RegexSplitter& splitter : splitters_) {
      Pieces next;
      for (std::string_view piece : pieces)
        splitter.split(piece, [&](std::string_view p) { next.push_back(p); });
      pieces = std::move(next);
    }
    return pieces;
  }

 private:
  std::vector<RegexSplitter> splitters_;
};

void expect_same(PreTokenizer pre, const Oracle& oracle, std::string_view text) {
  const Pieces expected = oracle(text), found = fast(pre, text);
  if (expected == found) return;
  std::string hex;
  for (char c : text.substr(0, 400))
    hex += "0123456789abcdef"[static_cast<unsigned char>(c) >> 4],
        hex += "0123456789abcdef"[c & 15];
  size_t first = 0;
  while (first < expected.size() && first < found.size() && expected[first] == found[first])
    ++first;
  ADD_FAILURE() << to_string(pre) << ": piece " << first << " is \""
                << (first < found.size() ? found[first] : "") << "\", expected \""
                << (first < expected.size() ? expected[first] : "") << "\" in \""
                << text.substr(0, 400) << "\" (hex " << hex << ")";
}

// Characters at which splitters go wrong: of every class, length and pattern.
std::string interesting(Random& random) {
  static const std::vector<std::string> kSome = [] {
    std::vector<std::string> out = {"'s",
                                    "'S",
                                    "'t",
                                    "'re",
                                    "'RE",
                                    "'ve",
                                    "'m",
                                    "'ll",
                                    "'Ll",
                                    "'d",
                                    "'\u017f",
                                    "'",
                                    "''",
                                    "\r\n",
                                    "\n\n",
                                    "  ",
                                    "   ",
                                    " ",
                                    " ",
                                    " ",
                                    "\n",
                                    "\r",
                                    "\t",
                                    "abc",
                                    "ABC",
                                    "x",
                                    "longerwordthaneight",
                                    "1",
                                    "12",
                                    "123",
                                    "1234",
                                    "!",
                                    "!!",
                                    "(",
                                    "_",
                                    "é",
                                    "e\u0301",
                                    "\u0301",
                                    "\u0301\u0301",
                                    "中",
                                    "中文字",
                                    "の",
                                    "ー",
                                    "・",
                                    "\u3040",
                                    "\u3097",
                                    "\u3099",
                                    "\u309b",
                                    "\u30a0",
                                    "ヿ",
                                    "一",
                                    "龥",
                                    "龦",
                                    "\u3031",
                                    "〇",
                                    "가",
                                    "й",
                                    "ا",
                                    "١٢٣",
                                    "Ⅷ",
                                    "½",
                                    "²",
                                    "😀",
                                    "👩\u200d👩\u200d👧",
                                    "\ufe0f",
                                    "🇩🇪",
                                    "👍🏽",
                                    "\u200d",
                                    "\u00ad",
                                    "\ufeff",
                                    "\u0378",
                                    "\ue000",
                                    "\U0010ffff",
                                    "\U000e0001",
                                    "\x01",
                                    std::string(1, '\0'),
                                    "\x7f",
                                    "\u0080",
                                    "。",
                                    "，",
                                    "「",
                                    "€",
                                    "™",
                                    "\u180e",
                                    "\u200b",
                                    "\u2060"};
    for (uint32_t c : {0x85u, 0xA0u, 0x1680u, 0x2000u, 0x2003u, 0x200Au, 0x2028u, 0x2029u, 0x202Fu,
                       0x205Fu, 0x3000u, 0x0Bu, 0x0Cu}) {
      out.emplace_back();
      utf8::append(out.back(), c);
    }
    for (char c = '!'; c < 0x7F; ++c) out.emplace_back(1, c);
    return out;
  }();
  if (random.below(8) != 0) return kSome[random.below(kSome.size())];
  uint32_t c = 0;
  do c = static_cast<uint32_t>(random.below(random.below(2) == 0 ? 0x3100 : 0x110000));
  while (c >= 0xD800 && c < 0xE000);
  std::string out;
  utf8::append(out, c);
  return out;
}

TEST(FastSplit, EqualsThePatternsOnRandomText) {
  const uint64_t seed = testing::test_seed();
  SCOPED_TRACE(testing::seed_note(seed));
  for (PreTokenizer pre : kAll) {
    Random random(seed);
    const Oracle oracle(pre);
    for (int round = 0; round < 100'000 && !HasFailure(); ++round) {
      std::string text;
      for (uint64_t n = random.below(1 + random.below(40)); n > 0; --n) {
        const std::string some = interesting(random);
        for (uint64_t repeat = random.below(6) == 0 ? random.below(12) : 1; repeat > 0; --repeat)
          text += some;
      }
      expect_same(pre, oracle, text);
    }
  }
}

TEST(FastSplit, EqualsThePatternsOnEveryPairOfInterestingCharacters) {
  // One of each class, around and between letters, digits and the ends of the text.
  const std::vector<std::string> some = {
      "a",  "1",      " ",      "\n",     "\r",     "\t", "\u3000", "!",      "$",
      "'",  "s",      "\u0301", "\u00b2", "中",     "の", "\u3040", "\u3099", "・",
      "😀", "\u200d", "\u0378", "\x01",   "\u0085", "é",  "_",      "R",      "E"};
  for (PreTokenizer pre : kAll) {
    const Oracle oracle(pre);
    for (const auto& a : some)
      for (const auto& b : some)
        for (const auto& c : some)
          for (std::string_view before : {"", "x"})
            expect_same(pre, oracle, std::string(before) + a + b + c);
  }
}

TEST(FastSplit, EqualsThePatternsOnEveryCodePoint) {
  for (PreTokenizer pre : kAll) {
    const Oracle oracle(pre);
    std::string text;
    const uint32_t step = std::getenv("DEEPMINT_TEST_QUICK") != nullptr ? 31 : 1;
    for (uint32_t c = 0; c < 0x110000; c += c < 0x3200 ? 1 : step) {
      if (c >= 0xD800 && c < 0xE000) continue;
      std::string one;
      utf8::append(one, c);
      text += one + "a " + one + one + "1" + one + " ";
      if (text.size() > 4000) {
        expect_same(pre, oracle, text);
        text.clear();
      }
    }
    expect_same(pre, oracle, text);
  }
}

TEST(FastSplit, AsciiClassesAreThoseOfTheTable) {
  for (uint32_t c = 0; c < 128; ++c)
    EXPECT_EQ(fast_split_internal::kAsciiClasses[c], unicode::ClassTable::get()[c]) << c;
}

TEST(FastSplit, KnownCuts) {
  EXPECT_THAT(fast(PreTokenizer::kGpt2, "Hello  world's 123\n\n x"),
              ElementsAre("Hello", " ", " world", "'s", " 123", "\n\n", " x"));
  EXPECT_THAT(fast(PreTokenizer::kSmolLm, "a  12 b"), ElementsAre("a", "  ", "1", "2", " b"));
  EXPECT_THAT(fast(PreTokenizer::kLlama3, "I'LL 12345 (x)\r\n\n  y"),
              ElementsAre("I", "'LL", " ", "123", "45", " (", "x", ")\r\n\n", " ", " y"));
  EXPECT_THAT(fast(PreTokenizer::kQwen2, "12 .x"), ElementsAre("1", "2", " .", "x"));
  EXPECT_THAT(fast(PreTokenizer::kDeepSeekV3, "你好世界abc_def12345 x"),
              ElementsAre("你好世界", "abc", "_def", "123", "45", " x"));
}

}  // namespace
}  // namespace deepmint
