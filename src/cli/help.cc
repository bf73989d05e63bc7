// The help pages: plain text, 100 columns, every default printed.
#include <fmt/format.h>

#include <algorithm>

#include "cli/command_line.h"
#include "core/cpu_isa.h"

namespace deepmint::cli {
namespace {

constexpr size_t kWidth = 100, kColumn = 34;

// Words of `text` in lines of at most `width` columns, each but the first after `indent` spaces. A
// line end in `text` stays one.
std::string wrapped(std::string_view text, size_t width, size_t indent) {
  std::string out;
  size_t column = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find_first_of(" \n", begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    if (column > 0 && column + 1 + word.size() > width) {
      out += '\n' + std::string(indent, ' ');
      column = 0;
    } else if (column > 0) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
    begin = end + 1;
    if (end < text.size() && text[end] == '\n') {
      out += '\n' + std::string(indent, ' ');
      column = 0;
    }
  }
  return out;
}

std::string entry(const std::string& left, const std::string& right) {
  std::string out = "  " + left;
  out += left.size() + 2 > kColumn - 2 ? '\n' + std::string(kColumn, ' ')
                                       : std::string(kColumn - left.size() - 2, ' ');
  return out + wrapped(right, kWidth - kColumn, kColumn) + '\n';
}

std::string left_column(const Option& option) {
  if (option.is_positional) return option.names;
  std::string out;
  for (const std::string& name : option_names(option)) out += (out.empty() ? "" : ", ") + name;
  if (out.starts_with("--")) out.insert(0, "    ");
  if (!option.kind.empty() && option.kind != "BOOL") out += " " + option.kind;
  return out;
}

}  // namespace

std::string command_list_page(const CommandList& commands) {
  std::string out =
      "deepmint: language models on your own machine\n\n"
      "usage: deepmint COMMAND [MODEL] [options]\n\n"
      "MODEL is a .gguf file or a folder in Hugging Face layout.\n\nCommands\n";
  for (const auto& command : commands)
    out += fmt::format("  {:<12}{}\n", command->name(), command->summary());
  out +=
      "\n  deepmint COMMAND --help   every option of a command, with its default\n"
      "  deepmint --version        version, instruction set and build\n\n"
      "Settings also come from --config FILE and from DEEPMINT_ variables; see `deepmint config`.\n"
      "Exit codes: 0 done, 1 the work failed, 2 the command line or a file named on it is wrong.\n";
  return out;
}

std::string command_page(const Command& command, const Options& options) {
  std::string out = fmt::format("usage: deepmint {}", command.name());
  for (const Option& option : options.all())
    if (option.is_positional)
      out += option.required ? " " + option.names : " [" + option.names + "]";
  out += fmt::format(" [options]\n\n{}\n", wrapped(command.summary(), kWidth, 0));
  if (!command.description().empty())
    out += fmt::format("\n{}\n", wrapped(command.description(), kWidth, 0));
  std::string group;
  for (const Option& option : options.all()) {
    if (option.is_positional) {
      if (group.empty()) out += '\n';
      out += entry(option.names, option.help);
      group = " ";
      continue;
    }
    if (option.group != group) out += fmt::format("\n{}\n", group = option.group);
    std::string help = option.help;
    if (option.repeats) help += " (may be repeated)";
    if (!option.default_text.empty()) help += fmt::format(" [{}]", option.default_text);
    out += entry(left_column(option), help);
  }
  return out;
}

std::string program_version() { return DEEPMINT_VERSION; }

std::string version_text() {
  return fmt::format("deepmint {} ({}, {} build)\n", DEEPMINT_VERSION, to_string(active_isa()),
                     DEEPMINT_BUILD);
}

}  // namespace deepmint::cli
