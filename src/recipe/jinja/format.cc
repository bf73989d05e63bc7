// "…" % (…) and "…".format(…).
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <optional>

#include "core/names.h"
#include "core/utf8.h"
#include "recipe/jinja/filters.h"
#include "recipe/jinja/interpreter.h"
#include "recipe/jinja/unicode_text.h"

namespace deepmint::recipe::jinja {
namespace {

constexpr int kMaxPrecision = 300;

struct Spec {
  Text fill = Text(" ", Origin::kTemplate);
  char align = '\0';  // '<', '>', '^', '='
  char sign = '-';    // '+', ' ', '-'
  bool alternate = false, comma = false;
  int64_t width = 0;
  std::optional<int> precision;
  char type = '\0';
};

bool digit(char c) { return c >= '0' && c <= '9'; }

Result<int64_t> read_number(std::string_view s, size_t& i) {
  int64_t n = 0;
  while (i < s.size() && digit(s[i])) {
    n = n * 10 + (s[i++] - '0');
    if (n > 1'000'000) return type_error("a width or precision in a format is too large");
  }
  return n;
}

// Decimal digits of a float: 'f', 'e', 'g' and their capitals, as C and Python agree on them.
std::string spell_float(double d, char type, int precision, bool alternate) {
  if (!std::isfinite(d)) {
    std::string out = std::isnan(d) ? "nan" : "inf";
    if (type == 'F' || type == 'E' || type == 'G')
      std::transform(out.begin(), out.end(), out.begin(),
                     [](char c) { return static_cast<char>(c - 32); });
    return out;
  }
  char format[8] = "%.*f";
  if (alternate)
    std::snprintf(format, sizeof format, "%%#.*%c", type);
  else
    format[3] = type;
  std::string out(512, '\0');
  const int n = std::snprintf(out.data(), out.size(), format, precision, std::fabs(d));
  if (n >= static_cast<int>(out.size())) {
    out.resize(static_cast<size_t>(n) + 1);
    std::snprintf(out.data(), out.size(), format, precision, std::fabs(d));
  }
  out.resize(static_cast<size_t>(n));
  return out;
}

std::string with_commas(const std::string& digits) {
  const size_t end = std::min(digits.find_first_not_of("0123456789"), digits.size());
  std::string out;
  for (size_t i = 0; i < end; ++i) {
    if (i > 0 && (end - i) % 3 == 0) out.push_back(',');
    out.push_back(digits[i]);
  }
  return out + digits.substr(end);
}

// Sign and digits → padded. Numbers are right-justified unless the format says otherwise.
Result<Text> finish_number(Interpreter& run, const Spec& spec, bool negative,
                           std::string_view prefix, const std::string& digits) {
  std::string head = negative ? "-" : spec.sign == '+' ? "+" : spec.sign == ' ' ? " " : "";
  head += prefix;
  const auto size = static_cast<int64_t>(head.size() + digits.size());
  if (spec.align == '=') {
    DEEPMINT_TRY(fill, repeat_text(run, spec.fill, spec.width - size));
    Text out(head, Origin::kCaller);
    out.append(fill);
    out.append(digits, Origin::kCaller);
    return out;
  }
  const int64_t room = std::max<int64_t>(spec.width - size, 0);
  const int64_t left = spec.align == '<' ? 0 : spec.align == '^' ? room / 2 : room;
  DEEPMINT_TRY(out, repeat_text(run, spec.fill, left));
  DEEPMINT_TRY(right, repeat_text(run, spec.fill, room - left));
  out.append(head + digits, Origin::kCaller);
  out.append(right);
  return out;
}

Result<Text> format_float(Interpreter& run, const Spec& spec, double d) {
  char type = spec.type;
  std::string suffix;
  if (type == '%') {
    d *= 100;
    type = 'f';
    suffix = "%";
  }
  std::string digits = spell_float(d, type, spec.precision.value_or(6), spec.alternate) + suffix;
  if (spec.comma) digits = with_commas(digits);
  return finish_number(run, spec, std::signbit(d) && !std::isnan(d), {}, digits);
}

Result<Text> format_int(Interpreter& run, const Spec& spec, int64_t n, bool percent) {
  const uint64_t size = n < 0 ? 0 - static_cast<uint64_t>(n) : static_cast<uint64_t>(n);
  std::string digits, prefix;
  switch (spec.type) {
    case 'x':
      digits = fmt::format("{:x}", size);
      prefix = "0x";
      break;
    case 'X':
      digits = fmt::format("{:X}", size);
      prefix = "0X";
      break;
    case 'o':
      digits = fmt::format("{:o}", size);
      prefix = "0o";
      break;
    case 'b':
      digits = fmt::format("{:b}", size);
      prefix = "0b";
      break;
    default:
      digits = std::to_string(size);
  }
  if (percent && spec.precision && static_cast<size_t>(*spec.precision) > digits.size())
    digits.insert(0, static_cast<size_t>(*spec.precision) - digits.size(), '0');
  if (spec.comma) digits = with_commas(digits);
  return finish_number(run, spec, n < 0, spec.alternate ? prefix : "", digits);
}

Result<Text> format_text(Interpreter& run, const Spec& spec, Text t) {
  if (spec.precision) t = t.substr(0, byte_of(t.bytes(), static_cast<size_t>(*spec.precision)));
  const auto size = static_cast<int64_t>(count_code_points(t.bytes()));
  const int64_t room = std::max<int64_t>(spec.width - size, 0);
  const int64_t left = spec.align == '>' ? room : spec.align == '^' ? room / 2 : 0;
  DEEPMINT_TRY(out, repeat_text(run, spec.fill, left));
  DEEPMINT_TRY(right, repeat_text(run, spec.fill, room - left));
  out.append(t);
  out.append(right);
  return out;
}

Result<Text> percent_item(Interpreter& run, Spec spec, const Value& v) {
  switch (spec.type) {
    case 's':
      return format_text(run, spec, run.str(v));
    case 'r':
      return format_text(run, spec, repr(v, run.budget()));
    case 'd':
    case 'i':
    case 'u': {
      if (v.is_undefined()) return undefined_error(v);
      if (!v.is_number())
        return type_error(fmt::format("%{} needs a number, found '{}'", spec.type, v.type_name()));
      if (v.is_float() && !(std::fabs(v.as_double()) < 9.2e18))
        return fail(ErrorCode::kUnsupported, "integers beyond 64 bits are not supported");
      const int64_t n = v.is_float() ? static_cast<int64_t>(v.as_double()) : v.as_int();
      return format_int(run, spec, n, true);
    }
    case 'x':
    case 'X':
    case 'o': {
      DEEPMINT_TRY(n, need_int(v, "a format of integers"));
      return format_int(run, spec, n, true);
    }
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
      if (v.is_undefined()) return undefined_error(v);
      if (!v.is_number())
        return type_error(fmt::format("%{} needs a number, found '{}'", spec.type, v.type_name()));
      return format_float(run, spec, v.as_double());
    default:
      return fail(ErrorCode::kUnsupported, fmt::format("the format %{} is not supported",
                                                       printable(std::string_view(&spec.type, 1))));
  }
}

}  // namespace

Result<Value> percent_format(Interpreter& run, const Text& format, const Value& arguments) {
  const std::string& s = format.bytes();
  std::vector<Value> values = {arguments};
  if (arguments.is_list(List::Kind::kTuple)) values = arguments.items();
  size_t used = 0;
  bool by_name = false;
  const auto next = [&]() -> Result<Value> {
    if (used >= values.size()) return type_error("not enough arguments for format string");
    return values[used++];
  };
  Text out;
  for (size_t i = 0; i < s.size();) {
    const size_t percent = std::min(s.find('%', i), s.size());
    if (!run.budget().bytes(percent - i)) return Value();
    out.append(format, i, percent - i);
    if (percent == s.size()) break;
    i = percent + 1;
    Spec spec;
    std::optional<Value> named;
    if (i < s.size() && s[i] == '(') {
      const size_t close = s.find(')', i);
      if (close == std::string::npos) return type_error("incomplete format key");
      if (!arguments.is_dict()) return type_error("format requires a mapping");
      const Value* v = find(arguments.dict(), std::string_view(s).substr(i + 1, close - i - 1));
      if (v == nullptr) return type_error("a key of the format is not in the mapping");
      named = *v;
      by_name = true;
      i = close + 1;
    }
    bool zero = false;
    for (; i < s.size() && std::string_view("-+ #0").find(s[i]) != std::string_view::npos; ++i) {
      if (s[i] == '-') spec.align = '<';
      if (s[i] == '+' || (s[i] == ' ' && spec.sign != '+')) spec.sign = s[i];
      spec.alternate |= s[i] == '#';
      zero |= s[i] == '0';
    }
    if (i < s.size() && s[i] == '*') {
      ++i;
      DEEPMINT_TRY(v, next());
      DEEPMINT_TRY(n, need_int(v, "*"));
      if (n > 1'000'000 || n < -1'000'000) return type_error("a width in a format is too large");
      if (n < 0) spec.align = '<';
      spec.width = std::abs(n);
    } else {
      DEEPMINT_TRY(n, read_number(s, i));
      spec.width = n;
    }
    if (i < s.size() && s[i] == '.') {
      ++i;
      DEEPMINT_TRY(n, read_number(s, i));
      if (n > kMaxPrecision) return type_error("a precision in a format is too large");
      spec.precision = static_cast<int>(n);
    }
    if (i >= s.size()) return type_error("incomplete format");
    spec.type = s[i++];
    if (spec.type == '%') {
      out.append(format, i - 1, 1);
      continue;
    }
    if (zero && spec.align == '\0' && spec.type != 's' && spec.type != 'r') {
      spec.align = '=';
      spec.fill = Text("0", Origin::kTemplate);
    }
    if (spec.align == '\0') spec.align = '>';
    Value v;
    if (named) {
      v = *std::move(named);
    } else {
      DEEPMINT_TRY(taken, next());
      v = std::move(taken);
    }
    DEEPMINT_TRY(text, percent_item(run, spec, v));
    out.append(text);
  }
  if (used < values.size() && !by_name && !arguments.is_dict() &&
      !arguments.is_list(List::Kind::kList))
    return type_error("not all arguments converted during string formatting");
  return Value(std::move(out));
}

namespace {

Result<Spec> parse_spec(const Text& text) {
  Spec spec;
  const std::string& s = text.bytes();
  size_t i = 0;
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  if (!s.empty()) {
    const size_t n = code_point_at(s, 0).length;
    if (n < s.size() && is_align(s[n])) {
      spec.fill = text.substr(0, n);
      spec.align = s[n];
      i = n + 1;
    } else if (is_align(s[0])) {
      spec.align = s[0];
      i = 1;
    }
  }
  if (i < s.size() && (s[i] == '+' || s[i] == '-' || s[i] == ' ')) spec.sign = s[i++];
  if (i < s.size() && s[i] == '#') spec.alternate = true, ++i;
  if (i < s.size() && s[i] == '0') {
    if (spec.align == '\0') {
      spec.align = '=';
      spec.fill = Text("0", Origin::kTemplate);
    }
    ++i;
  }
  DEEPMINT_TRY(width, read_number(s, i));
  spec.width = width;
  if (i < s.size() && s[i] == ',') spec.comma = true, ++i;
  if (i < s.size() && s[i] == '.') {
    ++i;
    if (i >= s.size() || !digit(s[i])) return type_error("Format specifier missing precision");
    DEEPMINT_TRY(n, read_number(s, i));
    if (n > kMaxPrecision) return type_error("a precision in a format is too large");
    spec.precision = static_cast<int>(n);
  }
  if (i < s.size()) spec.type = s[i++];
  if (i < s.size())
    return fail(ErrorCode::kUnsupported,
                fmt::format("the format {} is not supported", quote_name(s, 40)));
  return spec;
}

Result<Text> brace_item(Interpreter& run, const Value& v, const Text& spec_text) {
  if (spec_text.empty()) return run.str(v);
  DEEPMINT_TRY(spec, parse_spec(spec_text));
  const char t = spec.type;
  if (v.is_text()) {
    if ((t != '\0' && t != 's') || spec.align == '=' || spec.comma || spec.sign != '-')
      return type_error("the format does not fit a string");
    return format_text(run, spec, v.as_text());
  }
  const bool is_float_type = std::string_view("eEfFgG%").find(t) != std::string_view::npos;
  if (v.is_number() && t != '\0' && is_float_type) return format_float(run, spec, v.as_double());
  if (v.is_int() && !spec.precision &&
      (t == '\0' || std::string_view("dxXob").find(t) != std::string_view::npos)) {
    return format_int(run, spec, v.as_int(), false);
  }
  if (v.is_float() && t == '\0' && !spec.precision) {
    std::string digits = float_repr(std::fabs(v.as_double()));
    if (spec.comma) digits = with_commas(digits);
    return finish_number(run, spec, std::signbit(v.as_double()), {}, digits);
  }
  return fail(ErrorCode::kUnsupported,
              fmt::format("the format {} of a value of type '{}' is not supported",
                          quote_name(spec_text.bytes(), 40), v.type_name()));
}

// "name", "0", "a.b[c]" → the value.
Result<Value> brace_field(Interpreter& run, std::string_view field, const Arguments& arguments,
                          int64_t& automatic) {
  const size_t end = std::min(field.find_first_of(".["), field.size());
  const std::string_view name = field.substr(0, end);
  Value v;
  size_t index = 0;
  const auto parsed = std::from_chars(name.data(), name.data() + name.size(), index);
  const bool is_number =
      !name.empty() && parsed.ec == std::errc() && parsed.ptr == name.data() + name.size();
  if (name.empty() || is_number) {
    if (name.empty() ? automatic < 0 : automatic > 0)
      return type_error("cannot mix numbered and automatic fields in a format");
    if (name.empty())
      index = static_cast<size_t>(automatic++);
    else
      automatic = -1;
    if (index >= arguments.positional.size())
      return type_error("a field of the format has no argument");
    v = arguments.positional[index];
  } else {
    const auto at = std::find_if(arguments.keywords.begin(), arguments.keywords.end(),
                                 [&](const auto& k) { return k.first == name; });
    if (at == arguments.keywords.end()) return type_error("a field of the format has no argument");
    v = at->second;
  }
  for (size_t i = end; i < field.size();) {
    if (field[i] == '.') {
      const size_t stop = std::min(field.find_first_of(".[", i + 1), field.size());
      DEEPMINT_TRY(next, run.get_attribute(v, field.substr(i + 1, stop - i - 1)));
      v = std::move(next);
      i = stop;
      continue;
    }
    const size_t close = field.find(']', i);
    if (field[i] != '[' || close == std::string_view::npos)
      return type_error("a field of the format is malformed");
    const std::string_view key = field.substr(i + 1, close - i - 1);
    int64_t n = 0;
    const auto number = std::from_chars(key.data(), key.data() + key.size(), n);
    const bool numeric =
        !key.empty() && number.ec == std::errc() && number.ptr == key.data() + key.size();
    DEEPMINT_TRY(next, run.get_item(v, numeric ? Value(n) : Value::text(key, Origin::kTemplate)));
    v = std::move(next);
    i = close + 1;
  }
  return v;
}

}  // namespace

Result<Value> brace_format(Interpreter& run, const Text& format, const Arguments& arguments) {
  const std::string& s = format.bytes();
  Text out;
  int64_t automatic = 0;
  for (size_t i = 0; i < s.size();) {
    const size_t brace = std::min(s.find_first_of("{}", i), s.size());
    if (!run.budget().bytes(brace - i + 1)) return Value();
    out.append(format, i, brace - i);
    if (brace == s.size()) break;
    if (brace + 1 < s.size() && s[brace + 1] == s[brace]) {
      out.append(format, brace, 1);
      i = brace + 2;
      continue;
    }
    if (s[brace] == '}') return type_error("Single '}' encountered in format string");
    const size_t close = s.find_first_of("{}", brace + 1);
    if (close == std::string::npos) return type_error("Single '{' encountered in format string");
    if (s[close] == '{')
      return fail(ErrorCode::kUnsupported, "a field inside a field of a format is not supported");
    const std::string_view inside = std::string_view(s).substr(brace + 1, close - brace - 1);
    const size_t mark = std::min(inside.find_first_of("!:"), inside.size());
    DEEPMINT_TRY(v, brace_field(run, inside.substr(0, mark), arguments, automatic));
    size_t at = mark;
    if (at < inside.size() && inside[at] == '!') {
      const char how = at + 1 < inside.size() ? inside[at + 1] : '\0';
      if (how != 's' && how != 'r')
        return fail(ErrorCode::kUnsupported, "a conversion other than !s and !r is not supported");
      v = Value(how == 's' ? run.str(v) : repr(v, run.budget()));
      at += 2;
    }
    Text spec;
    if (at < inside.size()) {
      if (inside[at] != ':') return type_error("expected ':' after conversion specifier");
      spec = format.substr(brace + 1 + at + 1, inside.size() - at - 1);
    }
    DEEPMINT_TRY(text, brace_item(run, v, spec));
    out.append(text);
    i = close + 1;
  }
  return Value(std::move(out));
}

}  // namespace deepmint::recipe::jinja
