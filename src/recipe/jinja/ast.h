// The tree of a parsed template. Internal to the interpreter; immutable after parsing, so that one
// tree serves many threads.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "recipe/jinja/value.h"

namespace deepmint::recipe::jinja {

struct Expr;
struct Stmt;
using ExprPtr = std::unique_ptr<Expr>;
using StmtPtr = std::unique_ptr<Stmt>;
using Body = std::vector<StmtPtr>;

enum class BinaryOp : uint8_t { kAdd, kSub, kMul, kDiv, kFloorDiv, kMod, kPow };
enum class CompareOp : uint8_t { kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn };

struct Expr {
  enum class Kind : uint8_t {
    kLiteral,  // literal
    kName,     // name
    kAttr,     // args[0] . name
    kItem,     // args[0] [ args[1] ]
    kSlice,    // args[0] [ args[1] : args[2] : args[3] ]; null where left out
    kCall,     // args[0] ( args[1…], keywords )
    kFilter,   // args[0] | name ( args[1…], keywords )
    kTest,     // args[0] is name ( args[1…], keywords )
    kNot,
    kNegative,
    kPositive,
    kBinary,   // args[0] op args[1]
    kCompare,  // args[0] compare[0] args[1] compare[1] args[2] …
    kAnd,
    kOr,
    kConcat,  // ~ of args
    kCond,    // args[0] if args[1] else args[2]; args[2] may be null
    kList,
    kTuple,
    kDict,          // args: key, value, key, value, …
    kCapturedText,  // the rendered body of a filter or set block
  };
  Kind kind = Kind::kLiteral;
  BinaryOp op = BinaryOp::kAdd;
  int line = 0;
  int height = 1;  // of the tree below, bounded by the parser
  std::string name;
  Value literal;
  std::vector<ExprPtr> args;
  std::vector<std::pair<std::string, ExprPtr>> keywords;
  std::vector<CompareOp> compare;
};

// What a for or set statement assigns to.
struct Target {
  std::string name;           // a variable, or the namespace of `attribute`
  std::string attribute;      // set ns.attribute
  std::vector<Target> items;  // unpacking, when not empty or is_tuple
  bool is_tuple = false;
};

struct Parameter {
  std::string name;
  ExprPtr fallback;  // may be null
};

struct Stmt {
  enum class Kind : uint8_t {
    kText,         // text
    kPrint,        // expr
    kIf,           // branches, else_body
    kFor,          // target, expr, test, body, else_body
    kSet,          // target, expr
    kSetBlock,     // target, expr (filters over the captured text), body
    kMacro,        // name, parameters, body
    kCallBlock,    // expr (the call), parameters and body of its caller()
    kFilterBlock,  // expr (filters over the captured text), body
    kWith,         // assignments, body
    kScope,        // body in a scope of its own: generation
    kBreak,
    kContinue,
  };
  Kind kind = Kind::kText;
  int line = 0;
  Text text;
  std::string name;
  ExprPtr expr, test;
  Target target;
  Body body, else_body;
  std::vector<std::pair<ExprPtr, Body>> branches;
  std::vector<std::pair<Target, ExprPtr>> assignments;
  std::vector<Parameter> parameters;
  bool recursive = false;    // for
  bool uses_caller = false;  // macro: its body names caller, varargs, kwargs
  bool uses_varargs = false;
  bool uses_kwargs = false;
};

}  // namespace deepmint::recipe::jinja
