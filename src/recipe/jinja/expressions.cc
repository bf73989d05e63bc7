// Expressions: names, operators, attributes and items.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/names.h"
#include "recipe/jinja/filters.h"
#include "recipe/jinja/frame.h"
#include "recipe/jinja/unicode_text.h"

namespace deepmint::recipe::jinja {
namespace {

tl::unexpected<Error> overflow() {
  return fail(ErrorCode::kUnsupported, "arithmetic beyond 64-bit integers is not supported");
}

bool is_function_name(std::string_view name) {
  return name == "range" || name == "dict" || name == "namespace" || name == "raise_exception";
}

Value function(std::string_view name) {
  auto c = std::make_shared<Callable>();
  c->name = name;
  return Value(std::shared_ptr<const Callable>(std::move(c)));
}

Value method(const Value& self, std::string_view name) {
  auto c = std::make_shared<Callable>();
  c->name = name;
  c->self = self;
  c->is_method = true;
  return Value(std::shared_ptr<const Callable>(std::move(c)));
}

std::string describe(const Value& v) {
  return v.is_none() ? std::string("None") : fmt::format("'{} object'", v.type_name());
}
}  // namespace

Result<Value> Interpreter::eval(const Expr& e, Scope& scope) {
  const Deeper deeper(depth_);
  if (depth_ > limits_.max_depth)
    return at_line(
        {ErrorCode::kTooLarge,
         fmt::format("the chat template nests more than {} levels deep", limits_.max_depth),
         {}},
        e.line);
  budget_.step();
  auto value = eval_inner(e, scope);
  if (!value) return at_line(std::move(value).error(), e.line);
  if (!budget_.ok()) return at_line(check_budget().error(), e.line);
  return value;
}

Result<Value> Interpreter::eval_inner(const Expr& e, Scope& scope) {
  switch (e.kind) {
    case Expr::Kind::kLiteral:
      return e.literal;
    case Expr::Kind::kCapturedText:
      return Value(*captured_);
    case Expr::Kind::kName:
      return name(e, scope);
    case Expr::Kind::kAttr: {
      DEEPMINT_TRY(base, eval(*e.args[0], scope));
      return get_attribute(base, e.name);
    }
    case Expr::Kind::kItem: {
      DEEPMINT_TRY(base, eval(*e.args[0], scope));
      DEEPMINT_TRY(key, eval(*e.args[1], scope));
      return get_item(base, key);
    }
    case Expr::Kind::kSlice:
      return slice(e, scope);
    case Expr::Kind::kCall:
      return eval_call(e, scope);
    case Expr::Kind::kFilter:
      return eval_filter(e, scope);
    case Expr::Kind::kTest:
      return eval_test(e, scope);
    case Expr::Kind::kNot: {
      DEEPMINT_TRY(v, eval(*e.args[0], scope));
      return Value(!v.truthy());
    }
    case Expr::Kind::kNegative:
    case Expr::Kind::kPositive: {
      DEEPMINT_TRY(v, eval(*e.args[0], scope));
      return negate(v, e.kind == Expr::Kind::kNegative);
    }
    case Expr::Kind::kBinary: {
      DEEPMINT_TRY(a, eval(*e.args[0], scope));
      DEEPMINT_TRY(b, eval(*e.args[1], scope));
      return binary(e.op, a, b);
    }
    case Expr::Kind::kCompare:
      return compare(e, scope);
    case Expr::Kind::kAnd:
    case Expr::Kind::kOr: {
      DEEPMINT_TRY(a, eval(*e.args[0], scope));
      if (a.truthy() == (e.kind == Expr::Kind::kOr)) return a;
      return eval(*e.args[1], scope);
    }
    case Expr::Kind::kConcat:
      return concat(e, scope);
    case Expr::Kind::kCond: {
      DEEPMINT_TRY(condition, eval(*e.args[1], scope));
      if (condition.truthy()) return eval(*e.args[0], scope);
      if (e.args[2]) return eval(*e.args[2], scope);
      return Value::undefined(
          "the inline if-expression evaluated to false and no else section was defined");
    }
    case Expr::Kind::kList:
    case Expr::Kind::kTuple:
    case Expr::Kind::kDict:
      return container(e, scope);
  }
  return Value();
}

Result<Value> Interpreter::name(const Expr& e, Scope& scope) {
  if (const Value* v = scope.find(e.name)) return *v;
  if (is_function_name(e.name)) return function(e.name);
  if (e.name == "strftime_now") {
    if (variables_.now) return function(e.name);
    return Value::undefined("strftime_now");  // no clock: see eval_call
  }
  if (e.name == "cycler" || e.name == "joiner" || e.name == "lipsum")
    return fail(ErrorCode::kUnsupported, fmt::format("the function {} is not supported", e.name));
  return Value::undefined(fmt::format("'{}' is undefined", e.name));
}

Result<Value> Interpreter::slice(const Expr& e, Scope& scope) {
  DEEPMINT_TRY(base, eval(*e.args[0], scope));
  Value bounds[3] = {Value::none(), Value::none(), Value::none()};
  for (size_t i = 0; i < 3; ++i) {
    if (!e.args[i + 1]) continue;
    DEEPMINT_TRY(v, eval(*e.args[i + 1], scope));
    bounds[i] = std::move(v);
  }
  return slice_value(*this, base, bounds[0], bounds[1], bounds[2]);
}

Result<Value> Interpreter::compare(const Expr& e, Scope& scope) {
  DEEPMINT_TRY(left, eval(*e.args[0], scope));
  for (size_t i = 0; i < e.compare.size(); ++i) {
    DEEPMINT_TRY(right, eval(*e.args[i + 1], scope));
    bool holds = false;
    switch (e.compare[i]) {
      case CompareOp::kEq:
        holds = equal(left, right, budget_);
        break;
      case CompareOp::kNe:
        holds = !equal(left, right, budget_);
        break;
      case CompareOp::kIn:
      case CompareOp::kNotIn: {
        DEEPMINT_TRY(in, contains(right, left));
        holds = in == (e.compare[i] == CompareOp::kIn);
        break;
      }
      default: {
        DEEPMINT_TRY(c, jinja::compare(left, right, budget_));
        const CompareOp op = e.compare[i];
        holds = op == CompareOp::kLt   ? c == -1
                : op == CompareOp::kLe ? c == -1 || c == 0
                : op == CompareOp::kGt ? c == 1
                                       : c == 1 || c == 0;
      }
    }
    if (!holds) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Result<Value> Interpreter::concat(const Expr& e, Scope& scope) {
  Text out;
  for (const ExprPtr& arg : e.args) {
    DEEPMINT_TRY(v, eval(*arg, scope));
    out.append(str(v));
    DEEPMINT_CHECK_OK(check_budget());
  }
  return Value(std::move(out));
}

Result<Value> Interpreter::container(const Expr& e, Scope& scope) {
  std::vector<Value> items;
  items.reserve(e.args.size());
  for (const ExprPtr& arg : e.args) {
    DEEPMINT_TRY(v, eval(*arg, scope));
    items.push_back(std::move(v));
  }
  if (e.kind == Expr::Kind::kList) return make_list(std::move(items), budget_);
  if (e.kind == Expr::Kind::kTuple) return make_list(std::move(items), budget_, List::Kind::kTuple);
  std::vector<std::pair<Value, Value>> members;
  for (size_t i = 0; i + 1 < items.size(); i += 2)
    members.emplace_back(std::move(items[i]), std::move(items[i + 1]));
  return make_dict(std::move(members), budget_);
}

Result<Value> Interpreter::negate(const Value& v, bool minus) {
  if (v.is_undefined()) return undefined_error(v);
  if (v.is_float()) return Value(minus ? -v.as_double() : v.as_double());
  if (v.is_big()) return overflow();
  if (!v.is_integral())
    return type_error(fmt::format("a value of type '{}' has no sign", v.type_name()));
  if (minus && v.as_int() == std::numeric_limits<int64_t>::min()) return overflow();
  return Value(minus ? -v.as_int() : v.as_int());
}

namespace {

// Python's floor division and its remainder, for both kinds of numbers.
Result<Value> divide(BinaryOp op, const Value& a, const Value& b) {
  if (b.as_double() == 0) return type_error("division by zero");
  if (op == BinaryOp::kDiv) return Value(a.as_double() / b.as_double());
  if (a.is_integral() && b.is_integral()) {
    const int64_t x = a.as_int(), y = b.as_int();
    if (x == std::numeric_limits<int64_t>::min() && y == -1) {
      if (op == BinaryOp::kMod) return Value(int64_t{0});
      return overflow();
    }
    const bool adjust = x % y != 0 && (x < 0) != (y < 0);
    if (op == BinaryOp::kMod) return Value(x % y + (adjust ? y : 0));
    return Value(x / y - (adjust ? 1 : 0));
  }
  const double x = a.as_double(), y = b.as_double();
  double mod = std::fmod(x, y);
  double quotient = (x - mod) / y;
  if (mod != 0) {
    if ((y < 0) != (mod < 0)) {
      mod += y;
      quotient -= 1;
    }
  } else {
    mod = std::copysign(0.0, y);
  }
  if (op == BinaryOp::kMod) return Value(mod);
  if (quotient == 0) return Value(std::copysign(0.0, x / y));
  const double floor = std::floor(quotient);
  return Value(quotient - floor > 0.5 ? floor + 1 : floor);
}

Result<Value> power(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral() && b.as_int() >= 0) {
    int64_t out = 1, base = a.as_int();
    for (int64_t n = b.as_int(); n > 0; n >>= 1) {
      if ((n & 1) != 0 && __builtin_mul_overflow(out, base, &out)) return overflow();
      if (n > 1 && __builtin_mul_overflow(base, base, &base)) return overflow();
    }
    return Value(out);
  }
  if (a.as_double() == 0 && b.as_double() < 0)
    return type_error("zero cannot be raised to a negative power");
  const double out = std::pow(a.as_double(), b.as_double());
  if (std::isnan(out) && !std::isnan(a.as_double()) && !std::isnan(b.as_double()))
    return fail(ErrorCode::kUnsupported, "complex numbers are not supported");
  if (std::isinf(out) && !std::isinf(a.as_double()) && !std::isinf(b.as_double()))
    return type_error("the result of ** is too large");
  return Value(out);
}

Result<Value> arithmetic(BinaryOp op, const Value& a, const Value& b) {
  if (op == BinaryOp::kDiv || op == BinaryOp::kFloorDiv || op == BinaryOp::kMod)
    return divide(op, a, b);
  if (op == BinaryOp::kPow) return power(a, b);
  if (a.is_integral() && b.is_integral()) {
    int64_t out = 0;
    const int64_t x = a.as_int(), y = b.as_int();
    const bool too_large = op == BinaryOp::kAdd   ? __builtin_add_overflow(x, y, &out)
                           : op == BinaryOp::kSub ? __builtin_sub_overflow(x, y, &out)
                                                  : __builtin_mul_overflow(x, y, &out);
    if (too_large) return overflow();
    return Value(out);
  }
  const double x = a.as_double(), y = b.as_double();
  return Value(op == BinaryOp::kAdd ? x + y : op == BinaryOp::kSub ? x - y : x * y);
}

}  // namespace

Result<Value> Interpreter::binary(BinaryOp op, const Value& a, const Value& b) {
  if (op == BinaryOp::kMod && a.is_text()) return percent_format(*this, a.as_text(), b);
  for (const Value* v : {&a, &b})
    if (v->is_undefined()) return undefined_error(*v);
  if (a.is_number() && b.is_number()) return arithmetic(op, a, b);
  if (op == BinaryOp::kAdd) {
    if (a.is_text() && b.is_text()) {
      if (!budget_.bytes(a.str().size() + b.str().size())) return Value();
      Text out = a.as_text();
      out.append(b.as_text());
      return Value(std::move(out));
    }
    for (const auto kind : {List::Kind::kList, List::Kind::kTuple}) {
      if (!a.is_list(kind) || !b.is_list(kind)) continue;
      if (!budget_.step(a.items().size() + b.items().size())) return Value();
      std::vector<Value> items = a.items();
      items.insert(items.end(), b.items().begin(), b.items().end());
      return make_list(std::move(items), budget_, kind);
    }
  }
  if (op == BinaryOp::kMul && (a.is_integral() || b.is_integral())) {
    const Value& times = a.is_integral() ? a : b;
    const Value& what = a.is_integral() ? b : a;
    if (what.is_text()) {
      DEEPMINT_TRY(text, repeat_text(*this, what.as_text(), times.as_int()));
      return Value(std::move(text));
    }
    if (what.is_list(List::Kind::kList) || what.is_list(List::Kind::kTuple)) {
      const auto n = static_cast<uint64_t>(std::max<int64_t>(times.as_int(), 0));
      std::vector<Value> items;
      if (!what.items().empty() && n > 0) {
        if (n > limits_.max_steps || !budget_.step(n * what.items().size()))
          return budget_.step(limits_.max_steps + 1), Value();
        for (uint64_t i = 0; i < n; ++i)
          items.insert(items.end(), what.items().begin(), what.items().end());
      }
      return make_list(std::move(items), budget_, what.list().kind);
    }
  }
  if (a.is_big() || b.is_big()) return overflow();
  constexpr std::string_view kSigns[] = {"+", "-", "*", "/", "//", "%", "**"};
  return type_error(fmt::format("unsupported operand types for {}: '{}' and '{}'",
                                kSigns[static_cast<size_t>(op)], a.type_name(), b.type_name()));
}

// --- attributes and items

Result<Value> Interpreter::get_attribute(const Value& base, std::string_view name) {
  if (base.is_undefined()) return undefined_error(base);
  if (base.is_loop()) return loop_attribute(*base.loop(), name);
  if (base.is_namespace()) {
    for (const auto& [key, value] : base.space()->members)
      if (key == name) return value;
  } else if (has_method(base, name)) {
    return method(base, name);
  } else if (base.is_dict()) {
    if (const Value* v = find(base.dict(), name)) return *v;
  } else if (base.is_callable() && base.callable().macro != nullptr && name == "name") {
    return Value::text(base.callable().name, Origin::kTemplate);
  }
  return Value::undefined(
      fmt::format("{} has no attribute '{}'", describe(base), printable(name.substr(0, 60))));
}

Result<Value> Interpreter::get_item(const Value& base, const Value& key) {
  if (base.is_undefined()) return undefined_error(base);
  if (base.is_dict() && hashable(key)) {
    if (const Value* v = find(base.dict(), key, budget_)) return *v;
  } else if (key.is_integral()) {
    const bool indexed = base.is_list(List::Kind::kList) || base.is_list(List::Kind::kTuple) ||
                         base.is_list(List::Kind::kRange);
    if (indexed || base.is_text()) {
      if (base.is_text()) budget_.step(base.str().size() / 16);
      const auto size =
          static_cast<int64_t>(indexed ? base.items().size() : count_code_points(base.str()));
      const int64_t i = key.as_int() < 0 ? key.as_int() + size : key.as_int();
      if (i >= 0 && i < size) {
        const auto at = static_cast<size_t>(i);
        if (indexed) return base.items()[at];
        const size_t byte = byte_of(base.str(), at);
        return Value(base.as_text().substr(byte, code_point_at(base.str(), byte).length));
      }
    }
  }
  if (key.is_text()) {
    if (base.is_dict() && !has_method(base, key.str()))
      return Value::undefined(
          fmt::format("'dict object' has no attribute '{}'", printable(key.str().substr(0, 60))));
    return get_attribute(base, key.str());
  }
  return Value::undefined(fmt::format("{} has no such element", describe(base)));
}

Result<Value> Interpreter::loop_attribute(LoopState& loop, std::string_view name) {
  const auto size = static_cast<int64_t>(loop.count);
  const auto index = static_cast<int64_t>(loop.index);
  if (name == "index") return Value(index + 1);
  if (name == "index0") return Value(index);
  if (name == "revindex") return Value(size - index);
  if (name == "revindex0") return Value(size - index - 1);
  if (name == "first") return Value(index == 0);
  if (name == "last") return Value(index + 1 >= size);
  if (name == "length") return Value(size);
  if (name == "depth") return Value(int64_t{loop.depth0} + 1);
  if (name == "depth0") return Value(int64_t{loop.depth0});
  if (name == "previtem")
    return loop.index > 0 && loop.index <= loop.items.size()
               ? loop.items[loop.index - 1]
               : Value::undefined("there is no previous item");
  if (name == "nextitem")
    return loop.index + 1 < loop.items.size() ? loop.items[loop.index + 1]
                                              : Value::undefined("there is no next item");
  if (name == "cycle" || name == "changed") {
    auto c = std::make_shared<Callable>();
    c->name = name;
    c->loop = &loop;
    return Value(std::shared_ptr<const Callable>(std::move(c)));
  }
  return Value::undefined(fmt::format("'loop' has no attribute '{}'", printable(name)));
}

Result<std::vector<Value>> Interpreter::iterate(const Value& v) {
  std::vector<Value> items;
  if (v.is_undefined()) return items;
  if (v.is_list()) {
    budget_.step(v.items().size());
    if (v.list().kind == List::Kind::kGenerator) return std::exchange(v.list().items, {});
    budget_.bytes(v.items().size() * sizeof(Value));
    return v.items();
  }
  if (v.is_dict()) {
    budget_.step(v.dict().items.size());
    for (const auto& [key, value] : v.dict().items) items.push_back(key);
    return items;
  }
  if (v.is_text()) {
    const std::string& s = v.str();
    if (!budget_.step(s.size()) || !budget_.bytes(s.size() * sizeof(Text))) return items;
    for (size_t i = 0; i < s.size();) {
      const size_t n = code_point_at(s, i).length;
      items.emplace_back(v.as_text().substr(i, n));
      i += n;
    }
    return items;
  }
  if (v.is_loop())
    return fail(ErrorCode::kUnsupported, "walking over the loop variable is not supported");
  return type_error(fmt::format("a value of type '{}' cannot be walked over", v.type_name()));
}

Result<size_t> Interpreter::length(const Value& v) {
  if (v.is_undefined()) return size_t{0};
  if (v.is_text()) return budget_.step(v.str().size() / 64), count_code_points(v.str());
  if (v.is_dict()) return v.dict().items.size();
  if (v.is_loop()) return v.loop()->count;
  if (v.is_list() && v.list().kind != List::Kind::kGenerator) return v.items().size();
  return type_error(fmt::format("a value of type '{}' has no length", v.type_name()));
}

Result<bool> Interpreter::contains(const Value& container, const Value& item) {
  if (container.is_undefined()) return false;
  if (container.is_text()) {
    if (!item.is_text())
      return type_error(
          fmt::format("'in' of a string needs a string, found '{}'", item.type_name()));
    budget_.step(container.str().size() / 16);
    return container.str().find(item.str()) != std::string::npos;
  }
  if (container.is_dict()) {
    if (!hashable(item)) return type_error(fmt::format("unhashable type: '{}'", item.type_name()));
    return find(container.dict(), item, budget_) != nullptr;
  }
  if (!container.is_list())
    return type_error(fmt::format("a value of type '{}' holds nothing", container.type_name()));
  List& list = container.list();
  size_t at = 0;
  bool found = false;
  while (at < list.items.size() && !found) found = equal(list.items[at++], item, budget_);
  if (list.kind == List::Kind::kGenerator)
    list.items.erase(list.items.begin(), list.items.begin() + static_cast<ptrdiff_t>(at));
  return found;
}

}  // namespace deepmint::recipe::jinja
