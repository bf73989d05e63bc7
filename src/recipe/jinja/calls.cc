// Calls: filters, tests, macros, methods of loops, global functions.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <limits>

#include "core/names.h"
#include "recipe/jinja/filters.h"
#include "recipe/jinja/frame.h"
#include "recipe/jinja/unicode_text.h"

namespace deepmint::recipe::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;  // the sandbox's own limit

}  // namespace

Result<Arguments> Interpreter::arguments(const Expr& e, Scope& scope) {
  Arguments out;
  for (size_t i = 1; i < e.args.size(); ++i) {
    DEEPMINT_TRY(v, eval(*e.args[i], scope));
    out.positional.push_back(std::move(v));
  }
  for (const auto& [key, value] : e.keywords) {
    DEEPMINT_TRY(v, eval(*value, scope));
    out.keywords.emplace_back(key, std::move(v));
  }
  return out;
}

Result<Value> Interpreter::eval_call(const Expr& e, Scope& scope) {
  DEEPMINT_TRY(callee, eval(*e.args[0], scope));
  DEEPMINT_TRY(with, arguments(e, scope));
  if (callee.is_undefined() && callee.why_undefined() == "strftime_now") return strftime(with);
  return call(callee, std::move(with));
}

Result<Value> Interpreter::eval_filter(const Expr& e, Scope& scope) {
  DEEPMINT_TRY(input, eval(*e.args[0], scope));
  DEEPMINT_TRY(with, arguments(e, scope));
  return filter(e.name, input, std::move(with));
}

Result<Value> Interpreter::eval_test(const Expr& e, Scope& scope) {
  DEEPMINT_TRY(input, eval(*e.args[0], scope));
  DEEPMINT_TRY(with, arguments(e, scope));
  DEEPMINT_TRY(holds, test(e.name, input, std::move(with)));
  return Value(holds);
}

Result<Value> Interpreter::filter(std::string_view name, const Value& input, Arguments arguments) {
  const Deeper deeper(depth_);
  if (depth_ > limits_.max_depth)
    return fail(ErrorCode::kTooLarge,
                fmt::format("the chat template nests more than {} levels deep", limits_.max_depth));
  return apply_filter(*this, name, input, std::move(arguments));
}

Result<bool> Interpreter::test(std::string_view name, const Value& input, Arguments arguments) {
  return apply_test(*this, name, input, std::move(arguments));
}

Result<Value> Interpreter::call(const Value& callee, Arguments arguments) {
  if (callee.is_undefined()) return undefined_error(callee);
  if (callee.is_loop()) {
    Callable recursion;
    recursion.loop = callee.loop();
    return call_loop(recursion, std::move(arguments));
  }
  if (!callee.is_callable())
    return type_error(fmt::format("a value of type '{}' cannot be called", callee.type_name()));
  const Callable& c = callee.callable();
  if (c.macro != nullptr) return call_macro(c, std::move(arguments));
  if (c.loop != nullptr) return call_loop(c, std::move(arguments));
  if (c.is_method) return call_method(*this, c.self, c.name, std::move(arguments));
  return call_global(c, std::move(arguments));
}

Result<Value> Interpreter::call_macro(const Callable& c, Arguments arguments) {
  const Stmt& macro = *c.macro;
  Frame frame(*this, *c.scope);
  Scope& scope = frame.scope();
  const size_t n = macro.parameters.size();
  const auto take_keyword = [&](std::string_view key) -> std::optional<Value> {
    for (auto it = arguments.keywords.begin(); it != arguments.keywords.end(); ++it) {
      if (it->first != key) continue;
      Value v = std::move(it->second);
      arguments.keywords.erase(it);
      return v;
    }
    return std::nullopt;
  };
  std::vector<const Parameter*> left_out;
  for (size_t i = 0; i < n; ++i) {
    const Parameter& p = macro.parameters[i];
    if (i < arguments.positional.size()) {
      scope.set(p.name, arguments.positional[i]);
    } else if (auto given = take_keyword(p.name)) {
      scope.set(p.name, *std::move(given));
    } else {
      left_out.push_back(&p);
    }
  }
  for (const Parameter* p : left_out) {
    if (p->fallback) {
      DEEPMINT_TRY(v, eval(*p->fallback, scope));
      scope.set(p->name, std::move(v));
    } else {
      scope.set(p->name, Value::undefined(fmt::format("parameter '{}' was not provided", p->name)));
    }
  }
  if (macro.uses_caller)
    scope.set("caller", take_keyword("caller").value_or(Value::undefined("No caller defined")));
  if (macro.uses_kwargs) {
    std::vector<std::pair<Value, Value>> rest;
    rest.reserve(arguments.keywords.size());
    for (auto& [key, value] : arguments.keywords)
      rest.emplace_back(Value::text(key, Origin::kTemplate), std::move(value));
    DEEPMINT_TRY(kwargs, make_dict(std::move(rest), budget_));
    scope.set("kwargs", std::move(kwargs));
  } else if (!arguments.keywords.empty()) {
    return type_error(fmt::format("macro '{}' takes no keyword argument '{}'", c.name,
                                  arguments.keywords.front().first));
  }
  if (macro.uses_varargs) {
    std::vector<Value> rest;
    for (size_t i = n; i < arguments.positional.size(); ++i)
      rest.push_back(std::move(arguments.positional[i]));
    DEEPMINT_TRY(varargs, make_list(std::move(rest), budget_, List::Kind::kTuple));
    scope.set("varargs", std::move(varargs));
  } else if (arguments.positional.size() > n) {
    return type_error(fmt::format("macro '{}' takes not more than {} arguments", c.name, n));
  }
  DEEPMINT_TRY(text, capture(macro.body, scope));
  return Value(std::move(text));
}

Result<Value> Interpreter::call_loop(const Callable& c, Arguments arguments) {
  LoopState& loop = *c.loop;
  if (c.name == "cycle") {
    if (arguments.positional.empty()) return type_error("no items for cycling given");
    return arguments.positional[loop.index % arguments.positional.size()];
  }
  if (c.name == "changed") {
    DEEPMINT_TRY(now, make_list(std::move(arguments.positional), budget_, List::Kind::kTuple));
    const bool changed = !loop.has_changed || !equal(now, loop.last_changed, budget_);
    loop.has_changed = true;
    loop.last_changed = std::move(now);
    return Value(changed);
  }
  if (loop.statement == nullptr) return type_error("the loop is not marked as recursive");
  if (arguments.positional.size() != 1 || !arguments.keywords.empty())
    return type_error("loop() takes one argument");
  Text text;
  Text* const outer = std::exchange(out_, &text);
  auto flow =
      execute_for(*loop.statement, *loop.scope, loop.depth0 + 1, &arguments.positional.front());
  out_ = outer;
  if (!flow) return tl::unexpected(std::move(flow).error());
  return Value(std::move(text));
}

Result<Value> Interpreter::call_global(const Callable& c, Arguments arguments) {
  if (c.name == "raise_exception") {
    DEEPMINT_TRY(bound, Bound::bind(c.name, {"message"}, 1, std::move(arguments)));
    return type_error("the chat template refuses this conversation: " +
                      printable(str(*bound[0]).bytes().substr(0, 500)));
  }
  if (c.name == "strftime_now") return strftime(arguments);
  if (c.name == "range") {
    if (!arguments.keywords.empty() || arguments.positional.empty() ||
        arguments.positional.size() > 3)
      return type_error("range takes one to three numbers");
    int64_t parts[3] = {0, 0, 1};
    for (size_t i = 0; i < arguments.positional.size(); ++i) {
      DEEPMINT_TRY(n, need_int(arguments.positional[i], "range"));
      parts[arguments.positional.size() == 1 ? 1 : i] = n;
    }
    const auto [start, stop, step] = parts;
    if (step == 0) return type_error("range() arg 3 must not be zero");
    std::vector<Value> items;
    int64_t n = start;
    while (step > 0 ? n < stop : n > stop) {
      if (static_cast<int64_t>(items.size()) >= kMaxRange)
        return fail(ErrorCode::kTooLarge,
                    fmt::format("a range of more than {} numbers", kMaxRange));
      items.emplace_back(n);
      if (__builtin_add_overflow(n, step, &n)) break;
    }
    budget_.step(items.size());
    DEEPMINT_TRY(range, make_list(std::move(items), budget_, List::Kind::kRange));
    range.list().shown = range_text(start, stop, step);
    return range;
  }
  // dict and namespace: members of a dict, then keyword arguments.
  std::vector<std::pair<Value, Value>> members;
  if (arguments.positional.size() > 1)
    return type_error(fmt::format("{} takes at most one positional argument", c.name));
  if (!arguments.positional.empty()) {
    const Value& from = arguments.positional.front();
    if (from.is_dict()) {
      members = from.dict().items;
    } else {
      DEEPMINT_TRY(pairs, iterate(from));
      for (const Value& pair : pairs) {
        DEEPMINT_TRY(two, iterate(pair));
        if (two.size() != 2) return type_error("dict needs pairs of a key and a value");
        members.emplace_back(two[0], two[1]);
      }
    }
  }
  for (auto& [key, value] : arguments.keywords)
    members.emplace_back(Value::text(key, Origin::kTemplate), std::move(value));
  if (c.name == "dict") return make_dict(std::move(members), budget_);
  budget_.bytes(sizeof(Namespace));
  namespaces_.push_back(std::make_unique<Namespace>());
  for (auto& [key, value] : members) {
    if (!key.is_text()) return type_error("names of a namespace are strings");
    auto& all = namespaces_.back()->members;
    const auto known =
        std::find_if(all.begin(), all.end(), [&](const auto& m) { return m.first == key.str(); });
    if (known != all.end())
      known->second = std::move(value);
    else
      all.emplace_back(key.str(), std::move(value));
  }
  return Value(namespaces_.back().get());
}

Result<Value> Interpreter::strftime(const Arguments& arguments) const {
  if (arguments.positional.size() != 1 || !arguments.keywords.empty() ||
      !arguments.positional.front().is_text())
    return type_error("strftime_now takes one string");
  const std::string& format = arguments.positional.front().str();
  const auto seconds = static_cast<std::time_t>(variables_.now.value_or(variables_.fallback_date));
  std::tm parts = {};
  if (::gmtime_r(&seconds, &parts) == nullptr) return type_error("the date is out of range");
  constexpr std::string_view kDays[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                        "Thursday", "Friday", "Saturday"};
  constexpr std::string_view kMonths[] = {"January",   "February", "March",    "April",
                                          "May",       "June",     "July",     "August",
                                          "September", "October",  "November", "December"};
  const std::string_view day = kDays[parts.tm_wday], month = kMonths[parts.tm_mon];
  std::string out;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%' || i + 1 == format.size()) {
      out.push_back(format[i]);
      continue;
    }
    const bool padless = format[i + 1] == '-' && i + 2 < format.size();
    if (padless) ++i;
    const auto two = [&](int n) {
      return padless ? fmt::format("{}", n) : fmt::format("{:02}", n);
    };
    const int hour12 = parts.tm_hour % 12 == 0 ? 12 : parts.tm_hour % 12;
    switch (const char c = format[++i]) {
      case 'Y':
        out += fmt::format("{}", parts.tm_year + 1900);
        break;
      case 'y':
        out += two(parts.tm_year % 100);
        break;
      case 'm':
        out += two(parts.tm_mon + 1);
        break;
      case 'd':
        out += two(parts.tm_mday);
        break;
      case 'e':
        out += fmt::format("{:2}", parts.tm_mday);
        break;
      case 'H':
        out += two(parts.tm_hour);
        break;
      case 'I':
        out += two(hour12);
        break;
      case 'M':
        out += two(parts.tm_min);
        break;
      case 'S':
        out += two(parts.tm_sec);
        break;
      case 'j':
        out += padless ? fmt::format("{}", parts.tm_yday + 1)
                       : fmt::format("{:03}", parts.tm_yday + 1);
        break;
      case 'p':
        out += parts.tm_hour < 12 ? "AM" : "PM";
        break;
      case 'A':
        out += day;
        break;
      case 'a':
        out += day.substr(0, 3);
        break;
      case 'B':
        out += month;
        break;
      case 'b':
      case 'h':
        out += month.substr(0, 3);
        break;
      case 'F':
        out += fmt::format("{}-{:02}-{:02}", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday);
        break;
      case 'T':
        out += fmt::format("{:02}:{:02}:{:02}", parts.tm_hour, parts.tm_min, parts.tm_sec);
        break;
      case 'Z':
      case 'z':
        break;  // a naive datetime has no zone
      case '%':
        out.push_back('%');
        break;
      default:
        return fail(ErrorCode::kUnsupported, fmt::format("the date format %{} is not supported",
                                                         printable(std::string_view(&c, 1))));
    }
  }
  return Value::text(out, Origin::kCaller);
}

}  // namespace deepmint::recipe::jinja
