#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "core/names.h"
#include "recipe/jinja/filters.h"
#include "recipe/jinja/interpreter.h"
#include "recipe/jinja/unicode_text.h"

namespace deepmint::recipe::jinja {
namespace {

constexpr size_t npos = std::string::npos;
constexpr Origin kTemplate = Origin::kTemplate;

// Every method that the sandbox lets a template reach; the ones that are not implemented say so
// when they are called.
constexpr std::string_view kTextMethods[] = {
    "capitalize",   "casefold",    "center",    "count",      "encode",       "endswith",
    "expandtabs",   "find",        "format",    "format_map", "index",        "isalnum",
    "isalpha",      "isascii",     "isdecimal", "isdigit",    "isidentifier", "islower",
    "isnumeric",    "isprintable", "isspace",   "istitle",    "isupper",      "join",
    "ljust",        "lower",       "lstrip",    "maketrans",  "partition",    "removeprefix",
    "removesuffix", "replace",     "rfind",     "rindex",     "rjust",        "rpartition",
    "rsplit",       "rstrip",      "split",     "splitlines", "startswith",   "strip",
    "swapcase",     "title",       "translate", "upper",      "zfill"};
constexpr std::string_view kDictMethods[] = {"copy", "fromkeys", "get", "items", "keys", "values"};
constexpr std::string_view kListMethods[] = {"copy", "count", "index"};
constexpr std::string_view kTupleMethods[] = {"count", "index"};

template <size_t N>
bool in(const std::string_view (&names)[N], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

Result<Text> need_text(const Value& v, std::string_view method) {
  if (v.is_text()) return v.as_text();
  if (v.is_undefined()) return undefined_error(v);
  return type_error(fmt::format("{} needs a string, found '{}'", method, v.type_name()));
}

// Positions in code points, given as in s[start:end], → bytes.
struct Window {
  size_t begin = 0, end = 0;
  bool possible = true;  // start lies at or before the end
};
Result<Window> window(const std::string& s, const Value* start, const Value* end) {
  Window w{0, s.size(), true};
  if ((start == nullptr || start->is_none()) && (end == nullptr || end->is_none())) return w;
  const auto size = static_cast<int64_t>(count_code_points(s));
  int64_t from = 0, to = size;
  for (const auto& [value, out] : {std::pair(start, &from), std::pair(end, &to)}) {
    if (value == nullptr || value->is_none()) continue;
    DEEPMINT_TRY(n, need_int(*value, "a position"));
    *out = n < 0 ? std::max<int64_t>(n + size, 0) : n;
  }
  if (from > size || from > to) w.possible = false;
  from = std::min(from, size);
  to = std::clamp(to, from, size);
  w.begin = byte_of(s, static_cast<size_t>(from));
  w.end = byte_of(s, static_cast<size_t>(to));
  return w;
}

Result<Value> affix(const Text& t, Arguments arguments, bool at_start) {
  const std::string_view name = at_start ? "startswith" : "endswith";
  DEEPMINT_TRY(b, Bound::bind(name, {"prefix", "start", "end"}, 1, std::move(arguments)));
  DEEPMINT_TRY(w, window(t.bytes(), b[1], b[2]));
  const std::string_view s = std::string_view(t.bytes()).substr(w.begin, w.end - w.begin);
  std::vector<Value> wanted = {*b[0]};
  if (b[0]->is_list(List::Kind::kTuple)) wanted = b[0]->items();
  for (const Value& v : wanted) {
    DEEPMINT_TRY(one, need_text(v, name));
    if (w.possible && (at_start ? s.starts_with(one.bytes()) : s.ends_with(one.bytes())))
      return Value(true);
  }
  return Value(false);
}

Result<Value> search(Interpreter& run, const Text& t, std::string_view name, Arguments arguments) {
  DEEPMINT_TRY(b, Bound::bind(name, {"sub", "start", "end"}, 1, std::move(arguments)));
  DEEPMINT_TRY(sub, need_text(*b[0], name));
  DEEPMINT_TRY(w, window(t.bytes(), b[1], b[2]));
  run.budget().step(t.size() / 16);
  const std::string_view s = std::string_view(t.bytes()).substr(w.begin, w.end - w.begin);
  if (name == "count") {
    if (!w.possible) return Value(int64_t{0});
    if (sub.empty()) return Value(static_cast<int64_t>(count_code_points(s)) + 1);
    int64_t n = 0;
    for (size_t at = s.find(sub.bytes()); at != npos; at = s.find(sub.bytes(), at + sub.size()))
      ++n;
    return Value(n);
  }
  const bool from_right = name == "rfind" || name == "rindex";
  const size_t at = !w.possible ? npos : from_right ? s.rfind(sub.bytes()) : s.find(sub.bytes());
  if (at != npos)
    return Value(static_cast<int64_t>(
        count_code_points(std::string_view(t.bytes()).substr(0, w.begin + at))));
  if (name == "index" || name == "rindex") return type_error("substring not found");
  return Value(int64_t{-1});
}

Result<Value> text_list(Interpreter& run, std::vector<Text> parts,
                        List::Kind kind = List::Kind::kList) {
  std::vector<Value> items;
  items.reserve(parts.size());
  for (Text& part : parts) {
    run.budget().bytes(part.size() + sizeof(Text));
    items.emplace_back(std::move(part));
  }
  return make_list(std::move(items), run.budget(), kind);
}

// At runs of white space, which are dropped at both ends.
std::vector<Text> split_white(const Text& t, int64_t most, bool from_right) {
  const std::string_view s = t.bytes();
  std::vector<Text> out;
  if (!from_right) {
    size_t i = leading_space(s);
    while (i < s.size()) {
      if (most >= 0 && static_cast<int64_t>(out.size()) == most) {
        out.push_back(t.substr(i, s.size() - trailing_space(s) - i));
        return out;
      }
      size_t end = i;
      while (end < s.size() && !is_space(code_point_at(s, end).value))
        end += code_point_at(s, end).length;
      out.push_back(t.substr(i, end - i));
      i = end + leading_space(s.substr(end));
    }
    return out;
  }
  size_t end = s.size() - trailing_space(s);
  while (end > 0) {
    if (most >= 0 && static_cast<int64_t>(out.size()) == most) {
      const size_t begin = leading_space(s);
      out.push_back(t.substr(begin, end - begin));
      break;
    }
    size_t begin = end;
    while (begin > 0) {
      size_t before = begin - 1;
      while (before > 0 && (static_cast<unsigned char>(s[before]) & 0xC0) == 0x80) --before;
      if (is_space(code_point_at(s, before).value)) break;
      begin = before;
    }
    out.push_back(t.substr(begin, end - begin));
    end = begin - trailing_space(s.substr(0, begin));
  }
  std::reverse(out.begin(), out.end());
  return out;
}

Result<Value> split(Interpreter& run, const Text& t, Arguments arguments, bool from_right) {
  DEEPMINT_TRY(b, Bound::bind(from_right ? "rsplit" : "split", {"sep", "maxsplit"}, 0,
                              std::move(arguments)));
  int64_t most = -1;
  if (b[1]) {
    DEEPMINT_TRY(given, need_int(*b[1], "split"));
    most = given;
  }
  if (!run.budget().step(t.size() / 16)) return Value();
  if (b[0] == nullptr || b[0]->is_none()) return text_list(run, split_white(t, most, from_right));
  DEEPMINT_TRY(sep, need_text(*b[0], "split"));
  if (sep.empty()) return type_error("empty separator");
  const std::string& s = t.bytes();
  std::vector<Text> out;
  if (!from_right) {
    size_t begin = 0;
    for (size_t at = s.find(sep.bytes());
         at != npos && (most < 0 || static_cast<int64_t>(out.size()) < most) &&
         run.budget().bytes(sizeof(Text));
         at = s.find(sep.bytes(), begin)) {
      out.push_back(t.substr(begin, at - begin));
      begin = at + sep.size();
    }
    out.push_back(t.substr(begin));
    return text_list(run, std::move(out));
  }
  size_t end = s.size();
  while ((most < 0 || static_cast<int64_t>(out.size()) < most) && end >= sep.size() &&
         run.budget().bytes(sizeof(Text))) {
    const size_t at = s.rfind(sep.bytes(), end - sep.size());
    if (at == npos) break;
    out.push_back(t.substr(at + sep.size(), end - at - sep.size()));
    end = at;
  }
  out.push_back(t.substr(0, end));
  std::reverse(out.begin(), out.end());
  return text_list(run, std::move(out));
}

Result<Value> partition(Interpreter& run, const Text& t, Arguments arguments, bool from_right) {
  DEEPMINT_TRY(b, Bound::bind("partition", {"sep"}, 1, std::move(arguments)));
  DEEPMINT_TRY(sep, need_text(*b[0], "partition"));
  if (sep.empty()) return type_error("empty separator");
  const size_t at = from_right ? t.bytes().rfind(sep.bytes()) : t.bytes().find(sep.bytes());
  std::vector<Text> parts;
  if (at != npos)
    parts = {t.substr(0, at), t.substr(at, sep.size()), t.substr(at + sep.size())};
  else if (from_right)
    parts = {Text(), Text(), t};
  else
    parts = {t, Text(), Text()};
  return text_list(run, std::move(parts), List::Kind::kTuple);
}

Result<Value> strip_method(const Text& t, std::string_view name, Arguments arguments) {
  DEEPMINT_TRY(b, Bound::bind(name, {"chars"}, 0, std::move(arguments)));
  const bool white = b[0] == nullptr || b[0]->is_none();
  Text characters;
  if (!white) {
    DEEPMINT_TRY(given, need_text(*b[0], name));
    characters = std::move(given);
  }
  return Value(strip(t, white ? nullptr : &characters, name != "rstrip", name != "lstrip"));
}

Result<Value> pad(Interpreter& run, const Text& t, std::string_view name, Arguments arguments) {
  DEEPMINT_TRY(b, Bound::bind(name, {"width", "fillchar"}, 1, std::move(arguments)));
  DEEPMINT_TRY(width, need_int(*b[0], name));
  Text fill(" ", kTemplate);
  if (b[1]) {
    DEEPMINT_TRY(given, need_text(*b[1], name));
    if (count_code_points(given.bytes()) != 1)
      return type_error("The fill character must be exactly one character long");
    fill = std::move(given);
  }
  DEEPMINT_TRY(out, pad_text(run, t, width, fill, name == "ljust" ? 0 : name == "center" ? 1 : 2));
  return Value(std::move(out));
}

// The is… methods that look at each character.
std::optional<bool> classify(const Text& t, std::string_view name) {
  const std::string& s = t.bytes();
  const auto all = [&](auto is) {
    if (s.empty()) return false;
    for (size_t i = 0; i < s.size();) {
      const CodePoint c = code_point_at(s, i);
      if (!is(c.value)) return false;
      i += c.length;
    }
    return true;
  };
  if (name == "isspace") return all(is_space);
  if (name == "isalpha") return all(is_alpha);
  if (name == "isdecimal") return all(is_decimal);
  if (name == "isdigit") return all(is_digit);
  if (name == "isnumeric") return all(is_numeric);
  if (name == "isalnum") return all([](uint32_t c) { return is_alpha(c) || is_numeric(c); });
  if (name == "isprintable") return s.empty() || all(is_printable);
  if (name == "isascii") return s.empty() || all([](uint32_t c) { return c < 0x80; });
  if (name == "islower" || name == "isupper") {
    bool any = false;
    for (size_t i = 0; i < s.size();) {
      const CodePoint c = code_point_at(s, i);
      if (is_cased(c.value)) {
        if (name == "islower" ? !is_lower(c.value) : !is_upper(c.value)) return false;
        any = true;
      }
      i += c.length;
    }
    return any;
  }
  return std::nullopt;
}

Result<Value> zfill(Interpreter& run, const Text& t, Arguments arguments) {
  DEEPMINT_TRY(b, Bound::bind("zfill", {"width"}, 1, std::move(arguments)));
  DEEPMINT_TRY(width, need_int(*b[0], "zfill"));
  const size_t sign = t.bytes().starts_with('-') || t.bytes().starts_with('+') ? 1 : 0;
  Text out = t.substr(0, sign);
  DEEPMINT_TRY(rest, pad_text(run, t.substr(sign), width - static_cast<int64_t>(sign),
                              Text("0", kTemplate), 2));
  out.append(rest);
  return Value(std::move(out));
}

Result<Value> text_method(Interpreter& run, const Value& self, std::string_view name,
                          Arguments arguments) {
  const Text& t = self.as_text();
  if (!run.budget().bytes(t.size())) return Value();
  if (name == "split" || name == "rsplit")
    return split(run, t, std::move(arguments), name == "rsplit");
  if (name == "strip" || name == "lstrip" || name == "rstrip")
    return strip_method(t, name, std::move(arguments));
  if (name == "startswith" || name == "endswith")
    return affix(t, std::move(arguments), name == "startswith");
  if (name == "find" || name == "rfind" || name == "index" || name == "rindex" || name == "count")
    return search(run, t, name, std::move(arguments));
  if (name == "partition" || name == "rpartition")
    return partition(run, t, std::move(arguments), name == "rpartition");
  if (name == "ljust" || name == "rjust" || name == "center")
    return pad(run, t, name, std::move(arguments));
  if (name == "zfill") return zfill(run, t, std::move(arguments));
  if (name == "format") return brace_format(run, t, arguments);
  if (name == "join") {
    DEEPMINT_TRY(b, Bound::bind(name, {"iterable"}, 1, std::move(arguments)));
    DEEPMINT_TRY(items, run.iterate(*b[0]));
    DEEPMINT_TRY(out, join_texts(run, t, items, true));
    return Value(std::move(out));
  }
  if (name == "replace") {
    DEEPMINT_TRY(b, Bound::bind(name, {"old", "new", "count"}, 2, std::move(arguments)));
    DEEPMINT_TRY(from, need_text(*b[0], name));
    DEEPMINT_TRY(to, need_text(*b[1], name));
    int64_t count = -1;
    if (b[2]) {
      DEEPMINT_TRY(given, need_int(*b[2], name));
      count = given;
    }
    DEEPMINT_TRY(out, replace_text(run, t, from, to, count));
    return Value(std::move(out));
  }
  if (name == "removeprefix" || name == "removesuffix") {
    DEEPMINT_TRY(b, Bound::bind(name, {"affix"}, 1, std::move(arguments)));
    DEEPMINT_TRY(affix, need_text(*b[0], name));
    if (name == "removeprefix")
      return t.bytes().starts_with(affix.bytes()) ? Value(t.substr(affix.size())) : self;
    return t.bytes().ends_with(affix.bytes()) ? Value(t.substr(0, t.size() - affix.size())) : self;
  }
  if (name == "splitlines") {
    DEEPMINT_TRY(b, Bound::bind(name, {"keepends"}, 0, std::move(arguments)));
    return text_list(run, split_lines(t, b[0] != nullptr && b[0]->truthy()));
  }
  DEEPMINT_TRY(none, Bound::bind(name, {}, 0, std::move(arguments)));
  if (name == "upper") return Value(change_case(t, Case::kUpper));
  if (name == "lower") return Value(change_case(t, Case::kLower));
  if (name == "title") return Value(change_case(t, Case::kTitle));
  if (name == "capitalize") return Value(change_case(t, Case::kCapitalize));
  if (name == "swapcase") return Value(change_case(t, Case::kSwap));
  if (const auto is = classify(t, name)) return Value(*is);
  return fail(ErrorCode::kUnsupported, fmt::format("the string method {} is not supported", name));
}

Result<Value> dict_method(Interpreter& run, const Value& self, std::string_view name,
                          Arguments arguments) {
  const Dict& dict = self.dict();
  if (name == "get") {
    DEEPMINT_TRY(b, Bound::bind(name, {"key", "default"}, 1, std::move(arguments)));
    if (!hashable(*b[0]))
      return type_error(fmt::format("unhashable type: '{}'", b[0]->type_name()));
    const Value* v = find(dict, *b[0], run.budget());
    return v != nullptr ? *v : b[1] ? *b[1] : Value::none();
  }
  if (name == "fromkeys")
    return fail(ErrorCode::kUnsupported, "the dict method fromkeys is not supported");
  DEEPMINT_TRY(none, Bound::bind(name, {}, 0, std::move(arguments)));
  if (name == "copy") return self;
  std::vector<Value> items;
  run.budget().step(dict.items.size());
  for (const auto& [key, value] : dict.items) {
    if (name == "keys") {
      items.push_back(key);
    } else if (name == "values") {
      items.push_back(value);
    } else {
      DEEPMINT_TRY(pair, make_list({key, value}, run.budget(), List::Kind::kTuple));
      items.push_back(std::move(pair));
    }
  }
  DEEPMINT_TRY(view, make_list(std::move(items), run.budget(), List::Kind::kView));
  view.list().shown = fmt::format("dict_{}", name);
  return view;
}

Result<Value> list_method(Interpreter& run, const Value& self, std::string_view name,
                          Arguments arguments) {
  if (name == "copy") return make_list(self.items(), run.budget());
  DEEPMINT_TRY(b, Bound::bind(name, {"value"}, 1, std::move(arguments)));
  int64_t count = 0;
  for (size_t i = 0; i < self.items().size(); ++i) {
    if (!equal(self.items()[i], *b[0], run.budget())) continue;
    if (name == "index") return Value(static_cast<int64_t>(i));
    ++count;
  }
  if (name == "index") return type_error("the value is not in the list");
  return Value(count);
}

}  // namespace

bool has_method(const Value& self, std::string_view name) {
  if (self.is_text()) return in(kTextMethods, name);
  if (self.is_dict()) return in(kDictMethods, name);
  if (self.is_list(List::Kind::kList)) return in(kListMethods, name);
  return (self.is_list(List::Kind::kTuple) || self.is_list(List::Kind::kRange)) &&
         in(kTupleMethods, name);
}

Result<Value> call_method(Interpreter& run, const Value& self, std::string_view name,
                          Arguments arguments) {
  if (self.is_text()) return text_method(run, self, name, std::move(arguments));
  if (self.is_dict()) return dict_method(run, self, name, std::move(arguments));
  return list_method(run, self, name, std::move(arguments));
}

// --- shared with the filters

std::string range_text(int64_t start, int64_t stop, int64_t step) {
  return step == 1 ? fmt::format("range({}, {})", start, stop)
                   : fmt::format("range({}, {}, {})", start, stop, step);
}

Text strip(const Text& t, const Text* characters, bool left, bool right) {
  const std::string& s = t.bytes();
  size_t begin = 0, end = s.size();
  if (characters == nullptr) {
    if (left) begin = leading_space(s);
    if (right && begin < end) end -= trailing_space(s);
    return t.substr(begin, end - begin);
  }
  const std::string_view set = characters->bytes();
  const auto in_set = [&](size_t at, size_t n) {
    const std::string_view c = std::string_view(s).substr(at, n);
    for (size_t i = 0; i < set.size(); i += code_point_at(set, i).length)
      if (set.substr(i, code_point_at(set, i).length) == c) return true;
    return false;
  };
  while (left && begin < end && in_set(begin, code_point_at(s, begin).length))
    begin += code_point_at(s, begin).length;
  while (right && end > begin) {
    size_t last = end - 1;
    while (last > begin && (static_cast<unsigned char>(s[last]) & 0xC0) == 0x80) --last;
    if (!in_set(last, end - last)) break;
    end = last;
  }
  return t.substr(begin, end - begin);
}

Result<Text> replace_text(Interpreter& run, const Text& t, const Text& from, const Text& to,
                          int64_t count) {
  const std::string& s = t.bytes();
  Text out;
  if (!run.budget().step(s.size() / 16)) return out;
  size_t begin = 0;
  int64_t done = 0;
  const auto wants_more = [&] { return (count < 0 || done < count) && run.budget().ok(); };
  if (from.empty()) {  // between all characters, and at both ends
    for (size_t i = 0; i <= s.size() && wants_more(); ++done) {
      run.budget().bytes(to.size() + 4);
      out.append(to);
      const size_t n = i < s.size() ? code_point_at(s, i).length : 1;
      out.append(t, i, n);
      begin = std::min(i + n, s.size());
      i += n;
    }
  } else {
    for (size_t at = s.find(from.bytes()); at != npos && wants_more();
         at = s.find(from.bytes(), begin), ++done) {
      if (!run.budget().bytes(at - begin + to.size())) break;
      out.append(t, begin, at - begin);
      out.append(to);
      begin = at + from.size();
    }
  }
  run.budget().bytes(s.size() - begin);
  out.append(t, begin, npos);
  return out;
}

Result<Text> join_texts(Interpreter& run, const Text& separator, const std::vector<Value>& items,
                        bool only_text) {
  Text out;
  for (size_t i = 0; i < items.size() && run.budget().ok(); ++i) {
    if (only_text && !items[i].is_text())
      return type_error(fmt::format("join needs strings, found '{}'", items[i].type_name()));
    if (i > 0 && run.budget().bytes(separator.size())) out.append(separator);
    out.append(run.str(items[i]));
  }
  return out;
}

Result<Text> repeat_text(Interpreter& run, const Text& t, int64_t count) {
  Text out;
  if (count <= 0 || t.empty()) return out;
  uint64_t total = 0;
  if (__builtin_mul_overflow(t.size(), static_cast<uint64_t>(count), &total))
    total = std::numeric_limits<uint64_t>::max();
  if (!run.budget().bytes(total)) return out;
  for (int64_t i = 0; i < count; ++i) out.append(t);
  return out;
}

std::vector<Text> split_lines(const Text& t, bool keep_ends) {
  std::vector<Text> out;
  for (size_t begin = 0; begin < t.size();) {
    const LineEnd end = line_end(t.bytes(), begin);
    out.push_back(t.substr(begin, (keep_ends ? end.next : end.text_end) - begin));
    begin = end.next;
  }
  return out;
}

Result<Text> pad_text(Interpreter& run, const Text& t, int64_t width, const Text& fill,
                      int left_share) {
  const auto size = static_cast<int64_t>(count_code_points(t.bytes()));
  if (width <= size) return t;
  const int64_t room = width - size;
  // str.center puts the odd character left when the width is odd.
  const int64_t left = left_share == 0 ? 0 : left_share == 2 ? room : room / 2 + (room & width & 1);
  DEEPMINT_TRY(out, repeat_text(run, fill, left));
  DEEPMINT_TRY(right, repeat_text(run, fill, room - left));
  out.append(t);
  out.append(right);
  return out;
}

Result<Value> slice_value(Interpreter& run, const Value& base, const Value& start,
                          const Value& stop, const Value& step) {
  if (base.is_undefined()) return undefined_error(base);
  const bool is_items = base.is_list(List::Kind::kList) || base.is_list(List::Kind::kTuple) ||
                        base.is_list(List::Kind::kRange);
  const auto is_bound = [](const Value& v) { return v.is_none() || v.is_integral(); };
  if ((!is_items && !base.is_text()) || !is_bound(start) || !is_bound(stop) || !is_bound(step))
    return type_error(
        fmt::format("a value of type '{}' cannot be sliced like this", base.type_name()));
  const int64_t by = step.is_none() ? 1 : step.as_int();
  if (by == 0) return type_error("slice step cannot be zero");
  const auto size =
      static_cast<int64_t>(is_items ? base.items().size() : count_code_points(base.str()));
  const auto clamp = [&](const Value& v, int64_t fallback) {
    if (v.is_none()) return fallback;
    const int64_t n = v.as_int() < 0 ? v.as_int() + size : v.as_int();
    return by > 0 ? std::clamp<int64_t>(n, 0, size) : std::clamp<int64_t>(n, -1, size - 1);
  };
  const int64_t from = clamp(start, by > 0 ? 0 : size - 1);
  const int64_t to = clamp(stop, by > 0 ? size : -1);
  if (!run.budget().step(static_cast<uint64_t>(size) / 16 + 1)) return Value();
  if (base.is_text() && by == 1) {
    if (from >= to) return Value(Text());
    const std::string& s = base.str();
    const size_t begin = byte_of(s, static_cast<size_t>(from));
    const size_t length =
        byte_of(std::string_view(s).substr(begin), static_cast<size_t>(to - from));
    if (!run.budget().bytes(length)) return Value();
    return Value(base.as_text().substr(begin, length));
  }
  std::vector<size_t> offsets;  // of the characters
  if (base.is_text())
    for (size_t i = 0; i < base.str().size(); i += code_point_at(base.str(), i).length)
      offsets.push_back(i);
  Text text;
  std::vector<Value> items;
  for (int64_t i = from; by > 0 ? i < to : i > to;) {
    if (is_items) {
      items.push_back(base.items()[static_cast<size_t>(i)]);
    } else {
      const size_t at = offsets[static_cast<size_t>(i)];
      text.append(base.as_text(), at, code_point_at(base.str(), at).length);
    }
    if (!run.budget().step() || __builtin_add_overflow(i, by, &i)) break;
  }
  if (is_items) {
    DEEPMINT_TRY(list, make_list(std::move(items), run.budget(), base.list().kind));
    if (base.is_list(List::Kind::kRange) && size > 0) {
      const int64_t first = base.items()[0].as_int();
      const int64_t step0 = size > 1 ? base.items()[1].as_int() - first : 1;
      list.list().shown = range_text(first + from * step0, first + to * step0, step0 * by);
    }
    return list;
  }
  run.budget().bytes(text.size());
  return Value(std::move(text));
}

}  // namespace deepmint::recipe::jinja
