// Model output → reasoning, answer text and tool calls, incrementally: whole output and any
// chunking of it give the same joined segments.
//
//   struct Print : OutputSink { void text(std::string_view s) override { std::cout << s; } … }
//   sink; auto parser = OutputParser::create(request.parsing, request.conversation.tools,
//   Compat::kOurs, sink); parser->push("Hel"); parser->push("lo"); parser->finish();
//
// Text that can still become a marker or a stop string is held back, everything else is passed on
// at once. Nothing is allocated per chunk once the buffers have grown.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "recipe/conversation.h"

namespace deepmint::recipe {

enum class BackendFinish : uint8_t { kStop, kLength, kContentFilter };

enum class FinishReason : uint8_t {
  kStop,
  kLength,
  kToolCalls,
  kStopSequence,
  kContentFilter,
  kEndOfStream,        // the engine ended without saying why
  kMalformedToolCall,  // ours: the engine said stop inside a call; protocols report it as length
};
std::string_view to_string(FinishReason reason);

// Receives segments. Views are valid during the call.
class OutputSink {
 public:
  virtual ~OutputSink() = default;
  virtual void reasoning(std::string_view text) = 0;
  virtual void text(std::string_view text) = 0;
  virtual void tool_begin(std::string_view name) = 0;
  virtual void tool_arguments(std::string_view json) = 0;  // pieces of the arguments object
  virtual void tool_end(bool complete) = 0;  // false: cut off; its arguments may be broken JSON
  enum class Discarded : uint8_t { kExtraEndOfThinking, kAfterFinish };
  virtual void discarded(Discarded kind, std::string_view text) {
    (void)kind;
    (void)text;
  }
};

// A control token of the model, when the engine gives ids: it is a marker, while the same
// characters in text are text.
enum class ControlToken : uint8_t { kDsml, kThinkClose, kOther };

class OutputParser {
 public:
  virtual ~OutputParser() = default;
  static std::unique_ptr<OutputParser> create(const ParsingOptions& options,
                                              const std::vector<Tool>& tools, Compat compat,
                                              OutputSink& sink);

  virtual void push(std::string_view text) = 0;  // valid UTF-8, cut anywhere
  virtual void expect_control_tokens() {}        // the output comes as ids: text is never a marker
  virtual void push_control(
      ControlToken token,
      std::string_view text) = 0;  // from now on only control tokens are markers
  virtual void finish() = 0;       // the end: what is held back gets its meaning

  // True when generation should end now: a stop string is complete (or, for ours, the calls block
  // is closed).
  virtual bool wants_stop() const = 0;
  virtual const std::string& matched_stop()
      const = 0;  // the stop string that ended the answer, or empty
  // After finish(). nullopt: the engine gave no reason.
  virtual FinishReason finish_reason(std::optional<BackendFinish> backend) const = 0;
  // Inside reasoning() and text() of the sink: the offset of the passed view in everything pushed
  // so far. It lets the caller match tokens with the text they became.
  virtual uint64_t position() const = 0;
  // Offsets of the calls block in everything pushed, with the newlines before it; both 0 when there
  // is none or it is not closed.
  virtual std::pair<uint64_t, uint64_t> markup_range() const { return {0, 0}; }
};

}  // namespace deepmint::recipe
