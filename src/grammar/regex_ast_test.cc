#include "grammar/regex_ast.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <iostream>
#include <random>

#include "core/utf8.h"
#include "grammar/testing_oracle.h"

namespace deepmint::grammar {
namespace {

using testing::Tree;

TEST(RegexSet, RandomExpressionsMatchTheOracle) {
  for (uint64_t seed = 1; seed <= 1500; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 rng(seed);
    const Tree tree = testing::random_tree(rng, 4, true);
    RegexSet set;
    const RegexId id = testing::build(set, tree);
    for (int i = 0; i < 20; ++i) {
      const std::string text = testing::random_text(rng, 7);
      const bool expected = testing::ends(tree, text, 0).count(text.size()) > 0;
      ASSERT_EQ(set.matches(id, text), expected) << text;
      ASSERT_EQ(set.matches(set.without_epsilon(id), text), expected && !text.empty()) << text;
      if (expected) {
        ASSERT_FALSE(set.empty(id)) << text;
      }
    }
    ASSERT_FALSE(set.exhausted());
  }
}

TEST(RegexSet, EmptinessIsExact) {
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 rng(seed);
    RegexSet set;
    const RegexId a = testing::build(set, testing::random_tree(rng, 3, true));
    const RegexId b = testing::build(set, testing::random_tree(rng, 3, true));
    EXPECT_TRUE(set.empty(set.intersect(a, set.complement(a))));
    const RegexId left = set.intersect(a, set.complement(b)),
                  right = set.intersect(b, set.complement(a));
    // De Morgan, as languages: the symmetric difference is empty.
    const RegexId or1 = set.alternate(left, right);
    const RegexId or2 = set.complement(set.intersect(set.complement(left), set.complement(right)));
    EXPECT_TRUE(set.empty(set.intersect(or1, set.complement(or2))));
    EXPECT_TRUE(set.empty(set.intersect(or2, set.complement(or1))));
  }
}

TEST(RegexSet, AClassOfCodePointsIsItsUtf8) {
  std::mt19937_64 rng(7);
  for (int round = 0; round < 60; ++round) {
    RegexSet set;
    std::vector<CodePointRange> ranges;
    for (int i = 0; i < 4; ++i) {
      const auto first = static_cast<uint32_t>(rng() % (round % 2 ? 0x900 : 0x110000));
      ranges.push_back({first, first + static_cast<uint32_t>(rng() % (round % 3 ? 40 : 70000))});
    }
    const RegexId id = set.code_points(ranges);
    for (int i = 0; i < 400; ++i) {
      uint32_t cp = static_cast<uint32_t>(rng() % 0x110000);
      if (i % 2) cp = ranges[rng() % 4].first + static_cast<uint32_t>(rng() % 3) - 1;
      if (cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000)) continue;
      bool expected = false;
      for (const CodePointRange& r : ranges) expected |= cp >= r.first && cp <= r.last;
      std::string text;
      utf8::append(text, cp);
      ASSERT_EQ(set.matches(id, text), expected) << std::hex << cp;
    }
  }
}

TEST(RegexSet, AnyCodePointIsValidUtf8OfOneCharacter) {
  RegexSet set;
  const RegexId any = set.any_code_point();
  std::mt19937_64 rng(11);
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (size_t n = 1 + rng() % 4; n > 0; --n)
      text += static_cast<char>(i % 2 ? 0x80 + rng() % 0x80 : 0xc0 + rng() % 0x40);
    size_t characters = 0;
    for (const char c : text) characters += (static_cast<uint8_t>(c) & 0xc0) != 0x80;
    ASSERT_EQ(set.matches(any, text), utf8::is_valid(text) && characters == 1);
  }
}

TEST(RegexSet, ACountIsOneExpression) {
  RegexSet set;
  const size_t before = set.size();
  const RegexId many = set.repeat(set.bytes(ByteSet::range('a', 'z')), 0, 10'000);
  EXPECT_LE(set.size(), before + 2);
  EXPECT_TRUE(set.matches(many, std::string(10'000, 'q')));
  EXPECT_FALSE(set.matches(many, std::string(10'001, 'q')));
}

TEST(RegexSet, AnAmbiguousCountStaysNarrow) {
  RegexSet set;
  const RegexId a = set.literal("a"), aa = set.literal("aa");
  const RegexId many = set.repeat(set.alternate(a, aa), 0, 1000);
  EXPECT_TRUE(set.matches(many, std::string(2000, 'a')));
  EXPECT_FALSE(set.matches(many, std::string(2001, 'a')));
  EXPECT_LT(set.size(), 20'000u);
}

TEST(RegexSet, LimitsEndInExhaustionNotInMemory) {
  RegexSet set({.max_nodes = 2000, .max_width = 100});
  // (a|b)*a(a|b){200}: subsets of positions.
  const RegexId ab = set.bytes(ByteSet::range('a', 'b'));
  RegexId id = set.concat(set.concat(set.star(ab), set.literal("a")), set.repeat(ab, 200, 200));
  std::mt19937_64 rng(3);
  for (int i = 0; i < 5000 && !set.exhausted(); ++i)
    id = set.derivative(id, static_cast<uint8_t>(rng() % 2 ? 'a' : 'b'));
  EXPECT_TRUE(set.exhausted());
  EXPECT_LE(set.size(), 2000u);
}

TEST(RegexSet, StructureHashesAreEqualInEverySet) {
  RegexSet one, two;
  two.literal("something else first");
  const auto make = [](RegexSet& s) {
    return s.alternate(s.repeat(s.any_code_point(), 2, 9),
                       s.intersect(s.star(s.literal("ab")), s.complement(s.literal("abab"))));
  };
  EXPECT_EQ(one.hash(make(one)), two.hash(make(two)));
  EXPECT_NE(one.hash(one.literal("a")), one.hash(one.literal("b")));
}

TEST(RegexSet, ALongListOfLiteralsBecomesATree) {
  RegexSet set;
  std::vector<RegexId> parts;
  for (int i = 0; i < 10'000; ++i) parts.push_back(set.literal("item" + std::to_string(i)));
  const RegexId all = set.alternate(parts);
  EXPECT_TRUE(set.matches(all, "item9999"));
  EXPECT_FALSE(set.matches(all, "item10000"));
  const std::string deep(50'000, 'x');
  const RegexId two = set.alternate(set.literal(deep + "a"), set.literal(deep + "b"));
  EXPECT_TRUE(set.matches(two, deep + "b"));
}

TEST(RegexSet, WhatIsKeptKeepsItsPartsOfEveryKind) {
  RegexSet set;
  const RegexSet::Mark mark = set.mark();
  const RegexId letter = set.bytes(ByteSet::range('a', 'z'));
  // Expressions in the middle of what they read: an encoded label, an escape, digits behind a
  // point.
  RegexId host = set.host_name(), text = set.json_string(set.repeat(letter, 1, 3)),
          number = set.decimal_multiple(25, 2);
  const auto read = [&](RegexId& id, std::string_view beginning) {
    for (const char c : beginning) id = set.derivative(id, static_cast<uint8_t>(c));
  };
  read(host, "xn--bcher-k");
  read(text, "a\\u00");
  read(number, "1.2");
  std::vector<RegexId> kept{host, text, number};
  set.keep_only(mark, kept);
  EXPECT_TRUE(set.matches(kept[0], "va"));
  EXPECT_TRUE(set.matches(kept[0], "va.example"));
  EXPECT_FALSE(set.matches(kept[0], "-"));
  EXPECT_TRUE(set.matches(kept[1], "62c"));
  EXPECT_FALSE(set.matches(kept[1], "42"));
  EXPECT_TRUE(set.matches(kept[2], "5"));
  EXPECT_FALSE(set.matches(kept[2], "6"));
}

// The same questions in any order, in sets that remember others or nothing: the same answers, and
// the same ones go over the limits.
TEST(RegexSet, EmptinessDoesNotDependOnWhatWasAskedBefore) {
  const uint64_t seed = std::random_device{}();
  std::cout << "seed " << seed << "\n";
  std::mt19937_64 rng(seed);
  int too_long = 0, empties = 0, texts_there = 0;
  for (int round = 0; round < 400; ++round) {
    const uint64_t tree_seed = rng();
    const auto length = static_cast<uint32_t>(rng() % 40);
    const RegexSet::Limits limits{.max_search = 1 + rng() % 40,
                                  .max_search_work = 1 + rng() % (round % 2 == 0 ? 500 : 50'000),
                                  .max_lines = rng() % 8,
                                  .max_line = static_cast<uint32_t>(1 + rng() % 50),
                                  .max_line_work = 1 + rng() % 2'000};
    const auto make = [&](RegexSet& set) {
      std::mt19937_64 trees(tree_seed);
      const RegexId one = testing::build(set, testing::random_tree(trees, 3, true));
      const RegexId two = testing::build(set, testing::random_tree(trees, 3, true));
      const RegexId three = testing::build(set, testing::random_tree(trees, 2, true));
      // Texts of at least `length` that end in one way and are not of another.
      const RegexId letters = set.bytes(ByteSet::range('a', 'c'));
      return set.intersect(std::array{set.concat(set.repeat(letters, length, kUnbounded), one),
                                      set.star(set.alternate(two, set.literal("b"))),
                                      set.complement(three)});
    };
    std::vector<std::string> texts{""};
    for (int i = 0; i < 6; ++i) texts.push_back(testing::random_text(rng, 6));
    const auto ask = [&](RegexSet& set, std::string_view text) {  // -1: over the limits
      RegexId id = make(set);
      for (const char c : text) id = set.derivative(id, static_cast<uint8_t>(c));
      const bool empty = set.empty(id);
      return set.exhausted() ? -1 : empty ? 1 : 0;
    };
    RegexSet warm(limits);
    const RegexSet::Mark start = warm.mark();
    for (int again = 0; again < 2; ++again) {
      std::shuffle(texts.begin(), texts.end(), rng);
      for (const std::string& text : texts) {
        RegexSet cold(limits);
        const int expected = ask(cold, text);
        ASSERT_EQ(ask(warm, text), expected) << "round " << round << ": \"" << text << "\"";
        if (warm.exhausted()) warm.reset_to(start);
        too_long += expected == -1;
        empties += expected == 1;
        texts_there += expected == 0;
      }
    }
  }
  EXPECT_GT(empties, 0);
  EXPECT_GT(texts_there, 0);
  EXPECT_GT(too_long, 0);
}

TEST(RegexSet, CountsAboveALimitMeanNothingToShortTexts) {
  std::mt19937_64 rng(3);
  for (int round = 0; round < 600; ++round) {
    RegexSet set;
    const RegexId id = testing::build(set, testing::random_tree(rng, 3, false));
    const uint32_t limit = static_cast<uint32_t>(rng() % 4);
    const RegexId other = set.within(id, limit);
    for (int i = 0; i < 40; ++i) {
      RegexId x = id, y = other;
      for (const char c : testing::random_text(rng, limit)) {
        x = set.derivative(x, static_cast<uint8_t>(c));
        y = set.derivative(y, static_cast<uint8_t>(c));
        ASSERT_EQ(x == set.none(), y == set.none()) << round;
        ASSERT_EQ(set.nullable(x), set.nullable(y)) << round;
      }
    }
  }
  RegexSet set;
  const RegexId letter = set.bytes(ByteSet::range('a', 'z'));
  EXPECT_EQ(set.within(set.repeat(letter, 0, 100'000), 128), set.star(letter));
  EXPECT_EQ(set.within(set.repeat(letter, 0, 100), 128), set.repeat(letter, 0, 100));
}

// Patterns over characters and a length together: what short texts and their beginnings see of it
// is the same, and far from the length's end the intersection is gone.
TEST(RegexSet, ALengthFarAwayMeansNothingToShortTexts) {
  std::mt19937_64 rng(5);
  const std::string_view kCharacters[] = {
      "a", "b", " ", "\xc3\xa9", "\xe6\x97\xa5", "\xf0\x9f\x98\x80"};
  int simpler = 0, same = 0;
  for (int round = 0; round < 800; ++round) {
    SCOPED_TRACE(round);
    RegexSet set;
    const auto character = [&] { return std::string(kCharacters[rng() % std::size(kCharacters)]); };
    const auto pattern = [&](auto& self, int depth) -> RegexId {
      switch (depth == 0 ? rng() % 3 : rng() % 7) {
        case 0:
          return set.any_code_point();
        case 1:
          return set.literal(rng() % 8 == 0 ? "\x97" : character());  // at times no UTF-8
        case 2: {
          const CodePointRange range{0x20, rng() % 2 == 0 ? 0x7fu : 0xffffu};
          return set.code_points({&range, 1});
        }
        case 3:
          return set.alternate(self(self, depth - 1), self(self, depth - 1));
        case 4: {
          const auto min = static_cast<uint32_t>(rng() % 3);
          const uint32_t max =
              rng() % 2 == 0 ? kUnbounded : min + static_cast<uint32_t>(rng() % 30);
          return set.repeat(self(self, depth - 1), min, max);
        }
        default:
          return set.concat(self(self, depth - 1), self(self, depth - 1));
      }
    };
    const auto min = static_cast<uint32_t>(rng() % 3);
    const uint32_t max = min + static_cast<uint32_t>(rng() % 40);
    RegexId id = set.intersect(pattern(pattern, 3), set.repeat(set.any_code_point(), min, max));
    const bool quoted = rng() % 2 == 0;
    if (quoted) id = set.json_string(id);
    if (rng() % 2 == 0) id = set.concat(id, set.literal("a"));
    for (uint64_t skip = rng() % 3; skip > 0 && !set.empty(id); --skip)  // inside a character too
      for (const char c : character().substr(0, 1 + rng() % 4))
        if (const RegexId next = set.derivative(id, static_cast<uint8_t>(c)); !set.empty(next))
          id = next;
    const auto limit = static_cast<uint32_t>(rng() % 8);
    const RegexId other = set.within(id, limit);
    ++(other != id ? simpler : same);
    for (int i = 0; i < 30; ++i) {
      std::string text;
      while (text.size() < limit) {
        if (quoted && rng() % 4 == 0)
          text += rng() % 2 == 0 ? "\\u00e9" : "\\ud83d\\ude00";
        else
          text += character();
      }
      RegexId x = id, y = other;
      ASSERT_EQ(set.empty(x), set.empty(y));
      for (const char c : text.substr(0, limit)) {
        x = set.derivative(x, static_cast<uint8_t>(c));
        y = set.derivative(y, static_cast<uint8_t>(c));
        ASSERT_EQ(set.empty(x), set.empty(y)) << text;
        ASSERT_EQ(set.nullable(x), set.nullable(y)) << text;
      }
    }
    ASSERT_FALSE(set.exhausted());
  }
  EXPECT_GT(simpler, 100);
  EXPECT_GT(same, 100);

  RegexSet set;
  const RegexId words = set.repeat(set.concat(set.literal("x"), set.literal(" ")), 0, 1'000);
  const RegexId length = set.repeat(set.any_code_point(), 0, 500);
  EXPECT_EQ(set.within(set.intersect(words, length), 128),
            set.star(set.concat(set.literal("x"), set.literal(" "))));
  const RegexId near = set.intersect(words, set.repeat(set.any_code_point(), 0, 128));
  EXPECT_EQ(set.within(near, 128), near);
}

// The union and the intersection of something with all UTF-8 text, which swallow and drop parts.
TEST(RegexSet, AllTextTakesInWhatIsText) {
  std::mt19937_64 rng(6);
  RegexSet set;
  const RegexId text = set.star(set.any_code_point());
  const RegexId word = set.concat(std::array{text, set.literal("ab"), text});
  EXPECT_EQ(set.alternate(text, word), text);
  EXPECT_EQ(set.intersect(text, word), word);
  RegexId rest = word;  // once found, whatever follows is found
  for (const char c : std::string_view("b\xc3\xa9"
                                       "ab"))
    rest = set.derivative(rest, static_cast<uint8_t>(c));
  EXPECT_EQ(rest, text);
  const std::string_view pieces[] = {"a", "b", "\xc3\xa9", "\xc3", "\xa9", "\xff", "\xed\xa0\x80"};
  for (int round = 0; round < 300; ++round) {
    const RegexId tree = testing::build(set, testing::random_tree(rng, 3, round % 2 == 0));
    const RegexId tail =
        round % 3 == 0 ? set.literal(pieces[rng() % std::size(pieces)]) : set.epsilon();
    const RegexId one = set.concat(tree, tail);
    const RegexId either = set.alternate(one, text), both = set.intersect(one, text);
    for (int i = 0; i < 30; ++i) {
      std::string sample = testing::random_text(rng, 3);
      for (uint64_t n = rng() % 3; n > 0; --n) sample += pieces[rng() % std::size(pieces)];
      const bool is_text = utf8::is_valid(sample), is_one = set.matches(one, sample);
      ASSERT_EQ(set.matches(either, sample), is_text || is_one) << round;
      ASSERT_EQ(set.matches(both, sample), is_text && is_one) << round;
    }
  }
}

TEST(RegexSet, WhatIsKeptStaysWhatItIs) {
  std::mt19937_64 rng(4);
  for (int round = 0; round < 200; ++round) {
    RegexSet set;
    const RegexId before = testing::build(set, testing::random_tree(rng, 2, true));
    const RegexSet::Mark mark = set.mark();
    std::vector<testing::Tree> trees;
    std::vector<RegexId> ids;
    for (int i = 0; i < 5; ++i) {
      trees.push_back(testing::random_tree(rng, 3, true));
      ids.push_back(set.intersect(testing::build(set, trees.back()), set.complement(before)));
    }
    std::vector<RegexId> kept{ids[1], ids[3]};
    const std::vector<Hash128> hashes{set.hash(kept[0]), set.hash(kept[1])};
    const size_t size = set.size();
    set.keep_only(mark, kept);
    EXPECT_LE(set.size(), size);
    EXPECT_EQ(set.hash(kept[0]), hashes[0]);
    EXPECT_EQ(set.hash(kept[1]), hashes[1]);
    // Made again it is the same expression, and it reads the same.
    EXPECT_EQ(set.intersect(testing::build(set, trees[1]), set.complement(before)), kept[0]);
    for (int i = 0; i < 20; ++i) {
      const std::string text = testing::random_text(rng, 6);
      RegexSet other;
      ASSERT_EQ(set.matches(kept[1], text),
                other.matches(testing::build(other, trees[3]), text) && !set.matches(before, text));
    }
  }
}

}  // namespace
}  // namespace deepmint::grammar
