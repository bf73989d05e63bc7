// Our own reading of model output: what the original's state machine reads, and what it loses. Lone
// markers, close tags inside values, broken attributes, look-alike bars and text behind JSON come
// out right (docs/recipe.md lists each case); arguments of a complete call always parse as JSON.
#pragma once

#include "recipe/output_parser.h"
#include "recipe/tag_lexer.h"

namespace deepmint::recipe {

class LenientParser final : public OutputParser {
 public:
  LenientParser(const ParsingOptions& options, const std::vector<Tool>& tools, OutputSink& sink);
  void push(std::string_view text) override;
  void push_control(ControlToken token, std::string_view text) override;
  void expect_control_tokens() override { from_ids_ = true; }
  void finish() override;
  bool wants_stop() const override { return mode_ == Mode::kStopped || mode_ == Mode::kAfterBlock; }
  const std::string& matched_stop() const override { return matched_; }
  FinishReason finish_reason(std::optional<BackendFinish> backend) const override;
  uint64_t position() const override { return position_; }
  std::pair<uint64_t, uint64_t> markup_range() const override;

 private:
  enum class Mode : uint8_t {
    kReasoning,
    kAnswer,
    kBeforeJson,  // JSON mode, no JSON yet
    kJson,
    kAfterJson,
    kBlock,   // in a calls block, between invokes
    kObject,  // in an invoke, between parameters
    kValue,   // in a parameter
    kAfterBlock,
    kStopped,
  };
  enum class Step : uint8_t { kGo, kWait };  // kWait: what is left cannot be decided yet

  Step run();        // one step of the mode at at_
  Step text_mode();  // kReasoning, kAnswer, kBeforeJson, kAfterJson
  Step json_mode();
  Step block_mode();
  Step object_mode();
  Step value_mode();
  Step after_block_mode();

  std::string_view left() const { return std::string_view(buffer_).substr(at_); }
  void advance(size_t n);  // consumes n bytes of the buffer
  void pass(size_t n);     // passes n bytes on as text of the mode, then consumes them
  void drop(size_t n) { advance(n); }
  Tag tag_at(size_t offset) const { return lex_tag(left().substr(offset), from_ids_, at_end_); }
  bool opens_calls(const Tag& tag, size_t offset) const;
  bool closes_value(const Tag& tag, size_t offset, Step& step) const;
  // Length of a stop string at `offset` of left(); npos: may still become one; 0: none.
  size_t stop_at(size_t offset) const;
  std::optional<Step> stop_before(size_t offset);

  void open_block(const Tag& tag, size_t newlines);
  void begin_call(std::string_view name);
  void end_call(bool complete);
  Mode after_call() const { return options_.single_call ? Mode::kAfterBlock : Mode::kBlock; }
  void begin_parameter(const Tag& tag);
  void end_parameter();
  void arguments(std::string_view json);  // to the sink, or into the deferred "arguments" parameter
  void string_piece(std::string_view raw);
  void flush_deferred();
  std::string_view resolve(std::string_view name) const;
  bool schema_lacks_arguments() const;

  const ParsingOptions options_;
  std::vector<std::string> tool_names_;
  std::vector<bool> lacks_arguments_;  // per tool: no property "arguments" in its schema
  OutputSink& sink_;

  Mode mode_ = Mode::kAnswer;
  bool leading_ = true;     // newlines are still dropped
  bool line_start_ = true;  // the next byte starts a line
  bool from_ids_ = false, at_end_ = false, saw_marker_ = false;
  std::string buffer_;
  size_t at_ = 0;
  uint64_t consumed_ = 0, position_ = 0;  // offsets in what was pushed
  std::string expanded_, scratch_, matched_;

  // JSON mode
  std::string before_json_;
  int json_depth_ = 0;
  bool json_string_ = false, json_escape_ = false;

  // Calls
  uint64_t markup_begin_ = 0, markup_end_ = 0, leading_begin_ = 0;
  bool replayable_ = false;
  int n_calls_ = 0;
  bool open_call_ = false, truncated_ = false;
  size_t tool_ = static_cast<size_t>(-1);  // index of the called tool
  std::vector<bool> first_;                // per open object: no member written yet
  Tag::Type type_ = Tag::Type::kString;
  bool undecided_type_ =
      false;           // no string attribute: a string, unless parameters are nested inside
  std::string value_;  // value that is not a string, or the deferred one
  bool deferring_ = false,
       has_deferred_ =
           false;  // a sole parameter "arguments" that may be the arguments object itself
  bool deferred_is_string_ = false;
};

}  // namespace deepmint::recipe
