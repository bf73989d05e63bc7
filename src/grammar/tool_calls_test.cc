#include "grammar/tool_calls.h"

#include <gtest/gtest.h>

#include "grammar/matcher.h"
#include "grammar/testing_vocabulary.h"

namespace deepmint::grammar {
namespace {

constexpr TokenId kStop = 256, kMark = 257;
const ToolMarkup kV41{kMark, " calls", " invoke", " parameter"};

std::shared_ptr<const Vocabulary> vocabulary() { return testing::byte_vocabulary(260); }

ToolSignature weather(bool strict = true) {
  return {"weather",
          json::parse(R"({"type": "object", "properties": {
            "city": {"type": "string", "minLength": 1},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
            "unit": {"enum": ["C", "F", null]},
            "at": {"$ref": "#/$defs/point"}},
            "required": ["city", "unit"], "additionalProperties": false,
            "$defs": {"point": {"type": "array", "items": {"type": "number"}, "maxItems": 2}}})")
              .value(),
          strict};
}

std::shared_ptr<const Compiled> compiled(std::vector<ToolSignature> tools,
                                         const ToolCallOptions& options) {
  auto grammar = tool_call_grammar(kV41, tools, options);
  EXPECT_TRUE(grammar) << grammar.error().str();
  return Compiled::make(std::move(*grammar), vocabulary()).value();
}

// `M` stands for the control token. Whether the text is a whole reply.
bool accepts(const std::shared_ptr<const Compiled>& c, std::string_view text) {
  Matcher m(c);
  for (const char byte : text) {
    const TokenId id = byte == 'M' ? kMark : static_cast<uint8_t>(byte);
    std::vector<uint32_t> bits(c->vocabulary().mask_words());
    m.mask(bits);
    const bool allowed = (bits[static_cast<size_t>(id) / 32] >> (id % 32)) & 1;
    EXPECT_EQ(allowed, m.allowed(id));
    if (!m.accept(id)) return false;
  }
  return m.may_stop();
}

std::string call(std::string_view parameters, std::string_view name = "weather") {
  return "<M invoke name=\"" + std::string(name) + "\">\n" + std::string(parameters) +
         "\n</M invoke>";
}
std::string block(std::string_view calls) {
  return "\n\n<M calls>\n" + std::string(calls) + "\n</M calls>";
}
std::string text_of(std::string_view name, std::string_view value) {
  return "<M parameter name=\"" + std::string(name) + "\" string=\"true\">" + std::string(value) +
         "</M parameter>";
}
std::string json_of(std::string_view name, std::string_view value) {
  return "<M parameter name=\"" + std::string(name) + "\" string=\"false\">" + std::string(value) +
         "</M parameter>";
}

TEST(ToolCalls, StrictParametersFollowTheirSchemas) {
  const auto c =
      compiled({weather()}, {.required = true, .opened = false, .single = false, .answer = {}});
  const std::string city = text_of("city", "Zürich </b> \"x\"\n"), unit = text_of("unit", "C");
  EXPECT_TRUE(accepts(c, block(call(city + "\n" + unit))));
  EXPECT_TRUE(
      accepts(c, block(call(city + "\n" + json_of("days", "3") + "\n" + json_of("unit", "null")))));
  EXPECT_TRUE(accepts(c, block(call(city + "\n" + unit + "\n" + json_of("at", "[1.5, 2]")))));
  EXPECT_TRUE(accepts(c, block(call(city + "\n" + unit) + "\n" + call(city + "\n" + unit))));
  EXPECT_FALSE(accepts(c, block(call(city))));                                    // unit is missing
  EXPECT_FALSE(accepts(c, block(call(unit + "\n" + city))));                      // order
  EXPECT_FALSE(accepts(c, block(call(text_of("city", "") + "\n" + unit))));       // minLength
  EXPECT_FALSE(accepts(c, block(call(city + "\n" + text_of("unit", "K")))));      // enum
  EXPECT_FALSE(accepts(c, block(call(city + "\n" + json_of("unit", "\"C\"")))));  // strings are raw
  EXPECT_FALSE(accepts(c, block(call(city + "\n" + json_of("days", "10") + "\n" + unit))));
  EXPECT_FALSE(accepts(c, block(call(city + "\n" + unit + "\n" + json_of("at", "[1, 2, 3]")))));
  EXPECT_FALSE(accepts(c, block(call(city + "\n" + unit, "other"))));
  EXPECT_FALSE(accepts(c, "Sure." + block(call(city + "\n" + unit))));
  EXPECT_FALSE(accepts(c, ""));
}

TEST(ToolCalls, TextUntilTheCallsBegin) {
  const auto c = compiled({weather(), {"noop", json::Value(), true}}, {});
  EXPECT_TRUE(accepts(c, "Just text with <tags> and <, nothing else."));
  EXPECT_TRUE(accepts(c, ""));
  EXPECT_TRUE(accepts(c, "I look." + block(call("", "noop"))));
  EXPECT_FALSE(accepts(c, "I look." + block(call("", "noop")) + "more"));
  EXPECT_FALSE(accepts(c, "no mark without its bracket M"));
  EXPECT_FALSE(accepts(c, "<M calls>\n</M calls>"));
}

TEST(ToolCalls, OneCallOnly) {
  const auto c = compiled({{"noop", json::Value(), true}},
                          {.required = true, .opened = false, .single = true, .answer = {}});
  EXPECT_TRUE(accepts(c, block(call("", "noop"))));
  EXPECT_FALSE(accepts(c, block(call("", "noop") + "\n" + call("", "noop"))));
}

TEST(ToolCalls, ThePromptMayHaveOpenedTheBlock) {
  const auto c = compiled({{"noop", json::Value(), true}},
                          {.required = true, .opened = true, .single = false, .answer = {}});
  EXPECT_TRUE(accepts(c, call("", "noop") + "\n" + call("", "noop") + "\n</M calls>"));
  EXPECT_FALSE(accepts(c, block(call("", "noop"))));
}

TEST(ToolCalls, AnAnswerOfAFormBesideCalls) {
  const auto c =
      compiled({{"noop", json::Value(), true}}, {.required = false,
                                                 .opened = false,
                                                 .single = false,
                                                 .answer = Spec{SpecKind::kJsonObject, ""}});
  EXPECT_TRUE(accepts(c, R"({"a": 1})"));
  EXPECT_TRUE(accepts(c, block(call("", "noop"))));
  EXPECT_FALSE(accepts(c, "text"));
}

TEST(ToolCalls, ToolsThatAreNotStrictTakeAnyParameters) {
  const auto c = compiled({weather(false)}, {});
  EXPECT_TRUE(accepts(c, block(call(text_of("x", "y") + "\n" + json_of("z", "{\"a\": [1]}")))));
  EXPECT_TRUE(accepts(c, block(call(""))));
  EXPECT_FALSE(accepts(c, block(call(json_of("z", "{a}")))));
}

TEST(ToolCalls, WhatCannotBeEnforcedIsRefusedWithItsPlace) {
  const auto refusal = [](std::string_view schema, std::string name = "f") {
    const std::vector<ToolSignature> tools{{std::move(name), json::parse(schema).value(), true}};
    const auto grammar = tool_call_grammar(kV41, tools, {});
    EXPECT_FALSE(grammar);
    return grammar ? "" : grammar.error().str();
  };
  EXPECT_EQ(
      refusal(R"({"type": "object", "minProperties": 2})"),
      "tools[0]: parameters: \"minProperties\" cannot be enforced on the parameters of a call");
  EXPECT_NE(refusal(R"({"required": ["x"]})").find("\"x\" is required"), std::string::npos);
  EXPECT_NE(refusal(R"({"properties": {"a": {"type": "string", "pattern": "(?=a)b"}}})")
                .find("tools[0]: parameters: #/properties/a"),
            std::string::npos);
  EXPECT_NE(refusal("{}", "a\"b").find("name"), std::string::npos);
  EXPECT_FALSE(tool_call_grammar(kV41, {}, {}));
}

}  // namespace
}  // namespace deepmint::grammar
