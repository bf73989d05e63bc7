// The options of one command, as a list that the parser and the help page both read. Holds
// references: the variables must outlive it.
//
//   Options o;
//   o.positional("MODEL", model, "a .gguf file or a folder in Hugging Face layout");
//   o.group("Prompt");
//   o.text("-p,--prompt", prompt, "TEXT", "what to answer; - reads standard input");
//   o.flag("--raw", raw, "no chat template");
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/settings.h"

namespace deepmint::cli {

struct Option {
  std::string names =
      {};  // "-p,--prompt", "--raw"; a positional has its name in capitals and no dash
  std::string kind = {};  // "TEXT"; empty for a flag
  std::string help = {};
  std::string default_text = {};  // as --help prints it; empty = none
  std::string group = {};
  bool repeats = false;
  bool is_positional = false;
  bool required = false;
  std::function<void(const std::string& value)> set =
      {};  // called once per occurrence, in order; a flag gets "true" or its value
};

class Options {
 public:
  void group(std::string name) { group_ = std::move(name); }
  void positional(std::string name, std::string& out, std::string help, bool required = true);
  void text(std::string names, std::optional<std::string>& out, std::string kind, std::string help);
  void text(std::string names, std::string& out, std::string kind,
            std::string help);  // its value now is the default
  void texts(std::string names, std::vector<std::string>& out, std::string kind, std::string help);
  void flag(std::string names, bool& out, std::string help);

  // A flag for every setting of these sections. The values are kept as text in `given` and applied
  // after file and environment.
  struct GivenFlag {
    std::string key, flag, value;
  };
  void settings(const Settings& settings, std::string_view section, const std::string& group,
                std::vector<GivenFlag>& given);

  const std::vector<Option>& all() const { return options_; }

 private:
  std::vector<Option> options_;
  std::string group_ = "Options";
};

}  // namespace deepmint::cli
