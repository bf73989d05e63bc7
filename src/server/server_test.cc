// What stands around the chat endpoint: the other paths, keys, foreign pages, settings, start and
// end.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/hash.h"
#include "server/auth.h"
#include "server/metrics.h"
#include "server/testing/server_fixture.h"

namespace deepmint {
namespace {

using deepmint::testing::assemble;
using deepmint::testing::chat_body;
using deepmint::testing::get;
using deepmint::testing::kChat;
using deepmint::testing::kHello;
using deepmint::testing::kImEnd;
using deepmint::testing::parse_stream;
using deepmint::testing::post;
using deepmint::testing::RawClient;
using deepmint::testing::Reply;
using deepmint::testing::ScriptedEngine;
using deepmint::testing::Stream;
using nlohmann::json;
using ::testing::HasSubstr;

using Server = deepmint::testing::ServerTest;

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

TEST(Metrics, WhatTheEngineCounts) {
  EngineStats stats;
  stats.replayed_tokens = 11;
  stats.cache_evictions = 12;
  stats.preempted = 13;
  stats.bytes_running = 14;
  stats.bytes_cached = 15;
  stats.bytes_snapshots = 16;
  stats.parked_bytes = 17;
  stats.bytes_free = 18;
  stats.bytes_books = 19;
  stats.step_ns = 3'000'000'000;
  stats.step_gap_ns = 500'000'000;
  const std::string text = prometheus_text({}, stats, {}, "m");
  for (const std::string_view line :
       {"deepmint:replayed_prompt_tokens_total{model_name=\"m\"} 11\n",
        "deepmint:cache_evictions_total{model_name=\"m\"} 12\n",
        "deepmint:preempted_total{model_name=\"m\"} 13\n",
        "deepmint:engine_step_seconds_total{model_name=\"m\"} 3\n",
        "deepmint:engine_step_gap_seconds_total{model_name=\"m\"} 0.5\n",
        "deepmint:state_bytes{model_name=\"m\",use=\"running\"} 14\n",
        "deepmint:state_bytes{model_name=\"m\",use=\"cached\"} 15\n",
        "deepmint:state_bytes{model_name=\"m\",use=\"snapshots\"} 16\n",
        "deepmint:state_bytes{model_name=\"m\",use=\"parked\"} 17\n",
        "deepmint:state_bytes{model_name=\"m\",use=\"free\"} 18\n",
        "deepmint:state_bytes{model_name=\"m\",use=\"books\"} 19\n"})
    EXPECT_THAT(text, HasSubstr(std::string(line)));
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
  EXPECT_EQ(ApiKeys::load("/").error().str(), "/: expected a regular file, found a directory");
  EXPECT_EQ(ApiKeys::load("/dev/zero").error().str(),
            "/dev/zero: expected a regular file, found a device");
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
  EXPECT_EQ(where([](auto& c) { c.max_total_body_bytes = 1 << 20; }),
            "server.max_total_body_bytes: expected at least server.max_body_bytes, 33554432, found "
            "1048576");
  EXPECT_EQ(where([](auto&) {}), "started");
}

TEST(ServerStart, AConnectionWaitsFromBindToServe) {
  ScriptedEngine engine([](const GenerationRequest&) { return ScriptedEngine::Play{}; });
  deepmint::ServerConfig config;
  config.port = 0;
  auto bound = HttpServer::bind(config);
  ASSERT_TRUE(bound) << bound.error().str();
  RawClient early((*bound)->port());
  ASSERT_TRUE(early.connected());
  ASSERT_TRUE(early.send(get("/health")));
  config.port = (*bound)->port();
  const auto second = HttpServer::bind(config);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kUnavailable);
  ASSERT_TRUE((*bound)->serve(deepmint::testing::test_model(engine)));
  EXPECT_EQ(early.read_reply().status, 200);
  // Bound and never served: nothing to wait for.
  config.port = 0;
  auto unused = HttpServer::bind(config);
  ASSERT_TRUE(unused);
  (*unused)->stop(std::chrono::seconds(10));
}

}  // namespace
}  // namespace deepmint
