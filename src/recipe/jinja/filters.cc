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

using Items = std::vector<Value>;

// --- reaching into items: attribute="a.b.0"

Result<Items> attribute_path(Interpreter& run, const Value& attribute) {
  Items path;
  if (attribute.is_none()) return path;
  if (!attribute.is_text()) {
    path.push_back(attribute);
    return path;
  }
  (void)run;
  const std::string& s = attribute.str();
  for (size_t begin = 0;;) {
    const size_t end = std::min(s.find('.', begin), s.size());
    const std::string_view part = std::string_view(s).substr(begin, end - begin);
    int64_t n = 0;
    const auto parsed = std::from_chars(part.data(), part.data() + part.size(), n);
    if (!part.empty() && part.front() != '-' && parsed.ec == std::errc() &&
        parsed.ptr == part.data() + part.size())
      path.emplace_back(n);
    else
      path.push_back(Value::text(part, Origin::kTemplate));
    if (end == s.size()) return path;
    begin = end + 1;
  }
}

Result<Value> reach(Interpreter& run, Value item, const Items& path, const Value* fallback) {
  for (const Value& part : path) {
    DEEPMINT_TRY(next, run.get_item(item, part));
    item = next.is_undefined() && fallback != nullptr && !fallback->is_none() ? *fallback
                                                                              : std::move(next);
  }
  return item;
}

Value lower_case(Interpreter& run, const Value& v) {
  if (!v.is_text() || !run.budget().bytes(v.str().size())) return v;
  return Value(change_case(v.as_text(), Case::kLower));
}

// The values that sort, unique, min and max compare.
Result<Value> sort_key(Interpreter& run, const Value& item, const std::vector<Items>& paths,
                       bool case_sensitive) {
  Items parts;
  for (const Items& path : paths) {
    DEEPMINT_TRY(part, reach(run, item, path, nullptr));
    parts.push_back(case_sensitive ? std::move(part) : lower_case(run, part));
  }
  if (parts.size() == 1) return std::move(parts.front());
  return make_list(std::move(parts), run.budget());
}

Result<std::vector<Items>> sort_paths(Interpreter& run, const Value* attribute, bool several) {
  std::vector<Items> paths;
  if (attribute == nullptr || !attribute->is_text() || !several) {
    DEEPMINT_TRY(path, attribute_path(run, attribute ? *attribute : Value::none()));
    paths.push_back(std::move(path));
    return paths;
  }
  const std::string& s = attribute->str();
  for (size_t begin = 0; begin <= s.size();) {
    const size_t end = std::min(s.find(',', begin), s.size());
    DEEPMINT_TRY(path,
                 attribute_path(run, Value::text(s.substr(begin, end - begin), Origin::kTemplate)));
    paths.push_back(std::move(path));
    begin = end + 1;
  }
  return paths;
}

// Indices of `keys` in stable ascending (or, reversed, descending) order.
Result<std::vector<size_t>> sorted_order(Interpreter& run, const Items& keys, bool reversed) {
  std::vector<size_t> order(keys.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::optional<Error> error;
  // A merge sort only ever asks "is b before a", whose answer is false once something went wrong,
  // so the order stays a valid one.
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (error) return false;
    auto c = reversed ? compare(keys[b], keys[a], run.budget())
                      : compare(keys[a], keys[b], run.budget());
    if (!c) error = std::move(c).error();
    return !error && *c == -1;
  });
  if (error) return tl::unexpected(*std::move(error));
  return order;
}

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
  const Value fallback = b[0] ? *b[0] : Value(int64_t{0});
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

Result<Value> join(Interpreter& run, const Value& in, Arguments a) {
  DEEPMINT_TRY(b, Bound::bind("join", {"d", "attribute"}, 0, std::move(a)));
  DEEPMINT_TRY(items, run.iterate(in));
  if (b[1] && !b[1]->is_none()) {
    DEEPMINT_TRY(path, attribute_path(run, *b[1]));
    for (Value& item : items) {
      DEEPMINT_TRY(part, reach(run, std::move(item), path, nullptr));
      item = std::move(part);
    }
  }
  DEEPMINT_TRY(out, join_texts(run, b[0] ? run.str(*b[0]) : Text(), items, false));
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

// --- collections

Result<Value> length(Interpreter& run, const Value& in, Arguments a) {
  DEEPMINT_TRY(b, Bound::bind("length", {}, 0, std::move(a)));
  DEEPMINT_TRY(n, run.length(in));
  return Value(static_cast<int64_t>(n));
}

Result<Value> fallback(Interpreter&, const Value& in, Arguments a) {
  DEEPMINT_TRY(b, Bound::bind("default", {"default_value", "boolean"}, 0, std::move(a)));
  if (in.is_undefined() || (flag(b[1]) && !in.truthy()))
    return b[0] ? *b[0] : Value::text("", Origin::kTemplate);
  return in;
}

Result<Value> first(Interpreter& run, const Value& in, Arguments a) {
  DEEPMINT_TRY(b, Bound::bind("first", {}, 0, std::move(a)));
  if (in.is_list(List::Kind::kGenerator)) {
    auto& items = in.list().items;
    if (items.empty()) return Value::undefined("No first item, sequence was empty.");
    run.budget().step(items.size() / 16);
    Value out = std::move(items.front());
    items.erase(items.begin());
    return out;
  }
  DEEPMINT_TRY(items, run.iterate(in));
  return items.empty() ? Value::undefined("No first item, sequence was empty.") : items.front();
}

Result<Value> last(Interpreter& run, const Value& in, Arguments a) {
  DEEPMINT_TRY(b, Bound::bind("last", {}, 0, std::move(a)));
  if (in.is_list(List::Kind::kGenerator)) return type_error("a generator has no last item");
  DEEPMINT_TRY(items, run.iterate(in));
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}

Result<Value> list(Interpreter& run, const Value& in, Arguments a) {
  DEEPMINT_TRY(b, Bound::bind("list", {}, 0, std::move(a)));
  DEEPMINT_TRY(items, run.iterate(in));
  return make_list(std::move(items), run.budget());
}

Result<Value> reverse(Interpreter& run, const Value& in, Arguments a) {
  DEEPMINT_TRY(b, Bound::bind("reverse", {}, 0, std::move(a)));
  if (in.is_text()) return slice_value(run, in, Value::none(), Value::none(), Value(int64_t{-1}));
  const bool is_generator = in.is_list(List::Kind::kGenerator);
  DEEPMINT_TRY(items, run.iterate(in));
  std::reverse(items.begin(), items.end());
  return make_list(std::move(items), run.budget(),
                   is_generator ? List::Kind::kList : List::Kind::kGenerator);
}

Result<Value> generator(Interpreter& run, Items items) {
  return make_list(std::move(items), run.budget(), List::Kind::kGenerator);
}

Result<Value> items(Interpreter& run, const Value& in, Arguments a) {
  DEEPMINT_TRY(b, Bound::bind("items", {}, 0, std::move(a)));
  if (in.is_undefined()) return generator(run, {});
  if (!in.is_dict()) return type_error("Can only get item pairs from a mapping.");
  Items out;
  for (const auto& [key, value] : in.dict().items) {
    DEEPMINT_TRY(pair, make_list({key, value}, run.budget(), List::Kind::kTuple));
    out.push_back(std::move(pair));
  }
  return generator(run, std::move(out));
}

Result<Value> dictsort(Interpreter& run, const Value& in, Arguments a) {
  DEEPMINT_TRY(b, Bound::bind("dictsort", {"case_sensitive", "by", "reverse"}, 0, std::move(a)));
  if (in.is_undefined()) return undefined_error(in);
  if (!in.is_dict()) return type_error("dictsort needs a mapping");
  const std::string by = b[1] && b[1]->is_text() ? b[1]->str() : b[1] ? "" : "key";
  if (by != "key" && by != "value")
    return type_error("You can only sort by either \"key\" or \"value\"");
  Items keys;
  for (const auto& [key, value] : in.dict().items) {
    const Value& sorted_by = by == "key" ? key : value;
    keys.push_back(flag(b[0]) ? sorted_by : lower_case(run, sorted_by));
  }
  DEEPMINT_TRY(order, sorted_order(run, keys, flag(b[2])));
  Items out;
  for (const size_t i : order) {
    const auto& [key, value] = in.dict().items[i];
    DEEPMINT_TRY(pair, make_list({key, value}, run.budget(), List::Kind::kTuple));
    out.push_back(std::move(pair));
  }
  return make_list(std::move(out), run.budget());
}

Result<Value> sort(Interpreter& run, const Value& in, Arguments a) {
  DEEPMINT_TRY(b, Bound::bind("sort", {"reverse", "case_sensitive", "attribute"}, 0, std::move(a)));
  DEEPMINT_TRY(all, run.iterate(in));
  DEEPMINT_TRY(paths, sort_paths(run, b[2], true));
  Items keys;
  for (const Value& item : all) {
    DEEPMINT_TRY(key, sort_key(run, item, paths, flag(b[1])));
    keys.push_back(std::move(key));
  }
  DEEPMINT_TRY(order, sorted_order(run, keys, flag(b[0])));
  Items out;
  for (const size_t i : order) out.push_back(std::move(all[i]));
  return make_list(std::move(out), run.budget());
}

Result<Value> unique(Interpreter& run, const Value& in, Arguments a) {
  DEEPMINT_TRY(b, Bound::bind("unique", {"case_sensitive", "attribute"}, 0, std::move(a)));
  DEEPMINT_TRY(all, run.iterate(in));
  DEEPMINT_TRY(paths, sort_paths(run, b[1], false));
  Items seen, out;
  for (Value& item : all) {
    DEEPMINT_TRY(key, sort_key(run, item, paths, flag(b[0])));
    if (!hashable(key)) return type_error(fmt::format("unhashable type: '{}'", key.type_name()));
    const bool known = std::any_of(seen.begin(), seen.end(),
                                   [&](const Value& v) { return equal(v, key, run.budget()); });
    if (known || !run.budget().ok()) continue;
    seen.push_back(std::move(key));
    out.push_back(std::move(item));
  }
  return generator(run, std::move(out));
}

Result<Value> extreme(Interpreter& run, const Value& in, Arguments a, std::string_view name,
                      int wanted) {
  DEEPMINT_TRY(b, Bound::bind(name, {"case_sensitive", "attribute"}, 0, std::move(a)));
  DEEPMINT_TRY(all, run.iterate(in));
  if (all.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  DEEPMINT_TRY(paths, sort_paths(run, b[1], false));
  size_t best = 0;
  Value best_key;
  for (size_t i = 0; i < all.size(); ++i) {
    DEEPMINT_TRY(key, sort_key(run, all[i], paths, flag(b[0])));
    if (i > 0) {
      DEEPMINT_TRY(c, compare(key, best_key, run.budget()));
      if (c != wanted) continue;
    }
    best = i;
    best_key = std::move(key);
  }
  return all[best];
}
Result<Value> min(Interpreter& run, const Value& in, Arguments a) {
  return extreme(run, in, std::move(a), "min", -1);
}
Result<Value> max(Interpreter& run, const Value& in, Arguments a) {
  return extreme(run, in, std::move(a), "max", 1);
}

Result<Value> sum(Interpreter& run, const Value& in, Arguments a) {
  DEEPMINT_TRY(b, Bound::bind("sum", {"attribute", "start"}, 0, std::move(a)));
  DEEPMINT_TRY(all, run.iterate(in));
  Items path;
  if (b[0] && !b[0]->is_none()) {
    DEEPMINT_TRY(given, attribute_path(run, *b[0]));
    path = std::move(given);
  }
  Value total = b[1] ? *b[1] : Value(int64_t{0});
  if (total.is_text()) return type_error("sum cannot add strings");
  for (Value& item : all) {
    DEEPMINT_TRY(part, reach(run, std::move(item), path, nullptr));
    DEEPMINT_TRY(more, run.binary(BinaryOp::kAdd, total, part));
    total = std::move(more);
  }
  return total;
}

Result<Value> batch(Interpreter& run, const Value& in, Arguments a) {
  DEEPMINT_TRY(b, Bound::bind("batch", {"linecount", "fill_with"}, 1, std::move(a)));
  DEEPMINT_TRY(n, need_int(*b[0], "batch"));
  DEEPMINT_TRY(all, run.iterate(in));
  Items out, row;
  const auto flush = [&]() -> Status {
    DEEPMINT_TRY(one, make_list(std::exchange(row, {}), run.budget()));
    out.push_back(std::move(one));
    return {};
  };
  for (Value& item : all) {
    if (static_cast<int64_t>(row.size()) == n) DEEPMINT_CHECK_OK(flush());
    row.push_back(std::move(item));
  }
  if (!row.empty()) {
    if (b[1] && !b[1]->is_none())
      while (static_cast<int64_t>(row.size()) < n && run.budget().step() &&
             run.budget().bytes(sizeof(Value)))
        row.push_back(*b[1]);
    DEEPMINT_CHECK_OK(flush());
  }
  return generator(run, std::move(out));
}

Result<Value> map(Interpreter& run, const Value& in, Arguments a) {
  if (!in.truthy()) return generator(run, {});
  DEEPMINT_TRY(all, run.iterate(in));
  Items out;
  if (a.positional.empty() && std::any_of(a.keywords.begin(), a.keywords.end(),
                                          [](const auto& k) { return k.first == "attribute"; })) {
    DEEPMINT_TRY(b, Bound::bind("map", {"attribute", "default"}, 0, std::move(a)));
    DEEPMINT_TRY(path, attribute_path(run, *b[0]));
    for (Value& item : all) {
      DEEPMINT_TRY(part, reach(run, std::move(item), path, b[1]));
      out.push_back(std::move(part));
    }
    return generator(run, std::move(out));
  }
  if (a.positional.empty() || !a.positional.front().is_text())
    return type_error("map requires a filter argument");
  const std::string name = a.positional.front().str();
  a.positional.erase(a.positional.begin());
  if (!is_filter(name))
    return fail(ErrorCode::kUnsupported,
                fmt::format("the filter {} is not supported", quote_name(name, 40)));
  for (const Value& item : all) {
    DEEPMINT_TRY(one, run.filter(name, item, a));
    out.push_back(std::move(one));
    if (!run.budget().step()) break;
  }
  return generator(run, std::move(out));
}

Result<Value> choose(Interpreter& run, const Value& in, Arguments a, bool by_attribute,
                     bool wanted) {
  if (!in.truthy()) return generator(run, {});
  DEEPMINT_TRY(all, run.iterate(in));
  Items path;
  if (by_attribute) {
    if (a.positional.empty()) return type_error("Missing parameter for attribute name");
    DEEPMINT_TRY(given, attribute_path(run, a.positional.front()));
    path = std::move(given);
    a.positional.erase(a.positional.begin());
  }
  std::string name;
  if (!a.positional.empty()) {
    if (!a.positional.front().is_text()) return type_error("the name of a test is a string");
    name = a.positional.front().str();
    a.positional.erase(a.positional.begin());
    if (!is_test(name))
      return fail(ErrorCode::kUnsupported,
                  fmt::format("the test {} is not supported", quote_name(name, 40)));
  }
  Items out;
  for (Value& item : all) {
    DEEPMINT_TRY(part, reach(run, item, path, nullptr));
    bool holds = part.truthy();
    if (!name.empty()) {
      DEEPMINT_TRY(result, run.test(name, part, a));
      holds = result;
    }
    if (holds == wanted) out.push_back(std::move(item));
    if (!run.budget().step()) break;
  }
  return generator(run, std::move(out));
}
Result<Value> select(Interpreter& run, const Value& in, Arguments a) {
  return choose(run, in, std::move(a), false, true);
}
Result<Value> reject(Interpreter& run, const Value& in, Arguments a) {
  return choose(run, in, std::move(a), false, false);
}
Result<Value> selectattr(Interpreter& run, const Value& in, Arguments a) {
  return choose(run, in, std::move(a), true, true);
}
Result<Value> rejectattr(Interpreter& run, const Value& in, Arguments a) {
  return choose(run, in, std::move(a), true, false);
}

Result<Value> attr(Interpreter& run, const Value& in, Arguments a) {
  DEEPMINT_TRY(b, Bound::bind("attr", {"name"}, 1, std::move(a)));
  if (!b[0]->is_text()) return type_error("attr needs a name");
  // Unlike a.b, it does not fall back to a["b"].
  if (in.is_dict() && !has_method(in, b[0]->str()))
    return Value::undefined("'dict object' has no such attribute");
  return run.get_attribute(in, b[0]->str());
}

using Filter = Result<Value> (*)(Interpreter&, const Value&, Arguments);
constexpr std::pair<std::string_view, Filter> kFilters[] = {
    {"abs", filter_abs},
    {"attr", attr},
    {"batch", batch},
    {"capitalize", capitalize},
    {"center", center},
    {"count", length},
    {"d", fallback},
    {"default", fallback},
    {"dictsort", dictsort},
    {"e", escape},
    {"escape", escape},
    {"first", first},
    {"float", filter_float},
    {"format", format},
    {"indent", indent},
    {"int", filter_int},
    {"items", items},
    {"join", join},
    {"last", last},
    {"length", length},
    {"list", list},
    {"lower", lower},
    {"map", map},
    {"max", max},
    {"min", min},
    {"reject", reject},
    {"rejectattr", rejectattr},
    {"replace", replace},
    {"reverse", reverse},
    {"round", filter_round},
    {"safe", string},
    {"select", select},
    {"selectattr", selectattr},
    {"sort", sort},
    {"string", string},
    {"sum", sum},
    {"title", title},
    {"tojson", tojson},
    {"trim", trim},
    {"truncate", truncate},
    {"unique", unique},
    {"upper", upper},
};

const Filter* find_filter(std::string_view name) {
  for (const auto& [key, function] : kFilters)
    if (key == name) return &function;
  return nullptr;
}

// --- tests

Result<bool> ordering(Interpreter& run, const Value& a, const Value& b, CompareOp op) {
  DEEPMINT_TRY(c, compare(a, b, run.budget()));
  switch (op) {
    case CompareOp::kLt:
      return c == -1;
    case CompareOp::kLe:
      return c == -1 || c == 0;
    case CompareOp::kGt:
      return c == 1;
    default:
      return c == 1 || c == 0;
  }
}

struct TestName {
  std::string_view name;
  size_t arguments;
};
constexpr TestName kTests[] = {
    {"defined", 0},     {"undefined", 0}, {"none", 0},        {"boolean", 0},  {"true", 0},
    {"false", 0},       {"integer", 0},   {"float", 0},       {"number", 0},   {"string", 0},
    {"mapping", 0},     {"sequence", 0},  {"iterable", 0},    {"callable", 0}, {"odd", 0},
    {"even", 0},        {"lower", 0},     {"upper", 0},       {"escaped", 0},  {"filter", 0},
    {"test", 0},        {"sameas", 1},    {"divisibleby", 1}, {"in", 1},       {"eq", 1},
    {"equalto", 1},     {"==", 1},        {"ne", 1},          {"!=", 1},       {"lt", 1},
    {"lessthan", 1},    {"<", 1},         {"le", 1},          {"<=", 1},       {"gt", 1},
    {"greaterthan", 1}, {">", 1},         {"ge", 1},          {">=", 1},
};

// str.islower() and str.isupper(): at least one cased character, and none of the other case.
bool all_of_case(std::string_view s, bool lower) {
  bool any = false;
  for (size_t i = 0; i < s.size();) {
    const CodePoint c = code_point_at(s, i);
    if (is_cased(c.value)) {
      if (lower ? !is_lower(c.value) : !is_upper(c.value)) return false;
      any = true;
    }
    i += c.length;
  }
  return any;
}

Result<int64_t> remainder(const Value& v, const Value& by) {
  if (v.is_undefined()) return undefined_error(v);
  if (!v.is_integral() || !by.is_integral())
    return fail(ErrorCode::kUnsupported,
                "odd, even and divisibleby of other than integers are not supported");
  if (by.as_int() == 0) return type_error("division by zero");
  return by.as_int() == -1 ? 0 : v.as_int() % by.as_int();
}

}  // namespace

bool is_filter(std::string_view name) { return find_filter(name) != nullptr; }

bool is_test(std::string_view name) {
  return std::any_of(std::begin(kTests), std::end(kTests),
                     [&](const TestName& t) { return t.name == name; });
}

Result<Value> apply_filter(Interpreter& run, std::string_view name, const Value& input,
                           Arguments arguments) {
  const Filter* filter = find_filter(name);
  if (filter == nullptr)
    return fail(ErrorCode::kUnsupported,
                fmt::format("the filter {} is not supported", quote_name(name, 40)));
  return (*filter)(run, input, std::move(arguments));
}

Result<bool> apply_test(Interpreter& run, std::string_view name, const Value& v,
                        Arguments arguments) {
  const auto* known = std::find_if(std::begin(kTests), std::end(kTests),
                                   [&](const TestName& t) { return t.name == name; });
  if (known == std::end(kTests))
    return fail(ErrorCode::kUnsupported,
                fmt::format("the test {} is not supported", quote_name(name, 40)));
  for (auto& keyword : arguments.keywords)
    arguments.positional.push_back(std::move(keyword.second));
  if (arguments.positional.size() != known->arguments)
    return type_error(fmt::format("the test {} takes {} arguments, found {}", name,
                                  known->arguments, arguments.positional.size()));
  const Value other = known->arguments == 1 ? arguments.positional.front() : Value();

  if (name == "defined") return !v.is_undefined();
  if (name == "undefined") return v.is_undefined();
  if (name == "none") return v.is_none();
  if (name == "boolean") return v.is_bool();
  if (name == "true") return v.is_bool() && v.as_bool();
  if (name == "false") return v.is_bool() && !v.as_bool();
  if (name == "integer") return v.is_int() || v.is_big();
  if (name == "float") return v.is_float();
  if (name == "number") return v.is_number() || v.is_big();
  if (name == "string") return v.is_text();
  if (name == "mapping") return v.is_dict();
  if (name == "callable") return v.is_callable();
  if (name == "sequence")  // what has a length and items by position or key
    return v.is_text() || v.is_dict() || v.is_undefined() || v.is_list(List::Kind::kList) ||
           v.is_list(List::Kind::kTuple) || v.is_list(List::Kind::kRange);
  if (name == "iterable")
    return v.is_text() || v.is_dict() || v.is_list() || v.is_undefined() || v.is_loop();
  if (name == "odd" || name == "even") {
    DEEPMINT_TRY(rest, remainder(v, Value(int64_t{2})));
    return (rest != 0) == (name == "odd");
  }
  if (name == "divisibleby") {
    DEEPMINT_TRY(rest, remainder(v, other));
    return rest == 0;
  }
  if (name == "lower" || name == "upper") return all_of_case(run.str(v).bytes(), name == "lower");
  if (name == "escaped") return false;
  if (name == "filter") return v.is_text() && is_filter(v.str());
  if (name == "test") return v.is_text() && is_test(v.str());
  if (name == "sameas") {
    if (v.identity() != nullptr || other.identity() != nullptr)
      return v.identity() == other.identity();
    return v.type_name() == other.type_name() && equal(v, other, run.budget());
  }
  if (name == "in") return run.contains(other, v);
  if (name == "eq" || name == "equalto" || name == "==") return equal(v, other, run.budget());
  if (name == "ne" || name == "!=") return !equal(v, other, run.budget());
  if (name == "lt" || name == "lessthan" || name == "<")
    return ordering(run, v, other, CompareOp::kLt);
  if (name == "le" || name == "<=") return ordering(run, v, other, CompareOp::kLe);
  if (name == "gt" || name == "greaterthan" || name == ">")
    return ordering(run, v, other, CompareOp::kGt);
  return ordering(run, v, other, CompareOp::kGe);
}

}  // namespace deepmint::recipe::jinja
