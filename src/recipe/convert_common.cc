#include "recipe/convert_common.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <unordered_set>

#include "core/utf8.h"
#include "recipe/prompt_text.h"
#include "recipe/schema_check.h"
#include "recipe/spelling.h"

namespace deepmint::recipe {
namespace {

constexpr size_t kMaxStops = 16;
constexpr size_t kMaxToolName = 128;
constexpr size_t kMaxLink = 8192;
constexpr size_t kMaxInlineDocument = 1 << 20;

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool starts_with_nocase(std::string_view s, std::string_view prefix) {
  return s.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), s.begin(),
                                                 [](char a, char b) { return a == lower(b); });
}

int base64_value(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f'; }

std::string tools_json(const std::vector<Tool>& tools) {
  std::string out = "[";
  for (const Tool& tool : tools) {
    if (out.size() > 1) out.push_back(',');
    out.append(R"({"type":"function","function":{"name":)");
    json::append_escaped(out, tool.name);
    out.append(",\"description\":");
    if (tool.description) {
      json::append_escaped(out, *tool.description);
    } else {
      out.append("null");
    }
    out.append(",\"parameters\":");
    append_json(out, tool.parameters, {NumberStyle::kCompact, false});
    out.append(",\"strict\":")
        .append(!tool.strict   ? "null"
                : *tool.strict ? "true"
                               : "false")
        .append("}");
    if (tool.deferred) out.append(",\"defer_loading\":true");
    if (tool.format) out.append(",\"format\":").append(compact_json(*tool.format));
    out.push_back('}');
  }
  out.push_back(']');
  return out;
}

}  // namespace

void ContentBuilder::separate() {
  if (any_) content_.append("\n\n");
  any_ = true;
}
void ContentBuilder::text(std::string_view s) {
  separate();
  content_.append(s);
}
void ContentBuilder::image(ImageSource source) {
  separate();
  marks_.push_back(content_.size());
  content_.append(kImageMark);
  images_.push_back(std::move(source));
}
void ContentBuilder::move_into(Message& m) {
  m.content = std::move(content_);
  m.image_marks = std::move(marks_);
  m.images = std::move(images_);
}

bool ConvertBase::mentions_json() const {
  static constexpr std::string_view kWord = "json";
  const std::vector<Message>& all = r_.conversation.messages;
  return std::any_of(all.begin(), all.end(), [](const Message& m) {
    return std::search(m.content.begin(), m.content.end(), kWord.begin(), kWord.end(),
                       [](char a, char b) { return lower(a) == b; }) != m.content.end();
  });
}

std::optional<ToolChoice> tool_choice_of(std::string_view name) {
  if (name == "none") return ToolChoice::kNone;
  if (name == "auto") return ToolChoice::kAuto;
  if (name == "required") return ToolChoice::kRequired;
  return {};
}

bool base64_is_valid(std::string_view s) {
  size_t digits = 0, padding = 0;
  for (const char c : s) {
    if (is_space(c)) continue;
    if (c == '=') {
      ++padding;
    } else {
      if (padding > 0 || base64_value(c) < 0) return false;
      ++digits;
    }
  }
  if (digits % 4 == 1) return false;
  return padding == 0 || (padding <= 2 && (digits + padding) % 4 == 0);
}

std::optional<std::string> base64_decode(std::string_view s) {
  if (!base64_is_valid(s)) return std::nullopt;
  std::string out;
  out.reserve(s.size() / 4 * 3 + 3);
  uint32_t bits = 0;
  int n = 0;
  for (const char c : s) {
    if (is_space(c) || c == '=') continue;
    bits = bits << 6 | static_cast<uint32_t>(base64_value(c));
    n += 6;
    if (n >= 8) {
      n -= 8;
      out.push_back(static_cast<char>(bits >> n & 0xff));
    }
  }
  return out;
}

Status ConvertBase::check_model() {
  if (!v02() || o_.model_names.empty()) return {};
  if (std::find(o_.model_names.begin(), o_.model_names.end(), r_.model) != o_.model_names.end())
    return {};
  return request_error(fmt::format("The supported API model names are {}, but you passed {}.",
                                   fmt::join(o_.model_names, ", "), r_.model));
}

Status ConvertBase::check_mark(std::string_view text) const {
  if (!v01() || text.find(kImageMark) == std::string_view::npos) return {};
  return request_error(
      fmt::format("The sub-string \"{0}\" in your input is not allowed for this API. Please remove "
                  "\"{0}\" from your input and try again.",
                  kImageMark));
}

Status ConvertBase::set_thinking(std::optional<std::string_view> type,
                                 std::optional<std::string_view> effort) {
  Conversation& c = r_.conversation;
  c.thinking = type ? *type != "disabled" : effort ? *effort != "none" : o_.default_thinking;
  c.effort.reset();
  if (!c.thinking) return {};
  c.effort = Effort::kHigh;
  if (!effort) return {};
  if (*effort == "minimal" || *effort == "low") c.effort = Effort::kLow;
  if (*effort == "xhigh") c.effort = Effort::kXHigh;
  if (*effort == "max" || *effort == "ultra") c.effort = Effort::kMax;
  return {};
}

Status ConvertBase::set_sampling(std::optional<float> temperature, std::optional<float> top_p,
                                 std::optional<uint32_t> max_tokens,
                                 std::string_view max_tokens_name, bool clamp_max_tokens) {
  if (max_tokens) {
    const bool over = *max_tokens > o_.max_tokens_bound && v02();
    if (*max_tokens == 0 || (over && !clamp_max_tokens)) {
      if (v01()) return request_error(fmt::format("{} must be greater than zero", max_tokens_name));
      return request_error(
          fmt::format("Invalid max_tokens value, the valid range of max_tokens is [1, {}]",
                      o_.max_tokens_bound));
    }
    if (over) max_tokens = o_.max_tokens_bound;
  }
  if (temperature && !(*temperature >= 0 && *temperature <= 2)) {
    return request_error(
        v01() ? "temperature must be in [0, 2]"
              : "Invalid temperature value, the valid range of temperature is [0, 2]");
  }
  if (top_p && !(*top_p > 0 && *top_p <= 1))
    return request_error(v01() ? "top_p must be in (0, 1]"
                               : "Invalid top_p value, the valid range of top_p is (0, 1.0]");
  r_.inference.max_tokens = max_tokens;
  r_.inference.temperature = temperature;
  r_.inference.top_p = top_p;
  if (v02()) {
    // The original fixes what the model was trained with. While thinking: temperature 1; V4.1 top_p
    // at least 0.95; V4 top_p 1, or 0.95 with tools (finish() knows). Without thinking V4.1 has
    // top_p 1.
    const bool v4 = o_.version == ModelVersion::kV4;
    const bool thinking = r_.conversation.thinking;
    r_.inference.temperature = thinking ? 1.0F : temperature.value_or(1.0F);
    if (thinking == v4) {
      r_.inference.top_p = 1.0F;
    } else {
      r_.inference.top_p = thinking ? std::max(top_p.value_or(1.0F), 0.95F) : top_p.value_or(1.0F);
    }
  }
  return {};
}

Status ConvertBase::set_stop(std::vector<std::string> stop, std::string_view name) {
  if (v01() && name == "stop_sequences") {
    const bool empty = std::find(stop.begin(), stop.end(), std::string()) != stop.end();
    if (stop.size() > kMaxStops || empty)
      return request_error("stop_sequences must contain at most 16 non-empty strings");
  }
  if (stop.size() > kMaxStops) {
    return request_error(fmt::format("{} string array too long: {}",
                                     v01() ? "ChatCompletionStopSequences" : "Stop", stop.size()));
  }
  for (size_t i = 0; i < stop.size() && !v01(); ++i) {
    if (!stop[i].empty()) continue;
    return request_error(fmt::format(
        "Invalid '{}': empty string. Expected a string with minimum length 1, but got an empty "
        "string instead.",
        name == "stop" ? std::string(name) : fmt::format("stop[{}]", i)));
  }
  r_.parsing.stop_sequences = std::move(stop);
  return {};
}

Status ConvertBase::check_tool_name(std::string_view name, std::string_view path,
                                    std::string_view path01) const {
  const bool charset = std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  });
  if (charset && !name.empty() && name.size() <= kMaxToolName) return {};
  if (v01())
    return request_error(fmt::format(
        "{}.name: expected 1-128 ASCII letters, digits, underscores or hyphens", path01));
  if (name.empty()) {
    return request_error(
        fmt::format("Invalid '{}': empty string. Expected a string with minimum length 1, but got "
                    "an empty string instead.",
                    path));
  }
  if (name.size() > kMaxToolName) {
    return request_error(fmt::format(
        "Invalid '{}': string too long. Expected a string with maximum length {}, but got a string "
        "with length {} instead.",
        path, kMaxToolName, name.size()));
  }
  return request_error(
      fmt::format("Invalid '{}': string does not match pattern. Expected a string that matches the "
                  "pattern '^[a-zA-Z0-9_-]+$'.",
                  path));
}

Status ConvertBase::set_tools(std::vector<Declared> tools, const Choice& choice) {
  Conversation& c = r_.conversation;
  c.tool_choice = choice.choice;
  if (choice.choice == ToolChoice::kNone) return {};
  std::unordered_set<std::string_view> names;
  for (const Declared& d : tools) {
    if (!names.insert(d.tool.name).second)
      return request_error(v01() ? "Tool names must be unique" : "Tool names must be unique.");
  }
  bool any_strict = false, any_loose = false;
  for (Declared& d : tools) {
    Tool& tool = d.tool;
    const bool strict = tool.strict.value_or(false);
    (strict ? any_strict : any_loose) = true;
    DEEPMINT_CHECK_OK(check_mark(tool.name));
    DEEPMINT_CHECK_OK(check_mark(tool.description.value_or(std::string())));
    if (v01()) DEEPMINT_CHECK_OK(check_mark(to_json(tool.parameters, {})));
    if (strict && v02()) {
      json::Object empty{{"type", json::Value(std::string("object"))}};
      DEEPMINT_TRY(closed,
                   strict_schema(d.has_parameters ? tool.parameters : json::Value(std::move(empty)),
                                 StrictUse::kToolParameters));
      tool.parameters = std::move(closed);
      continue;
    }
    if (!d.has_parameters) {
      tool.parameters = json::Value(json::Object{});
      continue;
    }
    const auto trouble = schema_trouble(tool.parameters);
    const json::Value* type = tool.parameters.find("type");
    const bool is_object = tool.parameters.is_object() && type != nullptr && type->is_string() &&
                           type->as_string() == "object";
    if (v01() && (trouble || !is_object))
      return request_error(
          fmt::format("{}.parameters must be a JSON Schema of type object", d.path01));
    if (trouble)
      return request_error(
          fmt::format("Invalid schema for function '{}': {}", tool.name, *trouble));
    if (is_object || (ours() && tool.parameters.is_object() && type == nullptr)) continue;
    return request_error(fmt::format(
        "Invalid schema for function '{}': schema must be a JSON Schema of 'type: \"object\"', got "
        "'type: {}'.",
        tool.name, type == nullptr ? "null" : compact_json(*type)));
  }
  if (v02() && any_strict && any_loose)
    return request_error("Cannot use strict tool with non-strict tool in the same request");
  if (tools.empty()) {
    // Nothing to choose from: the choice has no effect.
    c.tool_choice = ToolChoice::kAuto;
    return {};
  }
  if (choice.name) {
    const auto it = std::find_if(tools.begin(), tools.end(),
                                 [&](const Declared& d) { return d.tool.name == *choice.name; });
    if (it == tools.end()) {
      return request_error(
          v01() ? fmt::format("tool_choice: no tool named '{}' was specified", *choice.name)
                : fmt::format(
                      "Invalid value for 'tool_call': no function named '{}' was specified in the "
                      "'tools' parameter.",
                      *choice.name));
    }
    Declared only = std::move(*it);
    tools.clear();
    tools.push_back(std::move(only));
    c.tool_choice = ToolChoice::kRequired;
  }
  if (c.tool_choice == ToolChoice::kRequired && c.thinking && !ours())
    return request_error("Thinking mode does not support this tool_choice");
  for (Declared& d : tools) c.tools.push_back(std::move(d.tool));
  return {};
}

Status ConvertBase::set_format(ResponseFormat format) {
  if (format.kind == ResponseFormat::Kind::kJsonSchema) {
    if (format.strict && v02()) {
      DEEPMINT_CHECK_OK(strict_schema(format.schema, StrictUse::kResponseFormat));
    } else if (const auto trouble = schema_trouble(format.schema)) {
      return request_error(fmt::format("Invalid json schema: {}", *trouble));
    }
  }
  r_.conversation.response_format = std::move(format);
  return {};
}

Status ConvertBase::finish(bool parallel_calls_off, std::string_view reasoning_field) {
  Conversation& c = r_.conversation;
  const bool strict = std::any_of(c.tools.begin(), c.tools.end(),
                                  [](const Tool& t) { return t.strict.value_or(false); });
  if (v02() && strict && c.response_format.kind != ResponseFormat::Kind::kText)
    return request_error("response_format should not be used with tools");
  if (!v01()) {
    size_t last_user = 0;
    for (size_t i = 0; i < c.messages.size(); ++i)
      if (c.messages[i].role == Role::kUser) last_user = i;
    for (size_t i = 0; i < c.messages.size(); ++i) {
      Message& m = c.messages[i];
      if (m.role != Role::kAssistant) continue;
      if (ours()) restore_from_store(m);
      if (o_.require_reasoning && c.thinking && i > last_user && !m.tool_calls.empty() &&
          !m.reasoning)
        return request_error(fmt::format(
            "The `{}` in the thinking mode must be passed back to the API.", reasoning_field));
      if (!c.thinking && v02()) m.reasoning.reset();
      if (c.thinking && !m.reasoning) m.reasoning.emplace();
    }
  }
  ParsingOptions& p = r_.parsing;
  p.parse_tool_calls = !c.tools.empty();
  if (v02() && v4() && c.thinking && p.parse_tool_calls) r_.inference.top_p = 0.95F;
  const bool required = p.parse_tool_calls && c.tool_choice == ToolChoice::kRequired;
  p.starts_in_tool_calls = required && !(ours() && c.thinking);
  p.parse_json_output = c.response_format.kind == ResponseFormat::Kind::kJsonObject;
  p.stage = c.thinking ? ThinkingStage::kStart : ThinkingStage::kOff;
  if (c.thinking && !c.messages.empty() && c.messages.back().prefix) {
    const Message& last = c.messages.back();
    if (!last.content.empty()) {
      p.stage = ThinkingStage::kContent;
    } else if (last.reasoning && !last.reasoning->empty()) {
      p.stage = ThinkingStage::kReasoning;
    }
  }
  OutputConstraint constraint;
  constraint.after_thinking = c.thinking && p.stage != ThinkingStage::kContent;
  constraint.single_call = parallel_calls_off && p.parse_tool_calls;
  p.single_call = ours() && constraint.single_call;
  const bool custom_grammar = std::any_of(c.tools.begin(), c.tools.end(),
                                          [](const Tool& t) { return t.format.has_value(); });
  const ResponseFormat& format = c.response_format;
  std::optional<OutputConstraint::Kind> answer;
  std::string answer_schema;
  if (format.kind == ResponseFormat::Kind::kRegex) {
    answer = OutputConstraint::Kind::kRegex;
    answer_schema = format.regex;
  } else if (format.kind != ResponseFormat::Kind::kText) {
    answer = OutputConstraint::Kind::kJson;
    if (format.kind == ResponseFormat::Kind::kJsonSchema && format.strict && v02()) {
      DEEPMINT_TRY(closed, strict_schema(format.schema, StrictUse::kResponseFormat));
      answer_schema = compact_json(closed);
    } else if (format.kind == ResponseFormat::Kind::kJsonSchema) {
      answer_schema = compact_json(format.schema);
    }
  }
  const bool exact_answer = answer && format.kind != ResponseFormat::Kind::kJsonObject;
  if (p.parse_tool_calls) {
    constraint.kind =
        required ? OutputConstraint::Kind::kToolCallsRequired : OutputConstraint::Kind::kToolCalls;
    constraint.schema = tools_json(c.tools);
    constraint.must_enforce =
        strict || custom_grammar || (required && c.thinking) || (exact_answer && !required);
    if (!required) {
      constraint.answer = answer;
      constraint.answer_schema = std::move(answer_schema);
    }
  } else if (answer) {
    constraint.kind = *answer;
    constraint.schema = std::move(answer_schema);
    constraint.must_enforce = exact_answer;
  } else {
    return {};
  }
  r_.inference.constraint = std::move(constraint);
  return {};
}

Result<ImageSource> ConvertBase::image_from_url(std::string_view url,
                                                std::optional<std::string_view> detail,
                                                const ImageErrors& e) const {
  ImageSource out;
  out.path = e.path;
  if (detail) {
    out.detail = *detail == "low"        ? ImageDetail::kLow
                 : *detail == "original" ? ImageDetail::kOriginal
                 : *detail == "auto"     ? ImageDetail::kAuto
                                         : ImageDetail::kHigh;
  }
  out.data = std::string(url);
  if (starts_with_nocase(url, "http")) {
    if (url.size() > kMaxLink) {
      return request_error(
          fmt::format("{}external link length {} too long, max link length {}. Consider passing "
                      "file data directly "
                      "with base64 data url instead.",
                      e.link, url.size(), kMaxLink));
    }
    return out;
  }
  out.kind = ImageSource::Kind::kDataUrl;
  const size_t body = url.find("base64,");
  if (body == std::string_view::npos || (!v01() && !starts_with_nocase(url, "data:")))
    return request_error(e.format + "Unsupported image_url format");
  if (v01()) return out;
  const std::string_view media = url.substr(5, url.find_first_of(";,", 5) - 5);
  std::string lowered(media);
  std::transform(lowered.begin(), lowered.end(), lowered.begin(), lower);
  constexpr std::array<std::string_view, 5> kMedia = {"image/jpeg", "image/jpg", "image/png",
                                                      "image/gif", "image/webp"};
  if (std::find(kMedia.begin(), kMedia.end(), lowered) == kMedia.end()) {
    return request_error(e.format +
                         "You have uploaded an unsupported image. Please make sure your image is "
                         "valid and has one of the "
                         "following formats: webp, png, jpeg, and gif.");
  }
  if (!base64_is_valid(url.substr(body + 7)))
    return request_error(e.format + "Invalid base64 data");
  return out;
}

Result<std::string> ConvertBase::text_document(std::string_view data, std::string_view media_type,
                                               std::string_view title) const {
  std::string text(data);
  if (starts_with_nocase(data, "data:")) {
    const size_t comma = data.find(',');
    if (comma == std::string_view::npos) return std::string(kUnsupportedDocument);
    std::string_view head = data.substr(5, comma - 5);
    const bool encoded = head.ends_with(";base64");
    media_type = head.substr(0, head.find(';'));
    text = std::string(data.substr(comma + 1));
    if (encoded) {
      const auto decoded = base64_decode(text);
      if (!decoded) return request_error("Invalid base64 data");
      text = *decoded;
    }
  }
  const bool is_text = media_type.starts_with("text/") || media_type == "application/json";
  if (!is_text || !utf8::is_valid(text)) return std::string(kUnsupportedDocument);
  if (text.size() > kMaxInlineDocument) {
    return fail(ErrorCode::kTooLarge,
                fmt::format("a text document may have at most {} bytes, found {}",
                            kMaxInlineDocument, text.size()));
  }
  return title.empty() ? text : fmt::format("{}\n\n{}", title, text);
}

namespace {

// Equal as JSON, whatever the spaces: Messages clients send the parsed object back.
bool same_arguments(std::string_view a, std::string_view b) {
  if (a == b) return true;
  const auto x = json::parse(a), y = json::parse(b);
  return x && y && compact_json(*x) == compact_json(*y);
}

}  // namespace

void ConvertBase::restore_from_store(Message& m) const {
  if (o_.turns == nullptr || m.tool_calls.empty()) return;
  const auto first = o_.turns->find_call(o_.tenant, m.tool_calls.front().id);
  if (!first) return;
  if (!m.reasoning || m.reasoning->empty()) m.reasoning = first->reasoning;
  if (first->n_calls != m.tool_calls.size() || (first->turn == nullptr && first->markup == nullptr))
    return;
  for (const ToolCall& call : m.tool_calls) {
    const auto stored = o_.turns->find_call(o_.tenant, call.id);
    if (!stored || stored->block_id != first->block_id || stored->name != call.name ||
        !same_arguments(stored->arguments, call.arguments))
      return;
  }
  m.replay = first->markup;
  if (first->content == m.content && m.reasoning.value_or(std::string()) == first->reasoning) {
    m.replay_turn = first->turn;
    m.replay_thinking = first->thinking;
  }
}

Result<ConversationRequest> convert(Protocol protocol, const json::Value& body,
                                    const ConvertOptions& options) {
  switch (protocol) {
    case Protocol::kChat:
      return convert_chat(body, options);
    case Protocol::kResponses:
      return convert_responses(body, options);
    case Protocol::kMessages:
      return convert_messages(body, options);
  }
  return fail(ErrorCode::kInternal, "unknown protocol");
}

std::string_view model_to_look_up(std::string_view model) {
  constexpr std::string_view kSuffix = "[1m]";
  if (model.size() <= kSuffix.size()) return model;
  const std::string_view stem = model.substr(0, model.size() - kSuffix.size());
  return starts_with_nocase(model.substr(stem.size()), kSuffix) ? stem : model;
}

Result<uint32_t> resolve_max_tokens(const ConversationRequest& request, uint64_t prompt_tokens,
                                    uint64_t context_limit) {
  const uint64_t wish = request.inference.max_tokens.value_or(0);
  if (prompt_tokens + std::max<uint64_t>(wish, 1) > context_limit) {
    const uint64_t asked = prompt_tokens <= context_limit ? std::max<uint64_t>(wish, 1) : wish;
    return request_error(fmt::format(
        "This model's maximum context length is {} tokens. However, you requested {} tokens ({} in "
        "the "
        "messages, {} in the completion). Please reduce the length of the messages or completion.",
        context_limit, prompt_tokens + asked, prompt_tokens, asked));
  }
  uint64_t n = wish;
  if (n == 0) {
    const bool max_effort = request.conversation.effort == Effort::kMax;
    n = !request.conversation.thinking ? 8192 : max_effort ? 131072 : 65536;
  }
  return static_cast<uint32_t>(std::min(n, context_limit - prompt_tokens));
}

}  // namespace deepmint::recipe
