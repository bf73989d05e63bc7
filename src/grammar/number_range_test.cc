#include "grammar/number_range.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <string>

namespace deepmint::grammar {
namespace {

uint64_t seed() {
  const char* given = std::getenv("DEEPMINT_TEST_SEED");
  const uint64_t out = given ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  std::printf("seed %llu\n", static_cast<unsigned long long>(out));
  return out;
}

Decimal decimal(std::string_view text) {
  Result<Decimal> out = Decimal::parse(text);
  EXPECT_TRUE(out) << text;
  return out.value_or(Decimal{});
}

// A plain spelling; short, so that equal values are common.
std::string random_spelling(std::mt19937_64& rng, int digits) {
  std::string out = rng() % 3 == 0 ? "-" : "";
  const auto n = static_cast<int>(rng() % static_cast<uint64_t>(digits));
  if (n == 0) {
    out += "0";
  } else {
    out += static_cast<char>('1' + rng() % 9);
    for (int i = 1; i < n; ++i) out += static_cast<char>('0' + rng() % 10);
  }
  if (rng() % 2 == 0) {
    out += ".";
    const uint64_t places = 1 + rng() % 3;
    for (uint64_t i = 0; i < places; ++i)
      out += static_cast<char>('0' + (rng() % 2 == 0 ? 0 : rng() % 10));
  }
  return out;
}

TEST(Decimal, ReadsEverySpellingExactly) {
  EXPECT_EQ(decimal("1.50"), decimal("15e-1"));
  EXPECT_EQ(decimal("-0.0"), decimal("0"));
  EXPECT_EQ(decimal("1E+3").integer_part(), "1000");
  EXPECT_EQ(decimal("0.00120").fraction_part(), "0012");
  EXPECT_TRUE(decimal("120e-1").is_integer());
  EXPECT_FALSE(decimal("121e-1").is_integer());
  EXPECT_LT(compare(decimal("-2"), decimal("-1.9")), 0);
  EXPECT_LT(compare(decimal("9007199254740992"), decimal("9007199254740993")), 0);
  EXPECT_EQ(compare(decimal("100"), decimal("1e2")), 0);
  for (const char* text : {"1e5000", "1e-5000", "1e99999999999999999999"})
    EXPECT_EQ(Decimal::parse(text).error().code, ErrorCode::kTooLarge) << text;
}

TEST(NumberLanguages, BoundsAgreeWithComparisonOnEverySpelling) {
  std::mt19937_64 rng(seed());
  for (int round = 0; round < 400; ++round) {
    RegexSet set;
    const NumberLanguages l(set);
    const std::string limit_text = random_spelling(rng, 4);
    const Decimal limit = decimal(limit_text);
    const NumberSet ge = l.at_least(limit, false), gt = l.at_least(limit, true);
    const NumberSet le = l.at_most(limit, false), lt = l.at_most(limit, true);
    const NumberSet eq = l.equal_to(limit);
    for (int i = 0; i < 60; ++i) {
      const std::string text = i == 0 ? limit_text : random_spelling(rng, 4);
      const int order = compare(decimal(text), limit);
      const std::string what = fmt::format("{} against {}", text, limit_text);
      EXPECT_EQ(set.matches(l.spellings(ge), text), order >= 0) << what;
      EXPECT_EQ(set.matches(l.spellings(gt), text), order > 0) << what;
      EXPECT_EQ(set.matches(l.spellings(le), text), order <= 0) << what;
      EXPECT_EQ(set.matches(l.spellings(lt), text), order < 0) << what;
      EXPECT_EQ(set.matches(l.spellings(eq), text), order == 0) << what;
    }
  }
}

// Exponent forms are written only where they are right.
TEST(NumberLanguages, NoExponentFormIsEverOutsideItsSet) {
  std::mt19937_64 rng(seed());
  size_t written = 0;
  for (int round = 0; round < 300; ++round) {
    RegexSet set;
    const NumberLanguages l(set);
    const Decimal limit = decimal(random_spelling(rng, 2));
    const bool strict = rng() % 2 == 0;
    const NumberSet low = l.at_least(limit, strict), high = l.at_most(limit, strict);
    for (int i = 0; i < 60; ++i) {
      const std::string text = random_spelling(rng, 3) + (rng() % 2 ? "e" : "E") +
                               (rng() % 2   ? "-"
                                : rng() % 2 ? "+"
                                            : "") +
                               std::to_string(rng() % 4);
      const Decimal value = decimal(text);
      const int order = compare(value, limit);
      const bool above = strict ? order > 0 : order >= 0, below = strict ? order < 0 : order <= 0;
      const auto implies = [&](const NumberSet& s, bool holds) {
        if (!set.matches(l.spellings(s), text)) return;
        ++written;
        EXPECT_TRUE(holds) << text << " limit 0." << limit.digits << "e" << limit.point;
      };
      implies(low, above);
      implies(high, below);
      implies(l.complement(low), !above);
      implies(l.complement(high), !below);
      implies(l.integers(), value.is_integer());
      implies(l.complement(l.integers()), !value.is_integer());
      implies(l.intersect(low, l.integers()), above && value.is_integer());
      implies(l.unite(low, l.integers()), above || value.is_integer());
    }
  }
  EXPECT_GT(written, 1000u);  // the claim is not empty
}

TEST(NumberLanguages, MultiplesAgreeWithDivision) {
  std::mt19937_64 rng(seed());
  for (const char* step : {"1", "2", "3", "7", "10", "60", "1000", "0.01", "0.05", "2.5", "0.0001",
                           "1.5", "9999", "1200000", "1e-8", "0.5"}) {
    RegexSet set;
    const NumberLanguages l(set);
    const Decimal s = decimal(step);
    const Result<NumberSet> multiples = l.multiples_of(s);
    ASSERT_TRUE(multiples) << step;
    // In units of 1e-8.
    const auto scaled = [](const Decimal& d) {
      std::string digits = d.integer_part() + d.fraction_part();
      digits.resize(digits.size() + 8 - d.fraction_part().size(), '0');
      return std::strtoull(digits.c_str(), nullptr, 10);
    };
    const uint64_t unit = scaled(s);
    for (int i = 0; i < 500; ++i) {
      std::string text = random_spelling(rng, 6);
      if (i % 2 == 0) {  // a multiple, spelled with its decimals
        const uint64_t value = unit * (rng() % 1000);
        text =
            fmt::format("{}{}.{:08}", i % 4 == 0 ? "-" : "", value / 100000000, value % 100000000);
      }
      EXPECT_EQ(set.matches(multiples->plain, text), scaled(decimal(text)) % unit == 0)
          << text << " of " << step;
    }
  }
  RegexSet set;
  EXPECT_EQ(NumberLanguages(set).multiples_of(decimal("123456.7")).error().code,
            ErrorCode::kTooLarge);
}

TEST(NumberLanguages, WhatIsWritten) {
  RegexSet set;
  const NumberLanguages l(set);
  const RegexId any = l.spellings(l.all()), integer = l.spellings(l.integers());
  for (const char* text : {"0", "-0", "1", "-1.5e-7", "1E400", "12.0", "0.1e+03"})
    EXPECT_TRUE(set.matches(any, text)) << text;
  for (const char* text : {"", "-", "01", "+1", ".5", "1.", "1e", "0x1", "NaN", "1e+", "--1"})
    EXPECT_FALSE(set.matches(any, text)) << text;
  for (const char* text : {"0", "-3", "1.0", "1e2", "-2.00E+05", "0e-7", "1e308"})
    EXPECT_TRUE(set.matches(integer, text)) << text;
  for (const char* text : {"1.5", "1e-2", "15e-1", "1e309", "0.1"})
    EXPECT_FALSE(set.matches(integer, text)) << text;
}

TEST(JsonString, EverySpellingOfTheContentAndNothingElse) {
  RegexSet set;
  const RegexId two = set.alternate(set.literal("a\"\xc3\xa9"), set.literal("\xf0\x9f\x98\x80/"));
  const RegexId text = set.json_string(two);
  for (const char* good : {R"(a\"é)", R"(\u0061\u0022\u00e9)", R"(a\u0022\u00E9)", R"(😀/)",
                           R"(\ud83d\ude00\/)", R"(\uD83D\uDE00/)", R"(😀\u002f)"})
    EXPECT_TRUE(set.matches(text, good)) << good;
  for (const char* bad : {R"(a"é)", R"(a\"e)", R"(\ud83d)", R"(\ude00\ud83d/)", R"(\a)", R"(a\")",
                          R"(\ud83d\ud83d/)", R"(\u61)", R"(😀)", R"(\U0061\"é)"})
    EXPECT_FALSE(set.matches(text, bad)) << bad;
  EXPECT_EQ(set.json_string(set.none()), set.none());
}

// A residual that no text completes is none(), so that a mask never leads into a dead end.
TEST(JsonString, NoDeadEnds) {
  RegexSet set;
  const RegexId text = set.json_string(set.literal("k"));  // U+006B
  RegexId at = text;
  for (const char c : std::string_view("\\u006")) {
    at = set.derivative(at, static_cast<uint8_t>(c));
    EXPECT_NE(at, set.none());
  }
  EXPECT_NE(set.derivative(at, 'b'), set.none());
  EXPECT_NE(set.derivative(at, 'B'), set.none());
  EXPECT_EQ(set.derivative(at, 'c'), set.none());
  EXPECT_EQ(set.derivative(set.derivative(text, '\\'), 'n'), set.none());
  EXPECT_EQ(set.derivative(set.derivative(set.derivative(text, '\\'), 'u'), 'd'), set.none());
}

}  // namespace
}  // namespace deepmint::grammar
