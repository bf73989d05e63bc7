// JSON parser on arbitrary bytes: its verdict is that of an independent parser, and what it accepts
// survives dump and parse.
#include "core/json.h"

#include <nlohmann/json.hpp>
#include <string_view>

#include "core/utf8.h"
#include "promises.h"

using namespace deepmint;

namespace {

// Conversions must not trap; nlohmann refuses numbers that no double can hold, which we keep as
// spelled.
bool has_overflow(const json::Value& value) {
  switch (value.kind()) {
    case json::Kind::kNumber: {
      const auto i = value.to_int64();
      const auto u = value.to_uint64();
      const auto d = value.to_double();
      if (i && *i >= 0) fuzz::require(u == static_cast<uint64_t>(*i));
      if (i) fuzz::require(d == static_cast<double>(*i));
      if (u) fuzz::require(d == static_cast<double>(*u));
      return !d;
    }
    case json::Kind::kString:
      fuzz::require(utf8::is_valid(value.as_string()));
      return false;
    case json::Kind::kArray: {
      bool out = false;
      for (const json::Value& item : value.items()) out |= has_overflow(item);
      return out;
    }
    case json::Kind::kObject: {
      bool out = false;
      for (const json::Member& member : value.members()) {
        fuzz::require(utf8::is_valid(member.key));
        fuzz::require(value.find(member.key) != nullptr);
        out |= has_overflow(member.value);
      }
      return out;
    }
    default:
      return false;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto value = json::parse(text);
  if (!value) fuzz::check_error(value.error());
  const bool overflow = value && has_overflow(*value);
  if (value) {
    const auto again = json::parse(json::dump(*value));
    fuzz::require(again && *again == *value);
  }
  // Where the two differ by design: nlohmann skips a byte-order mark, ends at NUL, and has no depth
  // limit.
  const bool comparable = !overflow && !text.starts_with("\xEF\xBB\xBF") &&
                          text.find('\0') == std::string_view::npos &&
                          (value || value.error().code != ErrorCode::kTooLarge);
  if (comparable) fuzz::require(nlohmann::json::accept(text) == value.has_value());
  return 0;
}
