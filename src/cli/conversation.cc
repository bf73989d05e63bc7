#include "cli/conversation.h"

#include <array>

#include "cli/near_miss.h"
#include "core/json.h"

namespace deepmint::cli {
namespace {

using Kind = SlashCommand::Kind;
constexpr std::array<std::pair<std::string_view, Kind>, 7> kCommands = {{{"/help", Kind::kHelp},
                                                                         {"/reset", Kind::kReset},
                                                                         {"/system", Kind::kSystem},
                                                                         {"/stats", Kind::kStats},
                                                                         {"/save", Kind::kSave},
                                                                         {"/exit", Kind::kExit},
                                                                         {"/quit", Kind::kExit}}};

std::string_view trim(std::string_view text) {
  constexpr std::string_view kWhite = " \t";
  const size_t begin = text.find_first_not_of(kWhite);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kWhite) - begin + 1);
}

}  // namespace

std::vector<recipe::ChatMessage> Conversation::messages() const {
  std::vector<recipe::ChatMessage> all;
  if (system_) all.push_back({"system", *system_});
  all.insert(all.end(), turns_.begin(), turns_.end());
  return all;
}

std::string Conversation::json() const {
  json::Writer w;
  w.begin_array();
  for (const recipe::ChatMessage& message : messages()) {
    w.begin_object().key("role").value(message.role);
    w.key("content").value(message.content).end_object();
  }
  w.end_array();
  return w.take();
}

bool is_slash_command(std::string_view line) {
  return line.starts_with('/') && !line.starts_with("//");
}

Result<SlashCommand> parse_slash_command(std::string_view line) {
  const size_t space = std::min(line.find_first_of(" \t"), line.size());
  const std::string_view name = line.substr(0, space);
  std::vector<std::string> known;
  for (const auto& [command, kind] : kCommands) {
    if (command == name) return SlashCommand{kind, std::string(trim(line.substr(space)))};
    known.emplace_back(command);
  }
  Error error = unknown_name("command", name, known);
  if (near_miss(name, known).empty())
    error.message += "; /help lists the commands, // begins a text with /";
  return tl::unexpected(std::move(error));
}

std::string_view slash_help() {
  return "  /help          this list\n"
         "  /reset         forget the conversation\n"
         "  /system TEXT   set the system message and start over; without a text, the model's own\n"
         "  /stats         tokens and speed so far\n"
         "  /save FILE     write the conversation as JSON to a new file\n"
         "  /exit          leave (also Ctrl-D, or Ctrl-C twice)\n"
         "  \\ at the end of a line continues it on the next; // begins a text with /\n"
         "  Ctrl-C stops a reply.\n";
}

}  // namespace deepmint::cli
