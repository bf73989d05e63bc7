#include "cli/setting_value.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cmath>
#include <limits>
#include <type_traits>

#include "format/names.h"

namespace deepmint::cli {
namespace {

tl::unexpected<Error> wrong(const std::string& expected, const ConfigValue& value) {
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("expected {}, found {}", expected, value.found()));
}

template <class T>
std::optional<T> parse_whole(std::string_view text) {
  T v{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), v);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return v;
}

// "512MiB" → 2^20 * 512; a plain integer is bytes.
template <class T>
std::optional<T> parse_size(std::string_view text) {
  constexpr std::pair<std::string_view, int> kUnits[] = {
      {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}};
  for (const auto& [unit, shift] : kUnits) {
    if (!text.ends_with(unit)) continue;
    const auto count = parse_whole<T>(text.substr(0, text.size() - unit.size()));
    if (!count || *count < 0 || *count > (std::numeric_limits<T>::max() >> shift))
      return std::nullopt;
    return static_cast<T>(*count << shift);
  }
  return parse_whole<T>(text);
}

bool inside(double v, const Limits& limits) {
  return (limits.above_min ? v > limits.min : v >= limits.min) && v <= limits.max;
}

template <class T>
Status assign_integer(T& field, const ConfigValue& value, const Shape& shape) {
  using Wide = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
  std::optional<Wide> v;
  const auto [min, max] = integer_range<T>(shape.limits);
  if (const auto* text = std::get_if<ConfigValue::Text>(&value.value)) {
    v = shape.is_size ? parse_size<Wide>(text->text) : parse_whole<Wide>(text->text);
  } else if (const auto* typed = std::get_if<int64_t>(&value.value)) {
    if (std::is_signed_v<T> || *typed >= 0) v = static_cast<Wide>(*typed);
  } else if (const auto* size = std::get_if<std::string>(&value.value);
             size != nullptr && shape.is_size) {
    v = parse_size<Wide>(*size);
  }
  if (!v || *v < Wide{min} || *v > Wide{max}) return wrong(describe(T{}, shape), value);
  field = static_cast<T>(*v);
  return {};
}

template <class T>
Status assign_number(T& field, const ConfigValue& value, const Shape& shape) {
  std::optional<double> v;
  if (const auto* text = std::get_if<ConfigValue::Text>(&value.value)) {
    v = parse_whole<double>(text->text);
  } else if (const auto* typed = std::get_if<double>(&value.value)) {
    v = *typed;
  } else if (const auto* whole = std::get_if<int64_t>(&value.value)) {
    v = static_cast<double>(*whole);
  }
  // A finite number that overflows the field's type is as wrong as an infinite one.
  if (!v || !std::isfinite(static_cast<T>(*v)) || !inside(*v, shape.limits))
    return wrong(describe(T{}, shape), value);
  field = static_cast<T>(*v);
  return {};
}

std::string plain(double v) {
  if (std::abs(v) < 9.0e15 && v == std::floor(v)) return fmt::format("{}", static_cast<int64_t>(v));
  return fmt::format("{}", v);
}

}  // namespace

std::string ConfigValue::found() const {
  struct Describe {
    std::string operator()(const Text& t) const { return quote_name(t.text); }
    std::string operator()(bool b) const { return b ? "true" : "false"; }
    std::string operator()(int64_t n) const { return fmt::format("{}", n); }
    std::string operator()(double x) const { return fmt::format("{}", x); }
    std::string operator()(const std::string& s) const { return quote_name(s); }
    std::string operator()(const std::vector<std::string>& list) const {
      return fmt::format("a list of {} texts", list.size());
    }
  };
  return std::visit(Describe{}, value);
}

Status assign(bool& field, const ConfigValue& value, const Shape&) {
  if (const auto* typed = std::get_if<bool>(&value.value)) {
    field = *typed;
    return {};
  }
  if (const auto* text = std::get_if<ConfigValue::Text>(&value.value)) {
    for (const std::string_view yes : {"true", "1", "yes", "on"})
      if (text->text == yes) return field = true, Status{};
    for (const std::string_view no : {"false", "0", "no", "off"})
      if (text->text == no) return field = false, Status{};
  }
  return wrong(describe_bool(), value);
}

Status assign(int32_t& f, const ConfigValue& v, const Shape& s) { return assign_integer(f, v, s); }
Status assign(int64_t& f, const ConfigValue& v, const Shape& s) { return assign_integer(f, v, s); }
Status assign(uint16_t& f, const ConfigValue& v, const Shape& s) { return assign_integer(f, v, s); }
Status assign(uint32_t& f, const ConfigValue& v, const Shape& s) { return assign_integer(f, v, s); }
Status assign(uint64_t& f, const ConfigValue& v, const Shape& s) { return assign_integer(f, v, s); }
Status assign(float& f, const ConfigValue& v, const Shape& s) { return assign_number(f, v, s); }
Status assign(double& f, const ConfigValue& v, const Shape& s) { return assign_number(f, v, s); }

Status assign(std::string& field, const ConfigValue& value, const Shape& shape) {
  const auto* text = std::get_if<ConfigValue::Text>(&value.value);
  const auto* typed = std::get_if<std::string>(&value.value);
  if (text == nullptr && typed == nullptr) return wrong(describe_text(shape), value);
  const std::string& s = text != nullptr ? text->text : *typed;
  if (!shape.limits.choices.empty()) {
    bool known = false;
    for (const std::string_view choice : shape.limits.choices) known = known || choice == s;
    if (!known) return wrong(describe_text(shape), value);
  }
  field = s;
  return {};
}

Status assign(std::filesystem::path& field, const ConfigValue& value, const Shape& shape) {
  std::string text;
  DEEPMINT_CHECK_OK(assign(text, value, shape));
  field = text;
  return {};
}

Status assign(std::vector<std::string>& field, const ConfigValue& value, const Shape& shape) {
  if (const auto* list = std::get_if<std::vector<std::string>>(&value.value)) {
    field = *list;
    return {};
  }
  const auto* text = std::get_if<ConfigValue::Text>(&value.value);
  if (text == nullptr) return wrong(describe(field, shape), value);
  std::vector<std::string> parts;
  for (size_t begin = 0; begin < text->text.size();) {
    const size_t comma = std::min(text->text.find(',', begin), text->text.size());
    parts.push_back(text->text.substr(begin, comma - begin));
    begin = comma + 1;
  }
  field = std::move(parts);
  return {};
}

std::string spell(bool v) { return v ? "true" : "false"; }
std::string spell(int64_t v) { return fmt::format("{}", v); }
std::string spell(uint64_t v) { return fmt::format("{}", v); }
std::string spell(float v) { return fmt::format("{}", v); }
std::string spell(double v) { return fmt::format("{}", v); }
std::string spell(const std::string& v) { return v; }
std::string spell(const std::filesystem::path& v) { return v.string(); }
std::string spell(const std::vector<std::string>& v) {
  return fmt::format("{}", fmt::join(v, ","));
}

std::string describe_bool() { return "true or false"; }

// Both ends are always said: a value beyond the type's range is found by trying otherwise.
template <class T>
static std::string describe_integer(const Shape& shape) {
  const auto [min, max] = integer_range<T>(shape.limits);
  return fmt::format("{} from {} to {}",
                     shape.is_size ? "a size in bytes (or 64KiB, 8MiB, 2GiB)" : "an integer", min,
                     max);
}
std::string describe(int32_t, const Shape& shape) { return describe_integer<int32_t>(shape); }
std::string describe(int64_t, const Shape& shape) { return describe_integer<int64_t>(shape); }
std::string describe(uint16_t, const Shape& shape) { return describe_integer<uint16_t>(shape); }
std::string describe(uint32_t, const Shape& shape) { return describe_integer<uint32_t>(shape); }
std::string describe(uint64_t, const Shape& shape) { return describe_integer<uint64_t>(shape); }

template <class T>
static std::string describe_number(const Shape& shape) {
  constexpr double kMax = std::numeric_limits<T>::max();
  const Limits& l = shape.limits;
  return fmt::format("a number {} {} {} {}", l.above_min ? "above" : "from",
                     plain(std::max(l.min, -kMax)), l.above_min ? "and up to" : "to",
                     plain(std::min(l.max, kMax)));
}
std::string describe(float, const Shape& shape) { return describe_number<float>(shape); }
std::string describe(double, const Shape& shape) { return describe_number<double>(shape); }

std::string describe_text(const Shape& shape) {
  if (shape.limits.choices.empty()) return "a text";
  return fmt::format("one of {}", fmt::join(shape.limits.choices, ", "));
}

}  // namespace deepmint::cli
