// HTTP/1.0 and 1.1 over TCP: sockets, parsing, framing, timeouts, back-pressure. Knows nothing of
// models or JSON APIs.
//
//   struct Hello : HttpHandler {
//     std::optional<Response> check(const RequestHead&) override { return std::nullopt; }
//     void handle(RequestHead, Body, std::shared_ptr<Exchange> exchange) override {
//     exchange->respond({.body = "{}"}); }
//   };
//   DEEPMINT_TRY(transport, HttpTransport::start(config, std::make_shared<Hello>()));
//
// A connection belongs to one io thread for life, and its requests are answered one after another
// in order of arrival. Whoever produces an answer elsewhere (a worker, the engine) keeps the shared
// Exchange and calls wake(); the io thread then calls Responder::pump, which writes what there is.
// Nothing that another thread may call ever waits for a socket.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "deepmint/result.h"
#include "server/config.h"
#include "server/http/message.h"

namespace deepmint::http {

class Exchange;

// The source of one answer. All calls come from the exchange's io thread, one at a time, and must
// not block.
class Responder {
 public:
  virtual ~Responder() = default;
  virtual void pump(Exchange& exchange) = 0;  // after wake(); many wakes may be one pump
  virtual void keep_alive(Exchange&) {}       // a stream has been silent for keep_alive_ms
  virtual void shutting_down(
      Exchange& exchange) = 0;  // drain deadline passed: end the exchange now, with an error
  virtual void
  client_gone() = 0;  // closed, reset, half-closed or too slow: stop the work. The last call
};

// One request waiting for its answer. It ends with respond() or finish(), or when the client goes.
// The client is a connection here; local_api.h has one without a network.
class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  virtual ~Exchange() = default;

  // Any thread.
  virtual void wake() = 0;  // asks for a pump; cheap, never blocks
  bool closed() const {
    return closed_.load(std::memory_order_acquire);
  }  // ended, one way or the other

  // Io thread only; each does nothing once closed().
  void set_responder(std::shared_ptr<Responder> responder) { responder_ = std::move(responder); }
  virtual void respond(const Response& response) = 0;  // the whole answer
  virtual void begin_stream(
      const Response& head) = 0;  // status and headers; head.body is the first bytes of the stream
  virtual void write(
      std::string_view bytes) = 0;  // what one pump writes leaves as one chunk, in one send
  virtual void finish() = 0;

  // For whoever owns the exchange, on the io thread.
  const std::shared_ptr<Responder>& responder() const { return responder_; }
  std::shared_ptr<Responder> close() {  // the answer is whole, or nobody waits for it any more
    closed_.store(true, std::memory_order_release);
    return std::move(responder_);
  }

 private:
  std::shared_ptr<Responder> responder_;
  std::atomic<bool> closed_{false};
};

// What the transport asks of the layer above. Called on io threads; must not block or throw.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Before the body is read: an answer refuses the request (no such path, no permission, wrong
  // content type).
  virtual std::optional<Response> check(const RequestHead& head) = 0;
  // The complete request. Answer on the exchange now, or set a responder and wake() it later.
  virtual void handle(RequestHead head, Body body, std::shared_ptr<Exchange> exchange) = 0;
};

struct TransportStats {
  std::atomic<int64_t> connections{0};  // open now
  std::atomic<int64_t> exchanges{0};    // requests between handle() and their end
  std::atomic<int64_t> accepted{0}, refused{0};
  std::atomic<int64_t> clients_gone{0};  // exchanges that ended because the client did
  std::atomic<int64_t> stalled{0};       // of those: reader too slow
};

class HttpTransport {
 public:
  // Listens without answering yet: connections wait in the system's queue until serve(), which is
  // called once. Errors: kInvalidArgument (host), kUnavailable (cannot bind or listen).
  static Result<std::unique_ptr<HttpTransport>> bind(const ServerConfig& config);
  Status serve(std::shared_ptr<HttpHandler> handler);
  // Both at once.
  static Result<std::unique_ptr<HttpTransport>> start(const ServerConfig& config,
                                                      std::shared_ptr<HttpHandler> handler);
  ~HttpTransport();  // close()

  uint16_t port() const;
  std::string address() const;  // "127.0.0.1", "[::1]"
  bool loopback() const;        // reachable from this machine only
  const TransportStats& stats() const;

  void
  stop_accepting();  // closes the listener and idle connections; answers carry connection: close
  bool wait_idle(std::chrono::milliseconds limit);  // true when no exchange is left
  void end_exchanges();                             // Responder::shutting_down for each
  void close();                                     // closes everything, joins the io threads

 private:
  struct Impl;
  explicit HttpTransport(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepmint::http
