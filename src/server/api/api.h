// The API's front door: which path leads where, who may pass, and the small endpoints that answer
// at once.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/context.h"
#include "server/http/transport.h"

namespace deepmint {

class Api final : public http::HttpHandler {
 public:
  explicit Api(std::shared_ptr<ApiContext> context) : context_(std::move(context)) {}

  static std::vector<std::string_view> post_paths();  // that take a request, short forms included

  // Known once the transport has started, before which nothing is handled: the counters of
  // /metrics, and whether only this machine can reach the server, in which case foreign Host names
  // are refused (a page may have rebound its name to us).
  void attach(const http::TransportStats* stats, bool loopback);

  std::optional<http::Response> check(const http::RequestHead& head) override;
  void handle(http::RequestHead head, http::Body body,
              std::shared_ptr<http::Exchange> exchange) override;

 private:
  std::optional<http::Response> refuse(const http::RequestHead& head) const;
  http::Response answer(const http::RequestHead& head) const;
  http::Response models() const;
  http::Response one_model(std::string_view encoded_name) const;
  // The value of access-control-allow-origin for this request; empty for none.
  std::string cors_origin(const http::RequestHead& head) const;

  const std::shared_ptr<ApiContext> context_;
  const http::TransportStats* stats_ = nullptr;
  bool loopback_ = true;
  std::atomic<bool> attached_{false};
};

}  // namespace deepmint
