// A DeepSeek model behind /v1/chat/completions: the recipe's prompts go to the engine, and its
// reading of the token ids to the client, whole and streamed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "recipe/convert.h"
#include "recipe/prompt.h"
#include "server/testing/server_fixture.h"

namespace deepmint {
namespace {

using deepmint::testing::assemble;
using deepmint::testing::Assembled;
using deepmint::testing::chat_body;
using deepmint::testing::deepseek_ids;
using deepmint::testing::deepseek_tokenizer;
using deepmint::testing::kDeepSeekEnd;
using deepmint::testing::Reply;
using deepmint::testing::ScriptedEngine;
using deepmint::testing::Stream;
using nlohmann::json;
using ::testing::HasSubstr;

constexpr std::string_view kCalls =
    "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"find\">\n<｜DSML｜ parameter name=\"q\" "
    "string=\"true\">a \"b\"</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n"
    "<｜DSML｜ invoke name=\"exec\">\n<｜DSML｜ parameter name=\"input\" string=\"true\">ls\n-l"
    "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";

class DeepSeek : public deepmint::testing::ServerTest {
 protected:
  void start_playing(Play play) {
    start([play](const GenerationRequest&) { return play; }, {}, ScriptedEngine::Mode::kFree,
          [](ServedModel& m) {
            Engine* engine = m.engine;
            m = deepmint::testing::deepseek_model(*engine);
            ASSERT_TRUE(m.chat) << m.chat.error().str();
          });
  }
  void start_saying(std::string_view text) {
    std::vector<TokenId> tokens = deepseek_ids(text);
    tokens.push_back(kDeepSeekEnd);
    start_playing({.tokens = tokens});
  }
  std::vector<TokenId> prompt() { return engine_->requests().back().tokens; }
  std::string prompt_text() { return deepseek_tokenizer()->decode(prompt()); }
  static json tools() {
    return {{{"type", "function"}, {"function", {{"name", "find"}}}},
            {{"type", "custom"}, {"custom", {{"name", "exec"}}}}};
  }
  std::string refusal(const json& fields) {
    const Reply reply = chat(chat_body(fields));
    EXPECT_EQ(reply.status, 400) << reply.body;
    return json::parse(reply.body)["error"]["message"];
  }
};

TEST_F(DeepSeek, ThePromptIsTheRecipes) {
  start_saying("hi</think>yes");
  json body = chat_body({{"tools", tools()}, {"reasoning_effort", "max"}});
  body["messages"] = {{{"role", "system"}, {"content", "Be <｜User｜> brief."}},
                      {{"role", "user"}, {"content", "a</think>b"}},
                      {{"role", "assistant"},
                       {"reasoning_content", "r"},
                       {"content", ""},
                       {"tool_calls",
                        {{{"id", "c1"},
                          {"type", "function"},
                          {"function", {{"name", "find"}, {"arguments", "{\"q\": 1}"}}}}}}},
                      {{"role", "tool"}, {"tool_call_id", "c1"}, {"content", "found"}}};
  whole(body);
  const auto parsed = deepmint::json::parse(body.dump());
  const auto request = recipe::convert_chat(*parsed, {});
  ASSERT_TRUE(request) << request.error().str();
  const recipe::Prompt expected = recipe::render_prompt(request->conversation, {});
  EXPECT_EQ(prompt(), deepseek_tokenizer()->encode(expected.segments()));
  EXPECT_THAT(prompt_text(), ::testing::EndsWith("<｜Assistant｜><think>"));
  // The caller's control strings are ordinary characters: one user turn of theirs, and one that
  // the results open.
  const std::vector<TokenId> ids = prompt();
  EXPECT_EQ(std::count(ids.begin(), ids.end(), deepseek_ids("<｜User｜>")[0]), 2);
}

TEST_F(DeepSeek, ThinkingAndEffortReachThePrompt) {
  start_saying("x");
  const auto ends = [&](const json& fields) {
    whole(chat_body(fields));
    return prompt_text();
  };
  const std::string by_default = ends(json::object());
  EXPECT_THAT(by_default, ::testing::EndsWith("<think>"));
  EXPECT_THAT(ends({{"thinking", {{"type", "disabled"}}}}), ::testing::EndsWith("</think>"));
  EXPECT_THAT(ends({{"reasoning_effort", "none"}}), ::testing::EndsWith("</think>"));
  EXPECT_NE(ends({{"reasoning_effort", "max"}}), by_default);
  EXPECT_EQ(ends({{"reasoning_effort", "high"}}), by_default);
  EXPECT_THAT(ends({{"response_format", {{"type", "json_object"}}},
                    {"messages", {{{"role", "user"}, {"content", "json please"}}}}}),
              HasSubstr("## Response Format"));
}

TEST_F(DeepSeek, ReasoningTextAndCallsWholeAndStreamed) {
  start_saying("why?</think>One moment." + std::string(kCalls));
  const json fields = {{"tools", tools()}, {"seed", 7}};
  const json reply = whole(chat_body(fields));
  const json& message = reply["choices"][0]["message"];
  EXPECT_EQ(message["reasoning_content"], "why?");
  EXPECT_EQ(message["content"], "One moment.");
  ASSERT_EQ(message["tool_calls"].size(), 2u) << reply;
  EXPECT_EQ(message["tool_calls"][0]["function"],
            (json{{"name", "find"}, {"arguments", R"({"q": "a \"b\""})"}}));
  EXPECT_EQ(message["tool_calls"][1]["type"], "custom");
  EXPECT_EQ(message["tool_calls"][1]["custom"], (json{{"name", "exec"}, {"input", "ls\n-l"}}));
  EXPECT_EQ(reply["choices"][0]["finish_reason"], "tool_calls");
  EXPECT_EQ(reply["seed"], 7);
  EXPECT_EQ(reply["usage"]["prompt_tokens"], prompt().size());
  EXPECT_EQ(reply["usage"]["completion_tokens_details"]["reasoning_tokens"], 4);
  EXPECT_EQ(reply["model"], "test-model");
  EXPECT_THAT(reply["system_fingerprint"].get<std::string>(), ::testing::StartsWith("fp_"));

  json with_usage = fields;
  with_usage["stream_options"] = {{"include_usage", true}};
  with_usage["stream"] = true;
  const Stream stream = streamed(chat_body(with_usage));
  EXPECT_TRUE(stream.done);
  const Assembled client = assemble(stream);
  EXPECT_EQ(client.reasoning, "why?");
  EXPECT_EQ(client.content, "One moment.");
  EXPECT_EQ(client.finish_reason, "tool_calls");
  ASSERT_EQ(client.calls.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    json call = message["tool_calls"][i];
    json other = client.calls[i];
    call.erase("id"), other.erase("id");  // they name the response
    EXPECT_EQ(call, other);
  }
  EXPECT_EQ(stream.events.back()["choices"], json::array());
  EXPECT_EQ(stream.events.back()["usage"], reply["usage"]);
  EXPECT_EQ(stream.events.front()["seed"], 7);
}

// A marker is a token. Ordinary tokens that spell one are text, except where a model with tools
// begins a line with them and has not written a genuine one: then it meant to call.
TEST_F(DeepSeek, TheSameCharactersInTextAreText) {
  const std::string text = "See </think> and <｜DSML｜ calls> here.";
  start_playing({.tokens = deepmint::testing::bytes_of(text)});
  json fields = {{"thinking", {{"type", "disabled"}}}};
  for (int with_tools = 0; with_tools < 2; ++with_tools) {
    if (with_tools == 1) fields["tools"] = tools();
    const json reply = whole(chat_body(fields));
    EXPECT_EQ(reply["choices"][0]["message"]["content"], text);
    EXPECT_EQ(reply["choices"][0]["finish_reason"], "stop");
  }
}

TEST_F(DeepSeek, TheEngineStopsBehindTheCallsAndAtStopStrings) {
  std::vector<TokenId> tokens = deepseek_ids("</think>" + std::string(kCalls));
  start_playing({.tokens = tokens, .hang = true});
  const json reply = whole(chat_body({{"tools", tools()}}));
  EXPECT_EQ(reply["choices"][0]["finish_reason"], "tool_calls");
  EXPECT_EQ(reply["usage"]["completion_tokens"], tokens.size());
  engine_->wait_idle();
  EXPECT_EQ(engine_->cancelled(), 1);

  const json stopped = whole(chat_body({{"tools", tools()}, {"stop", "DSML"}}));
  EXPECT_EQ(stopped["choices"][0]["finish_reason"], "tool_calls");  // markup is not text
}

TEST_F(DeepSeek, StopStringsEndTheAnswerAndNotTheReasoning) {
  std::vector<TokenId> tokens = deepseek_ids("an END here</think>text END more");
  start_playing({.tokens = tokens, .hang = true});
  const json reply = whole(chat_body({{"stop", {"END"}}}));
  EXPECT_EQ(reply["choices"][0]["message"]["reasoning_content"], "an END here");
  EXPECT_EQ(reply["choices"][0]["message"]["content"], "text ");
  EXPECT_EQ(reply["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(reply["usage"]["completion_tokens"], tokens.size() - 5);
  const Assembled client = assemble(streamed(chat_body({{"stop", {"END"}}})));
  EXPECT_EQ(client.content, "text ");
}

TEST_F(DeepSeek, SeveralChoicesShareOneUsage) {
  start(
      [](const GenerationRequest& r) {
        std::vector<TokenId> tokens =
            deepseek_ids(r.choice == 0 ? "long thought</think>zero" : "t</think>one");
        tokens.push_back(kDeepSeekEnd);
        return Play{.tokens = tokens};
      },
      {}, ScriptedEngine::Mode::kFree,
      [](ServedModel& m) {
        Engine* engine = m.engine;
        m = deepmint::testing::deepseek_model(*engine);
      });
  const json reply = whole(chat_body({{"n", 2}}));
  ASSERT_EQ(reply["choices"].size(), 2u);
  EXPECT_EQ(reply["choices"][0]["message"]["content"], "zero");
  EXPECT_EQ(reply["choices"][1]["message"]["content"], "one");
  EXPECT_EQ(reply["usage"]["completion_tokens"], (12 + 1 + 4 + 1) + (1 + 1 + 3 + 1));
  EXPECT_EQ(reply["usage"]["completion_tokens_details"]["reasoning_tokens"], 13);
  const Stream stream = streamed(
      chat_body({{"n", 2}, {"stream", true}, {"stream_options", {{"include_usage", true}}}}));
  EXPECT_TRUE(stream.done);
  EXPECT_EQ(assemble(stream, 0).content, "zero");
  EXPECT_EQ(assemble(stream, 1).content, "one");
  EXPECT_EQ(stream.events.back()["usage"], reply["usage"]);
  EXPECT_EQ(std::count_if(stream.events.begin(), stream.events.end(),
                          [](const json& e) { return e["choices"].empty(); }),
            1);
}

TEST_F(DeepSeek, LogprobsOfReasoningAndText) {
  start_playing({.tokens = deepseek_ids("ab</think>c"), .logprobs = {-1, -2, -3, -4}});
  const json reply = whole(chat_body({{"logprobs", true}}));
  const json& logprobs = reply["choices"][0]["logprobs"];
  ASSERT_EQ(logprobs["reasoning_content"].size(), 2u) << reply;
  EXPECT_EQ(logprobs["reasoning_content"][1]["token"], "b");
  EXPECT_EQ(logprobs["reasoning_content"][1]["logprob"], -2.0);
  ASSERT_EQ(logprobs["content"].size(), 1u);
  EXPECT_EQ(logprobs["content"][0]["logprob"], -4.0);
}

TEST_F(DeepSeek, SamplingAndLimitsReachTheEngine) {
  start_saying("x");
  whole(chat_body({{"temperature", 0.5},
                   {"top_k", 3},
                   {"max_completion_tokens", 9},
                   {"cache_salt", "s"},
                   {"prefill_tail", "bounded"},
                   {"prefill_tail_keep_tokens", 200},
                   {"prefix_replay", "bounded"},
                   {"seed", 5}}));
  const GenerationRequest request = engine_->requests().back();
  EXPECT_EQ(request.sampling.temperature, 0.5f);
  EXPECT_EQ(request.sampling.top_k, 3);
  EXPECT_EQ(request.sampling.seed, 5u);
  EXPECT_EQ(request.max_tokens, 9);
  EXPECT_EQ(request.cache_salt, "s");
  EXPECT_EQ(request.tail_keep_tokens, 200);
  EXPECT_TRUE(request.bounded_replay);
  EXPECT_EQ(request.stop_ids, std::vector<TokenId>{kDeepSeekEnd});
  EXPECT_EQ(request.mask, nullptr);
  // Claude Code's suffix; and no name at all.
  json body = chat_body();
  body["model"] = "test-model[1m]";
  whole(body);
  body.erase("model");
  whole(body);
}

// Of a text after the prompt: what the engine may sample of it, and then the end of the reply.
TEST_F(DeepSeek, AFormatOrAForcedCallBindsBehindTheThinking) {
  start_saying("x");
  const auto prefix = [&](const json& fields, const std::string& text) {
    whole(chat_body(fields));
    const auto mask = engine_->requests().back().mask;
    if (mask == nullptr) return std::string("no mask");
    std::vector<TokenId> ids = deepseek_ids(text);
    ids.push_back(kDeepSeekEnd);
    ids.resize(deepmint::testing::admitted(*mask, ids));
    return deepseek_tokenizer()->decode(ids);
  };
  const std::string end = "<｜end▁of▁sentence｜>", answer = R"({"n": 1})";
  json format = {{"response_format",
                  {{"type", "json_schema"},
                   {"json_schema",
                    {{"name", "n"},
                     {"schema",
                      {{"type", "object"},
                       {"properties", {{"n", {{"type", "integer"}}}}},
                       {"required", {"n"}},
                       {"additionalProperties", false}}}}}}}};
  EXPECT_EQ(prefix(format, "any {\"n</think>" + answer), "any {\"n</think>" + answer + end);
  EXPECT_EQ(prefix(format, "hm"), "hm");  // no end before the answer
  EXPECT_EQ(prefix(format, "</think>sure"), "</think>");
  format["thinking"] = {{"type", "disabled"}};
  EXPECT_EQ(prefix(format, answer), answer + end);
  EXPECT_EQ(prefix(format, "sure"), "");

  const json forced = {{"tools", tools()}, {"tool_choice", "required"}};
  const std::string calls(kCalls);
  EXPECT_EQ(prefix(forced, "why?</think>" + calls), "why?</think>" + calls + end);
  EXPECT_EQ(prefix(forced, "</think>no"), "</think>");

  json custom = {{"type", "custom"},
                 {"custom",
                  {{"name", "exec"},
                   {"format",
                    {{"type", "grammar"},
                     {"grammar", {{"syntax", "regex"}, {"definition", "ls( -[a-z])?"}}}}}}}};
  const auto exec = [](const std::string& input) {
    return "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"exec\">\n<｜DSML｜ parameter "
           "name=\"input\" string=\"true\">" +
           input + "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
  };
  const json with_custom = {{"tools", {custom}}};
  EXPECT_EQ(prefix(with_custom, "</think>" + exec("ls -l")), "</think>" + exec("ls -l") + end);
  EXPECT_EQ(prefix(with_custom, "</think>" + exec("rm")),
            "</think>" + exec("rm").substr(0, exec("rm").find("rm")));

  whole(chat_body({{"response_format", format["response_format"]}, {"n", 2}}));
  const auto requests = engine_->requests();
  EXPECT_NE(requests.end()[-1].mask, requests.end()[-2].mask);  // each choice is on its own
}

TEST_F(DeepSeek, WhatIsNotServedIsRefusedInOneLine) {
  start_saying("x");
  const json grammar = {{"type", "grammar"},
                        {"grammar", {{"syntax", "lark"}, {"definition", "start: /a/"}}}};
  EXPECT_THAT(
      refusal(
          {{"tools", {{{"type", "custom"}, {"custom", {{"name", "exec"}, {"format", grammar}}}}}}}),
      HasSubstr(
          "tools[0].format.syntax: expected \"regex\": grammars in \"lark\" are not supported"));
  EXPECT_THAT(
      refusal({{"tools",
                {{{"type", "function"},
                  {"function",
                   {{"name", "f"},
                    {"strict", true},
                    {"parameters",
                     {{"type", "object"},
                      {"properties", {{"a", {{"type", "string"}, {"pattern", "(?=x)"}}}}}}}}}}}}}),
      HasSubstr("tools[0]: parameters: #/properties/a"));
  EXPECT_THAT(
      refusal({{"messages",
                {{{"role", "user"},
                  {"content",
                   {{{"type", "image_url"}, {"image_url", {{"url", "http://x/a.png"}}}}}}}}}}),
      HasSubstr("messages[0].content[0]: "));
  EXPECT_THAT(refusal({{"chat_template_kwargs", {{"thinking", true}}}}),
              HasSubstr("expected thinking and reasoning_effort"));
  EXPECT_EQ(refusal({{"messages", 5}}),
            "invalid request body: invalid type: integer `5`, expected a sequence");
  EXPECT_EQ(refusal({{"messages", json::array()}}), "Empty input messages");
  EXPECT_THAT(refusal({{"temperature", "hot"}}), HasSubstr("temperature: expected a number"));
  EXPECT_TRUE(engine_->requests().empty());
  // Without thinking the prompt itself opens the calls, so that a call can be asked for.
  whole(chat_body(
      {{"tools", tools()}, {"tool_choice", "required"}, {"thinking", {{"type", "disabled"}}}}));
  EXPECT_THAT(prompt_text(), ::testing::EndsWith("</think>\n\n<｜DSML｜ calls>\n"));
}

TEST_F(DeepSeek, ATokenizerOfAnotherModelIsRefusedByName) {
  const auto chat =
      recipe::load_chat_template("", "deepseek_v41", *deepmint::testing::test_tokenizer());
  ASSERT_FALSE(chat);
  EXPECT_THAT(chat.error().str(), HasSubstr("<｜begin▁of▁sentence｜>"));
}

}  // namespace
}  // namespace deepmint
