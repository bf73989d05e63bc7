// An HTTP server in front of a scripted engine, and what a client makes of its answers.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "server/server.h"
#include "server/testing/raw_client.h"
#include "server/testing/test_model.h"
#include "support/scripted_engine.h"

namespace deepmint::testing {

inline constexpr std::string_view kChat = "/v1/chat/completions";

// One SSE stream, taken apart.
struct Stream {
  std::vector<nlohmann::json> events;
  bool done = false;
  int comments = 0;
};

// What a client assembles from a stream for one choice.
struct Assembled {
  std::string content, reasoning, finish_reason;
  nlohmann::json logprobs = nlohmann::json::array();
  nlohmann::json calls = nlohmann::json::array();  // without "index"
};

Stream parse_stream(const std::string& body);
Assembled assemble(const Stream& stream, int choice = 0);

// A request with one user message and these fields.
nlohmann::json chat_body(const nlohmann::json& fields = nlohmann::json::object());

class ServerTest : public ::testing::Test {
 protected:
  using Play = ScriptedEngine::Play;

  void start(ScriptedEngine::Script script, const std::function<void(ServerConfig&)>& change = {},
             ScriptedEngine::Mode mode = ScriptedEngine::Mode::kFree,
             const std::function<void(ServedModel&)>& change_model = {}) {
    engine_ = std::make_unique<ScriptedEngine>(std::move(script), mode);
    ServerConfig config;
    config.port = 0;
    if (change) change(config);
    ServedModel model = test_model(*engine_);
    if (change_model) change_model(model);
    auto started = HttpServer::start(config, std::move(model));
    ASSERT_TRUE(started) << started.error().str();
    server_ = std::move(*started);
  }
  void start_with(const std::vector<TokenId>& tokens) {
    start([tokens](const GenerationRequest&) { return Play{.tokens = tokens}; });
  }
  void start_hanging(const std::vector<TokenId>& tokens = {kHello}) {
    start([tokens](const GenerationRequest&) { return Play{.tokens = tokens, .hang = true}; });
  }
  ~ServerTest() override { server_.reset(); }  // before the engine

  Reply ask(const std::string& request) {
    RawClient client(server_->port());
    client.send(request);
    return client.read_reply();
  }
  Reply chat(const nlohmann::json& body) { return ask(post(kChat, body.dump())); }
  nlohmann::json whole(const nlohmann::json& body) {
    const Reply reply = chat(body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(reply.headers.at("content-type"), "application/json");
    return nlohmann::json::parse(reply.body);
  }
  Stream streamed(nlohmann::json body) {
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

}  // namespace deepmint::testing
