// Things that a template can call, and the state behind `loop`. Internal to the interpreter.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "recipe/jinja/ast.h"

namespace deepmint::recipe::jinja {

class Scope;

struct Callable {
  const Stmt* macro = nullptr;  // a macro or the body of a call block, with the scope it sees
  Scope* scope = nullptr;
  std::string name;  // else: a global function, or a method of `self`
  Value self;
  bool is_method = false;
  LoopState* loop = nullptr;  // loop.cycle, loop.changed, loop(…)
};

struct LoopState {
  std::vector<Value> items;  // empty once the loop is over
  size_t index = 0, count = 0;
  int depth0 = 0;
  const Stmt* statement = nullptr;  // loop(…) of a recursive loop
  Scope* scope = nullptr;           // where the loop stands
  Value last_changed;
  bool has_changed = false;
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keywords;
};

}  // namespace deepmint::recipe::jinja
