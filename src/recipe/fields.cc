#include "recipe/fields.h"

#include <fmt/format.h>

#include <algorithm>

#include "recipe/spelling.h"

namespace deepmint::recipe {
namespace {

std::string describe(const json::Value& v) {
  switch (v.kind()) {
    case json::Kind::kNull:
      return "null";
    case json::Kind::kBool:
      return fmt::format("boolean `{}`", v.as_bool());
    case json::Kind::kNumber: {
      std::string text;
      append_number(text, v.number_text(), NumberStyle::kCompact);
      const bool integer = text.find_first_of(".e") == std::string::npos;
      return fmt::format("{} `{}`", integer ? "integer" : "floating point", text);
    }
    case json::Kind::kString: {
      std::string text;
      json::append_escaped(text, v.as_string().substr(0, 200));
      return "string " + text;
    }
    case json::Kind::kArray:
      return "sequence";
    case json::Kind::kObject:
      return "map";
  }
  return {};
}

}  // namespace

tl::unexpected<Error> body_error(std::string message) {
  return fail(ErrorCode::kInvalidArgument, std::move(message), std::string(kBodyError));
}

tl::unexpected<Error> request_error(std::string message) {
  return fail(ErrorCode::kInvalidArgument, std::move(message));
}

tl::unexpected<Error> wrong_type(const json::Value& found, std::string_view expected) {
  return body_error(fmt::format("invalid type: {}, expected {}", describe(found), expected));
}

tl::unexpected<Error> unknown_variant(std::string_view found,
                                      std::initializer_list<std::string_view> known) {
  std::string list;
  if (known.size() > 2) {
    list = "one of ";
    for (const std::string_view k : known) {
      if (list.size() > 7) list.append(", ");
      list.append("`").append(k).append("`");
    }
  } else {
    for (const std::string_view k : known) {
      if (!list.empty()) list.append(" or ");
      list.append("`").append(k).append("`");
    }
  }
  return body_error(fmt::format("unknown variant `{}`, expected {}", found.substr(0, 200), list));
}

Result<Fields> Fields::of(const json::Value& value, std::string_view expected) {
  if (!value.is_object()) return wrong_type(value, expected);
  return Fields(value);
}

const json::Value* Fields::find(std::string_view key) const { return value_->find(key); }

const json::Value* Fields::get(std::string_view key) const {
  const json::Value* v = find(key);
  return v == nullptr || v->is_null() ? nullptr : v;
}

Result<const json::Value*> Fields::need(std::string_view key) const {
  const json::Value* v = find(key);
  if (v == nullptr) return body_error(fmt::format("missing field `{}`", key));
  return v;
}

Result<std::string_view> Fields::need_string(std::string_view key) const {
  DEEPMINT_TRY(v, need(key));
  if (!v->is_string()) return wrong_type(*v, "a string");
  return std::string_view(v->as_string());
}

Result<std::optional<std::string_view>> Fields::opt_string(std::string_view key) const {
  const json::Value* v = get(key);
  if (v == nullptr) return std::optional<std::string_view>();
  if (!v->is_string()) return wrong_type(*v, "a string");
  return std::optional<std::string_view>(v->as_string());
}

Result<std::optional<bool>> Fields::opt_bool(std::string_view key) const {
  const json::Value* v = get(key);
  if (v == nullptr) return std::optional<bool>();
  if (!v->is_bool()) return wrong_type(*v, "a boolean");
  return std::optional<bool>(v->as_bool());
}

Result<std::optional<float>> Fields::opt_f32(std::string_view key) const {
  const json::Value* v = get(key);
  if (v == nullptr) return std::optional<float>();
  if (!v->is_number()) return wrong_type(*v, "f32");
  const auto d = v->to_double();
  if (!d) return body_error("number out of range");
  return std::optional<float>(static_cast<float>(*d));
}

Result<std::optional<uint64_t>> Fields::unsigned_integer(std::string_view key,
                                                         std::string_view type,
                                                         uint64_t max) const {
  const json::Value* v = get(key);
  if (v == nullptr) return std::optional<uint64_t>();
  const bool integer = v->is_number() &&
                       v->number_text().find_first_of(".eE") == std::string::npos &&
                       v->number_text() != "-0";
  if (!integer) return wrong_type(*v, type);
  const std::optional<uint64_t> n = v->to_uint64();
  if (!n || *n > max)
    return body_error(fmt::format("invalid value: {}, expected {}", describe(*v), type));
  return n;
}

Result<std::optional<uint64_t>> Fields::opt_u64(std::string_view key) const {
  return unsigned_integer(key, "u64", ~uint64_t{0});
}

Result<const json::Array*> Fields::need_array(std::string_view key) const {
  DEEPMINT_TRY(v, need(key));
  if (!v->is_array()) return wrong_type(*v, "a sequence");
  return &v->items();
}

Result<const json::Array*> Fields::opt_array(std::string_view key) const {
  const json::Value* v = get(key);
  if (v == nullptr) return static_cast<const json::Array*>(nullptr);
  if (!v->is_array()) return wrong_type(*v, "a sequence");
  return &v->items();
}

Result<std::optional<Fields>> Fields::opt_object(std::string_view key,
                                                 std::string_view expected) const {
  const json::Value* v = get(key);
  if (v == nullptr) return std::optional<Fields>();
  DEEPMINT_TRY(fields, of(*v, expected));
  return std::optional<Fields>(fields);
}

Result<std::string_view> variant_of(const json::Value& value,
                                    std::initializer_list<std::string_view> known) {
  if (!value.is_string()) return wrong_type(value, "variant identifier");
  const std::string_view s = value.as_string();
  if (std::find(known.begin(), known.end(), s) == known.end()) return unknown_variant(s, known);
  return s;
}

Result<std::string_view> Fields::need_variant(std::string_view key,
                                              std::initializer_list<std::string_view> known) const {
  DEEPMINT_TRY(v, need(key));
  return variant_of(*v, known);
}

Result<std::optional<std::string_view>> Fields::opt_variant(
    std::string_view key, std::initializer_list<std::string_view> known) const {
  const json::Value* v = get(key);
  if (v == nullptr) return std::optional<std::string_view>();
  DEEPMINT_TRY(s, variant_of(*v, known));
  return std::optional<std::string_view>(s);
}

}  // namespace deepmint::recipe
