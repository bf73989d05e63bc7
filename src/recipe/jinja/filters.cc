#include "recipe/jinja/filters.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "core/names.h"
#include "recipe/jinja/interpreter.h"
#include "recipe/jinja/unicode_text.h"

namespace deepmint::recipe::jinja {

tl::unexpected<Error> type_error(std::string message) {
  return fail(ErrorCode::kInvalidArgument, std::move(message));
}

tl::unexpected<Error> undefined_error(const Value& v) {
  return fail(ErrorCode::kInvalidArgument, std::string(v.why_undefined()));
}

Result<int64_t> need_int(const Value& v, std::string_view what) {
  if (v.is_integral()) return v.as_int();
  if (v.is_undefined()) return undefined_error(v);
  return type_error(fmt::format("{} needs an integer, found '{}'", what, v.type_name()));
}

Result<Bound> Bound::bind(std::string_view function, std::initializer_list<std::string_view> names,
                          size_t required, Arguments arguments) {
  Bound out;
  out.values_.resize(names.size());
  out.given_.resize(names.size());
  if (arguments.positional.size() > names.size())
    return type_error(fmt::format("{} takes at most {} arguments, found {}", function, names.size(),
                                  arguments.positional.size()));
  for (size_t i = 0; i < arguments.positional.size(); ++i) {
    out.values_[i] = std::move(arguments.positional[i]);
    out.given_[i] = true;
  }
  for (auto& [key, value] : arguments.keywords) {
    const auto* at = std::find(names.begin(), names.end(), key);
    if (at == names.end())
      return type_error(fmt::format("{} takes no argument named '{}'", function, key));
    const auto i = static_cast<size_t>(at - names.begin());
    if (out.given_[i]) return type_error(fmt::format("{} got two values for '{}'", function, key));
    out.values_[i] = std::move(value);
    out.given_[i] = true;
  }
  for (size_t i = 0; i < required; ++i)
    if (!out.given_[i])
      return type_error(
          fmt::format("{} needs the argument '{}'", function, std::string_view(names.begin()[i])));
  return out;
}

namespace {

bool flag(const Value* v, bool fallback = false) { return v == nullptr ? fallback : v->truthy(); }
// --- numbers

std::string_view trimmed(std::string_view s) {
  s.remove_prefix(leading_space(s));
  s.remove_suffix(trailing_space(s));
  return s;
}

// Digits with single underscores between them → without; nullopt for anything else in between.
std::optional<std::string> without_underscores(std::string_view s) {
  std::string out;
  for (size_t i = 0; i < s.size(); ++i) {
    if (s[i] != '_') {
      out.push_back(s[i]);
      continue;
    }
    const auto digit = [](char c) { return c >= '0' && c <= '9'; };
    if (i == 0 || i + 1 == s.size() || !digit(s[i - 1]) || !digit(s[i + 1])) return std::nullopt;
  }
  return out;
}

std::optional<double> parse_float(std::string_view text) {
  auto s = without_underscores(trimmed(text));
  if (!s || s->empty()) return std::nullopt;
  std::string_view v = *s;
  const bool negative = v.front() == '-';
  if (v.front() == '+' || v.front() == '-') v.remove_prefix(1);
  std::string lower;
  for (const char c : v) lower.push_back(c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  double d = 0;
  if (lower == "inf" || lower == "infinity") {
    d = kInfinity;
  } else if (lower == "nan") {
    d = std::numeric_limits<double>::quiet_NaN();
  } else {
    if (lower.empty() || (lower.front() != '.' && (lower.front() < '0' || lower.front() > '9')))
      return std::nullopt;
    const auto parsed = std::from_chars(lower.data(), lower.data() + lower.size(), d);
    if (parsed.ptr != lower.data() + lower.size() || parsed.ec == std::errc::invalid_argument)
      return std::nullopt;
    if (parsed.ec == std::errc::result_out_of_range) {
      const size_t e = lower.find('e');
      d = e != std::string::npos && lower.find('-', e) != std::string::npos ? 0 : kInfinity;
    }
  }
  return negative ? -d : d;
}

enum class ParsedInt : uint8_t { kOk, kNotANumber, kTooLarge };
ParsedInt parse_int(std::string_view text, int base, int64_t& out) {
  auto s = without_underscores(trimmed(text));
  if (!s || s->empty()) return ParsedInt::kNotANumber;
  std::string_view v = *s;
  const bool negative = v.front() == '-';
  if (v.front() == '+' || v.front() == '-') v.remove_prefix(1);
  if (v.size() > 2 && v.front() == '0') {
    const char mark = static_cast<char>(v[1] | 0x20);
    if ((base == 16 && mark == 'x') || (base == 8 && mark == 'o') || (base == 2 && mark == 'b'))
      v.remove_prefix(2);
  }
  if (v.empty() || v.front() == '-') return ParsedInt::kNotANumber;
  const std::string spelled = (negative ? "-" : "") + std::string(v);
  const char* end = spelled.data() + spelled.size();
  const auto parsed = std::from_chars(spelled.data(), end, out, base);
  if (parsed.ptr != end) return ParsedInt::kNotANumber;
  return parsed.ec == std::errc() ? ParsedInt::kOk : ParsedInt::kTooLarge;
}

tl::unexpected<Error> too_large_int() {
  return fail(ErrorCode::kUnsupported, "integers beyond 64 bits are not supported");
}

Result<Value> truncate_float(double d) {
  if (!(std::fabs(d) < 9223372036854775808.0)) return too_large_int();
  return Value(static_cast<int64_t>(d));
}

Result<Value> filter_int(Interpreter&, const Value& in, Arguments a) {
  DEEPMINT_TRY(b, Bound::bind("int", {"default", "base"}, 0, std::move(a)));
  Value fallback = b[0] ? *b[0] : Value(int64_t{0});
  if (in.is_undefined()) return undefined_error(in);
  if (in.is_integral()) return Value(in.as_int());
  if (in.is_big()) return in;
  if (in.is_float()) {
    if (!std::isfinite(in.as_double())) return fallback;
    return truncate_float(in.as_double());
  }
  if (!in.is_text()) return fallback;
  int64_t base = 10;
  if (b[1]) {
    DEEPMINT_TRY(given, need_int(*b[1], "int"));
    base = given;
  }
  if (base < 2 || base > 36) return type_error("int() base must be from 2 to 36");
  int64_t n = 0;
  switch (parse_int(in.str(), static_cast<int>(base), n)) {
    case ParsedInt::kOk:
      return Value(n);
    case ParsedInt::kTooLarge:
      return too_large_int();
    case ParsedInt::kNotANumber:
      break;
  }
  const auto d = parse_float(in.str());
  if (!d || !std::isfinite(*d)) return fallback;
  return truncate_float(*d);
}

Result<Value> filter_float(Interpreter&, const Value& in, Arguments a) {
  DEEPMINT_TRY(b, Bound::bind("float", {"default"}, 0, std::move(a)));
  const Value fallback = b[0] ? *b[0] : Value(0.0);
  if (in.is_undefined()) return undefined_error(in);
  if (in.is_number()) return Value(in.as_double());
  const auto d = in.is_text()  ? parse_float(in.str())
                 : in.is_big() ? parse_float(in.digits())
                               : std::nullopt;
  return d ? Value(*d) : fallback;
}

Result<Value> filter_abs(Interpreter&, const Value& in, Arguments a) {
  DEEPMINT_TRY(b, Bound::bind("abs", {}, 0, std::move(a)));
  if (in.is_undefined()) return undefined_error(in);
  if (in.is_float()) return Value(std::fabs(in.as_double()));
  if (in.is_big()) return too_large_int();
  if (!in.is_integral())
    return type_error(fmt::format("abs needs a number, found '{}'", in.type_name()));
  if (in.as_int() == std::numeric_limits<int64_t>::min()) return too_large_int();
  return Value(in.as_int() < 0 ? -in.as_int() : in.as_int());
}

Result<Value> filter_round(Interpreter&, const Value& in, Arguments a) {
  DEEPMINT_TRY(b, Bound::bind("round", {"precision", "method"}, 0, std::move(a)));
  int64_t precision = 0;
  if (b[0]) {
    DEEPMINT_TRY(given, need_int(*b[0], "round"));
    precision = given;
  }
  const std::string method = b[1] && b[1]->is_text() ? b[1]->str() : b[1] ? "" : "common";
  if (method != "common" && method != "ceil" && method != "floor")
    return type_error("method must be common, ceil or floor");
  if (in.is_undefined()) return undefined_error(in);
  if (in.is_big()) return too_large_int();
  if (!in.is_number())
    return type_error(fmt::format("round needs a number, found '{}'", in.type_name()));
  if (precision < -300 || precision > 300)
    return fail(ErrorCode::kUnsupported, "rounding to more than 300 digits is not supported");
  if (method != "common") {
    // 10**precision is an integer in Python for a precision of 0 or more, so a whole result stays
    // one only when divided: the quotient is a float.
    const double scale = std::pow(10.0, static_cast<double>(precision));
    const double scaled = in.as_double() * scale;
    if (!std::isfinite(scaled)) return type_error("cannot round this number");
    return Value((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
  }
  if (in.is_integral()) {
    if (precision >= 0) return Value(in.as_int());
    if (precision < -18) return Value(int64_t{0});
    int64_t unit = 1;
    for (int64_t i = 0; i < -precision; ++i) unit *= 10;
    const int64_t n = in.as_int(), rest = n % unit, down = n - rest;
    const int64_t twice = std::abs(rest) > unit / 2 ? 1 : std::abs(rest) == unit / 2 ? 0 : -1;
    const bool away = twice > 0 || (twice == 0 && (down / unit) % 2 != 0);
    return Value(away ? down + (rest < 0 ? -unit : unit) : down);
  }
  const double d = in.as_double();
  if (!std::isfinite(d)) return Value(d);
  if (precision >= 0) return Value(parse_float(fmt::format("{:.{}f}", d, precision)).value_or(d));
  const double unit = std::pow(10.0, static_cast<double>(-precision));
  return Value(std::nearbyint(d / unit) * unit);
}

// --- text

Result<Value> upper(Interpreter& run, const Value& in, Arguments a) {
  DEEPMINT_TRY(b, Bound::bind("upper", {}, 0, std::move(a)));
  return Value(change_case(run.str(in), Case::kUpper));
}
Result<Value> lower(Interpreter& run, const Value& in, Arguments a) {
  DEEPMINT_TRY(b, Bound::bind("lower", {}, 0, std::move(a)));
  return Value(change_case(run.str(in), Case::kLower));
}
Result<Value> capitalize(Interpreter& run, const Value& in, Arguments a) {
  DEEPMINT_TRY(b, Bound::bind("capitalize", {}, 0, std::move(a)));
  return Value(change_case(run.str(in), Case::kCapitalize));
}

// Words begin behind white space and -([{<, unlike those of str.title().
Result<Value> title(Interpreter& run, const Value& in, Arguments a) {
  DEEPMINT_TRY(b, Bound::bind("title", {}, 0, std::move(a)));
  const Text text = run.str(in);
  const std::string& s = text.bytes();
  Text out;
  const auto separates = [](uint32_t c) {
    return is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
  };
  for (size_t i = 0; i < s.size();) {
    const CodePoint first = code_point_at(s, i);
    size_t end = i + first.length;
    const bool is_separator = separates(first.value);
    while (end < s.size() && separates(code_point_at(s, end).value) == is_separator)
      end += code_point_at(s, end).length;
    out.append(change_case(text.substr(i, first.length), Case::kUpper));
    out.append(change_case(text.substr(i + first.length, end - i - first.length), Case::kLower));
    i = end;
  }
  return Value(std::move(out));
}

Result<Value> trim(Interpreter& run, const Value& in, Arguments a) {
  DEEPMINT_TRY(b, Bound::bind("trim", {"chars"}, 0, std::move(a)));
  const bool white = b[0] == nullptr || b[0]->is_none();
  if (!white && !b[0]->is_text()) return type_error("trim needs a string of characters");
  return Value(strip(run.str(in), white ? nullptr : &b[0]->as_text(), true, true));
}

Result<Value> replace(Interpreter& run, const Value& in, Arguments a) {
  DEEPMINT_TRY(b, Bound::bind("replace", {"old", "new", "count"}, 2, std::move(a)));
  int64_t count = -1;
  if (b[2] && !b[2]->is_none()) {
    DEEPMINT_TRY(given, need_int(*b[2], "replace"));
    count = given;
  }
  DEEPMINT_TRY(out, replace_text(run, run.str(in), run.str(*b[0]), run.str(*b[1]), count));
  return Value(std::move(out));
}

Result<Value> string(Interpreter& run, const Value& in, Arguments a) {
  DEEPMINT_TRY(b, Bound::bind("string", {}, 0, std::move(a)));
  return Value(run.str(in));
}

Result<Value> escape(Interpreter& run, const Value& in, Arguments a) {
  DEEPMINT_TRY(b, Bound::bind("escape", {}, 0, std::move(a)));
  const Text text = run.str(in);
  const std::string& s = text.bytes();
  Text out;
  size_t copied = 0;
  for (size_t i = 0; i < s.size(); ++i) {
    constexpr std::string_view kFrom = "&<>'\"";
    constexpr std::string_view kTo[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    const size_t k = kFrom.find(s[i]);
    if (k == std::string_view::npos) continue;
    if (!run.budget().bytes(i - copied + kTo[k].size())) break;
    out.append(text, copied, i - copied);
    out.append(kTo[k], text.origin_at(i));
    copied = i + 1;
  }
  out.append(text, copied, s.size() - copied);
  return Value(std::move(out));
}

Result<Value> indent(Interpreter& run, const Value& in, Arguments a) {
  DEEPMINT_TRY(b, Bound::bind("indent", {"width", "first", "blank"}, 0, std::move(a)));
  if (in.is_undefined()) return undefined_error(in);
  if (!in.is_text())
    return type_error(fmt::format("indent needs a string, found '{}'", in.type_name()));
  Text indention;
  if (b[0] && b[0]->is_text()) {
    indention = b[0]->as_text();
  } else {
    int64_t width = 4;
    if (b[0]) {
      DEEPMINT_TRY(given, need_int(*b[0], "indent"));
      width = given;
    }
    DEEPMINT_TRY(spaces, repeat_text(run, Text(" ", Origin::kTemplate), width));
    indention = std::move(spaces);
  }
  const bool first = flag(b[1]), blank = flag(b[2]);
  Text s = in.as_text();
  s.append("\n", Origin::kTemplate);
  const std::vector<Text> lines = split_lines(s, false);
  Text out;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (!run.budget().bytes(lines[i].size() + indention.size() + 1)) break;
    if (i > 0) out.append("\n", Origin::kTemplate);
    if (i == 0 ? first : blank || !lines[i].empty()) out.append(indention);
    out.append(lines[i]);
  }
  return Value(std::move(out));
}

Result<Value> truncate(Interpreter& run, const Value& in, Arguments a) {
  DEEPMINT_TRY(b,
               Bound::bind("truncate", {"length", "killwords", "end", "leeway"}, 0, std::move(a)));
  int64_t length = 255, leeway = 5;
  for (const auto& [at, number] : {std::pair(0, &length), std::pair(3, &leeway)}) {
    const Value* v = b[static_cast<size_t>(at)];
    if (v == nullptr || v->is_none()) continue;
    DEEPMINT_TRY(given, need_int(*v, "truncate"));
    *number = given;
  }
  const Text end = b[2] ? run.str(*b[2]) : Text("...", Origin::kTemplate);
  const auto end_size = static_cast<int64_t>(count_code_points(end.bytes()));
  if (length < end_size || leeway < 0 || length > std::numeric_limits<int32_t>::max())
    return type_error("truncate: the length is too small for its end");
  DEEPMINT_TRY(size, run.length(in));
  if (static_cast<int64_t>(size) <= length + leeway) return in;
  if (!in.is_text()) return type_error("truncate needs a string");
  const Text& s = in.as_text();
  Text out = s.substr(0, byte_of(s.bytes(), static_cast<size_t>(length - end_size)));
  if (!flag(b[1]))
    if (const size_t space = out.bytes().rfind(' '); space != std::string::npos)
      out = out.substr(0, space);
  out.append(end);
  return Value(std::move(out));
}

Result<Value> center(Interpreter& run, const Value& in, Arguments a) {
  DEEPMINT_TRY(b, Bound::bind("center", {"width"}, 0, std::move(a)));
  int64_t width = 80;
  if (b[0]) {
    DEEPMINT_TRY(given, need_int(*b[0], "center"));
    width = given;
  }
  DEEPMINT_TRY(out, pad_text(run, run.str(in), width, Text(" ", Origin::kTemplate), 1));
  return Value(std::move(out));
}

Result<Value> format(Interpreter& run, const Value& in, Arguments a) {
  if (!a.positional.empty() && !a.keywords.empty())
    return type_error("format takes positional or keyword arguments, not both");
  Value with;
  if (!a.keywords.empty()) {
    std::vector<std::pair<Value, Value>> members;
    members.reserve(a.keywords.size());
    for (auto& [key, value] : a.keywords)
      members.emplace_back(Value::text(key, Origin::kTemplate), std::move(value));
    DEEPMINT_TRY(dict, make_dict(std::move(members), run.budget()));
    with = std::move(dict);
  } else {
    DEEPMINT_TRY(tuple, make_list(std::move(a.positional), run.budget(), List::Kind::kTuple));
    with = std::move(tuple);
  }
  return percent_format(run, run.str(in), with);
}

Result<Value> tojson(Interpreter& run, const Value& in, Arguments a) {
  DEEPMINT_TRY(b, Bound::bind("tojson", {"ensure_ascii", "indent", "separators", "sort_keys"}, 0,
                              std::move(a)));
  JsonFormat format;
  format.ensure_ascii = flag(b[0]);
  format.sort_keys = flag(b[3]);
  if (b[1] && !b[1]->is_none()) {
    format.indented = true;
    format.item_separator = Text(",", Origin::kTemplate);
    if (b[1]->is_text()) {
      format.indent = b[1]->as_text();
    } else {
      DEEPMINT_TRY(width, need_int(*b[1], "tojson"));
      DEEPMINT_TRY(spaces, repeat_text(run, Text(" ", Origin::kTemplate), width));
      format.indent = std::move(spaces);
    }
  }
  if (b[2] && !b[2]->is_none()) {
    DEEPMINT_TRY(pair, run.iterate(*b[2]));
    if (pair.size() != 2 || !pair[0].is_text() || !pair[1].is_text())
      return type_error("tojson: separators are two strings");
    format.item_separator = pair[0].as_text();
    format.key_separator = pair[1].as_text();
  }
  DEEPMINT_TRY(out, to_json(in, format, run.budget()));
  return Value(std::move(out));
}

constexpr NamedFilter kFilters[] = {
    {"abs", filter_abs}, {"capitalize", capitalize}, {"center", center},   {"e", escape},
    {"escape", escape},  {"float", filter_float},    {"format", format},   {"indent", indent},
    {"int", filter_int}, {"lower", lower},           {"replace", replace}, {"round", filter_round},
    {"safe", string},    {"string", string},         {"title", title},     {"tojson", tojson},
    {"trim", trim},      {"truncate", truncate},     {"upper", upper},
};

const NamedFilter* find_filter(std::string_view name) {
  for (const std::span<const NamedFilter> list :
       {std::span<const NamedFilter>(kFilters), collection_filters()})
    for (const NamedFilter& filter : list)
      if (filter.name == name) return &filter;
  return nullptr;
}

}  // namespace

bool is_filter(std::string_view name) { return find_filter(name) != nullptr; }

Result<Value> apply_filter(Interpreter& run, std::string_view name, const Value& input,
                           Arguments arguments) {
  const NamedFilter* filter = find_filter(name);
  if (filter == nullptr)
    return fail(ErrorCode::kUnsupported,
                fmt::format("the filter {} is not supported", quote_name(name, 40)));
  return filter->apply(run, input, std::move(arguments));
}

}  // namespace deepmint::recipe::jinja
