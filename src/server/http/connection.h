// Inside of the transport: one io thread and the connections that belong to it. The only header
// that includes Asio and Beast; only connection.cc and transport.cc may include it.
#pragma once

#include <array>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "server/config.h"
#include "server/http/message.h"
#include "server/http/transport.h"

namespace deepmint::http {

namespace asio = boost::asio;
namespace beast = boost::beast;
using asio::ip::tcp;
using SteadyTime = std::chrono::steady_clock::time_point;

class Connection;
class WakeQueue;

// An exchange whose client is a connection.
class ConnectionExchange final : public Exchange {
 public:
  ConnectionExchange(Connection* connection, std::shared_ptr<WakeQueue> queue)
      : connection_(connection), queue_(std::move(queue)) {}
  void wake() override;
  void respond(const Response& response) override;
  void begin_stream(const Response& head) override;
  void write(std::string_view bytes) override;
  void finish() override;

  // Io thread, from its connection and its queue.
  void pump();
  std::shared_ptr<Responder> leave();  // ends it: the connection has gone, or has its answer

 private:
  Connection* connection_;  // null once closed
  std::shared_ptr<WakeQueue> queue_;
  std::atomic<bool> wake_pending_{false};
};

// Exchanges that want a pump. Any thread pushes; one posted task per batch drains them all, so one
// step of the engine costs one wake-up of the io thread, not one per stream.
class WakeQueue {
 public:
  explicit WakeQueue(asio::io_context& context) : context_(&context) {}
  void push(std::shared_ptr<ConnectionExchange> exchange);
  void stop();  // before the context goes; later pushes do nothing

 private:
  void drain();  // io thread
  std::mutex mutex_;
  asio::io_context* context_;
  std::vector<std::shared_ptr<ConnectionExchange>> pending_;
  std::vector<std::shared_ptr<ConnectionExchange>> draining_;  // io thread only; keeps its capacity
  bool scheduled_ = false;
};

// What all connections of a transport share.
struct Shared {
  explicit Shared(const ServerConfig& c)
      : config(c), budget(std::make_shared<BodyBudget>(c.max_total_body_bytes)) {}
  void exchange_ended();

  const ServerConfig config;
  std::shared_ptr<HttpHandler> handler;  // set before the first io thread starts
  const std::shared_ptr<BodyBudget> budget;
  TransportStats stats;
  std::atomic<bool> draining{false};
  std::mutex idle_mutex;
  std::condition_variable idle;
};

// One io thread: its event loop, its connections, and a coarse timer that looks after their
// deadlines.
class Loop {
 public:
  Loop(std::shared_ptr<Shared> shared, int index);
  ~Loop();

  void start_thread();
  void adopt(tcp::socket socket);                        // any thread
  void for_each(std::function<void(Connection&)> call);  // any thread; runs on the loop
  void stop();  // any other thread: closes everything and joins

  asio::io_context& context() { return context_; }
  Shared& shared() { return *shared_; }
  const std::shared_ptr<WakeQueue>& wakes() const { return wakes_; }
  std::array<char, 64 << 10>& scratch() { return scratch_; }
  std::string_view date();  // for the date header, one format per second
  void forget(Connection& connection);

 private:
  void run();
  void arm_sweep();
  void sweep();

  const std::shared_ptr<Shared> shared_;
  const int index_;
  asio::io_context context_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_{context_.get_executor()};
  std::shared_ptr<WakeQueue> wakes_;
  asio::steady_timer sweep_timer_{context_};
  std::chrono::milliseconds sweep_interval_;
  bool sweeping_ = false, stopping_ = false;
  std::unordered_set<std::shared_ptr<Connection>> connections_;
  std::vector<std::shared_ptr<Connection>> swept_;  // scratch of sweep()
  std::array<char, 64 << 10> scratch_;              // what is read goes through here
  std::string date_;
  int64_t date_second_ = -1;
  std::thread thread_;
};

// Turns request bytes into a RequestHead and a Body. Beast does the grammar.
class RequestParser : public beast::http::basic_parser<true> {
 public:
  RequestParser(std::shared_ptr<BodyBudget> budget, size_t max_head_bytes)
      : body(std::move(budget)), max_head_bytes_(max_head_bytes) {}
  RequestHead head;
  Body body;
  bool budget_exceeded = false, target_too_long = false;

 private:
  using Verb = beast::http::verb;
  using Field = beast::http::field;
  using View = beast::string_view;
  using Code = beast::error_code;
  void on_request_impl(Verb, View method, View target, int version, Code&) override;
  void on_response_impl(int, View, int, Code&) override {}
  void on_field_impl(Field, View name, View value, Code&) override;
  void on_header_impl(Code&) override { head_done_ = true; }
  void on_body_init_impl(const boost::optional<std::uint64_t>& length, Code&) override;
  std::size_t on_body_impl(View bytes, Code&) override;
  void on_chunk_header_impl(std::uint64_t, View, Code&) override {}
  std::size_t on_chunk_body_impl(std::uint64_t remaining, View bytes, Code& ec) override;
  void on_finish_impl(Code&) override {}
  const size_t max_head_bytes_;
  size_t head_bytes_ = 0;
  bool head_done_ = false;  // trailer fields of a chunked body are read and dropped
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Loop& loop, tcp::socket socket);
  ~Connection();

  void start();
  void sweep(SteadyTime now);  // deadlines
  void stop_accepting();       // closes when idle
  void end_exchange();         // Responder::shutting_down
  void abort();                // closes now; the client of a running exchange counts as gone

  // From Exchange.
  void pump(Exchange& exchange);
  void respond(const Response& response);
  void begin_stream(const Response& head);
  void write(std::string_view bytes);
  void finish();

 private:
  enum class Phase : uint8_t { kHead, kBody, kExchange, kLinger, kClosed };

  template <class F>
  void guarded(
      F&& body);  // third-party and allocation exceptions end the connection, not the thread
  void arm_read();
  void on_readable();
  void on_reset_wait();
  void on_end_of_input();
  void take(std::string_view fresh);  // bytes from the socket
  void parse_buffered();
  void parse(std::string_view&
                 rest);  // takes requests off `rest` until one is being answered or more is needed
  bool parse_step(std::string_view& rest);
  bool check_head(bool body_follows_at_once);  // false: refused
  void dispatch();
  void refuse(const Response& response);  // answers without reading the rest, then closes
  void refuse_parse_error(const beast::error_code& ec, std::string_view rest);
  void end_exchange_state(bool client_gone);
  void seal_chunk();
  void advance();
  void flush();
  void wait_writable();
  void linger_or_close();
  void close();
  bool may_keep_alive() const;

  Loop& loop_;
  Shared& shared_;
  tcp::socket socket_;
  Phase phase_ = Phase::kHead;
  bool read_armed_ = false, reset_armed_ = false, write_armed_ = false, input_ended_ = false;
  bool keep_alive_ = true, keep_alive_asked_ = false, close_after_flush_ = false;
  bool streaming_ = false, chunked_ = false, stream_closes_ = false, head_only_ = false;
  bool first_request_ = true;
  int request_version_ = 11;

  std::string in_;  // received, not parsed
  std::unique_ptr<RequestParser> parser_;
  std::optional<Response> refusal_;  // to be sent once the small body has been read
  std::shared_ptr<ConnectionExchange> exchange_;
  std::string chunk_;  // written by the pump that is running
  std::string out_;    // waits for the socket, from out_sent_ on
  size_t out_sent_ = 0;
  SteadyTime phase_since_, last_write_, last_progress_;
};

}  // namespace deepmint::http
