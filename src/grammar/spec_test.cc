// What compile_grammar() does by itself; the kinds with a compiler of their own have their tests
// beside it.
#include <gtest/gtest.h>

#include "grammar/compiled.h"
#include "grammar/matcher.h"
#include "grammar/testing_vocabulary.h"

namespace deepmint::grammar {
namespace {

bool accepts(const Spec& spec, std::string_view text) {
  const auto compiled = compile(spec, testing::byte_vocabulary());
  EXPECT_TRUE(compiled) << compiled.error().str();
  return compiled && Matcher(*compiled).accepts_bytes(text).complete;
}
std::string refusal(const Spec& spec) {
  const auto grammar = compile_grammar(spec);
  EXPECT_FALSE(grammar);
  return grammar ? "" : grammar.error().str();
}

TEST(Spec, ChoicesAreTheirStringsAndNothingElse) {
  const Spec spec{SpecKind::kChoice, R"(["yes", "yes, sir", "n\u00f6", "a\"b.*"])"};
  for (const char* text : {"yes", "yes, sir", "nö", "a\"b.*"}) EXPECT_TRUE(accepts(spec, text));
  for (const char* text : {"", "ye", "yes,", "yesyes", "\"yes\"", "no", "a\"bx"})
    EXPECT_FALSE(accepts(spec, text)) << text;
  EXPECT_TRUE(accepts({SpecKind::kChoice, R"(["", "x"])"}, ""));
  EXPECT_TRUE(accepts({SpecKind::kChoice, R"(["", "x"])"}, "x"));
}

TEST(Spec, ChoicesThatAreNoneAreRefused) {
  EXPECT_EQ(refusal({SpecKind::kChoice, "[]"}), "expected a JSON array of at least one string");
  EXPECT_EQ(refusal({SpecKind::kChoice, "\"a\""}), "expected a JSON array of at least one string");
  EXPECT_EQ(refusal({SpecKind::kChoice, R"(["a", 1])"}), "#/1: expected a string, found number");
  EXPECT_NE(refusal({SpecKind::kChoice, "[\"a\""}), "");
}

TEST(Spec, AnObjectIsAnyJsonObject) {
  const Spec spec{SpecKind::kJsonObject, ""};
  EXPECT_TRUE(accepts(spec, R"({"a": [1, {"b": null}]})"));
  EXPECT_FALSE(accepts(spec, "[1]"));
  EXPECT_FALSE(accepts(spec, R"({"a": })"));
}

TEST(Spec, ATextOverTheLimitIsRefusedForEveryKind) {
  for (const SpecKind kind : {SpecKind::kJsonSchema, SpecKind::kRegex, SpecKind::kEbnf,
                              SpecKind::kChoice, SpecKind::kJsonObject}) {
    const std::string found = refusal({kind, std::string(kMaxSpecBytes + 1, 'a')});
    EXPECT_NE(found.find("expected at most 1048576 bytes of " + std::string(to_string(kind))),
              std::string::npos)
        << found;
  }
}

}  // namespace
}  // namespace deepmint::grammar
