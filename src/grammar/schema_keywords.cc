// The shape of one subschema: what each keyword says, draft by draft.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <unordered_set>

#include "grammar/formats.h"
#include "grammar/regex_parser.h"
#include "grammar/schema_space.h"

namespace deepmint::grammar {

namespace {

// JSON equality: numbers by value, objects without regard to order, the last of equal keys.
bool same_value(const json::Value& a, const json::Value& b) {
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case json::Kind::kNull:
      return true;
    case json::Kind::kBool:
      return a.as_bool() == b.as_bool();
    case json::Kind::kString:
      return a.as_string() == b.as_string();
    case json::Kind::kNumber: {
      const Result<Decimal> x = Decimal::parse(a.number_text());
      const Result<Decimal> y = Decimal::parse(b.number_text());
      return x && y ? *x == *y : a.number_text() == b.number_text();
    }
    case json::Kind::kArray:
      return std::equal(a.items().begin(), a.items().end(), b.items().begin(), b.items().end(),
                        same_value);
    case json::Kind::kObject: {
      const auto covers = [](const json::Value& x, const json::Value& y) {
        return std::all_of(x.members().begin(), x.members().end(), [&](const json::Member& m) {
          const json::Value* in_x = x.find(m.key);
          const json::Value* in_y = y.find(m.key);
          return in_y != nullptr && same_value(*in_x, *in_y);
        });
      };
      return covers(a, b) && covers(b, a);
    }
  }
  return false;
}

const json::Value& literal_null() {
  static const json::Value v;
  return v;
}
const json::Value& literal_bool(bool b) {
  static const json::Value kTrue(true), kFalse(false);
  return b ? kTrue : kFalse;
}

enum TypeBit : uint8_t {
  kNullType = 1,
  kBooleanType = 2,
  kNumberType = 4,
  kIntegerType = 8,
  kStringType = 16,
  kArrayType = 32,
  kObjectType = 64
};

uint8_t type_bit(std::string_view name) {
  struct Named {
    std::string_view name;
    TypeBit bit;
  };
  static constexpr std::array kTypes = {
      Named{"null", kNullType},       Named{"boolean", kBooleanType}, Named{"number", kNumberType},
      Named{"integer", kIntegerType}, Named{"string", kStringType},   Named{"array", kArrayType},
      Named{"object", kObjectType}};
  for (const Named& t : kTypes)
    if (t.name == name) return t.bit;
  return 0;
}

}  // namespace

Result<Shape> SchemaSpace::of_constants(std::span<const json::Value> values) {
  Shape out = nothing();
  std::vector<RegexId> strings, plain;
  for (const json::Value& v : values) {
    DEEPMINT_CHECK_OK(spend(1));
    switch (v.kind()) {
      case json::Kind::kNull:
        out.null = true;
        break;
      case json::Kind::kBool:
        out.booleans |= v.as_bool() ? 2 : 1;
        break;
      case json::Kind::kNumber: {
        Result<Decimal> value = Decimal::parse(v.number_text());
        if (!value) return failure(value.error().code, value.error().message);
        const NumberSet one = numbers_.equal_to(*value);
        plain.push_back(one.plain);
        out.numbers.inside |= one.inside;
        out.numbers.touched |= one.touched;
        break;
      }
      case json::Kind::kString:
        strings.push_back(regexes_.literal(v.as_string()));
        break;
      case json::Kind::kArray: {
        ArrayShape one;
        for (const json::Value& item : v.items()) one.prefix.push_back(constant(item));
        one.rest = kNothing;
        one.min = one.max = v.items().size();
        out.arrays.push_back(std::move(one));
        break;
      }
      case json::Kind::kObject: {
        ObjectShape one;
        one.evaluated = regexes_.none();
        std::unordered_set<std::string_view> seen;
        for (const json::Member& m : v.members())
          if (seen.insert(m.key).second)
            one.named.push_back({m.key, constant(*v.find(m.key)), true, true});
        out.objects.push_back(std::move(one));
        break;
      }
    }
  }
  out.numbers.plain = regexes_.alternate(plain);
  out.strings = regexes_.alternate(strings);
  simplify(out.arrays);
  simplify(out.objects);
  return out;
}

Result<Shape> SchemaSpace::of_constant(const json::Value& value) {
  return of_constants({&value, 1});
}

Result<std::optional<std::vector<ExprId>>> SchemaSpace::values(ExprId e, size_t limit) {
  std::vector<const json::Value*> found;
  // Values that may be in the set: everything else certainly is not.
  const auto collect = [&](auto&& self, ExprId at, int depth) -> Result<bool> {
    if (depth > 16) return false;
    const Expr copy = expr(at);
    switch (copy.kind) {
      case Kind::kBottom:
        return true;
      case Kind::kConstant:
        found.push_back(copy.value);
        return true;
      case Kind::kAll: {
        for (const ExprId part : copy.parts) {
          const size_t before = found.size();
          DEEPMINT_TRY(finite, self(self, part, depth + 1));
          if (finite) return true;
          found.resize(before);
        }
        return false;
      }
      case Kind::kAny:
      case Kind::kOne: {
        for (const ExprId part : copy.parts) {
          DEEPMINT_TRY(finite, self(self, part, depth + 1));
          if (!finite) return false;
        }
        return true;
      }
      case Kind::kNode: {
        const json::Value& v = document_.value(copy.node);
        const bool bare_reference =
            v.find("$ref") != nullptr && document_.draft(copy.node) <= Draft::k7;
        if (const json::Value* c = v.find("const"); c != nullptr && !bare_reference) {
          found.push_back(c);
          return true;
        }
        if (const json::Value* list = v.find("enum");
            list != nullptr && list->is_array() && !bare_reference) {
          for (const json::Value& item : list->items()) found.push_back(&item);
          return true;
        }
        if (const json::Value* ref = v.find("$ref"); ref != nullptr && ref->is_string()) {
          DEEPMINT_TRY(target, document_.resolve(copy.node, ref->as_string()));
          DEEPMINT_TRY(finite, self(self, node(target), depth + 1));
          if (finite) return true;
        }
        DEEPMINT_TRY(s, shape(at));
        if (s->numbers.plain != regexes_.none() || s->numbers.inside != 0 ||
            s->strings != regexes_.none() || !s->arrays.empty() || !s->objects.empty())
          return false;
        if (s->null) found.push_back(&literal_null());
        if (s->booleans & 1) found.push_back(&literal_bool(false));
        if (s->booleans & 2) found.push_back(&literal_bool(true));
        return true;
      }
      default:
        return false;
    }
  };
  DEEPMINT_TRY(finite, collect(collect, e, 0));
  if (!finite) return std::nullopt;
  std::vector<const json::Value*> distinct;
  for (const json::Value* v : found) {
    DEEPMINT_CHECK_OK(spend(1 + distinct.size()));
    if (std::none_of(distinct.begin(), distinct.end(),
                     [&](const json::Value* w) { return same_value(*v, *w); }))
      distinct.push_back(v);
    if (distinct.size() > 4 * limit) return std::nullopt;
  }
  std::vector<ExprId> out;
  for (const json::Value* v : distinct) {
    const ExprId one = both(constant(*v), e);
    DEEPMINT_CHECK_OK(shape(one).map([](const Shape*) {}));
    if (!surely_empty(one, 3)) out.push_back(one);
  }
  if (out.size() > limit) return std::nullopt;
  return out;
}

// --- keywords ------------------------------------------------------------------------------------

// Reads one subschema; lives for the time of one of_node().
class SchemaSpace::KeywordReader {
 public:
  KeywordReader(SchemaSpace& space, NodeId n)
      : s_(space), n_(n), v_(space.document_.value(n)), draft_(space.document_.draft(n)) {}

  Result<Shape> read();

 private:
  tl::unexpected<Error> wrong(std::string_view keyword, std::string message,
                              ErrorCode code = ErrorCode::kInvalidArgument) const {
    return fail(code, std::move(message), s_.document_.pointer(n_) + "/" + pointer_escape(keyword));
  }
  tl::unexpected<Error> unexpected_kind(std::string_view keyword, std::string_view expected,
                                        const json::Value& found) const {
    return wrong(keyword, fmt::format("expected {}, found {}", expected, to_string(found.kind())));
  }
  bool before(Draft d) const { return draft_ < d; }
  const json::Value* get(std::string_view keyword) const { return v_.find(keyword); }
  Result<ExprId> sub(std::string_view keyword, const json::Value& v);
  Result<ExprId> sub(std::string_view keyword, const json::Value& v, std::string_view below);
  Result<std::vector<ExprId>> list(std::string_view keyword, const json::Value& v);
  Result<std::optional<uint64_t>> count(std::string_view keyword) const;
  Result<std::optional<uint64_t>> maximum(std::string_view keyword) const;
  Result<std::optional<Decimal>> number(std::string_view keyword) const;
  Result<std::vector<std::string>> names(std::string_view keyword, const json::Value& v,
                                         std::string_view below) const;

  Result<uint8_t> types() const;
  Result<NumberSet> numbers();
  Result<RegexId> strings();
  Result<ArrayShape> array();
  Result<ObjectShape> object();
  Result<std::optional<Shape>> applicator(const json::Member& m);
  Result<Shape> dependencies(const json::Member& m);
  Status apply_unevaluated(Shape& out);

  SchemaSpace& s_;
  NodeId n_;
  const json::Value& v_;
  Draft draft_;
};

Result<Shape> SchemaSpace::of_node(NodeId n) { return KeywordReader(*this, n).read(); }

Result<ExprId> SchemaSpace::KeywordReader::sub(std::string_view keyword, const json::Value& v) {
  if (!v.is_object() && !v.is_bool()) return unexpected_kind(keyword, "a schema", v);
  return s_.node(s_.document_.child(n_, v, keyword));
}

Result<ExprId> SchemaSpace::KeywordReader::sub(std::string_view keyword, const json::Value& v,
                                               std::string_view below) {
  if (!v.is_object() && !v.is_bool())
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("expected a schema, found {}", to_string(v.kind())),
                fmt::format("{}/{}/{}", s_.document_.pointer(n_), pointer_escape(keyword),
                            pointer_escape(below)));
  return s_.node(s_.document_.child(n_, v, keyword, below));
}

Result<std::vector<ExprId>> SchemaSpace::KeywordReader::list(std::string_view keyword,
                                                             const json::Value& v) {
  if (!v.is_array()) return unexpected_kind(keyword, "a list of schemas", v);
  std::vector<ExprId> out;
  for (const json::Value& item : v.items()) {
    DEEPMINT_TRY(e, sub(keyword, item, std::to_string(out.size())));
    out.push_back(e);
  }
  return out;
}

Result<std::optional<uint64_t>> SchemaSpace::KeywordReader::count(std::string_view keyword) const {
  const json::Value* v = get(keyword);
  if (v == nullptr) return std::nullopt;
  if (!v->is_number()) return unexpected_kind(keyword, "a whole number", *v);
  Result<Decimal> value = Decimal::parse(v->number_text());
  if (!value) return wrong(keyword, value.error().message, value.error().code);
  if (value->negative || !value->is_integer())
    return wrong(keyword, fmt::format("expected a whole number that is not negative, found {}",
                                      v->number_text()));
  const std::string digits = value->integer_part();
  if (digits.size() > 18) return uint64_t{1'000'000'000'000'000'000};
  return std::stoull(digits);
}

Result<std::optional<uint64_t>> SchemaSpace::KeywordReader::maximum(
    std::string_view keyword) const {
  DEEPMINT_TRY(value, count(keyword));
  if (value && *value > JsonSchemaLimits::kCount) return std::nullopt;
  return value;
}

Result<std::optional<Decimal>> SchemaSpace::KeywordReader::number(std::string_view keyword) const {
  const json::Value* v = get(keyword);
  if (v == nullptr) return std::nullopt;
  if (!v->is_number()) return unexpected_kind(keyword, "a number", *v);
  Result<Decimal> value = Decimal::parse(v->number_text());
  if (!value) return wrong(keyword, value.error().message, value.error().code);
  return std::move(*value);
}

Result<std::vector<std::string>> SchemaSpace::KeywordReader::names(std::string_view keyword,
                                                                   const json::Value& v,
                                                                   std::string_view below) const {
  std::vector<std::string> out;
  bool all = v.is_array();
  if (all) {
    for (const json::Value& item : v.items()) {
      all = all && item.is_string();
      if (item.is_string()) out.push_back(item.as_string());
    }
  }
  if (!all)
    return wrong(keyword, fmt::format("expected a list of member names{}{}, found {}",
                                      below.empty() ? "" : " for ", below,
                                      v.is_array() ? "other values in it" : to_string(v.kind())));
  return out;
}

Result<uint8_t> SchemaSpace::KeywordReader::types() const {
  const json::Value* v = get("type");
  if (v == nullptr) return static_cast<uint8_t>(127);
  uint8_t out = 0;
  const auto take = [&](const json::Value& name) -> Status {
    const uint8_t bit = name.is_string() ? type_bit(name.as_string()) : 0;
    if (bit == 0)
      return wrong("type", fmt::format("expected null, boolean, number, integer, string, array or "
                                       "object, found {}",
                                       json::dump(name).substr(0, 100)));
    out |= bit;
    return {};
  };
  if (v->is_array()) {
    for (const json::Value& name : v->items()) DEEPMINT_CHECK_OK(take(name));
  } else {
    DEEPMINT_CHECK_OK(take(*v));
  }
  return out;
}

Result<NumberSet> SchemaSpace::KeywordReader::numbers() {
  NumberLanguages& l = s_.numbers_;
  NumberSet out = l.all();
  bool whole = true;
  const auto meet = [&](const NumberSet& with) {
    out = whole ? with : l.intersect(out, with);
    whole = false;
  };
  // A boolean exclusive* belongs to draft 4; it can only make the set smaller, so it is heard in
  // every draft.
  const auto flag = [&](std::string_view keyword) {
    const json::Value* v = get(keyword);
    return v != nullptr && v->is_bool() ? std::optional(v->as_bool()) : std::nullopt;
  };
  const std::optional<bool> below = flag("exclusiveMaximum"), above = flag("exclusiveMinimum");
  DEEPMINT_TRY(low, number("minimum"));
  if (low) meet(l.at_least(*low, above.value_or(false)));
  DEEPMINT_TRY(high, number("maximum"));
  if (high) meet(l.at_most(*high, below.value_or(false)));
  if (!above) {
    DEEPMINT_TRY(limit, number("exclusiveMinimum"));
    if (limit) meet(l.at_least(*limit, true));
  }
  if (!below) {
    DEEPMINT_TRY(limit, number("exclusiveMaximum"));
    if (limit) meet(l.at_most(*limit, true));
  }
  DEEPMINT_TRY(step, number("multipleOf"));
  if (step) {
    if (step->negative || step->is_zero())
      return wrong("multipleOf",
                   "expected a number above zero, found " + get("multipleOf")->number_text());
    Result<NumberSet> multiples = l.multiples_of(*step);
    if (!multiples) return wrong("multipleOf", multiples.error().message, multiples.error().code);
    meet(*multiples);
  }
  return out;
}

Result<RegexId> SchemaSpace::KeywordReader::strings() {
  RegexSet& set = s_.regexes_;
  RegexId out = s_.any_string_;
  const auto meet = [&](RegexId with) {
    out = out == s_.any_string_ ? with : set.intersect(out, with);
  };
  DEEPMINT_TRY(min, count("minLength"));
  DEEPMINT_TRY(max, maximum("maxLength"));
  if (min && *min > JsonSchemaLimits::kCount)
    return wrong("minLength", fmt::format("expected at most {}", JsonSchemaLimits::kCount),
                 ErrorCode::kTooLarge);
  if (max && min && *min > *max) return set.none();
  if (min || max)
    meet(set.repeat(set.any_code_point(), static_cast<uint32_t>(min.value_or(0)),
                    max ? static_cast<uint32_t>(*max) : kUnbounded));
  if (const json::Value* pattern = get("pattern")) {
    if (!pattern->is_string()) return unexpected_kind("pattern", "a string", *pattern);
    Result<RegexId> language =
        parse_regex(set, pattern->as_string(), {.dialect = RegexDialect::kEcma, .search = true});
    if (!language)
      return wrong("pattern",
                   language.error().where.empty()
                       ? language.error().message
                       : language.error().message + " (" + language.error().where + ")",
                   language.error().code);
    meet(*language);
  }
  // Annotations since 2019-09; draft 7 leaves to the implementation whether they assert.
  if (draft_ == Draft::k7)
    for (const char* keyword : {"contentEncoding", "contentMediaType"})
      if (get(keyword) != nullptr)
        return wrong(keyword, "is not done exactly where it asserts (draft 7)",
                     ErrorCode::kUnsupported);
  if (const json::Value* format = get("format"); format != nullptr && s_.options_.assert_formats) {
    if (!format->is_string()) return unexpected_kind("format", "a string", *format);
    switch (format_kind(format->as_string())) {
      case FormatKind::kAsserted:
        meet(format_language(set, format->as_string()));
        break;
      case FormatKind::kRefused:
        return wrong("format",
                     fmt::format("format \"{}\" is not done exactly", format->as_string()),
                     ErrorCode::kUnsupported);
      case FormatKind::kAnnotation:
        break;
    }
  }
  return s_.empty(out) ? set.none() : out;
}

Result<ArrayShape> SchemaSpace::KeywordReader::array() {
  ArrayShape out;
  const json::Value* items = get("items");
  if (const json::Value* prefix = get("prefixItems"); prefix != nullptr && !before(Draft::k2020)) {
    DEEPMINT_TRY(parts, list("prefixItems", *prefix));
    out.prefix = std::move(parts);
    out.evaluated = out.prefix.size();
  }
  if (items != nullptr && items->is_array()) {
    // The older form of prefixItems; where the draft no longer has it, it can only be meant so.
    if (!out.prefix.empty()) return unexpected_kind("items", "a schema beside prefixItems", *items);
    DEEPMINT_TRY(parts, list("items", *items));
    out.prefix = std::move(parts);
    out.evaluated = out.prefix.size();
    if (const json::Value* more = get("additionalItems")) {
      DEEPMINT_TRY(e, sub("additionalItems", *more));
      out.rest = e;
      out.evaluated = kNoMaximum;
    }
  } else if (items != nullptr) {
    DEEPMINT_TRY(e, sub("items", *items));
    out.rest = e;
    out.evaluated = kNoMaximum;
  }
  DEEPMINT_TRY(min, count("minItems"));
  DEEPMINT_TRY(max, maximum("maxItems"));
  if (min && *min > JsonSchemaLimits::kCount)
    return wrong("minItems", fmt::format("expected at most {}", JsonSchemaLimits::kCount),
                 ErrorCode::kTooLarge);
  out.min = min.value_or(0);
  out.max = max.value_or(kNoMaximum);
  if (const json::Value* unique = get("uniqueItems")) {
    if (!unique->is_bool()) return unexpected_kind("uniqueItems", "true or false", *unique);
    out.unique = unique->as_bool();
  }
  if (const json::Value* contains = get("contains"); contains != nullptr && !before(Draft::k6)) {
    DEEPMINT_TRY(e, sub("contains", *contains));
    Contains c{.item = e};
    if (!before(Draft::k2019)) {
      DEEPMINT_TRY(least, count("minContains"));
      DEEPMINT_TRY(most, maximum("maxContains"));
      c.min = least.value_or(1);
      c.max = most.value_or(kNoMaximum);
      c.evaluates = !before(Draft::k2020);
    }
    out.contains.push_back(c);
  }
  if (!s_.tracks_evaluated_) out.evaluated = 0;
  return out;
}

Result<ObjectShape> SchemaSpace::KeywordReader::object() {
  RegexSet& set = s_.regexes_;
  ObjectShape out = s_.any_object();
  std::unordered_set<std::string_view> seen;
  std::vector<RegexId> evaluated;

  // Classes of free keys: each pattern splits those before it.
  struct Class {
    RegexId keys;
    std::vector<ExprId> values;
  };
  std::vector<Class> classes{{s_.any_string_, {}}};
  if (const json::Value* patterns = get("patternProperties")) {
    if (!patterns->is_object()) return unexpected_kind("patternProperties", "an object", *patterns);
    for (const json::Member& m : patterns->members()) {
      if (&m.value != patterns->find(m.key)) continue;  // a later member has the same key
      DEEPMINT_TRY(value, sub("patternProperties", m.value, m.key));
      Result<RegexId> keys =
          parse_regex(set, m.key, {.dialect = RegexDialect::kEcma, .search = true});
      if (!keys)
        return wrong("patternProperties",
                     fmt::format("{}, in \"{}\"", keys.error().message, m.key.substr(0, 100)),
                     keys.error().code);
      evaluated.push_back(*keys);
      std::vector<Class> next;
      for (Class& c : classes) {
        DEEPMINT_CHECK_OK(s_.spend(1));
        const RegexId inside = c.keys == s_.any_string_ ? *keys : set.intersect(c.keys, *keys);
        const RegexId outside = set.intersect(c.keys, set.complement(*keys));
        if (!s_.empty(inside)) {
          next.push_back({inside, c.values});
          next.back().values.push_back(value);
        }
        if (!s_.empty(outside)) next.push_back({outside, std::move(c.values)});
      }
      classes = std::move(next);
    }
  }
  ExprId additional = kAnything;
  if (const json::Value* more = get("additionalProperties")) {
    DEEPMINT_TRY(e, sub("additionalProperties", *more));
    additional = e;
    evaluated = {s_.any_string_};
  }
  out.rest.clear();
  for (Class& c : classes) {
    const ExprId value = c.values.empty() ? additional : s_.all_of(c.values);
    if (value != kNothing) out.rest.push_back({c.keys, value});
  }
  const auto free_value = [&](std::string_view key) {
    for (const KeyClass& c : out.rest)
      if (c.keys == s_.any_string_ || set.matches(c.keys, key)) return c.value;
    return kNothing;
  };
  const auto matched = [&](std::string_view key) {  // by patterns
    for (const Class& c : classes)
      if (c.keys == s_.any_string_ || set.matches(c.keys, key)) return s_.all_of(c.values);
    return kAnything;
  };

  std::unordered_set<std::string> required;
  std::vector<std::string> required_names;
  if (const json::Value* list = get("required")) {
    DEEPMINT_TRY(keys, names("required", *list, ""));
    required_names = std::move(keys);
    required.insert(required_names.begin(), required_names.end());
  }
  if (const json::Value* properties = get("properties")) {
    if (!properties->is_object()) return unexpected_kind("properties", "an object", *properties);
    std::unordered_map<std::string_view, const json::Value*> last;
    for (const json::Member& m : properties->members()) last[m.key] = &m.value;
    const bool patterned = classes.size() > 1 || !classes[0].values.empty();
    for (const json::Member& m : properties->members()) {
      if (!seen.insert(m.key).second) continue;
      DEEPMINT_CHECK_OK(s_.spend(1));
      DEEPMINT_TRY(value, sub("properties", *last[m.key], m.key));
      out.named.push_back({m.key, patterned ? s_.both(value, matched(m.key)) : value,
                           required.contains(m.key), true});
      if (s_.tracks_evaluated_) evaluated.push_back(set.literal(m.key));
    }
  }
  for (const std::string& key : required_names)
    if (seen.insert(key).second) out.named.push_back({key, free_value(key), true});

  if (const json::Value* rule = get("propertyNames"); rule != nullptr && !before(Draft::k6)) {
    DEEPMINT_TRY(e, sub("propertyNames", *rule));
    DEEPMINT_TRY(shape, s_.shape(e));
    const RegexId keys = shape->strings;
    if (keys != s_.any_string_) {
      for (NamedMember& m : out.named)
        if (!set.matches(keys, m.key)) m.value = kNothing;
      std::vector<KeyClass> rest;
      for (const KeyClass& c : out.rest) {
        const RegexId both = c.keys == s_.any_string_ ? keys : set.intersect(c.keys, keys);
        if (!s_.empty(both)) rest.push_back({both, c.value});
      }
      out.rest = std::move(rest);
    }
  }
  DEEPMINT_TRY(min, count("minProperties"));
  DEEPMINT_TRY(max, maximum("maxProperties"));
  out.min = min.value_or(0);
  out.max = max.value_or(kNoMaximum);
  out.evaluated = s_.tracks_evaluated_ ? set.alternate(evaluated) : set.none();
  return out;
}

// dependentRequired, dependentSchemas and the dependencies of the older drafts: for every key,
// either it is absent or the rest holds.
Result<Shape> SchemaSpace::KeywordReader::dependencies(const json::Member& m) {
  if (!m.value.is_object()) return unexpected_kind(m.key, "an object", m.value);
  Shape out = s_.everything();
  for (const json::Member& rule : m.value.members()) {
    if (&rule.value != m.value.find(rule.key)) continue;
    Shape one = s_.everything();
    one.objects.clear();
    ObjectShape absent = s_.any_object();
    absent.named.push_back({rule.key, kNothing, false});
    one.objects.push_back(std::move(absent));
    if (rule.value.is_array() && m.key != "dependentSchemas") {
      DEEPMINT_TRY(keys, names(m.key, rule.value, rule.key));
      if (keys.empty()) continue;
      ObjectShape all = s_.any_object();
      std::set<std::string> seen{rule.key};
      all.named.push_back({rule.key, kAnything, true});
      for (const std::string& key : keys)
        if (seen.insert(key).second) all.named.push_back({key, kAnything, true});
      one.objects.push_back(std::move(all));
    } else if (m.key != "dependentRequired") {
      DEEPMINT_TRY(e, sub(m.key, rule.value, rule.key));
      DEEPMINT_TRY(shape, s_.shape(e));
      ObjectShape present = s_.any_object();
      present.named.push_back({rule.key, kAnything, true});
      DEEPMINT_TRY(then, s_.intersect(shape->objects, {present}));
      one.objects.insert(one.objects.end(), then.begin(), then.end());
    } else {
      return unexpected_kind(m.key, "a list of member names", rule.value);
    }
    DEEPMINT_TRY(meet, s_.intersect(out, one));
    out = std::move(meet);
  }
  return out;
}

// The set of a keyword that applies whole schemas to the value; nullopt for all other keywords.
Result<std::optional<Shape>> SchemaSpace::KeywordReader::applicator(const json::Member& m) {
  const auto copy = [&](ExprId e) -> Result<std::optional<Shape>> {
    DEEPMINT_TRY(shape, s_.shape(e));
    return *shape;
  };
  const auto reference = [&](Result<NodeId> target) -> Result<std::optional<Shape>> {
    if (!target) return wrong(m.key, target.error().message, target.error().code);
    return copy(s_.node(*target));
  };
  const std::string& key = m.key;
  if (key == "$ref" || (key == "$dynamicRef" && !before(Draft::k2020))) {
    if (!m.value.is_string()) return unexpected_kind(key, "a string", m.value);
    return reference(key == "$ref" ? s_.document_.resolve(n_, m.value.as_string())
                                   : s_.document_.resolve_dynamic(n_, m.value.as_string()));
  }
  if (key == "$recursiveRef" && draft_ == Draft::k2019) {
    if (!m.value.is_string() || m.value.as_string() != "#") return wrong(key, "expected \"#\"");
    return reference(s_.document_.resolve_recursive(n_));
  }
  if (key == "enum") {
    if (!m.value.is_array()) return unexpected_kind(key, "a list of values", m.value);
    DEEPMINT_TRY(shape, s_.of_constants(m.value.items()));
    return shape;
  }
  if (key == "const" && !before(Draft::k6)) {
    DEEPMINT_TRY(shape, s_.of_constants({&m.value, 1}));
    return shape;
  }
  if (key == "allOf") {
    DEEPMINT_TRY(parts, list(key, m.value));
    return copy(s_.all_of(parts));
  }
  if (key == "anyOf") {
    DEEPMINT_TRY(parts, list(key, m.value));
    return copy(s_.any_of(parts));
  }
  if (key == "oneOf") {
    DEEPMINT_TRY(parts, list(key, m.value));
    return copy(s_.one_of(parts));
  }
  if (key == "not") {
    DEEPMINT_TRY(e, sub(key, m.value));
    return copy(s_.complement(e));
  }
  if (key == "if" && !before(Draft::k7)) {
    DEEPMINT_TRY(condition, sub(key, m.value));
    ExprId yes = kAnything, no = kAnything;
    if (const json::Value* then = get("then")) {
      DEEPMINT_TRY(e, sub("then", *then));
      yes = e;
    }
    if (const json::Value* other = get("else")) {
      DEEPMINT_TRY(e, sub("else", *other));
      no = e;
    }
    if (yes == no && !s_.tracks_evaluated_) return copy(yes);
    return copy(s_.any_of({s_.both(condition, yes), s_.both(s_.complement(condition), no)}));
  }
  // "dependencies" is heard in every draft: later ones know it only as an older spelling.
  if (key == "dependencies" ||
      ((key == "dependentRequired" || key == "dependentSchemas") && !before(Draft::k2019))) {
    DEEPMINT_TRY(shape, dependencies(m));
    return shape;
  }
  return std::nullopt;
}

// unevaluatedItems and unevaluatedProperties: what none of the keywords of this subschema, nor of
// those it applies to the same value, has looked at.
Status SchemaSpace::KeywordReader::apply_unevaluated(Shape& out) {
  if (before(Draft::k2019)) return {};
  if (const json::Value* rule = get("unevaluatedItems")) {
    DEEPMINT_TRY(e, sub("unevaluatedItems", *rule));
    std::vector<ArrayShape> arrays;
    for (const ArrayShape& a : out.arrays) {
      ArrayShape with;
      if (a.evaluated < 10'000) {
        with.prefix.assign(a.evaluated, kAnything);
        std::vector<ExprId> choices{e};
        for (const Contains& c : a.contains)
          if (c.evaluates) choices.push_back(c.item);
        with.rest = s_.any_of(choices);
      }
      std::optional<ArrayShape> meet = s_.intersect(a, with);
      if (!meet) continue;
      meet->evaluated = kNoMaximum;
      arrays.push_back(std::move(*meet));
    }
    out.arrays = std::move(arrays);
  }
  if (const json::Value* rule = get("unevaluatedProperties")) {
    DEEPMINT_TRY(e, sub("unevaluatedProperties", *rule));
    std::vector<ObjectShape> objects;
    for (const ObjectShape& o : out.objects) {
      ObjectShape with = s_.any_object();
      if (e != kAnything) {
        with.rest = {
            {o.evaluated, kAnything},
            {s_.regexes_.intersect(s_.any_string_, s_.regexes_.complement(o.evaluated)), e}};
        std::erase_if(with.rest,
                      [&](const KeyClass& c) { return c.value == kNothing || s_.empty(c.keys); });
      }
      std::optional<ObjectShape> meet = s_.intersect(o, with);
      if (!meet) continue;
      meet->evaluated = s_.any_string_;
      objects.push_back(std::move(*meet));
    }
    out.objects = std::move(objects);
  }
  return {};
}

Result<Shape> SchemaSpace::KeywordReader::read() {
  if (!v_.is_object())
    return s_.failure(ErrorCode::kInvalidArgument,
                      fmt::format("expected a schema, found {}", to_string(v_.kind())));
  // Before 2019-09 a reference replaces everything beside it.
  if (before(Draft::k2019)) {
    if (const json::Value* ref = get("$ref"); ref != nullptr && ref->is_string()) {
      json::Member only{"$ref", *ref};
      DEEPMINT_TRY(shape, applicator(only));
      return std::move(*shape);
    }
  }
  static constexpr std::array kOwn = {std::string_view("additionalProperties"),
                                      std::string_view("maxProperties"),
                                      std::string_view("minProperties"),
                                      std::string_view("patternProperties"),
                                      std::string_view("properties"),
                                      std::string_view("propertyNames"),
                                      std::string_view("required")};
  DEEPMINT_TRY(types_found, types());
  const uint8_t types = types_found;
  Shape own = s_.everything();
  own.null = (types & kNullType) != 0;
  own.booleans = (types & kBooleanType) ? 3 : 0;
  // Keywords of a type are read, and refused where they must be, only where the type can occur.
  if (types & (kNumberType | kIntegerType)) {
    DEEPMINT_TRY(numbers_found, numbers());
    own.numbers = numbers_found;
    if (!(types & kNumberType))
      own.numbers = s_.numbers_.intersect(
          draft_ == Draft::k4 ? s_.numbers_.bare_integers() : s_.numbers_.integers(), own.numbers);
    if (s_.numbers_.empty(own.numbers)) own.numbers.plain = s_.regexes_.none();
  } else {
    own.numbers = s_.numbers_.none();
  }
  own.strings = s_.regexes_.none();
  if (types & kStringType) {
    DEEPMINT_TRY(strings_found, strings());
    own.strings = strings_found;
  }
  own.arrays.clear();
  if (types & kArrayType) {
    DEEPMINT_TRY(array_found, array());
    if (!s_.surely_empty(array_found, 0)) own.arrays.push_back(std::move(array_found));
  }
  own.objects.clear();
  if (types & kObjectType) {
    DEEPMINT_TRY(object_found, object());
    if (!s_.surely_empty(object_found, 0)) own.objects.push_back(std::move(object_found));
  }

  // Members are ordered by where their names come first: `properties` counts where it stands.
  std::string_view own_place = get("properties") != nullptr ? "properties" : "";
  std::optional<Shape> out;
  bool own_done = false;
  const auto meet = [&](const Shape& with) -> Status {
    if (!out) {
      out = with;
      return {};
    }
    DEEPMINT_TRY(both, s_.intersect(*out, with));
    out = std::move(both);
    return {};
  };
  for (const json::Member& m : v_.members()) {
    if (&m.value != get(m.key)) continue;
    if (!own_done && (own_place.empty() ? std::find(kOwn.begin(), kOwn.end(), m.key) != kOwn.end()
                                        : m.key == own_place)) {
      own_done = true;
      DEEPMINT_CHECK_OK(meet(own));
      continue;
    }
    DEEPMINT_TRY(applied, applicator(m));
    if (applied) DEEPMINT_CHECK_OK(meet(*applied));
  }
  if (!own_done) DEEPMINT_CHECK_OK(meet(own));
  DEEPMINT_CHECK_OK(apply_unevaluated(*out));
  return std::move(*out);
}

}  // namespace deepmint::grammar
