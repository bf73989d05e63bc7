// The filters, tests and string methods that there are. Internal to the interpreter.
#pragma once

#include <initializer_list>
#include <span>
#include <string_view>

#include "recipe/jinja/callable.h"

namespace deepmint::recipe::jinja {

class Interpreter;

bool is_filter(std::string_view name);
bool is_test(std::string_view name);
Result<Value> apply_filter(Interpreter& run, std::string_view name, const Value& input,
                           Arguments arguments);
Result<bool> apply_test(Interpreter& run, std::string_view name, const Value& input,
                        Arguments arguments);

// Filters of one file, found by apply_filter().
struct NamedFilter {
  std::string_view name;
  Result<Value> (*apply)(Interpreter& run, const Value& input, Arguments arguments);
};
std::span<const NamedFilter> collection_filters();

// Methods of strings, dicts, lists and tuples. Names that Python has, and that a sandbox lets
// through, exist; calling one that is not implemented is an error that names it.
bool has_method(const Value& self, std::string_view name);
Result<Value> call_method(Interpreter& run, const Value& self, std::string_view name,
                          Arguments arguments);

// format % arguments, and format.format(arguments).
Result<Value> percent_format(Interpreter& run, const Text& format, const Value& arguments);
Result<Value> brace_format(Interpreter& run, const Text& format, const Arguments& arguments);

// Positional and keyword arguments put in the order of `names`; null where one is left out.
class Bound {
 public:
  static Result<Bound> bind(std::string_view function,
                            std::initializer_list<std::string_view> names, size_t required,
                            Arguments arguments);
  const Value* operator[](size_t i) const { return given_[i] ? &values_[i] : nullptr; }

 private:
  std::vector<Value> values_;
  std::vector<bool> given_;
};

// Helpers that filters and methods share.
tl::unexpected<Error> type_error(std::string message);
tl::unexpected<Error> undefined_error(const Value& v);
Result<int64_t> need_int(const Value& v, std::string_view what);
Result<Value> slice_value(Interpreter& run, const Value& base, const Value& start,
                          const Value& stop, const Value& step);
std::string range_text(int64_t start, int64_t stop, int64_t step);  // repr(range(…))
Text strip(const Text& t, const Text* characters, bool left, bool right);
Result<Text> replace_text(Interpreter& run, const Text& t, const Text& from, const Text& to,
                          int64_t count);
Result<Text> join_texts(Interpreter& run, const Text& separator, const std::vector<Value>& items,
                        bool only_text);
Result<Text> repeat_text(Interpreter& run, const Text& t, int64_t count);
std::vector<Text> split_lines(const Text& t, bool keep_ends);
Result<Text> pad_text(Interpreter& run, const Text& t, int64_t width, const Text& fill,
                      int left_share);  // 0: left-justified, 1: centred as str.center, 2: right

}  // namespace deepmint::recipe::jinja
