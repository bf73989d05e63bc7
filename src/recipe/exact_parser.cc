#include "recipe/exact_parser.h"

#include <algorithm>

#include "recipe/prompt_text.h"

namespace deepmint::recipe {

ExactParser::ExactParser(const ParsingOptions& options, bool v01, OutputSink& sink)
    : options_(options), v01_(v01), sink_(sink) {
  build();
  State start = State::kAnswerLeading;
  if (options_.stage == ThinkingStage::kStart) start = State::kReasoningLeading;
  if (options_.stage == ThinkingStage::kReasoning) start = State::kReasoning;
  if (options_.stage == ThinkingStage::kContent) start = State::kAnswer;
  if (options_.starts_in_tool_calls) start = State::kToolCalls;
  enter(start);
}

void ExactParser::add(State state, std::string literal, Action action, bool newlines,
                      bool anchored) {
  Pattern p{std::move(literal), action, newlines, anchored, {}};
  p.failure.assign(p.literal.size() + 1, 0);
  for (size_t i = 1, k = 0; i < p.literal.size(); ++i) {
    while (k > 0 && p.literal[i] != p.literal[k]) k = p.failure[k];
    if (p.literal[i] == p.literal[k]) ++k;
    p.failure[i + 1] = static_cast<uint32_t>(k);
  }
  Machine& machine = machines_[static_cast<size_t>(state)];
  machine.starts.set(static_cast<unsigned char>(p.literal.front()));
  if (newlines) machine.starts.set('\n');
  machine.patterns.push_back(std::move(p));
}

void ExactParser::build() {
  const std::string dsml = std::string("<") + std::string(kDsml);
  const std::string close = std::string("</") + std::string(kDsml);
  const auto stops = [&](State s) {
    for (const std::string& stop : options_.stop_sequences)
      if (!stop.empty()) add(s, stop, Action::kStop);
  };
  for (const State s : {State::kAnswerLeading, State::kAnswer}) {
    if (options_.parse_json_output) {
      add(s, "```json\n", Action::kEnterJson);
      add(s, "```\n", Action::kEnterJson);
      add(s, "{", Action::kStartJson);
      add(s, "[", Action::kStartJson);
    } else {
      stops(s);
    }
    if (options_.parse_tool_calls) add(s, dsml, Action::kOpenTools, true);
    if (s == State::kAnswerLeading) add(s, "\n", Action::kLeadingNewline, false, true);
    add(s, std::string(kThinkClose), Action::kExtraThinkClose);
  }
  stops(State::kJson);
  add(State::kJson, "\n```", Action::kLeaveJson);
  if (options_.parse_tool_calls) add(State::kAfterJson, dsml, Action::kOpenTools, true);
  add(State::kToolCalls, "invoke name=\"", Action::kInvoke);
  add(State::kToolCalls, close + "tool_calls>", Action::kCloseBlock);
  add(State::kToolCalls, close + " calls>", Action::kCloseBlock);
  add(State::kName, "\"", Action::kEndName);
  add(State::kArgs, v01_ ? "parameter name=\"" : "parameter name=", Action::kParameter);
  add(State::kArgs, close, Action::kCloseCall);
  add(State::kKey, v01_ ? "\"" : " ", Action::kEndKey);
  add(State::kType, "true\">", Action::kStringValue);
  add(State::kType, "false\">", Action::kRawValue);
  add(State::kString, close, Action::kCloseValue);
  add(State::kRaw, close, Action::kCloseValue);
  for (const State s : {State::kReasoningLeading, State::kReasoning}) {
    if (options_.parse_tool_calls) add(s, dsml, Action::kOpenTools, true);
    if (s == State::kReasoningLeading) add(s, "\n", Action::kLeadingNewline, false, true);
    add(s, std::string(kThinkClose), Action::kThinkClose, true);
  }
}

void ExactParser::enter(State state) {
  state_ = state;
  progress_.assign(machines_[static_cast<size_t>(state)].patterns.size(), Progress{});
  longest_ = 0;
  at_start_ = true;
}

bool ExactParser::advance(const Pattern& p, Progress& at, char c) const {
  if (p.anchored && !at_start_) return false;
  if (at.literal == 0) {
    if (c == p.literal.front()) {
      at.literal = 1;
    } else if (p.newlines && c == '\n') {
      ++at.newlines;
    } else {
      at.newlines = 0;
    }
  } else {
    while (at.literal > 0 && p.literal[at.literal] != c) {
      at.literal = p.failure[at.literal];
      at.newlines = 0;  // a newline that breaks a partial match does not count for the next one
    }
    if (p.literal[at.literal] == c) ++at.literal;
  }
  return at.literal == p.literal.size();
}

void ExactParser::append_escaped(std::string_view text) {
  scratch_.clear();
  json::append_escaped(scratch_, text);
  sink_.tool_arguments(std::string_view(scratch_).substr(1, scratch_.size() - 2));
}

void ExactParser::emit(std::string_view text) {
  if (text.empty()) return;
  switch (state_) {
    case State::kAnswerLeading:
    case State::kAnswer:
      sink_.text(options_.parse_json_output ? std::string_view(" ") : text);
      break;
    case State::kJson:
      sink_.text(text);
      break;
    case State::kAfterJson:
      sink_.text(" ");
      break;
    case State::kName:
      name_.append(text);
      break;
    case State::kKey:
    case State::kRaw:
      sink_.tool_arguments(text);
      break;
    case State::kString:
      append_escaped(text);
      break;
    case State::kReasoningLeading:
    case State::kReasoning:
      sink_.reasoning(text);
      break;
    case State::kFinished:
      sink_.discarded(OutputSink::Discarded::kAfterFinish, text);
      break;
    default:
      break;
  }
  position_ += text.size();
}

void ExactParser::act(Action action, std::string_view match) {
  switch (action) {
    case Action::kStop:
      matched_ = std::string(match);
      stopped_ = true;
      enter(State::kFinished);
      break;
    case Action::kLeadingNewline:
      enter(state_);
      break;
    case Action::kExtraThinkClose:
      sink_.discarded(OutputSink::Discarded::kExtraEndOfThinking, match);
      enter(State::kAnswer);
      break;
    case Action::kThinkClose:
      enter(State::kAnswerLeading);
      break;
    case Action::kOpenTools:
      enter(State::kToolCalls);
      break;
    case Action::kEnterJson:
      enter(State::kJson);
      break;
    case Action::kStartJson:
      enter(State::kJson);
      sink_.text(match);
      break;
    case Action::kLeaveJson:
      enter(State::kAfterJson);
      break;
    case Action::kInvoke:
      name_.clear();
      enter(State::kName);
      break;
    case Action::kCloseBlock:
      enter(State::kFinished);
      break;
    case Action::kEndName:
      ++n_calls_;
      open_call_ = true;
      first_parameter_ = true;
      sink_.tool_begin(name_);
      enter(State::kArgs);
      break;
    case Action::kParameter:
      sink_.tool_arguments(first_parameter_ ? (v01_ ? "{\"" : "{") : (v01_ ? ", \"" : ", "));
      first_parameter_ = false;
      enter(State::kKey);
      break;
    case Action::kCloseCall:
      sink_.tool_arguments(first_parameter_ ? "{}" : "}");
      sink_.tool_end(true);
      open_call_ = false;
      enter(State::kToolCalls);
      break;
    case Action::kEndKey:
      sink_.tool_arguments(v01_ ? "\": " : ": ");
      enter(State::kType);
      break;
    case Action::kStringValue:
      sink_.tool_arguments("\"");
      enter(State::kString);
      break;
    case Action::kRawValue:
      enter(State::kRaw);
      break;
    case Action::kCloseValue:
      if (state_ == State::kString) sink_.tool_arguments("\"");
      enter(State::kArgs);
      break;
  }
}

void ExactParser::flush(std::string_view chunk, size_t keep) {
  const size_t total = held_.size() + chunk.size();
  const size_t decided = total - std::min(keep, total);
  if (decided >= held_.size()) {
    const size_t from_chunk = decided - held_.size();
    emit(held_);
    held_.clear();
    emit(chunk.substr(0, from_chunk));
    held_.append(chunk.substr(from_chunk));
  } else {
    emit(std::string_view(held_).substr(0, decided));
    held_.erase(0, decided);
    held_.append(chunk);
  }
}

void ExactParser::push(std::string_view text) {
  size_t start = 0;  // first byte of `text` that is not passed on yet
  size_t i = 0;
  while (i < text.size()) {
    if (stopped_ || state_ == State::kFinished) {
      emit(text.substr(i));
      return;
    }
    const Machine& machine = machines_[static_cast<size_t>(state_)];
    if (longest_ == 0) {
      const size_t from = i;
      while (i < text.size() && !machine.starts[static_cast<unsigned char>(text[i])]) ++i;
      if (i > from) at_start_ = false;
      if (i == text.size()) break;
    }
    const char c = text[i++];
    size_t longest = 0;
    const Pattern* complete = nullptr;
    size_t length = 0;
    for (size_t k = 0; k < machine.patterns.size(); ++k) {
      const Pattern& p = machine.patterns[k];
      Progress& at = progress_[k];
      const bool done = advance(p, at, c);
      const size_t bytes = at.newlines + at.literal;
      if (done && complete == nullptr) {
        complete = &p;
        length = bytes;
      }
      longest = std::max(longest, bytes);
    }
    at_start_ = false;
    longest_ = longest;
    if (complete == nullptr) continue;
    flush(text.substr(start, i - start), length);
    const std::string match = std::move(held_);
    held_.clear();
    start = i;
    const std::string_view literal =
        std::string_view(match).substr(match.size() - complete->literal.size());
    position_ += match.size() - literal.size();
    act(complete->action, literal);
    position_ += literal.size();
  }
  if (!stopped_ && state_ != State::kFinished) flush(text.substr(start), longest_);
}

void ExactParser::finish() {
  emit(held_);
  held_.clear();
  if (open_call_) {
    sink_.tool_end(false);
    open_call_ = false;
  }
}

FinishReason ExactParser::finish_reason(std::optional<BackendFinish> backend) const {
  if (stopped_) return FinishReason::kStopSequence;
  if (!backend) return FinishReason::kEndOfStream;
  switch (*backend) {
    case BackendFinish::kLength:
      return FinishReason::kLength;
    case BackendFinish::kContentFilter:
      return FinishReason::kContentFilter;
    case BackendFinish::kStop:
      break;
  }
  return n_calls_ > 0 ? FinishReason::kToolCalls : FinishReason::kStop;
}

}  // namespace deepmint::recipe
