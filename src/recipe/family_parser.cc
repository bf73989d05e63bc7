#include "recipe/family_parser.h"

#include <algorithm>
#include <optional>

#include "core/json.h"

namespace deepmint::recipe {
namespace {

using Calls = ReplyFormat::Calls;
constexpr size_t npos = std::string_view::npos;
constexpr std::string_view kWhite = " \t\r\n";
constexpr std::string_view kThinkOpen = "<think>", kThinkClose = "</think>";
constexpr std::string_view kHermesOpen = "<tool_call>", kHermesClose = "</tool_call>";
constexpr std::string_view kPythonTag = "<|python_tag|>";
constexpr std::string_view kMistralOpen = "[TOOL_CALLS]", kMistralArguments = "[ARGS]";
constexpr std::string_view kDeepSeekOpen = "<｜tool▁calls▁begin｜>";
constexpr std::string_view kDeepSeekClose = "<｜tool▁calls▁end｜>";
constexpr std::string_view kDeepSeekCall = "<｜tool▁call▁begin｜>";
constexpr std::string_view kDeepSeekSep = "<｜tool▁sep｜>";
constexpr std::string_view kDeepSeekEnd = "<｜tool▁call▁end｜>";
constexpr size_t kMaxName = 256;  // bytes of a function's name in front of its arguments

// Bytes at the end of `text` that may still become `marker`.
size_t held_tail(std::string_view text, std::string_view marker) {
  for (size_t n = std::min(text.size(), marker.size() - 1); n > 0; --n)
    if (marker.starts_with(text.substr(text.size() - n))) return n;
  return 0;
}

// Passes `text` on but for these characters at its end, which `held` keeps until more follows.
// False when there was nothing else.
template <class Pass>
bool pass_but_end(std::string_view text, std::string_view characters, std::string& held,
                  Pass pass) {
  const size_t last = text.find_last_not_of(characters);
  if (last == npos) {
    held.append(text);
    return false;
  }
  if (!held.empty()) pass(std::exchange(held, {}));
  pass(text.substr(0, last + 1));
  held = text.substr(last + 1);
  return true;
}

enum class Match : uint8_t { kNo, kMaybe, kYes };
Match match_front(std::string_view text, std::string_view marker, bool at_end) {
  if (text.starts_with(marker)) return Match::kYes;
  return !at_end && marker.starts_with(text) ? Match::kMaybe : Match::kNo;
}

size_t skip(std::string_view s, size_t from, std::string_view characters) {
  return std::min(s.find_first_not_of(characters, from), s.size());
}

}  // namespace

ReplyFormat reply_format_of(std::string_view jinja) {
  const auto has = [&](std::string_view s) { return jinja.find(s) != npos; };
  ReplyFormat format;
  format.thinks = has(kThinkClose);
  if (!has("tools") && !has("tool_calls")) return format;
  if (has(kHermesOpen))
    format.calls = Calls::kHermes;
  else if (has(kMistralOpen))
    format.calls = Calls::kMistral;
  else if (has(kDeepSeekOpen))
    format.calls = Calls::kDeepSeek;
  else if (has("<|start_header_id|>") && (has(kPythonTag) || has("\"parameters\"")))
    format.calls = Calls::kLlama3;
  return format;
}

std::vector<std::string_view> reply_markers(const ReplyFormat& format) {
  std::vector<std::string_view> out;
  if (format.thinks) out = {kThinkOpen, kThinkClose};
  switch (format.calls) {
    case Calls::kNone:
      break;
    case Calls::kHermes:
      out.insert(out.end(), {kHermesOpen, kHermesClose});
      break;
    case Calls::kLlama3:
      out.push_back(kPythonTag);
      break;
    case Calls::kMistral:
      out.insert(out.end(), {kMistralOpen, kMistralArguments});
      break;
    case Calls::kDeepSeek:
      out.insert(out.end(),
                 {kDeepSeekOpen, kDeepSeekClose, kDeepSeekCall, kDeepSeekSep, kDeepSeekEnd});
      break;
  }
  return out;
}

FamilyParser::FamilyParser(const ReplyFormat& format, const Options& options, OutputSink& sink)
    : format_(format), options_(options), sink_(sink) {
  if (options_.starts_in_thinking && format_.thinks) state_ = State::kThinking;
  if (!options_.tools) return;
  switch (format_.calls) {
    case Calls::kHermes:
      open_ = kHermesOpen;
      break;
    case Calls::kMistral:
      open_ = kMistralOpen;
      break;
    case Calls::kDeepSeek:
      open_ = kDeepSeekOpen;
      break;
    case Calls::kLlama3:  // only where the reply begins
    case Calls::kNone:
      break;
  }
}

void FamilyParser::push(std::string_view text) {
  buffer_.append(text);
  while (step(false)) {
  }
}

void FamilyParser::finish() {
  while (step(true)) {
  }
  if (n_calls_ == 0 && !space_.empty()) sink_.text(space_);
  space_.clear();
}

// One thing decided: true when there may be more to decide in the buffer.
bool FamilyParser::step(bool at_end) {
  switch (state_) {
    case State::kStart:
      return in_start(at_end);
    case State::kThinking:
      return in_thinking(at_end);
    case State::kText:
      return in_text(at_end);
    case State::kCall:
      return in_call(at_end);
  }
  return false;
}

bool FamilyParser::in_start(bool at_end) {
  const size_t begin = skip(buffer_, 0, kWhite);
  space_.append(buffer_, 0, begin);
  buffer_.erase(0, begin);
  if (buffer_.empty()) return false;
  if (format_.thinks && !after_thinking_) {
    const Match think = match_front(buffer_, kThinkOpen, at_end);
    if (think == Match::kMaybe) return false;
    if (think == Match::kYes) {
      buffer_.erase(0, kThinkOpen.size());
      space_.clear();
      state_ = State::kThinking;
      return true;
    }
  }
  if (after_thinking_) space_.clear();
  if (format_.calls == Calls::kLlama3 && options_.tools) {
    const Match tag = match_front(buffer_, kPythonTag, at_end);
    if (tag == Match::kMaybe) return false;
    if (tag == Match::kYes || buffer_.front() == '{') {
      state_ = State::kCall;
      return true;
    }
  }
  state_ = State::kText;
  return true;
}

void FamilyParser::emit_reasoning(std::string_view text) {
  if (!reasoned_) text.remove_prefix(skip(text, 0, "\n"));
  if (text.empty()) return;
  reasoned_ |=
      pass_but_end(text, "\n", newlines_, [this](std::string_view s) { sink_.reasoning(s); });
}

bool FamilyParser::in_thinking(bool at_end) {
  const size_t close = buffer_.find(kThinkClose);
  if (close != npos) {
    emit_reasoning(std::string_view(buffer_).substr(0, close));
    newlines_.clear();
    buffer_.erase(0, close + kThinkClose.size());
    after_thinking_ = true;
    state_ = State::kStart;  // of the answer
    return true;
  }
  const size_t held = at_end ? 0 : held_tail(buffer_, kThinkClose);
  emit_reasoning(std::string_view(buffer_).substr(0, buffer_.size() - held));
  buffer_.erase(0, buffer_.size() - held);
  return false;
}

void FamilyParser::emit_text(std::string_view text) {
  if (text.empty()) return;
  if (open_.empty()) {
    if (!space_.empty()) sink_.text(std::exchange(space_, {}));
    sink_.text(text);
    return;
  }
  // White space in front of a call belongs to the markup.
  pass_but_end(text, kWhite, space_, [this](std::string_view s) { sink_.text(s); });
}

bool FamilyParser::in_text(bool at_end) {
  const size_t open = open_.empty() ? npos : buffer_.find(open_);
  if (open != npos) {
    emit_text(std::string_view(buffer_).substr(0, open));
    buffer_.erase(0, open);
    state_ = State::kCall;
    return true;
  }
  const size_t held = at_end || open_.empty() ? 0 : held_tail(buffer_, open_);
  emit_text(std::string_view(buffer_).substr(0, buffer_.size() - held));
  buffer_.erase(0, buffer_.size() - held);
  return false;
}

// The end of the object that begins at `begin`, once all of it is there.
bool FamilyParser::object_end(size_t begin, size_t& end) {
  if (scanned_ <= begin) {
    scanned_ = begin;
    depth_ = 0;
    in_string_ = escaped_ = false;
  }
  for (; scanned_ < buffer_.size(); ++scanned_) {
    const char c = buffer_[scanned_];
    if (in_string_) {
      if (escaped_)
        escaped_ = false;
      else if (c == '\\')
        escaped_ = true;
      else if (c == '"')
        in_string_ = false;
    } else if (c == '"') {
      in_string_ = true;
    } else if (c == '{' || c == '[') {
      ++depth_;
    } else if ((c == '}' || c == ']') && --depth_ <= 0) {
      end = scanned_ + 1;
      return true;
    }
  }
  return false;
}

void FamilyParser::leave_call(size_t consumed) {
  buffer_.erase(0, consumed);
  scanned_ = 0;
  in_list_ = false;
  state_ = State::kText;
}

// The first `length` bytes, the marker among them, are text after all.
void FamilyParser::not_a_call(size_t length) {
  const std::string text = buffer_.substr(0, length);
  leave_call(length);
  emit_text(text);
}

namespace {

struct ParsedCall {
  std::string name, arguments;
};

// The arguments of a call as JSON text; some models put them into a string.
std::string spell_arguments(const json::Value* arguments) {
  if (arguments == nullptr || arguments->is_null()) return "{}";
  if (!arguments->is_string()) return json::dump(*arguments);
  const auto inner = json::parse(arguments->as_string());
  return inner && inner->is_object() ? arguments->as_string() : json::dump(*arguments);
}

std::optional<ParsedCall> read_call(std::string_view text) {
  const auto object = json::parse(text);
  if (!object || !object->is_object()) return std::nullopt;
  const json::Value* call = object->find("function");
  if (call == nullptr || !call->is_object()) call = &*object;
  const json::Value* name = call->find("name");
  if (name == nullptr || !name->is_string() || name->as_string().empty()) return std::nullopt;
  const json::Value* arguments = call->find("arguments");
  if (arguments == nullptr) arguments = call->find("parameters");
  return ParsedCall{name->as_string(), spell_arguments(arguments)};
}

}  // namespace

// buffer_ begins with the marker (or, for Llama 3, perhaps right with the object).
bool FamilyParser::in_call(bool at_end) {
  const std::string_view all = buffer_;
  const auto pass_on = [&](const ParsedCall& call) {
    space_.clear();
    sink_.tool_begin(call.name);
    sink_.tool_arguments(call.arguments);
    sink_.tool_end(true);
    ++n_calls_;
  };
  const auto give_up = [&] { return not_a_call(buffer_.size()), true; };
  const auto wait = [&] { return at_end ? give_up() : false; };

  if (format_.calls == Calls::kHermes) {
    const size_t begin = skip(all, kHermesOpen.size(), kWhite);
    if (begin == all.size()) return wait();
    if (all[begin] != '{') return not_a_call(begin), true;
    size_t end = 0;
    if (!object_end(begin, end)) return wait();
    const size_t close = skip(all, end, kWhite);
    const Match closes = match_front(all.substr(close), kHermesClose, at_end);
    if (closes == Match::kMaybe) return false;
    const auto call = read_call(all.substr(begin, end - begin));
    if (!call) return not_a_call(closes == Match::kYes ? close + kHermesClose.size() : end), true;
    pass_on(*call);
    leave_call(closes == Match::kYes ? close + kHermesClose.size() : end);
    return true;
  }

  if (format_.calls == Calls::kLlama3) {
    size_t begin = all.starts_with(kPythonTag) ? kPythonTag.size() : 0;
    if (n_calls_ > 0) begin = skip(all, begin, " \t\r\n;");
    begin = skip(all, begin, kWhite);
    if (begin == all.size()) {
      if (!at_end || n_calls_ == 0) return wait();
      return leave_call(begin), true;
    }
    if (all[begin] != '{') {
      if (n_calls_ > 0) return leave_call(0), true;
      return not_a_call(begin), true;
    }
    size_t end = 0;
    if (!object_end(begin, end)) return wait();
    const auto call = read_call(all.substr(begin, end - begin));
    if (!call) return not_a_call(end), true;
    pass_on(*call);
    buffer_.erase(0, end);
    scanned_ = 0;
    return true;
  }

  if (format_.calls == Calls::kMistral) {
    size_t begin = in_list_ ? skip(all, 0, " \t\r\n,") : skip(all, kMistralOpen.size(), kWhite);
    if (begin == all.size()) {
      if (at_end && in_list_) return leave_call(begin), true;
      return wait();
    }
    if (!in_list_ && all[begin] == '[') {
      begin = skip(all, begin + 1, kWhite);
      if (begin == all.size()) return wait();
    }
    if (all[begin] == '{') {
      size_t end = 0;
      if (!object_end(begin, end)) return wait();
      const auto call = read_call(all.substr(begin, end - begin));
      if (!call) return not_a_call(end), true;
      pass_on(*call);
      buffer_.erase(0, end);
      scanned_ = 0;
      in_list_ = true;
      return true;
    }
    if (in_list_) return leave_call(all[begin] == ']' ? begin + 1 : begin), true;
    // NAME[ARGS]{…}
    const size_t mark = all.find(kMistralArguments, begin);
    const size_t name_end = std::min(mark, all.size());
    const std::string_view name = all.substr(begin, name_end - begin);
    if (name.size() > kMaxName || name.find_first_of("\n{") != npos) return not_a_call(begin), true;
    if (mark == npos) return wait();
    const size_t arguments = skip(all, mark + kMistralArguments.size(), kWhite);
    if (arguments == all.size()) return wait();
    size_t end = 0;
    if (all[arguments] != '{' || name.empty()) return not_a_call(arguments), true;
    if (!object_end(arguments, end)) return wait();
    const auto object = json::parse(all.substr(arguments, end - arguments));
    if (!object) return not_a_call(end), true;
    pass_on({std::string(name.substr(0, name.find('['))), json::dump(*object)});
    leave_call(end);
    return true;
  }

  // DeepSeek: calls between an opening and a closing token.
  size_t begin = all.starts_with(kDeepSeekOpen) ? kDeepSeekOpen.size() : 0;
  begin = skip(all, begin, kWhite);
  const std::string_view rest = all.substr(begin);
  const Match closes = match_front(rest, kDeepSeekClose, at_end);
  if (closes == Match::kYes) return leave_call(begin + kDeepSeekClose.size()), true;
  const Match opens = match_front(rest, kDeepSeekCall, at_end);
  if (closes == Match::kMaybe || opens == Match::kMaybe) return false;
  if (opens == Match::kNo) {
    if (n_calls_ > 0) return leave_call(begin), true;
    return not_a_call(begin), true;
  }
  const size_t sep = all.find(kDeepSeekSep, begin);
  if (sep == npos) return wait();
  const size_t name_begin = sep + kDeepSeekSep.size();
  const size_t line = all.find('\n', name_begin);
  if (line == npos) return wait();
  const size_t object = all.find('{', line);
  if (object == npos) return wait();
  size_t end = 0;
  if (!object_end(object, end)) return wait();
  const size_t close = all.find(kDeepSeekEnd, end);
  if (close == npos && !at_end) return false;
  const std::string_view name = all.substr(name_begin, line - name_begin);
  const auto arguments = json::parse(all.substr(object, end - object));
  const size_t used = close == npos ? all.size() : close + kDeepSeekEnd.size();
  if (!arguments || name.empty()) return not_a_call(used), true;
  pass_on({std::string(name), json::dump(*arguments)});
  buffer_.erase(0, used);
  scanned_ = 0;
  if (buffer_.empty() && at_end) return leave_call(0), true;
  return true;
}

}  // namespace deepmint::recipe
