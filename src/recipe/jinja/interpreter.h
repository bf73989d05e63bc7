// One render run: scopes, evaluation, calls. Internal to the interpreter; one object per render()
// on one thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "recipe/jinja/callable.h"
#include "recipe/jinja/jinja.h"

namespace deepmint::recipe::jinja {

class Scope {
 public:
  explicit Scope(Scope* parent) : parent_(parent) {}
  Value* find(std::string_view name);  // here or further out; null: nowhere
  void set(std::string_view name, Value value);
  Scope* parent() const { return parent_; }
  bool captured = false;  // a macro may outlive the block: the run keeps the scope

 private:
  Scope* parent_;
  std::vector<std::pair<std::string, Value>> names_;
};

class Interpreter {
 public:
  Interpreter(const Variables& variables, const Limits& limits)
      : variables_(variables), limits_(limits), budget_(limits.max_steps, limits.max_total_bytes) {}

  Result<std::vector<Segment>> run(const Body& body);

  // For filters, tests and methods.
  Budget& budget() { return budget_; }
  Result<Value> get_attribute(const Value& base, std::string_view name);
  Result<Value> get_item(const Value& base, const Value& key);
  Result<std::vector<Value>> iterate(const Value& v);  // a generator is used up
  Result<size_t> length(const Value& v);
  Result<bool> contains(const Value& container, const Value& item);
  Result<Value> filter(std::string_view name, const Value& input, Arguments arguments);
  Result<bool> test(std::string_view name, const Value& input, Arguments arguments);
  Result<Value> binary(BinaryOp op, const Value& a, const Value& b);
  Text str(const Value& v) { return to_text(v, budget_); }

 private:
  enum class Flow : uint8_t { kNormal, kBreak, kContinue };

  class Frame;  // frame.h

  Status bind_variables(Scope& root);
  Result<Value> convert(std::string_view variable, std::string_view key, const json::Value& v,
                        Origin origin);

  Result<Flow> execute(const Body& body, Scope& scope);
  Result<Flow> execute(const Stmt& s, Scope& scope);
  Result<Flow> execute_for(const Stmt& s, Scope& scope, int depth0, const Value* items);
  Result<Flow> execute_if(const Stmt& s, Scope& scope);
  Status print(const Stmt& s, Scope& scope);
  Status execute_set(const Stmt& s, Scope& scope);
  Status execute_set_block(const Stmt& s, Scope& scope);
  Status execute_call_block(const Stmt& s, Scope& scope);
  Status write(const Text& text);
  Result<Text> capture(const Body& body, Scope& scope);
  Status assign(const Target& target, const Value& value, Scope& scope, int line);
  Result<Value> make_callable(const Stmt& s, Scope& scope);

  Result<Value> eval(const Expr& e, Scope& scope);
  Result<Value> eval_inner(const Expr& e, Scope& scope);
  Result<Value> name(const Expr& e, Scope& scope);
  Result<Value> slice(const Expr& e, Scope& scope);
  Result<Value> compare(const Expr& e, Scope& scope);
  Result<Value> concat(const Expr& e, Scope& scope);
  Result<Value> container(const Expr& e, Scope& scope);
  Result<Value> negate(const Value& v, bool minus);
  Result<Value> eval_call(const Expr& e, Scope& scope);
  Result<Value> eval_filter(const Expr& e, Scope& scope);
  Result<Value> eval_test(const Expr& e, Scope& scope);
  Result<Arguments> arguments(const Expr& e, Scope& scope);

  Result<Value> call(const Value& callee, Arguments arguments);
  Result<Value> call_macro(const Callable& macro, Arguments arguments);
  Result<Value> call_global(const Callable& function, Arguments arguments);
  Result<Value> call_loop(const Callable& method, Arguments arguments);
  Result<Value> strftime(const Arguments& arguments) const;
  Result<Value> loop_attribute(LoopState& loop, std::string_view name);
  Status check_budget() const;

  const Variables& variables_;
  const Limits& limits_;
  Budget budget_;
  int depth_ = 0;
  Text* out_ = nullptr;
  const Text* captured_ = nullptr;  // what kCapturedText stands for

  // Kept until the run ends, because values point at them.
  std::vector<std::unique_ptr<Scope>> scopes_;
  std::vector<std::unique_ptr<Namespace>> namespaces_;
  std::vector<std::unique_ptr<LoopState>> loops_;
};

}  // namespace deepmint::recipe::jinja
