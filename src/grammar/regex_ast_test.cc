#include "grammar/regex_ast.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace deepmint::grammar
