#include "server/server.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>
#include <cstdlib>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "core/hash.h"
#include "core/utf8.h"
#include "server/auth.h"
#include "server/testing/raw_client.h"
#include "server/testing/test_model.h"
#include "support/scripted_engine.h"

namespace deepmint {
namespace {

using deepmint::testing::bytes_of;
using deepmint::testing::get;
using deepmint::testing::kEndNew;
using deepmint::testing::kHello;
using deepmint::testing::kImEnd;
using deepmint::testing::kNewlines;
using deepmint::testing::kWorld;
using deepmint::testing::post;
using deepmint::testing::RawClient;
using deepmint::testing::Reply;
using deepmint::testing::ScriptedEngine;
using nlohmann::json;
using ::testing::HasSubstr;

constexpr std::string_view kChat = "/v1/chat/completions";

// One SSE stream, taken apart.
struct Stream {
  std::vector<json> events;
  bool done = false;
  int comments = 0;
};

Stream parse_stream(const std::string& body) {
  Stream out;
  size_t at = 0;
  while (at < body.size()) {
    const size_t end = body.find("\n\n", at);
    EXPECT_NE(end, std::string::npos) << "event without an end: " << body.substr(at);
    if (end == std::string::npos) break;
    const std::string event = body.substr(at, end - at);
    at = end + 2;
    EXPECT_FALSE(out.done) << "text after [DONE]";
    if (event.starts_with(":"))
      ++out.comments;
    else if (event == "data: [DONE]")
      out.done = true;
    else if (event.starts_with("data: "))
      out.events.push_back(json::parse(event.substr(6)));
    else
      ADD_FAILURE() << "not an event: " << event;
  }
  return out;
}

// What a client assembles from a stream for one choice.
struct Assembled {
  std::string content, finish_reason;
  json logprobs = json::array();
};

Assembled assemble(const Stream& stream, int choice = 0) {
  Assembled out;
  for (const json& event : stream.events) {
    EXPECT_EQ(event["object"], "chat.completion.chunk");
    for (const json& c : event["choices"]) {
      if (c["index"] != choice) continue;
      if (c["delta"].contains("content")) out.content += c["delta"]["content"].get<std::string>();
      if (!c["logprobs"].is_null())
        for (const json& entry : c["logprobs"]["content"]) out.logprobs.push_back(entry);
      if (!c["finish_reason"].is_null()) out.finish_reason = c["finish_reason"];
    }
  }
  return out;
}

json chat_body(json fields = json::object()) {
  json body = {{"model", "test-model"}, {"messages", {{{"role", "user"}, {"content", "hi"}}}}};
  body.update(fields);
  return body;
}

class Server : public ::testing::Test {
 protected:
  using Play = ScriptedEngine::Play;

  void start(ScriptedEngine::Script script, const std::function<void(ServerConfig&)>& change = {},
             ScriptedEngine::Mode mode = ScriptedEngine::Mode::kFree,
             const std::function<void(ServedModel&)>& change_model = {}) {
    engine_ = std::make_unique<ScriptedEngine>(std::move(script), mode);
    ServerConfig config;
    config.port = 0;
    if (change) change(config);
    ServedModel model = deepmint::testing::test_model(*engine_);
    if (change_model) change_model(model);
    auto started = HttpServer::start(config, std::move(model));
    ASSERT_TRUE(started) << started.error().str();
    server_ = std::move(*started);
  }
  void start_with(std::vector<TokenId> tokens) {
    start([tokens](const GenerationRequest&) { return Play{.tokens = tokens}; });
  }
  void start_hanging(std::vector<TokenId> tokens = {kHello}) {
    start([tokens](const GenerationRequest&) { return Play{.tokens = tokens, .hang = true}; });
  }
  ~Server() override { server_.reset(); }  // before the engine

  Reply ask(const std::string& request) {
    RawClient client(server_->port());
    client.send(request);
    return client.read_reply();
  }
  Reply chat(const json& body) { return ask(post(kChat, body.dump())); }
  json whole(const json& body) {
    const Reply reply = chat(body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(reply.headers.at("content-type"), "application/json");
    return json::parse(reply.body);
  }
  Stream streamed(json body) {
    body["stream"] = true;
    const Reply reply = chat(body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(reply.headers.at("content-type"), "text/event-stream; charset=utf-8");
    return parse_stream(reply.body);
  }
  // Waits for the engine to have seen `count` requests.
  void wait_submitted(size_t count) {
    for (int i = 0; i < 20'000 && engine_->requests().size() < count; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ASSERT_GE(engine_->requests().size(), count);
  }

  std::unique_ptr<ScriptedEngine> engine_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(Server, WholeAnswer) {
  start_with({kHello, kWorld, kImEnd});
  const json answer = whole(chat_body({{"seed", 7}}));
  EXPECT_EQ(answer["object"], "chat.completion");
  EXPECT_THAT(answer["id"].get<std::string>(), ::testing::MatchesRegex("chatcmpl-[0-9a-f]{24}"));
  EXPECT_THAT(answer["system_fingerprint"].get<std::string>(),
              ::testing::MatchesRegex("fp_[0-9a-f]{16}"));
  EXPECT_GT(answer["created"].get<int64_t>(), 1'700'000'000);
  EXPECT_EQ(answer["model"], "test-model");
  EXPECT_EQ(answer["seed"], 7);
  const json& choice = answer["choices"][0];
  EXPECT_EQ(answer["choices"].size(), 1u);
  EXPECT_EQ(choice["index"], 0);
  EXPECT_EQ(choice["message"],
            (json{{"role", "assistant"}, {"content", "Hello world"}, {"refusal", nullptr}}));
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_TRUE(choice["logprobs"].is_null());
  const size_t prompt = engine_->requests().at(0).tokens.size();
  EXPECT_EQ(answer["usage"], (json{{"prompt_tokens", prompt},
                                   {"completion_tokens", 3},
                                   {"total_tokens", prompt + 3},
                                   {"prompt_tokens_details", {{"cached_tokens", 0}}}}));
}

TEST_F(Server, StreamedAnswer) {
  start_with({kHello, kWorld, kImEnd});
  const Stream stream =
      streamed(chat_body({{"seed", 7}, {"stream_options", {{"include_usage", true}}}}));
  ASSERT_EQ(stream.events.size(), 5u);
  EXPECT_TRUE(stream.done);
  EXPECT_EQ(stream.events[0]["choices"][0]["delta"],
            (json{{"role", "assistant"}, {"content", ""}}));
  EXPECT_EQ(stream.events[0]["seed"], 7);
  EXPECT_EQ(stream.events[1]["choices"][0]["delta"], (json{{"content", "Hello"}}));
  EXPECT_EQ(stream.events[2]["choices"][0]["delta"], (json{{"content", " world"}}));
  EXPECT_EQ(stream.events[3]["choices"][0]["delta"], json::object());
  EXPECT_EQ(stream.events[3]["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(stream.events[4]["choices"], json::array());
  EXPECT_EQ(stream.events[4]["usage"]["completion_tokens"], 3);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(stream.events[i].at("usage").is_null());
  for (const json& event : stream.events) EXPECT_EQ(event["id"], stream.events[0]["id"]);
  const Stream plain = streamed(chat_body());
  EXPECT_EQ(plain.events.size(), 4u);
  for (const json& event : plain.events) EXPECT_FALSE(event.contains("usage"));
}

TEST_F(Server, ThePromptIsChatMlWithControlTokens) {
  start_with({kImEnd});
  whole({{"messages",
          {{{"role", "developer"}, {"content", "s"}},
           {{"role", "user"},
            {"content",
             {{{"type", "text"}, {"text", "<|im_end|>"}}, {{"type", "text"}, {"text", "b"}}}}}}}});
  std::vector<TokenId> expected = {deepmint::testing::kImStart};
  const auto add = [&](std::string_view text) {
    for (const TokenId id : bytes_of(text)) expected.push_back(id);
  };
  add("system\ns");
  expected.push_back(kImEnd);
  add("\n");
  expected.push_back(deepmint::testing::kImStart);
  add("user\n<|im_end|>\n\nb");  // caller text: bytes, not the control token
  expected.push_back(kImEnd);
  add("\n");
  expected.push_back(deepmint::testing::kImStart);
  add("assistant\n");
  EXPECT_EQ(engine_->requests().at(0).tokens, expected);
}

TEST_F(Server, ParametersReachTheEngine) {
  start([](const GenerationRequest&) { return Play{.tokens = {kImEnd}}; }, {},
        ScriptedEngine::Mode::kFree,
        [](ServedModel& m) {
          m.default_sampling.temperature = 0.25f;
          m.default_sampling.top_k = 40;
          m.default_max_tokens = 77;
        });
  whole(chat_body());
  whole(chat_body({{"temperature", 0},
                   {"top_p", 0.5},
                   {"top_k", 3},
                   {"min_p", 0.125},
                   {"seed", 9223372036854775807},
                   {"max_tokens", 5},
                   {"max_completion_tokens", 6},
                   {"presence_penalty", -2},
                   {"frequency_penalty", 1.5},
                   {"repetition_penalty", 1.25},
                   {"logit_bias", {{"5", -100}, {"7", 1.5}}},
                   {"min_tokens", 2},
                   {"cache_salt", "tenant"},
                   {"user", 17},
                   {"unknown", {{"a", 1}}},
                   {"tools", json::array()},
                   {"response_format", {{"type", "text"}}}}));
  whole(chat_body({{"ignore_eos", true}, {"max_tokens", 1000000}, {"temperature", nullptr}}));
  whole(chat_body({{"temperature", 1e-40}}));
  const auto requests = engine_->requests();
  EXPECT_EQ(requests[0].sampling.temperature, 0.25f);
  EXPECT_EQ(requests[0].sampling.top_k, 40);
  EXPECT_EQ(requests[0].max_tokens, 77);
  EXPECT_LT(requests[0].sampling.seed.value(), uint64_t{1} << 53);
  EXPECT_EQ(requests[0].sampling.top_logprobs, -1);
  EXPECT_EQ(requests[0].stop_ids, std::vector<TokenId>{kImEnd});
  const SamplingParams& s = requests[1].sampling;
  EXPECT_EQ(s.temperature, 0);
  EXPECT_EQ(s.top_p, 0.5);
  EXPECT_EQ(s.top_k, 3);
  EXPECT_EQ(s.min_p, 0.125f);
  EXPECT_EQ(s.seed, 9223372036854775807u);
  EXPECT_EQ(requests[1].max_tokens, 6);
  EXPECT_EQ(s.presence_penalty, -2);
  EXPECT_EQ(s.frequency_penalty, 1.5f);
  EXPECT_EQ(s.repetition_penalty, 1.25f);
  EXPECT_EQ(s.logit_bias, (std::vector<std::pair<TokenId, float>>{{5, -100.f}, {7, 1.5f}}));
  EXPECT_EQ(s.min_tokens, 2);
  EXPECT_EQ(requests[1].cache_salt, "tenant");
  EXPECT_TRUE(requests[2].stop_ids.empty());
  EXPECT_EQ(requests[2].max_tokens,
            4096 - static_cast<int32_t>(requests[2].tokens.size()));  // what is left of the context
  EXPECT_EQ(requests[2].sampling.temperature, 0.25f);
  EXPECT_EQ(requests[3].sampling.temperature, 0);  // a division by it would overflow
}

TEST_F(Server, LengthIsReported) {
  start_with(bytes_of("abcdef"));
  const json answer = whole(chat_body({{"max_tokens", 3}}));
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "abc");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
}

TEST_F(Server, AStopStringAcrossTokensEndsTheWork) {
  start_hanging({kHello, kWorld, kEndNew, kNewlines, kHello});
  for (const json& stop : {json("dEND"), json({"zzz", "D\nn", "dE"})}) {
    const json body = chat_body({{"stop", stop}, {"logprobs", true}});
    const json answer = whole(body);
    EXPECT_EQ(answer["choices"][0]["message"]["content"], "Hello worl");
    EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
    // Counted up to the token that completed it, however far the engine had got.
    EXPECT_EQ(answer["usage"]["completion_tokens"], 3);
    EXPECT_EQ(answer["choices"][0]["logprobs"]["content"].size(), 2u);
    EXPECT_EQ(assemble(streamed(body)).content, "Hello worl");
  }
  engine_->wait_idle();
  EXPECT_EQ(engine_->cancelled(), 4);
}

TEST_F(Server, StreamedEqualsWhole) {
  const char* given = std::getenv("DEEPMINT_TEST_SEED");
  const unsigned seed =
      given != nullptr ? static_cast<unsigned>(std::atoi(given)) : std::random_device{}();
  SCOPED_TRACE("DEEPMINT_TEST_SEED=" + std::to_string(seed));
  std::mt19937 random(seed);
  std::mutex mutex;
  Play play;
  start([&](const GenerationRequest&) {
    const std::lock_guard lock(mutex);
    return play;
  });
  const std::vector<std::string> pieces = {"é", "😀", "\n", "a", "ab", "END", "\xff", "\xe2\x82"};
  for (int round = 0; round < 150; ++round) {
    Play next;
    for (unsigned n = random() % 12; n > 0; --n) {
      if (random() % 3 == 0) {
        next.tokens.push_back(static_cast<TokenId>(kHello + random() % 4));
      } else {
        for (const TokenId id : bytes_of(pieces[random() % pieces.size()]))
          next.tokens.push_back(id);
      }
    }
    if (random() % 2 == 0) next.tokens.push_back(kImEnd);
    next.reason = next.tokens.empty() || next.tokens.back() != kImEnd ? FinishReason::kLength
                                                                      : FinishReason::kStop;
    for (size_t i = 0; i < next.tokens.size(); ++i)
      next.logprobs.push_back(-0.125f * static_cast<float>(i));
    {
      const std::lock_guard lock(mutex);
      play = next;
    }
    json body = chat_body({{"seed", 1}, {"logprobs", true}, {"stream_options", nullptr}});
    if (random() % 2 == 0)
      body["stop"] = json::array({"D\n", "ba", "é😀",
                                  "\xEF\xBF\xBD"
                                  "a"});
    const json answer = whole(body);
    body["stream_options"] = {{"include_usage", true}};
    const Stream stream = streamed(body);
    const Assembled assembled = assemble(stream);
    const json& choice = answer["choices"][0];
    ASSERT_EQ(assembled.content, choice["message"]["content"]) << round;
    ASSERT_EQ(assembled.finish_reason, choice["finish_reason"]);
    ASSERT_EQ(assembled.logprobs, choice["logprobs"]["content"]);
    ASSERT_EQ(stream.events.back()["usage"], answer["usage"]);
    ASSERT_TRUE(stream.done);
    // The bytes of the log-probability entries are the text, as far as it was not cut inside of a
    // token.
    if (choice["finish_reason"] == "length" && !body.contains("stop")) {
      std::vector<TokenId> from_entries;
      for (const json& entry : choice["logprobs"]["content"])
        for (const int byte : entry["bytes"]) from_entries.push_back(byte);
      ASSERT_EQ(utf8::sanitize(deepmint::testing::test_tokenizer()->decode(from_entries)),
                choice["message"]["content"])
          << round;
    }
  }
}

TEST_F(Server, LogprobsHaveTheOpenAiShape) {
  start([](const GenerationRequest&) {
    Play play{.tokens = {kHello, 0xf0, 0x9f, 0x98, 0x80, kImEnd}};
    play.logprobs = {-0.5f, -1, -2, -3, -4, -5};
    play.top = {{{kHello, -0.5f}, {0xf0, -std::numeric_limits<float>::infinity()}}};
    return play;
  });
  const json content = whole(
      chat_body({{"logprobs", true}, {"top_logprobs", 2}}))["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 5u);
  EXPECT_EQ(content[0],
            (json{{"token", "Hello"},
                  {"logprob", -0.5},
                  {"bytes", {72, 101, 108, 108, 111}},
                  {"top_logprobs",
                   {{{"token", "Hello"}, {"logprob", -0.5}, {"bytes", {72, 101, 108, 108, 111}}},
                    {{"token", "\xEF\xBF\xBD"}, {"logprob", -9999.0}, {"bytes", {240}}}}}}));
  EXPECT_EQ(content[4]["bytes"], json::array({128}));
  EXPECT_EQ(engine_->requests().at(0).sampling.top_logprobs, 2);
  EXPECT_TRUE(whole(chat_body())["choices"][0]["logprobs"].is_null());
}

TEST_F(Server, SeveralChoices) {
  start([](const GenerationRequest& r) {
    return Play{.tokens = {r.choice == 0 ? kHello : kWorld, kImEnd}};
  });
  const json answer = whole(chat_body({{"n", 3}}));
  ASSERT_EQ(answer["choices"].size(), 3u);
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "Hello");
  EXPECT_EQ(answer["choices"][2]["message"]["content"], " world");
  EXPECT_EQ(answer["choices"][2]["index"], 2);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 6);
  const auto requests = engine_->requests();
  EXPECT_EQ(requests[0].sampling.seed, requests[2].sampling.seed);
  EXPECT_EQ(requests[2].choice, 2);
  const Stream stream = streamed(chat_body({{"n", 2}}));
  EXPECT_EQ(assemble(stream, 0).content, "Hello");
  EXPECT_EQ(assemble(stream, 1).content, " world");
  EXPECT_EQ(assemble(stream, 1).finish_reason, "stop");
}

TEST_F(Server, BadRequestsNameTheField) {
  start_with({kImEnd});
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
       R"(messages[0].role: expected system, developer, user or assistant, found "robot")",
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
       R"(messages[0].role: tool calls are not supported here, found role "tool")",
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
       "tools: tool calls are not supported here", "tools"},
      {chat_body({{"response_format", {{"type", "json_object"}}}}).dump(), 400,
       R"(response_format.type: only "text" is supported here, found "json_object")",
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

TEST_F(Server, ClosingCancelsWithinOneStep) {
  start([](const GenerationRequest&) { return Play{.tokens = std::vector<TokenId>(1000, kHello)}; },
        {}, ScriptedEngine::Mode::kManual);
  for (const bool stream : {true, false}) {
    for (const int how : {0, 1, 2}) {
      const int before = engine_->cancelled();
      const size_t submitted = engine_->requests().size();
      RawClient client(server_->port());
      client.send(post(kChat, chat_body({{"stream", stream}}).dump()));
      wait_submitted(submitted + 1);
      engine_->tick(3);
      if (how == 0) client.half_close();
      if (how == 1) client.reset();
      if (how == 2) client.close();
      // The cancel is on its way; once it has arrived, one step is enough.
      for (int i = 0; i < 20'000 && engine_->live() > 0; ++i) {
        engine_->tick();
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
      EXPECT_EQ(engine_->live(), 0);
      EXPECT_EQ(engine_->cancelled(), before + 1);
    }
  }
}

TEST_F(Server, DisconnectAtEveryByteOfTheRequest) {
  start_hanging();
  const std::string request = post(kChat, chat_body({{"stream", true}}).dump());
  for (size_t cut = 0; cut <= request.size(); ++cut) {
    RawClient client(server_->port());
    client.send(std::string_view(request).substr(0, cut));
    if (cut % 3 == 0) client.half_close();
    if (cut % 3 == 1) client.reset();
  }
  EXPECT_EQ(ask(get("/health")).status, 200);
  engine_->wait_idle();
}

TEST_F(Server, DisconnectAtEveryByteOfTheResponse) {
  start_hanging({kHello, kWorld});
  RawClient whole_client(server_->port());
  const std::string request = post(kChat, chat_body({{"stream", true}}).dump());
  whole_client.send(request);
  std::string seen;
  while (seen.find(" world") == std::string::npos) seen += whole_client.read_some(10'000);
  whole_client.close();
  for (size_t cut = 0; cut < seen.size(); cut += 3) {
    RawClient client(server_->port());
    client.send(request);
    client.read_exactly(cut);
    if (cut % 2 == 0) client.reset();
    client.close();
    if (cut % 60 == 0) engine_->wait_idle();
  }
  engine_->wait_idle();
  EXPECT_EQ(ask(get("/health")).status, 200);
}

TEST_F(Server, WaitingStreamsGetComments) {
  start([](const GenerationRequest&) { return Play{.hang = true}; },
        [](ServerConfig& c) { c.keep_alive_ms = 20; });
  RawClient client(server_->port());
  client.send(post(kChat, chat_body({{"stream", true}}).dump()));
  std::string seen;
  while (seen.find(": keep-alive\n\n") == std::string::npos) {
    const std::string more = client.read_some(1000);
    ASSERT_FALSE(more.empty());
    seen += more;
  }
}

TEST_F(Server, SmallEndpoints) {
  start_with({kImEnd});
  EXPECT_EQ(ask(get("/health")).body, R"({"status":"ok"})");
  EXPECT_EQ(ask(get("/ready")).body, R"({"status":"ready"})");
  const json version = json::parse(ask(get("/version")).body);
  EXPECT_EQ(version["version"], "test");
  EXPECT_TRUE(version.contains("isa_class"));
  const json models = json::parse(ask(get("/v1/models")).body);
  EXPECT_EQ(models["object"], "list");
  ASSERT_EQ(models["data"].size(), 1u);
  EXPECT_EQ(models["data"][0]["id"], "test-model");
  EXPECT_EQ(models["data"][0]["object"], "model");
  EXPECT_EQ(models["data"][0]["created"], 1'700'000'000);
  EXPECT_EQ(models["data"][0]["context_length"], 4096);
  EXPECT_EQ(ask(get("/models")).body, ask(get("/v1/models")).body);
  EXPECT_EQ(json::parse(ask(get("/v1/models/test-model")).body), models["data"][0]);
  EXPECT_EQ(json::parse(ask(get("/v1/models/test%2Falias")).body), models["data"][0]);
  EXPECT_EQ(ask(get("/v1/models/other")).status, 404);
  EXPECT_EQ(json::parse(ask(get("/v1/models/other")).body)["error"]["code"], "model_not_found");
  EXPECT_EQ(ask(post("/chat/completions", chat_body({{"model", "test/alias"}}).dump())).status,
            200);
  const Reply metrics = ask(get("/metrics"));
  EXPECT_THAT(metrics.headers.at("content-type"), HasSubstr("text/plain; version=0.0.4"));
  EXPECT_THAT(
      metrics.body,
      HasSubstr(
          "vllm:request_success_total{model_name=\"test-model\",finished_reason=\"stop\"} 1\n"));
  EXPECT_THAT(metrics.body,
              HasSubstr("vllm:generation_tokens_total{model_name=\"test-model\"} 1\n"));
}

TEST_F(Server, MethodsPathsAndTypes) {
  start_with({kImEnd});
  EXPECT_EQ(ask(get("/nothing")).status, 404);
  EXPECT_EQ(ask(get("/v1/models/")).status, 404);
  const Reply get_chat = ask(get(kChat));
  EXPECT_EQ(get_chat.status, 405);
  EXPECT_EQ(get_chat.headers.at("allow"), "POST, OPTIONS");
  EXPECT_EQ(ask(post("/health", "{}")).status, 405);
  EXPECT_EQ(ask("DELETE /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n").status, 405);
  const Reply options = ask("OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(options.status, 204);
  EXPECT_EQ(options.headers.at("allow"), "POST, OPTIONS");
  RawClient head(server_->port());
  head.send("HEAD /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(head.read_reply(/*head_only=*/true).headers.at("content-length"), "15");
  const std::string body = chat_body().dump();
  const auto typed = [&](std::string_view headers) {
    return ask("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n" + std::string(headers) +
               "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body)
        .status;
  };
  EXPECT_EQ(typed(""), 200);
  EXPECT_EQ(typed("Content-Type: Application/JSON; charset=utf-8\r\n"), 200);
  EXPECT_EQ(typed("Content-Type: application/x-www-form-urlencoded\r\n"), 415);
  EXPECT_EQ(typed("Content-Type: text/plain\r\n"), 415);
  EXPECT_EQ(typed("Content-Encoding: gzip\r\n"), 415);
}

TEST_F(Server, KeysAreCheckedByDigest) {
  const std::string path = ::testing::TempDir() + "/deepmint_keys_" + std::to_string(::getpid());
  std::ofstream(path) << "# keys\nsha256:" << hex(sha256(as_byte_span("secret-1"))) << "  alice\n\n"
                      << hex(sha256(as_byte_span("secret-2"))) << "\n";
  start([](const GenerationRequest&) { return Play{.tokens = {kImEnd}}; },
        [&](ServerConfig& c) { c.api_keys_file = path; });
  std::remove(path.c_str());
  const auto with = [&](std::string_view header) {
    return ask(post(kChat, chat_body().dump(), header));
  };
  const Reply none = with("");
  EXPECT_EQ(none.status, 401);
  EXPECT_EQ(none.headers.at("www-authenticate"), "Bearer");
  EXPECT_EQ(json::parse(none.body)["error"]["code"], "invalid_api_key");
  EXPECT_EQ(with("Authorization: Bearer wrong\r\n").status, 401);
  EXPECT_EQ(with("Authorization: secret-1\r\n").status, 401);
  EXPECT_EQ(with("Authorization: Bearer secret-1x\r\n").status, 401);
  EXPECT_EQ(with("Authorization: Bearer secret-1\r\n").status, 200);
  EXPECT_EQ(with("Authorization: bearer secret-2\r\n").status, 200);
  EXPECT_EQ(ask(get("/v1/models")).status, 401);
  EXPECT_EQ(ask(get("/metrics")).status, 401);
  EXPECT_EQ(ask(get("/health")).status, 200);
  EXPECT_EQ(ask(get("/ready")).status, 200);
}

TEST(Keys, FilesAreChecked) {
  EXPECT_EQ(ApiKeys::parse("", "f").error().str(),
            "f: expected at least one API key digest, found none");
  EXPECT_EQ(ApiKeys::parse("#\n\nmy-secret-key\n", "f").error().str(),
            "f:3: expected 64 hexadecimal digits, found 13 characters");
  EXPECT_FALSE(ApiKeys::parse(std::string(64, 'g'), "f"));
  EXPECT_EQ(ApiKeys::load("/nonexistent/keys").error().str(),
            "/nonexistent/keys: expected a readable file, found: No such file or directory");
  for (const char* other : {"/", "/dev/zero"})
    EXPECT_EQ(ApiKeys::load(other).error().str(),
              std::string(other) + ": expected a regular file, found something else");
}

TEST_F(Server, ForeignPagesAndNamesAreRefused) {
  start([](const GenerationRequest&) { return Play{.tokens = {kImEnd}}; },
        [](ServerConfig& c) {
          c.allowed_hosts = {"api.example.com"};
          c.allowed_origins = {"https://app.example.com"};
        });
  const auto status = [&](std::string_view host, std::string_view origin) {
    return ask("GET /v1/models HTTP/1.1\r\nHost: " + std::string(host) + "\r\n" +
               (origin.empty() ? "" : "Origin: " + std::string(origin) + "\r\n") + "\r\n");
  };
  EXPECT_EQ(status("localhost:80", "").status, 200);
  EXPECT_EQ(status("127.0.0.1:80", "").status, 200);
  EXPECT_EQ(status("[::1]:80", "").status, 200);
  EXPECT_EQ(status("API.example.com", "").status, 200);
  EXPECT_EQ(status("evil.example", "").status, 403);  // a name rebound to this machine
  EXPECT_EQ(status("localhost:80", "http://localhost:80").status, 200);  // our own page
  EXPECT_EQ(status("localhost:80", "http://localhost:81").status, 403);
  EXPECT_EQ(status("localhost:80", "null").status, 403);
  EXPECT_EQ(status("localhost", "https://evil.example").status, 403);
  const Reply allowed = status("localhost", "https://app.example.com");
  EXPECT_EQ(allowed.status, 200);
  EXPECT_EQ(allowed.headers.at("access-control-allow-origin"), "https://app.example.com");
  const Reply chat_reply =
      ask(post(kChat, chat_body().dump(), "Origin: https://app.example.com\r\n"));
  EXPECT_EQ(chat_reply.headers.at("access-control-allow-origin"), "https://app.example.com");
}

TEST_F(Server, ManyClientsAtOnce) {
  start([](const GenerationRequest& r) {
    Play play;
    for (int i = 0; i < 20; ++i)
      play.tokens.push_back(r.tokens[9 + static_cast<size_t>(i) % 3]);  // digits of the prompt
    play.pace = std::chrono::microseconds(500);
    return play;
  });
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 200; ++i) {
    clients.push_back(std::make_unique<RawClient>(server_->port()));
    const json body = {{"stream", i % 2 == 0},
                       {"messages", {{{"role", "user"}, {"content", std::to_string(100000 + i)}}}}};
    ASSERT_TRUE(clients.back()->send(post(kChat, body.dump())));
  }
  for (int i = 0; i < 200; ++i) {
    const Reply reply = clients[static_cast<size_t>(i)]->read_reply();
    ASSERT_EQ(reply.status, 200);
    const std::string content =
        i % 2 == 0 ? assemble(parse_stream(reply.body)).content
                   : json::parse(reply.body)["choices"][0]["message"]["content"].get<std::string>();
    std::string expected;
    for (size_t k = 0; k < 20; ++k) expected += std::to_string(100000 + i)[3 + k % 3];
    ASSERT_EQ(content, expected);
  }
}

TEST_F(Server, PipelinedChats) {
  start_with({kHello, kImEnd});
  RawClient client(server_->port());
  client.send(post(kChat, chat_body().dump()) + post(kChat, chat_body({{"stream", true}}).dump()) +
              get("/health"));
  EXPECT_EQ(json::parse(client.read_reply().body)["choices"][0]["message"]["content"], "Hello");
  EXPECT_EQ(assemble(parse_stream(client.read_reply().body)).content, "Hello");
  EXPECT_EQ(client.read_reply().body, R"({"status":"ok"})");
}

TEST_F(Server, StopLetsRunningRepliesFinish) {
  start([](const GenerationRequest&) {
    Play play{.tokens = std::vector<TokenId>(20, kHello)};
    play.pace = std::chrono::milliseconds(2);
    return play;
  });
  RawClient client(server_->port());
  client.send(post(kChat, chat_body({{"stream", true}}).dump()));
  wait_submitted(1);
  server_->stop(std::chrono::seconds(20));
  EXPECT_EQ(assemble(parse_stream(client.read_reply().body)).content.size(), 100u);
  EXPECT_FALSE(RawClient(server_->port()).connected());
}

TEST_F(Server, StopEndsWhatIsLeftAtTheDeadline) {
  start_hanging();
  RawClient stream(server_->port()), plain(server_->port());
  stream.send(post(kChat, chat_body({{"stream", true}}).dump()));
  plain.send(post(kChat, chat_body().dump()));
  wait_submitted(2);
  server_->stop(std::chrono::milliseconds(20));
  const Stream ended = parse_stream(stream.read_reply().body);
  EXPECT_FALSE(ended.done);
  EXPECT_EQ(ended.events.back()["error"]["message"], "the server is shutting down");
  EXPECT_EQ(plain.read_reply().status, 503);
  engine_->wait_idle();
  EXPECT_EQ(engine_->cancelled(), 2);
}

TEST_F(Server, WhileDrainingNothingNewBegins) {
  start_hanging();
  RawClient busy(server_->port());
  busy.send(post(kChat, chat_body({{"stream", true}}).dump()) + get("/ready"));
  wait_submitted(1);
  std::thread stopper([&] { server_->stop(std::chrono::milliseconds(100)); });
  stopper.join();
  EXPECT_EQ(busy.read_reply().status, 200);
  engine_->wait_idle();
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

TEST(ServerConfig, ValuesAreChecked) {
  ScriptedEngine engine([](const GenerationRequest&) { return ScriptedEngine::Play{}; });
  const auto where = [&](const std::function<void(deepmint::ServerConfig&)>& change) {
    deepmint::ServerConfig config;
    config.port = 0;
    change(config);
    const auto server = HttpServer::start(config, deepmint::testing::test_model(engine));
    return server ? std::string("started") : server.error().str();
  };
  EXPECT_EQ(where([](auto& c) { c.io_threads = 0; }),
            "server.io_threads: expected 1 to 64, found 0");
  EXPECT_EQ(where([](auto& c) { c.write_timeout_ms = -1; }),
            "server.write_timeout_ms: expected 1 to 86400000, found -1");
  for (const char* origin : {"app.example.com", "https://app.example.com/", "https://", ""})
    EXPECT_EQ(where([&](auto& c) { c.allowed_origins = {"*", "http://[::1]:3000", origin}; }),
              fmt::format("server.allowed_origins: expected * or an origin such as "
                          "https://app.example.com, found \"{}\"",
                          origin));
  EXPECT_THAT(where([](auto& c) { c.host = "no.such.host.invalid"; }), HasSubstr("server.host: "));
  EXPECT_THAT(where([](auto& c) { c.api_keys_file = "/nonexistent"; }),
              HasSubstr("/nonexistent: "));
  EXPECT_EQ(where([](auto&) {}), "started");
}

}  // namespace
}  // namespace deepmint
