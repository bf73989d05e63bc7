// How a setting's value is read from text or TOML, checked, and written back. One codec per field
// type of config.h; the type list is closed on purpose: a field of another type does not compile
// until its codec is written here.
//
//   int32_t threads = 0;
//   assign(threads, ConfigValue::from_text("2"), Shape{.limits = {.min = 0}});   // Status; threads
//   unchanged on error spell(threads); // "2"
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/limits.h"
#include "deepmint/result.h"

namespace deepmint::cli {

// A value on its way into a setting. Text is what a flag or a variable holds and is parsed by the
// field's type; the other kinds come from a TOML file and must match the field's type.
struct ConfigValue {
  struct Text {
    std::string text;
  };
  std::variant<Text, bool, int64_t, double, std::string, std::vector<std::string>> value;

  static ConfigValue from_text(std::string text) { return {Text{std::move(text)}}; }
  std::string found() const;  // as an error message names it
};

struct Shape {
  Limits limits;
  bool is_size = false;  // integers that also take "512MiB"; set for names that end in _bytes
};

// Each writes the field only when the value is right; else kInvalidArgument "expected …, found …"
// with an empty `where`.
Status assign(bool& field, const ConfigValue& value, const Shape& shape);
Status assign(int32_t& field, const ConfigValue& value, const Shape& shape);
Status assign(int64_t& field, const ConfigValue& value, const Shape& shape);
Status assign(uint16_t& field, const ConfigValue& value, const Shape& shape);
Status assign(uint32_t& field, const ConfigValue& value, const Shape& shape);
Status assign(uint64_t& field, const ConfigValue& value, const Shape& shape);
Status assign(float& field, const ConfigValue& value, const Shape& shape);
Status assign(double& field, const ConfigValue& value, const Shape& shape);
Status assign(std::string& field, const ConfigValue& value, const Shape& shape);
Status assign(std::filesystem::path& field, const ConfigValue& value, const Shape& shape);
Status assign(std::vector<std::string>& field, const ConfigValue& value, const Shape& shape);

// The value as a flag or a variable would give it; assign(from_text(spell(x))) gives x back.
std::string spell(bool v);
std::string spell(int64_t v);
std::string spell(uint64_t v);
inline std::string spell(int32_t v) { return spell(static_cast<int64_t>(v)); }
inline std::string spell(uint16_t v) { return spell(static_cast<uint64_t>(v)); }
inline std::string spell(uint32_t v) { return spell(static_cast<uint64_t>(v)); }
std::string spell(float v);
std::string spell(double v);
std::string spell(const std::string& v);
std::string spell(const std::filesystem::path& v);
std::string spell(const std::vector<std::string>& v);  // joined by commas

// What --help writes after the flag.
inline std::string_view kind_name(bool) { return "BOOL"; }
inline std::string_view kind_name(int32_t) { return "N"; }
inline std::string_view kind_name(int64_t) { return "N"; }
inline std::string_view kind_name(uint16_t) { return "N"; }
inline std::string_view kind_name(uint32_t) { return "N"; }
inline std::string_view kind_name(uint64_t) { return "N"; }
inline std::string_view kind_name(float) { return "X"; }
inline std::string_view kind_name(double) { return "X"; }
inline std::string_view kind_name(const std::string&) { return "TEXT"; }
inline std::string_view kind_name(const std::filesystem::path&) { return "PATH"; }
inline std::string_view kind_name(const std::vector<std::string>&) { return "A,B,…"; }

// Which values it takes, as error messages and docs/knobs.md say it: "an integer from 0 to 1024".
std::string describe_bool();
std::string describe_text(const Shape& shape);
inline std::string describe(bool, const Shape&) { return describe_bool(); }
std::string describe(int32_t, const Shape& shape);
std::string describe(int64_t, const Shape& shape);
std::string describe(uint16_t, const Shape& shape);
std::string describe(uint32_t, const Shape& shape);
std::string describe(uint64_t, const Shape& shape);
std::string describe(float, const Shape& shape);
std::string describe(double, const Shape& shape);
inline std::string describe(const std::string&, const Shape& shape) { return describe_text(shape); }
inline std::string describe(const std::filesystem::path&, const Shape&) { return "a path"; }
inline std::string describe(const std::vector<std::string>&, const Shape&) {
  return "a list of texts";
}

// Tri-state fields: "auto", or a value.
inline bool is_auto(const ConfigValue& value) {
  if (const auto* text = std::get_if<ConfigValue::Text>(&value.value)) return text->text == "auto";
  const auto* typed = std::get_if<std::string>(&value.value);
  return typed != nullptr && *typed == "auto";
}
template <class T>
std::string describe(const std::optional<T>&, const Shape& shape) {
  return "auto, or " + describe(T{}, shape);
}
template <class T>
std::string_view kind_name(const std::optional<T>&) {
  return kind_name(T{});
}
template <class T>
std::string spell(const std::optional<T>& v) {
  return v ? spell(*v) : "auto";
}
template <class T>
Status assign(std::optional<T>& field, const ConfigValue& value, const Shape& shape) {
  if (is_auto(value)) {
    field.reset();
    return {};
  }
  T parsed{};
  if (auto ok = assign(parsed, value, shape); !ok)
    return fail(ErrorCode::kInvalidArgument,
                "expected " + describe(field, shape) + ", found " + value.found());
  field = std::move(parsed);
  return {};
}

}  // namespace deepmint::cli
