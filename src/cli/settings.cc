#include "cli/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "cli/near_miss.h"
#include "core/check.h"
#include "format/names.h"

namespace deepmint::cli {
namespace {

constexpr std::string_view kPrefix = "DEEPMINT_";
// Set by the test runner for the tests themselves, not for the program.
constexpr std::string_view kTestPrefix = "DEEPMINT_TEST_", kTestBinary = "DEEPMINT_BIN";

// A flag is the setting's name without its section, except where that would not say what it is
// about.
constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kFlagNames = {{
    {"engine.context_tokens", "--ctx"},
    {"cpu.isa", "--cpu-isa"},
    {"log.level", "--log-level"},
}};

std::string flag_name(std::string_view key) {
  for (const auto& [name, flag] : kFlagNames)
    if (name == key) return std::string(flag);
  std::string flag = "--" + std::string(key.substr(key.find('.') + 1));
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

std::string variable_name(std::string_view key) {
  std::string name(kPrefix);
  for (const char c : key)
    name += c == '.' ? '_' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  return name;
}

struct Binder {
  std::vector<Setting>& out;

  template <class T>
  void operator()(const char* key, T& field, const char* help, Limits limits = {}) {
    const Shape shape{std::move(limits), std::string_view(key).ends_with("_bytes")};
    Setting s;
    s.key = key;
    DEEPMINT_CHECK(s.key.find('.') != std::string::npos);
    s.flag = flag_name(key);
    s.variable = variable_name(key);
    s.help = help;
    s.kind = kind_name(field);
    s.values = describe(field, shape);
    s.default_text = spell(field);
    s.is_bool = std::is_same_v<T, bool>;
    s.assign = [&field, shape](const ConfigValue& value) { return assign(field, value, shape); };
    s.text = [&field] { return spell(field); };
    out.push_back(std::move(s));
  }
};

}  // namespace

Settings::Settings(Config& config) {
  Binder binder{settings_};
  config.visit(binder);
}

const Setting* Settings::find(std::string_view key) const {
  for (const Setting& s : settings_)
    if (s.key == key) return &s;
  return nullptr;
}

std::vector<std::string> Settings::keys() const {
  std::vector<std::string> keys;
  keys.reserve(settings_.size());
  for (const Setting& s : settings_) keys.push_back(s.key);
  return keys;
}

Status Settings::set(std::string_view key, const ConfigValue& value, Origin origin) {
  const auto it = std::find_if(settings_.begin(), settings_.end(),
                               [&](const Setting& s) { return s.key == key; });
  if (it == settings_.end())
    return tl::unexpected(unknown_name("setting", key, keys(), origin.str()));
  if (auto ok = it->assign(value); !ok) {
    const std::string place =
        origin.kind == Origin::Kind::kFile ? origin.str() + ": " + it->key : origin.str();
    return tl::unexpected(std::move(ok).error().at(place));
  }
  it->origin = std::move(origin);
  return {};
}

Status Settings::load_environment(std::span<const std::pair<std::string, std::string>> variables) {
  for (const auto& [name, value] : variables) {
    if (name.starts_with(kTestPrefix) || name == kTestBinary) continue;
    const auto it = std::find_if(settings_.begin(), settings_.end(),
                                 [&](const Setting& s) { return s.variable == name; });
    if (it == settings_.end()) {
      // Compared without the prefix that all of them share, which would make everything look near.
      std::vector<std::string> known;
      known.reserve(settings_.size());
      for (const Setting& s : settings_) known.push_back(s.variable.substr(kPrefix.size()));
      const std::string near =
          near_miss(std::string_view(name).substr(std::min(kPrefix.size(), name.size())), known);
      return fail(
          ErrorCode::kInvalidArgument,
          fmt::format("unknown variable {}{}", quote_name(name),
                      near.empty() ? std::string("; docs/knobs.md lists the known ones")
                                   : fmt::format("; did you mean \"{}{}\"?", kPrefix, near)),
          "environment");
    }
    DEEPMINT_CHECK_OK(
        set(it->key, ConfigValue::from_text(value), {Origin::Kind::kEnvironment, name}));
  }
  return {};
}

}  // namespace deepmint::cli
