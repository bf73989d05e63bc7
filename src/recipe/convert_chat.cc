#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "recipe/convert_common.h"
#include "recipe/custom_tool.h"
#include "recipe/prompt_text.h"

namespace deepmint::recipe {
namespace {

class ChatConverter : ConvertBase {
 public:
  explicit ChatConverter(const ConvertOptions& o) : ConvertBase(o) {
    r_.protocol = Protocol::kChat;
  }

  Result<ConversationRequest> run(const json::Value& body) {
    DEEPMINT_TRY(f, Fields::of(body, "struct ChatCompletionRequest"));
    DEEPMINT_TRY(messages, f.need_array("messages"));
    DEEPMINT_TRY(model, f.need_string("model"));
    r_.model = std::string(model);
    // Everything with a type comes first: a request that cannot be read is reported before one that
    // cannot be served.
    for (const json::Value& m : *messages) DEEPMINT_CHECK_OK(read_message(m));
    DEEPMINT_CHECK_OK(read_settings(f));
    DEEPMINT_CHECK_OK(read_tools(f));

    DEEPMINT_CHECK_OK(check_model());
    if (messages->empty()) return request_error("Empty input messages");
    for (size_t i = 0; i < raw_.size(); ++i) DEEPMINT_CHECK_OK(add_message(raw_[i], i));
    DEEPMINT_CHECK_OK(pair_results());
    for (const Declared& d : tools_)
      DEEPMINT_CHECK_OK(check_tool_name(d.tool.name, d.name_path, d.path01));
    const bool prefix = !r_.conversation.messages.empty() && r_.conversation.messages.back().prefix;
    if (format_.kind == ResponseFormat::Kind::kJsonObject) {
      DEEPMINT_CHECK_OK(check_json_word());
      if (prefix)
        return request_error("response_format json_object should not be used with prefix");
    }
    const bool declares_tools = !tools_.empty();
    DEEPMINT_CHECK_OK(set_tools(std::move(tools_), choice_));
    if (prefix && (declares_tools || has_calls()))
      return request_error("Function call should not be used with prefix");
    DEEPMINT_CHECK_OK(check_settings());
    DEEPMINT_CHECK_OK(set_format(std::move(format_)));
    DEEPMINT_CHECK_OK(finish(parallel_.has_value() && !*parallel_, "reasoning_content"));
    return std::move(r_);
  }

 private:
  struct Part {
    enum class Kind : uint8_t { kText, kImage, kFile } kind = Kind::kText;
    std::string_view text = {};  // text, or the URL
    std::optional<std::string_view> detail = {}, file_data = {}, file_id = {}, filename = {};
  };
  struct Raw {
    std::string_view role;
    bool has_content = false;
    std::vector<Part> parts;
    std::optional<std::string_view> reasoning;
    std::optional<std::vector<ToolCall>> calls;
    std::string_view tool_call_id;
    bool prefix = false;
  };

  Status read_content(const json::Value& v, Raw& raw) {
    raw.has_content = true;
    if (v.is_string()) {
      raw.parts.push_back({.text = v.as_string()});
      return {};
    }
    if (!v.is_array()) return body_error("content should be a string or a list");
    for (const json::Value& item : v.items()) {
      DEEPMINT_TRY(f, Fields::of(item, "internally tagged enum ChatCompletionRequestContentBlock"));
      DEEPMINT_TRY(type, f.need_variant("type", {"text", "image_url", "file"}));
      Part part;
      if (type == "text") {
        DEEPMINT_TRY(text, f.need_string("text"));
        part.text = text;
      } else if (type == "image_url") {
        part.kind = Part::Kind::kImage;
        DEEPMINT_TRY(url, f.need("image_url"));
        DEEPMINT_TRY(u, Fields::of(*url, "struct ChatCompletionImageUrl"));
        DEEPMINT_TRY(text, u.need_string("url"));
        DEEPMINT_TRY(detail, u.opt_variant("detail", {"low", "high", "original", "auto"}));
        part.text = text;
        part.detail = detail;
      } else {
        part.kind = Part::Kind::kFile;
        if (!v02()) {  // 0.2 does not look inside
          DEEPMINT_TRY(file, f.opt_object("file", "struct ChatCompletionFile"));
          if (file) {
            DEEPMINT_TRY(data, file->opt_string("file_data"));
            DEEPMINT_TRY(id, file->opt_string("file_id"));
            DEEPMINT_TRY(name, file->opt_string("filename"));
            part.file_data = data;
            part.file_id = id;
            part.filename = name;
          }
        }
      }
      raw.parts.push_back(part);
    }
    return {};
  }

  Status read_message(const json::Value& v) {
    DEEPMINT_TRY(f, Fields::of(v, "internally tagged enum ChatCompletionRequestMessage"));
    Raw raw;
    if (ours()) {
      DEEPMINT_TRY(role, f.need_variant("role", {"system", "developer", "user", "assistant", "tool",
                                                 "latest_reminder"}));
      raw.role = role;
    } else {
      DEEPMINT_TRY(
          role, f.need_variant("role", {"system", "user", "assistant", "tool", "latest_reminder"}));
      raw.role = role;
    }
    if (raw.role == "latest_reminder") {
      DEEPMINT_TRY(text, f.need_string("content"));
      raw.has_content = true;
      raw.parts.push_back({.text = text});
    } else if (raw.role == "assistant") {
      if (const json::Value* content = f.get("content"))
        DEEPMINT_CHECK_OK(read_content(*content, raw));
      DEEPMINT_TRY(reasoning, f.opt_string("reasoning_content"));
      raw.reasoning = reasoning;
      DEEPMINT_TRY(prefix, f.opt_bool("prefix"));
      raw.prefix = prefix.value_or(false) && !v01();
      DEEPMINT_TRY(calls, f.opt_array("tool_calls"));
      if (calls != nullptr) DEEPMINT_CHECK_OK(read_calls(*calls, raw.calls.emplace()));
    } else {
      DEEPMINT_TRY(content, f.need("content"));
      DEEPMINT_CHECK_OK(read_content(*content, raw));
      if (raw.role == "tool") {
        DEEPMINT_TRY(id, f.need_string("tool_call_id"));
        raw.tool_call_id = id;
      }
    }
    raw_.push_back(std::move(raw));
    return {};
  }

  // The kind of a tool, call or choice: ours knows custom tools too.
  Result<std::string_view> need_kind(const Fields& f) const {
    return ours() ? f.need_variant("type", {"function", "custom"})
                  : f.need_variant("type", {"function"});
  }

  Status read_calls(const json::Array& calls, std::vector<ToolCall>& out) const {
    for (const json::Value& v : calls) {
      DEEPMINT_TRY(f, Fields::of(v, "struct ChatCompletionRequestToolCall"));
      DEEPMINT_TRY(id, f.need_string("id"));
      DEEPMINT_TRY(kind, need_kind(f));
      if (kind == "custom") {
        DEEPMINT_TRY(custom, f.need("custom"));
        DEEPMINT_TRY(g, Fields::of(*custom, "struct ChatCompletionRequestToolCallCustom"));
        DEEPMINT_TRY(name, g.need_string("name"));
        DEEPMINT_TRY(input, g.need_string("input"));
        out.push_back({std::string(id), std::string(name), custom_tool_arguments(input)});
        continue;
      }
      DEEPMINT_TRY(function, f.need("function"));
      DEEPMINT_TRY(g, Fields::of(*function, "struct ChatCompletionRequestToolCallFunction"));
      DEEPMINT_TRY(name, g.need_string("name"));
      DEEPMINT_TRY(arguments, g.need_string("arguments"));
      out.push_back({std::string(id), std::string(name), std::string(arguments)});
    }
    return {};
  }

  Status read_settings(const Fields& f) {
    DEEPMINT_TRY(stream, f.opt_bool("stream"));
    DEEPMINT_TRY(stream_options,
                 f.opt_object("stream_options", "struct ChatCompletionStreamOptions"));
    has_stream_options_ = stream_options.has_value();
    r_.reply.stream = stream.value_or(false);
    if (stream_options) {
      DEEPMINT_TRY(usage, stream_options->opt_bool("include_usage"));
      r_.reply.include_usage = usage.value_or(false);
    }
    DEEPMINT_TRY(temperature, f.opt_f32("temperature"));
    DEEPMINT_TRY(top_p, f.opt_f32("top_p"));
    DEEPMINT_TRY(frequency, f.opt_f32("frequency_penalty"));
    DEEPMINT_TRY(presence, f.opt_f32("presence_penalty"));
    DEEPMINT_TRY(max_tokens, f.opt_u32("max_tokens"));
    DEEPMINT_TRY(n, f.opt_u8("n"));
    DEEPMINT_TRY(seed, read_seed(f));
    DEEPMINT_TRY(logprobs, f.opt_bool("logprobs"));
    DEEPMINT_TRY(top_logprobs, f.opt_u8("top_logprobs"));
    DEEPMINT_TRY(parallel, f.opt_bool("parallel_tool_calls"));
    temperature_ = temperature;
    top_p_ = top_p;
    max_tokens_ = max_tokens;
    if (ours()) {
      DEEPMINT_TRY(completion, f.opt_u32("max_completion_tokens"));
      if (completion) max_tokens_ = completion;
    }
    r_.inference.frequency_penalty = frequency;
    r_.inference.presence_penalty = presence;
    n_ = n;
    r_.inference.seed = seed;
    r_.inference.logprobs = logprobs.value_or(false);
    r_.inference.top_logprobs = top_logprobs;
    parallel_ = parallel;
    if (const json::Value* stop = f.get("stop")) {
      if (stop->is_string()) {
        stop_.push_back(stop->as_string());
        stop_name_ = "stop";
      } else if (stop->is_array()) {
        for (const json::Value& s : stop->items()) {
          if (!s.is_string()) return wrong_type(s, "a string");
          stop_.push_back(s.as_string());
        }
      } else {
        return body_error("expected a string or a list");
      }
    }
    DEEPMINT_TRY(thinking, f.opt_object("thinking", "struct ChatCompletionThinking"));
    std::optional<std::string_view> type;
    if (thinking) {
      DEEPMINT_TRY(t, thinking->need_variant("type", {"adaptive", "enabled", "disabled"}));
      type = t;
    }
    DEEPMINT_TRY(effort, f.opt_variant("reasoning_effort", {"none", "minimal", "low", "medium",
                                                            "high", "xhigh", "ultra", "max"}));
    DEEPMINT_CHECK_OK(set_thinking(type, effort));
    return read_format(f);
  }

  Result<std::optional<uint64_t>> read_seed(const Fields& f) const {
    if (v01()) {  // any integer is read, the range is checked later
      const json::Value* v = f.get("seed");
      if (v == nullptr) return std::optional<uint64_t>();
      const auto n = v->to_int64();
      return std::optional<uint64_t>(n && *n >= 0 ? static_cast<uint64_t>(*n) : ~uint64_t{0});
    }
    return f.opt_u64("seed");
  }

  Status read_format(const Fields& f) {
    DEEPMINT_TRY(format, f.opt_object("response_format",
                                      "internally tagged enum ChatCompletionResponseFormat"));
    if (!format) return {};
    DEEPMINT_TRY(type,
                 format->need_variant("type", {"json_object", "json_schema", "regex", "text"}));
    if (type == "json_object") format_.kind = ResponseFormat::Kind::kJsonObject;
    if (type == "json_schema" && !v01()) {
      format_.kind = ResponseFormat::Kind::kJsonSchema;
      DEEPMINT_TRY(value, format->need("json_schema"));
      DEEPMINT_TRY(g, Fields::of(*value, "struct ChatCompletionJsonSchema"));
      DEEPMINT_CHECK_OK(g.opt_string("name"));
      DEEPMINT_TRY(strict, g.opt_bool("strict"));
      DEEPMINT_TRY(schema, g.need("schema"));
      format_.strict = strict.value_or(false);
      format_.schema = *schema;
    }
    if (type == "regex" && !v01()) {
      DEEPMINT_TRY(regex, format->need_string("regex"));
      format_.kind = ResponseFormat::Kind::kRegex;
      format_.regex = std::string(regex);
    }
    is_regex01_ = type == "regex" && v01();
    return {};
  }

  Status read_tools(const Fields& f) {
    DEEPMINT_TRY(tools, f.opt_array("tools"));
    if (tools != nullptr) {
      for (size_t i = 0; i < tools->size(); ++i) {
        DEEPMINT_TRY(t, Fields::of((*tools)[i], "struct ChatCompletionTool"));
        DEEPMINT_TRY(kind, need_kind(t));
        if (kind == "custom") {
          DEEPMINT_TRY(d, read_custom(t, i));
          r_.reply.custom_tools.push_back(d.tool.name);
          tools_.push_back(std::move(d));
          continue;
        }
        DEEPMINT_TRY(function, t.need("function"));
        DEEPMINT_TRY(g, Fields::of(*function, "struct ChatCompletionFunction"));
        DEEPMINT_TRY(name, g.need_string("name"));
        DEEPMINT_TRY(description, g.opt_string("description"));
        DEEPMINT_TRY(strict, g.opt_bool("strict"));
        const json::Value* parameters = g.get("parameters");
        Declared d;
        d.tool.name = std::string(name);
        if (description) d.tool.description = std::string(*description);
        d.tool.strict = strict;
        d.has_parameters = parameters != nullptr;
        if (parameters != nullptr) d.tool.parameters = *parameters;
        d.name_path = fmt::format("tools[{}].function.name", i);
        d.path01 = fmt::format("tools.{}.function", i);
        tools_.push_back(std::move(d));
      }
    }
    const json::Value* choice = f.get("tool_choice");
    if (choice == nullptr) return {};
    constexpr std::string_view kExpected = "expected one of `none`, `auto`, `required` or a tool";
    if (choice->is_string()) {
      const auto named = tool_choice_of(choice->as_string());
      if (!named) return body_error(std::string(kExpected));
      choice_.choice = *named;
      return {};
    }
    if (!choice->is_object() || choice->find("type") == nullptr)
      return body_error(std::string(kExpected));
    DEEPMINT_TRY(c, Fields::of(*choice, "a tool"));
    if (ours() && choice->find("type")->is_string() &&
        choice->find("type")->as_string() == "allowed_tools")
      return allowed_tools(c);
    auto type = need_kind(c);
    if (!type) return body_error("field `type`: " + type.error().message);
    const json::Value* function = c.find(*type);
    static const json::Value kNull;
    if (function == nullptr) function = &kNull;
    auto g = Fields::of(*function, "struct ChatCompletionToolChoiceFunction");
    if (!g) return body_error(fmt::format("field `{}`: {}", *type, g.error().message));
    DEEPMINT_TRY(name, g->need_string("name"));
    choice_.choice = ToolChoice::kRequired;
    choice_.name = std::string(name);
    return {};
  }

  // {"type":"custom","custom":{"name":…,"description":…,"format":…}}
  Result<Declared> read_custom(const Fields& t, size_t index) const {
    DEEPMINT_TRY(custom, t.need("custom"));
    DEEPMINT_TRY(g, Fields::of(*custom, "struct ChatCompletionCustomTool"));
    DEEPMINT_TRY(name, g.need_string("name"));
    DEEPMINT_TRY(description, g.opt_string("description"));
    Declared d;
    DEEPMINT_TRY(tool, make_custom_tool(name, description, o_.compat, o_.version));
    d.tool = std::move(tool);
    if (const json::Value* format = g.get("format")) {
      DEEPMINT_TRY(checked, custom_tool_format(*format));
      d.tool.format = std::move(checked);
    }
    d.name_path = fmt::format("tools[{}].custom.name", index);
    return d;
  }

  // {"type":"allowed_tools","allowed_tools":{"mode":"auto|required","tools":[{"type":"function","function":{"name":"f"}}]}}:
  // the other tools stay hidden from the model.
  Status allowed_tools(const Fields& c) {
    DEEPMINT_TRY(allowed, c.need("allowed_tools"));
    DEEPMINT_TRY(g, Fields::of(*allowed, "struct AllowedTools"));
    DEEPMINT_TRY(mode, g.need_variant("mode", {"auto", "required"}));
    DEEPMINT_TRY(list, g.need_array("tools"));
    std::unordered_set<std::string_view> names;
    for (const json::Value& v : *list) {
      const json::Value* inner = v.find("function");
      if (inner == nullptr) inner = v.find("custom");
      const json::Value* name = inner == nullptr ? v.find("name") : inner->find("name");
      if (name == nullptr || !name->is_string())
        return body_error("allowed_tools: expected a function or custom tool with a name");
      names.insert(name->as_string());
    }
    std::erase_if(tools_, [&](const Declared& d) { return !names.contains(d.tool.name); });
    choice_.choice = mode == "required" ? ToolChoice::kRequired : ToolChoice::kAuto;
    return {};
  }

  Status check_settings() {
    DEEPMINT_CHECK_OK(set_sampling(temperature_, top_p_, max_tokens_, "max_tokens", false));
    InferenceOptions& i = r_.inference;
    const auto penalty = [&](std::optional<float> v, std::string_view name) -> Status {
      if (!v || (*v >= -2 && *v <= 2)) return {};
      return request_error(
          v01() ? fmt::format("{} must be in [-2, 2]", name)
                : fmt::format("Invalid {0} value, the valid range of {0} is [-2, 2]", name));
    };
    DEEPMINT_CHECK_OK(penalty(i.frequency_penalty, "frequency_penalty"));
    DEEPMINT_CHECK_OK(penalty(i.presence_penalty, "presence_penalty"));
    constexpr uint32_t kMaxChoices = 128;
    if (n_ && (ours() ? *n_ == 0 || *n_ > kMaxChoices : *n_ != 1)) {
      return request_error(
          ours() ? fmt::format("Invalid n value, the valid range of n is [1, {}]", kMaxChoices)
                 : "Invalid n value (currently only n = 1 is supported)");
    }
    i.n = n_.value_or(1);
    if (i.seed && *i.seed >> 63 != 0) {
      return request_error(v01() ? "seed must be in [0, 2^63)"
                                 : "Invalid seed value, the valid range of seed is [0, 2^63)");
    }
    if (!v01()) {
      if (i.top_logprobs && !i.logprobs) {
        return request_error(
            "Invalid top_logprobs and logprobs value, logprobs must be set to true if top_logprobs "
            "is used.");
      }
      if (i.top_logprobs.value_or(0) > 20)
        return request_error(
            "Invalid top_logprobs value, the valid range of top_logprobs is [0, 20].");
    }
    if (has_stream_options_ && !r_.reply.stream)
      return request_error("stream_options should be set along with stream = true");
    if (is_regex01_)
      return request_error("response_format: only text and json_object are supported");
    return set_stop(std::move(stop_), stop_name_);
  }

  Status add_content(const Raw& raw, size_t index, Message& m) {
    ContentBuilder content;
    const bool assistant = raw.role == "assistant";
    const bool system = raw.role == "system" || raw.role == "developer";
    for (size_t p = 0; p < raw.parts.size(); ++p) {
      const Part& part = raw.parts[p];
      if (no_images() &&
          (part.kind == Part::Kind::kImage || (part.kind == Part::Kind::kFile && v02()))) {
        if (ours())
          warn(fmt::format(
              "messages[{}].content[{}]: this model takes no images; a placeholder was sent", index,
              p));
        content.text(kUnsupportedImage);
        continue;
      }
      const std::string at = v01() ? fmt::format("messages[{}].content[{}]: ", index, p)
                                   : fmt::format(".messages[{}]: ", index);
      switch (part.kind) {
        case Part::Kind::kText:
          DEEPMINT_CHECK_OK(check_mark(part.text));
          content.text(part.text);
          break;
        case Part::Kind::kImage: {
          if (assistant) return request_error("Image in assistant message is not supported");
          if (system && v01()) return request_error("Image in system message is unsupported");
          const ImageErrors errors{
              .format = at,
              .link =
                  v01() ? at
                        : fmt::format(".messages[{}].image_url.url[{}]: image_url.url ", index, p),
              .path = fmt::format("messages[{}].content[{}]", index, p)};
          DEEPMINT_TRY(image, image_from_url(part.text, part.detail, errors));
          content.image(std::move(image));
          break;
        }
        case Part::Kind::kFile:
          if (v02()) return request_error(at + "file must have a file_id or file_data");
          if (part.file_id) {
            return request_error(
                at +
                (v01() ? "file_id is not supported. Pass the image as a base64 data url instead."
                       : "file_id is not supported. Pass the file inline as file_data instead."));
          }
          if (!part.file_data) {
            if (!v01()) return request_error(at + "file must have a file_id or file_data");
            content.text(kUnsupportedDocument);
          } else if (v01()) {
            content.text(kUnsupportedDocument);
          } else {
            DEEPMINT_TRY(text, text_document(*part.file_data, "", part.filename.value_or("")));
            if (text == kUnsupportedDocument)
              warn(at + "only text documents are read; a placeholder was sent to the model");
            content.text(text);
          }
          break;
      }
    }
    content.move_into(m);
    return {};
  }

  Status add_message(Raw& raw, size_t index) {
    Message m;
    DEEPMINT_CHECK_OK(add_content(raw, index, m));
    if (raw.role == "system" || raw.role == "developer") {
      if (raw.role == "system" && m.content.empty()) return {};
      m.role = Role::kSystem;
      if (raw.role == "developer") {
        if (m.content.empty()) return {};
        // Leading: the system text. Later: V4.1 has system messages in the middle, V4 does not.
        const bool leading = r_.conversation.messages.empty() ||
                             r_.conversation.messages.back().role == Role::kSystem;
        if (!leading && o_.version == ModelVersion::kV4) m.role = Role::kUser;
      }
    } else if (raw.role == "latest_reminder") {
      m.role = Role::kLatestReminder;
    } else if (raw.role == "user") {
      m.role = Role::kUser;
    } else if (raw.role == "tool") {
      m.role = Role::kTool;
      m.tool_call_id = std::string(raw.tool_call_id);
    } else {
      m.role = Role::kAssistant;
      DEEPMINT_CHECK_OK(add_assistant(raw, index, m));
    }
    r_.conversation.messages.push_back(std::move(m));
    index_of_.push_back(index);
    return {};
  }

  Status add_assistant(Raw& raw, size_t index, Message& m) {
    if (raw.reasoning) {
      DEEPMINT_CHECK_OK(check_mark(*raw.reasoning));
      m.reasoning = std::string(*raw.reasoning);
    }
    if (raw.prefix && index + 1 != raw_.size()) {
      return request_error(
          "Invalid completion message: prefix set true with message which is not final message or "
          "message role is not assistant");
    }
    m.prefix = raw.prefix;
    if (raw.calls && raw.calls->empty()) {
      if (!ours()) {
        return request_error(
            fmt::format("Invalid 'messages[{}].tool_calls': empty array. Expected an array with "
                        "minimum length 1, "
                        "but got an empty array instead.",
                        index));
      }
      raw.calls.reset();
    }
    if (!raw.has_content && !raw.calls) {
      if (!ours())
        return request_error("Invalid assistant message: content or tool_calls must be set");
      warn(fmt::format("messages[{}]: an assistant message without content and tool_calls", index));
    }
    if (!raw.calls) return {};
    std::unordered_set<std::string_view> ids;
    for (const ToolCall& call : *raw.calls) {
      DEEPMINT_CHECK_OK(check_mark(call.name));
      DEEPMINT_CHECK_OK(check_mark(call.arguments));
      if (!ids.insert(call.id).second)
        return request_error(
            fmt::format("Duplicate value for 'tool_call_id' of {} in message[{}]", call.id, index));
    }
    m.tool_calls = std::move(*raw.calls);
    return {};
  }

  // Each assistant message with calls is followed by exactly one result per call. Ours looks for
  // the results behind other messages too, and puts a fixed text where a result is missing.
  Status pair_results() {
    if (ours()) return pair_leniently();
    const std::vector<Message>& all = r_.conversation.messages;
    size_t i = 0;
    while (i < all.size()) {
      if (all[i].role == Role::kTool)
        return request_error(
            "Messages with role 'tool' must be a response to a preceding message with "
            "'tool_calls'");
      if (all[i].tool_calls.empty()) {
        ++i;
        continue;
      }
      std::unordered_set<std::string_view> open, done;
      for (const ToolCall& call : all[i].tool_calls) open.insert(call.id);
      for (++i; i < all.size() && all[i].role == Role::kTool && !open.empty(); ++i) {
        const std::string& id = all[i].tool_call_id;
        if (done.contains(id))
          return request_error(fmt::format(
              "Duplicate value for 'tool_call_id' of {} in message[{}]", id, index_of_[i]));
        if (open.erase(id) == 0) {
          if (v01()) return request_error(fmt::format("Unexpected tool_call_id: {}", id));
          return request_error(fmt::format(
              "An assistant message with 'tool_calls' must be followed by tool messages responding "
              "to "
              "each 'tool_call_id', The following tool_call_ids did not have response messages: {}",
              id));
        }
        done.insert(id);
      }
      if (!open.empty()) {
        return request_error(
            "An assistant message with 'tool_calls' must be followed by tool messages responding "
            "to each 'tool_call_id'. "
            "(insufficient tool messages following tool_calls message)");
      }
    }
    return {};
  }

  Status pair_leniently() {
    std::vector<Message>& all = r_.conversation.messages;
    std::vector<Message> out;
    out.reserve(all.size());
    std::vector<bool> used(all.size(), false);
    for (size_t i = 0; i < all.size(); ++i) {
      if (used[i]) continue;
      if (all[i].role == Role::kTool) {
        return request_error(
            "Messages with role 'tool' must be a response to a preceding message with "
            "'tool_calls'");
      }
      const bool has_calls = !all[i].tool_calls.empty() && !all[i].prefix;
      out.push_back(std::move(all[i]));
      if (!has_calls) continue;
      const size_t assistant = out.size() - 1;
      std::unordered_set<std::string> open;
      for (const ToolCall& call : out[assistant].tool_calls) open.insert(call.id);
      for (size_t j = i + 1; j < all.size() && !open.empty() && all[j].tool_calls.empty(); ++j) {
        if (all[j].role != Role::kTool || used[j] || open.erase(all[j].tool_call_id) == 0) continue;
        used[j] = true;
        out.push_back(std::move(all[j]));
      }
      for (const ToolCall& call : std::vector<ToolCall>(out[assistant].tool_calls)) {
        if (!open.contains(call.id)) continue;
        Message m;
        m.role = Role::kTool;
        m.tool_call_id = call.id;
        m.content = std::string(kInterrupted);
        warn(fmt::format("tool call {} has no result; the model was told that it was interrupted",
                         call.id));
        out.push_back(std::move(m));
      }
    }
    all = std::move(out);
    return {};
  }

  bool has_calls() const {
    const std::vector<Message>& all = r_.conversation.messages;
    return std::any_of(all.begin(), all.end(),
                       [](const Message& m) { return !m.tool_calls.empty(); });
  }

  Status check_json_word() const {
    if (mentions_json()) return {};
    return request_error(
        "Prompt must contain the word 'json' in some form to use 'response_format' of type "
        "'json_object'.");
  }

  std::vector<Raw> raw_;
  std::vector<size_t> index_of_;
  std::optional<float> temperature_, top_p_;
  std::optional<uint32_t> max_tokens_, n_;
  std::optional<bool> parallel_;
  std::vector<std::string> stop_;
  std::string_view stop_name_ = "stop[]";
  bool has_stream_options_ = false, is_regex01_ = false;
  ResponseFormat format_;
  std::vector<Declared> tools_;
  Choice choice_;
};

}  // namespace

Result<ConversationRequest> convert_chat(const json::Value& body, const ConvertOptions& options) {
  return ChatConverter(options).run(body);
}

}  // namespace deepmint::recipe
