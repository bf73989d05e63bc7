#include "recipe/lenient_parser.h"

#include <algorithm>

#include "recipe/prompt_text.h"
#include "recipe/spelling.h"

namespace deepmint::recipe {
namespace {

// White space between two pieces of markup, or before one: a longer run is not part of it. It
// bounds what is looked at again when output comes byte by byte.
constexpr size_t kMaxGap = 256;

constexpr size_t kNone = std::string_view::npos;
constexpr size_t kMaxBeforeJson =
    64 * 1024;  // text before the JSON that is kept in case no JSON comes

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

size_t skip_spaces(std::string_view s, size_t i) {
  while (i < s.size() && is_space(s[i])) ++i;
  return i;
}

std::string_view trim(std::string_view s) {
  while (!s.empty() && is_space(s.front())) s.remove_prefix(1);
  while (!s.empty() && is_space(s.back())) s.remove_suffix(1);
  return s;
}

std::string_view tail_of(std::string_view name) {
  size_t at = 0;
  for (const std::string_view separator : {"::", "__", "."}) {
    const size_t found = name.rfind(separator);
    if (found != kNone) at = std::max(at, found + separator.size());
  }
  return name.substr(at);
}

bool is_json(std::string_view text) {
  if (text.empty()) return false;
  const auto v = json::parse(text);
  return v && numbers_are_finite(*v);
}

}  // namespace

LenientParser::LenientParser(const ParsingOptions& options, const std::vector<Tool>& tools,
                             OutputSink& sink)
    : options_(options), sink_(sink) {
  for (const Tool& tool : tools) {
    tool_names_.push_back(tool.name);
    const json::Value* properties = tool.parameters.find("properties");
    lacks_arguments_.push_back(properties == nullptr || properties->find("arguments") == nullptr);
  }
  mode_ = options_.parse_json_output ? Mode::kBeforeJson : Mode::kAnswer;
  leading_ =
      options_.stage != ThinkingStage::kReasoning && options_.stage != ThinkingStage::kContent;
  if (options_.stage == ThinkingStage::kStart || options_.stage == ThinkingStage::kReasoning)
    mode_ = Mode::kReasoning;
  if (options_.starts_in_tool_calls) mode_ = Mode::kBlock;
}

void LenientParser::push(std::string_view text) {
  if (at_ == buffer_.size()) {
    buffer_.clear();
    at_ = 0;
  }
  buffer_.append(text);
  while (at_ < buffer_.size() && run() == Step::kGo) {
  }
  if (at_ > 0) {
    buffer_.erase(0, at_);
    at_ = 0;
  }
}

void LenientParser::push_control(ControlToken token, std::string_view text) {
  from_ids_ = true;
  if (token == ControlToken::kDsml) {
    push(std::string_view(&kDsmlByte, 1));
  } else if (token == ControlToken::kThinkClose) {
    push(std::string_view(&kThinkCloseByte, 1));
  } else {
    push(text);
  }
}

void LenientParser::finish() {
  at_end_ = true;
  while (at_ < buffer_.size() && run() == Step::kGo) {
  }
  if (mode_ == Mode::kValue || mode_ == Mode::kObject) {
    if (mode_ == Mode::kValue && type_ == Tag::Type::kJson && !deferring_) arguments(value_);
    flush_deferred();
    end_call(false);
  }
  if (mode_ == Mode::kBeforeJson && !before_json_.empty()) {
    position_ = consumed_;
    sink_.text(before_json_);  // no JSON at all: better the text than nothing
    before_json_.clear();
  }
}

FinishReason LenientParser::finish_reason(std::optional<BackendFinish> backend) const {
  if (!matched_.empty()) return FinishReason::kStopSequence;
  if (!backend) return FinishReason::kEndOfStream;
  if (*backend == BackendFinish::kLength) return FinishReason::kLength;
  if (*backend == BackendFinish::kContentFilter) return FinishReason::kContentFilter;
  if (truncated_) return FinishReason::kMalformedToolCall;
  return n_calls_ > 0 ? FinishReason::kToolCalls : FinishReason::kStop;
}

std::pair<uint64_t, uint64_t> LenientParser::markup_range() const {
  if (markup_end_ == 0) return {0, 0};
  // Calls straight out of the reasoning have no markup of their own: a prompt that renders the
  // message anew closes the reasoning before them.
  return {replayable_ ? markup_begin_ : markup_end_, markup_end_};
}

void LenientParser::advance(size_t n) {
  const std::string_view s = left().substr(0, n);
  consumed_ += n;
  if (from_ids_) {
    for (const char c : s) {
      if (c == kDsmlByte) consumed_ += kDsml.size() - 1;
      if (c == kThinkCloseByte) consumed_ += kThinkClose.size() - 1;
    }
  }
  if (!s.empty()) line_start_ = s.back() == '\n';
  at_ += n;
}

void LenientParser::pass(size_t n) {
  if (n == 0) return;
  std::string_view s = left().substr(0, n);
  if (from_ids_ && s.find_first_of("\xF8\xF9") != kNone) {
    expanded_.clear();
    for (const char c : s) {
      if (c == kDsmlByte) {
        expanded_.append(kDsml);
      } else if (c == kThinkCloseByte) {
        expanded_.append(kThinkClose);
      } else {
        expanded_.push_back(c);
      }
    }
    s = expanded_;
  }
  position_ = consumed_;
  switch (mode_) {
    case Mode::kReasoning:
      sink_.reasoning(s);
      break;
    case Mode::kBeforeJson:
      if (before_json_.size() < kMaxBeforeJson) before_json_.append(s);
      break;
    case Mode::kAnswer:
    case Mode::kJson:
      sink_.text(s);
      break;
    case Mode::kValue:
      string_piece(s);
      break;
    case Mode::kAfterJson:
    case Mode::kAfterBlock:
    case Mode::kStopped:
      sink_.discarded(OutputSink::Discarded::kAfterFinish, s);
      break;
    case Mode::kBlock:
    case Mode::kObject:
      break;
  }
  advance(n);
  leading_ = false;
}

LenientParser::Step LenientParser::run() {
  switch (mode_) {
    case Mode::kReasoning:
    case Mode::kAnswer:
    case Mode::kBeforeJson:
    case Mode::kAfterJson:
      return text_mode();
    case Mode::kJson:
      return json_mode();
    case Mode::kBlock:
      return block_mode();
    case Mode::kObject:
      return object_mode();
    case Mode::kValue:
      return value_mode();
    case Mode::kAfterBlock:
      return after_block_mode();
    case Mode::kStopped:
      pass(left().size());
      return Step::kGo;
  }
  return Step::kWait;
}

size_t LenientParser::stop_at(size_t offset) const {
  const std::string_view s = left().substr(offset);
  bool partial = false;
  for (const std::string& stop : options_.stop_sequences) {
    if (stop.empty() || stop.front() != s.front()) continue;
    if (s.starts_with(stop)) return stop.size();
    partial = partial || (!at_end_ && std::string_view(stop).starts_with(s));
  }
  return partial ? kNone : 0;
}

// A calls block may begin with its opener, or straight with an invoke. Look-alikes count at the
// start of a line, as long as no genuine marker was seen.
bool LenientParser::opens_calls(const Tag& tag, size_t offset) const {
  if (tag.status != Tag::Status::kYes || tag.close || tag.kind == Tag::Kind::kParameter)
    return false;
  if (tag.genuine) return true;
  const bool starts_line = offset == 0 ? line_start_ : left()[offset - 1] == '\n';
  return starts_line && !saw_marker_;
}

// Ends the answer where a stop string begins, or waits where one may.
std::optional<LenientParser::Step> LenientParser::stop_before(size_t offset) {
  const size_t n = stop_at(offset);
  if (n == 0) return std::nullopt;
  if (n == kNone) {
    pass(offset);
    return Step::kWait;
  }
  matched_ = std::string(left().substr(offset, n));
  pass(offset);
  drop(n);
  mode_ = Mode::kStopped;
  return Step::kGo;
}

LenientParser::Step LenientParser::text_mode() {
  const std::string_view s = left();
  const bool stops = mode_ == Mode::kAnswer && !options_.stop_sequences.empty();
  const bool before_json = mode_ == Mode::kBeforeJson;
  if (leading_ && s.front() == '\n') {
    drop(1);
    leading_ = true;
    return Step::kGo;
  }
  for (size_t i = 0; i < s.size(); ++i) {
    const char c = s[i];
    if (stops) {
      if (const auto step = stop_before(i)) return *step;
    }
    if (c == kThinkCloseByte || (c == '<' && !from_ids_ && s.substr(i).starts_with(kThinkClose))) {
      const size_t length = c == '<' ? kThinkClose.size() : 1;
      size_t text = i;
      if (mode_ == Mode::kReasoning)
        while (text > 0 && s[text - 1] == '\n') --text;
      pass(text);
      if (mode_ == Mode::kReasoning) {
        drop(i - text + length);
        mode_ = options_.parse_json_output ? Mode::kBeforeJson : Mode::kAnswer;
        leading_ = true;
        leading_begin_ = consumed_;
        line_start_ = true;
      } else {
        sink_.discarded(OutputSink::Discarded::kExtraEndOfThinking, kThinkClose);
        drop(length);
        leading_ = false;
      }
      return Step::kGo;
    }
    if (before_json && (c == '{' || c == '[')) {
      drop(i);
      before_json_.clear();
      mode_ = Mode::kJson;
      json_depth_ = 0;
      json_string_ = json_escape_ = false;
      return Step::kGo;
    }
    if (c != '<' && c != '\n') continue;
    // Newlines directly before a marker belong to it.
    size_t j = i;
    while (j < s.size() && s[j] == '\n') ++j;
    if (stops && j > i) {
      for (size_t k = i + 1; k < j; ++k) {
        if (stop_at(k) != 0) j = i;  // a stop string begins inside the run: byte by byte
      }
      if (j == i) continue;
    }
    if (j - i > kMaxGap) {  // only the last ones can belong to a marker
      pass(j - kMaxGap);
      return Step::kGo;
    }
    if (j == s.size()) {
      if (at_end_) break;
      pass(i);
      return Step::kWait;
    }
    if (s[j] == kThinkCloseByte || s[j] != '<') {
      i = j - 1;
      if (j == i + 1 && s[j] != '<' && s[j] != kThinkCloseByte && j > 0) continue;
      continue;
    }
    const bool may_close = !from_ids_ && !at_end_ &&
                           kThinkClose.starts_with(s.substr(j, kThinkClose.size())) &&
                           s.size() - j < kThinkClose.size();
    const Tag tag = options_.parse_tool_calls ? tag_at(j) : Tag{};
    if (opens_calls(tag, j)) {
      pass(i);
      open_block(tag, j - i);
      return Step::kGo;
    }
    if (may_close || tag.status == Tag::Status::kMore) {
      pass(i);
      return Step::kWait;
    }
    if (!from_ids_ && s.substr(j).starts_with(kThinkClose)) {
      i = j - 1;  // handled above at its own byte
      continue;
    }
    i = j;  // an ordinary bracket
  }
  pass(s.size());
  return Step::kGo;
}

LenientParser::Step LenientParser::json_mode() {
  const std::string_view s = left();
  const bool stops = !options_.stop_sequences.empty();
  for (size_t i = 0; i < s.size(); ++i) {
    if (stops) {
      if (const auto step = stop_before(i)) return *step;
    }
    const char c = s[i];
    if (json_string_) {
      if (json_escape_) {
        json_escape_ = false;
      } else if (c == '\\') {
        json_escape_ = true;
      } else if (c == '"') {
        json_string_ = false;
      }
      continue;
    }
    if (c == '"') json_string_ = true;
    if (c == '{' || c == '[') ++json_depth_;
    if ((c == '}' || c == ']') && --json_depth_ <= 0) {
      pass(i + 1);
      mode_ = Mode::kAfterJson;
      return Step::kGo;
    }
  }
  pass(s.size());
  return Step::kGo;
}

// ---- calls
// --------------------------------------------------------------------------------------------------------------------

void LenientParser::open_block(const Tag& tag, size_t newlines) {
  if (markup_end_ == 0) {
    // Newlines that were dropped as leading ones belong to the block.
    markup_begin_ = leading_ ? leading_begin_ : consumed_;
    replayable_ = mode_ == Mode::kAnswer;
  }
  saw_marker_ = saw_marker_ || tag.genuine;
  drop(newlines);
  const Tag again =
      tag_at(0);  // the names of `tag` point into the buffer before the bytes were consumed
  mode_ = Mode::kBlock;
  if (again.kind == Tag::Kind::kInvoke) {
    begin_call(again.name);
    drop(again.length);
    mode_ = Mode::kObject;
  } else {
    drop(again.length);
  }
}

LenientParser::Step LenientParser::block_mode() {
  const std::string_view s = left();
  const size_t i = s.find('<');
  if (i == kNone) {
    drop(s.size());
    return Step::kGo;
  }
  if (i > 0) {
    drop(i);
    return Step::kGo;
  }
  const Tag tag = tag_at(0);
  if (tag.status == Tag::Status::kMore) return Step::kWait;
  if (tag.status == Tag::Status::kYes && tag.kind == Tag::Kind::kInvoke && !tag.close) {
    begin_call(tag.name);
    drop(tag.length);
    mode_ = Mode::kObject;
  } else if (tag.status == Tag::Status::kYes && tag.kind == Tag::Kind::kBlock && tag.close) {
    drop(tag.length);
    markup_end_ = consumed_;
    mode_ = Mode::kAfterBlock;
  } else {
    drop(tag.status == Tag::Status::kYes ? tag.length : 1);
  }
  return Step::kGo;
}

LenientParser::Step LenientParser::after_block_mode() {
  const std::string_view s = left();
  const size_t i = skip_spaces(s, 0);
  if (i > kMaxGap) {
    pass(i - kMaxGap);
    return Step::kGo;
  }
  if (i == s.size()) {
    if (at_end_) pass(s.size());
    return at_end_ ? Step::kGo : Step::kWait;
  }
  if (s[i] == '<' && !options_.single_call) {
    const Tag tag = tag_at(i);
    if (tag.status == Tag::Status::kMore) return Step::kWait;
    if (opens_calls(tag, i) && tag.kind == Tag::Kind::kBlock) {
      drop(i + tag.length);
      mode_ = Mode::kBlock;
      return Step::kGo;
    }
  }
  pass(i + 1);
  return Step::kGo;
}

std::string_view LenientParser::resolve(std::string_view name) const {
  if (std::find(tool_names_.begin(), tool_names_.end(), name) != tool_names_.end()) return name;
  std::string_view found = name;
  int n = 0;
  for (const std::string& tool : tool_names_) {
    if (tail_of(tool) != tail_of(name)) continue;
    found = tool;
    ++n;
  }
  return n == 1 ? found : name;
}

void LenientParser::begin_call(std::string_view name) {
  const std::string_view resolved = resolve(name);
  const auto it = std::find(tool_names_.begin(), tool_names_.end(), resolved);
  tool_ = it == tool_names_.end() ? kNone : static_cast<size_t>(it - tool_names_.begin());
  ++n_calls_;
  open_call_ = true;
  first_.assign(1, true);
  has_deferred_ = deferring_ = false;
  sink_.tool_begin(resolved);
}

bool LenientParser::schema_lacks_arguments() const {
  return tool_ != kNone && lacks_arguments_[tool_];
}

void LenientParser::end_call(bool complete) {
  if (!open_call_) return;
  if (complete) {
    if (has_deferred_ && is_json(trim(value_)) && trim(value_).front() == '{') {
      sink_.tool_arguments(trim(value_));  // the model wrapped the whole object
      has_deferred_ = false;
    } else {
      flush_deferred();
      while (!first_.empty()) {
        sink_.tool_arguments(first_.back() ? "{}" : "}");
        first_.pop_back();
      }
    }
  } else {
    truncated_ = true;
  }
  open_call_ = false;
  sink_.tool_end(complete);
}

void LenientParser::arguments(std::string_view json) { sink_.tool_arguments(json); }

void LenientParser::flush_deferred() {
  if (!has_deferred_) return;
  has_deferred_ = false;
  sink_.tool_arguments("{\"arguments\": ");
  first_.back() = false;
  scratch_.clear();
  if (!deferred_is_string_ && is_json(trim(value_))) {
    scratch_ = std::string(trim(value_));
  } else {
    json::append_escaped(scratch_, value_);
  }
  sink_.tool_arguments(scratch_);
}

LenientParser::Step LenientParser::object_mode() {
  const std::string_view s = left();
  const size_t i = s.find('<');
  if (i != 0) {
    drop(i == kNone ? s.size() : i);
    return Step::kGo;
  }
  const Tag tag = tag_at(0);
  if (tag.status == Tag::Status::kMore) return Step::kWait;
  if (tag.status == Tag::Status::kNo) {
    drop(1);
    return Step::kGo;
  }
  if (tag.kind == Tag::Kind::kParameter && !tag.close) {
    begin_parameter(tag);
    drop(tag.length);
    mode_ = Mode::kValue;
  } else if (tag.kind == Tag::Kind::kParameter) {  // closes an object of nested parameters
    drop(tag.length);
    if (first_.size() > 1) {
      arguments(first_.back() ? "{}" : "}");
      first_.pop_back();
    }
  } else if (tag.kind == Tag::Kind::kInvoke && tag.close) {
    end_call(true);
    drop(tag.length);
    mode_ = after_call();
  } else if (tag.kind == Tag::Kind::kInvoke || tag.close) {
    // The close of the call before was forgotten.
    end_call(true);
    mode_ = after_call();
  } else {
    drop(tag.length);
  }
  return Step::kGo;
}

void LenientParser::begin_parameter(const Tag& tag) {
  type_ = tag.type == Tag::Type::kMissing ? Tag::Type::kString : tag.type;
  undecided_type_ = tag.type == Tag::Type::kMissing;
  flush_deferred();
  value_.clear();
  deferring_ =
      first_.size() == 1 && first_.back() && tag.name == "arguments" && schema_lacks_arguments();
  if (deferring_) {
    deferred_is_string_ = type_ == Tag::Type::kString;
    undecided_type_ = false;
    return;
  }
  scratch_ = first_.back() ? "{" : ", ";
  first_.back() = false;
  json::append_escaped(scratch_, tag.name);
  scratch_.append(": ");
  if (type_ == Tag::Type::kString && !undecided_type_) scratch_.push_back('"');
  arguments(scratch_);
}

void LenientParser::string_piece(std::string_view raw) {
  if (deferring_ || type_ == Tag::Type::kJson) {
    value_.append(raw);
    return;
  }
  scratch_.clear();
  json::append_escaped(scratch_, raw);
  arguments(std::string_view(scratch_).substr(1, scratch_.size() - 2));
}

void LenientParser::end_parameter() {
  mode_ = Mode::kObject;
  if (deferring_) {
    deferring_ = false;
    has_deferred_ = true;
    return;
  }
  if (type_ == Tag::Type::kString) {
    arguments("\"");
    return;
  }
  scratch_.clear();
  if (is_json(trim(value_))) {
    scratch_ = std::string(trim(value_));
  } else {
    json::append_escaped(scratch_, value_);
  }
  arguments(scratch_);
}

// Whether a tag at `offset` ends the value. A genuine token does. The same characters in text do
// only when the markup goes on behind them; `step` says kWait while that cannot be seen yet.
bool LenientParser::closes_value(const Tag& tag, size_t offset, Step& step) const {
  step = Step::kGo;
  if (!tag.close) return false;
  if (from_ids_ && (tag.genuine || saw_marker_)) return tag.genuine;
  const std::string_view s = left();
  const size_t next = skip_spaces(s, offset + tag.length);
  if (next - offset - tag.length > kMaxGap) return false;
  if (next == s.size()) {
    if (at_end_) return true;
    step = Step::kWait;
    return false;
  }
  if (s[next] != '<') return false;
  const Tag after = tag_at(next);
  if (after.status == Tag::Status::kMore) {
    step = Step::kWait;
    return false;
  }
  if (after.status != Tag::Status::kYes) return false;
  switch (tag.kind) {
    case Tag::Kind::kParameter:
      return after.kind == Tag::Kind::kParameter || after.kind == Tag::Kind::kInvoke ||
             (after.kind == Tag::Kind::kBlock && after.close);
    case Tag::Kind::kInvoke: {
      // The parameter's own close was forgotten: only with another call behind it, or at the very
      // end.
      if (after.kind == Tag::Kind::kInvoke && !after.close) return true;
      if (after.kind != Tag::Kind::kBlock || !after.close) return false;
      const bool last = skip_spaces(s, next + after.length) == s.size();
      if (last && !at_end_) step = Step::kWait;
      return last && at_end_;
    }
    case Tag::Kind::kBlock:
      return false;
  }
  return false;
}

LenientParser::Step LenientParser::value_mode() {
  const std::string_view s = left();
  if (undecided_type_) {
    // A parameter without a type that starts with a parameter is an object of parameters.
    const size_t i = skip_spaces(s, 0);
    if (i == s.size() && i <= kMaxGap && !at_end_) return Step::kWait;
    if (i < s.size() && i <= kMaxGap && s[i] == '<') {
      const Tag tag = tag_at(i);
      if (tag.status == Tag::Status::kMore) return Step::kWait;
      if (tag.status == Tag::Status::kYes && tag.kind == Tag::Kind::kParameter && !tag.close) {
        undecided_type_ = false;
        first_.push_back(true);
        drop(i);
        mode_ = Mode::kObject;
        return Step::kGo;
      }
    }
    undecided_type_ = false;
    arguments("\"");
  }
  const size_t i = s.find('<');
  if (i == kNone) {
    pass(s.size());
    return Step::kGo;
  }
  if (i > 0) {
    pass(i);
    return Step::kGo;
  }
  const Tag tag = tag_at(0);
  if (tag.status == Tag::Status::kMore) return Step::kWait;
  Step step = Step::kGo;
  if (tag.status == Tag::Status::kYes && closes_value(tag, 0, step)) {
    end_parameter();
    // Other closes end the call too; kObject reads them.
    if (tag.kind == Tag::Kind::kParameter) drop(tag.length);
    return Step::kGo;
  }
  if (step == Step::kWait) return Step::kWait;
  pass(1);
  return Step::kGo;
}

}  // namespace deepmint::recipe
