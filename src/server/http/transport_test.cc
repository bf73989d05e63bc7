#include "server/http/transport.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "server/testing/raw_client.h"

namespace deepmint::http {
namespace {

using deepmint::testing::get;
using deepmint::testing::post;
using deepmint::testing::RawClient;
using deepmint::testing::Reply;

// A stream that a test writes into from its own thread, as the engine would.
class TestStream : public Responder {
 public:
  void attach(std::shared_ptr<Exchange> exchange) { exchange_ = std::move(exchange); }
  void put(std::string text) { put_all({std::move(text)}); }
  void put_all(std::vector<std::string> texts) {
    const std::lock_guard lock(mutex_);
    for (std::string& text : texts) pending_.push_back(std::move(text));
    exchange_->wake();
  }
  void end() { put(""); }
  bool wait_gone(std::chrono::milliseconds limit = std::chrono::seconds(20)) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit, [&] { return gone_; });
  }
  bool gone() {
    const std::lock_guard lock(mutex_);
    return gone_;
  }

  int pumps() const { return pumps_; }

  void pump(Exchange& exchange) override {
    std::vector<std::string> now;
    {
      const std::lock_guard lock(mutex_);
      now.swap(pending_);
    }
    for (const std::string& text : now) text.empty() ? exchange.finish() : exchange.write(text);
    ++pumps_;
  }
  void keep_alive(Exchange& exchange) override { exchange.write(":k"); }
  void shutting_down(Exchange& exchange) override {
    exchange.write("bye");
    exchange.finish();
  }
  void client_gone() override {
    const std::lock_guard lock(mutex_);
    gone_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<Exchange> exchange_;
  std::vector<std::string> pending_;
  bool gone_ = false;
  std::atomic<int> pumps_{0};
};

class TestHandler : public HttpHandler {
 public:
  std::optional<Response> check(const RequestHead& head) override {
    if (head.path() == "/refused") return error_response(http_error(401, "no"));
    return std::nullopt;
  }
  void handle(RequestHead head, Body body, std::shared_ptr<Exchange> exchange) override {
    if (head.path() == "/echo") return exchange->respond({.body = head.method + " " + body.text()});
    if (head.path() == "/held") {  // answers nothing until released
      const std::lock_guard lock(mutex_);
      bodies_.push_back(std::move(body));
    }
    auto stream = std::make_shared<TestStream>();
    stream->attach(exchange);
    exchange->set_responder(stream);
    if (head.path() == "/stream")
      exchange->begin_stream({.content_type = "text/plain", .body = "first;"});
    const std::lock_guard lock(mutex_);
    streams_.push_back(std::move(stream));
    changed_.notify_all();
  }
  std::shared_ptr<TestStream> next_stream() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::seconds(20), [&] { return !streams_.empty(); }))
      return nullptr;
    auto out = streams_.front();
    streams_.pop_front();
    return out;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<TestStream>> streams_;
  std::vector<Body> bodies_;
};

class Transport : public ::testing::Test {
 protected:
  void start(const std::function<void(ServerConfig&)>& change = {}) {
    ServerConfig config;
    config.port = 0;
    if (change) change(config);
    auto started = HttpTransport::start(config, handler_);
    ASSERT_TRUE(started) << started.error().str();
    transport_ = std::move(*started);
  }
  uint16_t port() const { return transport_->port(); }
  Reply once(std::string_view request) {
    RawClient client(port());
    client.send(request);
    return client.read_reply();
  }
  std::shared_ptr<TestHandler> handler_ = std::make_shared<TestHandler>();
  std::unique_ptr<HttpTransport> transport_;
};

TEST_F(Transport, KeepAliveAnswersInOrder) {
  start();
  RawClient client(port());
  for (int i = 0; i < 3; ++i) {
    client.send(post("/echo", std::to_string(i)));
    const Reply reply = client.read_reply();
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.body, "POST " + std::to_string(i));
    EXPECT_FALSE(reply.headers.contains("connection"));
    EXPECT_EQ(reply.headers.at("server"), "deepmint");
    EXPECT_EQ(reply.headers.at("date").size(), 29u);
  }
  client.send(post("/echo", "x", "Connection: close\r\n"));
  EXPECT_EQ(client.read_reply().headers.at("connection"), "close");
  EXPECT_TRUE(client.ended());
}

TEST_F(Transport, PipelinedRequestsAreSequential) {
  start();
  std::string all;
  constexpr int kCount = 5000;
  for (int i = 0; i < kCount; ++i) all += post("/echo", std::to_string(i));
  RawClient client(port());
  std::thread sender([&] { client.send(all); });
  for (int i = 0; i < kCount; ++i) ASSERT_EQ(client.read_reply().body, "POST " + std::to_string(i));
  sender.join();
}

TEST_F(Transport, ARequestBehindAStreamWaits) {
  start();
  RawClient client(port());
  client.send(get("/stream") + post("/echo", "later"));
  const auto stream = handler_->next_stream();
  stream->put("second");
  stream->end();
  const Reply streamed = client.read_reply();
  EXPECT_EQ(streamed.status, 200);
  EXPECT_EQ(streamed.body, "first;second");
  EXPECT_EQ(client.read_reply().body, "POST later");
  EXPECT_FALSE(stream->gone());
}

TEST_F(Transport, EveryCutOfTheRequestGivesTheSameAnswer) {
  start();
  const std::string plain = post("/echo", "{\"a\":1}");
  const std::string chunked =
      "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: "
      "chunked\r\n\r\n3;ext=1\r\n{\"a\r\n4\r\n\":1}\r\n0\r\nTrailer: x\r\n\r\n";
  for (const std::string& request : {plain, chunked}) {
    for (size_t cut = 1; cut < request.size(); ++cut) {
      RawClient client(port());
      client.send(std::string_view(request).substr(0, cut));
      // A second connection's round trip makes sure that the first part has been read by itself.
      ASSERT_EQ(once(get("/echo")).status, 200);
      client.send(std::string_view(request).substr(cut));
      ASSERT_EQ(client.read_reply().body, "POST {\"a\":1}") << cut;
    }
  }
}

TEST_F(Transport, DisconnectAtEveryByteOfTheRequest) {
  start();
  const std::string request = post("/stream", "{\"a\":1}");
  for (size_t cut = 0; cut < request.size(); ++cut) {
    RawClient client(port());
    client.send(std::string_view(request).substr(0, cut));
    if (cut % 3 == 0) client.half_close();
    if (cut % 3 == 1) client.reset();
    client.close();
  }
  ASSERT_EQ(once(get("/echo")).status, 200);
  EXPECT_EQ(transport_->stats().exchanges, 0);
  RawClient whole(port());  // the whole request, then gone: the work is told
  whole.send(request);
  const auto stream = handler_->next_stream();
  whole.close();
  EXPECT_TRUE(stream->wait_gone());
}

TEST_F(Transport, DisconnectAtEveryByteOfTheResponse) {
  start();
  RawClient whole(port());
  whole.send(get("/stream"));
  const auto ended = handler_->next_stream();
  ended->put("some more text");
  ended->end();
  const std::string last_chunk = "0\r\n\r\n";
  std::string seen;
  while (!seen.ends_with(last_chunk)) seen += whole.read_some(10'000);
  const size_t length =
      seen.size() - last_chunk.size();  // every byte that comes before the end is in sight
  for (size_t cut = 0; cut < length; ++cut) {
    RawClient client(port());
    client.send(get("/stream"));
    const auto stream = handler_->next_stream();
    stream->put("some more text");
    client.read_exactly(cut);
    switch (cut % 3) {
      case 0:
        client.half_close();
        break;
      case 1:
        client.reset();
        break;
      default:
        client.close();
    }
    ASSERT_TRUE(stream->wait_gone()) << cut;
  }
  EXPECT_TRUE(transport_->wait_idle(std::chrono::seconds(20)));
}

TEST_F(Transport, AResetIsSeenBehindUnreadInput) {
  start();
  RawClient client(port());
  client.send(get("/stream"));
  const auto stream = handler_->next_stream();
  client.send(std::string(300'000, 'x'));  // more than is kept while an answer is made
  EXPECT_FALSE(stream->gone());
  client.reset();
  EXPECT_TRUE(stream->wait_gone());
}

TEST_F(Transport, OnePumpIsOneChunk) {
  start();
  RawClient client(port());
  client.send(get("/stream"));
  const auto stream = handler_->next_stream();
  stream->put_all({"a", "b", "c"});
  EXPECT_EQ(client.read_exactly(1), "H");
  while (stream->pumps() < 1) std::this_thread::yield();
  stream->put_all({"d", "e", ""});
  client.unread("H");
  EXPECT_EQ(client.read_reply().chunks, (std::vector<std::string>{"first;", "abc", "de"}));
  EXPECT_EQ(stream->pumps(), 2);
}

TEST_F(Transport, AStalledReaderIsCancelled) {
  start([](ServerConfig& c) { c.write_timeout_ms = 60; });
  RawClient client(port(), /*small_buffers=*/true);
  client.send(get("/stream"));
  const auto stream = handler_->next_stream();
  // More than both socket buffers hold, less than the output limit.
  for (int i = 0; i < 300; ++i) stream->put(std::string(10'000, 'x'));
  EXPECT_TRUE(stream->wait_gone());
  EXPECT_EQ(transport_->stats().stalled, 1);
}

TEST_F(Transport, AReaderFarBehindIsCancelled) {
  start([](ServerConfig& c) { c.max_output_bytes = 1 << 20; });
  RawClient client(port(), /*small_buffers=*/true);
  client.send(get("/stream"));
  const auto stream = handler_->next_stream();
  for (int i = 0; i < 20000 && !stream->gone(); ++i) stream->put(std::string(10'000, 'x'));
  EXPECT_TRUE(stream->wait_gone());
  EXPECT_EQ(once(get("/echo")).status, 200);
}

TEST_F(Transport, ASlowReaderGetsEverything) {
  start();
  RawClient client(port(), /*small_buffers=*/true);
  client.send(get("/stream"));
  const auto stream = handler_->next_stream();
  std::string expected = "first;";
  for (int i = 0; i < 200; ++i) {
    const std::string piece(10'000, static_cast<char>('a' + i % 26));
    expected += piece;
    stream->put(piece);
  }
  stream->end();
  EXPECT_EQ(client.read_reply().body, expected);
  EXPECT_FALSE(stream->gone());
}

TEST_F(Transport, SilentStreamsGetKeepAlives) {
  start([](ServerConfig& c) { c.keep_alive_ms = 20; });
  RawClient client(port());
  client.send(get("/stream"));
  const auto stream = handler_->next_stream();
  std::string seen;
  while (seen.find(":k\r\n2\r\n:k") == std::string::npos) {
    const std::string more = client.read_some(1000);
    ASSERT_FALSE(more.empty());
    seen += more;
  }
  stream->end();
}

TEST_F(Transport, SlowHeadsAndBodiesTimeOut) {
  start([](ServerConfig& c) { c.header_timeout_ms = c.body_timeout_ms = 60; });
  RawClient silent(port()), head(port()), body(port());
  head.send("GET /echo HTT");
  body.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc");
  EXPECT_TRUE(silent.ended());
  EXPECT_EQ(head.read_reply().status, 408);
  EXPECT_TRUE(head.ended());
  EXPECT_EQ(body.read_reply().status, 408);
  EXPECT_TRUE(body.ended());
}

TEST_F(Transport, ByteByByteDoesNotExtendTheHeadTimeout) {
  start([](ServerConfig& c) { c.header_timeout_ms = 80; });
  RawClient client(port());
  client.send("GET /echo HTTP/1.1\r\nX: ");
  std::atomic<bool> answered{false};
  std::thread dripping([&] {
    while (!answered && client.send("y"))
      ASSERT_EQ(once(get("/echo")).status, 200);  // a round trip between two bytes
  });
  EXPECT_EQ(client.read_reply().status, 408);
  answered = true;
  dripping.join();
}

TEST_F(Transport, IdleConnectionsAreClosed) {
  start([](ServerConfig& c) { c.idle_timeout_ms = 40; });
  RawClient client(port());
  client.send(get("/echo"));
  EXPECT_EQ(client.read_reply().status, 200);
  EXPECT_TRUE(client.ended());
}

TEST_F(Transport, LimitsOnHeadAndBody) {
  start([](ServerConfig& c) {
    c.max_header_bytes = 4096;
    c.max_body_bytes = 1000;
  });
  EXPECT_EQ(once(get("/echo", "X: " + std::string(5000, 'a') + "\r\n")).status, 431);
  std::string many;
  for (int i = 0; i < 200; ++i) many += "A: b\r\n";
  EXPECT_EQ(once(get("/echo", many)).status, 431);
  EXPECT_EQ(once(get("/" + std::string(5000, 'a'))).status, 414);
  EXPECT_EQ(once(post("/echo", std::string(1000, 'a'))).status, 200);
  EXPECT_EQ(once(post("/echo", std::string(1001, 'a'))).status, 413);
  EXPECT_EQ(once(post("/echo", std::string(5'000'000, 'a'))).status,
            413);  // the answer survives the unread rest
  const std::string chunked =
      "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
  EXPECT_EQ(once(chunked + "3e8\r\n" + std::string(1000, 'a') + "\r\n1\r\nb\r\n0\r\n\r\n").status,
            413);
  EXPECT_EQ(once(chunked + "ffffffffffffffff\r\n").status, 413);
  EXPECT_EQ(once(chunked + "1;" + std::string(100'000, 'e')).status, 400);
  const Reply error = once(post("/echo", std::string(1001, 'a')));
  EXPECT_EQ(
      error.body,
      R"({"error":{"message":"the request body is larger than 1000 bytes","type":"invalid_request_error","param":null,)"
      R"("code":"invalid_request_error"}})");
  EXPECT_EQ(error.headers.at("connection"), "close");
}

TEST_F(Transport, BodiesTogetherAreBounded) {
  start([](ServerConfig& c) {
    c.max_body_bytes = 100'000;
    c.max_total_body_bytes = 150'000;
  });
  RawClient first(port());
  first.send(post("/held", std::string(100'000, 'a')));
  const auto stream = handler_->next_stream();
  const Reply full = once(post("/echo", std::string(100'000, 'a')));
  EXPECT_EQ(full.status, 503);
  EXPECT_EQ(full.headers.at("retry-after"), "1");
  EXPECT_EQ(once("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffff\r\n" +
                 std::string(65535, 'a'))
                .status,
            503);
  EXPECT_EQ(once(post("/echo", std::string(10'000, 'a'))).status, 200);
  handler_ = nullptr;  // the held body goes with the handler's list at the end
  first.close();
  EXPECT_TRUE(stream->wait_gone());
}

TEST_F(Transport, MalformedRequestsAre4xx) {
  start();
  const struct {
    std::string_view request;
    int status;
  } cases[] = {
      {"GET\r\n\r\n", 400},
      {"GET / HTTP/2.0\r\n\r\n", 505},
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
      {"GET / HTTP/1.1\r\n\r\n", 400},  // no Host
      {"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
      {"GET / HTTP/1.1\nHost: a\n\n", 400},
      {"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: a\r\n: b\r\n\r\n", 400},
      {"GET /\x01 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400},
      {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400},
      {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999999\r\n\r\n", 400},
      {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400},
      {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: "
       "chunked\r\n\r\nabc",
       400},
      {"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: "
       "3\r\n\r\nabc",
       400},
      {"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\nabc", 501},
      {"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\nabc", 501},
      {"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\nabc", 501},
      {"POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 400},
      {"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcdef\r\n", 400},
      {"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n-3\r\nabc\r\n", 400},
      {"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: "
       "chunked\r\n\r\n11111111111111111\r\nabc\r\n",
       400},
      {"POST /echo HTTP/1.1\r\nHost: a\r\nExpect: tea\r\nContent-Length: 3\r\n\r\nabc", 417},
  };
  for (const auto& c : cases) {
    const Reply reply = once(c.request);
    EXPECT_EQ(reply.status, c.status) << c.request;
    EXPECT_TRUE(reply.body.starts_with("{\"error\":{\"message\":\"")) << reply.body;
  }
  EXPECT_EQ(once(get("/echo")).status, 200);
}

TEST_F(Transport, EmptyLinesBetweenRequestsAreHarmless) {
  start();
  RawClient client(port());
  client.send("\r\n\r\n" + post("/echo", "a") + "\r\n" + post("/echo", "b"));
  EXPECT_EQ(client.read_reply().body, "POST a");
  EXPECT_EQ(client.read_reply().body, "POST b");
}

TEST_F(Transport, ExpectContinue) {
  start();
  RawClient client(port());
  client.send(
      "POST /echo HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
  EXPECT_EQ(client.read_reply().status, 100);
  client.send("abc");
  EXPECT_EQ(client.read_reply().body, "POST abc");
  // A refusal comes instead of the invitation, and the connection ends: nobody knows whether the
  // body follows.
  client.send(
      "POST /refused HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
  EXPECT_EQ(client.read_reply().status, 401);
  EXPECT_TRUE(client.ended());
}

TEST_F(Transport, ARefusedSmallBodyKeepsTheConnection) {
  start();
  RawClient client(port());
  client.send(post("/refused", "abc") + post("/echo", "next"));
  EXPECT_EQ(client.read_reply().status, 401);
  EXPECT_EQ(client.read_reply().body, "POST next");
  client.send(post("/refused", std::string(200'000, 'a')));
  EXPECT_EQ(client.read_reply().status, 401);
  EXPECT_TRUE(client.ended());
}

TEST_F(Transport, Http10) {
  start();
  RawClient one(port());
  one.send("GET /echo HTTP/1.0\r\n\r\n");
  EXPECT_EQ(one.read_reply().body, "GET ");
  EXPECT_TRUE(one.ended());
  RawClient kept(port());
  kept.send("GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_EQ(kept.read_reply().headers.at("connection"), "keep-alive");
  kept.send("GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  const auto stream = handler_->next_stream();
  stream->put("rest");
  stream->end();
  const Reply reply = kept.read_reply();
  EXPECT_FALSE(reply.headers.contains("transfer-encoding"));
  EXPECT_EQ(reply.body, "first;rest");
}

TEST_F(Transport, HeadHasNoBody) {
  start();
  RawClient client(port());
  client.send("HEAD /echo HTTP/1.1\r\nHost: a\r\n\r\n" + get("/echo"));
  EXPECT_EQ(client.read_reply(/*head_only=*/true).headers.at("content-length"), "5");
  EXPECT_EQ(client.read_reply().body, "GET ");
}

TEST_F(Transport, AHalfClosedClientGetsWhatIsReady) {
  start();
  RawClient client(port());
  client.send(get("/echo"));
  client.half_close();
  EXPECT_EQ(client.read_reply().body, "GET ");
  EXPECT_TRUE(client.ended());
}

TEST_F(Transport, ManyConnectionsAtOnce) {
  start([](ServerConfig& c) { c.io_threads = 2; });
  std::vector<std::unique_ptr<RawClient>> clients;
  std::vector<std::shared_ptr<TestStream>> streams;
  for (int i = 0; i < 200; ++i) {
    clients.push_back(std::make_unique<RawClient>(port()));
    ASSERT_TRUE(clients.back()->send(get("/stream")));
    streams.push_back(handler_->next_stream());
    ASSERT_TRUE(streams.back());
  }
  for (int i = 0; i < 200; ++i) {
    streams[i]->put(std::to_string(i));
    streams[i]->end();
  }
  for (int i = 0; i < 200; ++i)
    EXPECT_EQ(clients[i]->read_reply().body, "first;" + std::to_string(i));
  EXPECT_TRUE(transport_->wait_idle(std::chrono::seconds(20)));
}

TEST_F(Transport, TooManyConnectionsAreTurnedAway) {
  start([](ServerConfig& c) { c.max_connections = 2; });
  RawClient a(port()), b(port());
  a.send(get("/echo"));
  b.send(get("/echo"));
  EXPECT_EQ(a.read_reply().status, 200);
  EXPECT_EQ(b.read_reply().status, 200);
  RawClient c(port());
  const Reply refused = c.read_reply();
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
}

TEST_F(Transport, DrainLetsRunningExchangesFinish) {
  start();
  RawClient idle(port()), busy(port()), held(port());
  idle.send(get("/echo"));
  EXPECT_EQ(idle.read_reply().status, 200);
  busy.send(get("/stream"));
  const auto first = handler_->next_stream();
  held.send(get("/stream"));
  const auto second = handler_->next_stream();
  transport_->stop_accepting();
  EXPECT_TRUE(idle.ended());
  EXPECT_FALSE(transport_->wait_idle(std::chrono::milliseconds(1)));
  first->put("end");
  first->end();
  EXPECT_EQ(busy.read_reply().body, "first;end");
  EXPECT_TRUE(busy.ended());
  transport_->end_exchanges();
  EXPECT_EQ(held.read_reply().body, "first;bye");
  EXPECT_TRUE(transport_->wait_idle(std::chrono::seconds(20)));
  transport_->close();
  EXPECT_FALSE(RawClient(port()).connected());
  second->put("after the end");  // harmless
}

TEST_F(Transport, CloseWithOpenStreams) {
  start();
  RawClient client(port());
  client.send(get("/stream"));
  const auto stream = handler_->next_stream();
  transport_.reset();
  EXPECT_TRUE(stream->gone());
  stream->put("x");
  EXPECT_TRUE(client.ended());
}

TEST_F(Transport, PortsAndNames) {
  start();
  ServerConfig config;
  config.port = port();
  const auto taken = HttpTransport::start(config, handler_);
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().str(),
            "127.0.0.1:" + std::to_string(port()) + ": cannot listen: Address already in use");
  EXPECT_EQ(taken.error().code, ErrorCode::kUnavailable);
  config.host = "not a host";
  EXPECT_EQ(HttpTransport::start(config, handler_).error().where, "server.host");
}

TEST(Message, Paths) {
  const auto path = [](std::string target) {
    RequestHead head;
    head.target = std::move(target);
    return std::string(head.path());
  };
  EXPECT_EQ(path("/a/b?c=/d"), "/a/b");
  EXPECT_EQ(path("http://host:80/a?b"), "/a");
  EXPECT_EQ(path("http://host"), "/");
  EXPECT_EQ(path("*"), "*");
  EXPECT_EQ(percent_decode("a%2Fb%20"), "a/b ");
  EXPECT_EQ(percent_decode("%2"), std::nullopt);
  EXPECT_EQ(percent_decode("%gg"), std::nullopt);
  EXPECT_EQ(http_date(784111777), "Sun, 06 Nov 1994 08:49:37 GMT");
}

}  // namespace
}  // namespace deepmint::http
