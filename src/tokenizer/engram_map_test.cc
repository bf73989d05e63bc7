#include "tokenizer/engram_map.h"

#include <gtest/gtest.h>

#include "tokenizer/testing_spec.h"

namespace deepmint {
namespace {

TEST(EngramKey, FoldsCaseAccentsFormsAndBlanks) {
  EXPECT_EQ(engram_key("Hello"), "hello");
  EXPECT_EQ(engram_key(" Hello"), "hello");
  EXPECT_EQ(engram_key("É"), "e");
  EXPECT_EQ(engram_key("e\u0301"), "e");
  EXPECT_EQ(engram_key("İ"), "i");             // its dot is a combining mark
  EXPECT_EQ(engram_key("ﬁ"), "fi");            // a compatibility form
  EXPECT_EQ(engram_key("Ａ１"), "a1");         // full width
  EXPECT_EQ(engram_key("\u00A0x"), "x");       // NFKC makes a space of it
  EXPECT_EQ(engram_key("が"), "か");           // the voicing mark is a combining mark
  EXPECT_EQ(engram_key("a \t\r\n b"), "a b");  // blanks inside become one
  EXPECT_EQ(engram_key("ẞ"), "ß");
  EXPECT_EQ(engram_key("Σ"), "σ");
  EXPECT_EQ(engram_key("漢"), "漢");
}

TEST(EngramKey, ASpaceStaysASpaceAndNothingStaysNothing) {
  EXPECT_EQ(engram_key(" "), " ");
  EXPECT_EQ(engram_key("\n"), " ");
  EXPECT_EQ(engram_key(" \n\t "), " ");
  EXPECT_EQ(engram_key(""), "");
  EXPECT_EQ(engram_key("\u3000"), " ");       // NFKC: a space
  EXPECT_EQ(engram_key("\u2028"), "\u2028");  // white space that is not a blank: trimmed away
  EXPECT_EQ(engram_key("\u0301"), "\u0301");  // a mark alone: the text itself
  EXPECT_EQ(engram_key(" \u0301"), " ");      // the mark goes first, then one space is left
  EXPECT_EQ(engram_key("\v \v"), "\v \v");
}

TEST(EngramMap, NumbersClassesInOrderOfAppearance) {
  TokenizerSpec spec = testing::byte_spec();
  const TokenId upper = testing::add_word(spec, "THE");
  const TokenId lower = testing::add_word(spec, "the");
  const TokenId spaced = testing::add_word(spec, " The");
  const TokenId accent = testing::add_word(spec, "é");
  const TokenId control = testing::add_control(spec, "<|THE|>");
  const auto tokenizer = Tokenizer::create(spec);
  ASSERT_TRUE(tokenizer) << tokenizer.error().str();
  const EngramMap map = make_engram_map(**tokenizer);
  const auto id = [&](TokenId t) { return map.ids[static_cast<size_t>(t)]; };
  ASSERT_EQ(map.ids.size(), static_cast<size_t>((*tokenizer)->vocab_size()));
  EXPECT_EQ(id(upper), id(lower));
  EXPECT_EQ(id(upper), id(spaced));
  EXPECT_EQ(id('a'), id('A'));
  EXPECT_EQ(id(' '), id('\n'));
  EXPECT_NE(id(' '), id('\v'));
  EXPECT_EQ(id(accent), id('e'));
  EXPECT_NE(id(control), id(upper));
  EXPECT_NE(id(0x80), id(0x81));  // parts of characters stay apart
  int32_t seen = 0;               // each id is at most one above all before it
  for (const int32_t c : map.ids) {
    EXPECT_LE(c, seen);
    seen = std::max(seen, c + 1);
  }
  EXPECT_EQ(seen, map.n_classes);
}

// The published encoder writes a part of a character in the byte-level alphabet, where the byte
// E6 is "æ": it shares the class of the letter.
TEST(EngramMap, PartsAreNamedInTheByteLevelAlphabet) {
  TokenizerSpec spec = testing::byte_spec();
  const TokenId letter = testing::add_word(spec, "æ");
  const auto tokenizer = Tokenizer::create(spec);
  ASSERT_TRUE(tokenizer) << tokenizer.error().str();
  const EngramMap map = make_engram_map(**tokenizer);
  EXPECT_EQ(map.ids[0xE6], map.ids[static_cast<size_t>(letter)]);
}

}  // namespace
}  // namespace deepmint
