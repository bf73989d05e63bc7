// What a chat completion answers, whole and streamed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "core/utf8.h"
#include "server/testing/server_fixture.h"

namespace deepmint {
namespace {

using deepmint::testing::assemble;
using deepmint::testing::Assembled;
using deepmint::testing::bytes_of;
using deepmint::testing::chat_body;
using deepmint::testing::get;
using deepmint::testing::kEndNew;
using deepmint::testing::kHello;
using deepmint::testing::kImEnd;
using deepmint::testing::kNewlines;
using deepmint::testing::kWorld;
using deepmint::testing::ScriptedEngine;
using deepmint::testing::Stream;
using nlohmann::json;

using Server = deepmint::testing::ServerTest;

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
  EXPECT_EQ(answer["usage"],
            (json{{"prompt_tokens", prompt},
                  {"completion_tokens", 3},
                  {"total_tokens", prompt + 3},
                  {"prompt_tokens_details",
                   {{"cached_tokens", 0}, {"replayed_tokens", 0}, {"cache_miss", "none"}}}}));
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
  EXPECT_EQ(requests[3].sampling.temperature, 1e-40f);  // the sampler counts it as 0
}

TEST_F(Server, ApproximationsReachTheEngineWhenAskedForOnly) {
  start([](const GenerationRequest&) { return Play{.tokens = {kImEnd}}; });
  for (const json& fields :
       {json::object(), json{{"prefill_tail", "exact"}, {"prefix_replay", "exact"}},
        json{{"prefill_tail", nullptr}, {"prefill_tail_keep_tokens", nullptr}},
        json{{"prefill_tail", "bounded"}},
        json{{"prefill_tail", "bounded"}, {"prefill_tail_keep_tokens", 2147483647}},
        json{{"prefix_replay", "bounded"}}})
    whole(chat_body(fields));
  const auto requests = engine_->requests();
  ASSERT_EQ(requests.size(), 6u);
  for (size_t i = 0; i < 3; ++i) EXPECT_FALSE(requests[i].tail_keep_tokens) << i;
  EXPECT_EQ(requests[3].tail_keep_tokens, 140);
  EXPECT_EQ(requests[4].tail_keep_tokens, 2147483647);
  EXPECT_FALSE(requests[5].tail_keep_tokens);
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(requests[i].bounded_replay, i == 5) << i;
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

}  // namespace
}  // namespace deepmint
