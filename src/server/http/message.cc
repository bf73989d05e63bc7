#include "server/http/message.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>

namespace deepmint::http {
namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  c = lower(c);
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

}  // namespace

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(),
                                            [](char x, char y) { return lower(x) == lower(y); });
}

std::string_view RequestHead::header(std::string_view name) const {
  for (const auto& [key, value] : headers)
    if (equal_ignoring_case(key, name)) return value;
  return {};
}

size_t RequestHead::count(std::string_view name) const {
  return static_cast<size_t>(std::count_if(headers.begin(), headers.end(), [&](const auto& h) {
    return equal_ignoring_case(h.first, name);
  }));
}

std::string_view RequestHead::path() const {
  std::string_view path = target;
  for (std::string_view scheme : {"http://", "https://"}) {
    if (!path.starts_with(scheme)) continue;
    path.remove_prefix(scheme.size());
    path.remove_prefix(std::min(path.find_first_of("/?#"), path.size()));
    if (path.empty()) return "/";
    break;
  }
  return path.substr(0, path.find_first_of("?#"));
}

std::optional<std::string> percent_decode(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out.push_back(text[i]);
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const int high = hex_digit(text[i + 1]), low = hex_digit(text[i + 2]);
    if (high < 0 || low < 0) return std::nullopt;
    out.push_back(static_cast<char>(high * 16 + low));
    i += 2;
  }
  return out;
}

bool BodyBudget::take(int64_t bytes) {
  if (used_.fetch_add(bytes) + bytes <= limit_) return true;
  used_ -= bytes;
  return false;
}

Body::Body(Body&& other) noexcept
    : budget_(std::move(other.budget_)),
      text_(std::move(other.text_)),
      taken_(std::exchange(other.taken_, 0)) {}

Body& Body::operator=(Body&& other) noexcept {
  if (this == &other) return *this;
  release();
  budget_ = std::move(other.budget_);
  text_ = std::move(other.text_);
  taken_ = std::exchange(other.taken_, 0);
  return *this;
}

void Body::release() {
  if (budget_ && taken_ > 0) budget_->give_back(taken_);
  taken_ = 0;
}

bool Body::reserve(int64_t bytes) {
  if (bytes <= taken_) return true;
  if (budget_ && !budget_->take(bytes - taken_)) return false;
  taken_ = bytes;
  return true;
}

bool Body::append(std::string_view bytes) {
  const auto needed = static_cast<int64_t>(text_.size() + bytes.size());
  // The budget is taken in steps, so that a body in small chunks does not visit the shared counter
  // for each.
  constexpr int64_t kStep = 64 << 10;
  if (needed > taken_ && !reserve((needed + kStep - 1) / kStep * kStep)) return false;
  text_.append(bytes);
  return true;
}

Response error_response(const ApiError& error) {
  Response response;
  response.status = error.status;
  response.body = error_body(error);
  if (error.retry_after_s > 0)
    response.headers.emplace_back("retry-after", std::to_string(error.retry_after_s));
  if (error.status == 401) response.headers.emplace_back("www-authenticate", "Bearer");
  return response;
}

void allow_origin(Response& response, const std::string& origin) {
  if (origin.empty()) return;
  response.headers.emplace_back("access-control-allow-origin", origin);
  if (origin != "*") response.headers.emplace_back("vary", "origin");
}

void append_head(std::string& out, const Response& response, const HeadOptions& options) {
  fmt::format_to(std::back_inserter(out),
                 FMT_STRING("HTTP/1.1 {} {}\r\nserver: deepmint\r\ndate: {}\r\n"), response.status,
                 reason_phrase(response.status), options.date);
  if (!response.content_type.empty())
    fmt::format_to(std::back_inserter(out), FMT_STRING("content-type: {}\r\n"),
                   response.content_type);
  if (response.status != 204) {  // which has no body by definition
    if (options.length)
      fmt::format_to(std::back_inserter(out), FMT_STRING("content-length: {}\r\n"),
                     *options.length);
    else if (options.request_version >= 11)
      out += "transfer-encoding: chunked\r\n";
  }
  out += "x-content-type-options: nosniff\r\n";
  for (const auto& [name, value] : response.headers)
    fmt::format_to(std::back_inserter(out), FMT_STRING("{}: {}\r\n"), name, value);
  if (!options.keep_alive)
    out += "connection: close\r\n";
  else if (options.keep_alive_asked)
    out += "connection: keep-alive\r\n";
  out += "\r\n";
}

void append_chunk(std::string& out, std::string_view bytes) {
  if (bytes.empty()) return;
  fmt::format_to(std::back_inserter(out), FMT_STRING("{:x}\r\n"), bytes.size());
  out.append(bytes);
  out += "\r\n";
}

std::string http_date(int64_t unix_seconds) {
  constexpr std::array<std::string_view, 7> kDays = {"Sun", "Mon", "Tue", "Wed",
                                                     "Thu", "Fri", "Sat"};
  constexpr std::array<std::string_view, 12> kMonths = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                                        "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const std::time_t t = unix_seconds;
  std::tm tm{};
  gmtime_r(&t, &tm);
  return fmt::format(
      "{}, {:02} {} {} {:02}:{:02}:{:02} GMT", kDays[static_cast<size_t>(tm.tm_wday)], tm.tm_mday,
      kMonths[static_cast<size_t>(tm.tm_mon)], tm.tm_year + 1900, tm.tm_hour, tm.tm_min, tm.tm_sec);
}

}  // namespace deepmint::http
