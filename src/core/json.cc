#include "core/json.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>

#include "core/utf8.h"

namespace deepmint::json {
namespace {

namespace od = simdjson::ondemand;

// Where parsing stands: every document is put between brackets, so that a scalar is an ordinary
// array item and whatever follows the document is seen by the same rules as a second item
// (On-Demand treats a scalar root by laxer rules).
struct Source {
  std::string_view text;  // the caller's document
  const char* base =
      nullptr;  // its first byte in the padded copy; base[-1] is '[' and base[text.size()] is ']'

  std::string where(const char* at) const {
    const ptrdiff_t offset =
        std::clamp<ptrdiff_t>(at - base, 0, static_cast<ptrdiff_t>(text.size()));
    return fmt::format("byte {}", offset);
  }
  std::string found(const char* at) const {
    if (at < base || at >= base + text.size()) return "the end of the text";
    const auto c = static_cast<unsigned char>(*at);
    if (c == '\'') return "\"'\"";
    return c > 0x20 && c < 0x7f ? fmt::format("'{}'", *at) : fmt::format("byte 0x{:02x}", c);
  }
};

// Walks every token: nothing that On-Demand leaves unread stays unchecked.
class Builder {
 public:
  Builder(od::document& doc, const Source& source, const ParseLimits& limits)
      : doc_(doc), source_(source), limits_(limits) {}

  Result<Value> document() {
    Value out;
    if (!outer(out)) return tl::unexpected<Error>(std::move(error_));
    return out;
  }

 private:
  // Each of these returns false after it has set error_. Values are built where they stay; handing
  // them up through results took a quarter longer on a safetensors header (json_bench).
  [[nodiscard]] bool outer(Value& out) {
    od::array array;
    if (doc_.get_array().get(array)) return misplaced();
    bool seen = false;
    for (auto item : array) {
      od::value value;
      if (item.get(value)) return misplaced();
      if (seen) return more_text(back_to(',', token_start(value)));
      if (!build(value, 0, out)) return false;
      seen = true;
    }
    if (!seen) return invalid("expected a value, found nothing", source_.base);
    // current_location fails exactly when every token has been read: "1]" leaves our own bracket
    // over.
    const char* rest = nullptr;
    if (!doc_.current_location().get(rest)) return more_text(back_to(']', rest));
    return true;
  }

  [[nodiscard]] bool build(od::value value, int depth, Value& out) {
    if (++values_ > limits_.max_values)
      return too_large(fmt::format("more than {} values", limits_.max_values));
    od::json_type type{};
    if (value.type().get(type)) return misplaced();
    switch (type) {
      case od::json_type::object: {
        if (depth >= limits_.max_depth) return too_deep();
        od::object object;
        if (value.get_object().get(object)) return misplaced();
        out = Value(Object());
        Object& members = out.members();
        for (auto item : object) {
          od::field field;
          std::string_view key;
          if (std::move(item).get(field)) return misplaced();
          const char* key_start = field.key().raw() - 1;
          if (field.unescaped_key().get(key)) return bad_escape(key_start);
          Member& member = members.emplace_back();
          member.key = key;
          if (!build(field.value(), depth + 1, member.value)) return false;
        }
        return true;
      }
      case od::json_type::array: {
        if (depth >= limits_.max_depth) return too_deep();
        od::array array;
        if (value.get_array().get(array)) return misplaced();
        out = Value(Array());
        Array& items = out.items();
        for (auto item : array) {
          od::value child;
          if (item.get(child)) return misplaced();
          if (!build(child, depth + 1, items.emplace_back())) return false;
        }
        return true;
      }
      case od::json_type::string: {
        const char* at = token_start(value);
        std::string_view s;
        if (value.get_string().get(s)) return bad_escape(at);
        out = Value(std::string(s));
        return true;
      }
      case od::json_type::number: {
        const std::string_view token = trimmed(value.raw_json_token());
        if (!is_number(token)) return invalid("expected a number", token_start(value));
        out = Value::number(std::string(token));
        return true;
      }
      // On-Demand would take "true" followed by a NUL byte for true.
      case od::json_type::boolean: {
        const std::string_view token = trimmed(value.raw_json_token());
        if (token != "true" && token != "false")
          return invalid("expected true or false", token_start(value));
        out = Value(token == "true");
        return true;
      }
      case od::json_type::null: {
        const std::string_view token = trimmed(value.raw_json_token());
        if (token != "null") return invalid("expected null", token_start(value));
        out = Value();
        return true;
      }
    }
    return misplaced();
  }

  // The structural character before `at`; only white space lies between.
  static const char* back_to(char c, const char* at) {
    do --at;
    while (*at != c);
    return at;
  }

  static const char* token_start(od::value& value) { return value.raw_json_token().data(); }

  // A raw token runs to the next structural character.
  static std::string_view trimmed(std::string_view token) {
    while (!token.empty() && (token.back() == ' ' || token.back() == '\n' || token.back() == '\r' ||
                              token.back() == '\t'))
      token.remove_suffix(1);
    return token;
  }

  static bool is_number(std::string_view token) {
    size_t i = 0;
    const auto digits = [&] {
      const size_t start = i;
      while (i < token.size() && token[i] >= '0' && token[i] <= '9') ++i;
      return i - start;
    };
    if (i < token.size() && token[i] == '-') ++i;
    const size_t int_start = i;
    if (digits() == 0 || (token[int_start] == '0' && i - int_start > 1)) return false;
    if (i < token.size() && token[i] == '.') {
      ++i;
      if (digits() == 0) return false;
    }
    if (i < token.size() && (token[i] == 'e' || token[i] == 'E')) {
      ++i;
      if (i < token.size() && (token[i] == '+' || token[i] == '-')) ++i;
      if (digits() == 0) return false;
    }
    return i == token.size();
  }

  bool invalid(std::string_view message, const char* at) {
    error_ = Error{ErrorCode::kInvalidArgument, fmt::format("invalid JSON: {}", message),
                   source_.where(at)};
    return false;
  }
  // simdjson has met a token that cannot stand where it stands.
  bool misplaced() {
    const char* at = nullptr;
    if (doc_.current_location().get(at)) at = source_.base + source_.text.size();
    return invalid(fmt::format("a missing or superfluous comma, colon, bracket or value before {}",
                               source_.found(at)),
                   at);
  }
  bool bad_escape(const char* string_start) {
    return invalid("a bad escape in the string that starts here", string_start);
  }
  bool more_text(const char* at) {
    return invalid(fmt::format("expected the end of the text, found {}", source_.found(at)), at);
  }
  bool too_large(std::string message) {
    error_ = Error{ErrorCode::kTooLarge, std::move(message), "JSON"};
    return false;
  }
  bool too_deep() {
    return too_large(fmt::format("nested more than {} levels deep", limits_.max_depth));
  }

  od::document& doc_;
  const Source& source_;
  const ParseLimits& limits_;
  size_t values_ = 0;
  Error error_;
};

// The indexing pass has refused the document without saying where; finds the place for its message.
tl::unexpected<Error> lexical_error(std::string_view text, simdjson::error_code e) {
  const auto invalid = [](std::string_view message, size_t at) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("invalid JSON: {}", message),
                fmt::format("byte {}", at));
  };
  if (const size_t at = utf8::find_invalid(text); at != utf8::npos)
    return invalid(
        fmt::format("expected UTF-8, found byte 0x{:02x}", static_cast<unsigned char>(text[at])),
        at);
  size_t opened = std::string_view::npos;  // the quote of the string that the walk is in
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (opened == std::string_view::npos) {
      if (c == '"') opened = i;
    } else if (c == '"') {
      opened = std::string_view::npos;
    } else if (c == '\\') {
      ++i;
    } else if (c < 0x20) {
      return invalid(
          fmt::format("expected a string without control characters, found byte 0x{:02x}", c), i);
    }
  }
  if (opened != std::string_view::npos)
    return invalid("expected a closing quote for the string that starts here", opened);
  if (e == simdjson::CAPACITY) return fail(ErrorCode::kTooLarge, "longer than 4 GiB", "JSON");
  if (e == simdjson::MEMALLOC) return fail(ErrorCode::kResourceExhausted, "out of memory", "JSON");
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("invalid JSON: {}", simdjson::error_message(e)), "JSON");
}

// A JSON number taken apart: value = ±0.DIGITS × 10^exponent, DIGITS without zeros at either end.
struct Decimal {
  bool negative = false;
  std::string digits;    // empty for zero
  int64_t exponent = 0;  // clamped to ±2^40, which is far outside every type that we convert to
};

Decimal to_decimal(std::string_view text) {
  Decimal out;
  size_t i = 0;
  if (text.front() == '-') {
    out.negative = true;
    ++i;
  }
  int64_t point = 0;  // digits before the decimal point
  bool seen_point = false;
  for (; i < text.size() && text[i] != 'e' && text[i] != 'E'; ++i) {
    if (text[i] == '.') {
      seen_point = true;
    } else {
      out.digits.push_back(text[i]);
      if (!seen_point) ++point;
    }
  }
  constexpr int64_t kLimit = int64_t{1} << 40;
  int64_t exponent = 0;
  if (i < text.size()) {
    std::string_view e = text.substr(i + 1);
    if (e.front() == '+') e.remove_prefix(1);
    if (std::from_chars(e.data(), e.data() + e.size(), exponent).ec != std::errc())
      exponent = e.front() == '-' ? -kLimit : kLimit;
  }
  const size_t first = out.digits.find_first_not_of('0');
  if (first == std::string::npos) {
    out.digits.clear();
    return out;
  }
  out.digits.erase(0, first);
  out.digits.erase(out.digits.find_last_not_of('0') + 1);
  out.exponent = std::clamp(exponent, -kLimit, kLimit) + point - static_cast<int64_t>(first);
  return out;
}

// Magnitude of a number that is an integer below 2^64.
std::optional<uint64_t> to_magnitude(Decimal d) {
  if (d.digits.empty()) return 0;
  const auto n_digits = static_cast<int64_t>(d.digits.size());
  if (d.exponent < n_digits || d.exponent > 20)
    return std::nullopt;  // has a fraction, or at least 10^20
  d.digits.append(static_cast<size_t>(d.exponent - n_digits), '0');
  uint64_t out = 0;
  const auto r = std::from_chars(d.digits.data(), d.digits.data() + d.digits.size(), out);
  return r.ec == std::errc() ? std::optional(out) : std::nullopt;
}

}  // namespace

std::string_view to_string(Kind kind) {
  constexpr std::array<std::string_view, 6> kNames = {"null",   "boolean", "number",
                                                      "string", "array",   "object"};
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
  const Decimal d = to_decimal(number_text());
  const auto magnitude = to_magnitude(d);
  const uint64_t limit = uint64_t{1} << 63;
  if (!magnitude || *magnitude > limit || (*magnitude == limit && !d.negative)) return std::nullopt;
  return static_cast<int64_t>(d.negative ? 0 - *magnitude : *magnitude);
}

std::optional<uint64_t> Value::to_uint64() const {
  if (!is_number()) return std::nullopt;
  const Decimal d = to_decimal(number_text());
  const auto magnitude = to_magnitude(d);
  if (d.negative && magnitude != uint64_t{0}) return std::nullopt;
  return magnitude;
}

std::optional<double> Value::to_double() const {
  if (!is_number()) return std::nullopt;
  const std::string& text = number_text();
  double out = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), out).ec ==
      std::errc::result_out_of_range) {
    // from_chars does not say which side; too small has a value, the zero of that sign.
    const Decimal d = to_decimal(text);
    if (d.exponent > 0) return std::nullopt;
    return d.negative ? -0.0 : 0.0;
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
    return fail(ErrorCode::kTooLarge,
                fmt::format("{} bytes, limit {}", text.size(), limits.max_bytes), "JSON");
  const size_t size = text.size() + 2;
  const auto padded = std::make_unique_for_overwrite<char[]>(size + simdjson::SIMDJSON_PADDING);
  padded[0] = '[';
  if (!text.empty()) std::memcpy(&padded[1], text.data(), text.size());
  padded[size - 1] = ']';
  std::memset(&padded[size], 0, simdjson::SIMDJSON_PADDING);
  const Source source{text, &padded[1]};

  od::parser parser;
  // Room for some levels more than ours and the outer brackets, so that the limit that is reported
  // is ours.
  if (auto e = parser.allocate(size, static_cast<size_t>(limits.max_depth) + 8))
    return lexical_error(text, e);
  od::document doc;
  if (auto e = parser.iterate(padded.get(), size, size + simdjson::SIMDJSON_PADDING).get(doc))
    return lexical_error(text, e);
  return Builder(doc, source, limits).document();
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
      case '"':
        out.append("\\\"");
        break;
      case '\\':
        out.append("\\\\");
        break;
      case '\n':
        out.append("\\n");
        break;
      case '\r':
        out.append("\\r");
        break;
      case '\t':
        out.append("\\t");
        break;
      case '\b':
        out.append("\\b");
        break;
      case '\f':
        out.append("\\f");
        break;
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
    case Kind::kNull:
      return null();
    case Kind::kBool:
      return value(v.as_bool());
    case Kind::kNumber:
      return raw(v.number_text());
    case Kind::kString:
      return value(std::string_view(v.as_string()));
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
