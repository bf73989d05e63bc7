#include "recipe/chat_prompt.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "core/utf8.h"
#include "recipe/prompt.h"
#include "recipe/token_codec.h"

namespace deepmint::recipe {
namespace {

constexpr std::string_view kWhite = " \t\r\n\f\v";

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

std::string_view trim(std::string_view text) {
  const size_t first = text.find_first_not_of(kWhite);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kWhite) - first + 1);
}

json::Value text_value(std::string_view s) { return json::Value(std::string(s)); }

json::Value call_value(const ChatCall& call) {
  auto arguments = json::parse(call.arguments);
  const bool is_object = arguments && arguments->is_object();
  json::Object function = {
      {"name", text_value(call.name)},
      {"arguments", is_object ? std::move(*arguments) : text_value(call.arguments)}};
  json::Object out;
  if (!call.id.empty()) out.push_back({"id", text_value(call.id)});
  out.push_back({"type", text_value("function")});
  out.push_back({"function", json::Value(std::move(function))});
  return json::Value(std::move(out));
}

json::Value message_value(const ChatMessage& message) {
  json::Object out = {{"role", text_value(message.role)}, {"content", text_value(message.content)}};
  if (message.reasoning) out.push_back({"reasoning_content", text_value(*message.reasoning)});
  if (!message.calls.empty()) {
    json::Array calls;
    for (const ChatCall& call : message.calls) calls.push_back(call_value(call));
    out.push_back({"tool_calls", json::Value(std::move(calls))});
  }
  if (!message.call_id.empty()) out.push_back({"tool_call_id", text_value(message.call_id)});
  if (!message.name.empty()) out.push_back({"name", text_value(message.name)});
  return json::Value(std::move(out));
}

void add(jinja::Variables::List& list, std::string name, const json::Value& value) {
  list.emplace_back(std::move(name), value);
}

bool is_role(std::string_view role) {
  return role == "system" || role == "user" || role == "assistant" || role == "tool";
}

Result<std::vector<Segment>> render_source(const ChatTemplate& chat,
                                           std::span<const ChatMessage> messages,
                                           const ChatVariables& given) {
  jinja::Variables variables;
  const auto trusted = [&](std::string name, const std::string& text) {
    if (!text.empty()) add(variables.trusted, std::move(name), text_value(text));
  };
  trusted("bos_token", chat.bos_token);
  trusted("eos_token", chat.eos_token);
  add(variables.trusted, "add_generation_prompt", json::Value(true));
  add(variables.trusted, "documents", json::Value());
  if (given.kwargs.is_object())
    for (const json::Member& m : given.kwargs.members()) {
      constexpr std::array<std::string_view, 6> kOurs = {
          "messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"};
      if (std::find(kOurs.begin(), kOurs.end(), m.key) != kOurs.end())
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("\"{}\" is set by the request itself", m.key),
                    "chat_template_kwargs");
      variables.caller.emplace_back(m.key, m.value);
    }
  json::Array list;
  for (const ChatMessage& message : messages) list.push_back(message_value(message));
  variables.caller.emplace_back("messages", json::Value(std::move(list)));
  variables.caller.emplace_back("tools", given.tools);
  variables.is_trusted = [](std::string_view variable, std::string_view key,
                            std::string_view value) {
    return variable == "messages" && key == "role" && is_role(value);
  };
  return chat.source->render(variables);
}

std::vector<Segment> render_deepseek(ModelVersion version, std::span<const ChatMessage> messages) {
  Conversation conversation;
  conversation.thinking = false;
  for (const ChatMessage& message : messages) {
    Message m;
    m.role = message.role == "system"      ? Role::kSystem
             : message.role == "assistant" ? Role::kAssistant
             : message.role == "tool"      ? Role::kTool
                                           : Role::kUser;
    m.content = message.content;
    m.reasoning = message.reasoning;
    m.tool_call_id = message.call_id;
    for (const ChatCall& call : message.calls)
      m.tool_calls.push_back({call.id, call.name, call.arguments});
    conversation.messages.push_back(std::move(m));
  }
  return render_prompt(conversation, {.version = version}).segments();
}

Status check_roles(std::span<const ChatMessage> messages) {
  for (size_t i = 0; i < messages.size(); ++i)
    if (!is_role(messages[i].role))
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("expected role system, user, assistant or tool, found \"{}\"",
                              messages[i].role.substr(0, 40)),
                  fmt::format("messages[{}].role", i));
  return {};
}

}  // namespace

bool ends_in_thinking(std::span<const Segment> prompt) {
  constexpr std::string_view kOpen = "<think>";
  std::string tail;
  for (size_t i = prompt.size(); i-- > 0 && tail.size() < 64;) {
    if (prompt[i].kind != Segment::Kind::kControl) break;
    tail.insert(0, prompt[i].text);
  }
  const size_t end = tail.find_last_not_of(kWhite);
  return end != std::string::npos && std::string_view(tail).substr(0, end + 1).ends_with(kOpen);
}

Result<ChatTemplate> load_chat_template(std::string_view jinja, std::string_view architecture,
                                        const Tokenizer& tokenizer) {
  const TokenizerSpec& spec = tokenizer.spec();
  const auto token_text = [&](const std::optional<TokenId>& id) {
    return id ? utf8::sanitize(tokenizer.token_bytes(*id)) : std::string();
  };
  ChatTemplate chat;
  chat.bos_token = token_text(spec.bos);
  chat.eos_token = token_text(spec.eos);
  if (jinja.find_first_not_of(kWhite) == std::string_view::npos) {
    if (architecture == "deepseek_v41") {
      DEEPMINT_CHECK_OK(check_tokenizer(tokenizer, ModelVersion::kV41));
      chat.deepseek = ModelVersion::kV41;
      return chat;
    }
    const auto has = [&](std::string_view a, std::string_view b) {
      return tokenizer.find_added(a) && tokenizer.find_added(b);
    };
    if (has("<|im_start|>", "<|im_end|>")) return chat;
    if (!has("<|start_header_id|>", "<|eot_id|>"))
      return fail(
          ErrorCode::kUnsupported,
          fmt::format("expected a chat template, or the control tokens of ChatML or Llama 3 "
                      "in the vocabulary; the {} model has neither",
                      architecture.empty() ? "loaded" : architecture));
    chat.format = ChatFormat::kLlama3;
    chat.trim_content = true;
    chat.begin_of_text = chat.bos_token.empty() ? "<|begin_of_text|>" : chat.bos_token;
    return chat;
  }
  DEEPMINT_TRY(parsed, jinja::Template::parse(jinja));
  chat.source = std::make_shared<const jinja::Template>(std::move(parsed));
  chat.takes_tools = contains(jinja, "tools");
  chat.reply = reply_format_of(jinja);
  return chat;
}

Result<std::vector<Segment>> render_chat(const ChatTemplate& chat,
                                         std::span<const ChatMessage> messages,
                                         const ChatVariables& variables) {
  if (messages.empty())
    return fail(ErrorCode::kInvalidArgument, "expected at least one message, found none",
                "messages");
  if (!chat.takes_tools && variables.tools.is_array() && !variables.tools.items().empty())
    return fail(ErrorCode::kUnsupported, "the model's chat template has no place for tools",
                "tools");
  if (chat.deepseek || chat.source != nullptr) {
    DEEPMINT_CHECK_OK(check_roles(messages));
    if (chat.deepseek) return render_deepseek(*chat.deepseek, messages);
    return render_source(chat, messages, variables);
  }
  std::vector<Segment> out;
  out.reserve(4 * messages.size() + 8);
  const auto control = [&](std::string_view text) {
    out.push_back({Segment::Kind::kControl, std::string(text)});
  };
  const auto text = [&](std::string t) { out.push_back({Segment::Kind::kText, std::move(t)}); };
  const bool chatml = chat.format == ChatFormat::kChatMl;
  const auto open = [&](std::string_view role) {
    control(chatml ? "<|im_start|>" : "<|start_header_id|>");
    text(std::string(role));
    if (chatml) return text("\n");
    control("<|end_header_id|>");
    text("\n\n");
  };
  const auto close = [&] {
    control(chatml ? "<|im_end|>" : "<|eot_id|>");
    if (chatml) text("\n");
  };

  if (!chat.begin_of_text.empty()) control(chat.begin_of_text);
  const bool own_system = messages.front().role == "system";
  if (!own_system && !chat.default_system.empty()) {
    open("system");
    text(chat.default_system);
    close();
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    if (message.role != "system" && message.role != "user" && message.role != "assistant")
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("expected role system, user or assistant, found \"{}\"",
                              message.role.substr(0, 40)),
                  fmt::format("messages[{}].role", i));
    std::string_view content = message.content;
    if (chat.trim_content) content = trim(content);
    open(message.role);
    text(std::string(content));
    close();
  }
  open("assistant");
  return out;
}

}  // namespace deepmint::recipe
