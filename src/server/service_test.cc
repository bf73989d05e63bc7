// What a request says about being served, beside what it asks: on whose account, how urgently,
// until when; and what the answer says about the cache.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/hash.h"
#include "server/testing/server_fixture.h"

namespace deepmint {
namespace {

using deepmint::testing::chat_body;
using deepmint::testing::get;
using deepmint::testing::kChat;
using deepmint::testing::kHello;
using deepmint::testing::kImEnd;
using deepmint::testing::post;
using nlohmann::json;
using ::testing::HasSubstr;

using Server = deepmint::testing::ServerTest;

// A server that knows secret-1 and secret-2.
class ServerWithKeys : public Server {
 protected:
  void SetUp() override {
    Server::SetUp();
    const std::string path = ::testing::TempDir() + "/deepmint_keys_" + std::to_string(::getpid());
    std::ofstream(path) << hex(sha256(as_byte_span("secret-1"))) << "\n"
                        << hex(sha256(as_byte_span("secret-2"))) << "\n";
    start([](const GenerationRequest&) { return Play{.tokens = {kImEnd}}; },
          [&](ServerConfig& c) { c.api_keys_file = path; });
    std::remove(path.c_str());
  }
  // What the engine gets.
  GenerationRequest request(std::string_view key, const json& fields) {
    const std::string header = "Authorization: Bearer " + std::string(key) + "\r\n";
    EXPECT_EQ(ask(post(kChat, chat_body(fields).dump(), header)).status, 200);
    return engine_->requests().back();
  }
};

TEST_F(ServerWithKeys, ShareNoPrefixes) {
  const auto salt = [&](std::string_view key, const json& fields) {
    return request(key, fields).cache_salt;
  };
  const json own = {{"cache_salt", "mine"}};
  EXPECT_EQ(salt("secret-1", json::object()), salt("secret-1", json::object()));
  EXPECT_EQ(salt("secret-1", own), salt("secret-1", own));
  EXPECT_NE(salt("secret-1", own), salt("secret-1", json::object()));
  EXPECT_NE(salt("secret-1", json::object()), salt("secret-2", json::object()));
  EXPECT_NE(salt("secret-1", own), salt("secret-2", own));
  EXPECT_NE(salt("secret-1", json::object()), "");
}

TEST_F(ServerWithKeys, TheKeyIsTheFairKey) {
  const auto asked = [&](std::string_view key, const json& fields) {
    return request(key, fields).fair_key;
  };
  const std::string one = asked("secret-1", json::object()),
                    two = asked("secret-2", json::object());
  EXPECT_NE(one, two);
  EXPECT_EQ(one, "key-" + hex(sha256(as_byte_span("secret-1"))).substr(0, 16));
  EXPECT_EQ(asked("secret-1", {{"user", "somebody"}}), one);  // the key pays, whoever it names
  EXPECT_EQ(asked("secret-1", {{"n", 2}}), one);
}

TEST_F(Server, WithoutKeysTheUserIsTheFairKey) {
  start_with({kImEnd});
  const auto asked = [&](const json& fields) {
    whole(chat_body(fields));
    return engine_->requests().back().fair_key;
  };
  EXPECT_EQ(asked(json::object()), "");
  EXPECT_EQ(asked({{"user", "ann"}}), "ann");
  EXPECT_EQ(asked({{"user", "ann"}, {"safety_identifier", "bob"}}), "bob");
  EXPECT_EQ(asked({{"user", 7}}), "");
  EXPECT_EQ(asked({{"user", std::string(1000, 'u')}}), std::string(256, 'u'));
}

TEST_F(Server, ServiceTiersAreClasses) {
  start_with({kImEnd});
  const auto asked = [&](const json& fields) {
    whole(chat_body(fields));
    return engine_->requests().back().request_class;
  };
  EXPECT_EQ(asked(json::object()), RequestClass::kInteractive);
  EXPECT_EQ(asked({{"service_tier", nullptr}}), RequestClass::kInteractive);
  for (const char* tier : {"auto", "default", "priority", "interactive"})
    EXPECT_EQ(asked({{"service_tier", tier}}), RequestClass::kInteractive) << tier;
  EXPECT_EQ(asked({{"service_tier", "agent"}}), RequestClass::kAgent);
  for (const char* tier : {"flex", "batch"})
    EXPECT_EQ(asked({{"service_tier", tier}}), RequestClass::kBatch) << tier;
  for (const json& wrong : {json("fast"), json(1)}) {
    const auto reply = chat(chat_body({{"service_tier", wrong}}));
    EXPECT_EQ(reply.status, 400);
    EXPECT_EQ(json::parse(reply.body)["error"]["param"], "service_tier");
  }
}

TEST_F(Server, DeadlinesCountFromTheArrival) {
  start_with({kImEnd});
  const auto before = std::chrono::steady_clock::now();
  whole(chat_body({{"deadline_ms", 60'000}, {"max_queue_ms", 5'000}}));
  const auto after = std::chrono::steady_clock::now();
  const GenerationRequest r = engine_->requests().back();
  using std::chrono::seconds;
  ASSERT_TRUE(r.deadline && r.start_by);
  EXPECT_TRUE(before + seconds(60) <= *r.deadline && *r.deadline <= after + seconds(60));
  EXPECT_TRUE(before + seconds(5) <= *r.start_by && *r.start_by <= after + seconds(5));
  whole(chat_body());
  EXPECT_FALSE(engine_->requests().back().deadline || engine_->requests().back().start_by);
  for (const char* field : {"deadline_ms", "max_queue_ms"})
    for (const json& wrong : {json(0), json(-1), json(1.5), json("1"), json(86'400'001)}) {
      const auto reply = chat(chat_body({{field, wrong}}));
      EXPECT_EQ(reply.status, 400) << wrong;
      EXPECT_EQ(json::parse(reply.body)["error"]["param"], field);
    }
}

TEST_F(Server, APassedDeadlineIs504) {
  start([](const GenerationRequest&) {
    return Play{.tokens = {kHello}, .reason = FinishReason::kDeadline};
  });
  const auto reply = chat(chat_body({{"deadline_ms", 1}}));
  EXPECT_EQ(reply.status, 504);
  EXPECT_EQ(json::parse(reply.body)["error"]["type"], "timeout_error");
}

// Whole and streamed, by both kinds of prompt: what the cache had, and why no more.
TEST_F(Server, UsageSaysWhatTheCacheHad) {
  const auto cached = [](int32_t tokens, CacheMiss miss) {
    Usage usage;
    usage.cached_tokens = tokens;
    usage.replayed_tokens = tokens / 4;
    usage.cache_miss = miss;
    return usage;
  };
  const json expected = {{"cached_tokens", 8}, {"replayed_tokens", 2}, {"cache_miss", "evicted"}};
  for (const bool deepseek : {false, true}) {
    server_.reset();
    // Of three choices the one that found least counts.
    start(
        [&](const GenerationRequest& r) {
          return Play{.tokens = {deepseek ? deepmint::testing::kDeepSeekEnd : kImEnd},
                      .cache = r.choice == 1 ? cached(8, CacheMiss::kEvicted)
                                             : cached(16, CacheMiss::kFirstDivergent)};
        },
        {}, deepmint::testing::ScriptedEngine::Mode::kFree,
        [&](ServedModel& model) {
          if (deepseek) model = deepmint::testing::deepseek_model(*engine_);
        });
    const json fields = {{"n", 3}};
    EXPECT_EQ(whole(chat_body(fields))["usage"]["prompt_tokens_details"], expected) << deepseek;
    const auto stream =
        streamed(chat_body({{"n", 3}, {"stream_options", {{"include_usage", true}}}}));
    EXPECT_EQ(stream.events.back()["usage"]["prompt_tokens_details"], expected) << deepseek;
    const std::string metrics = ask(get("/metrics")).body;
    EXPECT_THAT(metrics, HasSubstr("deepmint:prompt_cache_misses_total{model_name=\"test-model\","
                                   "reason=\"evicted\"} 2\n"));
    EXPECT_THAT(metrics, HasSubstr("reason=\"first_divergent\"} 4\n"));
    EXPECT_THAT(metrics, HasSubstr("reason=\"none\"} 0\n"));
  }
}

// Of several choices that one counts whose replay was bounded, whichever found least in the cache.
TEST_F(Server, UsageSaysWhatWasApproximated) {
  for (const bool deepseek : {false, true})
    for (const int32_t bounded : {0, 1, 2}) {
      server_.reset();
      start(
          [&](const GenerationRequest& r) {
            Play play{.tokens = {deepseek ? deepmint::testing::kDeepSeekEnd : kImEnd}};
            play.cache.cached_tokens = r.choice == 1 ? 8 : 16;
            play.cache.tail_skipped_tokens = 60;
            play.cache.bounded_replay = r.choice == bounded;
            return play;
          },
          {}, deepmint::testing::ScriptedEngine::Mode::kFree,
          [&](ServedModel& model) {
            if (deepseek) model = deepmint::testing::deepseek_model(*engine_);
          });
      const json expected = {{"cached_tokens", 8},
                             {"replayed_tokens", 0},
                             {"cache_miss", "none"},
                             {"prefill_tail_skipped_tokens", 60},
                             {"prefix_replay", "bounded"}};
      EXPECT_EQ(whole(chat_body({{"n", 3}}))["usage"]["prompt_tokens_details"], expected)
          << deepseek << bounded;
      const auto stream =
          streamed(chat_body({{"n", 3}, {"stream_options", {{"include_usage", true}}}}));
      EXPECT_EQ(stream.events.back()["usage"]["prompt_tokens_details"], expected)
          << deepseek << bounded;
    }
}

}  // namespace
}  // namespace deepmint
