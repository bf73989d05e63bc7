#include "grammar/family_calls.h"

#include <gtest/gtest.h>

#include "grammar/matcher.h"
#include "grammar/testing_vocabulary.h"

namespace deepmint::grammar {
namespace {

constexpr TokenId kStop = 256, kOpen = 257, kClose = 258, kThink = 259, kEndThink = 260;

// Marks as the text that they are, or as control tokens, which the texts below spell O, C, T and E.
FamilyMarkup hermes(bool tokens) {
  const auto mark = [&](const char* text, TokenId id) {
    return CallMark{text, tokens ? std::optional<TokenId>(id) : std::nullopt};
  };
  FamilyMarkup out;
  out.open = mark("<tool_call>", kOpen);
  out.close = mark("</tool_call>", kClose);
  out.think = mark("<think>", kThink);
  out.end_think = mark("</think>", kEndThink);
  return out;
}
FamilyMarkup llama() {
  FamilyMarkup out;
  out.prefix = CallMark{"<|python_tag|>", kOpen};
  out.arguments = "parameters";
  return out;
}

std::shared_ptr<const Vocabulary> vocabulary() { return testing::byte_vocabulary(264); }

ToolSignature find(bool strict = true) {
  return {"find",
          json::parse(R"({"type": "object", "properties": {"q": {"type": "string", "minLength": 2},
            "n": {"$ref": "#/$defs/small"}}, "required": ["q"], "additionalProperties": false,
            "$defs": {"small": {"type": "integer", "minimum": 1, "maximum": 9}}})")
              .value(),
          strict};
}

std::shared_ptr<const Compiled> compiled(const FamilyMarkup& markup,
                                         std::vector<ToolSignature> tools,
                                         const ToolCallOptions& options = {}) {
  auto grammar = family_call_grammar(markup, tools, options);
  EXPECT_TRUE(grammar) << grammar.error().str();
  return Compiled::make(std::move(*grammar), vocabulary()).value();
}
ToolCallOptions options(bool required, bool single = false) {
  return {.required = required, .opened = false, .single = single, .answer = {}};
}

bool accepts(const std::shared_ptr<const Compiled>& c, std::string_view text, bool tokens) {
  Matcher m(c);
  for (const char byte : text) {
    TokenId id = static_cast<uint8_t>(byte);
    if (const size_t mark = std::string_view("OCTE").find(byte);
        tokens && mark != std::string_view::npos)
      id = kOpen + static_cast<TokenId>(mark);
    std::vector<uint32_t> bits(c->vocabulary().mask_words());
    m.mask(bits);
    const bool allowed = (bits[static_cast<size_t>(id) / 32] >> (id % 32)) & 1;
    EXPECT_EQ(allowed, m.allowed(id));
    if (!m.accept(id)) return false;
  }
  return m.may_stop();
}

class Hermes : public ::testing::TestWithParam<bool> {
 protected:
  // O, C, T and E in `text` become the marks that this markup has.
  bool accepts_marked(const std::shared_ptr<const Compiled>& c, std::string_view text) {
    if (GetParam()) return accepts(c, text, true);
    std::string spelled;
    for (const char b : text) {
      if (b == 'O')
        spelled += "<tool_call>";
      else if (b == 'C')
        spelled += "</tool_call>";
      else if (b == 'T')
        spelled += "<think>";
      else if (b == 'E')
        spelled += "</think>";
      else
        spelled += b;
    }
    return accepts(c, spelled, false);
  }
  std::shared_ptr<const Compiled> of(std::vector<ToolSignature> tools,
                                     const ToolCallOptions& o) const {
    return compiled(hermes(GetParam()), std::move(tools), o);
  }
  const std::string good_ = "O\n{\"name\": \"find\", \"arguments\": {\"q\": \"ab\", \"n\": 3}}\nC";
};
INSTANTIATE_TEST_SUITE_P(Marks, Hermes, ::testing::Bool());

TEST_P(Hermes, ACallFollowsItsSchemaAndTextStandsAround) {
  const auto c = of({find()}, options(false));
  for (const std::string& text :
       {std::string(), std::string("just text, 1 < 2"), good_, "one moment.\n" + good_,
        good_ + "\n" + good_, good_ + " and " + good_ + " done", "T\nhm </thin E\n\n" + good_,
        std::string("TEtext"), std::string("O{\"name\":\"find\",\"arguments\":{\"q\":\"ab\"}}C")})
    EXPECT_TRUE(accepts_marked(c, text)) << text;
  for (const std::string& text :
       {std::string("O"), std::string("O\n{\"name\": \"find\", \"arguments\": {\"q\": \"a\"}}\nC"),
        std::string("O\n{\"name\": \"find\", \"arguments\": {\"q\": \"ab\", \"n\": 10}}\nC"),
        std::string("O\n{\"name\": \"g\", \"arguments\": {\"q\": \"ab\"}}\nC"),
        std::string("O\n{\"name\": \"find\", \"arguments\": {\"q\": \"ab\", \"x\": 1}}\nC"),
        std::string("O\n{\"arguments\": {\"q\": \"ab\"}, \"name\": \"find\"}\nC"), good_ + "O"})
    EXPECT_FALSE(accepts_marked(c, text)) << text;
  // With control tokens the mark must not be spelled either: it would be read as a call.
  EXPECT_FALSE(accepts(c, "a <tool_call> b", GetParam()));
}

TEST_P(Hermes, ForcedCallsAreNothingElse) {
  const auto c = of({find(), {"any", json::Value(), false}}, options(true));
  EXPECT_TRUE(accepts_marked(c, good_));
  EXPECT_TRUE(accepts_marked(c, "\n\n" + good_ + "\n" + good_));
  EXPECT_TRUE(accepts_marked(c, "T why E\n\n" + good_));
  EXPECT_TRUE(accepts_marked(c, "O{\"name\":\"any\",\"arguments\":{\"x\":[1]}}C"));
  for (const std::string& text : {std::string(), "text " + good_, good_ + " text",
                                  std::string("O{\"name\":\"any\",\"arguments\":[]}C")})
    EXPECT_FALSE(accepts_marked(c, text)) << text;
  const auto single = of({find()}, options(true, true));
  EXPECT_TRUE(accepts_marked(single, good_));
  EXPECT_FALSE(accepts_marked(single, good_ + "\n" + good_));
}

TEST_P(Hermes, OneCallAtMost) {
  const auto c = of({find()}, options(false, true));
  EXPECT_TRUE(accepts_marked(c, "text"));
  EXPECT_TRUE(accepts_marked(c, "text " + good_));
  EXPECT_FALSE(accepts_marked(c, good_ + "\n" + good_));
}

TEST_P(Hermes, AnAnswerInItsFormatOrCalls) {
  ToolCallOptions o;
  o.answer = Spec{SpecKind::kRegex, ".*"};
  const auto c = of({find()}, o);
  EXPECT_TRUE(accepts_marked(c, "anything"));
  EXPECT_TRUE(accepts_marked(c, good_));
  EXPECT_FALSE(accepts(c, "x<tool_call>", GetParam()));
  EXPECT_FALSE(accepts_marked(c, "anything " + good_));
  o.answer = Spec{SpecKind::kJsonSchema, R"({"type": "integer"})"};
  const auto number = of({find()}, o);
  EXPECT_TRUE(accepts_marked(number, "17"));
  EXPECT_TRUE(accepts_marked(number, good_));
  EXPECT_FALSE(accepts_marked(number, "text"));
}

TEST(FamilyCalls, Llama3RepliesAreCallsOrText) {
  const std::string good = R"({"name": "find", "parameters": {"q": "ab"}})";
  const auto c = compiled(llama(), {find()});
  for (const std::string& text : {std::string("text"), std::string(), std::string("[{"), good,
                                  "O" + good, " \n" + good + "; " + good})
    EXPECT_TRUE(accepts(c, text, true)) << text;
  for (const std::string& text :
       {std::string("{"), std::string(" {}"), "text O" + good, good + " text",
        std::string(R"({"name": "find", "parameters": {"q": "a"}})")})
    EXPECT_FALSE(accepts(c, text, true)) << text;
  const auto forced = compiled(llama(), {find()}, options(true, true));
  EXPECT_TRUE(accepts(forced, good, true));
  EXPECT_FALSE(accepts(forced, "text", true));
  EXPECT_FALSE(accepts(forced, good + good, true));
}

TEST(FamilyCalls, WhatCannotBeDoneIsNamed) {
  const auto refusal = [](const FamilyMarkup& markup, ToolSignature tool, ToolCallOptions o) {
    const auto grammar = family_call_grammar(markup, std::span(&tool, 1), o);
    EXPECT_FALSE(grammar);
    return grammar ? "" : grammar.error().str();
  };
  const auto schema = [](const char* text) {
    return ToolSignature{"f", json::parse(text).value(), true};
  };
  EXPECT_EQ(refusal(hermes(true), schema(R"({"type": "string"})"), {}),
            "tools[0]: parameters: #/type: expected \"object\"");
  EXPECT_EQ(refusal(hermes(true), schema("[]"), {}),
            "tools[0]: parameters: expected a schema of an object");
  EXPECT_EQ(refusal(hermes(true), schema(R"({"type": "object", "required": ["a"],
                                            "properties": {"a": false}})"),
                    {}),
            "tools[0]: expected parameters that some call satisfies");
  ToolSignature custom = schema("{}");
  custom.input = Spec{SpecKind::kRegex, "a"};
  EXPECT_EQ(refusal(hermes(true), custom, {}),
            "tools[0]: tools with a grammar cannot be enforced here");
  ToolCallOptions o;
  o.answer = Spec{SpecKind::kJsonObject, ""};
  EXPECT_NE(refusal(llama(), find(), o).find("whose calls are JSON themselves"), std::string::npos);
}

}  // namespace
}  // namespace deepmint::grammar
