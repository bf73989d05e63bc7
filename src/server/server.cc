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

template <class T>
Status in_range(std::string_view name, T value, T min, T max) {
  if (value >= min && value <= max) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("expected {} to {}, found {}", min, max, value), std::string(name));
}

Status check_config(const ServerConfig& c) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  constexpr int32_t kHour = 3'600'000;
  if (c.host.empty())
    return fail(ErrorCode::kInvalidArgument, "expected an address or a name, found nothing",
                "server.host");
  DEEPMINT_CHECK_OK(in_range("server.io_threads", c.io_threads, 1, 64));
  DEEPMINT_CHECK_OK(in_range("server.worker_threads", c.worker_threads, 1, 256));
  DEEPMINT_CHECK_OK(in_range("server.max_connections", c.max_connections, 1, 1'000'000));
  DEEPMINT_CHECK_OK(in_range<int64_t>("server.max_body_bytes", c.max_body_bytes, 1, kGiB));
  DEEPMINT_CHECK_OK(in_range<int64_t>("server.max_total_body_bytes", c.max_total_body_bytes,
                                      c.max_body_bytes, 64 * kGiB));
  DEEPMINT_CHECK_OK(in_range("server.max_header_bytes", c.max_header_bytes, 1024, 1 << 20));
  DEEPMINT_CHECK_OK(
      in_range<int64_t>("server.max_output_bytes", c.max_output_bytes, 16 << 10, kGiB));
  for (const auto& [name, value] : {std::pair("server.header_timeout_ms", c.header_timeout_ms),
                                    std::pair("server.body_timeout_ms", c.body_timeout_ms),
                                    std::pair("server.idle_timeout_ms", c.idle_timeout_ms),
                                    std::pair("server.write_timeout_ms", c.write_timeout_ms),
                                    std::pair("server.keep_alive_ms", c.keep_alive_ms)})
    DEEPMINT_CHECK_OK(in_range(name, value, 1, 24 * kHour));
  DEEPMINT_CHECK_OK(in_range("server.drain_timeout_ms", c.drain_timeout_ms, 0, 24 * kHour));
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
  std::shared_ptr<ApiContext> context;
  std::shared_ptr<Api> api;
  std::unique_ptr<http::HttpTransport> transport;
  std::mutex stopping;
  bool stopped = false;
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() { stop(milliseconds(0)); }

Result<std::unique_ptr<HttpServer>> HttpServer::start(const ServerConfig& config,
                                                      ServedModel model) {
  DEEPMINT_CHECK_OK(check_config(config));
  if (model.engine == nullptr)
    return fail(ErrorCode::kInvalidArgument, "expected an engine, found none", "server");
  if (!model.tokenizer)
    return fail(ErrorCode::kUnsupported, "the model has no tokenizer, and the API works on text",
                model.id);
  ApiKeys keys;
  if (!config.api_keys_file.empty()) {
    DEEPMINT_TRY(loaded, ApiKeys::load(config.api_keys_file));
    keys = std::move(loaded);
  }
  auto impl = std::make_unique<Impl>();
  try {
    impl->context = std::make_shared<ApiContext>(config, std::move(model), std::move(keys));
    impl->api = std::make_shared<Api>(impl->context);
  } catch (const std::exception& e) {  // threads or memory have run out
    return fail(ErrorCode::kUnavailable, fmt::format("cannot start: {}", e.what()), "server");
  }
  DEEPMINT_TRY(transport, http::HttpTransport::start(config, impl->api));
  impl->transport = std::move(transport);
  impl->api->attach(&impl->transport->stats(), impl->transport->loopback());
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

uint16_t HttpServer::port() const { return impl_->transport->port(); }
std::string HttpServer::url() const {
  return fmt::format("http://{}:{}", impl_->transport->address(), port());
}

void HttpServer::stop(milliseconds deadline) {
  const std::lock_guard lock(impl_->stopping);
  if (std::exchange(impl_->stopped, true)) return;
  http::HttpTransport& transport = *impl_->transport;
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
