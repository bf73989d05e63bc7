#include "recipe/spelling.h"

#include <array>
#include <charconv>
#include <unordered_map>

namespace deepmint::recipe {
namespace {

bool is_integer(std::string_view s) { return s.find_first_of(".eE") == std::string_view::npos; }

bool fits_64_bits(std::string_view s) {
  if (s == "-0") return false;  // read as a float by the original
  if (s.front() == '-') {
    int64_t v = 0;
    const auto r = std::from_chars(s.data(), s.data() + s.size(), v);
    return r.ec == std::errc();
  }
  uint64_t v = 0;
  const auto r = std::from_chars(s.data(), s.data() + s.size(), v);
  return r.ec == std::errc();
}

void append_double(std::string& out, double v, NumberStyle style) {
  std::array<char, 40> buffer;
  const auto r =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), v, std::chars_format::scientific);
  std::string_view s(buffer.data(), static_cast<size_t>(r.ptr - buffer.data()));
  if (s.front() == '-') {
    out.push_back('-');
    s.remove_prefix(1);
  }
  const size_t e = s.find('e');
  int exponent = 0;
  std::string_view exponent_text = s.substr(e + 1);
  if (exponent_text.front() == '+') exponent_text.remove_prefix(1);
  std::from_chars(exponent_text.data(), exponent_text.data() + exponent_text.size(), exponent);
  std::string digits(1, s[0]);
  if (e > 2) digits.append(s.substr(2, e - 2));  // without the point
  const int lowest = style == NumberStyle::kPython ? -4 : -5;
  if (exponent >= lowest && exponent < 16) {
    if (exponent < 0) {
      out.append("0.").append(static_cast<size_t>(-exponent - 1), '0').append(digits);
    } else {
      const size_t whole = static_cast<size_t>(exponent) + 1;
      if (digits.size() <= whole) {
        out.append(digits).append(whole - digits.size(), '0').append(".0");
      } else {
        out.append(digits, 0, whole).push_back('.');
        out.append(digits, whole);
      }
    }
    return;
  }
  out.push_back(digits[0]);
  if (digits.size() > 1) out.append(".").append(digits, 1);
  out.push_back('e');
  out.push_back(exponent < 0 ? '-' : '+');
  const int magnitude = exponent < 0 ? -exponent : exponent;
  if (style == NumberStyle::kPython && magnitude < 10) out.push_back('0');
  out.append(std::to_string(magnitude));
}

}  // namespace

void append_number(std::string& out, std::string_view spelling, NumberStyle style) {
  if (is_integer(spelling) && fits_64_bits(spelling)) {
    out.append(spelling);
    return;
  }
  const auto v = json::Value::number(std::string(spelling)).to_double();
  if (v) {
    append_double(out, *v, style);
  } else {
    out.append(spelling);
  }
}

std::vector<std::pair<const std::string*, const json::Value*>> unique_members(
    const json::Object& object) {
  std::vector<std::pair<const std::string*, const json::Value*>> out;
  out.reserve(object.size());
  if (object.size() <= 8) {
    for (const json::Member& member : object) {
      auto it = out.begin();
      while (it != out.end() && *it->first != member.key) ++it;
      if (it == out.end()) {
        out.emplace_back(&member.key, &member.value);
      } else {
        it->second = &member.value;
      }
    }
    return out;
  }
  std::unordered_map<std::string_view, size_t> seen;
  seen.reserve(object.size());
  for (const json::Member& member : object) {
    const auto [it, is_new] = seen.emplace(member.key, out.size());
    if (is_new) {
      out.emplace_back(&member.key, &member.value);
    } else {
      out[it->second].second = &member.value;
    }
  }
  return out;
}

void append_json(std::string& out, const json::Value& value, JsonStyle style) {
  switch (value.kind()) {
    case json::Kind::kNull:
      out.append("null");
      return;
    case json::Kind::kBool:
      out.append(value.as_bool() ? "true" : "false");
      return;
    case json::Kind::kNumber:
      append_number(out, value.number_text(), style.numbers);
      return;
    case json::Kind::kString:
      json::append_escaped(out, value.as_string());
      return;
    case json::Kind::kArray: {
      out.push_back('[');
      bool first = true;
      for (const json::Value& item : value.items()) {
        if (!first) out.append(style.spaces ? ", " : ",");
        first = false;
        append_json(out, item, style);
      }
      out.push_back(']');
      return;
    }
    case json::Kind::kObject: {
      out.push_back('{');
      bool first = true;
      for (const auto& [key, item] : unique_members(value.members())) {
        if (!first) out.append(style.spaces ? ", " : ",");
        first = false;
        json::append_escaped(out, *key);
        out.append(style.spaces ? ": " : ":");
        append_json(out, *item, style);
      }
      out.push_back('}');
      return;
    }
  }
}

std::string to_json(const json::Value& value, JsonStyle style) {
  std::string out;
  append_json(out, value, style);
  return out;
}

std::string compact_json(const json::Value& value) {
  return to_json(value, {NumberStyle::kCompact, false});
}

std::string quoted_json(std::string_view s) {
  std::string out;
  json::append_escaped(out, s);
  return out;
}

std::string quoted_or_null(const std::optional<std::string_view>& s) {
  return s ? quoted_json(*s) : "null";
}

bool numbers_are_finite(const json::Value& value) {
  switch (value.kind()) {
    case json::Kind::kNumber:
      return value.to_double().has_value();
    case json::Kind::kArray:
      for (const json::Value& item : value.items())
        if (!numbers_are_finite(item)) return false;
      return true;
    case json::Kind::kObject:
      for (const json::Member& member : value.members())
        if (!numbers_are_finite(member.value)) return false;
      return true;
    default:
      return true;
  }
}

}  // namespace deepmint::recipe
