#include "recipe/jinja/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "recipe/jinja/callable.h"
#include "recipe/jinja/unicode_text.h"
#include "recipe/spelling.h"

namespace deepmint::recipe::jinja {
namespace {

constexpr Origin kTemplate = Origin::kTemplate;

tl::unexpected<Error> type_error(std::string message) {
  return fail(ErrorCode::kInvalidArgument, std::move(message));
}

tl::unexpected<Error> too_deep() {
  return fail(ErrorCode::kTooLarge,
              fmt::format("lists and dicts are nested more than {} levels deep", kMaxValueDepth));
}

int depth_of(const Value& v) {
  if (v.is_list()) return v.list().depth;
  return v.is_dict() ? v.dict().depth : 0;
}

// a < b, exactly: a 64-bit integer and a double both fit a long double's 64 mantissa bits.
int order(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral())
    return a.as_int() < b.as_int() ? -1 : a.as_int() > b.as_int();
  const auto wide = [](const Value& v) {
    return v.is_float() ? static_cast<long double>(v.as_double())
                        : static_cast<long double>(v.as_int());
  };
  const long double x = wide(a), y = wide(b);
  return x < y ? -1 : x > y ? 1 : x == y ? 0 : 2;  // 2: a NaN
}

bool equal_items(const std::vector<Value>& a, const std::vector<Value>& b, Budget& budget) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (!equal(a[i], b[i], budget)) return false;
  return true;
}

}  // namespace

Value Value::undefined(std::string why) {
  Value v;
  v.v_ = Undefined{std::make_shared<const std::string>(std::move(why))};
  return v;
}

std::string_view Value::why_undefined() const {
  const auto& why = std::get<Undefined>(v_).why;
  return why ? std::string_view(*why) : std::string_view("the value is undefined");
}

const void* Value::identity() const {
  if (is_text()) return &as_text();
  if (is_list()) return &list();
  if (is_dict()) return &dict();
  if (is_namespace()) return space();
  if (is_loop()) return loop();
  return is_callable() ? &callable() : nullptr;
}

bool Value::truthy() const {
  if (is_undefined() || is_none()) return false;
  if (is_integral()) return as_int() != 0;
  if (is_float()) return as_double() != 0;
  if (is_text()) return !str().empty();
  if (is_list()) return list().kind == List::Kind::kGenerator || !items().empty();
  if (is_dict()) return !dict().items.empty();
  return true;
}

std::string_view Value::type_name() const {
  if (is_undefined()) return "Undefined";
  if (is_none()) return "NoneType";
  if (is_bool()) return "bool";
  if (is_int() || is_big()) return "int";
  if (is_float()) return "float";
  if (is_text()) return "str";
  if (is_dict()) return "dict";
  if (is_namespace()) return "Namespace";
  if (is_loop()) return "LoopContext";
  if (is_callable()) return callable().macro != nullptr ? "Macro" : "function";
  switch (list().kind) {
    case List::Kind::kList:
      return "list";
    case List::Kind::kTuple:
      return "tuple";
    case List::Kind::kRange:
      return "range";
    case List::Kind::kView:
      return "dict view";
    case List::Kind::kGenerator:
      break;
  }
  return "generator";
}

Result<Value> make_list(std::vector<Value> items, Budget& budget, List::Kind kind) {
  auto list = std::make_shared<List>();
  list->kind = kind;
  for (const Value& item : items) list->depth = std::max(list->depth, 1 + depth_of(item));
  if (list->depth > kMaxValueDepth) return too_deep();
  budget.bytes(items.size() * sizeof(Value));
  list->items = std::move(items);
  return Value(std::move(list));
}

bool hashable(const Value& v) {
  if (v.is_list(List::Kind::kTuple))
    return std::all_of(v.items().begin(), v.items().end(), hashable);
  return !v.is_dict() && !v.is_list(List::Kind::kList) && !v.is_list(List::Kind::kView);
}

Result<Value> make_dict(std::vector<std::pair<Value, Value>> items, Budget& budget) {
  auto dict = std::make_shared<Dict>();
  std::unordered_map<std::string_view, size_t> names;
  budget.bytes(items.size() * 2 * sizeof(Value));
  for (auto& [key, value] : items) {
    if (!hashable(key)) return type_error(fmt::format("unhashable type: '{}'", key.type_name()));
    dict->depth = std::max({dict->depth, 1 + depth_of(value), 1 + depth_of(key)});
    if (key.is_text()) {
      const auto [at, is_new] = names.emplace(key.str(), dict->items.size());
      if (!is_new) {
        dict->items[at->second].second = std::move(value);
        continue;
      }
    } else {
      if (!budget.step(dict->items.size() + 1)) break;
      const auto at = std::find_if(dict->items.begin(), dict->items.end(), [&](const auto& item) {
        return equal(item.first, key, budget);
      });
      if (at != dict->items.end()) {
        at->second = std::move(value);
        continue;
      }
    }
    dict->items.emplace_back(std::move(key), std::move(value));
  }
  if (dict->depth > kMaxValueDepth) return too_deep();
  if (dict->items.size() > kIndexedDict) dict->by_name = std::move(names);
  return Value(std::shared_ptr<const Dict>(std::move(dict)));
}

const Value* find(const Dict& dict, std::string_view key) {
  if (!dict.by_name.empty()) {
    const auto at = dict.by_name.find(key);
    return at == dict.by_name.end() ? nullptr : &dict.items[at->second].second;
  }
  for (const auto& [name, value] : dict.items)
    if (name.is_text() && name.str() == key) return &value;
  return nullptr;
}

const Value* find(const Dict& dict, const Value& key, Budget& budget) {
  if (key.is_text()) return find(dict, key.str());
  if (!budget.step(dict.items.size() / 8)) return nullptr;
  for (const auto& [name, value] : dict.items)
    if (!name.is_text() && equal(name, key, budget)) return &value;
  return nullptr;
}

bool equal(const Value& a, const Value& b, Budget& budget) {
  if (!budget.step()) return false;
  if (a.is_number() && b.is_number()) return order(a, b) == 0;
  if (a.is_text() && b.is_text()) return budget.step(a.str().size() / 64) && a.str() == b.str();
  if (a.is_list() && b.is_list()) {
    if (&a.list() == &b.list()) return true;
    if (a.list().kind != b.list().kind || a.list().kind == List::Kind::kGenerator) return false;
    return equal_items(a.items(), b.items(), budget);
  }
  if (a.is_dict() && b.is_dict()) {
    if (a.dict().items.size() != b.dict().items.size()) return false;
    for (const auto& [key, value] : a.dict().items) {
      const Value* other = find(b.dict(), key, budget);
      if (other == nullptr || !equal(value, *other, budget)) return false;
    }
    return true;
  }
  if (a.is_big() && b.is_big()) return a.digits() == b.digits();
  if (a.is_none() || a.is_undefined())
    return a.is_none() == b.is_none() && a.is_undefined() == b.is_undefined();
  return a.identity() != nullptr && a.identity() == b.identity();
}

Result<int> compare(const Value& a, const Value& b, Budget& budget) {
  budget.step();
  if (a.is_number() && b.is_number()) return order(a, b);
  if (a.is_text() && b.is_text()) {
    budget.step(std::min(a.str().size(), b.str().size()) / 64);
    const int c = a.str().compare(b.str());  // UTF-8 sorts as its code points do
    return c < 0 ? -1 : c > 0;
  }
  const bool lists = a.is_list(List::Kind::kList) && b.is_list(List::Kind::kList);
  const bool tuples = a.is_list(List::Kind::kTuple) && b.is_list(List::Kind::kTuple);
  if (lists || tuples) {
    const size_t n = std::min(a.items().size(), b.items().size());
    for (size_t i = 0; i < n && budget.ok(); ++i)
      if (!equal(a.items()[i], b.items()[i], budget))
        return compare(a.items()[i], b.items()[i], budget);
    return a.items().size() < b.items().size() ? -1 : a.items().size() > b.items().size();
  }
  for (const Value* v : {&a, &b})
    if (v->is_undefined()) return type_error(std::string(v->why_undefined()));
  if (a.is_big() || b.is_big())
    return fail(ErrorCode::kUnsupported, "arithmetic beyond 64-bit integers is not supported");
  return type_error(fmt::format("cannot order a value of type '{}' and one of type '{}'",
                                a.type_name(), b.type_name()));
}

std::string float_repr(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d > 0 ? "inf" : "-inf";
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, d, std::chars_format::scientific);
  const std::string_view s(buffer, static_cast<size_t>(end.ptr - buffer));
  const size_t e = s.find('e');
  int exponent = 0;
  const char* digits_of_exponent = s.data() + e + (s[e + 1] == '+' ? 2 : 1);
  std::from_chars(digits_of_exponent, s.data() + s.size(), exponent);
  std::string mantissa;
  for (const char c : s.substr(0, e))
    if (c >= '0' && c <= '9') mantissa.push_back(c);
  std::string out = s.front() == '-' ? "-" : "";
  const auto n = static_cast<int>(mantissa.size());
  if (exponent < -4 || exponent >= 16) {
    out += mantissa.front();
    if (n > 1) out += "." + mantissa.substr(1);
    return out + fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0)
    return out + "0." + std::string(static_cast<size_t>(-exponent) - 1, '0') + mantissa;
  if (n <= exponent + 1)
    return out + mantissa +
           std::string(static_cast<size_t>(exponent) + 1 - static_cast<size_t>(n), '0') + ".0";
  return out + mantissa.substr(0, static_cast<size_t>(exponent) + 1) + "." +
         mantissa.substr(static_cast<size_t>(exponent) + 1);
}

namespace {

// str() and repr() of everything, into one text whose growth is paid for as it happens.
class Writer {
 public:
  explicit Writer(Budget& budget) : budget_(budget) {}

  bool plain(std::string_view s) {
    if (!budget_.bytes(s.size())) return false;
    out_.append(s, kTemplate);
    return true;
  }
  // What computed values look like is not the template's own text.
  bool computed(std::string_view s) {
    if (!budget_.bytes(s.size())) return false;
    out_.append(s, Origin::kCaller);
    return true;
  }
  bool copy(const Text& t, size_t begin, size_t count) {
    if (!budget_.bytes(count)) return false;
    out_.append(t, begin, count);
    return true;
  }
  Text take() { return std::move(out_); }

  bool repr(const Value& v) {
    if (!budget_.step()) return false;
    if (v.is_undefined()) return plain("Undefined");
    if (v.is_none()) return plain("None");
    if (v.is_bool()) return plain(v.as_bool() ? "True" : "False");
    if (v.is_int()) return computed(std::to_string(v.as_int()));
    if (v.is_big()) return computed(v.digits());
    if (v.is_float()) return computed(float_repr(v.as_double()));
    if (v.is_text()) return quoted(v.as_text());
    if (v.is_dict()) return dict(v.dict());
    if (v.is_namespace()) return space(*v.space());
    if (v.is_list()) return list(v.list());
    if (v.is_callable() && v.callable().macro != nullptr)
      return plain(fmt::format("<Macro '{}'>", v.callable().name));
    return plain(fmt::format("<{}>", v.type_name()));
  }

 private:
  bool quoted(const Text& t) {
    const std::string& s = t.bytes();
    const bool use_double = s.find('\'') != std::string::npos && s.find('"') == std::string::npos;
    const char quote = use_double ? '"' : '\'';
    if (!plain(std::string_view(&quote, 1))) return false;
    size_t copied = 0;
    for (size_t i = 0; i < s.size();) {
      const CodePoint c = code_point_at(s, i);
      std::string spelled;
      if (c.value == '\\' || c.value == static_cast<unsigned char>(quote))
        spelled = {'\\', s[i]};
      else if (c.value == '\n')
        spelled = "\\n";
      else if (c.value == '\t')
        spelled = "\\t";
      else if (c.value == '\r')
        spelled = "\\r";
      else if (c.value < 0x20 || c.value == 0x7f)
        spelled = fmt::format("\\x{:02x}", c.value);
      else if (c.value > 0x7f && !is_printable(c.value))
        spelled = c.value <= 0xff     ? fmt::format("\\x{:02x}", c.value)
                  : c.value <= 0xffff ? fmt::format("\\u{:04x}", c.value)
                                      : fmt::format("\\U{:08x}", c.value);
      if (!spelled.empty()) {
        if (!copy(t, copied, i - copied) || !budget_.bytes(spelled.size())) return false;
        out_.append(spelled, t.origin_at(i));
        copied = i + c.length;
      }
      i += c.length;
    }
    return copy(t, copied, s.size() - copied) && plain(std::string_view(&quote, 1));
  }

  bool list(const List& l) {
    if (l.kind == List::Kind::kGenerator) return plain("<generator object>");
    if (l.kind == List::Kind::kView) return plain(l.shown) && items(l, "([", "])");
    if (l.kind == List::Kind::kRange) return plain(l.shown.empty() ? "range(0, 0)" : l.shown);
    if (l.kind == List::Kind::kTuple) return items(l, "(", l.items.size() == 1 ? ",)" : ")");
    return items(l, "[", "]");
  }

  bool items(const List& l, std::string_view open, std::string_view close) {
    if (!plain(open)) return false;
    for (size_t i = 0; i < l.items.size(); ++i)
      if ((i > 0 && !plain(", ")) || !repr(l.items[i])) return false;
    return plain(close);
  }

  bool dict(const Dict& d) {
    if (!plain("{")) return false;
    for (size_t i = 0; i < d.items.size(); ++i) {
      if (i > 0 && !plain(", ")) return false;
      if (!repr(d.items[i].first) || !plain(": ") || !repr(d.items[i].second)) return false;
    }
    return plain("}");
  }

  // A namespace may hold itself; Python would recurse until it fails.
  bool space(const Namespace& n) {
    if (++spaces_ > 8) return plain("<Namespace …>");
    if (!plain("<Namespace {")) return false;
    for (size_t i = 0; i < n.members.size(); ++i) {
      if (i > 0 && !plain(", ")) return false;
      if (!plain(fmt::format("'{}': ", n.members[i].first)) || !repr(n.members[i].second))
        return false;
    }
    --spaces_;
    return plain("}>");
  }

  Budget& budget_;
  Text out_;
  int spaces_ = 0;
};

class JsonWriter {
 public:
  JsonWriter(const JsonFormat& format, Budget& budget) : format_(format), budget_(budget) {}

  Status value(const Value& v, int depth) {
    if (!budget_.step()) return {};
    if (v.is_text()) return string(v.as_text());
    if (v.is_none()) return plain("null");
    if (v.is_bool()) return plain(v.as_bool() ? "true" : "false");
    if (v.is_int()) return computed(std::to_string(v.as_int()));
    if (v.is_big()) return computed(v.digits());
    if (v.is_float()) return computed(number(v.as_double()));
    if (v.is_dict()) return dict(v.dict(), depth);
    if (v.is_list(List::Kind::kList) || v.is_list(List::Kind::kTuple)) {
      if (v.items().empty()) return plain("[]");
      DEEPMINT_CHECK_OK(plain("["));
      for (size_t i = 0; i < v.items().size() && budget_.ok(); ++i) {
        separate(i > 0, depth + 1);
        DEEPMINT_CHECK_OK(value(v.items()[i], depth + 1));
      }
      separate(false, depth);
      return plain("]");
    }
    if (v.is_undefined()) return type_error(std::string(v.why_undefined()));
    return type_error(fmt::format("a value of type '{}' cannot be written as JSON", v.type_name()));
  }
  Text take() { return std::move(out_); }

 private:
  static std::string number(double d) {
    if (std::isnan(d)) return "NaN";
    if (std::isinf(d)) return d > 0 ? "Infinity" : "-Infinity";
    return float_repr(d);
  }
  Status plain(std::string_view s) {
    if (budget_.bytes(s.size())) out_.append(s, kTemplate);
    return {};
  }
  Status computed(std::string_view s) {
    if (budget_.bytes(s.size())) out_.append(s, Origin::kCaller);
    return {};
  }
  void put(const Text& t) {
    if (budget_.bytes(t.size())) out_.append(t);
  }
  void separate(bool comma, int depth) {
    if (comma) put(format_.item_separator);
    if (!format_.indented) return;
    (void)plain("\n");
    for (int i = 0; i < depth && budget_.ok(); ++i) put(format_.indent);
  }

  Status dict(const Dict& d, int depth) {
    if (d.items.empty()) return plain("{}");
    std::vector<const std::pair<Value, Value>*> order;
    order.reserve(d.items.size());
    for (const auto& item : d.items) order.push_back(&item);
    if (format_.sort_keys) {
      budget_.step(order.size() * 8);
      std::optional<Error> error;
      std::stable_sort(order.begin(), order.end(), [&](const auto* a, const auto* b) {
        const auto c = compare(a->first, b->first, budget_);
        if (c) return *c == -1;
        if (!error) error = c.error();
        return false;
      });
      if (error) return tl::unexpected(*std::move(error));
    }
    DEEPMINT_CHECK_OK(plain("{"));
    for (size_t i = 0; i < order.size() && budget_.ok(); ++i) {
      separate(i > 0, depth + 1);
      const Value& key = order[i]->first;
      if (key.is_text()) {
        DEEPMINT_CHECK_OK(string(key.as_text()));
      } else if (key.is_none() || key.is_number() || key.is_big()) {
        DEEPMINT_CHECK_OK(plain("\""));
        DEEPMINT_CHECK_OK(value(key, depth));
        DEEPMINT_CHECK_OK(plain("\""));
      } else {
        return type_error(
            fmt::format("a key of type '{}' cannot be written as JSON", key.type_name()));
      }
      put(format_.key_separator);
      DEEPMINT_CHECK_OK(value(order[i]->second, depth + 1));
    }
    separate(false, depth);
    return plain("}");
  }

  Status string(const Text& t) {
    const std::string& s = t.bytes();
    DEEPMINT_CHECK_OK(plain("\""));
    if (!budget_.bytes(s.size())) return {};
    size_t copied = 0;
    for (size_t i = 0; i < s.size();) {
      const auto c = static_cast<unsigned char>(s[i]);
      size_t length = 1;
      std::string spelled;
      if (c == '"' || c == '\\')
        spelled = {'\\', s[i]};
      else if (c < 0x20)
        spelled = control(c);
      else if (c >= 0x80 && format_.ensure_ascii)
        spelled = ascii(code_point_at(s, i), length);
      if (!spelled.empty()) {
        if (!budget_.bytes(spelled.size())) return {};
        out_.append(t, copied, i - copied);
        out_.append(spelled, t.origin_at(i));
        copied = i + length;
      }
      i += length;
    }
    out_.append(t, copied, s.size() - copied);
    return plain("\"");
  }
  static std::string control(unsigned char c) {
    switch (c) {
      case '\n':
        return "\\n";
      case '\r':
        return "\\r";
      case '\t':
        return "\\t";
      case '\b':
        return "\\b";
      case '\f':
        return "\\f";
      default:
        return fmt::format("\\u{:04x}", c);
    }
  }
  static std::string ascii(CodePoint c, size_t& length) {
    length = c.length;
    if (c.value < 0x10000) return fmt::format("\\u{:04x}", c.value);
    const uint32_t rest = c.value - 0x10000;
    return fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
  }

  const JsonFormat& format_;
  Budget& budget_;
  Text out_;
};

}  // namespace

Text repr(const Value& v, Budget& budget) {
  Writer w(budget);
  w.repr(v);
  return w.take();
}

Text to_text(const Value& v, Budget& budget) {
  if (v.is_text()) return budget.bytes(v.str().size()) ? v.as_text() : Text();
  if (v.is_undefined()) return {};
  return repr(v, budget);
}

Result<Text> to_json(const Value& v, const JsonFormat& format, Budget& budget) {
  JsonWriter w(format, budget);
  DEEPMINT_CHECK_OK(w.value(v, 0));
  return w.take();
}

Result<Value> from_json(const json::Value& v, Origin origin, Budget& budget) {
  budget.bytes(sizeof(Value));
  switch (v.kind()) {
    case json::Kind::kNull:
      return Value::none();
    case json::Kind::kBool:
      return Value(v.as_bool());
    case json::Kind::kNumber: {
      const std::string& s = v.number_text();
      if (s.find_first_of(".eE") == std::string::npos) {
        if (const auto n = v.to_int64()) return Value(*n);
        return Value(BigInt{std::make_shared<const std::string>(s)});
      }
      constexpr double kInfinity = std::numeric_limits<double>::infinity();
      return Value(v.to_double().value_or(s.front() == '-' ? -kInfinity : kInfinity));
    }
    case json::Kind::kString:
      budget.bytes(v.as_string().size());
      return Value::text(v.as_string(), origin);
    case json::Kind::kArray: {
      std::vector<Value> items;
      items.reserve(v.items().size());
      for (const json::Value& item : v.items()) {
        DEEPMINT_TRY(one, from_json(item, origin, budget));
        items.push_back(std::move(one));
      }
      return make_list(std::move(items), budget);
    }
    case json::Kind::kObject: {
      std::vector<std::pair<Value, Value>> items;
      items.reserve(v.members().size());
      for (const json::Member& member : v.members()) {
        DEEPMINT_TRY(one, from_json(member.value, origin, budget));
        items.emplace_back(Value::text(member.key, origin), std::move(one));
      }
      return make_dict(std::move(items), budget);
    }
  }
  return Value::none();
}

}  // namespace deepmint::recipe::jinja
