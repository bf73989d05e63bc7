// JSON text as the prompts spell it: Python's json.dumps (V4.1) or the compact number form of the
// Rust serializer (V4 and constraint schemas).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/json.h"

namespace deepmint::recipe {

enum class NumberStyle : uint8_t {
  kPython,   // 1e+16, 1e-07, 1e-05, 100000.0
  kCompact,  // 1e+16, 1e-7, 0.00001, 100000.0
};

struct JsonStyle {
  NumberStyle numbers = NumberStyle::kPython;
  bool spaces = true;  // ", " and ": " instead of "," and ":"
};

// A number as the style spells it: integers inside i64/u64 keep their digits, everything else is
// the shortest double that reads back the same. `spelling` is a JSON number; one that overflows a
// double is copied as it is.
void append_number(std::string& out, std::string_view spelling, NumberStyle style);

// A whole value. Of duplicate keys the last value stands at the place of the first, as in the
// original's map.
void append_json(std::string& out, const json::Value& value, JsonStyle style);
std::string to_json(const json::Value& value, JsonStyle style);
std::string compact_json(const json::Value& value);  // kCompact, without spaces
std::string quoted_json(std::string_view s);         // a string with its quotes
std::string quoted_or_null(const std::optional<std::string_view>& s);

// True when every number in `value` is finite as a double: the original refuses to read others.
bool numbers_are_finite(const json::Value& value);

// Members of an object with duplicates resolved as above; pointers into `object`.
std::vector<std::pair<const std::string*, const json::Value*>> unique_members(
    const json::Object& object);

}  // namespace deepmint::recipe
