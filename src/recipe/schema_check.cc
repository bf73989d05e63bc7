#include "recipe/schema_check.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <set>

#include "recipe/spelling.h"

namespace deepmint::recipe {
namespace {

constexpr size_t kMaxPatternBytes = 64 * 1024;  // longer patterns are refused, not compiled

using Trouble = std::optional<std::string>;

std::string spelled(const json::Value& v) {
  std::string s = compact_json(v);
  if (s.size() > 500) s = s.substr(0, 500) + "…";
  return s;
}

Trouble is_not(const json::Value& v, std::string_view type) {
  return fmt::format("{} is not of type \"{}\"", spelled(v), type);
}

bool is_integer_number(const json::Value& v) {
  if (!v.is_number()) return false;
  if (v.to_int64() || v.to_uint64()) return true;
  const auto d = v.to_double();
  return d && *d == static_cast<double>(static_cast<int64_t>(std::clamp(*d, -9e18, 9e18)));
}

bool is_regex(const std::string& pattern) {
  if (pattern.size() > kMaxPatternBytes) return false;
  int code = 0;
  PCRE2_SIZE at = 0;
  pcre2_code* compiled =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_UTF | PCRE2_ALT_BSUX | PCRE2_DOLLAR_ENDONLY, &code, &at, nullptr);
  if (compiled == nullptr) return false;
  pcre2_code_free(compiled);
  return true;
}

enum class Keyword : uint8_t {
  kSchema,
  kSchemaMap,
  kSchemaArray,
  kType,
  kStringArray,
  kStringArrayMap,
  kCount,
  kNumber,
  kPositive,
  kBoolean,
  kString,
  kPattern,
  kPatternMap,
  kArray,
  kRef,
  kMeta,
};

struct Rule {
  std::string_view name;
  Keyword kind;
};

constexpr std::array kRules = {
    Rule{"additionalProperties", Keyword::kSchema},
    Rule{"items", Keyword::kSchema},
    Rule{"contains", Keyword::kSchema},
    Rule{"not", Keyword::kSchema},
    Rule{"if", Keyword::kSchema},
    Rule{"then", Keyword::kSchema},
    Rule{"else", Keyword::kSchema},
    Rule{"propertyNames", Keyword::kSchema},
    Rule{"unevaluatedItems", Keyword::kSchema},
    Rule{"unevaluatedProperties", Keyword::kSchema},
    Rule{"contentSchema", Keyword::kSchema},
    Rule{"properties", Keyword::kSchemaMap},
    Rule{"$defs", Keyword::kSchemaMap},
    Rule{"definitions", Keyword::kSchemaMap},
    Rule{"dependentSchemas", Keyword::kSchemaMap},
    Rule{"patternProperties", Keyword::kPatternMap},
    Rule{"allOf", Keyword::kSchemaArray},
    Rule{"anyOf", Keyword::kSchemaArray},
    Rule{"oneOf", Keyword::kSchemaArray},
    Rule{"prefixItems", Keyword::kSchemaArray},
    Rule{"type", Keyword::kType},
    Rule{"required", Keyword::kStringArray},
    Rule{"dependentRequired", Keyword::kStringArrayMap},
    Rule{"minLength", Keyword::kCount},
    Rule{"maxLength", Keyword::kCount},
    Rule{"minItems", Keyword::kCount},
    Rule{"maxItems", Keyword::kCount},
    Rule{"minProperties", Keyword::kCount},
    Rule{"maxProperties", Keyword::kCount},
    Rule{"minContains", Keyword::kCount},
    Rule{"maxContains", Keyword::kCount},
    Rule{"minimum", Keyword::kNumber},
    Rule{"maximum", Keyword::kNumber},
    Rule{"exclusiveMinimum", Keyword::kNumber},
    Rule{"exclusiveMaximum", Keyword::kNumber},
    Rule{"multipleOf", Keyword::kPositive},
    Rule{"uniqueItems", Keyword::kBoolean},
    Rule{"deprecated", Keyword::kBoolean},
    Rule{"readOnly", Keyword::kBoolean},
    Rule{"writeOnly", Keyword::kBoolean},
    Rule{"title", Keyword::kString},
    Rule{"description", Keyword::kString},
    Rule{"$comment", Keyword::kString},
    Rule{"format", Keyword::kString},
    Rule{"$id", Keyword::kString},
    Rule{"$anchor", Keyword::kString},
    Rule{"contentEncoding", Keyword::kString},
    Rule{"contentMediaType", Keyword::kString},
    Rule{"pattern", Keyword::kPattern},
    Rule{"enum", Keyword::kArray},
    Rule{"examples", Keyword::kArray},
    Rule{"$ref", Keyword::kRef},
    Rule{"$dynamicRef", Keyword::kString},
    Rule{"$schema", Keyword::kMeta},
};

constexpr std::array<std::string_view, 7> kTypes = {"array",  "boolean", "integer", "null",
                                                    "number", "object",  "string"};
bool is_type_name(const json::Value& v) {
  return v.is_string() && std::find(kTypes.begin(), kTypes.end(), v.as_string()) != kTypes.end();
}

bool has_duplicates(const json::Array& items) {
  std::set<std::string> seen;
  for (const json::Value& v : items)
    if (!seen.insert(compact_json(v)).second) return true;
  return false;
}

class Checker {
 public:
  explicit Checker(const json::Value& root) : root_(root) {}

  Trouble schema(const json::Value& v) {
    if (v.is_bool()) return {};
    if (!v.is_object())
      return fmt::format("{} is not of types \"boolean\", \"object\"", spelled(v));
    for (const auto& [key, value] : unique_members(v.members())) {
      const auto rule = std::find_if(kRules.begin(), kRules.end(),
                                     [k = key](const Rule& r) { return r.name == *k; });
      if (rule == kRules.end()) continue;
      if (Trouble t = keyword(rule->kind, *value)) return t;
    }
    return {};
  }

 private:
  Trouble keyword(Keyword kind, const json::Value& v) {
    switch (kind) {
      case Keyword::kSchema:
        return schema(v);
      case Keyword::kSchemaMap:
      case Keyword::kPatternMap:
        if (!v.is_object()) return is_not(v, "object");
        for (const json::Member& m : v.members()) {
          if (kind == Keyword::kPatternMap && !is_regex(m.key))
            return fmt::format("{} is not a \"regex\"", quoted(m.key));
          if (Trouble t = schema(m.value)) return t;
        }
        return {};
      case Keyword::kSchemaArray:
        if (!v.is_array()) return is_not(v, "array");
        if (v.items().empty()) return "[] has less than 1 item";
        for (const json::Value& item : v.items())
          if (Trouble t = schema(item)) return t;
        return {};
      case Keyword::kType: {
        bool ok = is_type_name(v);
        if (v.is_array()) {
          ok = !v.items().empty() && !has_duplicates(v.items()) &&
               std::all_of(v.items().begin(), v.items().end(), is_type_name);
        }
        if (ok) return {};
        return fmt::format("{} is not valid under any of the schemas listed in the 'anyOf' keyword",
                           spelled(v));
      }
      case Keyword::kStringArray:
        return string_array(v);
      case Keyword::kStringArrayMap:
        if (!v.is_object()) return is_not(v, "object");
        for (const json::Member& m : v.members())
          if (Trouble t = string_array(m.value)) return t;
        return {};
      case Keyword::kCount:
        if (!is_integer_number(v)) return is_not(v, "integer");
        if (v.number_text().front() == '-' && v.to_double().value_or(-1) < 0)
          return fmt::format("{} is less than the minimum of 0", spelled(v));
        return {};
      case Keyword::kNumber:
        return v.is_number() ? Trouble() : is_not(v, "number");
      case Keyword::kPositive:
        if (!v.is_number()) return is_not(v, "number");
        if (v.to_double().value_or(1) <= 0)
          return fmt::format("{} is less than or equal to the minimum of 0", spelled(v));
        return {};
      case Keyword::kBoolean:
        return v.is_bool() ? Trouble() : is_not(v, "boolean");
      case Keyword::kString:
        return v.is_string() ? Trouble() : is_not(v, "string");
      case Keyword::kPattern:
        if (!v.is_string()) return is_not(v, "string");
        if (!is_regex(v.as_string())) return fmt::format("{} is not a \"regex\"", spelled(v));
        return {};
      case Keyword::kArray:
        return v.is_array() ? Trouble() : is_not(v, "array");
      case Keyword::kRef:
        return v.is_string() ? reference(v.as_string()) : is_not(v, "string");
      case Keyword::kMeta:
        return v.is_string() ? meta(v.as_string()) : is_not(v, "string");
    }
    return {};
  }

  static std::string quoted(std::string_view s) {
    std::string out;
    json::append_escaped(out, s);
    return out;
  }

  static Trouble string_array(const json::Value& v) {
    if (!v.is_array()) return is_not(v, "array");
    for (const json::Value& item : v.items())
      if (!item.is_string()) return is_not(item, "string");
    if (has_duplicates(v.items())) return fmt::format("{} has non-unique elements", spelled(v));
    return {};
  }

  Trouble reference(std::string_view ref) const {
    if (ref.empty() || ref == "#") return {};
    if (ref.front() != '#') {
      return fmt::format(
          "Resource '{0}' is not present in a registry and retrieving it failed: Retrieval is "
          "disabled, cannot fetch {0}",
          ref);
    }
    const std::string_view pointer = ref.substr(1);
    if (pointer.front() != '/') return {};  // an anchor
    const json::Value* at = &root_;
    std::string_view rest = pointer.substr(1);
    while (true) {
      const size_t slash = rest.find('/');
      const std::string key = unescape(rest.substr(0, slash));
      const json::Value* next = nullptr;
      if (at->is_object()) {
        next = at->find(key);
      } else if (at->is_array()) {
        size_t index = 0;
        const auto r = std::from_chars(key.data(), key.data() + key.size(), index);
        if (r.ec == std::errc() && r.ptr == key.data() + key.size() && index < at->items().size())
          next = &at->items()[index];
      }
      if (next == nullptr) return fmt::format("Pointer '{}' does not exist", pointer);
      at = next;
      if (slash == std::string_view::npos) return {};
      rest.remove_prefix(slash + 1);
    }
  }

  static std::string unescape(std::string_view s) {
    std::string out;
    for (size_t i = 0; i < s.size(); ++i) {
      unsigned byte = 0;
      if (s[i] == '~' && i + 1 < s.size() && (s[i + 1] == '0' || s[i + 1] == '1')) {
        out.push_back(s[++i] == '0' ? '~' : '/');
      } else if (s[i] == '%' && i + 2 < s.size() &&
                 std::from_chars(s.data() + i + 1, s.data() + i + 3, byte, 16).ptr ==
                     s.data() + i + 3) {
        out.push_back(static_cast<char>(byte));
        i += 2;
      } else {
        out.push_back(s[i]);
      }
    }
    return out;
  }

  static Trouble meta(std::string_view uri) {
    constexpr std::array<std::string_view, 6> kDrafts = {
        "json-schema.org/draft/2020-12/schema", "json-schema.org/draft/2019-09/schema",
        "json-schema.org/draft-07/schema",      "json-schema.org/draft-06/schema",
        "json-schema.org/draft-04/schema",      "json-schema.org/schema"};
    std::string_view s = uri;
    for (const std::string_view scheme :
         {std::string_view("http://"), std::string_view("https://")})
      if (s.starts_with(scheme)) s.remove_prefix(scheme.size());
    if (!s.empty() && s.back() == '#') s.remove_suffix(1);
    if (std::find(kDrafts.begin(), kDrafts.end(), s) != kDrafts.end()) return {};
    return fmt::format(
        "Unknown meta-schema: '{}'. Custom meta-schemas must be registered in the registry before "
        "use",
        uri);
  }

  const json::Value& root_;
};

}  // namespace

std::optional<std::string> schema_trouble(const json::Value& schema) {
  return Checker(schema).schema(schema);
}

}  // namespace deepmint::recipe
