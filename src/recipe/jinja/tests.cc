// The tests of `is` and `is not`.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/names.h"
#include "recipe/jinja/filters.h"
#include "recipe/jinja/interpreter.h"
#include "recipe/jinja/unicode_text.h"

namespace deepmint::recipe::jinja {
namespace {

Result<bool> ordering(Interpreter& run, const Value& a, const Value& b, CompareOp op) {
  DEEPMINT_TRY(c, compare(a, b, run.budget()));
  switch (op) {
    case CompareOp::kLt:
      return c == -1;
    case CompareOp::kLe:
      return c == -1 || c == 0;
    case CompareOp::kGt:
      return c == 1;
    default:
      return c == 1 || c == 0;
  }
}

struct TestName {
  std::string_view name;
  size_t arguments;
};
constexpr TestName kTests[] = {
    {"defined", 0},     {"undefined", 0}, {"none", 0},        {"boolean", 0},  {"true", 0},
    {"false", 0},       {"integer", 0},   {"float", 0},       {"number", 0},   {"string", 0},
    {"mapping", 0},     {"sequence", 0},  {"iterable", 0},    {"callable", 0}, {"odd", 0},
    {"even", 0},        {"lower", 0},     {"upper", 0},       {"escaped", 0},  {"filter", 0},
    {"test", 0},        {"sameas", 1},    {"divisibleby", 1}, {"in", 1},       {"eq", 1},
    {"equalto", 1},     {"==", 1},        {"ne", 1},          {"!=", 1},       {"lt", 1},
    {"lessthan", 1},    {"<", 1},         {"le", 1},          {"<=", 1},       {"gt", 1},
    {"greaterthan", 1}, {">", 1},         {"ge", 1},          {">=", 1},
};

// str.islower() and str.isupper(): at least one cased character, and none of the other case.
bool all_of_case(std::string_view s, bool lower) {
  bool any = false;
  for (size_t i = 0; i < s.size();) {
    const CodePoint c = code_point_at(s, i);
    if (is_cased(c.value)) {
      if (lower ? !is_lower(c.value) : !is_upper(c.value)) return false;
      any = true;
    }
    i += c.length;
  }
  return any;
}

Result<int64_t> remainder(const Value& v, const Value& by) {
  if (v.is_undefined()) return undefined_error(v);
  if (!v.is_integral() || !by.is_integral())
    return fail(ErrorCode::kUnsupported,
                "odd, even and divisibleby of other than integers are not supported");
  if (by.as_int() == 0) return type_error("division by zero");
  return by.as_int() == -1 ? 0 : v.as_int() % by.as_int();
}

}  // namespace

bool is_test(std::string_view name) {
  return std::any_of(std::begin(kTests), std::end(kTests),
                     [&](const TestName& t) { return t.name == name; });
}

Result<bool> apply_test(Interpreter& run, std::string_view name, const Value& v,
                        Arguments arguments) {
  const auto* known = std::find_if(std::begin(kTests), std::end(kTests),
                                   [&](const TestName& t) { return t.name == name; });
  if (known == std::end(kTests))
    return fail(ErrorCode::kUnsupported,
                fmt::format("the test {} is not supported", quote_name(name, 40)));
  for (auto& keyword : arguments.keywords)
    arguments.positional.push_back(std::move(keyword.second));
  if (arguments.positional.size() != known->arguments)
    return type_error(fmt::format("the test {} takes {} arguments, found {}", name,
                                  known->arguments, arguments.positional.size()));
  const Value other = known->arguments == 1 ? arguments.positional.front() : Value();

  if (name == "defined") return !v.is_undefined();
  if (name == "undefined") return v.is_undefined();
  if (name == "none") return v.is_none();
  if (name == "boolean") return v.is_bool();
  if (name == "true") return v.is_bool() && v.as_bool();
  if (name == "false") return v.is_bool() && !v.as_bool();
  if (name == "integer") return v.is_int() || v.is_big();
  if (name == "float") return v.is_float();
  if (name == "number") return v.is_number() || v.is_big();
  if (name == "string") return v.is_text();
  if (name == "mapping") return v.is_dict();
  if (name == "callable") return v.is_callable();
  if (name == "sequence")  // what has a length and items by position or key
    return v.is_text() || v.is_dict() || v.is_undefined() || v.is_list(List::Kind::kList) ||
           v.is_list(List::Kind::kTuple) || v.is_list(List::Kind::kRange);
  if (name == "iterable")
    return v.is_text() || v.is_dict() || v.is_list() || v.is_undefined() || v.is_loop();
  if (name == "odd" || name == "even") {
    DEEPMINT_TRY(rest, remainder(v, Value(int64_t{2})));
    return (rest != 0) == (name == "odd");
  }
  if (name == "divisibleby") {
    DEEPMINT_TRY(rest, remainder(v, other));
    return rest == 0;
  }
  if (name == "lower" || name == "upper") return all_of_case(run.str(v).bytes(), name == "lower");
  if (name == "escaped") return false;
  if (name == "filter") return v.is_text() && is_filter(v.str());
  if (name == "test") return v.is_text() && is_test(v.str());
  if (name == "sameas") {
    if (v.identity() != nullptr || other.identity() != nullptr)
      return v.identity() == other.identity();
    return v.type_name() == other.type_name() && equal(v, other, run.budget());
  }
  if (name == "in") return run.contains(other, v);
  if (name == "eq" || name == "equalto" || name == "==") return equal(v, other, run.budget());
  if (name == "ne" || name == "!=") return !equal(v, other, run.budget());
  if (name == "lt" || name == "lessthan" || name == "<")
    return ordering(run, v, other, CompareOp::kLt);
  if (name == "le" || name == "<=") return ordering(run, v, other, CompareOp::kLe);
  if (name == "gt" || name == "greaterthan" || name == ">")
    return ordering(run, v, other, CompareOp::kGt);
  return ordering(run, v, other, CompareOp::kGe);
}

}  // namespace deepmint::recipe::jinja
