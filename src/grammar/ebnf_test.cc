#include "grammar/ebnf.h"

#include <gtest/gtest.h>

#include "grammar/matcher.h"
#include "grammar/testing_vocabulary.h"

namespace deepmint::grammar {
namespace {

std::shared_ptr<const Vocabulary> byte_vocabulary() {
  static const auto vocabulary = testing::byte_vocabulary(260);
  return vocabulary;
}

Matcher matcher(std::string_view grammar) {
  auto built = compile_ebnf(grammar);
  EXPECT_TRUE(built) << built.error().str();
  return Matcher(Compiled::make(std::move(*built), byte_vocabulary()).value());
}
bool accepts(Matcher& m, std::string_view text) { return m.accepts_bytes(text).complete; }
bool accepts(std::string_view grammar, std::string_view text) {
  Matcher m = matcher(grammar);
  return accepts(m, text);
}
std::string error(std::string_view grammar) {
  const auto built = compile_ebnf(grammar);
  EXPECT_FALSE(built) << grammar;
  return built ? "" : built.error().str();
}

constexpr std::string_view kJson = R"gbnf(
# JSON as llama.cpp ships it
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws
string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
)gbnf";

TEST(Ebnf, JsonGrammar) {
  Matcher m = matcher(kJson);
  EXPECT_TRUE(accepts(m, R"({"a": [1, -2.5e3, {"b": "x\u00e9\n"}], "c": null})"));
  EXPECT_TRUE(accepts(m, "{}\n\t\t"));
  EXPECT_FALSE(accepts(m, R"({"a": 01})"));
  EXPECT_EQ(m.accepts_bytes(R"({"a": tru3)").bytes, 9u);
  std::string deep;
  for (int i = 0; i < 2000; ++i) deep += R"({"k":[)";
  EXPECT_EQ(m.accepts_bytes(deep).bytes, deep.size());
}

TEST(Ebnf, EveryConstruct) {
  EXPECT_TRUE(accepts("root ::= \"a\" | \"b\"", "b"));
  EXPECT_TRUE(accepts("root ::= x{2,3} \"!\"\nx ::= [0-9]", "12!"));
  EXPECT_FALSE(accepts("root ::= x{2,3} \"!\"\nx ::= [0-9]", "1!"));
  EXPECT_TRUE(accepts("root ::= \"a\"{2,}", "aaaa"));
  EXPECT_TRUE(accepts("root ::= \"a\"{,2}", ""));
  EXPECT_FALSE(accepts("root ::= \"a\"{,2}", "aaa"));
  EXPECT_TRUE(accepts("root ::= .+", "é\n😀"));
  EXPECT_TRUE(accepts("root ::= \"\\x41\\u00e9\\U0001F600\\n\"", "Aé😀\n"));
  EXPECT_TRUE(accepts("root ::= [^a-z\\]\\-]+", "A é"));
  EXPECT_FALSE(accepts("root ::= [^a-z\\]\\-]+", "-"));
  EXPECT_TRUE(accepts("root ::= \"\"", ""));
  EXPECT_TRUE(accepts("root ::=\n  | \"x\" # nothing or x\n", ""));
  EXPECT_TRUE(accepts("root ::= a\n  | b\na ::= \"1\"\nb ::= \"2\"", "2"));
  EXPECT_TRUE(accepts("root ::= (\"a\"? \"b\"+)*", "bbabab"));
}

TEST(Ebnf, Recursion) {
  const char* left = "root ::= root \"+\" n | n\nn ::= [0-9]+";
  EXPECT_TRUE(accepts(left, "1+22+3"));
  EXPECT_FALSE(accepts(left, "1+"));
  const char* right = "root ::= n \"+\" root | n\nn ::= [0-9]+";
  EXPECT_TRUE(accepts(right, "1+22+3"));
  const char* mutual = "root ::= a\na ::= \"(\" b \")\" | \"x\"\nb ::= a \",\" a | a";
  EXPECT_TRUE(accepts(mutual, "((x,x),(x))"));
  EXPECT_FALSE(accepts(mutual, "((x,x),(x)"));
  const char* hidden = "root ::= e root \"a\" | \"b\"\ne ::= \"\" | \"c\"";
  EXPECT_TRUE(accepts(hidden, "cbaa"));
  EXPECT_FALSE(accepts(hidden, "ccba"));
  std::string many = "1";
  for (int i = 0; i < 3000; ++i) many += "+1";
  EXPECT_TRUE(accepts(left, many));
  EXPECT_TRUE(accepts(right, many));
}

TEST(Ebnf, ExplicitTokens) {
  Matcher m = matcher("root ::= \"a\" <[257]> \"b\"");
  ASSERT_TRUE(m.accept('a'));
  EXPECT_FALSE(m.accept('b'));
  ASSERT_TRUE(m.accept(257));
  ASSERT_TRUE(m.accept('b'));
  EXPECT_TRUE(m.accept(256));
}

TEST(Ebnf, ErrorsHaveLineAndColumn) {
  EXPECT_EQ(error("root ::= \"a\"\nother ::= missing \"x\""),
            "2:11: rule \"missing\" is not defined");
  EXPECT_EQ(error("start ::= \"a\""), "1:1: expected a rule named root");
  EXPECT_EQ(error("root ::= (\"é\" | \"b\""), "1:10: missing )");
  EXPECT_EQ(error("root ::= \"é\" ]"), "1:14: unexpected \"]\"");
  EXPECT_EQ(error("root := \"a\""), "1:6: expected ::= after \"root\", found \":\"");
  EXPECT_EQ(error("root ::= [a-"), "1:10: missing ]");
  EXPECT_EQ(error("root ::= \"a\nx"), "1:10: missing \"");
  EXPECT_EQ(error("root ::= \"a\"\nroot ::= \"b\""), "2:1: rule \"root\" is defined twice");
  EXPECT_EQ(error("root ::= \"a\"{3,2}"), "1:13: the count is the wrong way round");
  EXPECT_EQ(error("root ::= \"\\q\""), "1:11: unknown escape");
  EXPECT_EQ(error("root ::= <eos>"), "1:10: expected a token id: <[123]>");
  EXPECT_NE(error("root ::= \"a\"{20000}").find("10000"), std::string::npos);
  EXPECT_NE(error("").find("found nothing"), std::string::npos);
  EXPECT_NE(error("root ::= root \"a\"").find("empty"), std::string::npos);
}

TEST(Ebnf, HostileGrammarsEndInAnAnswer) {
  EXPECT_NE(error("root ::= " + std::string(1000, '(') + "\"a\"").find("nested"),
            std::string::npos);
  EXPECT_NE(error("root ::= \"a\"" + std::string(100000, '?')).find("marks"), std::string::npos);
  std::string chain;
  for (int i = 0; i < 15000; ++i)
    chain += "r" + std::to_string(i) + " ::= r" + std::to_string(i + 1) + " | \"y\" r0\n";
  EXPECT_TRUE(accepts("root ::= r0\n" + chain + "r15000 ::= \"z\"", "yyz"));
  std::string doubling = "root ::= d25\nd0 ::= \"a\" root?\n";
  for (int i = 1; i <= 25; ++i)
    doubling += "d" + std::to_string(i) + " ::= d" + std::to_string(i - 1) + " d" +
                std::to_string(i - 1) + "\n";
  Matcher m = matcher(doubling);
  EXPECT_EQ(m.accepts_bytes(std::string(50, 'a')).bytes, 50u);
}

}  // namespace
}  // namespace deepmint::grammar
