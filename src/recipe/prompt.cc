#include "recipe/prompt.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "recipe/prompt_text.h"
#include "recipe/spelling.h"

namespace deepmint::recipe {
namespace {

// A message after normalisation: the contents of one or more messages of the conversation, joined
// with an empty line.
struct Piece {
  const Message* message = nullptr;
  int index = -1;
};
struct Turn {
  Role role = Role::kUser;
  std::vector<Piece> pieces = {};  // empty for a system turn that the renderer added
  bool skip_empty = false;         // pieces without text are left out when there are others
  const Message& first() const { return *pieces.front().message; }
};

class Writer {
 public:
  explicit Writer(Prompt& out) : out_(out) {}

  void text(std::string_view s) { out_.text.append(s); }
  void control(std::string_view s) {
    out_.controls.push_back({out_.text.size(), out_.text.size() + s.size(), -1});
    out_.text.append(s);
  }
  // Template text in which ｜DSML｜, <think> and </think> are control tokens.
  void marked(std::string_view s) {
    while (!s.empty()) {
      size_t at = std::string_view::npos;
      std::string_view token;
      for (const std::string_view candidate : {kDsml, kThinkOpen, kThinkClose}) {
        const size_t found = s.find(candidate);
        if (found < at) {
          at = found;
          token = candidate;
        }
      }
      text(s.substr(0, at));
      if (at == std::string_view::npos) return;
      control(token);
      s.remove_prefix(at + token.size());
    }
  }
  void caller(std::string_view s, int message) {
    if (s.empty()) return;
    if (!out_.origins.empty() && out_.origins.back().end == out_.text.size() &&
        out_.origins.back().message == message) {
      out_.origins.back().end += s.size();
    } else {
      out_.origins.push_back({out_.text.size(), out_.text.size() + s.size(), message});
    }
    out_.text.append(s);
  }
  void content(const Piece& piece) {
    const Message& m = *piece.message;
    const std::string_view s = m.content;
    size_t done = 0;
    for (const size_t mark : m.image_marks) {
      caller(s.substr(done, mark - done), piece.index);
      control(kImageMark);
      done = mark + kImageMark.size();
    }
    caller(s.substr(done), piece.index);
    out_.images.insert(out_.images.end(), m.images.begin(), m.images.end());
  }

 private:
  Prompt& out_;
};

class Renderer {
 public:
  Renderer(const Conversation& c, const PromptOptions& o, Prompt& out)
      : c_(c),
        o_(o),
        text_(version_text(o.version)),
        w_(out),
        v4_(o.version == ModelVersion::kV4),
        old_(o.compat == Compat::kRecipe01),
        tools_(!c.tools.empty() && c.tool_choice != ToolChoice::kNone),
        style_{v4_ && !old_ ? NumberStyle::kCompact : NumberStyle::kPython, true} {}

  void run() {
    normalise();
    if (v4_ && !old_) {
      order_results_in_window();
    } else {
      order_results_in_runs();
    }
    w_.control(kBos);
    const bool any_system_text = tools_ || format_prompt();
    if (any_system_text && (turns_.empty() || turns_.front().role != Role::kSystem))
      turns_.insert(turns_.begin(), Turn{.role = Role::kSystem});
    const std::string_view effort = effort_prefix();
    if (turns_.empty() && v4_ && !old_) w_.text(effort);
    for (size_t i = 0; i < turns_.size(); ++i) {
      const Turn& turn = turns_[i];
      if (i == 0) {
        if (!v4_ && (!effort.empty() || turn.role == Role::kSystem)) w_.control(kSystemToken);
        w_.text(effort);
      }
      switch (turn.role) {
        case Role::kSystem:
          if (i > 0 && !v4_) w_.control(kSystemToken);
          pieces(turn);
          if (i == 0) system_appendix();
          loaded_tools(turn);
          break;
        case Role::kUser:
        case Role::kTool:
          user_or_tool(turn, i);
          break;
        case Role::kLatestReminder:
          w_.control(kReminderToken);
          pieces(turn);
          break;
        case Role::kAssistant:
          assistant(turn, i);
          break;
      }
    }
    if (!ends_in_prefix()) {
      w_.control(kAssistantToken);
      w_.control(c_.thinking ? kThinkOpen : kThinkClose);
    }
    if (tools_ && c_.tool_choice == ToolChoice::kRequired &&
        !(c_.thinking && o_.compat == Compat::kOurs)) {
      // While thinking, ours lets the model think first; a constraint forces the opener afterwards.
      w_.text("\n\n<");
      w_.control(kDsml);
      w_.text(text_.block);
      w_.text(">\n");
    }
  }

 private:
  bool ends_in_prefix() const {
    return !old_ && !turns_.empty() && turns_.back().role == Role::kAssistant &&
           turns_.back().first().prefix;
  }

  bool format_prompt() const {
    return c_.response_format.kind == ResponseFormat::Kind::kJsonObject ||
           c_.response_format.kind == ResponseFormat::Kind::kJsonSchema;
  }

  std::string_view effort_prefix() const {
    if (!c_.thinking) return {};
    switch (c_.effort.value_or(Effort::kHigh)) {
      case Effort::kLow:
        return text_.effort_low;
      case Effort::kMax:
        return text_.effort_max;
      default:
        return text_.effort_high;
    }
  }

  // Joins neighbouring messages as the version does, and moves system messages (V4).
  void normalise() {
    turns_.reserve(c_.messages.size() + 1);
    if (v4_) {
      Turn system{.role = Role::kSystem, .pieces = {}, .skip_empty = true};
      bool leading = true;
      for (size_t i = 0; i < c_.messages.size(); ++i) {
        const Message& m = c_.messages[i];
        leading = leading && m.role == Role::kSystem;
        if (m.role == Role::kSystem && (leading || !old_))
          system.pieces.push_back({&m, static_cast<int>(i)});
      }
      if (!system.pieces.empty()) turns_.push_back(std::move(system));
    }
    bool leading = true;
    for (size_t i = 0; i < c_.messages.size(); ++i) {
      const Message& m = c_.messages[i];
      leading = leading && m.role == Role::kSystem;
      Role role = m.role;
      if (v4_ && role == Role::kSystem) {
        if (leading || !old_ || m.content.empty()) continue;
        role = Role::kUser;
      }
      const Piece piece{&m, static_cast<int>(i)};
      // 0.2 shows only the first of neighbouring reminders to V4.1.
      if (o_.compat == Compat::kRecipe02 && !v4_ && role == Role::kLatestReminder &&
          !turns_.empty() && turns_.back().role == Role::kLatestReminder)
        continue;
      if (role == Role::kUser && !turns_.empty() && turns_.back().role == Role::kUser) {
        turns_.back().pieces.push_back(piece);
        turns_.back().skip_empty = v4_ && !old_;
      } else {
        turns_.push_back({role, {piece}, false});
      }
    }
  }

  // V4 since 0.2: behind an assistant message with n calls, the next n messages (when there are
  // that many) are put into the order of the calls; whatever is not a result of one of them goes
  // last.
  void order_results_in_window() {
    for (size_t i = 0; i < turns_.size(); ++i) {
      if (turns_[i].role != Role::kAssistant) continue;
      const std::vector<ToolCall> calls = ordered_calls(turns_[i].first());
      if (calls.empty() || turns_.size() - i - 1 < calls.size()) continue;
      const auto rank = ranks(calls);
      const auto key = [&](const Turn& t) {
        if (t.role != Role::kTool) return calls.size();
        const auto it = rank.find(t.first().tool_call_id);
        return it == rank.end() ? calls.size() : it->second;
      };
      const auto begin = turns_.begin() + static_cast<ptrdiff_t>(i) + 1;
      std::stable_sort(begin, begin + static_cast<ptrdiff_t>(calls.size()),
                       [&](const Turn& a, const Turn& b) { return key(a) < key(b); });
    }
  }

  // V4.1, and V4 in 0.1: in each run of user and tool messages the tool messages take each other's
  // places so that they follow the order of the calls; unknown ids come first.
  void order_results_in_runs() {
    const std::vector<ToolCall>* calls = nullptr;
    size_t i = 0;
    while (i < turns_.size()) {
      if (turns_[i].role == Role::kAssistant && !turns_[i].first().tool_calls.empty())
        calls = &turns_[i].first().tool_calls;
      if (turns_[i].role != Role::kUser && turns_[i].role != Role::kTool) {
        ++i;
        continue;
      }
      std::vector<size_t> slots;
      for (; i < turns_.size() && (turns_[i].role == Role::kUser || turns_[i].role == Role::kTool);
           ++i)
        if (turns_[i].role == Role::kTool) slots.push_back(i);
      if (calls == nullptr || slots.size() < 2) continue;
      const auto rank = ranks(*calls);
      const auto key = [&](const Turn& t) {
        const auto it = rank.find(t.first().tool_call_id);
        return it == rank.end() ? size_t{0} : it->second;
      };
      std::vector<Turn> results;
      results.reserve(slots.size());
      for (const size_t slot : slots) results.push_back(std::move(turns_[slot]));
      std::stable_sort(results.begin(), results.end(),
                       [&](const Turn& a, const Turn& b) { return key(a) < key(b); });
      for (size_t k = 0; k < slots.size(); ++k) turns_[slots[k]] = std::move(results[k]);
    }
  }

  // V4 since 0.2 writes the calls of a message in byte order of their ids.
  std::vector<ToolCall> ordered_calls(const Message& m) const {
    std::vector<ToolCall> calls = m.tool_calls;
    if (v4_ && !old_)
      std::stable_sort(calls.begin(), calls.end(),
                       [](const ToolCall& a, const ToolCall& b) { return a.id < b.id; });
    return calls;
  }

  static std::unordered_map<std::string_view, size_t> ranks(const std::vector<ToolCall>& calls) {
    std::unordered_map<std::string_view, size_t> out;
    for (size_t k = 0; k < calls.size(); ++k) out.emplace(calls[k].id, k);
    return out;
  }

  void pieces(const Turn& turn) {
    bool first = true;
    for (const Piece& piece : turn.pieces) {
      if (turn.skip_empty && piece.message->content.empty()) continue;
      if (!first) w_.text("\n\n");
      first = false;
      w_.content(piece);
    }
  }

  void schema_line(const Tool& tool) {
    std::string line = "{\"name\": ";
    json::append_escaped(line, tool.name);
    line.append(", \"description\": ");
    json::append_escaped(line, tool.description.value_or(std::string()));
    line.append(", \"parameters\": ");
    append_json(line, tool.parameters, style_);
    line.push_back('}');
    w_.text(line);
  }

  // Tools that become known with a system message in the middle.
  void loaded_tools(const Turn& turn) {
    std::string_view before = kUpdatedTools;
    for (const Piece& piece : turn.pieces) {
      for (const Tool& tool : piece.message->loaded_tools) {
        w_.text(std::exchange(before, "\n"));
        schema_line(tool);
      }
    }
  }

  void system_appendix() {
    if (tools_) {
      w_.text("\n\n");
      w_.marked(text_.tools_head);
      bool first = true;
      for (const Tool& tool : c_.tools) {
        if (tool.deferred) continue;
        if (!std::exchange(first, false)) w_.text("\n");
        schema_line(tool);
      }
      w_.marked(text_.tools_tail);
    }
    if (!format_prompt()) return;
    w_.text("\n\n");
    if (c_.response_format.kind == ResponseFormat::Kind::kJsonSchema) {
      w_.text(kSchemaPrompt);
      w_.text(to_json(c_.response_format.schema, style_));
    } else if (v4_ && !old_) {
      w_.text(kV4JsonPrompt);
    } else {
      w_.text(kSchemaPrompt);
      w_.text(kJsonObjectSchema);
    }
  }

  void user_or_tool(const Turn& turn, size_t i) {
    // V4 since 0.2 opens a new user turn for a tool result that follows user text.
    const Role before = i > 0 ? turns_[i - 1].role : Role::kSystem;
    const bool continues = before == Role::kTool || (before == Role::kUser && (old_ || !v4_));
    if (continues) {
      w_.text("\n\n");
    } else {
      w_.control(kUserToken);
    }
    if (turn.role == Role::kTool) w_.text(kToolResultOpen);
    pieces(turn);
    if (turn.role == Role::kTool) w_.text(kToolResultClose);
  }

  void assistant(const Turn& turn, size_t i) {
    const Message& m = turn.first();
    const bool prefix = m.prefix && i + 1 == turns_.size() && !old_;
    w_.control(kAssistantToken);
    if (!prefix && m.replay_turn != nullptr && opens_thinking(m, prefix, i) == m.replay_thinking) {
      w_.control(m.replay_thinking ? kThinkOpen : kThinkClose);
      segments(*m.replay_turn, turn.pieces.front().index);
      w_.control(kEos);
      return;
    }
    if (think_block(m, prefix, i, turn.pieces.front().index)) return;
    pieces(turn);
    calls(m, turn.pieces.front().index);
    if (!prefix) w_.control(kEos);
  }

  // Writes what stands between the assistant token and the content. True: the message ends here,
  // inside an open block.
  bool think_block(const Message& m, bool prefix, size_t i, int index) {
    if (!opens_thinking(m, prefix, i)) {
      w_.control(kThinkClose);
      return false;
    }
    w_.control(kThinkOpen);
    if (m.reasoning) w_.caller(*m.reasoning, index);
    if (prefix && c_.thinking && m.content.empty() && m.tool_calls.empty()) return true;
    w_.control(kThinkClose);
    return false;
  }

  bool opens_thinking(const Message& m, bool prefix, size_t i) const {
    const bool keep = o_.keep_reasoning.value_or(old_ ? true : tools_);
    if (old_) return c_.thinking && i > 0 && keep;
    // V4: whether thinking is on does not matter for history that carries its reasoning.
    if (v4_) return (keep || prefix) && m.reasoning.has_value();
    return c_.thinking && i > 0 && (keep || prefix);
  }

  void segments(const std::vector<Segment>& all, int index) {
    for (const Segment& s : all) {
      if (s.kind == Segment::Kind::kControl) {
        w_.control(s.text);
      } else {
        w_.caller(s.text, index);
      }
    }
  }

  void tag(std::string_view open, std::string_view name) {
    w_.text(open);
    w_.control(kDsml);
    w_.text(name);
  }

  void calls(const Message& m, int index) {
    if (m.replay != nullptr) {
      segments(*m.replay, index);
      return;
    }
    if (m.tool_calls.empty()) return;
    w_.text("\n\n");
    tag("<", text_.block);
    w_.text(">");
    for (const ToolCall& call : ordered_calls(m)) {
      w_.text("\n");
      tag("<", text_.invoke);
      w_.text(" name=\"");
      w_.caller(call.name, index);
      w_.text("\">\n");
      const bool any = parameters(call, index);
      if (any || old_ || !v4_) w_.text("\n");
      tag("</", text_.invoke);
      w_.text(">");
    }
    w_.text("\n");
    tag("</", text_.block);
    w_.text(">");
  }

  void parameter(std::string_view name, bool is_string, std::string_view value, int index) {
    tag("<", text_.parameter);
    w_.text(" name=\"");
    w_.caller(name, index);
    w_.text(is_string ? "\" string=\"true\">" : "\" string=\"false\">");
    w_.caller(value, index);
    tag("</", text_.parameter);
    w_.text(">");
  }

  bool parameters(const ToolCall& call, int index) {
    const auto parsed = json::parse(call.arguments);
    if (!parsed || !parsed->is_object() || !numbers_are_finite(*parsed)) {
      parameter("arguments", true, call.arguments, index);
      return true;
    }
    bool any = false;
    std::string value;
    for (const auto& [key, v] : unique_members(parsed->members())) {
      if (any) w_.text("\n");
      any = true;
      if (v->is_string()) {
        parameter(*key, true, v->as_string(), index);
      } else {
        value.clear();
        append_json(value, *v, style_);
        parameter(*key, false, value, index);
      }
    }
    return any;
  }

  const Conversation& c_;
  const PromptOptions& o_;
  const VersionText& text_;
  Writer w_;
  const bool v4_, old_, tools_;
  const JsonStyle style_;
  std::vector<Turn> turns_;
};

}  // namespace

std::vector<Segment> Prompt::segments() const {
  std::vector<Segment> out;
  out.reserve(2 * controls.size() + 1);
  size_t done = 0;
  for (const Range& c : controls) {
    if (c.begin > done) out.push_back({Segment::Kind::kText, text.substr(done, c.begin - done)});
    out.push_back({Segment::Kind::kControl, text.substr(c.begin, c.end - c.begin)});
    done = c.end;
  }
  if (done < text.size()) out.push_back({Segment::Kind::kText, text.substr(done)});
  return out;
}

Prompt render_prompt(const Conversation& conversation, const PromptOptions& options) {
  Prompt out;
  size_t bytes = 1024;
  for (const Message& m : conversation.messages) bytes += m.content.size() + 64;
  out.text.reserve(bytes);
  Renderer(conversation, options, out).run();
  return out;
}

}  // namespace deepmint::recipe
