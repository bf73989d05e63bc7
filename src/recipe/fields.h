// Typed reading of request objects, with the error texts of the original's deserializer ("missing
// field `model`", "invalid type: integer `5`, expected a string"). Every error has `where` =
// "invalid request body", so that it can be told from an error of the conversion, whose `where` is
// empty.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "core/json.h"
#include "deepmint/result.h"

namespace deepmint::recipe {

inline constexpr std::string_view kBodyError = "invalid request body";

[[nodiscard]] tl::unexpected<Error> body_error(
    std::string message);  // a request that cannot be read
[[nodiscard]] tl::unexpected<Error> request_error(
    std::string message);  // a request that can be read but not served
[[nodiscard]] tl::unexpected<Error> wrong_type(const json::Value& found, std::string_view expected);

// "unknown variant `x`, expected one of `a`, `b`" (two: "expected `a` or `b`", one: "expected
// `a`").
[[nodiscard]] tl::unexpected<Error> unknown_variant(std::string_view found,
                                                    std::initializer_list<std::string_view> known);

// Members of one request object. Absent and null members are the same for the optional readers.
class Fields {
 public:
  // `expected` names the object in errors ("struct ChatCompletionRequest").
  static Result<Fields> of(const json::Value& value, std::string_view expected);

  const json::Value* find(std::string_view key) const;          // also when null
  const json::Value* get(std::string_view key) const;           // nullptr when absent or null
  Result<const json::Value*> need(std::string_view key) const;  // error when absent; may be null

  Result<std::string_view> need_string(std::string_view key) const;
  Result<std::optional<std::string_view>> opt_string(std::string_view key) const;
  Result<std::optional<bool>> opt_bool(std::string_view key) const;
  Result<std::optional<float>> opt_f32(std::string_view key) const;
  Result<std::optional<uint32_t>> opt_u32(std::string_view key) const {
    return narrow<uint32_t>(key, "u32", 0xffffffffu);
  }
  Result<std::optional<uint32_t>> opt_u8(std::string_view key) const {
    return narrow<uint32_t>(key, "u8", 0xffu);
  }
  Result<std::optional<uint64_t>> opt_u64(std::string_view key) const;
  Result<const json::Array*> need_array(std::string_view key) const;
  Result<const json::Array*> opt_array(std::string_view key) const;  // nullptr when absent or null
  Result<std::optional<Fields>> opt_object(std::string_view key, std::string_view expected) const;
  // A string member that must be one of `known`.
  Result<std::string_view> need_variant(std::string_view key,
                                        std::initializer_list<std::string_view> known) const;
  Result<std::optional<std::string_view>> opt_variant(
      std::string_view key, std::initializer_list<std::string_view> known) const;

 private:
  explicit Fields(const json::Value& value) : value_(&value) {}
  Result<std::optional<uint64_t>> unsigned_integer(std::string_view key, std::string_view type,
                                                   uint64_t max) const;
  template <class T>
  Result<std::optional<T>> narrow(std::string_view key, std::string_view type, uint64_t max) const {
    auto v = unsigned_integer(key, type, max);
    if (!v) return tl::unexpected<Error>(std::move(v).error());
    if (!*v) return std::optional<T>();
    return std::optional<T>(static_cast<T>(**v));
  }
  const json::Value* value_;
};

Result<std::string_view> variant_of(const json::Value& value,
                                    std::initializer_list<std::string_view> known);

}  // namespace deepmint::recipe
