#include "recipe/jinja/interpreter.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <limits>

#include "core/names.h"
#include "recipe/jinja/filters.h"
#include "recipe/jinja/lexer.h"
#include "recipe/jinja/unicode_text.h"

namespace deepmint::recipe::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;  // the sandbox's own limit

struct Deeper {
  explicit Deeper(int& d) : depth(d) { ++depth; }
  ~Deeper() { --depth; }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;
  int& depth;
};

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

// Error without a place yet → with the line.
tl::unexpected<Error> at_line(Error error, int line) {
  if (error.where.empty()) error.where = fmt::format("chat template line {}", line);
  return tl::unexpected(std::move(error));
}

}  // namespace

// --- scopes

Value* Scope::find(std::string_view name) {
  for (Scope* s = this; s != nullptr; s = s->parent_)
    for (auto& [key, value] : s->names_)
      if (key == name) return &value;
  return nullptr;
}

void Scope::set(std::string_view name, Value value) {
  for (auto& [key, old] : names_)
    if (key == name) {
      old = std::move(value);
      return;
    }
  names_.emplace_back(name, std::move(value));
}

class Interpreter::Frame {
 public:
  Frame(Interpreter& run, Scope& parent) : run_(run), scope_(std::make_unique<Scope>(&parent)) {}
  ~Frame() {
    if (!scope_->captured) return;
    run_.budget_.bytes(sizeof(Scope) + 256);
    run_.scopes_.push_back(std::move(scope_));
  }
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;
  Scope& scope() { return *scope_; }

 private:
  Interpreter& run_;
  std::unique_ptr<Scope> scope_;
};

// --- the run

Result<std::vector<Segment>> Interpreter::run(const Body& body) {
  scopes_.push_back(std::make_unique<Scope>(nullptr));
  Scope& root = *scopes_.front();
  DEEPMINT_CHECK_OK(bind_variables(root));
  DEEPMINT_CHECK_OK(check_budget());
  Text out;
  out_ = &out;
  DEEPMINT_TRY(flow, execute(body, root));
  (void)flow;
  std::vector<Segment> segments;
  out.for_each_run([&](std::string_view bytes, Origin origin) {
    segments.push_back({origin == Origin::kCaller ? Segment::Kind::kText : Segment::Kind::kControl,
                        std::string(bytes)});
  });
  return segments;
}

Status Interpreter::check_budget() const {
  if (budget_.ok()) return {};
  const bool steps = budget_.exhausted() == "steps";
  return fail(
      ErrorCode::kTooLarge,
      fmt::format("the chat template takes more than {} {} for this conversation",
                  steps ? limits_.max_steps : limits_.max_total_bytes, budget_.exhausted()));
}

Result<Value> Interpreter::convert(std::string_view variable, std::string_view key,
                                   const json::Value& v, Origin origin) {
  if (origin == Origin::kCaller && variables_.is_trusted) {
    if (v.is_string() && variables_.is_trusted(variable, key, v.as_string()))
      return from_json(v, Origin::kTemplate, budget_);
    if (v.is_array()) {
      std::vector<Value> items;
      for (const json::Value& item : v.items()) {
        DEEPMINT_TRY(one, convert(variable, {}, item, origin));
        items.push_back(std::move(one));
      }
      return make_list(std::move(items), budget_);
    }
    if (v.is_object() && key.empty()) {
      std::vector<std::pair<Value, Value>> items;
      for (const json::Member& m : v.members()) {
        DEEPMINT_TRY(one, convert(variable, m.key, m.value, origin));
        items.emplace_back(Value::text(m.key, origin), std::move(one));
      }
      return make_dict(std::move(items), budget_);
    }
  }
  return from_json(v, origin, budget_);
}

Status Interpreter::bind_variables(Scope& root) {
  for (const auto& [key, value] : variables_.trusted) {
    DEEPMINT_TRY(v, from_json(value, Origin::kTemplate, budget_));
    root.set(key, std::move(v));
  }
  for (const auto& [key, value] : variables_.caller) {
    DEEPMINT_TRY(v, convert(key, {}, value, Origin::kCaller));
    root.set(key, std::move(v));
  }
  return {};
}

Status Interpreter::write(const Text& text) {
  if (!budget_.bytes(text.size())) return check_budget();
  if (out_->size() + text.size() > limits_.max_output_bytes)
    return fail(ErrorCode::kTooLarge, fmt::format("the chat template writes more than {} bytes",
                                                  limits_.max_output_bytes));
  out_->append(text);
  return {};
}

Result<Text> Interpreter::capture(const Body& body, Scope& scope) {
  Text text;
  Text* const outer = std::exchange(out_, &text);
  auto flow = execute(body, scope);
  out_ = outer;
  if (!flow) return tl::unexpected(std::move(flow).error());
  return text;
}

// --- statements

Result<Interpreter::Flow> Interpreter::execute(const Body& body, Scope& scope) {
  for (const StmtPtr& s : body) {
    auto flow = execute(*s, scope);
    if (!flow) return at_line(std::move(flow).error(), s->line);
    if (*flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Result<Interpreter::Flow> Interpreter::execute(const Stmt& s, Scope& scope) {
  const Deeper deeper(depth_);
  if (depth_ > limits_.max_depth)
    return fail(ErrorCode::kTooLarge,
                fmt::format("the chat template nests more than {} levels deep", limits_.max_depth));
  if (!budget_.step()) DEEPMINT_CHECK_OK(check_budget());
  switch (s.kind) {
    case Stmt::Kind::kText:
      DEEPMINT_CHECK_OK(write(s.text));
      return Flow::kNormal;
    case Stmt::Kind::kPrint:
      DEEPMINT_CHECK_OK(print(s, scope));
      return Flow::kNormal;
    case Stmt::Kind::kIf:
      return execute_if(s, scope);
    case Stmt::Kind::kFor:
      return execute_for(s, scope, 0, nullptr);
    case Stmt::Kind::kSet:
      DEEPMINT_CHECK_OK(execute_set(s, scope));
      return Flow::kNormal;
    case Stmt::Kind::kSetBlock:
    case Stmt::Kind::kFilterBlock:
      DEEPMINT_CHECK_OK(execute_set_block(s, scope));
      return Flow::kNormal;
    case Stmt::Kind::kMacro: {
      DEEPMINT_TRY(macro, make_callable(s, scope));
      scope.set(s.name, std::move(macro));
      return Flow::kNormal;
    }
    case Stmt::Kind::kCallBlock:
      DEEPMINT_CHECK_OK(execute_call_block(s, scope));
      return Flow::kNormal;
    case Stmt::Kind::kWith:
    case Stmt::Kind::kScope: {
      Frame frame(*this, scope);
      for (const auto& [target, value] : s.assignments) {
        DEEPMINT_TRY(v, eval(*value, scope));
        DEEPMINT_CHECK_OK(assign(target, v, frame.scope(), s.line));
      }
      return execute(s.body, frame.scope());
    }
    case Stmt::Kind::kBreak:
      return Flow::kBreak;
    case Stmt::Kind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

Status Interpreter::print(const Stmt& s, Scope& scope) {
  DEEPMINT_TRY(value, eval(*s.expr, scope));
  const Text text = str(value);
  DEEPMINT_CHECK_OK(check_budget());
  return write(text);
}

Result<Interpreter::Flow> Interpreter::execute_if(const Stmt& s, Scope& scope) {
  for (const auto& [test, body] : s.branches) {
    DEEPMINT_TRY(condition, eval(*test, scope));
    if (condition.truthy()) return execute(body, scope);
  }
  return execute(s.else_body, scope);
}

Result<Interpreter::Flow> Interpreter::execute_for(const Stmt& s, Scope& scope, int depth0,
                                                   const Value* given) {
  Value source;
  if (given != nullptr) {
    source = *given;
  } else {
    DEEPMINT_TRY(v, eval(*s.expr, scope));
    source = std::move(v);
  }
  DEEPMINT_TRY(items, iterate(source));
  budget_.bytes(sizeof(LoopState));
  loops_.push_back(std::make_unique<LoopState>());
  LoopState& loop = *loops_.back();
  loop.depth0 = depth0;
  if (s.recursive) {
    loop.statement = &s;
    loop.scope = &scope;
    for (Scope* p = &scope; p != nullptr; p = p->parent()) p->captured = true;
  }
  if (s.test) {
    for (Value& item : items) {
      Frame frame(*this, scope);
      DEEPMINT_CHECK_OK(assign(s.target, item, frame.scope(), s.line));
      DEEPMINT_TRY(wanted, eval(*s.test, frame.scope()));
      if (wanted.truthy()) loop.items.push_back(std::move(item));
    }
  } else {
    loop.items = std::move(items);
  }
  loop.count = loop.items.size();
  bool completed = false;  // jinja2 runs the else part unless an iteration reached its end
  for (loop.index = 0; loop.index < loop.items.size(); ++loop.index) {
    if (!budget_.step()) DEEPMINT_CHECK_OK(check_budget());
    Frame frame(*this, scope);
    DEEPMINT_CHECK_OK(assign(s.target, loop.items[loop.index], frame.scope(), s.line));
    frame.scope().set("loop", Value(&loop));
    DEEPMINT_TRY(flow, execute(s.body, frame.scope()));
    if (flow == Flow::kBreak) break;
    completed |= flow == Flow::kNormal;
  }
  loop.items = {};  // a namespace may still point at the loop
  loop.last_changed = Value();
  if (!completed) return execute(s.else_body, scope);
  return Flow::kNormal;
}

Status Interpreter::execute_set(const Stmt& s, Scope& scope) {
  DEEPMINT_TRY(value, eval(*s.expr, scope));
  return assign(s.target, value, scope, s.line);
}

// Both {% set x %}…{% endset %} and {% filter f %}…{% endfilter %}.
Status Interpreter::execute_set_block(const Stmt& s, Scope& scope) {
  Frame frame(*this, scope);
  DEEPMINT_TRY(text, capture(s.body, frame.scope()));
  Value value(text);
  if (s.expr) {
    const Text* const outer = std::exchange(captured_, &text);
    auto filtered = eval(*s.expr, frame.scope());
    captured_ = outer;
    if (!filtered) return tl::unexpected(std::move(filtered).error());
    value = std::move(*filtered);
  }
  if (s.kind == Stmt::Kind::kSetBlock) return assign(s.target, value, scope, s.line);
  const Text shown = str(value);
  DEEPMINT_CHECK_OK(check_budget());
  return write(shown);
}

Status Interpreter::execute_call_block(const Stmt& s, Scope& scope) {
  DEEPMINT_TRY(caller, make_callable(s, scope));
  DEEPMINT_TRY(callee, eval(*s.expr->args.front(), scope));
  DEEPMINT_TRY(with, arguments(*s.expr, scope));
  with.keywords.emplace_back("caller", std::move(caller));
  DEEPMINT_TRY(value, call(callee, std::move(with)));
  const Text text = str(value);
  DEEPMINT_CHECK_OK(check_budget());
  return write(text);
}

Status Interpreter::assign(const Target& target, const Value& value, Scope& scope, int line) {
  if (target.is_tuple) {
    DEEPMINT_TRY(items, iterate(value));
    if (items.size() != target.items.size())
      return template_error(
          ErrorCode::kInvalidArgument, line,
          fmt::format("expected {} values to unpack, found {}", target.items.size(), items.size()));
    for (size_t i = 0; i < items.size(); ++i)
      DEEPMINT_CHECK_OK(assign(target.items[i], items[i], scope, line));
    return {};
  }
  if (target.attribute.empty()) {
    scope.set(target.name, value);
    return {};
  }
  Value* const base = scope.find(target.name);
  if (base == nullptr || !base->is_namespace())
    return template_error(ErrorCode::kInvalidArgument, line,
                          fmt::format("cannot set {}.{}: {} is not a namespace", target.name,
                                      target.attribute, target.name));
  auto& members = base->space()->members;
  for (auto& [key, old] : members)
    if (key == target.attribute) {
      old = value;
      return {};
    }
  members.emplace_back(target.attribute, value);
  return {};
}

Result<Value> Interpreter::make_callable(const Stmt& s, Scope& scope) {
  auto c = std::make_shared<Callable>();
  c->macro = &s;
  c->name = s.kind == Stmt::Kind::kMacro ? s.name : "caller";
  c->scope = &scope;
  for (Scope* p = &scope; p != nullptr; p = p->parent()) p->captured = true;
  return Value(std::shared_ptr<const Callable>(std::move(c)));
}

// --- expressions

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

// --- calls

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
