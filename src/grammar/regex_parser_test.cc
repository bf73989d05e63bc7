#include "grammar/regex_parser.h"

#include <gtest/gtest.h>

#include <random>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "core/utf8.h"

namespace deepmint::grammar {
namespace {

bool matches(std::string_view pattern, std::string_view text, RegexOptions options = {}) {
  RegexSet set;
  const auto id = parse_regex(set, pattern, options);
  EXPECT_TRUE(id) << pattern << ": " << id.error().str();
  return id && set.matches(*id, text);
}
std::string refusal(std::string_view pattern, RegexOptions options = {}) {
  RegexSet set;
  const auto id = parse_regex(set, pattern, options);
  EXPECT_FALSE(id) << pattern;
  return id ? "" : id.error().str();
}
constexpr RegexOptions kEcma{.dialect = RegexDialect::kEcma};
constexpr RegexOptions kPattern{.dialect = RegexDialect::kEcma, .search = true};

// What PCRE2 says: the second opinion.
bool oracle(const std::string& pattern, std::string_view text, bool search) {
  const std::string whole = search ? "(?:" + pattern + ")" : "\\A(?:" + pattern + ")\\z";
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(whole.data()), whole.size(),
                                   PCRE2_UTF | PCRE2_DOLLAR_ENDONLY, &error, &offset, nullptr);
  EXPECT_NE(code, nullptr) << pattern;
  if (code == nullptr) return false;
  pcre2_match_data* data = pcre2_match_data_create(8, nullptr);
  const int rc = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, 0,
                             data, nullptr);
  pcre2_match_data_free(data);
  pcre2_code_free(code);
  return rc >= 0;
}

std::string random_pattern(std::mt19937_64& rng, int depth, bool anchors) {
  const auto pick = [&](uint64_t n) { return rng() % n; };
  static const char* kAtoms[] = {"a",     "b",        "é",       ".",   "\\d",    "[ab]",
                                 "[^a]",  "[a-c0-2]", "\\x61",   "\\w", "[\\d_]", "ß",
                                 "[é-ü]", "\\p{L}",   "\\P{Lu}", "\\.", "(?:)"};
  std::string out;
  for (uint64_t n = 1 + pick(3); n > 0; --n) {
    std::string atom;
    bool has_anchor = false;
    if (anchors && pick(6) == 0) {
      atom = pick(2) ? "^" : "$";
      has_anchor = true;
    } else if (depth > 0 && pick(3) == 0) {
      atom = "(" + random_pattern(rng, depth - 1, anchors);
      if (pick(2)) atom += "|" + random_pattern(rng, depth - 1, anchors);
      atom += ")";
      has_anchor = anchors;
    } else {
      atom = kAtoms[pick(std::size(kAtoms))];
    }
    if (!has_anchor) {
      static const char* kCounts[] = {"", "", "*", "+", "?", "{2}", "{1,}", "{0,2}", "*?", "+?"};
      atom += kCounts[pick(std::size(kCounts))];
    } else if (atom.size() > 1 && pick(4) == 0) {
      atom += "?";
    }
    out += atom;
  }
  return out;
}

TEST(RegexParser, RandomPatternsMatchWhatPcreMatches) {
  static const char* kPieces[] = {"a", "b", "c", "0", "1", "_", "é", "ß", "Z", "ü", "."};
  for (uint64_t seed = 1; seed <= 1500; ++seed) {
    std::mt19937_64 rng(seed);
    const bool search = seed % 2 == 0;
    const std::string pattern = random_pattern(rng, 2, seed % 3 == 0);
    RegexSet set;
    const auto id = parse_regex(set, pattern, {.search = search});
    ASSERT_TRUE(id) << pattern << ": " << id.error().str();
    for (int i = 0; i < 25; ++i) {
      std::string text;
      for (uint64_t n = rng() % 6; n > 0; --n) text += kPieces[rng() % std::size(kPieces)];
      ASSERT_EQ(set.matches(*id, text), oracle(pattern, text, search))
          << "seed " << seed << ": " << pattern << " on \"" << text << "\""
          << (search ? " (search)" : "");
    }
  }
}

TEST(RegexParser, AnchorsMeanTheEndsOfTheText) {
  EXPECT_TRUE(matches("^abc", "abcd", kPattern));
  EXPECT_FALSE(matches("^abc", "xabc", kPattern));
  EXPECT_TRUE(matches("abc$", "xabc", kPattern));
  EXPECT_FALSE(matches("abc$", "abc\n", kPattern));
  EXPECT_TRUE(matches("^a|b$", "ax", kPattern));
  EXPECT_TRUE(matches("^a|b$", "xb", kPattern));
  EXPECT_FALSE(matches("^a|b$", "xbx", kPattern));
  EXPECT_TRUE(matches("^$", "", kPattern));
  EXPECT_FALSE(matches("^$", "x", kPattern));
  EXPECT_FALSE(matches("a^b", "ab", kPattern));
  EXPECT_TRUE(matches("x*^y", "y", kPattern));
  EXPECT_TRUE(matches("", "anything", kPattern));
  EXPECT_TRUE(matches("\\Aab\\z", "ab"));
  EXPECT_NE(refusal("(^a)*b", kPattern).find("anchor inside a repetition"), std::string::npos);
}

TEST(RegexParser, EcmaClasses) {
  EXPECT_TRUE(matches("\\s{4}", "\t\xC2\xA0\xE2\x80\xA8\xEF\xBB\xBF", kEcma));
  EXPECT_FALSE(matches("\\s", "\xC2\x85", kEcma));
  EXPECT_FALSE(matches("\\d", "\xD9\xA1", kEcma));  // ARABIC-INDIC DIGIT ONE
  EXPECT_FALSE(matches("\\w", "é", kEcma));
  EXPECT_FALSE(matches(".", "\n", kEcma));
  EXPECT_FALSE(matches(".", "\xE2\x80\xA8", kEcma));
  EXPECT_TRUE(matches(".", "\xE2\x80\xA8"));
  EXPECT_TRUE(matches("\\u00e9\\u{1F600}\\uD83D\\uDE00", "é😀😀", kEcma));
  EXPECT_TRUE(matches("[\\b]\\cA\\0", std::string_view("\x08\x01\0", 3), kEcma));
  EXPECT_TRUE(matches("[]a", "", kEcma) == false);
  EXPECT_TRUE(matches("[^]", "\n", kEcma));
  EXPECT_TRUE(matches("\\p{Letter}\\p{Script=Greek}\\p{Lu}\\p{Alphabetic}", "aΩÄз", kEcma));
  EXPECT_TRUE(matches("a{,3}{", "a{,3}{", kEcma));
  EXPECT_NE(refusal("\\p{Greek}", kEcma).find("unknown property"), std::string::npos);
  EXPECT_NE(refusal("\\p{Nope}", kEcma).find("\"Nope\""), std::string::npos);
  EXPECT_TRUE(matches("(?<year>\\d{4})-(?<month>\\d\\d)", "2026-11", kEcma));
}

TEST(RegexParser, Re2Syntax) {
  EXPECT_TRUE(matches("(?i)straSSe\\d", "STRASSE7"));
  EXPECT_TRUE(matches("(?i)k", "\xE2\x84\xAA"));  // KELVIN SIGN
  EXPECT_TRUE(matches("(?i)[^k]", "x"));
  EXPECT_FALSE(matches("(?i)[^k]", "\xE2\x84\xAA"));
  EXPECT_FALSE(matches("a(?i:b)c", "aBC"));
  EXPECT_TRUE(matches("(?s).", "\n"));
  EXPECT_FALSE(matches(".", "\n"));
  EXPECT_TRUE(matches("[[:alpha:]][[:^digit:]]", "a\xC3\xA9"));
  EXPECT_TRUE(matches("\\Qa.b\\E+", "a.bbb"));
  EXPECT_TRUE(matches("\\pL\\p{Greek}\\x{1F600}", "aΩ😀"));
  EXPECT_TRUE(matches("[]a]+", "]a]"));
  EXPECT_TRUE(matches("(?P<n>x){1,10000}", std::string(10000, 'x')));
  EXPECT_NE(refusal("(?i)é").find("case-insensitive matching beyond ASCII"), std::string::npos);
  EXPECT_NE(refusal("(?m)^a").find("multi-line"), std::string::npos);
}

TEST(RegexParser, RefusalsNameTheConstructAndThePlace) {
  EXPECT_EQ(refusal("ab(?=c)"), "character 2: look-ahead cannot be done");
  EXPECT_NE(refusal("(?!c)"), "");
  EXPECT_EQ(refusal("(?<=c)a", kEcma), "character 0: look-behind cannot be done");
  EXPECT_EQ(refusal("(a)\\1"), "character 3: a back-reference cannot be done");
  EXPECT_NE(refusal("(?<n>a)\\k<n>", kEcma).find("back-reference"), std::string::npos);
  EXPECT_EQ(refusal("é\\bx", kEcma), "character 1: a word boundary (\\b) cannot be done");
  EXPECT_NE(refusal("a{1,10001}").find("10000"), std::string::npos);
  EXPECT_NE(refusal("a{3,2}").find("wrong way"), std::string::npos);
  EXPECT_NE(refusal("(a").find("missing )"), std::string::npos);
  EXPECT_NE(refusal("a)").find("unexpected"), std::string::npos);
  EXPECT_NE(refusal("[a").find("missing ]"), std::string::npos);
  EXPECT_NE(refusal("[z-a]").find("wrong way"), std::string::npos);
  EXPECT_NE(refusal("*a").find("nothing to repeat"), std::string::npos);
  EXPECT_NE(refusal("a**").find("repetition"), std::string::npos);
  EXPECT_NE(refusal("\\y").find("unknown escape"), std::string::npos);
  EXPECT_NE(refusal("\\").find("backslash"), std::string::npos);
  EXPECT_NE(refusal("\xff").find("UTF-8"), std::string::npos);
  EXPECT_NE(refusal(std::string(300, '(') + std::string(300, ')')).find("nested"),
            std::string::npos);
  EXPECT_NE(refusal(std::string(70'000, 'a')).find("at most"), std::string::npos);
}

TEST(RegexParser, HostilePatternsEndInAnAnswer) {
  for (const char* pattern :
       {"(((((((((a{100}){100}){100}){100}){100}){100}){100}){100}){100})", "(a*)*b", "(a|a)*c",
        "((a|b)*){1000}", "(.*a){50}", "[\\s\\S]*[\\s\\S]*x{9999}"}) {
    RegexSet set;
    const auto id = parse_regex(set, pattern, {});
    ASSERT_TRUE(id) << pattern;
    RegexId at = *id;
    for (int i = 0; i < 300 && at != set.none(); ++i) at = set.derivative(at, i % 5 ? 'a' : 'b');
  }
}

}  // namespace
}  // namespace deepmint::grammar
