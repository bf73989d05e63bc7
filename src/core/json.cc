#include "core/json.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace deepmint::json {
namespace {

namespace od = simdjson::ondemand;

class Builder {
 public:
  Builder(const char* base, const ParseLimits& limits) : base_(base), limits_(limits) {}

  Result<Value> build(od::value value, int depth) {
    if (++values_ > limits_.max_values)
      return fail(ErrorCode::kTooLarge, fmt::format("more than {} values", limits_.max_values), "JSON");
    od::json_type type{};
    if (auto e = value.type().get(type)) return error(e, value);
    switch (type) {
      case od::json_type::object: {
        if (depth >= limits_.max_depth) return too_deep();
        od::object object;
        if (auto e = value.get_object().get(object)) return error(e, value);
        Object members;
        for (auto field : object) {
          std::string_view key;
          od::value child;
          if (auto e = field.unescaped_key().get(key)) return error(e);
          std::string owned_key(key);
          if (auto e = field.value().get(child)) return error(e);
          DEEPMINT_TRY(built, build(child, depth + 1));
          members.push_back({std::move(owned_key), std::move(built)});
        }
        return Value(std::move(members));
      }
      case od::json_type::array: {
        if (depth >= limits_.max_depth) return too_deep();
        od::array array;
        if (auto e = value.get_array().get(array)) return error(e, value);
        Array items;
        for (auto item : array) {
          od::value child;
          if (auto e = item.get(child)) return error(e);
          DEEPMINT_TRY(built, build(child, depth + 1));
          items.push_back(std::move(built));
        }
        return Value(std::move(items));
      }
      case od::json_type::string: {
        std::string_view s;
        if (auto e = value.get_string().get(s)) return error(e, value);
        return Value(std::string(s));
      }
      case od::json_type::number: return number(value.raw_json_token());
      case od::json_type::boolean: {
        bool b = false;
        if (auto e = value.get_bool().get(b)) return error(e, value);
        return Value(b);
      }
      case od::json_type::null: {
        bool is_null = false;
        if (value.is_null().get(is_null) != simdjson::SUCCESS || !is_null) return error(simdjson::N_ATOM_ERROR, value);
        return Value();
      }
    }
    return error(simdjson::TAPE_ERROR, value);
  }

  // `token` runs to the next structural character, so trailing white space is cut off and the rest must match the grammar.
  Result<Value> number(std::string_view token) {
    const size_t at = static_cast<size_t>(token.data() - base_);
    while (!token.empty() && (token.back() == ' ' || token.back() == '\n' || token.back() == '\r' || token.back() == '\t'))
      token.remove_suffix(1);
    size_t i = 0;
    const auto digits = [&] {
      const size_t start = i;
      while (i < token.size() && token[i] >= '0' && token[i] <= '9') ++i;
      return i - start;
    };
    if (i < token.size() && token[i] == '-') ++i;
    const size_t int_start = i;
    bool ok = digits() > 0 && !(token[int_start] == '0' && i - int_start > 1);
    if (ok && i < token.size() && token[i] == '.') {
      ++i;
      ok = digits() > 0;
    }
    if (ok && i < token.size() && (token[i] == 'e' || token[i] == 'E')) {
      ++i;
      if (i < token.size() && (token[i] == '+' || token[i] == '-')) ++i;
      ok = digits() > 0;
    }
    if (!ok || i != token.size())
      return fail(ErrorCode::kInvalidArgument, "invalid JSON: expected a number", fmt::format("byte {}", at));
    return Value::number(std::string(token));
  }

  tl::unexpected<Error> error(simdjson::error_code e, od::value& value) {
    const char* at = nullptr;
    if (value.current_location().get(at) == simdjson::SUCCESS && at >= base_)
      return fail(ErrorCode::kInvalidArgument, fmt::format("invalid JSON: {}", simdjson::error_message(e)),
                  fmt::format("byte {}", at - base_));
    return error(e);
  }
  tl::unexpected<Error> error(simdjson::error_code e) const {
    if (e == simdjson::DEPTH_ERROR) return too_deep();
    return fail(ErrorCode::kInvalidArgument, fmt::format("invalid JSON: {}", simdjson::error_message(e)), "JSON");
  }
  tl::unexpected<Error> too_deep() const {
    return fail(ErrorCode::kTooLarge, fmt::format("nested more than {} levels deep", limits_.max_depth), "JSON");
  }

 private:
  const char* base_;
  const ParseLimits& limits_;
  size_t values_ = 0;
};

struct Decimal {  // integer value of a JSON number when it has one
  bool negative = false;
  uint64_t magnitude = 0;
};

std::optional<Decimal> to_integer(std::string_view text) {
  Decimal out;
  size_t i = 0;
  if (i < text.size() && text[i] == '-') {
    out.negative = true;
    ++i;
  }
  std::string digits;
  long point = 0;
  bool seen_point = false;
  for (; i < text.size() && text[i] != 'e' && text[i] != 'E'; ++i) {
    if (text[i] == '.') {
      seen_point = true;
    } else {
      digits.push_back(text[i]);
      if (seen_point) ++point;
    }
  }
  long exponent = 0;
  if (i < text.size()) {
    std::string_view e = text.substr(i + 1);
    if (!e.empty() && e.front() == '+') e.remove_prefix(1);
    const auto r = std::from_chars(e.data(), e.data() + e.size(), exponent);
    if (r.ec != std::errc()) {  // absurd exponent: only zero stays an integer
      if (digits.find_first_not_of('0') == std::string::npos) return out;
      return std::nullopt;
    }
  }
  const size_t first = digits.find_first_not_of('0');
  if (first == std::string::npos) return out;
  digits.erase(0, first);
  long shift = exponent - point;
  for (; shift < 0 && !digits.empty() && digits.back() == '0'; ++shift) digits.pop_back();
  if (shift < 0 || static_cast<long>(digits.size()) + shift > 20) return std::nullopt;
  digits.append(static_cast<size_t>(shift), '0');
  const auto r = std::from_chars(digits.data(), digits.data() + digits.size(), out.magnitude);
  if (r.ec != std::errc()) return std::nullopt;
  return out;
}

}  // namespace

std::string_view to_string(Kind kind) {
  constexpr std::array<std::string_view, 6> kNames = {"null", "boolean", "number", "string", "array", "object"};
  return kNames[static_cast<size_t>(kind)];
}

Value::Value(Array a) : v_(std::move(a)) {}
Value::Value(Object o) : v_(std::move(o)) {}
Value Value::number(std::string spelling) {
  Value v;
  v.v_ = Number{std::move(spelling)};
  return v;
}
Value Value::number(int64_t n) { return number(std::to_string(n)); }

bool operator==(const Value& a, const Value& b) { return a.v_ == b.v_; }

std::optional<int64_t> Value::to_int64() const {
  if (!is_number()) return std::nullopt;
  const auto d = to_integer(number_text());
  if (!d) return std::nullopt;
  const uint64_t limit = uint64_t{1} << 63;
  if (d->negative) {
    if (d->magnitude > limit) return std::nullopt;
    return static_cast<int64_t>(0 - d->magnitude);
  }
  if (d->magnitude >= limit) return std::nullopt;
  return static_cast<int64_t>(d->magnitude);
}

std::optional<uint64_t> Value::to_uint64() const {
  if (!is_number()) return std::nullopt;
  const auto d = to_integer(number_text());
  if (!d || (d->negative && d->magnitude != 0)) return std::nullopt;
  return d->magnitude;
}

std::optional<double> Value::to_double() const {
  if (!is_number()) return std::nullopt;
  const std::string& text = number_text();
  double out = 0;
  const auto r = std::from_chars(text.data(), text.data() + text.size(), out);
  if (r.ec == std::errc::result_out_of_range) {
    // from_chars does not say which side; an underflow has a value (a zero of the same sign).
    const size_t e = text.find_first_of("eE");
    if (e != std::string::npos && e + 1 < text.size() && text[e + 1] == '-') return text.front() == '-' ? -0.0 : 0.0;
    const size_t nonzero = text.find_first_of("123456789");
    const size_t point = text.find('.');
    if (e == std::string::npos && point != std::string::npos && nonzero > point) return text.front() == '-' ? -0.0 : 0.0;
    return std::nullopt;
  }
  if (!std::isfinite(out)) return std::nullopt;
  return out;
}

const Value* Value::find(std::string_view key) const {
  if (!is_object()) return nullptr;
  const Object& object = members();
  for (auto it = object.rbegin(); it != object.rend(); ++it)
    if (it->key == key) return &it->value;
  return nullptr;
}

Result<Value> parse(std::string_view text, const ParseLimits& limits) {
  if (text.size() > limits.max_bytes)
    return fail(ErrorCode::kTooLarge, fmt::format("{} bytes, limit {}", text.size(), limits.max_bytes), "JSON");
  const size_t start = text.find_first_not_of(" \t\r\n");
  if (start == std::string_view::npos)
    return fail(ErrorCode::kInvalidArgument, "invalid JSON: expected a value, found nothing", "byte 0");
  if (text[start] != '{' && text[start] != '[') {
    // simdjson treats a scalar document by other rules (it does not see "1 2"); as the one item of an array it is ordinary.
    ParseLimits inner = limits;
    inner.max_bytes += 2;
    inner.max_depth += 1;
    inner.max_values += 1;
    DEEPMINT_TRY(array, parse("[" + std::string(text) + "]", inner));
    if (array.items().size() != 1)
      return fail(ErrorCode::kInvalidArgument, "invalid JSON: more text after the value", "JSON");
    return std::move(array.items().front());
  }
  const simdjson::padded_string padded(text);
  od::parser parser;
  od::document doc;
  // Room for some levels more than ours, so that the limit that is reported is ours.
  if (auto e = parser.allocate(padded.size(), static_cast<size_t>(limits.max_depth) + 8))
    return fail(ErrorCode::kResourceExhausted, simdjson::error_message(e), "JSON");
  Builder builder(padded.data(), limits);
  if (auto e = parser.iterate(padded).get(doc)) return builder.error(e);
  od::value root;
  if (auto e = doc.get_value().get(root)) return builder.error(e);
  DEEPMINT_TRY(out, builder.build(root, 0));
  // current_location fails exactly when every token has been read.
  if (const char* rest = nullptr; doc.current_location().get(rest) == simdjson::SUCCESS)
    return fail(ErrorCode::kInvalidArgument, "invalid JSON: more text after the value",
                fmt::format("byte {}", rest - padded.data()));
  return out;
}

void append_escaped(std::string& out, std::string_view s) {
  constexpr char kHex[] = "0123456789abcdef";
  out.push_back('"');
  size_t start = 0;
  for (size_t i = 0; i < s.size(); ++i) {
    const auto c = static_cast<unsigned char>(s[i]);
    if (c >= 0x20 && c != '"' && c != '\\') continue;
    out.append(s, start, i - start);
    start = i + 1;
    switch (c) {
      case '"': out.append("\\\""); break;
      case '\\': out.append("\\\\"); break;
      case '\n': out.append("\\n"); break;
      case '\r': out.append("\\r"); break;
      case '\t': out.append("\\t"); break;
      case '\b': out.append("\\b"); break;
      case '\f': out.append("\\f"); break;
      default:
        out.append("\\u00");
        out.push_back(kHex[c >> 4]);
        out.push_back(kHex[c & 15]);
    }
  }
  out.append(s, start);
  out.push_back('"');
}

void Writer::separate() {
  if (!first_) out_.push_back(',');
  first_ = false;
}
Writer& Writer::open(char c) {
  separate();
  out_.push_back(c);
  first_ = true;
  return *this;
}
Writer& Writer::close(char c) {
  out_.push_back(c);
  first_ = false;
  return *this;
}
Writer& Writer::key(std::string_view k) {
  separate();
  append_escaped(out_, k);
  out_.push_back(':');
  first_ = true;
  return *this;
}
Writer& Writer::value(std::string_view s) {
  separate();
  append_escaped(out_, s);
  return *this;
}
Writer& Writer::value(bool b) { return raw(b ? "true" : "false"); }
Writer& Writer::value(int64_t v) {
  separate();
  fmt::format_to(std::back_inserter(out_), FMT_STRING("{}"), v);
  return *this;
}
Writer& Writer::value(uint64_t v) {
  separate();
  fmt::format_to(std::back_inserter(out_), FMT_STRING("{}"), v);
  return *this;
}
Writer& Writer::value(double v) {
  if (!std::isfinite(v)) return null();
  separate();
  std::array<char, 32> buffer;
  const auto r = std::to_chars(buffer.data(), buffer.data() + buffer.size(), v);
  out_.append(buffer.data(), r.ptr);
  return *this;
}
Writer& Writer::value(float v) {
  if (!std::isfinite(v)) return null();
  separate();
  std::array<char, 32> buffer;
  const auto r = std::to_chars(buffer.data(), buffer.data() + buffer.size(), v);
  out_.append(buffer.data(), r.ptr);
  return *this;
}
Writer& Writer::null() { return raw("null"); }
Writer& Writer::raw(std::string_view json) {
  separate();
  out_.append(json);
  return *this;
}
Writer& Writer::value(const Value& v) {
  switch (v.kind()) {
    case Kind::kNull: return null();
    case Kind::kBool: return value(v.as_bool());
    case Kind::kNumber: return raw(v.number_text());
    case Kind::kString: return value(std::string_view(v.as_string()));
    case Kind::kArray:
      begin_array();
      for (const Value& item : v.items()) value(item);
      return end_array();
    case Kind::kObject:
      begin_object();
      for (const Member& member : v.members()) key(member.key).value(member.value);
      return end_object();
  }
  return *this;
}

std::string dump(const Value& value) {
  Writer w;
  w.value(value);
  return w.take();
}

}  // namespace deepmint::json
