// One HTTP request and one HTTP response as plain data: what the transport hands up and takes back.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/errors.h"

namespace deepmint::http {

struct RequestHead {
  std::string method;  // as sent: "GET"
  std::string target;  // as sent: "/v1/models?x=1"
  int version = 11;    // 10 or 11
  std::vector<std::pair<std::string, std::string>> headers;
  std::optional<uint64_t> content_length;
  bool chunked = false;

  // The first header of that name, compared without case; empty when it is not there.
  std::string_view header(std::string_view name) const;
  size_t count(std::string_view name) const;
  bool has_body() const { return chunked || content_length.value_or(0) > 0; }

  std::string_view path()
      const;  // target without query, without scheme and host, still percent-encoded
};

std::optional<std::string> percent_decode(std::string_view text);  // nullopt for a bad escape

bool equal_ignoring_case(std::string_view a, std::string_view b);  // ASCII

// Bytes of request bodies that are held now, all connections together. take() fails when the limit
// would be passed.
class BodyBudget {
 public:
  explicit BodyBudget(int64_t limit) : limit_(limit) {}
  bool take(int64_t bytes);
  void give_back(int64_t bytes) { used_ -= bytes; }
  int64_t used() const { return used_; }

 private:
  const int64_t limit_;
  std::atomic<int64_t> used_{0};
};

// A body and its share of the budget, which returns when the body goes.
class Body {
 public:
  Body() = default;
  explicit Body(std::shared_ptr<BodyBudget> budget) : budget_(std::move(budget)) {}
  Body(Body&& other) noexcept;
  Body& operator=(Body&& other) noexcept;
  ~Body() { release(); }

  bool reserve(int64_t bytes);  // false when the budget is used up; then nothing changes
  bool append(std::string_view bytes);
  std::string& text() { return text_; }
  const std::string& text() const { return text_; }

 private:
  void release();
  std::shared_ptr<BodyBudget> budget_;
  std::string text_;
  int64_t taken_ = 0;
};

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  std::string body = {};
  std::vector<std::pair<std::string, std::string>> headers = {};
};

Response error_response(const ApiError& error);

// Lets pages of `origin` ("*" for all) read the answer; nothing when it is empty.
void allow_origin(Response& response, const std::string& origin);

// Status line and headers up to and including the empty line. `length` is content-length; nullopt
// means chunked for HTTP/1.1 and "until the connection closes" for HTTP/1.0.
struct HeadOptions {
  int request_version = 11;
  bool keep_alive = true;
  bool keep_alive_asked = false;  // HTTP/1.0 client that sent Connection: keep-alive
  std::optional<uint64_t> length = {};
  std::string_view date = {};  // "Sun, 06 Nov 1994 08:49:37 GMT"
};
void append_head(std::string& out, const Response& response, const HeadOptions& options);
void append_chunk(std::string& out,
                  std::string_view bytes);  // one chunk of chunked coding; nothing for no bytes

std::string http_date(int64_t unix_seconds);

}  // namespace deepmint::http
