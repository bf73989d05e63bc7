// A command of the program: its name, its options and what it does. One file per command
// (cmd_*.cc); command_line.h finds and parses it, app.h resolves the settings and runs it.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/config.h"
#include "cli/options.h"
#include "cli/settings.h"
#include "deepmint/result.h"

namespace deepmint::cli {

class Command {
 public:
  virtual ~Command() = default;
  virtual std::string_view name() const = 0;
  virtual std::string_view summary() const = 0;  // one line, for the list of commands
  virtual std::string_view description() const {
    return {};
  }  // more, for the command's own help page; may be empty
  // Settings that have a flag here.
  virtual std::span<const std::string_view> sections() const {
    static constexpr std::string_view kSections[] = {"log"};
    return kSections;
  }
  virtual void options(Options& o) = 0;
  // Runs with the settings resolved. An error becomes one line on standard error and its exit code.
  virtual Status run(const Config& config, const Settings& settings) = 0;
};

using CommandList = std::vector<std::unique_ptr<Command>>;
CommandList all_commands();  // in the order of the list of commands

}  // namespace deepmint::cli
