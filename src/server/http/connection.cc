#include "server/http/connection.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <exception>
#include <utility>

#include "core/log.h"

namespace deepmint::http {
namespace {

using std::chrono::milliseconds;
using HttpError = beast::http::error;

constexpr size_t kReadPerTurn =
    256 << 10;  // bytes taken from one socket before the others get their turn
constexpr size_t kMaxUnparsed = 64 << 10;  // pipelined bytes kept while an answer is being made
constexpr size_t kMaxPipelinedOut =
    256 << 10;  // answers to pipelined requests that may wait before parsing goes on
constexpr size_t kIdleCapacity = 4 << 10;  // buffers of a quiet connection are not larger than this
constexpr uint64_t kReadThrough =
    64 << 10;  // a refused request's body up to this size is read, to keep the connection
constexpr auto kLingerTime = milliseconds(2000);
constexpr size_t kFieldOverhead = 32;  // so that thousands of tiny headers count for what they cost
constexpr size_t kMaxTarget = 8 << 10;

SteadyTime now() { return std::chrono::steady_clock::now(); }

std::string_view view(beast::string_view s) { return {s.data(), s.size()}; }

}  // namespace

// --- RequestParser

void RequestParser::on_request_impl(Verb, View method, View target, int version, Code& ec) {
  head.method = view(method);
  head.target = view(target);
  head.version = version;
  head_bytes_ = method.size() + target.size();
  if (target.size() > kMaxTarget) {
    target_too_long = true;
    ec = HttpError::header_limit;
  }
}

void RequestParser::on_field_impl(Field, View name, View value, Code& ec) {
  head_bytes_ += name.size() + value.size() + kFieldOverhead;
  if (head_bytes_ > max_head_bytes_) {
    ec = HttpError::header_limit;
    return;
  }
  if (!head_done_) head.headers.emplace_back(view(name), view(value));
}

void RequestParser::on_body_init_impl(const boost::optional<std::uint64_t>& length, Code& ec) {
  if (!length) return;
  if (!body.reserve(static_cast<int64_t>(*length))) {
    budget_exceeded = true;
    ec = HttpError::body_limit;
    return;
  }
  body.text().reserve(static_cast<size_t>(*length));  // the pages are touched only as bytes arrive
}

std::size_t RequestParser::on_body_impl(View bytes, Code& ec) {
  if (body.append(view(bytes))) return bytes.size();
  budget_exceeded = true;
  ec = HttpError::body_limit;
  return 0;
}

std::size_t RequestParser::on_chunk_body_impl(std::uint64_t, View bytes, Code& ec) {
  return on_body_impl(bytes, ec);
}

// --- Exchange

void ConnectionExchange::wake() {
  if (closed() || wake_pending_.exchange(true)) return;
  queue_->push(std::static_pointer_cast<ConnectionExchange>(shared_from_this()));
}

void ConnectionExchange::pump() {
  wake_pending_.store(false);
  if (connection_ != nullptr) connection_->pump(*this);
}

std::shared_ptr<Responder> ConnectionExchange::leave() {
  connection_ = nullptr;
  return close();
}

void ConnectionExchange::respond(const Response& response) {
  if (connection_ != nullptr) connection_->respond(response);
}
void ConnectionExchange::begin_stream(const Response& head) {
  if (connection_ != nullptr) connection_->begin_stream(head);
}
void ConnectionExchange::write(std::string_view bytes) {
  if (connection_ != nullptr) connection_->write(bytes);
}
void ConnectionExchange::finish() {
  if (connection_ != nullptr) connection_->finish();
}

// --- Connection

Connection::Connection(Loop& loop, tcp::socket socket)
    : loop_(loop), shared_(loop.shared()), socket_(std::move(socket)) {
  ++shared_.stats.connections;
}

Connection::~Connection() { --shared_.stats.connections; }

template <class F>
void Connection::guarded(F&& body) {
  try {
    body();
  } catch (const std::exception& e) {
    log().error("connection closed after an exception: {}", e.what());
    abort();
  }
}

void Connection::start() {
  guarded([&] {
    beast::error_code ec;
    socket_.non_blocking(true, ec);
    if (!ec) socket_.set_option(tcp::no_delay(true), ec);
    if (!ec) socket_.set_option(asio::socket_base::keep_alive(true), ec);
    if (ec) return close();  // gone already
    phase_since_ = now();
    arm_read();
  });
}

void Connection::arm_read() {
  if (phase_ == Phase::kClosed || input_ended_) return;
  const auto self = shared_from_this();
  const bool busy = phase_ == Phase::kExchange || out_.size() - out_sent_ >= kMaxPipelinedOut;
  if (busy && in_.size() >= kMaxUnparsed) {
    // No room for more input, so an orderly close cannot be seen; a reset still can.
    if (reset_armed_) return;
    reset_armed_ = true;
    socket_.async_wait(tcp::socket::wait_error, [self](const beast::error_code& ec) {
      self->reset_armed_ = false;
      if (!ec) self->guarded([&] { self->on_reset_wait(); });
    });
    return;
  }
  if (read_armed_) return;
  read_armed_ = true;
  socket_.async_wait(tcp::socket::wait_read, [self](const beast::error_code& ec) {
    self->read_armed_ = false;
    if (!ec) self->guarded([&] { self->on_readable(); });
  });
}

void Connection::on_reset_wait() {
  if (phase_ == Phase::kClosed) return;
  pollfd state{.fd = socket_.native_handle(), .events = 0, .revents = 0};
  // Urgent data also ends the wait; it means nothing here.
  if (::poll(&state, 1, 0) > 0 && (state.revents & (POLLERR | POLLHUP)) != 0) abort();
}

void Connection::on_readable() {
  if (phase_ == Phase::kClosed) return;
  auto& scratch = loop_.scratch();
  for (size_t taken = 0; taken < kReadPerTurn;) {
    beast::error_code ec;
    const size_t n = socket_.read_some(asio::buffer(scratch), ec);
    if (ec == asio::error::would_block || ec == asio::error::try_again) break;
    if (ec == asio::error::interrupted) continue;
    if (ec == asio::error::eof) {
      input_ended_ = true;
      on_end_of_input();
      break;
    }
    if (ec) return abort();
    taken += n;
    take({scratch.data(), n});
    if (phase_ == Phase::kClosed) return;
    if (n < scratch.size() || in_.size() >= kMaxUnparsed) break;
  }
  flush();
  arm_read();
}

void Connection::on_end_of_input() {
  switch (phase_) {
    case Phase::kHead:
      if (out_sent_ == out_.size()) return close();
      close_after_flush_ = true;
      return;
    case Phase::kExchange:  // a half-close counts: nobody is known to wait for the answer
      end_exchange_state(/*client_gone=*/true);
      return close();
    case Phase::kBody:
    case Phase::kLinger:
      return close();
    case Phase::kClosed:
      return;
  }
}

void Connection::take(std::string_view fresh) {
  if (phase_ == Phase::kLinger || close_after_flush_)
    return;  // read only so that the close is orderly
  if (phase_ == Phase::kExchange || !in_.empty()) {
    in_.append(fresh);
    return parse_buffered();
  }
  parse(fresh);
  if (!fresh.empty() && phase_ != Phase::kClosed && !close_after_flush_) in_.assign(fresh);
}

void Connection::parse_buffered() {
  std::string_view rest = in_;
  parse(rest);
  if (phase_ == Phase::kClosed || close_after_flush_) rest = {};
  in_.erase(0, in_.size() - rest.size());
  if (in_.empty() && in_.capacity() > kIdleCapacity) std::string().swap(in_);
}

void Connection::parse(std::string_view& rest) {
  while ((phase_ == Phase::kHead || phase_ == Phase::kBody) && !close_after_flush_ &&
         out_.size() - out_sent_ < kMaxPipelinedOut && parse_step(rest)) {
  }
}

// One call of the parser. False: it needs more bytes than `rest` has, or the request was refused.
bool Connection::parse_step(std::string_view& rest) {
  if (!parser_) {
    while (rest.starts_with('\r') || rest.starts_with('\n'))
      rest.remove_prefix(1);  // between requests: harmless
    if (rest.empty()) return false;
    if (rest.front() == 0x16) {
      refuse(error_response(
          http_error(400, "expected HTTP, found a TLS handshake: this port does not speak TLS")));
      return false;
    }
    parser_ = std::make_unique<RequestParser>(shared_.budget,
                                              static_cast<size_t>(shared_.config.max_header_bytes));
    parser_->header_limit(static_cast<std::uint32_t>(shared_.config.max_header_bytes));
    parser_->body_limit(static_cast<std::uint64_t>(shared_.config.max_body_bytes));
    phase_since_ = now();
  }
  if (rest.empty()) return false;
  beast::error_code ec;
  const size_t used = parser_->put(asio::const_buffer(rest.data(), rest.size()), ec);
  rest.remove_prefix(used);
  if (ec && ec != HttpError::need_more) {
    refuse_parse_error(ec, rest);
    return false;
  }
  bool progress = used > 0;
  if (phase_ == Phase::kHead && parser_->is_header_done()) {
    phase_ = Phase::kBody;
    phase_since_ = now();
    parser_->eager(true);
    progress = true;
    if (!check_head(/*body_follows_at_once=*/!rest.empty())) return false;
  }
  if (parser_->is_done()) {
    dispatch();
    return true;
  }
  if (ec == HttpError::need_more &&
      rest.size() > static_cast<size_t>(shared_.config.max_header_bytes)) {
    refuse(error_response(http_error(400, "expected a chunk header, found too long a line")));
    return false;
  }
  return progress && ec != HttpError::need_more;
}

void Connection::refuse_parse_error(const beast::error_code& ec, std::string_view rest) {
  const auto& config = shared_.config;
  ApiError error;
  if (ec == HttpError::header_limit) {
    if (parser_->target_too_long || parser_->head.method.empty())
      error = http_error(
          414, fmt::format("the request line is longer than {} bytes",
                           std::min(kMaxTarget, static_cast<size_t>(config.max_header_bytes))));
    else
      error = http_error(
          431, fmt::format("the request head is larger than {} bytes", config.max_header_bytes));
  } else if (ec == HttpError::body_limit) {
    if (parser_->budget_exceeded)
      error = http_error(503, "too many large request bodies at one time; try again");
    else
      error = http_error(
          413, fmt::format("the request body is larger than {} bytes", config.max_body_bytes));
  } else if (ec == HttpError::bad_version &&
             rest.substr(0, rest.find('\n')).find(" HTTP/1.") != rest.npos) {
    error = http_error(400, "the request is not valid HTTP: expected CR LF after the version");
  } else if (ec == HttpError::bad_version) {
    error = http_error(505, "expected HTTP/1.0 or HTTP/1.1");
  } else {
    error = http_error(400, fmt::format("the request is not valid HTTP: {}", ec.message()));
  }
  refuse(error_response(error));
}

bool Connection::check_head(bool body_follows_at_once) {
  RequestHead& head = parser_->head;
  if (const auto length = parser_->content_length()) head.content_length = *length;
  head.chunked = parser_->chunked();
  request_version_ = head.version;
  head_only_ = head.method == "HEAD";
  keep_alive_ = parser_->keep_alive();
  keep_alive_asked_ = keep_alive_ && head.version == 10;

  bool expects_continue = false;
  std::optional<ApiError> trouble;
  if (head.version >= 11 && head.count("host") != 1)
    trouble =
        http_error(400, fmt::format("expected one Host header, found {}", head.count("host")));
  if (const size_t n = head.count("transfer-encoding"); n > 0) {
    const std::string_view coding = head.header("transfer-encoding");
    if (head.version == 10 || n > 1)
      trouble = http_error(400, "Transfer-Encoding does not fit this request");
    else if (!equal_ignoring_case(coding, "chunked"))
      trouble = http_error(501, fmt::format("expected Transfer-Encoding chunked, found \"{}\"",
                                            coding.substr(0, 40)));
    // What follows cannot be told from a next request.
    if (trouble) return refuse(error_response(*trouble)), false;
  }
  if (const std::string_view expect = head.header("expect");
      !expect.empty() && head.version >= 11) {
    expects_continue = equal_ignoring_case(expect, "100-continue");
    if (!expects_continue)
      trouble = http_error(
          417, fmt::format("expected Expect: 100-continue, found \"{}\"", expect.substr(0, 40)));
  }
  std::optional<Response> answer;
  if (trouble)
    answer = error_response(*trouble);
  else
    answer = shared_.handler->check(head);
  if (!answer) {
    if (expects_continue && head.has_body() && !body_follows_at_once)
      out_ += "HTTP/1.1 100 Continue\r\n\r\n";
    return true;
  }
  if (head.has_body() &&
      (head.chunked || expects_continue || *head.content_length > kReadThrough)) {
    refuse(*answer);
    return false;
  }
  refusal_ = std::move(answer);  // sent by dispatch()
  return true;
}

void Connection::dispatch() {
  RequestHead head = std::move(parser_->head);
  Body body = std::move(parser_->body);
  parser_.reset();
  phase_ = Phase::kExchange;
  exchange_ = std::make_shared<ConnectionExchange>(this, loop_.wakes());
  ++shared_.stats.exchanges;
  if (refusal_) {
    Response answer = *std::move(refusal_);
    refusal_.reset();
    return respond(answer);
  }
  const auto exchange = exchange_;  // handle() may end it
  shared_.handler->handle(std::move(head), std::move(body), exchange);
  seal_chunk();
}

void Connection::refuse(const Response& response) {
  parser_.reset();
  refusal_.reset();
  phase_ = Phase::kHead;
  close_after_flush_ = true;
  append_head(out_, response,
              {.request_version = request_version_,
               .keep_alive = false,
               .length = response.body.size(),
               .date = loop_.date()});
  if (!head_only_) out_ += response.body;
}

bool Connection::may_keep_alive() const {
  return keep_alive_ && !shared_.draining.load(std::memory_order_relaxed);
}

void Connection::respond(const Response& response) {
  if (phase_ != Phase::kExchange || streaming_) return;
  const bool keep = may_keep_alive();
  append_head(out_, response,
              {.request_version = request_version_,
               .keep_alive = keep,
               .keep_alive_asked = keep_alive_asked_,
               .length = response.body.size(),
               .date = loop_.date()});
  if (!head_only_) out_ += response.body;
  if (!keep) close_after_flush_ = true;
  end_exchange_state(/*client_gone=*/false);
}

void Connection::begin_stream(const Response& head) {
  if (phase_ != Phase::kExchange || streaming_) return;
  streaming_ = true;
  chunked_ = request_version_ >= 11;
  if (!chunked_) keep_alive_ = false;  // the end of the stream is the end of the connection
  append_head(out_, head,
              {.request_version = request_version_,
               .keep_alive = may_keep_alive(),
               .length = {},
               .date = loop_.date()});
  stream_closes_ = !may_keep_alive();
  last_write_ = now();
  write(head.body);
}

void Connection::write(std::string_view bytes) {
  if (phase_ == Phase::kExchange && streaming_) chunk_.append(bytes);
}

void Connection::seal_chunk() {
  if (chunk_.empty()) return;
  if (chunked_)
    append_chunk(out_, chunk_);
  else
    out_ += chunk_;
  last_write_ = now();
  chunk_.clear();
  if (chunk_.capacity() > kIdleCapacity) std::string().swap(chunk_);
}

void Connection::finish() {
  if (phase_ != Phase::kExchange || !streaming_) return;
  seal_chunk();
  if (chunked_) out_ += "0\r\n\r\n";
  if (stream_closes_ || !may_keep_alive()) close_after_flush_ = true;
  end_exchange_state(/*client_gone=*/false);
}

void Connection::end_exchange_state(bool client_gone) {
  const std::shared_ptr<ConnectionExchange> exchange = std::exchange(exchange_, nullptr);
  if (!exchange) return;
  const std::shared_ptr<Responder> responder = exchange->leave();
  streaming_ = false;
  chunk_.clear();
  phase_ = Phase::kHead;
  phase_since_ = now();
  first_request_ = false;
  if (client_gone) {
    ++shared_.stats.clients_gone;
    if (responder) responder->client_gone();
  }
  shared_.exchange_ended();
}

void Connection::pump(Exchange& exchange) {
  const auto self = shared_from_this();
  guarded([&] {
    if (exchange_.get() != &exchange) return;
    if (const auto responder = exchange.responder()) responder->pump(exchange);
    advance();
  });
}

// After something was written: seal, go on with pipelined requests, send.
void Connection::advance() {
  if (phase_ == Phase::kClosed) return;
  seal_chunk();
  if (phase_ != Phase::kExchange && !in_.empty()) parse_buffered();
  flush();
  arm_read();
}

void Connection::flush() {
  if (phase_ == Phase::kClosed) return;
  if (write_armed_) return wait_writable();
  for (;;) {
    while (out_sent_ < out_.size()) {
      beast::error_code ec;
      const size_t n =
          socket_.write_some(asio::buffer(out_.data() + out_sent_, out_.size() - out_sent_), ec);
      if (ec == asio::error::interrupted) continue;
      if (ec == asio::error::would_block || ec == asio::error::try_again) return wait_writable();
      if (ec) return abort();
      out_sent_ += n;
      last_progress_ = now();
    }
    out_.clear();
    out_sent_ = 0;
    if (out_.capacity() > kIdleCapacity) std::string().swap(out_);
    if (close_after_flush_ && phase_ != Phase::kExchange) return linger_or_close();
    // Pipelined requests that waited because too many answers were queued.
    if (phase_ != Phase::kHead || in_.empty()) return;
    parse_buffered();
    if (phase_ == Phase::kClosed || out_.empty()) return;
  }
}

void Connection::wait_writable() {
  if (streaming_ &&
      out_.size() - out_sent_ > static_cast<size_t>(shared_.config.max_output_bytes)) {
    ++shared_.stats.stalled;
    return abort();
  }
  if (out_sent_ > kMaxUnparsed) {
    out_.erase(0, out_sent_);
    out_sent_ = 0;
  }
  if (write_armed_) return;
  write_armed_ = true;
  last_progress_ = now();
  socket_.async_wait(tcp::socket::wait_write,
                     [self = shared_from_this()](const beast::error_code& ec) {
                       self->write_armed_ = false;
                       if (!ec) self->guarded([&] { self->advance(); });
                     });
}

void Connection::linger_or_close() {
  if (input_ended_ || phase_ == Phase::kLinger) return close();
  // A close with unread input would be a reset, and that can destroy the answer on its way to the
  // client.
  beast::error_code ec;
  socket_.shutdown(tcp::socket::shutdown_send, ec);
  if (ec) return close();
  phase_ = Phase::kLinger;
  phase_since_ = now();
  std::string().swap(in_);
  arm_read();
}

void Connection::abort() {
  if (phase_ == Phase::kClosed) return;
  end_exchange_state(/*client_gone=*/true);
  beast::error_code ec;
  socket_.set_option(asio::socket_base::linger(true, 0),
                     ec);  // drop what the kernel still holds for a dead reader
  close();
}

void Connection::close() {
  if (phase_ == Phase::kClosed) return;
  const auto self = shared_from_this();
  phase_ = Phase::kClosed;
  beast::error_code ec;
  socket_.close(ec);
  std::string().swap(in_);
  std::string().swap(out_);
  out_sent_ = 0;
  parser_.reset();
  loop_.forget(*this);
}

void Connection::sweep(SteadyTime time) {
  const auto self = shared_from_this();
  guarded([&] {
    const ServerConfig& config = shared_.config;
    const auto phase_age = time - phase_since_;
    if (out_sent_ < out_.size() && write_armed_ &&
        time - last_progress_ > milliseconds(config.write_timeout_ms)) {
      if (exchange_) ++shared_.stats.stalled;
      return abort();
    }
    switch (phase_) {
      case Phase::kHead:
        if (close_after_flush_ || out_sent_ < out_.size()) return;
        if (parser_) {
          if (phase_age <= milliseconds(config.header_timeout_ms)) return;
          refuse(error_response(http_error(408, fmt::format("no complete request head within {} ms",
                                                            config.header_timeout_ms))));
          return flush();
        }
        if (phase_age >
            milliseconds(first_request_ ? config.header_timeout_ms : config.idle_timeout_ms))
          close();
        return;
      case Phase::kBody: {
        const auto earned = milliseconds(parser_->body.text().size() / 16);  // 16 KiB/s, roughly
        if (phase_age <= milliseconds(config.body_timeout_ms) + earned) return;
        refuse(error_response(http_error(
            408, fmt::format("no complete request body within {} ms", config.body_timeout_ms))));
        return flush();
      }
      case Phase::kExchange: {
        if (!streaming_ || out_sent_ < out_.size() ||
            time - last_write_ < milliseconds(config.keep_alive_ms))
          return;
        const auto exchange = exchange_;
        if (const auto responder = exchange->responder()) responder->keep_alive(*exchange);
        return advance();
      }
      case Phase::kLinger:
        if (phase_age > kLingerTime) close();
        return;
      case Phase::kClosed:
        return;
    }
  });
}

void Connection::stop_accepting() {
  if (phase_ != Phase::kHead || parser_ || !in_.empty()) return;
  if (out_sent_ < out_.size())
    close_after_flush_ = true;
  else
    close();
}

void Connection::end_exchange() {
  guarded([&] {
    const auto exchange = exchange_;
    if (!exchange) return;
    if (const auto responder = exchange->responder()) responder->shutting_down(*exchange);
    advance();
  });
}

}  // namespace deepmint::http
