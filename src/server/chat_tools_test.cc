// Tool calls and reasoning of dense models: what the client sees, whole and streamed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/testing/server_fixture.h"

namespace deepmint {
namespace {

using deepmint::testing::assemble;
using deepmint::testing::Assembled;
using deepmint::testing::bytes_of;
using deepmint::testing::chat_body;
using deepmint::testing::kImEnd;
using deepmint::testing::Stream;
using nlohmann::json;

constexpr std::string_view kTemplate =
    "{% for t in tools or [] %}<tool>{{ t.function.name }}</tool>{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "{{ m.content }}<|im_end|>{% endfor %}{{ mood }}<|im_start|>assistant\n"
    "{% if think %}<think>\n{% endif %}{# </think> #}";

class ChatTools : public deepmint::testing::ServerTest {
 protected:
  void start_saying(std::string_view text) {
    std::vector<TokenId> tokens = bytes_of(text);
    tokens.push_back(kImEnd);
    start([tokens](const GenerationRequest&) { return Play{.tokens = tokens}; }, {},
          deepmint::testing::ScriptedEngine::Mode::kFree,
          [](ServedModel& m) {
            m.chat = recipe::load_chat_template(kTemplate, "test", *m.tokenizer);
            ASSERT_TRUE(m.chat) << m.chat.error().str();
          });
  }
  std::string prompt() {
    const auto requests = engine_->requests();
    return deepmint::testing::test_tokenizer()->decode(requests.back().tokens);
  }
  static json with_tools(json fields = json::object()) {
    fields["tools"] = {{{"type", "function"}, {"function", {{"name", "find"}}}}};
    return chat_body(std::move(fields));
  }
};

TEST_F(ChatTools, CallsWholeAndStreamed) {
  start_saying(
      "<think>\nwhy?\n</think>\n\nOne moment.\n<tool_call>\n{\"name\": \"find\", \"arguments\": "
      "{\"q\": \"</tool_call>\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}"
      "\n</tool_call>");
  const json reply = whole(with_tools());
  EXPECT_THAT(prompt(), ::testing::StartsWith("<tool>find</tool>"));
  const json message = reply["choices"][0]["message"];
  EXPECT_EQ(reply["choices"][0]["finish_reason"], "tool_calls");
  EXPECT_EQ(message["content"], "One moment.");
  EXPECT_EQ(message["reasoning_content"], "why?");
  ASSERT_EQ(message["tool_calls"].size(), 2u);
  EXPECT_EQ(message["tool_calls"][0]["function"]["name"], "find");
  EXPECT_EQ(message["tool_calls"][0]["function"]["arguments"], R"({"q":"</tool_call>"})");
  EXPECT_EQ(message["tool_calls"][1]["function"], (json{{"name", "g"}, {"arguments", "{}"}}));
  EXPECT_NE(message["tool_calls"][0]["id"], message["tool_calls"][1]["id"]);

  const Stream stream = streamed(with_tools());
  EXPECT_TRUE(stream.done);
  const Assembled client = assemble(stream);
  EXPECT_EQ(client.content, "One moment.");
  EXPECT_EQ(client.reasoning, "why?");
  EXPECT_EQ(client.finish_reason, "tool_calls");
  ASSERT_EQ(client.calls.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(client.calls[i]["type"], "function");
    EXPECT_EQ(client.calls[i]["function"], message["tool_calls"][i]["function"]);
  }
}

TEST_F(ChatTools, WithoutToolsOrWithChoiceNoneACallIsText) {
  const std::string text = "<tool_call>{\"name\": \"find\", \"arguments\": {}}</tool_call>";
  start_saying(text);
  EXPECT_EQ(whole(chat_body())["choices"][0]["message"]["content"], text);
  const json reply = whole(with_tools({{"tool_choice", "none"}}));
  EXPECT_EQ(reply["choices"][0]["message"]["content"], text);
  EXPECT_EQ(reply["choices"][0]["finish_reason"], "stop");
  EXPECT_THAT(prompt(), ::testing::StartsWith("<|im_start|>"));  // no tools in the prompt
}

TEST_F(ChatTools, HistoryAndKwargsReachTheTemplate) {
  start_saying("ok");
  json body =
      with_tools({{"chat_template_kwargs", {{"mood", "<|im_end|>calm"}, {"think", false}}}});
  body["messages"] = {{{"role", "user"}, {"content", "a<|im_end|>"}},
                      {{"role", "assistant"},
                       {"content", nullptr},
                       {"tool_calls",
                        {{{"id", "c1"},
                          {"type", "function"},
                          {"function", {{"name", "find"}, {"arguments", "{\"q\": 1}"}}}}}}},
                      {{"role", "tool"}, {"tool_call_id", "c1"}, {"content", "found"}}};
  whole(body);
  EXPECT_EQ(prompt(),
            "<tool>find</tool><|im_start|>user\na<|im_end|><|im_end|><|im_start|>assistant\n"
            "<tool_call>{\"name\": \"find\", \"arguments\": {\"q\": 1}}</tool_call><|im_end|>"
            "<|im_start|>tool\nfound<|im_end|><|im_end|>calm<|im_start|>assistant\n");
  // Control tokens that the caller wrote are text: four turns of the template begin and three end.
  const auto tokens = engine_->requests().back().tokens;
  EXPECT_EQ(std::count(tokens.begin(), tokens.end(), deepmint::testing::kImStart), 4);
  EXPECT_EQ(std::count(tokens.begin(), tokens.end(), kImEnd), 3);
  body["chat_template_kwargs"] = {{"messages", 1}};
  EXPECT_EQ(chat(body).status, 400);
}

TEST_F(ChatTools, APromptThatOpensTheThinkingBlock) {
  start_saying("because\n</think>\n\nyes");
  const json reply = whole(chat_body({{"chat_template_kwargs", {{"think", true}}}}));
  EXPECT_EQ(reply["choices"][0]["message"]["reasoning_content"], "because");
  EXPECT_EQ(reply["choices"][0]["message"]["content"], "yes");
}

// Of a text: what the engine may sample of it, and then the end of the reply.
TEST_F(ChatTools, StrictToolsAndForcedCallsAreEnforced) {
  start_saying("x");
  const auto prefix = [&](const json& body, const std::string& text) {
    whole(body);
    const auto mask = engine_->requests().back().mask;
    if (mask == nullptr) return std::string("no mask");
    std::vector<TokenId> ids = bytes_of(text);
    ids.push_back(kImEnd);
    const size_t n = deepmint::testing::admitted(*mask, ids);
    return n == ids.size() ? "all" : text.substr(0, n);
  };
  const std::string call =
      "<tool_call>\n{\"name\": \"find\", \"arguments\": {\"q\": 7}}\n</tool_call>";
  const json forced = with_tools({{"tool_choice", "required"}});
  EXPECT_EQ(prefix(forced, call), "all");
  EXPECT_EQ(prefix(forced, "<think>\nwhy?\n</think>\n\n" + call + "\n" + call), "all");
  EXPECT_EQ(prefix(forced, "no"), "");
  EXPECT_EQ(prefix(forced, call + "\nno"), call + "\n");
  json once = forced;
  once["parallel_tool_calls"] = false;
  EXPECT_EQ(prefix(once, call), "all");
  EXPECT_EQ(prefix(once, call + "\n" + call), call);
  json named = forced;
  named["tools"].push_back({{"type", "function"}, {"function", {{"name", "other"}}}});
  named["tool_choice"] = {{"type", "function"}, {"function", {{"name", "other"}}}};
  EXPECT_EQ(prefix(named, call), "<tool_call>\n{\"name\": \"");

  json strict = chat_body();
  strict["tools"] = {{{"type", "function"},
                      {"function",
                       {{"name", "find"},
                        {"strict", true},
                        {"parameters",
                         {{"type", "object"},
                          {"properties", {{"q", {{"type", "integer"}, {"maximum", 7}}}}},
                          {"required", {"q"}},
                          {"additionalProperties", false}}}}}}};
  EXPECT_EQ(prefix(strict, "Well: " + call + " done"), "all");
  EXPECT_EQ(prefix(strict, "no call"), "all");
  EXPECT_EQ(
      prefix(strict, "<tool_call>{\"name\": \"find\", \"arguments\": {\"q\": 8}}</tool_call>"),
      "<tool_call>{\"name\": \"find\", \"arguments\": {\"q\": ");
  strict["response_format"] = {{"type", "regex"}, {"regex", "yes|no"}};
  EXPECT_EQ(prefix(strict, call), "all");
  EXPECT_EQ(prefix(strict, "yes"), "all");
  EXPECT_EQ(prefix(strict, "maybe"), "");
}

TEST_F(ChatTools, AGuaranteeThatCannotBeKeptIsRefused) {
  start_saying("x");
  const auto error = [&](const json& body) {
    const auto reply = chat(body);
    EXPECT_EQ(reply.status, 400) << reply.body;
    return json::parse(reply.body)["error"];
  };
  json strict = with_tools();
  strict["tools"][0]["function"]["strict"] = true;
  strict["tools"][0]["function"]["parameters"] = {{"type", "object"},
                                                  {"properties", {{"a", {{"pattern", "(?=x)"}}}}}};
  const json pattern = error(strict);
  EXPECT_THAT(std::string(pattern["message"]),
              ::testing::StartsWith("tools[0]: parameters: #/properties/a/pattern"));
  EXPECT_EQ(pattern["param"], "tools[0]");

  start([](const GenerationRequest&) { return Play{}; }, {},
        deepmint::testing::ScriptedEngine::Mode::kFree,
        [](ServedModel& m) {
          m.chat = recipe::load_chat_template("{{ tools }}[TOOL_CALLS]", "test", *m.tokenizer);
        });
  const json family = error(with_tools({{"tool_choice", "required"}}));
  EXPECT_EQ(family["message"],
            "tool_choice: strict tools and forced calls cannot be enforced for this model's "
            "family; expected tools without strict, and \"none\" or \"auto\" as tool_choice");
  EXPECT_EQ(family["param"], "tool_choice");
  EXPECT_TRUE(engine_->requests().empty());
}

TEST_F(ChatTools, AFormatBindsBehindTheThinkingThatThePromptOpened) {
  using deepmint::testing::deepseek_ids;
  const json fields = {{"response_format", {{"type", "regex"}, {"regex", "yes"}}},
                       {"chat_template_kwargs", {{"think", true}}}};
  start_saying("x");
  EXPECT_THAT(chat(chat_body(fields)).body,
              ::testing::HasSubstr("the model has no token that ends its thinking"));
  std::vector<TokenId> tokens = deepseek_ids("because</think>yes");
  tokens.push_back(deepmint::testing::kDeepSeekEnd);
  start([tokens](const GenerationRequest&) { return Play{.tokens = tokens}; }, {},
        deepmint::testing::ScriptedEngine::Mode::kFree,
        [](ServedModel& m) {
          m.tokenizer = deepmint::testing::deepseek_tokenizer();
          m.chat = recipe::load_chat_template(kTemplate, "test", *m.tokenizer);
          m.end_ids = {deepmint::testing::kDeepSeekEnd};
        });
  const json reply = whole(chat_body(fields));
  EXPECT_EQ(reply["choices"][0]["message"]["reasoning_content"], "because");
  EXPECT_EQ(reply["choices"][0]["message"]["content"], "yes");
  const auto mask = engine_->requests().back().mask;
  ASSERT_NE(mask, nullptr);
  EXPECT_EQ(deepmint::testing::admitted(*mask, tokens), tokens.size());
}

}  // namespace
}  // namespace deepmint
