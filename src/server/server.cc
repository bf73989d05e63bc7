#include "server/server.h"

#include <fmt/format.h>

#include <exception>
#include <mutex>
#include <utility>

#include "server/api/api.h"
#include "server/http/transport.h"

namespace deepmint {
namespace {

using std::chrono::milliseconds;

// What a stream gets after the deadline to write its error event and be flushed.
constexpr auto kLastWords = milliseconds(1000);

Status check_config(const ServerConfig& c) {
  DEEPMINT_CHECK_OK(check_limits(c));
  if (c.host.empty())
    return fail(ErrorCode::kInvalidArgument, "expected an address or a name, found nothing",
                "server.host");
  if (c.max_total_body_bytes < c.max_body_bytes)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("expected at least server.max_body_bytes, {}, found {}",
                            c.max_body_bytes, c.max_total_body_bytes),
                "server.max_total_body_bytes");
  // An Origin header is compared as a whole: an entry with a path, or without a scheme, matches
  // nothing.
  for (const std::string& origin : c.allowed_origins) {
    const size_t scheme = origin.find("://");
    const bool whole = scheme != std::string::npos && scheme > 0 && scheme + 3 < origin.size() &&
                       origin.find_first_of("/?# ", scheme + 3) == std::string::npos;
    if (origin != "*" && origin != "null" && !whole)
      return fail(
          ErrorCode::kInvalidArgument,
          fmt::format("expected * or an origin such as https://app.example.com, found \"{}\"",
                      origin),
          "server.allowed_origins");
  }
  return {};
}

}  // namespace

struct HttpServer::Impl {
  ServerConfig config;
  ApiKeys keys;
  std::shared_ptr<ApiContext> context;  // null until serve()
  std::shared_ptr<Api> api;
  std::unique_ptr<http::HttpTransport> transport;
  std::mutex stopping;
  bool stopped = false;
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() { stop(milliseconds(0)); }

Result<std::unique_ptr<HttpServer>> HttpServer::bind(const ServerConfig& config) {
  DEEPMINT_CHECK_OK(check_config(config));
  auto impl = std::make_unique<Impl>();
  impl->config = config;
  if (!config.api_keys_file.empty()) {
    DEEPMINT_TRY(keys, ApiKeys::load(config.api_keys_file));
    impl->keys = std::move(keys);
  }
  DEEPMINT_TRY(transport, http::HttpTransport::bind(config));
  impl->transport = std::move(transport);
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

Status HttpServer::serve(ServedModel model) {
  DEEPMINT_CHECK_OK(check_served(model));
  try {
    impl_->context =
        std::make_shared<ApiContext>(impl_->config, std::move(model), std::move(impl_->keys));
    impl_->api = std::make_shared<Api>(impl_->context);
  } catch (const std::exception& e) {  // threads or memory have run out
    return fail(ErrorCode::kUnavailable, fmt::format("cannot start: {}", e.what()), "server");
  }
  impl_->api->attach(&impl_->transport->stats(), impl_->transport->loopback());
  return impl_->transport->serve(impl_->api);
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(const ServerConfig& config,
                                                      ServedModel model) {
  DEEPMINT_TRY(server, bind(config));
  DEEPMINT_CHECK_OK(server->serve(std::move(model)));
  return server;
}

uint16_t HttpServer::port() const { return impl_->transport->port(); }
std::string HttpServer::url() const {
  return fmt::format("http://{}:{}", impl_->transport->address(), port());
}

void HttpServer::stop(milliseconds deadline) {
  const std::lock_guard lock(impl_->stopping);
  if (std::exchange(impl_->stopped, true)) return;
  http::HttpTransport& transport = *impl_->transport;
  if (impl_->context == nullptr) return transport.close();
  impl_->context->draining = true;
  transport.stop_accepting();
  if (!transport.wait_idle(deadline)) {
    transport.end_exchanges();
    transport.wait_idle(kLastWords);
  }
  transport.close();
  impl_->context->workers.stop();
}

}  // namespace deepmint
