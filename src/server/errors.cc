#include "server/errors.h"

#include <algorithm>
#include <cmath>

#include "core/json.h"
#include "core/utf8.h"

namespace deepmint {
namespace {

struct Row {
  ErrorCode code;
  int status;
  std::string_view type;
  int retry_after_s;
};

// kInvalidFile and kInternal are this side's trouble, whatever a client sent.
constexpr Row kTable[] = {
    {ErrorCode::kInvalidArgument, 400, "invalid_request_error", 0},
    {ErrorCode::kUnsupported, 400, "invalid_request_error", 0},
    {ErrorCode::kTooLarge, 400, "invalid_request_error", 0},
    {ErrorCode::kNotFound, 404, "not_found_error", 0},
    {ErrorCode::kResourceExhausted, 429, "rate_limit_error", 1},
    {ErrorCode::kDeadlineExceeded, 504, "timeout_error", 0},
    {ErrorCode::kCancelled, 499, "cancelled_error", 0},
    {ErrorCode::kUnavailable, 503, "service_unavailable_error", 1},
    {ErrorCode::kInvalidFile, 500, "internal_error", 0},
    {ErrorCode::kInternal, 500, "internal_error", 0},
};

struct Phrase {
  int status;
  std::string_view type;
  std::string_view phrase;
};
constexpr Phrase kPhrases[] = {
    {200, "", "OK"},
    {204, "", "No Content"},
    {400, "invalid_request_error", "Bad Request"},
    {401, "authentication_error", "Unauthorized"},
    {403, "permission_error", "Forbidden"},
    {404, "not_found_error", "Not Found"},
    {405, "invalid_request_error", "Method Not Allowed"},
    {408, "timeout_error", "Request Timeout"},
    {411, "invalid_request_error", "Length Required"},
    {413, "invalid_request_error", "Content Too Large"},
    {414, "invalid_request_error", "URI Too Long"},
    {415, "invalid_request_error", "Unsupported Media Type"},
    {417, "invalid_request_error", "Expectation Failed"},
    {429, "rate_limit_error", "Too Many Requests"},
    {431, "invalid_request_error", "Request Header Fields Too Large"},
    {499, "cancelled_error", "Client Closed Request"},
    {500, "internal_error", "Internal Server Error"},
    {501, "invalid_request_error", "Not Implemented"},
    {503, "service_unavailable_error", "Service Unavailable"},
    {504, "timeout_error", "Gateway Timeout"},
    {505, "invalid_request_error", "HTTP Version Not Supported"},
};

}  // namespace

ApiError api_error(const Error& error) {
  for (const Row& row : kTable) {
    if (row.code != error.code) continue;
    ApiError out;
    out.status = row.status;
    out.type = row.type;
    out.code = row.type;
    out.message = error.str();
    // A request field has no spaces; "byte 17" is a place in the text, not a field.
    // "field", or "field: place inside its value".
    const std::string field = error.where.substr(0, error.where.find(": "));
    if (row.status == 400 && field.find(' ') == std::string::npos) out.param = field;
    // The engine knows how long its queue takes; others only that it is worth trying again.
    out.retry_after_s = row.retry_after_s;
    if (row.retry_after_s > 0 && error.retry_after_s > 0)
      out.retry_after_s = static_cast<int>(std::ceil(std::min(error.retry_after_s, 86'400.0)));
    return out;
  }
  return http_error(500, error.str());
}

ApiError http_error(int status, std::string message) {
  ApiError out;
  out.status = status;
  for (const Phrase& p : kPhrases)
    if (p.status == status) out.type = p.type;
  out.code = out.type;
  out.message = std::move(message);
  if (status == 429 || status == 503) out.retry_after_s = 1;
  return out;
}

std::string error_body(const ApiError& error) {
  json::Writer w;
  w.begin_object().key("error").begin_object();
  w.key("message").value(utf8::sanitize(error.message));
  w.key("type").value(error.type);
  w.key("param");
  if (error.param.empty())
    w.null();
  else
    w.value(utf8::sanitize(error.param));
  w.key("code").value(error.code);
  w.end_object().end_object();
  return w.take();
}

std::string_view reason_phrase(int status) {
  for (const Phrase& p : kPhrases)
    if (p.status == status) return p.phrase;
  return "Unknown";
}

}  // namespace deepmint
