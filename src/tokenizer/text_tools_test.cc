// unicode.h, byte_level.h, normalize.h, pattern.h, regex_splitter.h, added_tokens.h. The comparison
// with the published package over all code points is tests/e2e/test_tokenizer.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/utf8.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/normalize.h"
#include "tokenizer/pattern.h"
#include "tokenizer/regex_splitter.h"
#include "tokenizer/unicode.h"

namespace deepmint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Unicode, TheTableSaysWhatTheRangesSay) {
  std::vector<uint8_t> expected(0x110000, 0);
  const auto mark = [&](const std::vector<unicode::Range>& ranges, uint8_t bit) {
    for (const auto& [first, last] : ranges)
      for (uint32_t c = first; c <= last; ++c) expected[c] |= bit;
  };
  mark(*unicode::category_ranges("L"), unicode::kLetter);
  mark(*unicode::category_ranges("M"), unicode::kMark);
  mark(*unicode::category_ranges("N"), unicode::kNumber);
  mark(*unicode::category_ranges("P"), unicode::kPunctuation);
  mark(*unicode::category_ranges("S"), unicode::kSymbol);
  mark(unicode::space_ranges(), unicode::kSpace);
  mark({{0x4E00, 0x9FA5}, {0x3040, 0x30FF}}, unicode::kCjk);
  mark({{'\r', '\r'}, {'\n', '\n'}}, unicode::kNewline);
  const unicode::ClassTable& table = unicode::ClassTable::get();
  for (uint32_t c = 0; c < 0x110000; ++c) ASSERT_EQ(table[c], expected[c]) << c;
}

TEST(Unicode, CategoriesAreGroupsOfSubcategories) {
  size_t letters = 0;
  for (std::string_view name : {"Lu", "Ll", "Lt", "Lm", "Lo"}) {
    const auto ranges = unicode::category_ranges(name);
    for (const auto& [first, last] : *ranges) letters += last - first + 1;
  }
  size_t all = 0;
  const auto ranges = unicode::category_ranges("L");
  for (const auto& [first, last] : *ranges) all += last - first + 1;
  EXPECT_EQ(letters, all);
  EXPECT_EQ(all, 141'028u);  // of Unicode 16.0
  EXPECT_FALSE(unicode::category_ranges("Xx"));
  EXPECT_FALSE(unicode::category_ranges(""));
  EXPECT_FALSE(unicode::category_ranges("Letter"));
}

TEST(Unicode, ComplementLeavesSurrogatesOut) {
  EXPECT_THAT(unicode::complement({}),
              ElementsAre(unicode::Range(0, 0xD7FF), unicode::Range(0xE000, 0x10FFFF)));
  EXPECT_THAT(unicode::complement({{0, 0x40}, {0xD000, 0xD900}}),
              ElementsAre(unicode::Range(0x41, 0xCFFF), unicode::Range(0xE000, 0x10FFFF)));
}

TEST(ByteLevel, EveryByteThereAndBack) {
  std::string bytes, back;
  for (int byte = 0; byte < 256; ++byte) bytes += static_cast<char>(byte);
  const std::string text = byte_level::encode(bytes);
  EXPECT_TRUE(utf8::is_valid(text));
  ASSERT_TRUE(byte_level::decode(text, back));
  EXPECT_EQ(back, bytes);
  EXPECT_EQ(byte_level::encode(" \n\x7F\xAD"), "ĠĊġŃ");
  EXPECT_FALSE(byte_level::decode(" ", back));
  EXPECT_FALSE(byte_level::decode("中", back));
  EXPECT_FALSE(byte_level::decode("\u0144", back));
  EXPECT_FALSE(byte_level::decode("\xC4", back));
  EXPECT_FALSE(
      byte_level::decode("\xC4"
                         "a",
                         back));
  EXPECT_EQ(byte_level::fallback_byte("<0x0A>"), 0x0A);
  for (const char* wrong : {"<0x0a>", "<0x0A", "0x0A", "<0xGG>", "<0x0A>>", ""})
    EXPECT_EQ(byte_level::fallback_byte(wrong), std::nullopt);
}

TEST(Normalize, ComposesAndOrders) {
  std::string buffer;
  EXPECT_EQ(to_nfc("e\u0301", buffer), "é");
  EXPECT_EQ(to_nfc("abc e\u0301x中e\u0323\u0302", buffer), "abc éx中ệ");
  EXPECT_EQ(to_nfc("a\u0301\u0323", buffer), "ạ\u0301");
  EXPECT_EQ(to_nfc("\u1100\u1161\u11A8", buffer), "각");
  EXPECT_EQ(to_nfc("\u212B", buffer), "Å");             // a singleton
  EXPECT_EQ(to_nfc("\u0958", buffer), "\u0915\u093C");  // excluded from composition
  EXPECT_EQ(to_nfc("\u0301", buffer), "\u0301");
  EXPECT_EQ(to_nfc("", buffer), "");
  const std::string_view plain = "already composed: é 中文 각 😀";
  EXPECT_EQ(to_nfc(plain, buffer).data(), plain.data());
}

TEST(Normalize, ALongRunOfMarksIsSortedNotBubbled) {
  std::string text = "a", buffer;
  for (int i = 0; i < 200'000; ++i) text += "\u0301\u0323";
  const std::string out(to_nfc(text, buffer));
  EXPECT_EQ(out.substr(0, 7), "ạ\u0323\u0323");
  EXPECT_EQ(out.substr(out.size() - 2), "\u0301");
}

std::vector<std::string> split(std::string_view pattern, std::string_view text) {
  const auto splitter = RegexSplitter::compile(pattern);
  EXPECT_TRUE(splitter) << splitter.error().str();
  std::vector<std::string> out;
  if (splitter) splitter->split(text, [&](std::string_view piece) { out.emplace_back(piece); });
  return out;
}

TEST(RegexSplitter, MatchesAndGapsArePieces) {
  EXPECT_THAT(split("b+", "abba"), ElementsAre("a", "bb", "a"));
  EXPECT_THAT(split("x", "abba"), ElementsAre("abba"));
  EXPECT_THAT(split("x", ""), ElementsAre());
  EXPECT_THAT(split("(?=b)", "abba"), ElementsAre("a", "b", "ba"));  // empty matches cut too
  EXPECT_THAT(split("b*", "ab中b"), ElementsAre("a", "b", "中", "b"));
}

TEST(RegexSplitter, APatternThatBacktracksWithoutEndStopsAtTheLimit) {
  const std::string text(40, 'a');
  EXPECT_THAT(split("(?:a+)+b", text), ElementsAre(text));
}

TEST(Pattern, WhatWouldMeanSomethingElseIsNamed) {
  const std::pair<const char*, const char*> cases[] = {{"\\bword", "\\b"},
                                                       {"\\Gx", "\\G"},
                                                       {"(a)\\1", "\\1"},
                                                       {"[a[bc]]", "[ inside a class"},
                                                       {"[a&&b]", "&&"},
                                                       {"a{2}+", "{…}+"},
                                                       {"(?<n>a)", "(?<n"},
                                                       {"(?m:.)", "(?m"},
                                                       {"\\p{Cyrillic}", "Cyrillic"},
                                                       {"\\p{Foo}", "\\p{Foo}"},
                                                       {"\\p", "\\p"},
                                                       {"\\", "\\ at the end"},
                                                       {"[abc", "[ without ]"},
                                                       {"(?i:straße)", "(?i"},
                                                       {"(?i:fast)", "(?i"},
                                                       {"\\xZZ", "\\xZZ"},
                                                       {"\\x{110000}", "\\x"},
                                                       {"\\xE4", "\\xE4"},
                                                       {"(*VERB)", "(*"},
                                                       {"\\R", "\\R"},
                                                       {"\\K", "\\K"},
                                                       {"a(?i)b", "(?i)"}};
  for (const auto& [pattern, words] : cases) {
    const auto translated = pattern_to_pcre2(pattern);
    ASSERT_FALSE(translated) << pattern << " became " << *translated;
    EXPECT_EQ(translated.error().code, ErrorCode::kUnsupported);
    EXPECT_THAT(translated.error().str(), HasSubstr(words)) << pattern;
  }
  EXPECT_FALSE(pattern_to_pcre2("a\xFF"));
}

TEST(Pattern, KnownPatternsAreRecognisedAndNothingElse) {
  for (PreTokenizer pre : {PreTokenizer::kGpt2, PreTokenizer::kLlama3, PreTokenizer::kQwen2,
                           PreTokenizer::kSmolLm, PreTokenizer::kDeepSeekV3}) {
    std::vector<std::string> patterns;
    for (std::string_view pattern : known_patterns(pre)) patterns.emplace_back(pattern);
    EXPECT_EQ(recognize_patterns(patterns), pre);
    patterns.back() += "|x";
    EXPECT_EQ(recognize_patterns(patterns), std::nullopt);
    patterns.pop_back();
    EXPECT_EQ(recognize_patterns(patterns), std::nullopt);
  }
}

TEST(AddedTokens, LeftmostLongestWithoutOverlap) {
  AddedTokens added;
  const auto insert = [&](const char* text, TokenId id) {
    TokenizerSpec::Added a;
    a.id = id;
    added.insert(text, a);
  };
  insert("ab", 1);
  insert("abcd", 2);
  insert("cd", 3);
  insert("ab", 9);  // the first of equals counts
  const auto find = [&](std::string_view text) {
    std::vector<AddedTokens::Match> out;
    added.find_all(text, 0, text.size(), out);
    std::vector<std::pair<size_t, TokenId>> ids;
    for (const auto& m : out) ids.emplace_back(m.begin, m.id);
    return ids;
  };
  using P = std::pair<size_t, TokenId>;
  EXPECT_THAT(find("abcab"), ElementsAre(P(0, 1), P(3, 1)));
  EXPECT_THAT(find("xabcdcd"), ElementsAre(P(1, 2), P(5, 3)));
  EXPECT_THAT(find("aab"), ElementsAre(P(1, 1)));
  std::vector<AddedTokens::Match> inside;
  added.find_all("abcd", 0, 3, inside);  // a match must lie inside the range
  ASSERT_EQ(inside.size(), 1u);
  EXPECT_EQ(inside[0].id, 1);
}

TEST(AddedTokens, StripAndWordRulesOverBytesThatAreNotUtf8) {
  AddedTokens added;
  TokenizerSpec::Added a;
  a.id = 1;
  a.lstrip = a.rstrip = a.single_word = true;
  added.insert("x", a);
  const auto find = [&](std::string_view text) {
    std::vector<AddedTokens::Match> out;
    added.find_all(text, 0, text.size(), out);
    return out;
  };
  ASSERT_EQ(find("\xA0 x\u3000 \xE3\x80").size(), 1u);
  EXPECT_EQ(find("\xA0 x\u3000 \xE3\x80")[0].begin, 1u);
  EXPECT_EQ(find("\xA0 x\u3000 \xE3\x80")[0].end, 7u);
  EXPECT_EQ(find("\xFFx\xFF").size(), 1u);
  EXPECT_EQ(find("éx").size(), 0u);
  EXPECT_EQ(find("x_").size(), 0u);
  EXPECT_EQ(find("x-x").size(), 2u);
}

}  // namespace
}  // namespace deepmint
