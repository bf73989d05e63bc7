// A conversation in a terminal, apart from the terminal: what was said, and what the lines that
// begin with / do.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "deepmint/result.h"
#include "recipe/chat_prompt.h"

namespace deepmint::cli {

class Conversation {
 public:
  explicit Conversation(std::optional<std::string> system) : system_(std::move(system)) {}

  void set_system(std::string text) {
    system_ = text.empty() ? std::nullopt : std::optional(std::move(text));
  }
  void reset() { turns_.clear(); }
  void say(std::string text) { turns_.push_back({"user", std::move(text)}); }
  void answer(std::string text) { turns_.push_back({"assistant", std::move(text)}); }
  void take_back() { turns_.pop_back(); }  // the last turn; there must be one

  std::vector<recipe::ChatMessage> messages() const;  // system first, when there is one
  bool empty() const { return turns_.empty(); }
  std::string json() const;  // [{"role": …, "content": …}, …]

 private:
  std::optional<std::string> system_;
  std::vector<recipe::ChatMessage> turns_;
};

// A line that begins with /. `//x` is not a command but the text `/x`.
struct SlashCommand {
  enum class Kind { kHelp, kReset, kSystem, kStats, kSave, kExit };
  Kind kind = Kind::kHelp;
  std::string argument;  // trimmed
};
bool is_slash_command(std::string_view line);
Result<SlashCommand> parse_slash_command(std::string_view line);  // unknown: the nearest match
std::string_view slash_help();

}  // namespace deepmint::cli
