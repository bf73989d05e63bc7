// From argv to a command with its options set. Unknown commands and options are errors that name
// the nearest match.
//
//   DEEPMINT_TRY(line, parse_command_line(args, commands, settings));
//   if (!line.page.empty()) print(line.page);          // --help or --version
//   else line.command->run(...);
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"

namespace deepmint::cli {

struct CommandLine {
  std::string page;  // what --help or --version shows; empty when there is a command to run
  Command* command = nullptr;
  std::vector<Options::GivenFlag> flags;  // settings, in the order given
  std::optional<std::string> config_file;
};

// args: without the program's name. settings: for names, defaults and help; not changed.
Result<CommandLine> parse_command_line(const std::vector<std::string>& args,
                                       const CommandList& commands, const Settings& settings);

std::string command_list_page(const CommandList& commands);
std::string command_page(const Command& command, const Options& options);
std::string program_version();  // "0.1.0"
std::string version_text();     // "deepmint 0.1.0 (x86-64, avx512bf16; release build)"

// Every name of an option ("--prompt"), split from "-p,--prompt".
std::vector<std::string> option_names(const Option& option);

}  // namespace deepmint::cli
