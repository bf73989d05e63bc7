// Values of a chat template: Python's, as far as templates use them. Internal to the interpreter.
//
// Lists, tuples and dicts are immutable once made, as in jinja2's sandbox, so values can share
// them, and no cycle of owners is possible. Namespaces and loop states belong to the render run and
// are only pointed at.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "core/json.h"
#include "deepmint/result.h"
#include "recipe/jinja/text.h"

namespace deepmint::recipe::jinja {

// What a render run may still use. The first refusal sticks: deep helpers return early, and the
// interpreter reports it.
class Budget {
 public:
  Budget(uint64_t steps, uint64_t bytes) : steps_(steps), bytes_(bytes) {}
  bool step(uint64_t n = 1) {
    if (n > steps_) return failed_ = kSteps, false;
    steps_ -= n;
    return failed_ == kNothing;
  }
  bool bytes(uint64_t n) {
    if (n > bytes_) return failed_ = kBytes, false;
    bytes_ -= n;
    return failed_ == kNothing;
  }
  bool ok() const { return failed_ == kNothing; }
  std::string_view exhausted() const { return failed_ == kSteps ? "steps" : "bytes"; }

 private:
  enum Failed : uint8_t { kNothing, kSteps, kBytes };
  uint64_t steps_, bytes_;
  Failed failed_ = kNothing;
};

class Value;
struct Callable;
struct LoopState;

struct Undefined {
  std::shared_ptr<const std::string> why;  // "'x' is undefined"
};
struct None {
  friend bool operator==(None, None) { return true; }
};
struct BigInt {  // an integer of the caller beyond int64: kept as spelled, never computed with
  std::shared_ptr<const std::string> digits;
};

struct List {
  enum class Kind : uint8_t {
    kList,
    kTuple,
    kRange,
    kView,       // dict.keys(), values(), items(): a length but no index
    kGenerator,  // what map, select, … give: no length, always true, empty after one pass
  };
  Kind kind = Kind::kList;
  int depth = 1;
  std::vector<Value> items;
  std::string shown;  // how a range or view prints: all of it, or the name in front of its items
};

struct Dict {
  int depth = 1;
  std::vector<std::pair<Value, Value>> items;            // in order of insertion
  std::unordered_map<std::string_view, size_t> by_name;  // filled when there are many
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> members;
};

class Value {
 public:
  Value() : v_(Undefined{}) {}
  static Value undefined(std::string why);
  static Value none() { return Value(None{}); }
  static Value text(std::string_view s, Origin origin) { return Value(Text(s, origin)); }
  explicit Value(None) : v_(None{}) {}
  explicit Value(bool b) : v_(b) {}
  explicit Value(int64_t n) : v_(n) {}
  explicit Value(double d) : v_(d) {}
  explicit Value(BigInt n) : v_(std::move(n)) {}
  explicit Value(Text t) : v_(std::make_shared<const Text>(std::move(t))) {}
  explicit Value(std::shared_ptr<List> l) : v_(std::move(l)) {}
  explicit Value(std::shared_ptr<const Dict> d) : v_(std::move(d)) {}
  explicit Value(Namespace* n) : v_(n) {}
  explicit Value(LoopState* l) : v_(l) {}
  explicit Value(std::shared_ptr<const Callable> c) : v_(std::move(c)) {}

  bool is_undefined() const { return std::holds_alternative<Undefined>(v_); }
  bool is_none() const { return std::holds_alternative<None>(v_); }
  bool is_bool() const { return std::holds_alternative<bool>(v_); }
  bool is_int() const { return std::holds_alternative<int64_t>(v_); }
  bool is_float() const { return std::holds_alternative<double>(v_); }
  bool is_big() const { return std::holds_alternative<BigInt>(v_); }
  bool is_integral() const { return is_int() || is_bool(); }      // has as_int()
  bool is_number() const { return is_integral() || is_float(); }  // has as_double()
  bool is_text() const { return std::holds_alternative<std::shared_ptr<const Text>>(v_); }
  bool is_list() const { return std::holds_alternative<std::shared_ptr<List>>(v_); }
  bool is_list(List::Kind kind) const { return is_list() && list().kind == kind; }
  bool is_dict() const { return std::holds_alternative<std::shared_ptr<const Dict>>(v_); }
  bool is_namespace() const { return std::holds_alternative<Namespace*>(v_); }
  bool is_loop() const { return std::holds_alternative<LoopState*>(v_); }
  bool is_callable() const { return std::holds_alternative<std::shared_ptr<const Callable>>(v_); }

  bool as_bool() const { return std::get<bool>(v_); }
  int64_t as_int() const { return is_bool() ? (as_bool() ? 1 : 0) : std::get<int64_t>(v_); }
  double as_double() const {
    return is_float() ? std::get<double>(v_) : static_cast<double>(as_int());
  }
  const std::string& digits() const { return *std::get<BigInt>(v_).digits; }
  const Text& as_text() const { return *std::get<std::shared_ptr<const Text>>(v_); }
  const std::string& str() const { return as_text().bytes(); }
  List& list() const { return *std::get<std::shared_ptr<List>>(v_); }
  const std::vector<Value>& items() const { return list().items; }
  const Dict& dict() const { return *std::get<std::shared_ptr<const Dict>>(v_); }
  Namespace* space() const { return std::get<Namespace*>(v_); }
  LoopState* loop() const { return std::get<LoopState*>(v_); }
  const Callable& callable() const { return *std::get<std::shared_ptr<const Callable>>(v_); }
  const void* identity() const;  // equal for values that share one object; null for plain values
  std::string_view why_undefined() const;

  bool truthy() const;
  std::string_view type_name() const;  // Python's: "str", "NoneType", …

 private:
  std::variant<Undefined, None, bool, int64_t, double, BigInt, std::shared_ptr<const Text>,
               std::shared_ptr<List>, std::shared_ptr<const Dict>, Namespace*, LoopState*,
               std::shared_ptr<const Callable>>
      v_;
};

inline constexpr int kMaxValueDepth = 200;  // nesting of lists and dicts
inline constexpr size_t kIndexedDict = 16;  // dicts with more members have by_name

// Containers; errors when they nest too deeply. A dict takes the last value of a repeated key at
// the place of the first, and refuses keys that Python cannot hash.
Result<Value> make_list(std::vector<Value> items, Budget& budget,
                        List::Kind kind = List::Kind::kList);
Result<Value> make_dict(std::vector<std::pair<Value, Value>> items, Budget& budget);

// The value of a key, or null.
const Value* find(const Dict& dict, const Value& key, Budget& budget);
const Value* find(const Dict& dict, std::string_view key);
bool hashable(const Value& v);

bool equal(const Value& a, const Value& b, Budget& budget);  // ==
// <: -1, 0 or 1, or the reason why Python cannot order the two.
Result<int> compare(const Value& a, const Value& b, Budget& budget);

Text to_text(const Value& v, Budget& budget);  // str(v)
Text repr(const Value& v, Budget& budget);     // repr(v)
std::string float_repr(double d);

// A JSON value as json.loads gives it. Strings and keys have the origin given.
Result<Value> from_json(const json::Value& v, Origin origin, Budget& budget);

// json.dumps(v, …) as the tojson filter of transformers calls it.
struct JsonFormat {
  bool ensure_ascii = false, sort_keys = false, indented = false;
  Text indent;  // of one level, when indented
  Text item_separator = Text(", ", Origin::kTemplate);
  Text key_separator = Text(": ", Origin::kTemplate);
};
Result<Text> to_json(const Value& v, const JsonFormat& format, Budget& budget);

}  // namespace deepmint::recipe::jinja
