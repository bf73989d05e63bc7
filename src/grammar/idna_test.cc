#include "grammar/idna.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "grammar/regex_ast.h"

namespace deepmint::grammar {
namespace {

constexpr std::string_view kLdh = "abcdefghijklmnopqrstuvwxyz0123456789-";

// Checked with the published idna package, as tests/e2e/test_grammar.py does at random.
TEST(Idna, LabelsOfEveryRule) {
  for (const char* label :
       {"mnchen-3ya", "9n2bp8q", "9t4b11yi5a", "zca29lwxobi7a", "qmbc", "ll-0ea", "wva3je",
        "4dbc5h", "4dbc8h", "k8j5u", "bck0j", "vek778f", "ngba1o", "0-gyc", "11b2ezcw70k",
        "11b2ezcs70k", "ngba5hb2804a", "ihqwcrb4cv8a8dqg056pqjye"})
    EXPECT_TRUE(is_a_label(label)) << label;
  for (const char* label :
       {"",          "X",        "x",           "07jt112bpxg", "hello-txk",     "hello-zed",
        "hello-6bf", "chb89f",   "07jceefgh4c", "al-0ea",      "l-fda",         "la-0ea",
        "S-jib3p",   "wva3j",    "A-2hc5h",     "5db1e",       "5db3e",         "defabc-k64e",
        "vek",       "ngb6iyr",  "11b2er09f",   "02b508i",     "aa---o47jg78q", "7a",
        "0ca24w",    "example-", "-9uc",        "mnchen-3yA",  "zzzzzzzzz"})
    EXPECT_FALSE(is_a_label(label)) << label;
}

TEST(Idna, NineCharactersMakeALabelOfEveryBeginning) {
  std::mt19937_64 rng(1);
  for (int round = 0; round < 2000; ++round) {
    std::string prefix(rng() % (kMaxEncodedLabel - 9 + 1), '-');
    const bool hyphens = rng() % 3 == 0;
    for (char& c : prefix)
      if (!hyphens || rng() % 2 == 0) c = kLdh[rng() % kLdh.size()];
    ASSERT_TRUE(letters_complete(prefix, 9)) << prefix;
  }
}

TEST(Idna, ABeginningOfAHostNameCanAlwaysBeCompleted) {
  std::mt19937_64 rng(2);
  RegexSet set;
  const RegexId host = set.host_name();
  for (int round = 0; round < 10; ++round) {
    // Into the far end of a label, or of the whole name.
    std::string text;
    for (const size_t front = rng() % 2 ? 0 : 185; text.size() < front;) text += "abcde.";
    text += "xn--";
    const RegexSet::Mark mark = set.mark();
    RegexId at = host;
    for (const char c : text) at = set.derivative(at, static_cast<uint8_t>(c));
    for (int steps = 0; steps < 260; ++steps) {
      std::vector<char> next;
      for (const char c : kLdh)
        if (set.derivative(at, static_cast<uint8_t>(c)) != set.none()) next.push_back(c);
      if (next.empty()) {
        ASSERT_TRUE(set.nullable(at)) << text;
        break;
      }
      text += next[rng() % next.size()];
      at = set.derivative(at, static_cast<uint8_t>(text.back()));
    }
    ASSERT_TRUE(set.nullable(at)) << text;
    EXPECT_TRUE(set.matches(host, text)) << text;
    set.reset_to(mark);
  }
  ASSERT_FALSE(set.exhausted());
}

TEST(Idna, HostNames) {
  RegexSet set;
  const RegexId host = set.host_name();
  const std::string label(63, 'a'), almost = label + "." + label + "." + label + ".";
  for (const std::string& name :
       {std::string("a"), std::string("Example.COM"), std::string("3com.x-y"), label,
        almost + std::string(61, 'b'), std::string("xn--mnchen-3ya.de"), std::string("xn-a"),
        std::string("xn.a"), std::string("a.xn--9n2bp8q.b"), std::string("ab-c--d")})
    EXPECT_TRUE(set.matches(host, name)) << name;
  for (const std::string& name :
       {std::string(), std::string("."), std::string("a."), std::string("a..b"), std::string("-a"),
        std::string("a-"), std::string("a_b"), label + "a", almost + std::string(62, 'b'),
        std::string("ab--c"), std::string("xn--X"), std::string("XN--mnchen-3ya"),
        std::string("xn--"), std::string("xn--a")})
    EXPECT_FALSE(set.matches(host, name)) << name;
}

}  // namespace
}  // namespace deepmint::grammar
