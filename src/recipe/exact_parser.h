// The state machine of deepseek-recipe, bug for bug. Each state watches an ordered list of
// patterns; at every byte all of them advance, and the first in the list that completes wins.
// docs/recipe.md has the table.
#pragma once

#include <array>
#include <bitset>

#include "recipe/output_parser.h"

namespace deepmint::recipe {

class ExactParser final : public OutputParser {
 public:
  ExactParser(const ParsingOptions& options, bool v01, OutputSink& sink);
  void push(std::string_view text) override;
  void push_control(ControlToken, std::string_view text) override { push(text); }
  void finish() override;
  bool wants_stop() const override { return stopped_; }
  const std::string& matched_stop() const override { return matched_; }
  FinishReason finish_reason(std::optional<BackendFinish> backend) const override;
  uint64_t position() const override { return position_; }

 private:
  enum class State : uint8_t {
    kAnswerLeading,
    kAnswer,
    kJson,
    kAfterJson,
    kToolCalls,
    kName,
    kArgs,
    kKey,
    kType,
    kString,
    kRaw,
    kReasoningLeading,
    kReasoning,
    kFinished,
    kCount,
  };
  enum class Action : uint8_t {
    kStop,
    kLeadingNewline,
    kExtraThinkClose,
    kThinkClose,
    kOpenTools,
    kEnterJson,
    kStartJson,
    kLeaveJson,
    kInvoke,
    kCloseBlock,
    kEndName,
    kParameter,
    kCloseCall,
    kEndKey,
    kStringValue,
    kRawValue,
    kCloseValue,
  };
  struct Pattern {
    std::string literal;
    Action action;
    bool newlines = false;          // newlines directly before the literal belong to the match
    bool anchored = false;          // only at the very start of the state
    std::vector<uint32_t> failure;  // of the literal, as in Knuth-Morris-Pratt
  };
  struct Machine {
    std::vector<Pattern> patterns;
    std::bitset<256> starts;  // bytes that can begin a match
  };
  struct Progress {
    uint32_t newlines = 0, literal = 0;
  };

  void add(State state, std::string literal, Action action, bool newlines = false,
           bool anchored = false);
  void build();
  void enter(State state);
  void emit(std::string_view text);  // the default action of the state
  void act(Action action, std::string_view match);
  void append_escaped(std::string_view text);
  // Advances one matcher; true when it is complete.
  bool advance(const Pattern& p, Progress& at, char c) const;
  // Passes on the part of held_ + chunk that is decided: all but the last `keep` bytes.
  void flush(std::string_view chunk, size_t keep);

  const ParsingOptions options_;
  const bool v01_;
  OutputSink& sink_;
  std::array<Machine, static_cast<size_t>(State::kCount)> machines_;
  State state_ = State::kAnswer;
  std::vector<Progress> progress_;
  uint64_t position_ = 0;  // input bytes passed on or dropped
  size_t longest_ = 0;     // bytes of the longest partial match
  bool at_start_ = true;   // no byte since the state was entered
  bool first_parameter_ = true;
  bool stopped_ = false;
  int n_calls_ = 0;
  bool open_call_ = false;
  std::string held_, name_, scratch_, matched_;
};

}  // namespace deepmint::recipe
