#include "recipe/jinja/interpreter.h"

#include <algorithm>

#include "recipe/jinja/filters.h"
#include "recipe/jinja/frame.h"
#include "recipe/jinja/lexer.h"

namespace deepmint::recipe::jinja {

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

}  // namespace deepmint::recipe::jinja
