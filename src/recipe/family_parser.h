// Replies of dense models → reasoning, text and tool calls, in the format of the model's family.
// Incremental: whole output and any chunking of it give the same joined segments.
//
//   FamilyParser parser(chat.reply, {.tools = true, .starts_in_thinking = false}, sink);
//   parser.push("<tool_call>\n{\"name\": \"f\""); parser.push(…); parser.finish();
//
// A call is passed on when its JSON is complete: begin, all arguments, end. What looks like a call
// but is none (broken JSON, no name) is text, with not a byte lost. No allocation beyond the
// buffers once they have grown; one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "recipe/output_parser.h"

namespace deepmint::recipe {

struct ReplyFormat {
  enum class Calls : uint8_t {
    kNone,
    kHermes,   // <tool_call>{"name": …, "arguments": {…}}</tool_call>   (Hermes, Qwen, SmolLM3)
    kLlama3,   // the reply is {"name": …, "parameters": {…}}, perhaps behind <|python_tag|>
    kMistral,  // [TOOL_CALLS][{"name": …, "arguments": {…}}, …]
    kDeepSeek,  // <｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n{…}\n```<｜tool▁call▁end｜>
  };
  Calls calls = Calls::kNone;
  bool thinks = false;  // <think>…</think> in front of the answer
};

// From the text of the model's chat template.
ReplyFormat reply_format_of(std::string_view jinja);

// Control tokens that a parser of this format must see as text.
std::vector<std::string_view> reply_markers(const ReplyFormat& format);

class FamilyParser {
 public:
  struct Options {
    bool tools = false;               // the request declared tools
    bool starts_in_thinking = false;  // the prompt ends in <think>
  };
  FamilyParser(const ReplyFormat& format, const Options& options, OutputSink& sink);

  void push(std::string_view text);
  void finish();
  bool called() const { return n_calls_ > 0; }

 private:
  enum class State : uint8_t { kStart, kThinking, kText, kCall };
  bool step(bool at_end);
  bool in_start(bool at_end);
  bool in_thinking(bool at_end);
  bool in_text(bool at_end);
  bool in_call(bool at_end);
  void emit_text(std::string_view text);
  void emit_reasoning(std::string_view text);
  bool object_end(size_t begin, size_t& end);
  void leave_call(size_t consumed);
  void not_a_call(size_t length);

  const ReplyFormat format_;
  const Options options_;
  OutputSink& sink_;
  State state_ = State::kStart;
  std::string_view open_;  // what begins a call in text; empty when nothing does
  std::string buffer_;     // not decided yet
  std::string space_;      // white space whose place is not decided: dropped in front of a call
  std::string newlines_;   // of reasoning, dropped at its end
  size_t scanned_ = 0;     // bytes of buffer_ that are known to hold no end of the call's JSON
  int depth_ = 0;
  bool in_string_ = false, escaped_ = false;
  bool reasoned_ = false;  // reasoning was passed on
  bool after_thinking_ = false, in_list_ = false;
  int n_calls_ = 0;
};

}  // namespace deepmint::recipe
