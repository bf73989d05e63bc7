#include "recipe/family_parser.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace deepmint::recipe {
namespace {

using Calls = ReplyFormat::Calls;

// "r:…|t:…|c:name(arguments)|": pieces of one kind joined.
struct Record final : OutputSink {
  void put(char kind, std::string_view s) {
    if (kind != last) out += std::string(1, kind) + ":";
    last = kind;
    out += s;
  }
  void reasoning(std::string_view s) override { put('r', s); }
  void text(std::string_view s) override { put('t', s); }
  void tool_begin(std::string_view name) override {
    last = 0;
    out += "|c:" + std::string(name) + "(";
  }
  void tool_arguments(std::string_view s) override { out += s; }
  void tool_end(bool complete) override { out += complete ? ")|" : "…)|"; }
  char last = 0;
  std::string out;
};

std::string parse(Calls calls, std::string_view text, size_t step, bool thinks = false,
                  bool starts_in_thinking = false, bool tools = true) {
  Record record;
  FamilyParser parser({calls, thinks}, {tools, starts_in_thinking}, record);
  for (size_t i = 0; i < text.size(); i += step) parser.push(text.substr(i, step));
  parser.finish();
  return record.out;
}

// The whole text, after checking that every chunk size and every single cut give the same.
std::string checked(Calls calls, std::string_view text, bool thinks = false,
                    bool starts_in_thinking = false, bool tools = true) {
  const std::string whole = parse(calls, text, text.size() + 1, thinks, starts_in_thinking, tools);
  for (size_t step = 1; step <= text.size(); ++step)
    EXPECT_EQ(parse(calls, text, step, thinks, starts_in_thinking, tools), whole)
        << "chunks of " << step;
  for (size_t cut = 1; cut < text.size(); ++cut) {
    Record record;
    FamilyParser parser({calls, thinks}, {tools, starts_in_thinking}, record);
    parser.push(text.substr(0, cut));
    parser.push(text.substr(cut));
    parser.finish();
    EXPECT_EQ(record.out, whole) << "cut at " << cut;
  }
  return whole;
}

TEST(FamilyParser, Hermes) {
  const Calls h = Calls::kHermes;
  EXPECT_EQ(checked(h, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>"),
            "|c:f({\"a\":1})|");
  EXPECT_EQ(checked(h,
                    "Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n"
                    "</tool_call>\n<tool_call>\n{\"name\": \"g\"}\n</tool_call>\n"),
            "t:Let me see.|c:f({})||c:g({})|");
  EXPECT_EQ(checked(h,
                    "<tool_call>{\"name\":\"f\",\"arguments\":{\"s\":\"</tool_call> } \\\" {\"}}"
                    "</tool_call> after"),
            "|c:f({\"s\":\"</tool_call> } \\\" {\"})|t: after");
  EXPECT_EQ(checked(h, "<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": 2}\"}</tool_call>"),
            "|c:f({\"a\": 2})|");
}

TEST(FamilyParser, WhatIsNoCallIsText) {
  const Calls h = Calls::kHermes;
  for (const char* text :
       {"<tool_call>nothing</tool_call>", "<tool_call>\n{\"nam\": 1}\n</tool_call> x",
        "<tool_call>{\"name\": \"f\", \"arguments\": {", "a <tool", " lead and trail \n",
        "<tool_call>", "{\"name\": \"f\", \"parameters\": {}}", "<tool_call>{broken}</tool_call>",
        "< <t <tool_call"})
    EXPECT_EQ(checked(h, text), "t:" + std::string(text));
  EXPECT_EQ(checked(h, "<tool_call>{\"name\":\"f\"}</tool_call>", false, false, /*tools=*/false),
            "t:<tool_call>{\"name\":\"f\"}</tool_call>");
}

TEST(FamilyParser, Llama3) {
  const Calls l = Calls::kLlama3;
  EXPECT_EQ(checked(l, "{\"name\": \"f\", \"parameters\": {\"a\": \"}\"}}"),
            "|c:f({\"a\":\"}\"})|");
  EXPECT_EQ(checked(l,
                    "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; "
                    "{\"name\": \"g\", \"parameters\": {\"b\": [1]}}"),
            "|c:f({})||c:g({\"b\":[1]})|");
  EXPECT_EQ(checked(l, "{\"answer\": 42} is it"), "t:{\"answer\": 42} is it");
  EXPECT_EQ(checked(l, "See {\"name\": \"f\"}"), "t:See {\"name\": \"f\"}");
  EXPECT_EQ(checked(l, "{\"name\": \"f\", \"par"), "t:{\"name\": \"f\", \"par");
  EXPECT_EQ(checked(l, "<|python_tag|>print(1)"), "t:<|python_tag|>print(1)");
}

TEST(FamilyParser, Mistral) {
  const Calls m = Calls::kMistral;
  EXPECT_EQ(checked(m,
                    "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": \"x\"}, "
                    "{\"name\": \"g\", \"arguments\": {}}]"),
            "|c:f({\"a\":1})||c:g({})|");
  EXPECT_EQ(checked(m, "[TOOL_CALLS] {\"name\": \"f\", \"arguments\": {}}"), "|c:f({})|");
  EXPECT_EQ(checked(m, "text [TOOL_CALLS]f[ARGS]{\"a\": 1}"), "t:text|c:f({\"a\":1})|");
  EXPECT_EQ(checked(m, "[TOOL_CALLS] none\n of it"), "t:[TOOL_CALLS] none\n of it");
  EXPECT_EQ(checked(m, "[TOOL_CALLS][{\"name\""), "t:[TOOL_CALLS][{\"name\"");
}

TEST(FamilyParser, DeepSeek) {
  const Calls d = Calls::kDeepSeek;
  EXPECT_EQ(
      checked(
          d,
          "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
          "{\"a\": \"```\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>"
          "g\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
      "|c:f({\"a\":\"```\"})||c:g({})|");
}

TEST(FamilyParser, Thinking) {
  EXPECT_EQ(checked(Calls::kNone, "<think>\nso\n\nit is\n</think>\n\nyes\n", true),
            "r:so\n\nit ist:yes\n");
  EXPECT_EQ(checked(Calls::kNone, "so\n</think>\n\nyes", true, /*starts_in_thinking=*/true),
            "r:sot:yes");
  EXPECT_EQ(checked(Calls::kNone, "no <think> here</think>", true), "t:no <think> here</think>");
  EXPECT_EQ(checked(Calls::kNone, "<think>cut off </thin", true), "r:cut off </thin");
  EXPECT_EQ(checked(Calls::kNone, "<think>a</think>", false), "t:<think>a</think>");
  EXPECT_EQ(checked(Calls::kHermes,
                    "<think>\n<tool_call> or not\n</think>\n\n<tool_call>\n"
                    "{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
                    true),
            "r:<tool_call> or not|c:f({})|");
  EXPECT_EQ(checked(Calls::kHermes, "<think>\n\n</think>\n\nhi", true), "t:hi");
}

TEST(FamilyParser, RandomTextsAreTheSameHoweverTheyAreCut) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const std::vector<std::string> pieces = {"<think>",
                                           "</think>",
                                           "<tool_call>",
                                           "</tool_call>",
                                           "{\"name\": \"f\", \"arguments\": {",
                                           "}",
                                           "}}",
                                           "\n",
                                           " ",
                                           "text",
                                           "[TOOL_CALLS]",
                                           "[",
                                           "]",
                                           ",",
                                           "f[ARGS]{}",
                                           "\"",
                                           "\\",
                                           "<",
                                           "{",
                                           "<|python_tag|>",
                                           "<｜tool▁calls▁begin｜>",
                                           "<｜tool▁call▁begin｜>",
                                           "<｜tool▁sep｜>f\n",
                                           "<｜tool▁call▁end｜>"};
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (size_t n = random() % 12; n > 0; --n) text += pieces[random() % pieces.size()];
    const auto calls = static_cast<Calls>(random() % 5);
    const bool thinks = random() % 2, inside = random() % 4 == 0;
    const std::string whole = parse(calls, text, text.size() + 1, thinks, inside);
    for (const size_t step : {1, 2, 3, 7})
      ASSERT_EQ(parse(calls, text, step, thinks, inside), whole) << text << " by " << step;
  }
}

TEST(FamilyParser, LongArgumentsTakeLinearTime) {
  std::string text = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"";
  text += std::string(2'000'000, 'x') + "\"}}</tool_call>";
  EXPECT_EQ(parse(Calls::kHermes, text, 4).size(), 2'000'000 + 15u);
}

TEST(ReplyFormat, IsReadFromTheTemplate) {
  EXPECT_EQ(reply_format_of("tools <tool_call> </think>").calls, Calls::kHermes);
  EXPECT_TRUE(reply_format_of("tools <tool_call> </think>").thinks);
  EXPECT_EQ(reply_format_of("tools [TOOL_CALLS]").calls, Calls::kMistral);
  EXPECT_EQ(reply_format_of("tools <｜tool▁calls▁begin｜>").calls, Calls::kDeepSeek);
  EXPECT_EQ(reply_format_of("tools <|start_header_id|> <|python_tag|>").calls, Calls::kLlama3);
  EXPECT_EQ(reply_format_of("<|im_start|>").calls, Calls::kNone);
}

}  // namespace
}  // namespace deepmint::recipe
