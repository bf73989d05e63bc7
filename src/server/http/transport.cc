#include "server/http/transport.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <exception>
#include <utility>

#include "core/check.h"
#include "core/log.h"
#include "server/http/connection.h"

namespace deepmint::http {
namespace {

using std::chrono::milliseconds;

// The listener and the log go on when the process is out of file descriptors; accepting is tried
// again after this.
constexpr auto kAcceptRetry = milliseconds(100);

// The default soft limit (1,024 on most systems) is below max_connections; the hard limit usually
// is not.
void raise_descriptor_limit(int64_t wanted) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t want = std::min(static_cast<rlim_t>(wanted), limit.rlim_max);
  if (limit.rlim_cur >= want) return;
  limit.rlim_cur = want;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0 || want < static_cast<rlim_t>(wanted))
    log().warn(
        "file descriptor limit is {}: fewer than server.max_connections connections will be "
        "accepted",
        want);
}

}  // namespace

// --- WakeQueue

void WakeQueue::push(std::shared_ptr<ConnectionExchange> exchange) {
  const std::lock_guard lock(mutex_);
  if (context_ == nullptr) return;
  pending_.push_back(std::move(exchange));
  if (std::exchange(scheduled_, true)) return;
  asio::post(*context_, [this] { drain(); });  // the context runs no task after stop()
}

void WakeQueue::stop() {
  std::vector<std::shared_ptr<ConnectionExchange>> dropped;
  const std::lock_guard lock(mutex_);
  context_ = nullptr;
  dropped.swap(pending_);
}

void WakeQueue::drain() {
  {
    const std::lock_guard lock(mutex_);
    draining_.swap(pending_);
    scheduled_ = false;
  }
  for (const auto& exchange : draining_) exchange->pump();
  draining_.clear();
}

// --- Shared

void Shared::exchange_ended() {
  if (--stats.exchanges > 0) return;
  const std::lock_guard lock(idle_mutex);  // so that a waiter is not between its test and its sleep
  idle.notify_all();
}

// --- Loop

Loop::Loop(std::shared_ptr<Shared> shared, int index)
    : shared_(std::move(shared)), index_(index), wakes_(std::make_shared<WakeQueue>(context_)) {
  const ServerConfig& c = shared_->config;
  const int32_t shortest = std::min({c.header_timeout_ms, c.body_timeout_ms, c.idle_timeout_ms,
                                     c.write_timeout_ms, c.keep_alive_ms});
  sweep_interval_ = milliseconds(std::clamp(shortest / 4, 5, 250));
}

Loop::~Loop() { stop(); }

void Loop::start_thread() {
  thread_ = std::thread([this] { run(); });
}

void Loop::run() {
  pthread_setname_np(pthread_self(), fmt::format("dm-io-{}", index_).c_str());
  for (;;) {
    try {
      context_.run();
      return;
    } catch (const std::exception& e) {
      log().error("io thread: {}", e.what());
    }
  }
}

void Loop::adopt(tcp::socket socket) {
  asio::post(context_, [this, s = std::move(socket)]() mutable {
    const auto connection = std::make_shared<Connection>(*this, std::move(s));
    connections_.insert(connection);
    connection->start();
    arm_sweep();
  });
}

void Loop::forget(Connection& connection) { connections_.erase(connection.shared_from_this()); }

void Loop::for_each(std::function<void(Connection&)> call) {
  asio::post(context_, [this, call = std::move(call)] {
    const std::vector<std::shared_ptr<Connection>> all(connections_.begin(), connections_.end());
    for (const auto& connection : all) call(*connection);
  });
}

void Loop::stop() {
  if (!thread_.joinable()) return;
  wakes_->stop();
  asio::post(context_, [this] {
    stopping_ = true;
    sweep_timer_.cancel();
    const std::vector<std::shared_ptr<Connection>> all(connections_.begin(), connections_.end());
    for (const auto& connection : all) connection->abort();
    work_.reset();
  });
  thread_.join();
}

void Loop::arm_sweep() {
  if (sweeping_ || stopping_) return;
  sweeping_ = true;
  sweep_timer_.expires_after(sweep_interval_);
  sweep_timer_.async_wait([this](const beast::error_code& ec) {
    sweeping_ = false;
    if (ec) return;
    sweep();
    if (!connections_.empty()) arm_sweep();
  });
}

void Loop::sweep() {
  const SteadyTime time = std::chrono::steady_clock::now();
  swept_.assign(connections_.begin(), connections_.end());  // sweeping may close some
  for (const auto& connection : swept_) connection->sweep(time);
  swept_.clear();
}

std::string_view Loop::date() {
  const int64_t second = std::chrono::duration_cast<std::chrono::seconds>(
                             std::chrono::system_clock::now().time_since_epoch())
                             .count();
  if (second != date_second_) {
    date_second_ = second;
    date_ = http_date(second);
  }
  return date_;
}

// --- HttpTransport

struct HttpTransport::Impl {
  explicit Impl(const ServerConfig& config) : shared(std::make_shared<Shared>(config)) {
    for (int i = 0; i < config.io_threads; ++i) loops.push_back(std::make_unique<Loop>(shared, i));
    acceptor.emplace(loops[0]->context());
    retry.emplace(loops[0]->context());
  }

  void accept_next() {
    if (!acceptor->is_open()) return;
    Loop& loop = *loops[next_loop++ % loops.size()];
    acceptor->async_accept(
        loop.context(), [this, &loop](const beast::error_code& ec, tcp::socket socket) {
          if (!acceptor->is_open() || ec == asio::error::operation_aborted) return;
          if (!ec) {
            accepted(loop, std::move(socket));
          } else if (ec == asio::error::no_descriptors || ec.value() == ENFILE ||
                     ec == asio::error::no_memory || ec == asio::error::no_buffer_space) {
            log().warn("cannot accept a connection: {}", ec.message());
            retry->expires_after(kAcceptRetry);
            retry->async_wait([this](const beast::error_code& cancelled) {
              if (!cancelled) accept_next();
            });
            return;
          }
          accept_next();
        });
  }

  void accepted(Loop& loop, tcp::socket socket) {
    ++shared->stats.accepted;
    if (shared->stats.connections >= shared->config.max_connections) {
      ++shared->stats.refused;
      const Response answer = error_response(http_error(503, "too many connections; try again"));
      std::string out;
      append_head(out, answer,
                  {.keep_alive = false, .length = answer.body.size(), .date = loops[0]->date()});
      out += answer.body;
      beast::error_code ec;
      socket.non_blocking(true, ec);
      if (!ec) socket.write_some(asio::buffer(out), ec);  // fits an empty socket buffer, or is lost
      return;
    }
    loop.adopt(std::move(socket));
  }

  std::shared_ptr<Shared> shared;
  std::vector<std::unique_ptr<Loop>> loops;
  std::optional<tcp::acceptor> acceptor;  // both on loops[0]
  std::optional<asio::steady_timer> retry;
  tcp::endpoint endpoint;
  size_t next_loop = 0;
  bool closed = false;
};

HttpTransport::HttpTransport(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpTransport::~HttpTransport() { close(); }

Result<std::unique_ptr<HttpTransport>> HttpTransport::bind(const ServerConfig& config) {
  try {
    raise_descriptor_limit(int64_t{config.max_connections} + 128);
    auto impl = std::make_unique<Impl>(config);
    beast::error_code ec;
    std::string host = config.host;
    if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
    asio::ip::address address = asio::ip::make_address(host, ec);
    if (ec) {
      tcp::resolver resolver(impl->loops[0]->context());
      const auto found = resolver.resolve(host, "", ec);
      if (ec || found.empty())
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("expected an address or a name to listen on, found \"{}\": {}",
                                config.host, ec.message()),
                    "server.host");
      address = found.begin()->endpoint().address();
    }
    const tcp::endpoint endpoint(address, config.port);
    tcp::acceptor& acceptor = *impl->acceptor;
    acceptor.open(endpoint.protocol(), ec);
    if (!ec) acceptor.set_option(asio::socket_base::reuse_address(true), ec);
    if (!ec) acceptor.bind(endpoint, ec);
    if (!ec) acceptor.listen(1024, ec);
    if (ec)
      return fail(ErrorCode::kUnavailable, fmt::format("cannot listen: {}", ec.message()),
                  fmt::format("{}:{}", config.host, config.port));
    impl->endpoint = acceptor.local_endpoint(ec);
    return std::unique_ptr<HttpTransport>(new HttpTransport(std::move(impl)));
  } catch (const std::exception& e) {
    return fail(ErrorCode::kUnavailable, fmt::format("cannot start: {}", e.what()), "server");
  }
}

Status HttpTransport::serve(std::shared_ptr<HttpHandler> handler) {
  DEEPMINT_CHECK(impl_->shared->handler == nullptr && !impl_->closed);
  impl_->shared->handler = std::move(handler);
  try {
    impl_->accept_next();
    for (const auto& loop : impl_->loops) loop->start_thread();
    return {};
  } catch (const std::exception& e) {  // threads have run out
    return fail(ErrorCode::kUnavailable, fmt::format("cannot start: {}", e.what()), "server");
  }
}

Result<std::unique_ptr<HttpTransport>> HttpTransport::start(const ServerConfig& config,
                                                            std::shared_ptr<HttpHandler> handler) {
  DEEPMINT_TRY(transport, bind(config));
  DEEPMINT_CHECK_OK(transport->serve(std::move(handler)));
  return transport;
}

uint16_t HttpTransport::port() const { return impl_->endpoint.port(); }
std::string HttpTransport::address() const {
  const auto address = impl_->endpoint.address();
  return address.is_v6() ? "[" + address.to_string() + "]" : address.to_string();
}
bool HttpTransport::loopback() const { return impl_->endpoint.address().is_loopback(); }
const TransportStats& HttpTransport::stats() const { return impl_->shared->stats; }

void HttpTransport::stop_accepting() {
  if (impl_->closed || impl_->shared->draining.exchange(true)) return;
  asio::post(impl_->loops[0]->context(), [impl = impl_.get()] {
    beast::error_code ec;
    impl->acceptor->close(ec);
    impl->retry->cancel();
  });
  for (const auto& loop : impl_->loops)
    loop->for_each([](Connection& connection) { connection.stop_accepting(); });
}

bool HttpTransport::wait_idle(milliseconds limit) {
  Shared& shared = *impl_->shared;
  std::unique_lock lock(shared.idle_mutex);
  return shared.idle.wait_for(lock, limit, [&] { return shared.stats.exchanges.load() == 0; });
}

void HttpTransport::end_exchanges() {
  if (impl_->closed) return;
  for (const auto& loop : impl_->loops)
    loop->for_each([](Connection& connection) { connection.end_exchange(); });
}

void HttpTransport::close() {
  if (std::exchange(impl_->closed, true)) return;
  stop_accepting();
  impl_->shared->draining = true;
  asio::post(impl_->loops[0]->context(), [impl = impl_.get()] {
    beast::error_code ec;
    impl->acceptor->close(ec);
    impl->retry->cancel();
  });
  // The accept handler may hand sockets to any loop, so the one that accepts stops first.
  for (const auto& loop : impl_->loops) loop->stop();
  impl_->acceptor.reset();
  impl_->retry.reset();
}

}  // namespace deepmint::http
