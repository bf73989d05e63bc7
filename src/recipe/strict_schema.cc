#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "recipe/fields.h"
#include "recipe/schema_check.h"
#include "recipe/spelling.h"

namespace deepmint::recipe {
namespace {

using json::Member;
using json::Object;
using json::Value;

Result<Value> text(const Value& v) {
  if (!v.is_string()) return wrong_type(v, "a string");
  return v;
}

class Strict {
 public:
  explicit Strict(StrictUse use) : use_(use) {}

  Result<Value> top(const Value& schema) {
    auto out = node(schema, true);
    if (!out) {
      Error e = std::move(out).error();
      if (e.where == kBodyError) {
        e.message = (use_ == StrictUse::kToolParameters ? "Invalid tool parameters schema : "
                                                        : "Invalid json schema: ") +
                    e.message;
        e.where.clear();
      }
      return tl::unexpected<Error>(std::move(e));
    }
    const Value* type = out->find("type");
    if (use_ == StrictUse::kToolParameters
            ? (type == nullptr || *type != Value(std::string("object")))
            : !is_top_of_format(type))
      return request_error(
          use_ == StrictUse::kToolParameters
              ? "The top level of the function parameters schema must be an object."
              : "The top level of the json schema must be an object.");
    return out;
  }

 private:
  static bool is_top_of_format(const Value* type) {
    return type != nullptr && *type == Value(std::string("object"));
  }

  Result<Value> node(const Value& v, bool is_top) {
    if (v.is_object()) {
      if (const Value* type = v.find("type"); type != nullptr) {
        if (type->is_array()) return union_type(v, *type);
        return typed(v, *type, is_top);
      }
      if (const Value* any = v.find("anyOf"); any != nullptr) return any_of(*any);
      if (const Value* ref = v.find("$ref"); ref != nullptr) {
        if (!ref->is_string()) return at("$ref", wrong_type(*ref, "a string"));
        return Value(Object{{"$ref", *ref}});
      }
    }
    return body_error("one of `type`, `anyOf`, `$ref` field is required");
  }

  static tl::unexpected<Error> at(std::string_view field, tl::unexpected<Error> e) {
    if (e.value().where == kBodyError)
      e.value().message = fmt::format("field `{}`: {}", field, e.value().message);
    return e;
  }

  Result<Value> union_type(const Value& v, const Value& type) {
    for (const Value& t : type.items()) {
      auto name = variant_of(t, {"string", "number", "integer", "boolean", "null"});
      if (!name) return at("type", tl::unexpected<Error>(std::move(name).error()));
    }
    Object out{{"type", type}};
    DEEPMINT_CHECK_OK(copy_text(v, "description", out));
    return Value(std::move(out));
  }

  Result<Value> any_of(const Value& any) {
    if (!any.is_array()) return at("anyOf", wrong_type(any, "a sequence"));
    json::Array items;
    for (const Value& item : any.items()) {
      const Value* type = item.is_object() ? item.find("type") : nullptr;
      if (type == nullptr) return at("anyOf", body_error("missing field `type`"));
      auto built = typed(item, *type, false);
      if (!built) return at("anyOf", tl::unexpected<Error>(std::move(built).error()));
      items.push_back(std::move(*built));
    }
    return Value(Object{{"anyOf", Value(std::move(items))}});
  }

  Result<Value> typed(const Value& v, const Value& type, bool is_top) {
    DEEPMINT_TRY(name, variant_of(type, {"object", "string", "number", "integer", "boolean",
                                         "array", "null"}));
    if (name == "object") return object(v, is_top);
    Object out{{"type", type}};
    if (name == "array") {
      const Value* items = v.find("items");
      if (items == nullptr) return body_error("missing field `items`");
      DEEPMINT_TRY(built, node(*items, false));
      out.push_back({"items", std::move(built)});
      DEEPMINT_CHECK_OK(copy_text(v, "description", out));
      return Value(std::move(out));
    }
    DEEPMINT_CHECK_OK(copy_text(v, "description", out));
    if (name == "string") {
      DEEPMINT_CHECK_OK(copy_text(v, "pattern", out));
      if (const Value* format = v.find("format"); format != nullptr && !format->is_null()) {
        DEEPMINT_TRY(known, variant_of(*format, {"email", "hostname", "ipv4", "ipv6", "uuid"}));
        out.push_back({"format", Value(std::string(known))});
      }
      if (const Value* items = v.find("enum"); items != nullptr && !items->is_null()) {
        if (!items->is_array()) return wrong_type(*items, "a sequence");
        for (const Value& item : items->items()) DEEPMINT_CHECK_OK(text(item));
        out.push_back({"enum", *items});
      }
    } else if (name == "number" || name == "integer") {
      for (const std::string_view key : {"const", "default", "minimum", "maximum",
                                         "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}) {
        const Value* n = v.find(key);
        if (n == nullptr || n->is_null()) continue;
        if (name == "integer" &&
            (!n->is_number() || n->number_text().find_first_of(".eE") != std::string::npos))
          return wrong_type(*n, "i64");
        if (!n->is_number()) return wrong_type(*n, "a JSON number");
        out.push_back({std::string(key), *n});
      }
    }
    return Value(std::move(out));
  }

  static Status copy_text(const Value& v, std::string_view key, Object& out) {
    const Value* s = v.find(key);
    if (s == nullptr || s->is_null()) return {};
    DEEPMINT_CHECK_OK(text(*s));
    out.push_back({std::string(key), *s});
    return {};
  }

  Result<Value> object(const Value& v, bool is_top) {
    Object properties;
    json::Array required;
    if (const Value* p = v.find("properties"); p != nullptr && !p->is_null()) {
      if (!p->is_object()) return wrong_type(*p, "a map");
      for (const auto& [key, value] : unique_members(p->members())) {
        DEEPMINT_TRY(built, node(*value, false));
        properties.push_back({*key, std::move(built)});
        required.emplace_back(*key);
      }
    }
    if (const Value* a = v.find("additionalProperties"); a != nullptr && !a->is_null()) {
      if (!a->is_bool()) return wrong_type(*a, "a boolean");
      if (a->as_bool()) return request_error("additionalProperties should not be true");
    }
    if (const Value* r = v.find("required"); r != nullptr && !r->is_null()) {
      if (!r->is_array()) return wrong_type(*r, "a sequence");
      size_t found = 0;
      for (const Value& item : r->items()) {
        DEEPMINT_CHECK_OK(text(item));
        if (std::find(required.begin(), required.end(), item) == required.end())
          return request_error(
              fmt::format("Required property '{}' not found in object", item.as_string()));
        ++found;
      }
      if (found != 0 && found != required.size())
        return request_error("Required properties must match all properties in the object");
    }
    if (properties.empty() && !is_top)
      return request_error("An object with no properties is not allowed.");
    Object out{{"type", Value(std::string("object"))},
               {"properties", Value(std::move(properties))},
               {"additionalProperties", Value(false)},
               {"required", Value(std::move(required))}};
    DEEPMINT_CHECK_OK(copy_text(v, "description", out));
    return Value(std::move(out));
  }

  StrictUse use_;
};

}  // namespace

Result<json::Value> strict_schema(const json::Value& schema, StrictUse use) {
  return Strict(use).top(schema);
}

}  // namespace deepmint::recipe
