// Sets of JSON values in a form on which and, or and not are exact.
//
// An expression names a set: a subschema, a constant, or a combination of expressions. Its shape
// says, for each JSON type, which values of that type are in it: a bit for null, two for booleans,
// a regular language for strings and numbers, and a list of alternatives for arrays and objects.
// The parts of arrays and objects are expressions again, so that a recursive schema is a finite
// graph. Shapes are computed when first asked for and kept.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "grammar/number_range.h"
#include "grammar/regex_ast.h"

namespace deepmint::grammar {

enum class ExprId : uint32_t {};
inline constexpr ExprId kAnything{0}, kNothing{1};

inline constexpr uint64_t kNoMaximum = UINT64_MAX;

// Items at index >= from that are in `item` number at least min and at most max.
struct Contains {
  ExprId item = kAnything;
  uint64_t from = 0;
  uint64_t min = 1;
  uint64_t max = kNoMaximum;
  bool evaluates = false;  // for unevaluatedItems: items that match were looked at
  friend bool operator==(const Contains&, const Contains&) = default;
};

struct ArrayShape {
  std::vector<ExprId> prefix = {};  // items by index
  ExprId rest = kAnything;          // all later items
  uint64_t min = 0, max = kNoMaximum;
  bool unique = false;
  std::vector<Contains> contains = {};
  // For unevaluatedItems: the first `evaluated` items were looked at by a keyword.
  uint64_t evaluated = 0;
  friend bool operator==(const ArrayShape&, const ArrayShape&) = default;
};

struct NamedMember {
  std::string key;
  ExprId value = kAnything;  // kNothing: must be absent
  bool required = false;
  bool declared = false;  // named by `properties`: its place goes before that of other mentions
  friend bool operator==(const NamedMember&, const NamedMember&) = default;
};

struct KeyClass {  // keys of a language, and what their values must be
  RegexId keys{};
  ExprId value = kAnything;
  friend bool operator==(const KeyClass&, const KeyClass&) = default;
};

struct ObjectShape {
  std::vector<NamedMember> named;  // in the order of the text
  // Disjoint languages that cover every key; named keys are looked up in `named` first.
  std::vector<KeyClass> rest;
  uint64_t min = 0, max = kNoMaximum;
  std::vector<RegexId> some;  // for each, at least one key is in it
  RegexId evaluated{};        // for unevaluatedProperties: keys that a keyword looked at
  friend bool operator==(const ObjectShape&, const ObjectShape&) = default;
};

struct Shape {
  bool null = false;
  uint8_t booleans = 0;  // 1: false, 2: true
  NumberSet numbers;
  RegexId strings{};  // of the decoded content, UTF-8
  std::vector<ArrayShape> arrays;
  std::vector<ObjectShape> objects;
};

}  // namespace deepmint::grammar
