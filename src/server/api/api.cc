#include "server/api/api.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/cpu_isa.h"
#include "core/json.h"
#include "server/api/chat_exchange.h"

namespace deepmint {
namespace {

using http::error_response;
using http::RequestHead;
using http::Response;

enum class Route { kChatCompletions, kModels, kOneModel, kHealth, kReady, kVersion, kMetrics };

struct RouteInfo {
  std::string_view path;  // a prefix when it ends with a slash
  Route route;
  bool is_post;
  bool is_public;  // answered without a key: what a load balancer asks
};

constexpr RouteInfo kRoutes[] = {
    {"/v1/chat/completions", Route::kChatCompletions, true, false},
    {"/chat/completions", Route::kChatCompletions, true, false},
    {"/v1/models", Route::kModels, false, false},
    {"/models", Route::kModels, false, false},
    {"/v1/models/", Route::kOneModel, false, false},
    {"/models/", Route::kOneModel, false, false},
    {"/health", Route::kHealth, false, true},
    {"/ready", Route::kReady, false, true},
    {"/version", Route::kVersion, false, false},
    {"/metrics", Route::kMetrics, false, false},
};

const RouteInfo* find_route(std::string_view path) {
  for (const RouteInfo& info : kRoutes) {
    if (path == info.path && !info.path.ends_with('/')) return &info;
    if (info.path.ends_with('/') && path.size() > info.path.size() && path.starts_with(info.path))
      return &info;
  }
  return nullptr;
}

// "example.com:8080" → "example.com"; "[::1]:80" → "::1".
std::string_view host_name(std::string_view host) {
  if (host.starts_with('[')) return host.substr(1, host.find(']') - 1);
  return host.substr(0, host.find(':'));
}

bool is_address_literal(std::string_view host) {
  // Digits and dots, or anything with a colon in it: no name server was asked.
  return host.find(':') != std::string_view::npos ||
         host.find_first_not_of("0123456789.") == std::string_view::npos;
}

bool contains_ignoring_case(const std::vector<std::string>& list, std::string_view name) {
  return std::any_of(list.begin(), list.end(),
                     [&](const std::string& s) { return http::equal_ignoring_case(s, name); });
}

Response json_response(json::Writer& w) { return {.body = w.take()}; }

}  // namespace

std::vector<std::string_view> Api::post_paths() {
  std::vector<std::string_view> paths;
  for (const RouteInfo& info : kRoutes)
    if (info.is_post) paths.push_back(info.path);
  return paths;
}

void Api::attach(const http::TransportStats* stats, bool loopback) {
  stats_ = stats;
  loopback_ = loopback;
  attached_.store(true, std::memory_order_release);
}

std::string Api::cors_origin(const RequestHead& head) const {
  const std::string_view origin = head.header("origin");
  if (origin.empty()) return {};
  const auto& allowed = context_->config.allowed_origins;
  if (contains_ignoring_case(allowed, "*")) return "*";
  if (contains_ignoring_case(allowed, origin)) return std::string(origin);
  return {};
}

std::optional<Response> Api::refuse(const RequestHead& head) const {
  const ServerConfig& config = context_->config;
  const std::string_view host = head.header("host");
  const std::string_view name = host_name(host);
  if (!host.empty() && (loopback_ || !config.allowed_hosts.empty()) && !is_address_literal(name) &&
      !http::equal_ignoring_case(name, "localhost") &&
      !contains_ignoring_case(config.allowed_hosts, name))
    return error_response(
        http_error(403, fmt::format("this server does not answer to the name \"{}\"; "
                                    "server.allowed_hosts lists those it does",
                                    name.substr(0, 100))));
  if (const std::string_view origin = head.header("origin");
      !origin.empty() && cors_origin(head).empty()) {
    const size_t scheme = origin.find("://");
    const bool same = scheme != std::string_view::npos &&
                      http::equal_ignoring_case(origin.substr(scheme + 3), host);
    if (!same)
      return error_response(
          http_error(403, fmt::format("pages of \"{}\" may not call this server; "
                                      "server.allowed_origins lists those that may",
                                      origin.substr(0, 100))));
  }

  const std::string_view path = head.path();
  const RouteInfo* route = find_route(path);
  if (route == nullptr)
    return error_response(http_error(
        404, fmt::format("there is no {} {}", head.method.substr(0, 20), path.substr(0, 100))));
  if (head.method == "OPTIONS") return std::nullopt;
  if (!route->is_public && !context_->keys.allows(head.header("authorization"))) {
    ApiError error = http_error(401, head.header("authorization").empty()
                                         ? "expected an API key: Authorization: Bearer KEY"
                                         : "the API key is not known");
    error.code = "invalid_api_key";
    return error_response(error);
  }
  const bool method_fits =
      route->is_post ? head.method == "POST" : head.method == "GET" || head.method == "HEAD";
  if (!method_fits) {
    Response response = error_response(
        http_error(405, fmt::format("expected {} {}, found {}", route->is_post ? "POST" : "GET",
                                    path.substr(0, 100), head.method.substr(0, 20))));
    response.headers.emplace_back("allow", route->is_post ? "POST, OPTIONS" : "GET, HEAD, OPTIONS");
    return response;
  }
  if (!route->is_post) return std::nullopt;
  if (const std::string_view coding = head.header("content-encoding");
      !coding.empty() && !http::equal_ignoring_case(coding, "identity"))
    return error_response(
        http_error(415, fmt::format("expected an uncompressed body, found Content-Encoding {}",
                                    coding.substr(0, 40))));
  // A page of another site can send text/plain and form types without asking first, so only JSON
  // passes as JSON.
  if (const std::string_view type = head.header("content-type"); !type.empty()) {
    std::string_view media = type.substr(0, type.find(';'));
    while (media.ends_with(' ')) media.remove_suffix(1);
    if (!http::equal_ignoring_case(media, "application/json"))
      return error_response(http_error(
          415,
          fmt::format("expected Content-Type application/json, found {}", type.substr(0, 60))));
  }
  if (context_->draining) return error_response(http_error(503, "the server is shutting down"));
  return std::nullopt;
}

std::optional<Response> Api::check(const RequestHead& head) {
  if (!attached_.load(std::memory_order_acquire))
    return error_response(http_error(503, "the server is starting"));
  std::optional<Response> refusal = refuse(head);
  if (!refusal) return std::nullopt;
  context_->metrics.count_response(refusal->status);
  http::allow_origin(*refusal, cors_origin(head));
  return refusal;
}

void Api::handle(RequestHead head, http::Body body, std::shared_ptr<http::Exchange> exchange) {
  std::string origin = cors_origin(head);
  if (head.method == "POST")
    return ChatExchange::start(context_, std::move(body), exchange, std::move(origin),
                               context_->keys.account(head.header("authorization")));
  Response response = answer(head);
  http::allow_origin(response, origin);
  context_->metrics.count_response(response.status);
  exchange->respond(response);
}

Response Api::answer(const RequestHead& head) const {
  const RouteInfo* route = find_route(head.path());
  if (route == nullptr) return error_response(http_error(404, "no such path"));
  if (head.method == "OPTIONS") {
    const std::string methods = route->is_post ? "POST, OPTIONS" : "GET, HEAD, OPTIONS";
    return {.status = 204,
            .content_type = "",
            .headers = {{"allow", methods},
                        {"access-control-allow-methods", methods},
                        {"access-control-allow-headers", "authorization, content-type"},
                        {"access-control-max-age", "600"}}};
  }
  json::Writer w;
  switch (route->route) {
    case Route::kModels:
      return models();
    case Route::kOneModel:
      return one_model(head.path().substr(route->path.size()));
    case Route::kHealth:
      w.begin_object().key("status").value("ok").end_object();
      return json_response(w);
    case Route::kReady: {
      const bool ready = !context_->draining;
      w.begin_object().key("status").value(ready ? "ready" : "draining").end_object();
      Response response = json_response(w);
      if (!ready) {
        response.status = 503;
        response.headers.emplace_back("retry-after", "1");
      }
      return response;
    }
    case Route::kVersion:
      w.begin_object();
      w.key("version").value(context_->model.build);
      w.key("isa").value(to_string(active_isa()));
      w.key("isa_class").value(isa_class(active_isa()));
      w.key("system_fingerprint").value(context_->fingerprint);
      w.end_object();
      return json_response(w);
    case Route::kMetrics:
      return {.content_type = "text/plain; version=0.0.4; charset=utf-8",
              .body = prometheus_text(context_->metrics, context_->model.engine->stats(), *stats_,
                                      context_->model.id)};
    case Route::kChatCompletions:
      break;
  }
  return error_response(http_error(405, "expected POST"));
}

namespace {

void write_model(json::Writer& w, const ApiContext& context) {
  const EngineInfo& info = context.model.engine->info();
  w.begin_object();
  w.key("id").value(context.model.id);
  w.key("object").value("model");
  w.key("created").value(context.created);
  w.key("owned_by").value("deepmint");
  w.key("context_length").value(info.context_tokens);
  w.key("architecture").value(info.architecture);
  w.key("system_fingerprint").value(context.fingerprint);
  w.key("capabilities").begin_array();
  if (context.model.chat) w.value("chat");
  w.end_array();
  w.end_object();
}

}  // namespace

Response Api::models() const {
  json::Writer w;
  w.begin_object().key("object").value("list").key("data").begin_array();
  write_model(w, *context_);
  w.end_array().end_object();
  return json_response(w);
}

Response Api::one_model(std::string_view encoded_name) const {
  const auto name = http::percent_decode(encoded_name);
  if (!name || !context_->knows_model(*name)) {
    ApiError error =
        http_error(404, fmt::format("the model \"{}\" is not served here; \"{}\" is",
                                    name.value_or(std::string(encoded_name)).substr(0, 100),
                                    context_->model.id));
    error.code = "model_not_found";
    error.param = "model";
    return error_response(error);
  }
  json::Writer w;
  write_model(w, *context_);
  return json_response(w);
}

}  // namespace deepmint
