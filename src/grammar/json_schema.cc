// Lowering: each expression that a text can reach becomes one nonterminal, made from its shape.
#include "grammar/json_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "grammar/schema_space.h"

namespace deepmint::grammar {

namespace {

// The lexemes of JSON. White space stands in front of every lexeme but values and opening
// brackets, so that each run belongs to one lexeme and a string is the same lexeme everywhere.
class JsonLexemes {
 public:
  JsonLexemes(RegexSet& set, uint32_t max_whitespace) : set_(set) {
    ByteSet blank;
    for (const char c : {' ', '\t', '\n', '\r'}) blank.add(static_cast<uint8_t>(c));
    space_ = max_whitespace == 0 ? set.epsilon() : set.repeat(set.bytes(blank), 0, max_whitespace);
  }

  RegexId space() const { return space_; }
  RegexId string(RegexId content) const {
    return set_.concat(
        std::array{set_.literal("\""), set_.json_string(content), set_.literal("\"")});
  }
  RegexId spaced(std::string_view mark) const { return set_.concat(space_, set_.literal(mark)); }
  RegexId key(RegexId content, bool first) const {
    const RegexId name =
        set_.concat(std::array{space_, string(content), space_, set_.literal(":"), space_});
    return first ? name : set_.concat(spaced(","), name);
  }
  RegexId open_items() const { return set_.concat(set_.literal("["), space_); }
  RegexId no_items() const {
    return set_.concat(std::array{set_.literal("["), space_, set_.literal("]")});
  }
  RegexId separator() const { return set_.concat(spaced(","), space_); }

 private:
  RegexSet& set_;
  RegexId space_{};
};

class Lowering {
 public:
  Lowering(GrammarBuilder& builder, SchemaSpace& space, const JsonSchemaOptions& options)
      : b_(builder), s_(space), lex_(builder.regexes(), options.max_whitespace) {}

  Result<Symbol> run(ExprId root) {
    const Symbol out = symbol(root);
    while (!waiting_.empty()) {
      const ExprId e = waiting_.back();
      waiting_.pop_back();
      DEEPMINT_CHECK_OK(lower(e));
      if (b_.exhausted())
        return fail(ErrorCode::kTooLarge, "expected a grammar within the limits of its size",
                    s_.pointer(e));
    }
    // A symbol without productions stands for the empty set; the builder wants to see one, and
    // removes it and whatever needs it.
    for (const Symbol s : made_) {
      if (has_production_.size() <= s.index) has_production_.resize(s.index + 1);
      if (!has_production_[s.index]) b_.add(s, {s});
    }
    return out;
  }

 private:
  Symbol fresh_symbol(std::string_view name = {}) {
    const Symbol s = b_.nonterminal(name);
    made_.push_back(s);
    return s;
  }
  void put(Symbol lhs, std::initializer_list<Symbol> rhs) {
    if (has_production_.size() <= lhs.index) has_production_.resize(lhs.index + 1);
    has_production_[lhs.index] = true;
    b_.add(lhs, rhs);
  }
  Symbol symbol(ExprId e) {
    const auto [at, fresh] = symbols_.try_emplace(static_cast<uint32_t>(e), Symbol{});
    if (fresh) {
      at->second = fresh_symbol(s_.pointer(e));
      waiting_.push_back(e);
    }
    return at->second;
  }
  Symbol terminal(RegexId r) { return b_.terminal(r); }
  tl::unexpected<Error> refuse(ErrorCode code, std::string message) const {
    return fail(code, std::move(message), place_);
  }

  Status lower(ExprId e);
  Status lower(Symbol out, const ArrayShape& a);
  Status plain_items(Symbol out, const ArrayShape& a);
  Status counted_items(Symbol out, const ArrayShape& a);
  Status unique_items(Symbol out, const ArrayShape& a);
  Status lower(Symbol out, const ObjectShape& o);

  GrammarBuilder& b_;
  SchemaSpace& s_;
  JsonLexemes lex_;
  std::unordered_map<uint32_t, Symbol> symbols_;
  std::vector<ExprId> waiting_;
  std::vector<Symbol> made_;
  std::vector<bool> has_production_;  // by index of the symbol
  std::string place_;
};

Status Lowering::lower(ExprId e) {
  const Symbol out = symbol(e);
  place_ = s_.pointer(e);
  DEEPMINT_TRY(shape, s_.shape(e));
  RegexSet& set = b_.regexes();
  if (shape->null) put(out, {b_.literal("null")});
  if (shape->booleans & 1) put(out, {b_.literal("false")});
  if (shape->booleans & 2) put(out, {b_.literal("true")});
  if (const RegexId numbers = s_.numbers().spellings(shape->numbers); numbers != set.none())
    put(out, {terminal(numbers)});
  if (shape->strings != set.none()) put(out, {terminal(lex_.string(shape->strings))});
  for (const ArrayShape& a : shape->arrays) DEEPMINT_CHECK_OK(lower(out, a));
  for (const ObjectShape& o : shape->objects) DEEPMINT_CHECK_OK(lower(out, o));
  return {};
}

// --- arrays --------------------------------------------------------------------------------------

Status Lowering::lower(Symbol out, const ArrayShape& shape) {
  ArrayShape a = shape;
  if (a.rest == kNothing) a.max = std::min<uint64_t>(a.max, a.prefix.size());
  for (size_t i = 0; i < a.prefix.size(); ++i)
    if (a.prefix[i] == kNothing) a.max = std::min<uint64_t>(a.max, i);
  if (a.max <= a.prefix.size()) {
    a.prefix.resize(a.max);
    a.rest = kNothing;
  }
  if (a.min > a.max) return {};
  if (a.max <= 1) a.unique = false;
  std::erase_if(a.contains, [](const Contains& c) { return c.min == 0 && c.max == kNoMaximum; });
  if (a.unique) {
    if (!a.contains.empty())
      return refuse(ErrorCode::kUnsupported, "uniqueItems beside contains is not done exactly");
    return unique_items(out, a);
  }
  return a.contains.empty() ? plain_items(out, a) : counted_items(out, a);
}

Status Lowering::plain_items(Symbol out, const ArrayShape& a) {
  if (a.min == 0) put(out, {terminal(lex_.no_items())});
  if (a.max == 0) return {};
  const Symbol close = terminal(lex_.spaced("]")), comma = terminal(lex_.separator());
  const size_t n = a.prefix.size();
  // tail: what follows the last item of the prefix (or the first item when there is no prefix).
  const size_t done = std::max<size_t>(n, 1);
  Symbol tail = close;
  if (a.max > done) {
    const Symbol more = b_.sequence({comma, symbol(a.rest)});
    const uint64_t least = a.min > done ? a.min - done : 0;
    const uint32_t most = a.max == kNoMaximum ? kUnbounded : static_cast<uint32_t>(a.max - done);
    tail = b_.sequence({b_.repeat(more, static_cast<uint32_t>(least), most), close});
  }
  for (size_t i = done; i-- > 1;) {  // i items are written
    std::vector<Symbol> choices{b_.sequence({comma, symbol(a.prefix[i]), tail})};
    if (i >= a.min) choices.push_back(close);
    tail = b_.choice(choices);
  }
  put(out, {terminal(lex_.open_items()), symbol(n > 0 ? a.prefix[0] : a.rest), tail});
  return {};
}

// States are (items written, count per contains), each counted no further than it matters.
Status Lowering::counted_items(Symbol out, const ArrayShape& a) {
  const size_t n = a.contains.size();
  if (n > 4)
    return refuse(ErrorCode::kTooLarge,
                  fmt::format("expected at most 4 contains for one array, found {}", n));
  uint64_t length_cap = std::max<uint64_t>(a.prefix.size(), a.min);
  for (const Contains& c : a.contains) length_cap = std::max(length_cap, c.from);
  if (a.max != kNoMaximum) length_cap = std::max(length_cap, a.max);
  std::vector<uint64_t> caps;
  size_t total = 1;
  const auto too_many = [&] {
    return refuse(ErrorCode::kTooLarge,
                  fmt::format("expected contains, minItems and maxItems to need at most {} states",
                              JsonSchemaLimits::kStates));
  };
  if (length_cap >= JsonSchemaLimits::kStates) return too_many();
  total *= length_cap + 1;
  for (const Contains& c : a.contains) {
    const uint64_t cap = c.max == kNoMaximum ? c.min : c.max + 1;
    if (cap >= JsonSchemaLimits::kStates) return too_many();
    caps.push_back(cap);
    total *= cap + 1;
    if (total > JsonSchemaLimits::kStates) return too_many();
  }
  using Key = std::vector<uint64_t>;  // written, counts
  std::map<Key, Symbol> states;
  std::vector<Key> open;
  const auto state = [&](const Key& k) {
    const auto [at, fresh] = states.try_emplace(k, Symbol{});
    if (fresh) {
      at->second = fresh_symbol();
      open.push_back(k);
    }
    return at->second;
  };
  const auto may_end = [&](const Key& k) {
    if (k[0] < a.min) return false;
    for (size_t i = 0; i < n; ++i)
      if (k[i + 1] < a.contains[i].min || k[i + 1] > a.contains[i].max) return false;
    return true;
  };
  const Key start(n + 1, 0);
  if (may_end(start)) put(out, {terminal(lex_.no_items())});
  const Symbol close = terminal(lex_.spaced("]")), comma = terminal(lex_.separator());
  // Every next item: for each subset of the contains, an item that is counted for exactly those.
  // Without a maximum a matching item may also go uncounted, so that no negation is needed.
  const auto each_next = [&](const Key& k, auto&& use) {
    if (k[0] >= a.max) return;
    const ExprId item = k[0] < a.prefix.size() ? a.prefix[k[0]] : a.rest;
    for (size_t mask = 0; mask < (size_t{1} << n); ++mask) {
      std::vector<ExprId> parts{item};
      Key next = k;
      next[0] = std::min(k[0] + 1, length_cap);
      bool alive = true;
      for (size_t i = 0; i < n; ++i) {
        const Contains& c = a.contains[i];
        const bool counted = (mask >> i) & 1;
        if (k[0] < c.from) {
          alive = alive && !counted;
          continue;
        }
        if (counted) {
          parts.push_back(c.item);
          if (c.max == kNoMaximum && k[i + 1] >= c.min) alive = false;  // no need to count on
          next[i + 1] = std::min(k[i + 1] + 1, caps[i]);
          if (c.max != kNoMaximum && k[i + 1] + 1 > c.max) alive = false;
        } else if (c.max != kNoMaximum) {
          parts.push_back(s_.complement(c.item));
        }
      }
      if (!alive) continue;
      const ExprId e = s_.all_of(parts);
      if (e != kNothing) use(symbol(e), next);
    }
  };
  each_next(start, [&](Symbol item, const Key& next) {
    put(out, {terminal(lex_.open_items()), item, state(next)});
  });
  while (!open.empty()) {
    const Key k = open.back();
    open.pop_back();
    const Symbol here = states[k];
    if (may_end(k)) put(here, {close});
    each_next(k, [&](Symbol item, const Key& next) {
      const Symbol follow = state(next);
      put(here, {comma, item, follow});
    });
    if (b_.exhausted()) return too_many();
  }
  return {};
}

Status Lowering::unique_items(Symbol out, const ArrayShape& a) {
  // Items that are pairwise apart by their own schemas need no further care.
  if (a.rest == kNothing) {
    bool apart = a.prefix.size() <= 64;
    for (size_t i = 0; apart && i < a.prefix.size(); ++i)
      for (size_t j = i + 1; apart && j < a.prefix.size(); ++j)
        apart = s_.surely_empty(s_.both(a.prefix[i], a.prefix[j]), 3);
    if (apart) return plain_items(out, a);
  }
  // All values that an item can have, each with the places where it may stand.
  std::vector<ExprId> values;
  std::vector<std::vector<bool>> allowed;  // per place of the prefix, then the rest
  std::vector<ExprId> places = a.prefix;
  places.push_back(a.rest);
  Result<std::optional<std::vector<ExprId>>> all =
      s_.values(s_.any_of(places), JsonSchemaLimits::kUniqueValues);
  if (!all) return tl::unexpected(std::move(all).error());
  if (!*all)
    return refuse(ErrorCode::kUnsupported,
                  fmt::format("uniqueItems is done exactly for items of at most {} different "
                              "values, and for at most one item",
                              JsonSchemaLimits::kUniqueValues));
  values = std::move(**all);
  for (const ExprId place : places) {
    allowed.emplace_back();
    for (const ExprId v : values) {
      const ExprId here = s_.both(v, place);
      DEEPMINT_CHECK_OK(s_.shape(here).map([](const Shape*) {}));
      allowed.back().push_back(!s_.surely_empty(here, 4));
    }
  }
  if (a.min == 0) put(out, {terminal(lex_.no_items())});
  const Symbol close = terminal(lex_.spaced("]")), comma = terminal(lex_.separator());
  std::map<size_t, Symbol> states;  // set of the values written; their number is the place
  std::vector<size_t> open;
  const auto each_next = [&](size_t used, auto&& use) {
    const size_t written = static_cast<size_t>(__builtin_popcountll(used));
    if (written >= a.max) return;
    const auto& here = allowed[std::min(written, a.prefix.size())];
    for (size_t v = 0; v < values.size(); ++v) {
      if (!here[v] || ((used >> v) & 1)) continue;
      const size_t next = used | (size_t{1} << v);
      const auto [at, fresh] = states.try_emplace(next, Symbol{});
      if (fresh) {
        at->second = fresh_symbol();
        open.push_back(next);
      }
      use(symbol(values[v]), at->second);
    }
  };
  each_next(0, [&](Symbol item, Symbol follow) {
    put(out, {terminal(lex_.open_items()), item, follow});
  });
  while (!open.empty()) {
    const size_t used = open.back();
    open.pop_back();
    const Symbol here = states[used];
    if (static_cast<uint64_t>(__builtin_popcountll(used)) >= a.min) put(here, {close});
    each_next(used, [&](Symbol item, Symbol follow) { put(here, {comma, item, follow}); });
  }
  return {};
}

// --- objects -------------------------------------------------------------------------------------

Status Lowering::lower(Symbol out, const ObjectShape& o) {
  RegexSet& set = b_.regexes();
  std::vector<const NamedMember*> named;
  size_t n_required = 0;
  for (const NamedMember& m : o.named) {
    if (m.required && m.value == kNothing) return {};
    if (m.value == kNothing) continue;
    named.push_back(&m);
    n_required += m.required ? 1 : 0;
  }
  std::vector<KeyClass> rest;
  for (const KeyClass& c : o.rest) {
    const RegexId keys = s_.unnamed(o, c.keys);
    if (!s_.empty(keys)) rest.push_back({keys, c.value});
  }
  if (o.min > named.size() && rest.empty()) return {};

  // How far members are counted: up to the minimum, and up to the maximum where there is one.
  const bool bounded = o.max < named.size() || (o.max != kNoMaximum && !rest.empty());
  const bool needs = o.min > n_required;
  const uint64_t cap = bounded ? o.max : needs ? o.min : 0;
  const size_t n_some = o.some.size();
  if (n_some > 4)
    return refuse(ErrorCode::kTooLarge, "expected at most 4 conditions on unknown members");
  if ((named.size() + 1) * (std::min<uint64_t>(cap, named.size()) + 1) * (size_t{1} << n_some) >
      JsonSchemaLimits::kStates * 4)
    return refuse(ErrorCode::kTooLarge,
                  fmt::format("expected minProperties and maxProperties to need at most {} states",
                              JsonSchemaLimits::kStates * 4));
  if (bounded && !rest.empty() && cap >= JsonSchemaLimits::kStates)
    return refuse(ErrorCode::kTooLarge, fmt::format("expected maxProperties of at most {} beside "
                                                    "free members, found {}",
                                                    JsonSchemaLimits::kStates, o.max));

  const Symbol close = terminal(lex_.spaced("}"));

  struct State {
    uint64_t count;  // members, as far as they are counted
    uint32_t met;    // which of `some`
    bool first;      // no member stands yet
    auto operator<=>(const State&) const = default;
  };
  // Free members. A key may come twice in a text, and then counts once; so that a minimum is never
  // met by a repeated key, free members together count for one.
  std::map<State, Symbol> free_states;
  std::vector<State> open;
  bool misses = false;
  const auto free_state = [&](const State& f) {
    const auto [at, fresh] = free_states.try_emplace(f, Symbol{});
    if (fresh) {
      at->second = fresh_symbol();
      open.push_back(f);
    }
    return at->second;
  };
  struct FreeClass {
    Symbol first, next;  // key lexemes
    Symbol value;
    uint32_t meets;
  };
  std::vector<FreeClass> classes;
  for (const KeyClass& c : rest) {
    // Split by the conditions, so that each class meets all of a condition or nothing of it.
    std::vector<std::pair<RegexId, uint32_t>> parts{{c.keys, 0}};
    for (size_t i = 0; i < n_some; ++i) {
      std::vector<std::pair<RegexId, uint32_t>> next;
      for (const auto& [keys, met] : parts) {
        const RegexId inside = set.intersect(keys, o.some[i]);
        const RegexId outside = set.intersect(keys, set.complement(o.some[i]));
        if (!s_.empty(inside)) next.emplace_back(inside, met | (1u << i));
        if (!s_.empty(outside)) next.emplace_back(outside, met);
      }
      parts = std::move(next);
    }
    for (const auto& [keys, met] : parts)
      classes.push_back(
          {terminal(lex_.key(keys, true)), terminal(lex_.key(keys, false)), symbol(c.value), met});
  }
  const uint32_t all_met = (1u << n_some) - 1;

  // Named members: which states each place can be reached in.
  std::vector<std::map<State, Symbol>> at(named.size() + 1);
  std::vector<uint32_t> meets(named.size(), 0);
  for (size_t i = 0; i < named.size(); ++i)
    for (size_t j = 0; j < n_some; ++j)
      if (set.matches(o.some[j], named[i]->key)) meets[i] |= 1u << j;
  std::vector<std::pair<Symbol, Symbol>> keys(named.size());
  at[0].emplace(State{0, 0, true}, fresh_symbol());
  size_t total = 0;
  const auto step = [&](const State& s, uint32_t met) {
    return State{std::min(s.count + 1, cap), s.met | met, false};
  };
  for (size_t i = 0; i < named.size(); ++i) {
    const NamedMember& m = *named[i];
    bool has_first = false, has_next = false;
    for (const auto& [s, symbol_here] : at[i]) {
      (s.first ? has_first : has_next) = true;
      if (!m.required) at[i + 1].try_emplace(s, Symbol{});
      if (!bounded || s.count < o.max) at[i + 1].try_emplace(step(s, meets[i]), Symbol{});
    }
    const RegexId name = set.literal(m.key);
    if (has_first) keys[i].first = terminal(lex_.key(name, true));
    if (has_next) keys[i].second = terminal(lex_.key(name, false));
    for (auto& [s, symbol_there] : at[i + 1]) symbol_there = fresh_symbol();
    total += at[i + 1].size();
    if (total > JsonSchemaLimits::kStates * 4 || b_.exhausted())
      return refuse(ErrorCode::kTooLarge,
                    fmt::format("expected an object of at most {} states of its members",
                                JsonSchemaLimits::kStates * 4));
  }
  for (size_t i = 0; i < named.size(); ++i) {
    const NamedMember& m = *named[i];
    const Symbol value = symbol(m.value);
    for (const auto& [s, here] : at[i]) {
      if (!m.required) put(here, {at[i + 1].at(s)});
      if (!bounded || s.count < o.max)
        put(here,
            {s.first ? keys[i].first : keys[i].second, value, at[i + 1].at(step(s, meets[i]))});
    }
  }
  for (const auto& [s, here] : at[named.size()]) put(here, {free_state(s)});

  while (!open.empty()) {
    const State f = open.back();
    open.pop_back();
    const Symbol here = free_states.at(f);
    const bool enough = !needs || f.count >= o.min;
    if (enough && f.met == all_met) put(here, {close});
    if (needs && f.count + 1 < o.min && !classes.empty()) {
      misses = true;
      continue;
    }
    for (const FreeClass& c : classes) {
      if (bounded && f.count >= o.max) continue;
      put(here, {f.first ? c.first : c.next, c.value, free_state(step(f, c.meets))});
    }
    if (b_.exhausted()) break;
  }
  if (misses)
    return refuse(ErrorCode::kUnsupported,
                  fmt::format("minProperties {} is done exactly only where at most one member "
                              "without a name in the schema is needed",
                              o.min));
  put(out, {b_.literal("{"), at[0].begin()->second});
  return {};
}

const json::Value& object_schema() {
  static const json::Value kSchema(json::Object{{"type", json::Value(std::string("object"))}});
  return kSchema;
}

}  // namespace

Result<Symbol> add_json_schema(GrammarBuilder& builder, const json::Value& schema,
                               const JsonSchemaOptions& options) {
  DEEPMINT_TRY(document, SchemaDocument::make(schema));
  if (!schema.is_object() && !schema.is_bool())
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("expected a schema (an object, true or false), found {}",
                            to_string(schema.kind())),
                "#");
  SchemaSpace space(document, builder.regexes(), options);
  Lowering lowering(builder, space, options);
  return lowering.run(space.node(document.root()));
}

Result<Symbol> add_json_object(GrammarBuilder& builder, const JsonSchemaOptions& options) {
  return add_json_schema(builder, object_schema(), options);
}

Result<Grammar> compile_json_schema(const json::Value& schema, const JsonSchemaOptions& options) {
  GrammarBuilder builder;
  DEEPMINT_TRY(value, add_json_schema(builder, schema, options));
  builder.set_start(value);
  Result<Grammar> out = builder.build();
  if (!out && out.error().code == ErrorCode::kInvalidArgument)
    return fail(ErrorCode::kInvalidArgument, "expected a schema that some value satisfies", "#");
  if (!out && out.error().where.empty()) return tl::unexpected(std::move(out).error().at("#"));
  return out;
}

Result<Grammar> compile_json_object(const JsonSchemaOptions& options) {
  return compile_json_schema(object_schema(), options);
}

}  // namespace deepmint::grammar
