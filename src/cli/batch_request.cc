#include "cli/batch_request.h"

#include <fmt/format.h>

#include "core/json.h"
#include "core/names.h"
#include "server/api/fields.h"
#include "server/local_api.h"

namespace deepmint::cli {
namespace {

// The body's own limits hold where the API reads it; here there is a request around it.
constexpr json::ParseLimits kLimits{
    .max_bytes = size_t{1} << 30, .max_depth = 130, .max_values = 1'000'016};
constexpr std::string_view kChat = "/v1/chat/completions";

std::string found(const json::Value* value) {
  return value == nullptr ? "nothing" : describe(*value);
}

// What the line asks for, or why it does not. `out` has the custom_id as soon as it is known.
std::optional<BatchLineError> read(std::string_view text, BatchRequest& out) {
  const auto wrong = [](std::string_view code, std::string message) {
    return BatchLineError{code, std::move(message)};
  };
  auto parsed = json::parse(text, kLimits);
  if (!parsed) return wrong("invalid_json_line", parsed.error().str());
  if (!parsed->is_object())
    return wrong("invalid_json_line", "expected a JSON object, found " + describe(*parsed));
  const auto member = [&](std::string_view key) {
    const json::Value* value = parsed->find(key);
    return value == nullptr || value->is_null() ? nullptr : value;
  };
  const json::Value* id = member("custom_id");
  const json::Value* method = member("method");
  const json::Value* url = member("url");
  const json::Value* body = member("body");
  if (id != nullptr) {
    if (!id->is_string() || id->as_string().empty())
      return wrong("invalid_custom_id",
                   "custom_id: expected a string of at least one character, found " + found(id));
    out.custom_id = id->as_string();
    out.is_numbered = false;
  }
  if (id == nullptr && method == nullptr && url == nullptr && body == nullptr) {
    body = &*parsed;
  } else {
    if (method != nullptr && !(method->is_string() && method->as_string() == "POST"))
      return wrong("invalid_method", "method: expected \"POST\", found " + found(method));
    if (url != nullptr && !(url->is_string() && LocalApi::has_path(url->as_string())))
      return wrong("invalid_url", fmt::format("url: expected {}, found {}",
                                              fmt::join(LocalApi::paths(), " or "), found(url)));
    if (body == nullptr || !body->is_object())
      return wrong("invalid_body", "body: expected an object, found " + found(body) +
                                       (body == nullptr && member("messages") != nullptr
                                            ? "; messages belong inside it"
                                            : ""));
  }
  // A result is one object; the published API refuses streams as well.
  if (const json::Value* stream = body->find("stream");
      stream != nullptr && stream->is_bool() && stream->as_bool())
    return wrong("invalid_body", "stream: expected false in a batch, found true");
  out.path = url != nullptr ? url->as_string() : std::string(kChat);
  out.body = json::dump(*body);
  return std::nullopt;
}

}  // namespace

BatchRequest read_batch_request(const FileLine& line, size_t max_line_bytes) {
  BatchRequest out{.custom_id = std::to_string(line.number), .is_numbered = true};
  if (line.is_too_long) {
    out.error = BatchLineError{"line_too_long", fmt::format("expected at most {} bytes, found {}",
                                                            max_line_bytes, line.end - line.begin)};
  } else {
    out.error = read(line.text, out);
  }
  if (out.error) {
    out.error->message = fmt::format("line {}: {}", line.number, out.error->message);
    if (out.is_numbered) out.custom_id.insert(0, 1, '\xff');
    out.is_numbered = false;
  }
  return out;
}

}  // namespace deepmint::cli
