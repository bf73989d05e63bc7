// The only file that includes CLI11.
#include "cli/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "cli/near_miss.h"
#include "format/names.h"

namespace deepmint::cli {

std::vector<std::string> option_names(const Option& option) {
  std::vector<std::string> names;
  for (size_t begin = 0; begin < option.names.size();) {
    const size_t comma = std::min(option.names.find(',', begin), option.names.size());
    names.push_back(option.names.substr(begin, comma - begin));
    begin = comma + 1;
  }
  return names;
}

namespace {

bool looks_like_option(const std::string& argument) {
  return argument.size() > 1 && argument[0] == '-';
}

bool is_flag(const Option& option) { return option.kind.empty() && !option.is_positional; }
bool is_bool_setting(const Option& option) { return option.kind == "BOOL"; }

void add_to(CLI::App& app, const Option& option, std::optional<Error>& wrong_flag) {
  // CLI11 collects the occurrences and hands them over in order; of a single-valued option the last
  // one counts.
  const auto deliver = [&option](const CLI::results_t& values) {
    if (option.repeats) {
      for (const std::string& value : values) option.set(value);
    } else if (!values.empty()) {
      option.set(values.back());
    }
    return true;
  };
  if (is_flag(option) || is_bool_setting(option)) {
    // "--json" or "--json=false"; the value of a setting is checked where it is assigned.
    app.add_option(option.names,
                   [deliver, &option, &wrong_flag](const CLI::results_t& values) {
                     const std::string& value = values.back();
                     if (!is_flag(option) || value == "true" || value == "false")
                       return deliver(values);
                     wrong_flag = Error{ErrorCode::kInvalidArgument,
                                        fmt::format("expected true, false or no value, found {}",
                                                    quote_name(value)),
                                        option_names(option).back()};
                     return false;
                   })
        ->expected(0)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    return;
  }
  CLI::Option* added = app.add_option(option.names, deliver);
  added->type_size(1)->expected(1)->allow_extra_args(false);
  added->type_name(option.kind);
  added->multi_option_policy(option.repeats ? CLI::MultiOptionPolicy::TakeAll
                                            : CLI::MultiOptionPolicy::TakeLast);
}

// CLI11 reads "--system= MODEL" as --system with the value MODEL; two arguments say what is meant.
std::vector<std::string> split_empty_values(const std::vector<std::string>& args,
                                            const std::vector<std::string>& known) {
  std::vector<std::string> out;
  for (size_t i = 1; i < args.size(); ++i) {
    if (args[i] == "--") {
      out.insert(out.end(), args.begin() + static_cast<ptrdiff_t>(i), args.end());
      break;
    }
    const std::string name = args[i].substr(0, args[i].find('='));
    if (args[i].ends_with('=') && name.size() + 1 == args[i].size() &&
        std::find(known.begin(), known.end(), name) != known.end()) {
      out.push_back(name);
      out.emplace_back();
    } else {
      out.push_back(args[i]);
    }
  }
  return out;
}

// The last argument is an option that takes a value, and there is none.
Error missing_value(const std::string& argument, const Options& options,
                    const std::string& command) {
  for (const Option& option : options.all()) {
    const std::vector<std::string> names = option_names(option);
    if (std::find(names.begin(), names.end(), argument) != names.end())
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("expected {} {}, found no {}", argument, option.kind, option.kind),
                   command};
  }
  return Error{ErrorCode::kInvalidArgument,
               fmt::format("expected a value after {}", quote_name(argument)), command};
}

Error unexpected(const std::string& argument, const std::vector<std::string>& known,
                 const std::string& command) {
  // A known option comes here from behind "--", where it is an argument like any other.
  const std::string name = argument.substr(0, argument.find('='));
  if (!looks_like_option(argument) || std::find(known.begin(), known.end(), name) != known.end())
    return Error{ErrorCode::kInvalidArgument, "unexpected argument " + quote_name(argument),
                 command};
  return unknown_name("option", name, known, command);
}

Result<Command*> find_command(const std::string& name, const CommandList& commands) {
  std::vector<std::string> names;
  for (const auto& command : commands) {
    if (command->name() == name) return command.get();
    names.emplace_back(command->name());
  }
  Error error = unknown_name("command", name, names);
  if (near_miss(name, names).empty()) error.message += "; deepmint --help lists the commands";
  return tl::unexpected(std::move(error));
}

}  // namespace

Result<CommandLine> parse_command_line(const std::vector<std::string>& args,
                                       const CommandList& commands, const Settings& settings) {
  CommandLine line;
  const auto page = [&](std::string text) {
    line.page = std::move(text);
    return std::move(line);
  };
  if (args.empty())
    return fail(ErrorCode::kInvalidArgument, "expected a command; deepmint --help lists them");
  if (args[0] == "--version" || args[0] == "-V") return page(version_text());
  if (args[0] == "--help" || args[0] == "-h" || (args[0] == "help" && args.size() == 1))
    return page(command_list_page(commands));
  if (looks_like_option(args[0])) {
    const std::vector<std::string> known = {"--help", "--version"};
    Error error = unexpected(args[0], known, "deepmint");
    error.message += near_miss(args[0], known).empty() ? "; a command comes first" : "";
    return tl::unexpected(std::move(error));
  }
  const bool help_command = args[0] == "help";
  DEEPMINT_TRY(command, find_command(help_command ? args[1] : args[0], commands));
  line.command = command;

  Options options;
  command->options(options);
  for (const std::string_view section : command->sections()) {
    std::string title(section);
    title[0] = static_cast<char>(title[0] - 'a' + 'A');
    options.settings(settings, section, title == "Cpu" ? "CPU" : title, line.flags);
  }
  options.group("General");
  bool help = help_command;
  options.text("--config", line.config_file, "FILE",
               "settings from a TOML file; docs/knobs.md lists them");
  options.flag("-h,--help", help, "this page");
  if (help) return page(command_page(*command, options));

  const std::string name = "deepmint " + std::string(command->name());
  std::vector<std::string> known;
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  std::optional<Error> wrong_flag;
  for (const Option& option : options.all()) {
    add_to(app, option, wrong_flag);
    if (!option.is_positional)
      for (std::string& n : option_names(option)) known.push_back(std::move(n));
  }
  try {
    std::vector<std::string> reversed = split_empty_values(args, known);
    std::reverse(reversed.begin(), reversed.end());  // CLI11 takes the arguments from the back
    app.parse(reversed);
  } catch (const CLI::ArgumentMismatch&) {
    return tl::unexpected(missing_value(args.back(), options, name));
  } catch (const CLI::ParseError& e) {
    if (wrong_flag) return tl::unexpected(*std::move(wrong_flag));
    return fail(ErrorCode::kInvalidArgument, e.what(), name);
  }
  if (help) return page(command_page(*command, options));
  // Unknown options first: what looks like a missing or surplus argument is often the value of a
  // mistyped one.
  std::vector<std::string> extra = app.remaining();
  if (const auto mark = std::find(extra.begin(), extra.end(), "--"); mark != extra.end())
    extra.erase(mark);
  for (const std::string& argument : extra)
    if (looks_like_option(argument)) return tl::unexpected(unexpected(argument, known, name));
  if (!extra.empty()) return tl::unexpected(unexpected(extra.front(), known, name));
  for (const Option& option : options.all())
    if (option.required && app.get_option(option.names)->count() == 0)
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("expected {}: {}", option.names, option.help), name);
  return line;
}

}  // namespace deepmint::cli
