// Clients that leave, wait, come in crowds or send without waiting for answers.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/testing/server_fixture.h"

namespace deepmint {
namespace {

using deepmint::testing::assemble;
using deepmint::testing::chat_body;
using deepmint::testing::get;
using deepmint::testing::kChat;
using deepmint::testing::kHello;
using deepmint::testing::kImEnd;
using deepmint::testing::kWorld;
using deepmint::testing::parse_stream;
using deepmint::testing::post;
using deepmint::testing::RawClient;
using deepmint::testing::Reply;
using deepmint::testing::ScriptedEngine;
using nlohmann::json;

using Server = deepmint::testing::ServerTest;

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

}  // namespace
}  // namespace deepmint
