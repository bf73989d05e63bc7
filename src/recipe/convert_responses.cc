#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "recipe/convert_common.h"
#include "recipe/prompt_text.h"
#include "recipe/spelling.h"

namespace deepmint::recipe {
namespace {

constexpr std::string_view kInterrupted = "[no result: the call was interrupted]";

std::string quoted(std::string_view s) {
  std::string out;
  json::append_escaped(out, s);
  return out;
}
std::string quoted_or_null(const std::optional<std::string_view>& s) {
  return s ? quoted(*s) : "null";
}

std::string float_text(float v) {
  std::array<char, 32> buffer;
  const auto r = std::to_chars(buffer.data(), buffer.data() + buffer.size(), v);
  std::string s(buffer.data(), r.ptr);
  if (s.find_first_of(".e") == std::string::npos) s.append(".0");
  return s;
}

std::string compact(const json::Value& v) { return to_json(v, {NumberStyle::kCompact, false}); }

class ResponsesConverter : ConvertBase {
 public:
  explicit ResponsesConverter(const ConvertOptions& o) : ConvertBase(o) {
    r_.protocol = Protocol::kResponses;
  }

  Result<ConversationRequest> run(const json::Value& body) {
    DEEPMINT_TRY(f, Fields::of(body, "struct ResponsesRequest"));
    DEEPMINT_TRY(model, f.need_string("model"));
    r_.model = std::string(model);
    DEEPMINT_TRY(instructions, f.opt_string("instructions"));
    DEEPMINT_CHECK_OK(read_input(f));
    DEEPMINT_CHECK_OK(read_settings(f));
    DEEPMINT_TRY(tools, f.opt_array("tools"));
    if (tools != nullptr) DEEPMINT_CHECK_OK(read_tools(*tools, "tools"));
    DEEPMINT_CHECK_OK(read_choice(f));
    DEEPMINT_CHECK_OK(read_format(f));

    DEEPMINT_CHECK_OK(check_model());
    if (!has_text_input_ && items_ == nullptr && previous_.empty() &&
        !(instructions && (!instructions->empty() || !v01())))
      return request_error("Either input or instructions must be provided");
    if (items_ != nullptr && items_->empty() && previous_.empty())
      return request_error("Input items array must not be empty");
    DEEPMINT_CHECK_OK(add_instructions(instructions));
    DEEPMINT_CHECK_OK(add_items());
    DEEPMINT_CHECK_OK(assign_tools());
    if (format_.kind == ResponseFormat::Kind::kJsonObject) DEEPMINT_CHECK_OK(check_json_word());
    DEEPMINT_CHECK_OK(set_sampling(temperature_, top_p_, max_tokens_, "max_output_tokens", false));
    InferenceOptions& i = r_.inference;
    if (i.top_logprobs.value_or(0) > 20)
      return request_error(
          "Invalid top_logprobs value, the valid range of top_logprobs is [0, 20].");
    write_echo(f, instructions);
    DEEPMINT_CHECK_OK(set_format(std::move(format_)));
    DEEPMINT_CHECK_OK(finish(parallel_off_, "reasoning_text"));
    return std::move(r_);
  }

 private:
  // ---- settings
  // -------------------------------------------------------------------------------------------------------------

  Status read_input(const Fields& f) {
    const json::Value* input = f.get("input");
    if (ours()) {
      DEEPMINT_TRY(previous, f.opt_string("previous_response_id"));
      if (previous) {
        std::optional<StoredTurn> turn;
        if (o_.turns != nullptr) turn = o_.turns->find_turn(o_.tenant, *previous);
        if (!turn)
          return fail(ErrorCode::kNotFound,
                      fmt::format("Previous response with id '{}' not found.", *previous));
        previous_ = std::move(turn->items);
        r_.reply.previous_response_id = std::string(*previous);
      }
    }
    if (input == nullptr) return {};
    if (input->is_string()) {
      has_text_input_ = true;
      text_input_ = input->as_string();
      return {};
    }
    if (!input->is_array()) return body_error("input should be a string or a list of input items");
    items_ = &input->items();
    for (const json::Value& item : *items_) DEEPMINT_CHECK_OK(check_item(item));
    for (const json::Value& item : previous_) DEEPMINT_CHECK_OK(check_item(item));
    return {};
  }

  // Reads an item as far as its types go; what it means comes later.
  Status check_item(const json::Value& item) const {
    if (!item.is_object()) return body_error("invalid input item");
    DEEPMINT_TRY(f, Fields::of(item, "an input item"));
    const json::Value* type = f.find("type");
    if (type == nullptr && f.find("role") == nullptr) return body_error("invalid input item");
    std::string_view t = "message";
    if (type != nullptr) {
      if (!type->is_string()) return wrong_type(*type, "variant identifier");
      t = type->as_string();
    }
    if (t == "message") {
      DEEPMINT_CHECK_OK(f.need_variant("role", {"user", "assistant", "system", "developer"}));
      DEEPMINT_TRY(content, f.need("content"));
      if (content->is_string()) return {};
      if (!content->is_array())
        return body_error("content should be a string or a list of content blocks");
      for (const json::Value& part : content->items()) DEEPMINT_CHECK_OK(check_part(part, true));
    } else if (t == "function_call") {
      DEEPMINT_CHECK_OK(f.need_string("call_id"));
      DEEPMINT_CHECK_OK(f.need_string("name"));
      DEEPMINT_CHECK_OK(f.need_string("arguments"));
      DEEPMINT_CHECK_OK(f.opt_string("namespace"));
    } else if (t == "custom_tool_call") {
      DEEPMINT_CHECK_OK(f.need_string("call_id"));
      DEEPMINT_CHECK_OK(f.need_string("name"));
      DEEPMINT_CHECK_OK(f.need_string("input"));
    } else if (t == "function_call_output" || t == "custom_tool_call_output") {
      DEEPMINT_CHECK_OK(f.need_string("call_id"));
      DEEPMINT_TRY(output, f.need("output"));
      if (output->is_string()) return {};
      if (!output->is_array())
        return body_error("output should be a string or a list of output content parts");
      for (const json::Value& part : output->items()) DEEPMINT_CHECK_OK(check_part(part, false));
    } else if (t == "reasoning") {
      DEEPMINT_TRY(content, f.opt_array("content"));
      if (content == nullptr) return {};
      for (const json::Value& part : *content) {
        DEEPMINT_TRY(p, Fields::of(part, "struct ResponsesReasoningText"));
        DEEPMINT_CHECK_OK(p.need_string("text"));
      }
    }
    return {};
  }

  Status check_part(const json::Value& part, bool message) const {
    DEEPMINT_TRY(f, Fields::of(part, "internally tagged enum ResponsesContentBlock"));
    if (v01()) {
      DEEPMINT_TRY(t, f.need_string("type"));
      if (t != "input_text" && t != "output_text" && t != "input_image" && t != "input_file")
        return request_error(fmt::format("Unsupported content block type: {}", t));
    } else if (ours()) {
      DEEPMINT_CHECK_OK(
          f.need_variant("type", {"input_text", "output_text", "input_image", "input_file", "text",
                                  "refusal", "summary_text", "reasoning_text"}));
    } else if (message) {
      DEEPMINT_CHECK_OK(
          f.need_variant("type", {"input_text", "output_text", "input_image", "input_file"}));
    } else {
      DEEPMINT_CHECK_OK(f.need_variant("type", {"input_text", "input_image", "input_file"}));
    }
    DEEPMINT_TRY(type, f.need_string("type"));
    if (type == "input_image") {
      DEEPMINT_CHECK_OK(f.opt_string("image_url"));
      DEEPMINT_CHECK_OK(f.opt_string("file_id"));
      DEEPMINT_CHECK_OK(f.opt_variant("detail", {"low", "high", "original", "auto"}));
    } else if (type == "input_file") {
      if (ours()) {
        DEEPMINT_CHECK_OK(f.opt_string("file_data"));
        DEEPMINT_CHECK_OK(f.opt_string("filename"));
      }
    } else if (type == "refusal") {
      DEEPMINT_CHECK_OK(f.need_string("refusal"));
    } else {
      DEEPMINT_CHECK_OK(f.need_string("text"));
    }
    return {};
  }

  Status read_settings(const Fields& f) {
    DEEPMINT_TRY(max_tokens, f.opt_u32("max_output_tokens"));
    DEEPMINT_TRY(temperature, f.opt_f32("temperature"));
    DEEPMINT_TRY(top_p, f.opt_f32("top_p"));
    DEEPMINT_TRY(top_logprobs, f.opt_u8("top_logprobs"));
    DEEPMINT_TRY(stream, f.opt_bool("stream"));
    DEEPMINT_CHECK_OK(f.opt_string("user"));
    max_tokens_ = max_tokens;
    temperature_ = temperature;
    top_p_ = top_p;
    if (!v01()) {
      r_.inference.top_logprobs = top_logprobs;
      r_.inference.logprobs = top_logprobs.has_value();
    }
    r_.reply.stream = stream.value_or(false);
    DEEPMINT_TRY(reasoning, f.opt_object("reasoning", "struct ResponsesReasoning"));
    if (reasoning) {
      DEEPMINT_TRY(effort, reasoning->opt_variant("effort", {"none", "minimal", "low", "medium",
                                                             "high", "xhigh", "ultra", "max"}));
      DEEPMINT_TRY(summary, reasoning->opt_variant("summary", {"auto", "concise", "detailed"}));
      effort_ = effort;
      summary_ = summary;
    }
    if (!v02()) {
      if (const json::Value* parallel = f.get("parallel_tool_calls");
          parallel != nullptr && parallel->is_bool())
        parallel_off_ = !parallel->as_bool() && ours();
    }
    if (ours()) {
      DEEPMINT_TRY(store, f.opt_bool("store"));
      r_.reply.store = store.value_or(true);
      if (const json::Value* include = f.get("include");
          include != nullptr && include->is_array()) {
        for (const json::Value& item : include->items()) {
          if (!item.is_string()) continue;
          if (item.as_string() == "reasoning.encrypted_content")
            r_.reply.include_encrypted_reasoning = true;
          if (item.as_string() == "message.output_text.logprobs") r_.inference.logprobs = true;
        }
      }
    }
    return set_thinking(std::nullopt, effort_);
  }

  Status read_format(const Fields& f) {
    DEEPMINT_TRY(text, f.opt_object("text", "struct ResponsesTextConfig"));
    if (!text) return {};
    DEEPMINT_TRY(verbosity, text->opt_variant("verbosity", {"low", "medium", "high"}));
    verbosity_ = verbosity;
    DEEPMINT_TRY(format, text->opt_object("format", "internally tagged enum ResponsesTextFormat"));
    if (!format) return {};
    std::string_view type;
    if (ours()) {
      DEEPMINT_TRY(t,
                   format->need_variant("type", {"text", "json_schema", "json_object", "regex"}));
      type = t;
    } else {
      DEEPMINT_TRY(t, format->need_variant("type", {"text", "json_schema", "json_object"}));
      type = t;
    }
    if (type == "json_object") format_.kind = ResponseFormat::Kind::kJsonObject;
    if (type == "regex") {
      DEEPMINT_TRY(regex, format->need_string("regex"));
      format_.kind = ResponseFormat::Kind::kRegex;
      format_.regex = std::string(regex);
    }
    format_echo_ = fmt::format("{{\"type\":\"{}\"}}", type);
    if (type == "json_schema" && !v01()) {
      DEEPMINT_TRY(name, format->need_string("name"));
      DEEPMINT_TRY(schema, format->need("schema"));
      DEEPMINT_TRY(strict, format->opt_bool("strict"));
      DEEPMINT_TRY(description, format->opt_string("description"));
      format_.kind = ResponseFormat::Kind::kJsonSchema;
      format_.schema = *schema;
      format_.strict = strict.value_or(false);
      format_echo_ = fmt::format(
          "{{\"type\":\"json_schema\",\"name\":{},\"schema\":{},\"description\":{},\"strict\":{}}}",
          quoted(name), compact(*schema), quoted_or_null(description),
          !strict   ? "null"
          : *strict ? "true"
                    : "false");
    }
    return {};
  }

  // ---- tools
  // ----------------------------------------------------------------------------------------------------------------

  struct RawTool {
    std::string_view type, name;
    std::optional<std::string_view> description;
    std::optional<bool> strict;
    const json::Value* parameters = nullptr;
    const json::Value* format = nullptr;
    std::string path;            // "tools[0]"
    std::vector<RawTool> inner;  // namespace
  };

  Result<RawTool> read_function(const Fields& f, std::string path) const {
    RawTool t;
    t.type = "function";
    t.path = std::move(path);
    DEEPMINT_TRY(name, f.need_string("name"));
    DEEPMINT_TRY(description, f.opt_string("description"));
    DEEPMINT_TRY(strict, f.opt_bool("strict"));
    t.name = name;
    t.description = description;
    t.strict = strict;
    t.parameters = f.get("parameters");
    return t;
  }

  Result<RawTool> read_custom(const Fields& f, std::string path) const {
    RawTool t;
    t.type = "custom";
    t.path = std::move(path);
    DEEPMINT_TRY(name, f.need_string("name"));
    t.name = name;
    if (ours()) {
      DEEPMINT_TRY(description, f.opt_string("description"));
      t.description = description;
      t.format = f.get("format");
    }
    return t;
  }

  Status read_tools(const json::Array& tools, std::string_view where) {
    for (size_t i = 0; i < tools.size(); ++i) {
      DEEPMINT_TRY(f, Fields::of(tools[i], "internally tagged enum ResponsesTool"));
      DEEPMINT_TRY(type, f.need_string("type"));
      const std::string path = fmt::format("{}[{}]", where, i);
      if (type == "function") {
        DEEPMINT_TRY(t, read_function(f, path));
        raw_tools_.push_back(std::move(t));
      } else if (type == "custom") {
        DEEPMINT_TRY(t, read_custom(f, path));
        raw_tools_.push_back(std::move(t));
      } else if (type == "namespace") {
        RawTool t;
        t.type = type;
        t.path = path;
        DEEPMINT_TRY(name, f.need_string("name"));
        DEEPMINT_TRY(description, f.opt_string("description"));
        DEEPMINT_TRY(list, f.need_array("tools"));
        t.name = name;
        t.description = description;
        for (size_t j = 0; j < list->size(); ++j) {
          DEEPMINT_TRY(g, Fields::of((*list)[j], "internally tagged enum ResponsesNamespaceTool"));
          DEEPMINT_TRY(kind, g.need_variant("type", {"function", "custom"}));
          const std::string inner_path = fmt::format("{}.tools[{}]", path, j);
          DEEPMINT_TRY(inner, kind == "function" ? read_function(g, inner_path)
                                                 : read_custom(g, inner_path));
          t.inner.push_back(std::move(inner));
        }
        raw_tools_.push_back(std::move(t));
      } else {
        RawTool t;
        t.type = type;
        t.path = path;
        raw_tools_.push_back(std::move(t));
      }
    }
    return {};
  }

  static bool is_web_search(std::string_view type) {
    return type == "web_search" || type == "web_search_2025_08_26";
  }

  Result<Declared> declare(const RawTool& t) const {
    Declared d;
    d.tool.name = std::string(t.name);
    d.name_path = t.path + ".name";
    d.path01 = t.path;
    if (t.type == "function") {
      DEEPMINT_CHECK_OK(check_tool_name(t.name, d.name_path, d.path01));
      if (t.description) d.tool.description = std::string(*t.description);
      d.tool.strict = t.strict;
      d.has_parameters = t.parameters != nullptr;
      if (t.parameters != nullptr) d.tool.parameters = *t.parameters;
      return d;
    }
    d.tool.custom = true;
    if (t.name == "apply_patch") {
      d.tool.description = std::string(apply_patch_description());
      if (v4() && !v01()) {  // one empty line less
        const size_t at = d.tool.description->find("\n\n*** Begin Patch");
        if (at != std::string::npos) d.tool.description->erase(at, 1);
      }
      DEEPMINT_TRY(parameters, json::parse(apply_patch_parameters()));
      d.tool.parameters = std::move(parameters);
      if (ours() && t.format != nullptr) d.tool.format = *t.format;
      return d;
    }
    if (!ours()) {
      return request_error(
          fmt::format("Unsupported custom tool: '{}'. Only 'apply_patch' is supported{}", t.name,
                      v01() ? "" : "."));
    }
    DEEPMINT_CHECK_OK(check_tool_name(t.name, d.name_path, d.path01));
    if (t.description) d.tool.description = std::string(*t.description);
    DEEPMINT_TRY(
        parameters,
        json::parse(
            R"({"type":"object","additionalProperties":false,"properties":{"input":{"type":"string"}},)"
            R"("required":["input"]})"));
    d.tool.parameters = std::move(parameters);
    if (t.format != nullptr && t.format->find("type") != nullptr &&
        *t.format->find("type") != json::Value(std::string("text")))
      d.tool.format = *t.format;
    return d;
  }

  Status assign_tools() {
    std::vector<Declared> tools;
    std::set<std::string> taken, namespaces;
    for (const RawTool& t : raw_tools_) {
      if (t.type == "function" || t.type == "custom") {
        DEEPMINT_TRY(d, declare(t));
        if (d.tool.custom) r_.reply.custom_tools.push_back(d.tool.name);
        taken.insert(d.tool.name);
        tools.push_back(std::move(d));
      } else if (t.type == "namespace") {
        DEEPMINT_CHECK_OK(add_namespace(t, tools, taken, namespaces));
      } else if (is_web_search(t.type) && o_.responses_web_search == WebSearch::kReject) {
        return request_error(fmt::format("{}: server tools are not supported", t.path));
      } else if (ours()) {
        warn(fmt::format("{}: tool type {} is not served; the model does not see it", t.path,
                         t.type));
      }
    }
    if (ours() && choice_.name && std::none_of(tools.begin(), tools.end(), [&](const Declared& d) {
          return d.tool.name == *choice_.name;
        })) {
      if (const auto only = resolve_name(tools, *choice_.name)) choice_.name = *only;
    }
    if (ours() && allowed_) {
      std::erase_if(tools, [&](const Declared& d) { return !allowed_->contains(d.tool.name); });
    }
    return set_tools(std::move(tools), choice_);
  }

  std::string_view separator() const { return v4() && !v01() ? "__" : "::"; }

  // A name with a missing or an extra namespace prefix, when exactly one tool matches.
  static std::optional<std::string> resolve_name(const std::vector<Declared>& tools,
                                                 std::string_view name) {
    const auto tail = [](std::string_view s) {
      const size_t at = s.rfind("::");
      return at == std::string_view::npos ? s : s.substr(at + 2);
    };
    std::optional<std::string> found;
    for (const Declared& d : tools) {
      if (tail(d.tool.name) != tail(name)) continue;
      if (found) return std::nullopt;
      found = d.tool.name;
    }
    return found;
  }

  Status add_namespace(const RawTool& t, std::vector<Declared>& tools, std::set<std::string>& taken,
                       std::set<std::string>& seen) {
    DEEPMINT_CHECK_OK(check_tool_name(t.name, t.path + ".name", t.path));
    if (v01() && !seen.insert(std::string(t.name)).second)
      return request_error(fmt::format("{}: duplicate namespace name '{}'", t.path, t.name));
    std::unordered_set<std::string_view> inner_names;
    for (const RawTool& inner : t.inner) {
      if (inner.type == "custom" && !ours()) {
        if (v01())
          return request_error(
              fmt::format("{}: custom tools are not supported inside a namespace", inner.path));
        return request_error(
            fmt::format("Currently custom tools are not allowed inside a namespace. Found custom "
                        "tool '{}' in {}.",
                        inner.name, inner.path));
      }
      DEEPMINT_TRY(d, declare(inner));
      if (!inner_names.insert(inner.name).second)
        return request_error(v01() ? "Tool names must be unique"
                                   : "Tool names within a namespace must be unique.");
      if (t.description && !t.description->empty() && separator() == "::")
        d.tool.description =
            fmt::format("{}\n{}", *t.description, d.tool.description.value_or(std::string()));
      // V4 knows the names of the package's older form.
      const std::string base = fmt::format("{}{}{}", t.name, separator(), inner.name);
      d.tool.name = base;
      for (int suffix = 1; taken.contains(d.tool.name); ++suffix)
        d.tool.name = fmt::format("{}_{}", base, suffix);
      taken.insert(d.tool.name);
      r_.reply.namespaces[d.tool.name] = {std::string(t.name), std::string(inner.name)};
      if (d.tool.custom) r_.reply.custom_tools.push_back(d.tool.name);
      tools.push_back(std::move(d));
    }
    return {};
  }

  Status read_choice(const Fields& f) {
    const json::Value* choice = f.get("tool_choice");
    choice_echo_ = "\"auto\"";
    if (choice == nullptr) return {};
    constexpr std::string_view kExpected =
        "expected one of `none`, `auto`, `required` or a tool choice object";
    if (choice->is_string()) {
      const std::string& s = choice->as_string();
      if (s != "none" && s != "auto" && s != "required") return body_error(std::string(kExpected));
      choice_.choice = s == "none"   ? ToolChoice::kNone
                       : s == "auto" ? ToolChoice::kAuto
                                     : ToolChoice::kRequired;
      choice_echo_ = quoted(s);
      return {};
    }
    if (!choice->is_object() || choice->find("type") == nullptr)
      return body_error(std::string(kExpected));
    DEEPMINT_TRY(c, Fields::of(*choice, "a tool choice object"));
    choice_echo_ = compact(*choice);
    if (ours()) {
      DEEPMINT_TRY(type, c.need_string("type"));
      if (type == "allowed_tools") return allowed_tools(c);
      if (type != "function" && type != "custom") {
        warn(fmt::format("tool_choice type {} has no effect here", type));
        return {};
      }
    }
    DEEPMINT_TRY(type, c.need_variant(
                           "type", {"function", "web_search", "web_search_2025_08_26", "custom"}));
    if (is_web_search(type)) {
      choice_echo_ = fmt::format("{{\"type\":\"{}\"}}", type);
      if (o_.responses_web_search == WebSearch::kReject)
        return request_error("tool_choice: server tools are not supported");
      return {};
    }
    DEEPMINT_TRY(name, c.need_string("name"));
    choice_.choice = ToolChoice::kRequired;
    choice_.name = std::string(name);
    if (ours()) {
      DEEPMINT_TRY(space, c.opt_string("namespace"));
      if (space) choice_.name = fmt::format("{}{}{}", *space, separator(), name);
    } else {
      choice_echo_ = fmt::format("{{\"type\":\"{}\",\"name\":{}}}", type, quoted(name));
    }
    return {};
  }

  Status allowed_tools(const Fields& c) {
    DEEPMINT_TRY(mode, c.need_variant("mode", {"auto", "required"}));
    DEEPMINT_TRY(list, c.need_array("tools"));
    allowed_.emplace();
    for (const json::Value& v : *list) {
      DEEPMINT_TRY(f, Fields::of(v, "a tool"));
      DEEPMINT_TRY(name, f.need_string("name"));
      allowed_->insert(std::string(name));
    }
    choice_.choice = mode == "required" ? ToolChoice::kRequired : ToolChoice::kAuto;
    return {};
  }

  // ---- items
  // ----------------------------------------------------------------------------------------------------------------

  struct Call {
    ToolCall call;
    std::optional<Message> result;
  };

  Status add_instructions(const std::optional<std::string_view>& instructions) {
    if (!instructions || instructions->empty()) return {};
    DEEPMINT_CHECK_OK(check_mark(*instructions));
    Message m;
    m.role = Role::kSystem;
    m.content = std::string(*instructions);
    r_.conversation.messages.push_back(std::move(m));
    return {};
  }

  Status add_items() {
    std::vector<std::pair<const json::Value*, std::string>> all;  // item and its place
    for (const json::Value& item : previous_) all.emplace_back(&item, "input");
    if (items_ != nullptr)
      for (size_t i = 0; i < items_->size(); ++i)
        all.emplace_back(&(*items_)[i], fmt::format("input[{}]", i));
    if (ours()) {
      for (const auto& [item, at] : all) {
        const json::Value* id = item->find("call_id");
        if (type_of(*item).ends_with("_call_output") && id != nullptr && id->is_string())
          answered_.insert(id->as_string());
        if (type_of(*item) == "additional_tools") {
          if (const json::Value* tools = item->find("tools"); tools != nullptr && tools->is_array())
            DEEPMINT_CHECK_OK(read_tools(tools->items(), at + ".tools"));
        }
      }
      drop_repeated_tools();
    }
    for (const auto& [item, at] : all) DEEPMINT_CHECK_OK(add_item(*item, at));
    if (!pending_.empty()) {
      if (!ours()) return missing_output();
      DEEPMINT_CHECK_OK(interrupt());
    }
    if (has_text_input_) {
      DEEPMINT_CHECK_OK(check_mark(text_input_));
      Message m;
      m.content = std::string(text_input_);
      r_.conversation.messages.push_back(std::move(m));
    }
    return {};
  }

  // additional_tools may repeat what an earlier item or the request declared: the first stays.
  void drop_repeated_tools() {
    std::set<std::string> seen;
    std::erase_if(raw_tools_, [&](const RawTool& t) {
      const bool repeated = !seen.insert(fmt::format("{}/{}", t.type, t.name)).second;
      return repeated && !t.path.starts_with("tools[");
    });
  }

  static std::string_view type_of(const json::Value& item) {
    const json::Value* type = item.find("type");
    return type != nullptr && type->is_string() ? std::string_view(type->as_string()) : "message";
  }
  static std::string_view text_of(const json::Value& item, std::string_view key) {
    const json::Value* v = item.find(key);
    return v != nullptr && v->is_string() ? std::string_view(v->as_string()) : std::string_view();
  }

  tl::unexpected<Error> missing_output() const {
    // The first in byte order of those that wait.
    std::string_view id;
    for (const Call& c : pending_)
      if (!c.result && (id.empty() || c.call.id < id)) id = c.call.id;
    return request_error(fmt::format("No tool output found for tool call {}.", id));
  }

  Status interrupt() {
    for (Call& c : pending_) {
      if (c.result) continue;
      Message m;
      m.role = Role::kTool;
      m.tool_call_id = c.call.id;
      m.content = std::string(kInterrupted);
      warn(fmt::format("call {} has no output; the model was told that it was interrupted",
                       c.call.id));
      c.result = std::move(m);
    }
    return close_group();
  }

  Status add_item(const json::Value& item, const std::string& at) {
    const std::string_view type = type_of(item);
    const bool call = type == "function_call" || type == "custom_tool_call";
    const bool output = type == "function_call_output" || type == "custom_tool_call_output";
    const bool breaks = type == "message" || type == "reasoning" || type == "web_search_call";
    if (!call && !output && breaks && !pending_.empty()) {
      if (!ours()) return missing_output();
      if (never_answered_ == 0) {  // the item waits until the group is complete
        held_.emplace_back(&item, at);
        return {};
      }
      DEEPMINT_CHECK_OK(interrupt());
    }
    if (call) return add_call(item, type, at);
    if (output) return add_output(item, at);
    if (type == "message") return add_message(item, at);
    if (type == "reasoning") return add_reasoning(item);
    return {};
  }

  Status check_call_id(std::string_view id, const std::string& at) const {
    if (!id.empty()) return {};
    return request_error(
        fmt::format("Invalid '{}.call_id': empty string. Expected a string with minimum length 1, "
                    "but got an empty "
                    "string instead.",
                    at));
  }

  Status add_call(const json::Value& item, std::string_view type, const std::string& at) {
    Call c;
    c.call.id = std::string(text_of(item, "call_id"));
    DEEPMINT_CHECK_OK(check_call_id(c.call.id, at));
    if (!pending_at_.emplace(c.call.id, pending_.size()).second)
      return request_error(fmt::format("Duplicate 'call_id': {}.", c.call.id));
    c.call.name = std::string(text_of(item, "name"));
    if (const json::Value* space = item.find("namespace");
        space != nullptr && space->is_string() && (ours() || type == "function_call"))
      c.call.name = fmt::format("{}{}{}", space->as_string(), separator(), c.call.name);
    if (type == "custom_tool_call") {
      c.call.arguments = "{\"input\":";
      json::append_escaped(c.call.arguments, text_of(item, "input"));
      c.call.arguments.push_back('}');
    } else {
      c.call.arguments = std::string(text_of(item, "arguments"));
    }
    DEEPMINT_CHECK_OK(check_mark(c.call.name));
    DEEPMINT_CHECK_OK(check_mark(c.call.arguments));
    ++n_open_;
    if (!answered_.contains(c.call.id)) ++never_answered_;
    pending_.push_back(std::move(c));
    return {};
  }

  Status add_output(const json::Value& item, const std::string& at) {
    const std::string_view id = text_of(item, "call_id");
    DEEPMINT_CHECK_OK(check_call_id(id, at));
    const auto it = pending_at_.find(std::string(id));
    if (it == pending_at_.end())
      return request_error(fmt::format("No tool call found for tool output with call_id {}.", id));
    Call& call = pending_[it->second];
    if (call.result)
      return request_error(fmt::format("Duplicate tool output for call_id: {}.", id));
    Message m;
    m.role = Role::kTool;
    m.tool_call_id = std::string(id);
    DEEPMINT_CHECK_OK(add_content(*item.find("output"), at, "output", false, m));
    call.result = std::move(m);
    if (--n_open_ == 0) return close_group();
    return {};
  }

  Status close_group() {
    if (!ours()) {
      std::sort(pending_.begin(), pending_.end(),
                [](const Call& a, const Call& b) { return a.call.id < b.call.id; });
    }
    Message& assistant = trailing_assistant();
    for (Call& c : pending_) assistant.tool_calls.push_back(std::move(c.call));
    for (Call& c : pending_) r_.conversation.messages.push_back(std::move(*c.result));
    pending_.clear();
    pending_at_.clear();
    n_open_ = never_answered_ = 0;
    const auto held = std::move(held_);
    held_.clear();
    for (const auto& [item, at] : held) DEEPMINT_CHECK_OK(add_item(*item, at));
    return {};
  }

  // The last message when it is an assistant message without calls; else a new one.
  Message& trailing_assistant() {
    std::vector<Message>& all = r_.conversation.messages;
    if (all.empty() || all.back().role != Role::kAssistant || !all.back().tool_calls.empty()) {
      Message m;
      m.role = Role::kAssistant;
      all.push_back(std::move(m));
    }
    return all.back();
  }

  Status add_reasoning(const json::Value& item) {
    std::string text;
    bool any = false;
    if (const json::Value* content = item.find("content");
        content != nullptr && content->is_array()) {
      for (const json::Value& part : content->items()) {
        if (any) text.push_back('\n');
        any = true;
        text.append(text_of(part, "text"));
      }
    }
    if (!any && ours() && o_.sealer != nullptr) {
      if (const auto opened = o_.sealer->open(o_.tenant, text_of(item, "encrypted_content"))) {
        text = *opened;
        any = true;
      }
    }
    DEEPMINT_CHECK_OK(check_mark(text));
    std::vector<Message>& all = r_.conversation.messages;
    const bool open = !all.empty() && all.back().role == Role::kAssistant &&
                      all.back().tool_calls.empty() && all.back().content.empty();
    if (!open) {
      if (text.empty() && !v01()) return {};
      Message m;
      m.role = Role::kAssistant;
      all.push_back(std::move(m));
    }
    Message& m = all.back();
    if (!any) return {};
    if (m.reasoning) {
      if (v01() || (!m.reasoning->empty() && !text.empty())) m.reasoning->push_back('\n');
      m.reasoning->append(text);
    } else {
      m.reasoning = std::move(text);
    }
    return {};
  }

  Status add_message(const json::Value& item, const std::string& at) {
    const std::string_view role = text_of(item, "role");
    Message m;
    DEEPMINT_CHECK_OK(add_content(*item.find("content"), at, "content", role == "assistant", m));
    if (role == "assistant") {
      Message& target = trailing_assistant();
      if (!target.content.empty() && (v01() || !m.content.empty())) target.content.append("\n\n");
      target.content.append(m.content);
      return {};
    }
    if (role == "system") m.role = Role::kSystem;
    if (role == "developer") m.role = v01() || v4() ? Role::kUser : Role::kSystem;
    if (v01() && m.role == Role::kSystem && !m.images.empty())
      return request_error(at + ": Image in system message is unsupported");
    r_.conversation.messages.push_back(std::move(m));
    return {};
  }

  Status add_content(const json::Value& v, const std::string& at, std::string_view list,
                     bool assistant, Message& m) {
    ContentBuilder content;
    if (v.is_string()) {
      DEEPMINT_CHECK_OK(check_mark(v.as_string()));
      content.text(v.as_string());
      content.move_into(m);
      return {};
    }
    for (size_t p = 0; p < v.items().size(); ++p) {
      const json::Value& part = v.items()[p];
      const std::string_view type = text_of(part, "type");
      const std::string here = fmt::format("{}.{}[{}]", at, list, p);
      if (type == "input_image" && no_images()) {
        if (ours()) warn(here + ": this model takes no images; a placeholder was sent");
        content.text(kUnsupportedImage);
      } else if (type == "input_image") {
        if (assistant) return request_error(at + ": Image in assistant message is unsupported");
        DEEPMINT_TRY(image, image_of(part, at, here));
        content.image(std::move(image));
      } else if (type == "input_file") {
        DEEPMINT_TRY(text, file_of(part));
        content.text(text);
      } else {
        const std::string_view text = text_of(part, type == "refusal" ? "refusal" : "text");
        DEEPMINT_CHECK_OK(check_mark(text));
        content.text(text);
      }
    }
    content.move_into(m);
    return {};
  }

  Result<ImageSource> image_of(const json::Value& part, const std::string& at,
                               const std::string& here) const {
    const std::string_view url = text_of(part, "image_url");
    const json::Value* file = part.find("file_id");
    const bool has_file = file != nullptr && file->is_string();
    if (!url.empty() && has_file)
      return request_error(here + ": input_image cannot have both image_url and file_id");
    if (has_file)
      return request_error(
          here + ": file_id is not supported. Pass the image as a base64 data url instead.");
    if (url.empty()) return request_error(here + ": input_image must have image_url or file_id");
    std::optional<std::string_view> detail;
    if (part.find("detail") != nullptr && part.find("detail")->is_string())
      detail = text_of(part, "detail");
    return image_from_url(url, detail,
                          {.format = at + ": ", .link = here + ": image_url ", .path = here});
  }

  Result<std::string> file_of(const json::Value& part) {
    if (!ours()) return std::string(kUnsupportedDocument);
    DEEPMINT_TRY(text, text_document(text_of(part, "file_data"), "", text_of(part, "filename")));
    if (text == kUnsupportedDocument)
      warn("only text documents are read; a placeholder was sent to the model");
    return text;
  }

  Status check_json_word() const {
    for (const Message& m : r_.conversation.messages)
      if (contains_json_word(m.content)) return {};
    return request_error(v01() ? "Response input messages must contain the word 'json' to use "
                                 "text.format of type json_object"
                               : "Response input messages must contain the word 'json' in some "
                                 "form to use 'text.format' of type "
                                 "'json_object'.");
  }

  // ---- settings repeated in responses
  // ---------------------------------------------------------------------------------------

  std::string tool_echo(const RawTool& t) const {
    if (t.type == "function") {
      return fmt::format(
          "{{\"type\":\"function\",\"name\":{},\"description\":{},\"parameters\":{},\"strict\":{}}"
          "}",
          quoted(t.name), quoted_or_null(t.description),
          t.parameters == nullptr ? "null" : compact(*t.parameters),
          !t.strict   ? "null"
          : *t.strict ? "true"
                      : "false");
    }
    if (t.type == "custom") {
      std::string out = fmt::format("{{\"type\":\"custom\",\"name\":{}", quoted(t.name));
      if (t.description) out.append(",\"description\":").append(quoted(*t.description));
      if (t.format != nullptr) out.append(",\"format\":").append(compact(*t.format));
      return out + "}";
    }
    if (t.type == "namespace") {
      std::string inner;
      for (const RawTool& i : t.inner) inner.append(inner.empty() ? "" : ",").append(tool_echo(i));
      return fmt::format("{{\"type\":\"namespace\",\"name\":{},\"description\":{},\"tools\":[{}]}}",
                         quoted(t.name), quoted_or_null(t.description), inner);
    }
    if (is_web_search(t.type))
      return fmt::format("{{\"type\":\"{}\",\"search_context_size\":null,\"user_location\":null}}",
                         t.type);
    return {};
  }

  void write_echo(const Fields& f, const std::optional<std::string_view>& instructions) {
    if (v01()) return;
    ReplyContext& reply = r_.reply;
    reply.echo_head = fmt::format(
        "\"instructions\":{},\"max_output_tokens\":{},\"max_tool_calls\":null,",
        quoted_or_null(instructions), max_tokens_ ? std::to_string(*max_tokens_) : "null");
    std::string tools;
    for (const RawTool& t : raw_tools_) {
      const std::string one = tool_echo(t);
      if (!one.empty()) tools.append(tools.empty() ? "" : ",").append(one);
    }
    std::string metadata = "{}";
    if (const json::Value* m = f.get("metadata"); ours() && m != nullptr && m->is_object())
      metadata = compact(*m);
    const std::string previous =
        reply.previous_response_id ? quoted(*reply.previous_response_id) : "null";
    reply.echo_settings = fmt::format(
        "\"parallel_tool_calls\":{},\"presence_penalty\":0.0,\"previous_response_id\":{},\"prompt_"
        "cache_key\":null,"
        "\"prompt_cache_retention\":null,\"reasoning\":{{\"effort\":{},\"summary\":{}}},\"safety_"
        "identifier\":null,"
        "\"service_tier\":\"default\",\"store\":{},\"temperature\":{},\"text\":{{\"format\":{},"
        "\"verbosity\":{}}},\"tool_choice\":{},"
        "\"tools\":[{}],\"top_logprobs\":{},\"top_p\":{},\"truncation\":\"disabled\",",
        parallel_off_ ? "false" : "true", previous, quoted_or_null(effort_),
        quoted_or_null(summary_), ours() && reply.store && o_.turns != nullptr ? "true" : "false",
        float_text(temperature_.value_or(1.0F)), format_echo_, quoted_or_null(verbosity_),
        choice_echo_, tools, r_.inference.top_logprobs.value_or(0),
        float_text(top_p_.value_or(1.0F)));
    const json::Value* user = f.get("user");
    reply.echo_tail = fmt::format(",\"user\":{},\"metadata\":{}",
                                  user == nullptr ? "null" : quoted(user->as_string()), metadata);
  }

  bool has_text_input_ = false, parallel_off_ = false;
  std::string_view text_input_;
  const json::Array* items_ = nullptr;
  std::vector<json::Value> previous_;
  std::optional<float> temperature_, top_p_;
  std::optional<uint32_t> max_tokens_;
  std::optional<std::string_view> effort_, summary_, verbosity_;
  std::string format_echo_ = "{\"type\":\"text\"}", choice_echo_;
  ResponseFormat format_;
  std::vector<RawTool> raw_tools_;
  Choice choice_;
  std::optional<std::set<std::string>> allowed_;
  // The group of calls that waits for outputs.
  std::vector<Call> pending_;
  std::unordered_map<std::string, size_t> pending_at_;  // by call id
  size_t n_open_ = 0;                                   // without a result so far
  size_t never_answered_ = 0;                           // without an output in the whole request
  std::vector<std::pair<const json::Value*, std::string>> held_;
  std::set<std::string> answered_;
};

}  // namespace

Result<ConversationRequest> convert_responses(const json::Value& body,
                                              const ConvertOptions& options) {
  return ResponsesConverter(options).run(body);
}

}  // namespace deepmint::recipe
