// The API without a network answers as the one with it does.
#include "server/local_api.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <set>

#include "server/testing/server_fixture.h"

namespace deepmint {
namespace {

using deepmint::testing::admitted;
using deepmint::testing::bytes_of;
using deepmint::testing::chat_body;
using deepmint::testing::deepseek_ids;
using deepmint::testing::deepseek_model;
using deepmint::testing::kChat;
using deepmint::testing::kHello;
using deepmint::testing::kImEnd;
using deepmint::testing::kWorld;
using deepmint::testing::ScriptedEngine;
using deepmint::testing::test_model;
using nlohmann::json;
using Play = ScriptedEngine::Play;

class Local : public deepmint::testing::ServerTest {
 protected:
  void open(ScriptedEngine::Script script, const std::function<void(ServedModel&)>& change = {},
            bool deepseek = false) {
    local_engine_ = std::make_unique<ScriptedEngine>(std::move(script));
    ServedModel model = deepseek ? deepseek_model(*local_engine_) : test_model(*local_engine_);
    if (change) change(model);
    auto made = LocalApi::create(ServerConfig{}, std::move(model));
    ASSERT_TRUE(made) << made.error().str();
    api_ = std::move(*made);
  }
  void wait_for(size_t answers) {
    for (int turn = 0; turn < 6000 && answers_.size() < answers; ++turn) {
      pollfd waiting = {api_->fd(), POLLIN, 0};
      ::poll(&waiting, 1, 10);
      api_->step();
    }
    ASSERT_EQ(answers_.size(), answers);
  }
  LocalApi::Answer post(std::string_view path, const std::string& body) {
    answers_.clear();
    api_->post(path, body, [this](LocalApi::Answer a) { answers_.push_back(std::move(a)); });
    EXPECT_TRUE(answers_.empty());  // never from inside post()
    wait_for(1);
    EXPECT_EQ(api_->running(), 0);
    EXPECT_EQ(api_->body_bytes(), 0);
    return answers_.empty() ? LocalApi::Answer{} : answers_.front();
  }
  ~Local() override { api_.reset(); }

  std::unique_ptr<ScriptedEngine> local_engine_;
  std::unique_ptr<LocalApi> api_;
  std::vector<LocalApi::Answer> answers_;
};

Result<Play> hello(const GenerationRequest&) {
  return Play{.tokens = {kHello, kWorld, kImEnd}, .logprobs = {-0.5, -0.25, -1}};
}

TEST_F(Local, AnswersAreThoseOfTheServer) {
  start(hello);
  open(hello);
  const std::vector<std::string> bodies = {
      chat_body({{"seed", 7}}).dump(),
      chat_body({{"seed", 7}, {"n", 3}, {"logprobs", true}, {"top_logprobs", 2}}).dump(),
      chat_body({{"seed", 7}, {"stop", {"wor"}}}).dump(),
      chat_body({{"temperature", "hot"}}).dump(),
      chat_body({{"model", "other"}}).dump(),
      chat_body({{"response_format", {{"type", "regex"}, {"regex", "("}}}}).dump(),
      "{",
      "",
      "\xff",
      "[1]",
      "{\"messages\": []}"};
  for (const std::string& body : bodies) {
    const auto there = ask(deepmint::testing::post(kChat, body));
    const LocalApi::Answer here = post(kChat, body);
    EXPECT_EQ(here.status, there.status) << body;
    EXPECT_EQ(here.body.find('\n'), std::string::npos);
    json a = json::parse(here.body), b = json::parse(there.body);
    for (json* answer : {&a, &b}) {
      answer->erase("id");
      answer->erase("created");
    }
    EXPECT_EQ(a, b) << body;
  }
}

TEST_F(Local, PathsAreThoseThatTakeRequests) {
  open(hello);
  EXPECT_EQ(LocalApi::paths(), std::vector<std::string_view>{kChat});
  EXPECT_TRUE(LocalApi::has_path("/chat/completions"));
  for (const std::string_view path :
       {"/v1/models", "/v1/embeddings", "", "/v1/chat/completions/"}) {
    EXPECT_FALSE(LocalApi::has_path(path)) << path;
    const LocalApi::Answer answer = post(path, chat_body().dump());
    EXPECT_EQ(answer.status, path == "/v1/models" ? 405 : 404) << path;
    EXPECT_TRUE(json::parse(answer.body).contains("error"));
  }
}

TEST_F(Local, ManyAtATime) {
  open(hello);
  for (int i = 0; i < 200; ++i)
    api_->post(kChat, chat_body({{"seed", i}}).dump(),
               [this](LocalApi::Answer a) { answers_.push_back(std::move(a)); });
  wait_for(200);
  std::set<int> seeds;
  for (const LocalApi::Answer& answer : answers_) {
    EXPECT_EQ(answer.status, 200);
    seeds.insert(json::parse(answer.body).at("seed").get<int>());
  }
  EXPECT_EQ(seeds.size(), 200);
}

TEST_F(Local, AnotherRequestMayFollowFromTheAnswer) {
  open(hello);
  std::function<void(LocalApi::Answer)> again = [&](LocalApi::Answer answer) {
    answers_.push_back(std::move(answer));
    if (answers_.size() < 5) api_->post(kChat, chat_body().dump(), again);
  };
  api_->post(kChat, chat_body().dump(), again);
  wait_for(5);
}

TEST_F(Local, WhoLeavesCancelsWhatRuns) {
  open([](const GenerationRequest&) { return Play{.tokens = {kHello}, .hang = true}; });
  bool called = false;
  for (int i = 0; i < 3; ++i)
    api_->post(kChat, chat_body().dump(), [&](const LocalApi::Answer&) { called = true; });
  for (int i = 0; i < 20'000 && local_engine_->requests().size() < 3; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  api_->step();
  EXPECT_EQ(api_->running(), 3);
  api_.reset();
  local_engine_->wait_idle();
  EXPECT_EQ(local_engine_->cancelled(), 3);
  EXPECT_FALSE(called);
}

TEST_F(Local, OneClassForAllRequests) {
  open(hello, [](ServedModel& m) { m.request_class = RequestClass::kBatch; });
  for (const char* tier : {"auto", "priority", "agent", "batch"})
    EXPECT_EQ(post(kChat, chat_body({{"service_tier", tier}}).dump()).status, 200);
  EXPECT_EQ(post(kChat, chat_body({{"service_tier", "gold"}}).dump()).status, 400);
  ASSERT_EQ(local_engine_->requests().size(), 4);
  for (const GenerationRequest& request : local_engine_->requests())
    EXPECT_EQ(request.request_class, RequestClass::kBatch);
}

// How much of "42", of "abc" and of "{}" a request's mask lets through.
class DefaultFormat : public Local {
 protected:
  void open_held(bool deepseek = false) {
    open([](const GenerationRequest&) { return Play{.tokens = {kImEnd}}; },
         [](ServedModel& m) {
           m.default_format = grammar::Spec{grammar::SpecKind::kRegex, "[0-9]{2}"};
         },
         deepseek);
  }
  std::shared_ptr<TokenMask> mask_of(const json& fields) {
    const LocalApi::Answer answer = post(kChat, chat_body(fields).dump());
    EXPECT_EQ(answer.status, 200) << answer.body;
    return local_engine_->requests().back().mask;
  }
};

TEST_F(DefaultFormat, HoldsWhoAsksForNone) {
  open_held();
  for (const json& fields : {json::object(), json{{"response_format", nullptr}}}) {
    const auto mask = mask_of(fields);
    ASSERT_NE(mask, nullptr);
    EXPECT_EQ(admitted(*mask, bytes_of("4x")), 1);
  }
  EXPECT_EQ(mask_of({{"n", 2}, {"seed", 1}})->allowed().size() > 0, true);
}

TEST_F(DefaultFormat, LeavesAloneWhoAsksForOne) {
  open_held();
  EXPECT_EQ(mask_of({{"response_format", {{"type", "text"}}}}), nullptr);
  const auto mask = mask_of({{"response_format", {{"type", "regex"}, {"regex", "[a-c]+"}}}});
  ASSERT_NE(mask, nullptr);
  EXPECT_EQ(admitted(*mask, bytes_of("ab4")), 2);
}

TEST_F(DefaultFormat, EndsWhereTheFormDoes) {
  open_held();
  const LocalApi::Answer answer = post(kChat, chat_body({{"ignore_eos", true}}).dump());
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(json::parse(answer.body)["error"]["param"], "ignore_eos");
}

TEST_F(DefaultFormat, BindsBehindTheThinking) {
  open_held(/*deepseek=*/true);
  const auto thinking = mask_of(json::object());
  ASSERT_NE(thinking, nullptr);
  EXPECT_EQ(admitted(*thinking, deepseek_ids("so 1 is</think>4x")),
            deepseek_ids("so 1 is</think>4").size());
  const auto plain = mask_of({{"thinking", {{"type", "disabled"}}}});
  ASSERT_NE(plain, nullptr);
  EXPECT_EQ(admitted(*plain, deepseek_ids("so")), 0);
}

TEST_F(DefaultFormat, WhatCannotBeCompiledIsAnError) {
  open(hello,
       [](ServedModel& m) { m.default_format = grammar::Spec{grammar::SpecKind::kRegex, "("}; });
  const LocalApi::Answer answer = post(kChat, chat_body().dump());
  EXPECT_EQ(answer.status, 400);
  EXPECT_TRUE(local_engine_->requests().empty());
}

TEST(LocalApi, NeedsATokenizer) {
  ScriptedEngine engine(hello);
  ServedModel model = test_model(engine);
  model.tokenizer = nullptr;
  const auto made = LocalApi::create(ServerConfig{}, std::move(model));
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace deepmint
