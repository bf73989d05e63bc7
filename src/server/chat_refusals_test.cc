// What a chat completion refuses, and how failures look to the client.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <tuple>

#include "server/testing/server_fixture.h"

namespace deepmint {
namespace {

using deepmint::testing::chat_body;
using deepmint::testing::get;
using deepmint::testing::kChat;
using deepmint::testing::kHello;
using deepmint::testing::kImEnd;
using deepmint::testing::post;
using deepmint::testing::RawClient;
using deepmint::testing::Reply;
using deepmint::testing::ScriptedEngine;
using deepmint::testing::Stream;
using nlohmann::json;
using ::testing::HasSubstr;

using Server = deepmint::testing::ServerTest;

TEST_F(Server, BadRequestsNameTheField) {
  start_with({kImEnd});
  const json function_f = {{{"type", "function"}, {"function", {{"name", "f"}}}}};
  const struct {
    std::string body;
    int status;
    std::string message;  // the whole of it
    std::string param;    // empty: null
  } cases[] = {
      {"[]", 400, "request body: expected a JSON object, found an empty array", ""},
      {"{}", 400, "messages: expected an array of messages, found nothing", "messages"},
      {R"({"messages":"hi"})", 400,
       R"(messages: expected an array of at least one message, found "hi")", "messages"},
      {R"({"messages":[]})", 400,
       "messages: expected an array of at least one message, found an empty array", "messages"},
      {R"({"messages":[1]})", 400, "messages[0]: expected an object, found 1", "messages[0]"},
      {R"({"messages":[{"content":"x"}]})", 400,
       "messages[0].role: expected a string, found nothing", "messages[0].role"},
      {R"({"messages":[{"role":"robot","content":"x"}]})", 400,
       R"(messages[0].role: expected system, developer, user, assistant or tool, found "robot")",
       "messages[0].role"},
      {R"({"messages":[{"role":"user"}]})", 400,
       "messages[0].content: expected a string or an array of text parts, found nothing",
       "messages[0].content"},
      {R"({"messages":[{"role":"user","content":5}]})", 400,
       "messages[0].content: expected a string or an array of text parts, found 5",
       "messages[0].content"},
      {R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]})",
       400, R"(messages[0].content[0].type: this model takes "text" parts only, found "image_url")",
       "messages[0].content[0].type"},
      {R"({"messages":[{"role":"tool","content":"x"}]})", 400,
       R"(messages[0].role: expected role system, user or assistant, found "tool")",
       "messages[0].role"},
      {chat_body({{"temperature", "hot"}}).dump(), 400,
       R"(temperature: expected a number from 0 to 2, found "hot")", "temperature"},
      {chat_body({{"temperature", 2.5}}).dump(), 400,
       "temperature: expected a number from 0 to 2, found 2.5", "temperature"},
      {chat_body({{"temperature", -0.5}}).dump(), 400,
       "temperature: expected a number from 0 to 2, found -0.5", "temperature"},
      {chat_body({{"repetition_penalty", 0}}).dump(), 400,
       "repetition_penalty: expected a number from 0.01 to 100, found 0", "repetition_penalty"},
      {chat_body({{"top_p", 0}}).dump(), 400, "top_p: expected a number above 0 to 1, found 0",
       "top_p"},
      {chat_body({{"max_tokens", 0}}).dump(), 400,
       "max_tokens: expected an integer from 1 to 2147483647, found 0", "max_tokens"},
      {chat_body({{"max_tokens", 1.5}}).dump(), 400,
       "max_tokens: expected an integer from 1 to 2147483647, found 1.5", "max_tokens"},
      {chat_body({{"max_completion_tokens", true}}).dump(), 400,
       "max_completion_tokens: expected an integer from 1 to 2147483647, found true",
       "max_completion_tokens"},
      {chat_body({{"seed", -1}}).dump(), 400,
       "seed: expected an integer from 0 to 9223372036854775807, found -1", "seed"},
      {chat_body({{"n", 0}}).dump(), 400, "n: expected an integer from 1 to 16, found 0", "n"},
      {chat_body({{"n", 17}}).dump(), 400, "n: expected an integer from 1 to 16, found 17", "n"},
      {chat_body({{"prefill_tail", "short"}}).dump(), 400,
       R"(prefill_tail: expected exact or bounded, found "short")", "prefill_tail"},
      {chat_body({{"prefill_tail", true}}).dump(), 400,
       "prefill_tail: expected exact or bounded, found true", "prefill_tail"},
      {chat_body({{"prefix_replay", 5}}).dump(), 400,
       "prefix_replay: expected exact or bounded, found 5", "prefix_replay"},
      {chat_body({{"prefix_replay", ""}}).dump(), 400,
       R"(prefix_replay: expected exact or bounded, found "")", "prefix_replay"},
      {chat_body({{"prefill_tail", "bounded"}, {"prefill_tail_keep_tokens", 0}}).dump(), 400,
       "prefill_tail_keep_tokens: expected an integer from 1 to 2147483647, found 0",
       "prefill_tail_keep_tokens"},
      {chat_body({{"prefill_tail", "bounded"}, {"prefill_tail_keep_tokens", "140"}}).dump(), 400,
       R"(prefill_tail_keep_tokens: expected an integer from 1 to 2147483647, found "140")",
       "prefill_tail_keep_tokens"},
      {chat_body({{"prefill_tail_keep_tokens", 140}}).dump(), 400,
       R"(prefill_tail_keep_tokens: expected prefill_tail: "bounded" beside it)",
       "prefill_tail_keep_tokens"},
      {chat_body({{"prefill_tail", "exact"}, {"prefill_tail_keep_tokens", 140}}).dump(), 400,
       R"(prefill_tail_keep_tokens: expected prefill_tail: "bounded" beside it)",
       "prefill_tail_keep_tokens"},
      {chat_body({{"stream", "yes"}}).dump(), 400, R"(stream: expected true or false, found "yes")",
       "stream"},
      {chat_body({{"stream_options", {{"include_usage", true}}}}).dump(), 400,
       "stream_options: expected stream: true beside it", "stream_options"},
      {chat_body({{"stream", true}, {"stream_options", {{"include_usage", 1}}}}).dump(), 400,
       "stream_options.include_usage: expected true or false, found 1",
       "stream_options.include_usage"},
      {chat_body({{"stop", 5}}).dump(), 400,
       "stop: expected a string or an array of up to 16 strings, found 5", "stop"},
      {chat_body({{"stop", {"a", 1}}}).dump(), 400, "stop[1]: expected a string, found 1",
       "stop[1]"},
      {chat_body({{"stop", std::vector<std::string>(17, "a")}}).dump(), 400,
       "stop: expected a string or an array of up to 16 strings, found 17", "stop"},
      {chat_body({{"top_logprobs", 3}}).dump(), 400,
       "top_logprobs: expected logprobs: true beside it", "top_logprobs"},
      {chat_body({{"logprobs", true}, {"top_logprobs", 21}}).dump(), 400,
       "top_logprobs: expected an integer from 0 to 20, found 21", "top_logprobs"},
      {chat_body({{"logit_bias", {{"x", 1}}}}).dump(), 400,
       R"(logit_bias: expected a token id as key, found "x")", "logit_bias"},
      {chat_body({{"logit_bias", {{"5", 101}}}}).dump(), 400,
       "logit_bias.5: expected a number from -100 to 100, found 101", "logit_bias.5"},
      {chat_body({{"tools", {{{"type", "function"}}}}}).dump(), 400,
       "tools[0].function: expected a function with a name", "tools[0].function"},
      {chat_body({{"tools", {{{"type", "custom"}}}}}).dump(), 400,
       R"(tools[0].type: only "function" is supported here, found "custom")", "tools[0].type"},
      {chat_body({{"tools", {{{"type", "function"}, {"function", {{"name", "f"}}}}}}}).dump(), 400,
       "tools: the model's chat template has no place for tools", "tools"},
      {chat_body({{"tool_choice", "required"}}).dump(), 400,
       "tool_choice: expected tools beside it", "tool_choice"},
      {chat_body({{"tool_choice", {{"type", "function"}, {"function", {{"name", "g"}}}}},
                  {"tools", function_f}})
           .dump(),
       400, "tool_choice: expected tools with the one that it names", "tool_choice"},
      {chat_body({{"tool_choice", "maybe"}, {"tools", function_f}}).dump(), 400,
       R"(tool_choice: expected none, auto, required or a function with a name, found "maybe")",
       "tool_choice"},
      {chat_body({{"chat_template_kwargs", 5}}).dump(), 400,
       "chat_template_kwargs: expected an object, found 5", "chat_template_kwargs"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{"id":"1"}]}]})", 400,
       R"(messages[0].tool_calls[0]: expected {"id", "type": "function", "function": )"
       R"({"name", "arguments"}} with strings)",
       "messages[0].tool_calls[0]"},
      {chat_body({{"response_format", {{"type", "regex"}, {"regex", "a(?=b)"}}}}).dump(), 400,
       "response_format: character 1: look-ahead cannot be done", "response_format"},
      {chat_body({{"response_format", {{"type", "regex"}, {"regex", "a"}}}, {"ignore_eos", true}})
           .dump(),
       400, "ignore_eos: expected false: a reply with a guaranteed form ends where the form does",
       "ignore_eos"},
      {chat_body({{"response_format", {{"type", "json_schema"}}}}).dump(), 400,
       "response_format.json_schema: expected an object with a schema",
       "response_format.json_schema"},
      {chat_body({{"response_format", {{"type", "xml"}}}}).dump(), 400,
       R"(response_format.type: expected text, json_object, json_schema or regex, found "xml")",
       "response_format.type"},
      {chat_body({{"model", 5}}).dump(), 400, "model: expected a string, found 5", "model"},
      {chat_body({{"model", "gpt-4"}}).dump(), 404,
       R"(the model "gpt-4" is not served here; "test-model" is)", "model"},
      {R"({"messages":[{"role":"user","content":"x"}],"temperature":1e999})", 400,
       "temperature: expected a number from 0 to 2, found 1e999", "temperature"},
      {R"({"messages":[{"role":"user","content":"x"}],"max_tokens":)" + std::string(1000, '9') +
           "}",
       400,
       "max_tokens: expected an integer from 1 to 2147483647, found " + std::string(40, '9') + "…",
       "max_tokens"},
  };
  for (const auto& c : cases) {
    const Reply reply = ask(post(kChat, c.body));
    EXPECT_EQ(reply.status, c.status) << c.body;
    const json error = json::parse(reply.body)["error"];
    EXPECT_EQ(error["message"], c.message) << c.body;
    EXPECT_EQ(error["param"], c.param.empty() ? json() : json(c.param)) << c.body;
  }
  EXPECT_EQ(engine_->requests().size(), 0u);
}

TEST_F(Server, BadJsonIsOneLine) {
  start_with({kImEnd});
  std::string deep = R"({"messages":[{"role":"user","content":"x"}],"x":)";
  for (const std::string& body :
       {std::string(), std::string("{"), std::string("{\"messages\":[}"), std::string("nul"),
        std::string("{} {}"),
        std::string(R"({"messages":[{"role":"user","content":"x"}],"temperature":NaN})"),
        std::string("{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}"),
        std::string(R"({"messages":[{"role":"user","content":"\ud800"}]})"),
        deep + std::string(100'000, '['),
        deep + std::string(200, '[') + std::string(200, ']') + "}"}) {
    const Reply reply = ask(post(kChat, body));
    EXPECT_EQ(reply.status, 400) << body.substr(0, 100);
    const json error = json::parse(reply.body)["error"];
    EXPECT_EQ(error["type"], "invalid_request_error");
    EXPECT_TRUE(error["param"].is_null()) << error;
    EXPECT_EQ(error["message"].get<std::string>().find('\n'), std::string::npos);
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("request body"));
  }
}

TEST_F(Server, PromptsBeyondTheContext) {
  start_with({kImEnd});
  // The frame of one user message is 19 tokens.
  const Reply exact =
      chat({{"messages", {{{"role", "user"}, {"content", std::string(4096 - 19, 'a')}}}}});
  EXPECT_EQ(exact.status, 400);
  const json error = json::parse(exact.body)["error"];
  EXPECT_EQ(error["message"], "messages: prompt has 4096 tokens, context is 4096");
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_EQ(error["param"], "messages");
  EXPECT_EQ(
      chat({{"messages", {{{"role", "user"}, {"content", std::string(4096 - 20, 'a')}}}}}).status,
      200);
  EXPECT_EQ(engine_->requests().at(0).max_tokens, 1);
}

TEST_F(Server, ATenMegabytePromptBlocksNobody) {
  start_with({kHello, kImEnd});
  const std::string big = post(
      kChat,
      json{{"messages", {{{"role", "user"}, {"content", std::string(10 << 20, 'a')}}}}}.dump());
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 4; ++i) {
    clients.push_back(std::make_unique<RawClient>(server_->port()));
    ASSERT_TRUE(clients.back()->send(big));
  }
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(ask(get("/health")).status, 200);
    EXPECT_EQ(chat(chat_body()).status, 200);
  }
  for (const auto& client : clients) {
    const Reply reply = client->read_reply();
    EXPECT_EQ(reply.status, 400);
    EXPECT_THAT(reply.body, HasSubstr("prompt has at least "));
    EXPECT_THAT(reply.body, HasSubstr(" tokens, context is 4096"));
  }
}

TEST_F(Server, EngineRefusalsHaveTheirStatus) {
  std::atomic<ErrorCode> code{};
  start([&](const GenerationRequest&) -> Result<Play> { return fail(code, "no", "somewhere"); });
  for (const auto& [error, status, type] : std::vector<std::tuple<ErrorCode, int, std::string>>{
           {ErrorCode::kInvalidArgument, 400, "invalid_request_error"},
           {ErrorCode::kTooLarge, 400, "invalid_request_error"},
           {ErrorCode::kUnsupported, 400, "invalid_request_error"},
           {ErrorCode::kNotFound, 404, "not_found_error"},
           {ErrorCode::kResourceExhausted, 429, "rate_limit_error"},
           {ErrorCode::kDeadlineExceeded, 504, "timeout_error"},
           {ErrorCode::kUnavailable, 503, "service_unavailable_error"},
           {ErrorCode::kInternal, 500, "internal_error"}}) {
    code = error;
    for (const bool stream : {false, true}) {
      const Reply reply = chat(chat_body({{"stream", stream}}));
      EXPECT_EQ(reply.status, status);
      EXPECT_EQ(json::parse(reply.body)["error"]["type"], type);
      EXPECT_EQ(reply.headers.contains("retry-after"), status == 429 || status == 503);
    }
  }
}

// What only the engine can judge is refused under the field's name here, not the engine's.
TEST_F(Server, ABoundedTailThatTheModelRefusesIsNamedAsTheRequestHasIt) {
  start([&](const GenerationRequest& r) -> Result<Play> {
    if (*r.tail_keep_tokens < 128)
      return fail(ErrorCode::kInvalidArgument, "expected at least the window, 128, found 20",
                  "tail_keep_tokens");
    return fail(ErrorCode::kUnsupported, "expected the exact tail, found a bounded one",
                "tail_keep_tokens");
  });
  const auto error = [&](const json& fields) {
    const Reply reply = chat(chat_body(fields));
    EXPECT_EQ(reply.status, 400);
    const json body = json::parse(reply.body)["error"];
    return std::pair(body["param"].get<std::string>(), body["message"].get<std::string>());
  };
  using Said = std::pair<std::string, std::string>;
  EXPECT_EQ(error({{"prefill_tail", "bounded"}}),
            Said("prefill_tail", "prefill_tail: expected the exact tail, found a bounded one"));
  EXPECT_EQ(error({{"prefill_tail", "bounded"}, {"prefill_tail_keep_tokens", 20}}),
            Said("prefill_tail_keep_tokens",
                 "prefill_tail_keep_tokens: expected at least the window, 128, found 20"));
}

TEST_F(Server, RetryAfterIsWhatTheEngineKnows) {
  std::atomic<double> seconds{};
  start([&](const GenerationRequest&) -> Result<Play> {
    Error error{ErrorCode::kResourceExhausted, "the first token would come late", "queue"};
    error.retry_after_s = seconds;
    return tl::unexpected(std::move(error));
  });
  for (const auto& [known, header] : std::vector<std::pair<double, std::string>>{
           {0, "1"}, {0.2, "1"}, {6.2, "7"}, {1e12, "86400"}}) {
    seconds = known;
    EXPECT_EQ(chat(chat_body()).headers.at("retry-after"), header) << known;
  }
}

TEST_F(Server, AChoiceThatIsRefusedCancelsTheOthers) {
  start([](const GenerationRequest& r) -> Result<Play> {
    if (r.choice == 2) return fail(ErrorCode::kResourceExhausted, "queue full");
    return Play{.hang = true};
  });
  EXPECT_EQ(chat(chat_body({{"n", 3}, {"stream", true}})).status, 429);
  engine_->wait_idle();
  EXPECT_EQ(engine_->cancelled(), 2);
}

TEST_F(Server, FailureInsideAStreamIsAnErrorEvent) {
  start([](const GenerationRequest&) {
    return Play{.tokens = {kHello},
                .reason = FinishReason::kError,
                .error = Error{ErrorCode::kInternal, "weights melted", ""}};
  });
  const Stream stream = streamed(chat_body());
  EXPECT_FALSE(stream.done);  // a reply that broke off must not look whole
  ASSERT_GE(stream.events.size(), 2u);
  EXPECT_EQ(stream.events.back()["error"]["message"], "weights melted");
  const Reply reply = chat(chat_body());
  EXPECT_EQ(reply.status, 500);
}

TEST_F(Server, AModelWithoutAChatTemplateSaysSo) {
  start([](const GenerationRequest&) { return Play{}; }, {}, ScriptedEngine::Mode::kFree,
        [](ServedModel& m) {
          m.chat = fail(ErrorCode::kUnsupported,
                        "expected a ChatML or Llama 3 chat template, found Gemma");
        });
  const Reply reply = chat(chat_body());
  EXPECT_EQ(reply.status, 400);
  EXPECT_THAT(reply.body, HasSubstr("found Gemma"));
  EXPECT_EQ(json::parse(ask(get("/v1/models")).body)["data"][0]["capabilities"], json::array());
}

}  // namespace
}  // namespace deepmint
