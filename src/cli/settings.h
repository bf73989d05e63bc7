// The settings of config.h by name, and where each value came from. Precedence: defaults < file <
// environment < flags.
//
//   Config config;
//   Settings settings(config);
//   DEEPMINT_CHECK_OK(settings.load_file("deepmint.toml"));
//   DEEPMINT_CHECK_OK(settings.load_environment(env_with_prefix("DEEPMINT_")));
//   DEEPMINT_CHECK_OK(settings.set("cpu.threads", ConfigValue::from_text("2"),
//   Origin::flag("--threads")));
//
// Load in that order: a later call overrides an earlier one. `config` must outlive the object.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/config.h"
#include "cli/setting_value.h"
#include "deepmint/result.h"

namespace deepmint::cli {

struct Origin {
  enum class Kind { kDefault, kFile, kEnvironment, kFlag };
  Kind kind = Kind::kDefault;
  std::string detail;  // "deepmint.toml:12", "DEEPMINT_CPU_THREADS", "--threads"

  std::string str() const { return kind == Kind::kDefault ? "default" : detail; }
};

struct Setting {
  std::string key;       // "engine.context_tokens"
  std::string flag;      // "--ctx"
  std::string variable;  // "DEEPMINT_ENGINE_CONTEXT_TOKENS"
  std::string help;
  std::string_view kind;     // "N", "X", "TEXT", "BOOL", …
  std::string values;        // "an integer from 0 to 1024"
  std::string default_text;  // spelled as a flag would be
  bool is_bool = false;
  Origin origin;
  std::function<Status(const ConfigValue&)> assign;
  std::function<std::string()> text;  // the value now

  std::string_view section() const { return std::string_view(key).substr(0, key.find('.')); }
};

class Settings {
 public:
  explicit Settings(Config& config);

  std::span<const Setting> all() const { return settings_; }
  const Setting* find(std::string_view key) const;

  // Errors name the origin: `--threads: expected an integer …, found "x"`. The config keeps its old
  // value then.
  Status set(std::string_view key, const ConfigValue& value, Origin origin);

  // A TOML file: tables are sections. kNotFound or kInvalidFile with the line; kInvalidArgument for
  // an unknown key, with the line and the nearest match, and for a value of the wrong type or
  // range.
  Status load_file(const std::string& path);
  Status load_toml(std::string_view text, const std::string& file_name);

  // name, value pairs; every name must be a setting's variable. Names that begin with
  // DEEPMINT_TEST_ belong to the test suite.
  Status load_environment(std::span<const std::pair<std::string, std::string>> variables);

  std::vector<std::string> keys() const;

 private:
  std::vector<Setting> settings_;
};

// The effective set, one aligned line per setting: key = value  (origin).
std::string effective_table(const Settings& settings);
std::string effective_json(const Settings& settings);
std::string knobs_markdown(const Settings& settings);  // docs/knobs.md

}  // namespace deepmint::cli
