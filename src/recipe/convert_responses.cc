#include "recipe/convert_responses.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "recipe/spelling.h"

namespace deepmint::recipe {
namespace {

std::string float_text(float v) {
  std::array<char, 32> buffer;
  const auto r = std::to_chars(buffer.data(), buffer.data() + buffer.size(), v);
  std::string s(buffer.data(), r.ptr);
  if (s.find_first_of(".e") == std::string::npos) s.append(".0");
  return s;
}

}  // namespace

Result<ConversationRequest> ResponsesConverter::run(const json::Value& body) {
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
    return request_error("Invalid top_logprobs value, the valid range of top_logprobs is [0, 20].");
  write_echo(f, instructions);
  DEEPMINT_CHECK_OK(set_format(std::move(format_)));
  DEEPMINT_CHECK_OK(finish(parallel_off_, "reasoning_text"));
  return std::move(r_);
}

Status ResponsesConverter::read_input(const Fields& f) {
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
Status ResponsesConverter::check_item(const json::Value& item) const {
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
  } else if (t == "tool_search_call" && !v01()) {
    DEEPMINT_CHECK_OK(f.need_string("call_id"));
    DEEPMINT_TRY(arguments, f.need("arguments"));
    if (!arguments->is_object()) return wrong_type(*arguments, "a map");
    DEEPMINT_CHECK_OK(check_execution(f));
  } else if (t == "tool_search_output" && !v01()) {
    DEEPMINT_CHECK_OK(f.need_string("call_id"));
    DEEPMINT_TRY(tools, f.need_array("tools"));
    DEEPMINT_CHECK_OK(parse_tools(*tools, "tools"));
    DEEPMINT_CHECK_OK(check_execution(f));
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

Status ResponsesConverter::check_execution(const Fields& f) {
  const json::Value* v = f.get("execution");
  if (v != nullptr && !v->is_string()) return wrong_type(*v, "string or map");
  DEEPMINT_CHECK_OK(f.opt_variant("execution", {"client", "server"}));
  return {};
}

Status ResponsesConverter::check_part(const json::Value& part, bool message) const {
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

Status ResponsesConverter::read_settings(const Fields& f) {
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
    if (const json::Value* include = f.get("include"); include != nullptr && include->is_array()) {
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

Status ResponsesConverter::read_format(const Fields& f) {
  DEEPMINT_TRY(text, f.opt_object("text", "struct ResponsesTextConfig"));
  if (!text) return {};
  DEEPMINT_TRY(verbosity, text->opt_variant("verbosity", {"low", "medium", "high"}));
  verbosity_ = verbosity;
  DEEPMINT_TRY(format, text->opt_object("format", "internally tagged enum ResponsesTextFormat"));
  if (!format) return {};
  std::string_view type;
  if (ours()) {
    DEEPMINT_TRY(t, format->need_variant("type", {"text", "json_schema", "json_object", "regex"}));
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
        quoted_json(name), compact_json(*schema), quoted_or_null(description),
        !strict   ? "null"
        : *strict ? "true"
                  : "false");
  }
  return {};
}

Status ResponsesConverter::read_choice(const Fields& f) {
  const json::Value* choice = f.get("tool_choice");
  choice_echo_ = "\"auto\"";
  if (choice == nullptr) return {};
  constexpr std::string_view kExpected =
      "expected one of `none`, `auto`, `required` or a tool choice object";
  if (choice->is_string()) {
    const auto named = tool_choice_of(choice->as_string());
    if (!named) return body_error(std::string(kExpected));
    choice_.choice = *named;
    choice_echo_ = quoted_json(choice->as_string());
    return {};
  }
  if (!choice->is_object() || choice->find("type") == nullptr)
    return body_error(std::string(kExpected));
  DEEPMINT_TRY(c, Fields::of(*choice, "a tool choice object"));
  choice_echo_ = compact_json(*choice);
  if (ours()) {
    DEEPMINT_TRY(type, c.need_string("type"));
    if (type == "allowed_tools") return allowed_tools(c);
    if (type != "function" && type != "custom") {
      warn(fmt::format("tool_choice type {} has no effect here", type));
      return {};
    }
  }
  DEEPMINT_TRY(
      type, c.need_variant("type", {"function", "web_search", "web_search_2025_08_26", "custom"}));
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
    choice_echo_ = fmt::format("{{\"type\":\"{}\",\"name\":{}}}", type, quoted_json(name));
  }
  return {};
}

Status ResponsesConverter::allowed_tools(const Fields& c) {
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

Status ResponsesConverter::check_json_word() const {
  if (mentions_json()) return {};
  return request_error(v01() ? "Response input messages must contain the word 'json' to use "
                               "text.format of type json_object"
                             : "Response input messages must contain the word 'json' in some "
                               "form to use 'text.format' of type "
                               "'json_object'.");
}

void ResponsesConverter::write_echo(const Fields& f,
                                    const std::optional<std::string_view>& instructions) {
  if (v01()) return;
  ReplyContext& reply = r_.reply;
  reply.echo_head = fmt::format(
      "\"instructions\":{},\"max_output_tokens\":{},\"max_tool_calls\":null,",
      quoted_or_null(instructions), max_tokens_ ? std::to_string(*max_tokens_) : "null");
  std::string tools;
  for (const RawTool& t : raw_tools_) {
    if (t.load != kNotLoaded) continue;
    const std::string one = tool_echo(t);
    if (!one.empty()) tools.append(tools.empty() ? "" : ",").append(one);
  }
  std::string metadata = "{}";
  if (const json::Value* m = f.get("metadata"); ours() && m != nullptr && m->is_object())
    metadata = compact_json(*m);
  const std::string previous =
      reply.previous_response_id ? quoted_json(*reply.previous_response_id) : "null";
  reply.echo_settings = fmt::format(
      "\"parallel_tool_calls\":{},\"presence_penalty\":0.0,\"previous_response_id\":{},\"prompt_"
      "cache_key\":null,"
      "\"prompt_cache_retention\":null,\"reasoning\":{{\"effort\":{},\"summary\":{}}},\"safety_"
      "identifier\":null,"
      "\"service_tier\":\"default\",\"store\":{},\"temperature\":{},\"text\":{{\"format\":{},"
      "\"verbosity\":{}}},\"tool_choice\":{},"
      "\"tools\":[{}],\"top_logprobs\":{},\"top_p\":{},\"truncation\":\"disabled\",",
      parallel_off_ ? "false" : "true", previous, quoted_or_null(effort_), quoted_or_null(summary_),
      ours() && reply.store && o_.turns != nullptr ? "true" : "false",
      float_text(temperature_.value_or(1.0F)), format_echo_, quoted_or_null(verbosity_),
      choice_echo_, tools, r_.inference.top_logprobs.value_or(0),
      float_text(top_p_.value_or(1.0F)));
  const json::Value* user = f.get("user");
  reply.echo_tail =
      fmt::format(",\"user\":{},\"metadata\":{}",
                  user == nullptr ? "null" : quoted_json(user->as_string()), metadata);
}

Result<ConversationRequest> convert_responses(const json::Value& body,
                                              const ConvertOptions& options) {
  return ResponsesConverter(options).run(body);
}

}  // namespace deepmint::recipe
