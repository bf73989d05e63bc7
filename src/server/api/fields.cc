#include "server/api/fields.h"

#include <fmt/format.h>

#include <limits>

#include "core/utf8.h"

namespace deepmint {
namespace {

constexpr size_t kShown = 40;  // bytes of a caller's value in a message

std::string shorten(std::string_view text) {
  if (text.size() <= kShown) return std::string(text);
  text = text.substr(0, kShown);
  text.remove_suffix(utf8::incomplete_tail(text));
  return std::string(text) + "…";
}

}  // namespace

std::string describe(const json::Value& value) {
  switch (value.kind()) {
    case json::Kind::kNull:
      return "null";
    case json::Kind::kBool:
      return value.as_bool() ? "true" : "false";
    case json::Kind::kNumber:
      return shorten(value.number_text());
    case json::Kind::kString: {
      std::string quoted;
      json::append_escaped(quoted, shorten(value.as_string()));
      return quoted;
    }
    case json::Kind::kArray:
      return value.items().empty() ? "an empty array" : "an array";
    case json::Kind::kObject:
      return "an object";
  }
  return "nothing";
}

const json::Value* Fields::find(std::string_view key) const {
  const json::Value* value = object_.find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

tl::unexpected<Error> Fields::wrong(std::string_view key, std::string_view expected,
                                    const json::Value& found) const {
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("expected {}, found {}", expected, describe(found)), path(key));
}

Status Fields::boolean(std::string_view key, bool& out) const {
  const json::Value* value = find(key);
  if (value == nullptr) return {};
  if (!value->is_bool()) return wrong(key, "true or false", *value);
  out = value->as_bool();
  return {};
}

Status Fields::text(std::string_view key, std::string& out, size_t max_bytes) const {
  const json::Value* value = find(key);
  if (value == nullptr) return {};
  if (!value->is_string()) return wrong(key, "a string", *value);
  if (value->as_string().size() > max_bytes)
    return wrong(key, fmt::format("a string of at most {} bytes", max_bytes), *value);
  out = value->as_string();
  return {};
}

Status Fields::integer(std::string_view key, int64_t min, int64_t max, int64_t& out) const {
  const json::Value* value = find(key);
  if (value == nullptr) return {};
  const auto n = value->to_int64();
  if (!n || *n < min || *n > max)
    return wrong(key, fmt::format("an integer from {} to {}", min, max), *value);
  out = *n;
  return {};
}

Status Fields::integer(std::string_view key, int32_t min, int32_t max, int32_t& out) const {
  int64_t wide = out;
  DEEPMINT_CHECK_OK(integer(key, int64_t{min}, int64_t{max}, wide));
  out = static_cast<int32_t>(wide);
  return {};
}

Status Fields::number(std::string_view key, double min, double max, double& out,
                      bool above_min) const {
  const json::Value* value = find(key);
  if (value == nullptr) return {};
  const auto n = value->to_double();
  if (!n || *n > max || *n < min || (above_min && *n <= min))
    return wrong(
        key,
        fmt::format("a number {} {}{}", above_min ? "above" : "from", min,
                    max < std::numeric_limits<double>::max() ? fmt::format(" to {}", max) : ""),
        *value);
  out = *n;
  return {};
}

Status Fields::number(std::string_view key, double min, double max, float& out) const {
  double wide = out;
  DEEPMINT_CHECK_OK(number(key, min, max, wide));
  out = static_cast<float>(wide);
  return {};
}

}  // namespace deepmint
