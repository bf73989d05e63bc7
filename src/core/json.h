// JSON in and out. Objects keep the order and the duplicates of their keys; numbers keep their
// spelling, because a 30-digit integer, 1e999 and -0 are all legal JSON that a double would change.
//
//   DEEPMINT_TRY(doc, json::parse(text));
//   if (const json::Value* name = doc.find("name"); name && name->is_string())
//   use(name->as_string());
//
//   json::Writer w;
//   w.begin_object().key("id").value(7).key("tags").begin_array().value("a").end_array().end_object();
//   send(w.str());
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "deepmint/result.h"

namespace deepmint::json {

enum class Kind { kNull, kBool, kNumber, kString, kArray, kObject };
std::string_view to_string(Kind kind);  // "null", "boolean", "number", "string", "array", "object"

class Value;
struct Member;
using Array = std::vector<Value>;
using Object = std::vector<Member>;

class Value {
 public:
  Value();  // null
  explicit Value(bool b);
  explicit Value(std::string s);
  explicit Value(Array a);
  explicit Value(Object o);
  static Value number(std::string spelling);  // trusted to be a JSON number
  static Value number(int64_t n);

  Kind kind() const { return static_cast<Kind>(v_.index()); }
  bool is_null() const { return kind() == Kind::kNull; }
  bool is_bool() const { return kind() == Kind::kBool; }
  bool is_number() const { return kind() == Kind::kNumber; }
  bool is_string() const { return kind() == Kind::kString; }
  bool is_array() const { return kind() == Kind::kArray; }
  bool is_object() const { return kind() == Kind::kObject; }

  // Each requires the matching kind.
  bool as_bool() const { return std::get<bool>(v_); }
  const std::string& as_string() const { return std::get<std::string>(v_); }
  const std::string& number_text() const { return std::get<Number>(v_).text; }
  const Array& items() const { return std::get<Array>(v_); }
  const Object& members() const { return std::get<Object>(v_); }
  Array& items() { return std::get<Array>(v_); }
  Object& members() { return std::get<Object>(v_); }

  // Exact value of a number, or nullopt: not a number, has a fraction (1.0 and 1e2 count as
  // integers), out of range.
  std::optional<int64_t> to_int64() const;
  std::optional<uint64_t> to_uint64() const;
  std::optional<double> to_double()
      const;  // nearest double; nullopt when not a number or when it overflows

  // Member by key; the last one when there are duplicates; nullptr when absent or not an object.
  const Value* find(std::string_view key) const;

  friend bool operator==(const Value&, const Value&);  // same kinds, same spelling, same order

 private:
  struct Number {
    std::string text;
    friend bool operator==(const Number&, const Number&) = default;
  };
  std::variant<std::monostate, bool, Number, std::string, Array, Object> v_;
};

struct Member {
  std::string key;
  Value value;
  friend bool operator==(const Member&, const Member&) = default;
};

// Here, because the alternatives of a Value must be complete types.
inline Value::Value() = default;
inline Value::Value(bool b) : v_(b) {}
inline Value::Value(std::string s) : v_(std::move(s)) {}

struct ParseLimits {
  size_t max_bytes = size_t{1} << 30;
  int max_depth = 128;             // nesting of arrays and objects
  size_t max_values = 50'000'000;  // values in the whole document
};

// One document with optional white space around it. Errors: kInvalidArgument with the byte offset
// in `where`
// ("byte 17"), kTooLarge when a limit is passed. Strings are valid UTF-8; a lone surrogate escape
// is an error.
Result<Value> parse(std::string_view text, const ParseLimits& limits = {});

// Compact text; numbers as spelled; only `"`, `\` and bytes below 0x20 are escaped.
std::string dump(const Value& value);
void append_escaped(std::string& out, std::string_view s);  // with the quotes; s is valid UTF-8

// Append-only writer of compact JSON. Puts commas and colons itself; the caller keeps the structure
// balanced.
class Writer {
 public:
  Writer() = default;
  explicit Writer(std::string buffer) : out_(std::move(buffer)) {
    out_.clear();
  }  // reuses capacity

  Writer& begin_object() { return open('{'); }
  Writer& end_object() { return close('}'); }
  Writer& begin_array() { return open('['); }
  Writer& end_array() { return close(']'); }
  Writer& key(std::string_view k);
  Writer& value(std::string_view s);
  Writer& value(const char* s) { return value(std::string_view(s)); }
  Writer& value(bool b);
  Writer& value(int v) { return value(static_cast<int64_t>(v)); }
  Writer& value(unsigned v) { return value(static_cast<uint64_t>(v)); }
  Writer& value(int64_t v);
  Writer& value(uint64_t v);
  Writer& value(float v);   // shortest round trip as float; NaN and infinities become null
  Writer& value(double v);  // shortest round trip; NaN and infinities become null
  Writer& value(const Value& v);
  Writer& null();
  Writer& raw(std::string_view json);  // a complete JSON value

  const std::string& str() const { return out_; }
  std::string take() {
    first_ = true;
    return std::move(out_);
  }
  void clear() {
    out_.clear();
    first_ = true;
  }

 private:
  Writer& open(char c);
  Writer& close(char c);
  void separate();
  std::string out_;
  bool first_ = true;  // no comma is due before the next value or key
};

}  // namespace deepmint::json
