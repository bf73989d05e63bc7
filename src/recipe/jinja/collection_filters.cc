// Filters of collections: what sorts, selects, maps and reaches into items.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "core/names.h"
#include "recipe/jinja/filters.h"
#include "recipe/jinja/interpreter.h"
#include "recipe/jinja/unicode_text.h"

namespace deepmint::recipe::jinja {
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
    const bool falls_back = next.is_undefined() && fallback != nullptr && !fallback->is_none();
    if (falls_back)
      item = *fallback;
    else
      item = std::move(next);
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
  std::optional<Error> error;  // the first
  // A merge sort only ever asks "is b before a", whose answer is false once something went wrong,
  // so the order stays a valid one.
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (error) return false;
    const auto c = reversed ? compare(keys[b], keys[a], run.budget())
                            : compare(keys[a], keys[b], run.budget());
    if (c) return *c == -1;
    error = c.error();
    return false;
  });
  if (error) return tl::unexpected(*std::move(error));
  return order;
}

bool flag(const Value* v, bool fallback = false) { return v == nullptr ? fallback : v->truthy(); }
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
constexpr NamedFilter kFilters[] = {
    {"attr", attr},
    {"batch", batch},
    {"count", length},
    {"d", fallback},
    {"default", fallback},
    {"dictsort", dictsort},
    {"first", first},
    {"items", items},
    {"join", join},
    {"last", last},
    {"length", length},
    {"list", list},
    {"map", map},
    {"max", max},
    {"min", min},
    {"reject", reject},
    {"rejectattr", rejectattr},
    {"reverse", reverse},
    {"select", select},
    {"selectattr", selectattr},
    {"sort", sort},
    {"sum", sum},
    {"unique", unique},
};

}  // namespace

std::span<const NamedFilter> collection_filters() { return kFilters; }

}  // namespace deepmint::recipe::jinja
