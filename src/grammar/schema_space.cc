#include "grammar/schema_space.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_set>

namespace deepmint::grammar {

namespace {

bool mentions_unevaluated(const json::Value& v, int depth) {
  if (depth > 128) return true;
  if (v.is_array())
    return std::any_of(v.items().begin(), v.items().end(),
                       [&](const json::Value& i) { return mentions_unevaluated(i, depth + 1); });
  if (!v.is_object()) return false;
  return std::any_of(v.members().begin(), v.members().end(), [&](const json::Member& m) {
    return m.key.starts_with("unevaluated") || mentions_unevaluated(m.value, depth + 1);
  });
}

// Above this many named members a table replaces the walk over them.
constexpr size_t kFewMembers = 12;

}  // namespace

SchemaSpace::SchemaSpace(SchemaDocument& document, RegexSet& regexes,
                         const JsonSchemaOptions& options)
    : document_(document), regexes_(regexes), numbers_(regexes), options_(options) {
  any_string_ = regexes_.star(regexes_.any_code_point());
  tracks_evaluated_ = mentions_unevaluated(document.value(document.root()), 0);
  intern({.kind = Kind::kTop});
  intern({.kind = Kind::kBottom});
}

ExprId SchemaSpace::intern(Expr e) {
  std::string key(1, static_cast<char>(e.kind));
  const auto put = [&](const void* bytes, size_t n) {
    key.append(static_cast<const char*>(bytes), n);
  };
  if (e.kind == Kind::kNode) put(&e.node, sizeof e.node);
  if (e.kind == Kind::kConstant) {  // told apart by where it stands
    const auto place = reinterpret_cast<uintptr_t>(e.value);
    put(&place, sizeof place);
  }
  std::vector<ExprId> sorted = e.parts;
  // One entry for one set of parts; the first order met stays, which is the order of the text.
  if (e.kind != Kind::kOne) std::sort(sorted.begin(), sorted.end());
  put(sorted.data(), sorted.size() * sizeof(ExprId));
  const auto [at, fresh] =
      index_.try_emplace(std::move(key), ExprId{static_cast<uint32_t>(exprs_.size())});
  if (fresh) {
    e.origin = e.kind == Kind::kNode ? e.node : current_;
    exprs_.push_back(std::move(e));
    states_.push_back(State::kNew);
    shapes_.emplace_back();
  }
  return at->second;
}

ExprId SchemaSpace::node(NodeId n) {
  const json::Value& v = document_.value(n);
  if (v.is_bool()) return v.as_bool() ? kAnything : kNothing;
  if (v.is_object() && v.members().empty()) return kAnything;
  return intern({.kind = Kind::kNode, .node = n});
}

ExprId SchemaSpace::constant(const json::Value& value) {
  return intern({.kind = Kind::kConstant, .value = &value});
}

ExprId SchemaSpace::complement(ExprId e) {
  if (e == kAnything) return kNothing;
  if (e == kNothing) return kAnything;
  if (expr(e).kind == Kind::kNot) return expr(e).parts[0];
  return intern({.kind = Kind::kNot, .parts = {e}});
}

ExprId SchemaSpace::all_of(const std::vector<ExprId>& parts) {
  std::vector<ExprId> flat;
  const auto take = [&](ExprId e) {
    if (e != kAnything && std::find(flat.begin(), flat.end(), e) == flat.end()) flat.push_back(e);
  };
  for (const ExprId e : parts) {
    if (e == kNothing) return kNothing;
    if (expr(e).kind == Kind::kAll)
      for (const ExprId part : expr(e).parts) take(part);
    else
      take(e);
  }
  for (const ExprId e : flat)
    if (expr(e).kind == Kind::kNot &&
        std::find(flat.begin(), flat.end(), expr(e).parts[0]) != flat.end())
      return kNothing;
  if (flat.empty()) return kAnything;
  if (flat.size() == 1) return flat[0];
  return intern({.kind = Kind::kAll, .parts = std::move(flat)});
}

ExprId SchemaSpace::any_of(const std::vector<ExprId>& parts) {
  std::vector<ExprId> flat;
  for (const ExprId e : parts) {
    // With unevaluated* every branch that holds counts, so that nothing may be merged.
    if (e == kAnything && !tracks_evaluated_) return kAnything;
    if (e != kNothing && std::find(flat.begin(), flat.end(), e) == flat.end()) flat.push_back(e);
  }
  if (flat.empty()) return kNothing;
  if (flat.size() == 1) return flat[0];
  return intern({.kind = Kind::kAny, .parts = std::move(flat)});
}

ExprId SchemaSpace::one_of(std::vector<ExprId> parts) {
  std::erase(parts, kNothing);
  if (parts.empty()) return kNothing;
  if (parts.size() == 1) return parts[0];
  return intern({.kind = Kind::kOne, .parts = std::move(parts)});
}

std::string SchemaSpace::pointer(ExprId e) const { return document_.pointer(expr(e).origin); }

tl::unexpected<Error> SchemaSpace::failure(ErrorCode code, std::string message) const {
  return fail(code, std::move(message), document_.pointer(current_));
}

Status SchemaSpace::spend(size_t steps) {
  work_ += steps;
  if (work_ > JsonSchemaLimits::kWork || exprs_.size() > JsonSchemaLimits::kExpressions)
    return failure(ErrorCode::kTooLarge,
                   fmt::format("expected combinations of at most {} steps and {} expressions: "
                               "allOf, anyOf, oneOf, not and references multiply here",
                               JsonSchemaLimits::kWork, JsonSchemaLimits::kExpressions));
  if (regexes_.exhausted() || regexes_.work() > JsonSchemaLimits::kRegexWork)
    return failure(ErrorCode::kTooLarge,
                   "expected strings and numbers that are simpler: patterns, lengths, formats and "
                   "bounds multiply here");
  return {};
}

class SchemaSpace::AtNode {
 public:
  AtNode(SchemaSpace& space, NodeId n) : space_(space), before_(space.current_) {
    space.current_ = n;
    ++space.depth_;
  }
  ~AtNode() {
    space_.current_ = before_;
    --space_.depth_;
  }
  AtNode(const AtNode&) = delete;
  AtNode& operator=(const AtNode&) = delete;

 private:
  SchemaSpace& space_;
  NodeId before_;
};

Result<const Shape*> SchemaSpace::shape(ExprId e) {
  const size_t at = static_cast<size_t>(e);
  if (states_[at] == State::kDone) return shapes_[at].get();
  const AtNode here(*this, exprs_[at].origin);
  if (states_[at] == State::kRunning)
    return failure(ErrorCode::kUnsupported,
                   "expected a reference that leads into a value, found one that leads back to "
                   "itself");
  if (depth_ > JsonSchemaLimits::kDepth)
    return failure(ErrorCode::kTooLarge, fmt::format("expected at most {} subschemas and "
                                                     "references inside each other",
                                                     JsonSchemaLimits::kDepth));
  DEEPMINT_CHECK_OK(spend(1));
  states_[at] = State::kRunning;
  Result<Shape> out = compute(e);
  states_[at] = State::kNew;
  if (!out) return tl::unexpected(std::move(out).error());
  DEEPMINT_CHECK_OK(spend(1));
  states_[at] = State::kDone;
  shapes_[at] = std::make_unique<Shape>(std::move(*out));
  return shapes_[at].get();
}

Result<Shape> SchemaSpace::compute(ExprId e) {
  const Expr copy = expr(e);
  switch (copy.kind) {
    case Kind::kTop:
      return everything();
    case Kind::kBottom:
      return nothing();
    case Kind::kNode:
      return of_node(copy.node);
    case Kind::kConstant:
      return of_constant(*copy.value);
    case Kind::kNot: {
      DEEPMINT_TRY(inner, shape(copy.parts[0]));
      return complement(*inner);
    }
    case Kind::kAll: {
      DEEPMINT_TRY(first, shape(copy.parts[0]));
      Shape out = *first;
      for (size_t i = 1; i < copy.parts.size(); ++i) {
        DEEPMINT_TRY(next, shape(copy.parts[i]));
        DEEPMINT_TRY(meet, intersect(out, *next));
        out = std::move(meet);
      }
      return out;
    }
    case Kind::kAny: {
      std::vector<const Shape*> shapes;
      for (const ExprId part : copy.parts) {
        DEEPMINT_TRY(s, shape(part));
        shapes.push_back(s);
      }
      if (!tracks_evaluated_) return unite(shapes);
      // A value may satisfy several branches, and then all of them have looked at its parts.
      constexpr size_t kMostBranches = 5;
      if (shapes.size() > kMostBranches)
        return failure(ErrorCode::kUnsupported,
                       fmt::format("expected anyOf of at most {} branches beside unevaluated*, "
                                   "found {}",
                                   kMostBranches, shapes.size()));
      std::deque<Shape> made;
      std::vector<const Shape*> all;
      for (size_t mask = 1; mask < (size_t{1} << shapes.size()); ++mask) {
        std::optional<Shape> out;
        for (size_t i = 0; i < shapes.size(); ++i) {
          if (!((mask >> i) & 1)) continue;
          if (!out) {
            out = *shapes[i];
          } else {
            DEEPMINT_TRY(meet, intersect(*out, *shapes[i]));
            out = std::move(meet);
          }
        }
        made.push_back(std::move(*out));
        all.push_back(&made.back());
      }
      return unite(all);
    }
    case Kind::kOne:
      return of_one(copy.parts);
  }
  return nothing();
}

Shape SchemaSpace::everything() {
  Shape out;
  out.null = true;
  out.booleans = 3;
  out.numbers = numbers_.all();
  out.strings = any_string_;
  out.arrays.emplace_back();
  out.objects.push_back(any_object());
  return out;
}

Shape SchemaSpace::nothing() {
  Shape out;
  out.numbers = numbers_.none();
  out.strings = regexes_.none();
  return out;
}

ObjectShape SchemaSpace::any_object() {
  ObjectShape out;
  out.rest.push_back({any_string_, kAnything});
  out.evaluated = regexes_.none();
  return out;
}

bool SchemaSpace::is_any(const ArrayShape& a) const { return a == ArrayShape(); }
bool SchemaSpace::is_any(const ObjectShape& o) const {
  return o.named.empty() && o.min == 0 && o.max == kNoMaximum && o.some.empty() &&
         o.rest.size() == 1 && o.rest[0] == KeyClass{any_string_, kAnything} &&
         o.evaluated == regexes_.none();
}

ExprId SchemaSpace::member(const ObjectShape& object, std::string_view key) {
  for (const NamedMember& m : object.named)
    if (m.key == key) return m.value;
  for (const KeyClass& c : object.rest)
    if (c.keys == any_string_ || regexes_.matches(c.keys, key)) return c.value;
  return kNothing;
}

RegexId SchemaSpace::unnamed(const ObjectShape& object, RegexId keys) {
  std::vector<RegexId> names;
  for (const NamedMember& m : object.named)
    if (keys == any_string_ || regexes_.matches(keys, m.key))
      names.push_back(regexes_.literal(m.key));
  if (names.empty()) return keys;
  return regexes_.intersect(keys, regexes_.complement(regexes_.alternate(names)));
}

// --- and -----------------------------------------------------------------------------------------

std::optional<ArrayShape> SchemaSpace::intersect(const ArrayShape& a, const ArrayShape& b) {
  ArrayShape out;
  const size_t n = std::max(a.prefix.size(), b.prefix.size());
  for (size_t i = 0; i < n; ++i)
    out.prefix.push_back(both(i < a.prefix.size() ? a.prefix[i] : a.rest,
                              i < b.prefix.size() ? b.prefix[i] : b.rest));
  out.rest = both(a.rest, b.rest);
  out.min = std::max(a.min, b.min);
  out.max = std::min(a.max, b.max);
  out.unique = a.unique || b.unique;
  out.contains = a.contains;
  for (const Contains& c : b.contains)
    if (std::find(out.contains.begin(), out.contains.end(), c) == out.contains.end())
      out.contains.push_back(c);
  out.evaluated = std::max(a.evaluated, b.evaluated);
  return surely_empty(out, 0) ? std::nullopt : std::optional(std::move(out));
}

std::optional<ObjectShape> SchemaSpace::intersect(const ObjectShape& a, const ObjectShape& b) {
  ObjectShape out;
  std::unordered_map<std::string_view, const NamedMember*> in_b;
  if (b.named.size() > kFewMembers)
    for (const NamedMember& m : b.named) in_b.emplace(m.key, &m);
  const auto find_b = [&](std::string_view key) -> const NamedMember* {
    if (in_b.empty()) {
      for (const NamedMember& m : b.named)
        if (m.key == key) return &m;
      return nullptr;
    }
    const auto it = in_b.find(key);
    return it == in_b.end() ? nullptr : it->second;
  };
  std::unordered_set<std::string_view> in_a;
  const auto free_member = [&](const ObjectShape& o, std::string_view key) {
    for (const KeyClass& c : o.rest)
      if (c.keys == any_string_ || regexes_.matches(c.keys, key)) return c.value;
    return kNothing;
  };
  for (const NamedMember& m : a.named) in_a.insert(m.key);
  // Declared members come first, in the order of a and then of b; other mentions follow.
  for (const bool declared : {true, false}) {
    for (const NamedMember& m : a.named) {
      const NamedMember* other = find_b(m.key);
      const bool by_b = !m.declared && other != nullptr && other->declared;
      if (m.declared != declared || by_b) continue;
      out.named.push_back({m.key, both(m.value, other ? other->value : free_member(b, m.key)),
                           m.required || (other && other->required), declared});
    }
    for (const NamedMember& m : b.named) {
      if (m.declared != declared) continue;
      if (!in_a.contains(m.key)) {
        out.named.push_back({m.key, both(free_member(a, m.key), m.value), m.required, declared});
      } else if (declared) {
        const auto first = std::find_if(a.named.begin(), a.named.end(),
                                        [&](const NamedMember& x) { return x.key == m.key; });
        if (!first->declared)
          out.named.push_back(
              {m.key, both(first->value, m.value), m.required || first->required, true});
      }
    }
  }
  for (const KeyClass& x : a.rest) {
    for (const KeyClass& y : b.rest) {
      const ExprId value = both(x.value, y.value);
      if (value == kNothing) continue;
      const RegexId keys = x.keys == any_string_   ? y.keys
                           : y.keys == any_string_ ? x.keys
                                                   : regexes_.intersect(x.keys, y.keys);
      if (!empty(keys)) out.rest.push_back({keys, value});
    }
  }
  out.min = std::max(a.min, b.min);
  out.max = std::min(a.max, b.max);
  out.some = a.some;
  for (const RegexId r : b.some)
    if (std::find(out.some.begin(), out.some.end(), r) == out.some.end()) out.some.push_back(r);
  out.evaluated = regexes_.alternate(a.evaluated, b.evaluated);
  return surely_empty(out, 0) ? std::nullopt : std::optional(std::move(out));
}

template <class T>
void SchemaSpace::simplify(std::vector<T>& alternatives) {
  for (const T& one : alternatives) {
    if (is_any(one) && !tracks_evaluated_) {
      alternatives = {one};
      return;
    }
  }
  if (alternatives.size() > 64) return;  // comparing all pairs would cost more than it saves
  std::vector<T> out;
  for (T& one : alternatives)
    if (std::find(out.begin(), out.end(), one) == out.end()) out.push_back(std::move(one));
  alternatives = std::move(out);
}

template <class T, class Parts>
Result<std::vector<T>> SchemaSpace::meets(const std::vector<T>& a, const std::vector<T>& b,
                                          Parts parts, std::string_view what) {
  if (a.size() == 1 && is_any(a[0])) return b;
  if (b.size() == 1 && is_any(b[0])) return a;
  std::vector<T> out;
  for (const T& x : a) {
    for (const T& y : b) {
      DEEPMINT_CHECK_OK(spend(1 + parts(x).size() + parts(y).size()));
      if (std::optional<T> meet = intersect(x, y)) out.push_back(std::move(*meet));
    }
  }
  simplify(out);
  if (out.size() > std::max({JsonSchemaLimits::kAlternatives, a.size(), b.size()}))
    return failure(ErrorCode::kTooLarge,
                   fmt::format("expected at most {} alternatives for {}, found {}",
                               JsonSchemaLimits::kAlternatives, what, out.size()));
  return out;
}

Result<std::vector<ArrayShape>> SchemaSpace::intersect(const std::vector<ArrayShape>& a,
                                                       const std::vector<ArrayShape>& b) {
  return meets(a, b, [](const ArrayShape& s) -> const auto& { return s.prefix; }, "an array");
}

Result<std::vector<ObjectShape>> SchemaSpace::intersect(const std::vector<ObjectShape>& a,
                                                        const std::vector<ObjectShape>& b) {
  return meets(a, b, [](const ObjectShape& s) -> const auto& { return s.named; }, "an object");
}

Result<Shape> SchemaSpace::intersect(const Shape& a, const Shape& b) {
  Shape out;
  out.null = a.null && b.null;
  out.booleans = a.booleans & b.booleans;
  if (a.numbers.plain == numbers_.all().plain && a.numbers.inside == kAllExponents)
    out.numbers = b.numbers;
  else if (b.numbers.plain == numbers_.all().plain && b.numbers.inside == kAllExponents)
    out.numbers = a.numbers;
  else
    out.numbers = numbers_.intersect(a.numbers, b.numbers);
  if (numbers_.empty(out.numbers)) out.numbers.plain = regexes_.none();
  out.strings = a.strings == any_string_   ? b.strings
                : b.strings == any_string_ ? a.strings
                                           : regexes_.intersect(a.strings, b.strings);
  if (empty(out.strings)) out.strings = regexes_.none();
  DEEPMINT_TRY(arrays, intersect(a.arrays, b.arrays));
  out.arrays = std::move(arrays);
  DEEPMINT_TRY(objects, intersect(a.objects, b.objects));
  out.objects = std::move(objects);
  return out;
}

// --- or ------------------------------------------------------------------------------------------

Result<Shape> SchemaSpace::unite(const std::vector<const Shape*>& shapes) {
  Shape out = nothing();
  std::vector<RegexId> strings, plain;
  for (const Shape* s : shapes) {
    DEEPMINT_CHECK_OK(spend(1 + s->arrays.size() + s->objects.size()));
    out.null |= s->null;
    out.booleans |= s->booleans;
    plain.push_back(s->numbers.plain);
    out.numbers.inside |= s->numbers.inside;
    out.numbers.touched |= s->numbers.touched;
    strings.push_back(s->strings);
    out.arrays.insert(out.arrays.end(), s->arrays.begin(), s->arrays.end());
    out.objects.insert(out.objects.end(), s->objects.begin(), s->objects.end());
  }
  const RegexId all = numbers_.all().plain;
  out.numbers.plain =
      std::find(plain.begin(), plain.end(), all) != plain.end() ? all : regexes_.alternate(plain);
  out.strings = std::find(strings.begin(), strings.end(), any_string_) != strings.end()
                    ? any_string_
                    : regexes_.alternate(strings);
  simplify(out.arrays);
  simplify(out.objects);
  return out;
}

// --- not -----------------------------------------------------------------------------------------

Result<std::vector<ArrayShape>> SchemaSpace::complement(const ArrayShape& a) {
  std::vector<ArrayShape> out;
  if (a.unique) return failure(ErrorCode::kUnsupported, "uniqueItems cannot be negated exactly");
  if (a.min > 0) out.push_back({.max = a.min - 1});
  if (a.max != kNoMaximum) out.push_back({.min = a.max + 1});
  for (size_t i = 0; i < a.prefix.size(); ++i) {
    if (a.prefix[i] == kAnything) continue;
    ArrayShape one;
    one.prefix.assign(i, kAnything);
    one.prefix.push_back(complement(a.prefix[i]));
    one.min = i + 1;
    out.push_back(std::move(one));
  }
  if (a.rest != kAnything) {
    ArrayShape one;
    if (a.rest == kNothing)
      one.min = a.prefix.size() + 1;
    else
      one.contains.push_back({.item = complement(a.rest), .from = a.prefix.size()});
    out.push_back(std::move(one));
  }
  for (const Contains& c : a.contains) {
    if (c.min > 0) {
      ArrayShape one;
      if (c.min == 1 && c.from == 0)
        one.rest = complement(c.item);
      else
        one.contains.push_back({c.item, c.from, 0, c.min - 1});
      out.push_back(std::move(one));
    }
    if (c.max != kNoMaximum) {
      ArrayShape one;
      one.contains.push_back({c.item, c.from, c.max + 1, kNoMaximum});
      out.push_back(std::move(one));
    }
  }
  return out;
}

Result<std::vector<ObjectShape>> SchemaSpace::complement(const ObjectShape& a) {
  std::vector<ObjectShape> out;
  const auto with = [&](NamedMember m) {
    ObjectShape one = any_object();
    one.named.push_back(std::move(m));
    out.push_back(std::move(one));
  };
  DEEPMINT_CHECK_OK(spend(a.named.size()));
  for (const NamedMember& m : a.named) {
    if (m.required) with({m.key, kNothing, false});
    if (m.value != kAnything) with({m.key, complement(m.value), true});
  }
  std::vector<RegexId> covered;
  for (const KeyClass& c : a.rest) {
    covered.push_back(c.keys);
    if (c.value != kAnything && !empty(unnamed(a, c.keys)))
      return failure(ErrorCode::kUnsupported,
                     "additionalProperties, patternProperties and propertyNames with a schema "
                     "cannot be negated exactly");
  }
  if (std::find(covered.begin(), covered.end(), any_string_) == covered.end()) {
    const RegexId others = unnamed(
        a, regexes_.intersect(any_string_, regexes_.complement(regexes_.alternate(covered))));
    if (!empty(others)) {
      ObjectShape one = any_object();
      one.some.push_back(others);
      out.push_back(std::move(one));
    }
  }
  if (a.min > 0) {
    ObjectShape one = any_object();
    one.max = a.min - 1;
    out.push_back(std::move(one));
  }
  if (a.max != kNoMaximum) {
    ObjectShape one = any_object();
    one.min = a.max + 1;
    out.push_back(std::move(one));
  }
  for (const RegexId keys : a.some) {
    ObjectShape one = any_object();
    one.rest = {{regexes_.intersect(any_string_, regexes_.complement(keys)), kAnything}};
    out.push_back(std::move(one));
  }
  return out;
}

// What is in one of `in` and in none of `all`.
template <class T>
Result<std::vector<T>> SchemaSpace::outside(std::vector<T> in, const std::vector<T>& all) {
  for (const T& one : all) {
    std::vector<T> left, meeting;
    for (T& x : in) {
      DEEPMINT_CHECK_OK(spend(1));
      const std::optional<T> meet = intersect(x, one);
      (meet && !surely_empty(*meet, 3) ? meeting : left).push_back(std::move(x));
    }
    if (!meeting.empty() && !is_any(one)) {
      DEEPMINT_TRY(others, complement(one));
      DEEPMINT_TRY(kept, intersect(meeting, others));
      left.insert(left.end(), std::make_move_iterator(kept.begin()),
                  std::make_move_iterator(kept.end()));
    }
    in = std::move(left);
  }
  return in;
}

Result<Shape> SchemaSpace::complement(const Shape& a) {
  Shape out;
  out.null = !a.null;
  out.booleans = a.booleans ^ 3;
  out.numbers = numbers_.complement(a.numbers);
  if (numbers_.empty(out.numbers)) out.numbers.plain = regexes_.none();
  out.strings = a.strings == regexes_.none()
                    ? any_string_
                    : regexes_.intersect(any_string_, regexes_.complement(a.strings));
  if (a.strings == any_string_ || empty(out.strings)) out.strings = regexes_.none();
  // What was looked at below a negation does not count.
  DEEPMINT_TRY(arrays, outside(std::vector<ArrayShape>{ArrayShape()}, a.arrays));
  DEEPMINT_TRY(objects, outside(std::vector<ObjectShape>{any_object()}, a.objects));
  for (ArrayShape& one : arrays) one.evaluated = 0;
  for (ObjectShape& one : objects) one.evaluated = regexes_.none();
  out.arrays = std::move(arrays);
  out.objects = std::move(objects);
  return out;
}

// --- exactly one ---------------------------------------------------------------------------------

Result<Shape> SchemaSpace::of_one(const std::vector<ExprId>& parts) {
  std::vector<const Shape*> shapes;
  for (const ExprId part : parts) {
    DEEPMINT_TRY(s, shape(part));
    shapes.push_back(s);
  }
  Shape out = nothing();
  size_t nulls = 0;
  uint8_t once = 0, ever = 0;
  for (const Shape* s : shapes) {
    nulls += s->null ? 1 : 0;
    once = static_cast<uint8_t>((once & ~s->booleans) | (s->booleans & ~ever));
    ever |= s->booleans;
  }
  out.null = nulls == 1;
  out.booleans = once;

  // Numbers: those met once so far, and those met at all. Strings: those met, and met again.
  NumberSet number_ever = numbers_.none();
  RegexId string_ever = regexes_.none(), string_again = regexes_.none();
  for (const Shape* s : shapes) {
    DEEPMINT_CHECK_OK(spend(1));
    if (s->numbers.touched != 0 || s->numbers.plain != regexes_.none()) {
      if (numbers_.empty(numbers_.intersect(number_ever, s->numbers)) &&
          (number_ever.touched & s->numbers.touched) == 0) {
        out.numbers = numbers_.unite(out.numbers, s->numbers);
      } else {
        out.numbers =
            numbers_.unite(numbers_.intersect(out.numbers, numbers_.complement(s->numbers)),
                           numbers_.intersect(s->numbers, numbers_.complement(number_ever)));
      }
      number_ever = numbers_.unite(number_ever, s->numbers);
    }
    if (s->strings != regexes_.none()) {
      const RegexId again = regexes_.intersect(string_ever, s->strings);
      if (!empty(again)) string_again = regexes_.alternate(string_again, again);
      string_ever = regexes_.alternate(string_ever, s->strings);
    }
  }
  if (numbers_.empty(out.numbers)) out.numbers.plain = regexes_.none();
  out.strings = string_again == regexes_.none()
                    ? string_ever
                    : regexes_.intersect(string_ever, regexes_.complement(string_again));
  if (empty(out.strings)) out.strings = regexes_.none();

  for (size_t i = 0; i < shapes.size(); ++i) {
    std::vector<ArrayShape> arrays = shapes[i]->arrays;
    std::vector<ObjectShape> objects = shapes[i]->objects;
    for (size_t j = 0; j < shapes.size(); ++j) {
      if (j == i) continue;
      DEEPMINT_TRY(arrays_left, outside(std::move(arrays), shapes[j]->arrays));
      arrays = std::move(arrays_left);
      DEEPMINT_TRY(objects_left, outside(std::move(objects), shapes[j]->objects));
      objects = std::move(objects_left);
    }
    out.arrays.insert(out.arrays.end(), arrays.begin(), arrays.end());
    out.objects.insert(out.objects.end(), objects.begin(), objects.end());
  }
  return out;
}

// --- emptiness and finite sets -------------------------------------------------------------------

bool SchemaSpace::surely_empty(const ArrayShape& a, int depth) {
  if (a.min > a.max) return true;
  for (size_t i = 0; i < a.min && i < a.prefix.size(); ++i)
    if (surely_empty(a.prefix[i], depth)) return true;
  return a.min > a.prefix.size() && surely_empty(a.rest, depth);
}

bool SchemaSpace::surely_empty(const ObjectShape& o, int depth) {
  if (o.min > o.max) return true;
  uint64_t required = 0, possible = 0;
  for (const NamedMember& m : o.named) {
    if (m.value != kNothing) ++possible;
    if (!m.required) continue;
    ++required;
    if (surely_empty(m.value, depth)) return true;
  }
  if (required > o.max || (o.rest.empty() && possible < o.min)) return true;
  if (o.rest.empty() && !o.some.empty())
    for (const RegexId keys : o.some)
      if (std::none_of(o.named.begin(), o.named.end(), [&](const NamedMember& m) {
            return m.value != kNothing && regexes_.matches(keys, m.key);
          }))
        return true;
  return false;
}

bool SchemaSpace::surely_empty(ExprId e, int depth) {
  if (e == kNothing) return true;
  if (depth <= 0 || states_[static_cast<size_t>(e)] == State::kRunning) return false;
  const auto known = not_shown_empty_.find(static_cast<uint32_t>(e));
  if (known != not_shown_empty_.end() && known->second >= depth) return false;
  not_shown_empty_[static_cast<uint32_t>(e)] = depth;
  const Result<const Shape*> found = shape(e);
  if (!found) return false;  // said again when the expression itself is needed
  const Shape& s = **found;
  const bool is_empty =
      !s.null && s.booleans == 0 && s.numbers.plain == regexes_.none() && s.numbers.inside == 0 &&
      s.strings == regexes_.none() &&
      std::all_of(s.arrays.begin(), s.arrays.end(),
                  [&](const ArrayShape& a) { return surely_empty(a, depth - 1); }) &&
      std::all_of(s.objects.begin(), s.objects.end(),
                  [&](const ObjectShape& o) { return surely_empty(o, depth - 1); });
  if (is_empty) not_shown_empty_.erase(static_cast<uint32_t>(e));
  return is_empty;
}

}  // namespace deepmint::grammar
