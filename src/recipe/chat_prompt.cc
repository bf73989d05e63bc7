#include "recipe/chat_prompt.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

namespace deepmint::recipe {
namespace {

constexpr std::string_view kWhite = " \t\r\n\f\v";

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

std::string without_white(std::string_view text) {
  std::string out;
  for (const char c : text)
    if (kWhite.find(c) == std::string_view::npos) out.push_back(c);
  return out;
}

std::string_view trim(std::string_view text) {
  const size_t first = text.find_first_not_of(kWhite);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kWhite) - first + 1);
}

// A Jinja string literal that begins after its opening quote: its text up to the closing quote or,
// when given, up to `end`, escapes decoded. nullopt when the literal stops before `end`, or never.
std::optional<std::string> literal(std::string_view text, char quote, std::string_view end) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!end.empty() && text.substr(i).starts_with(end)) return out;
    const char c = text[i];
    if (quote != 0 && c == quote) {
      if (end.empty()) return out;
      return std::nullopt;
    }
    if (quote == 0 && c == '{' && i + 1 < text.size() && (text[i + 1] == '{' || text[i + 1] == '%'))
      return std::nullopt;
    if (quote == 0 || c != '\\' || i + 1 == text.size()) {
      out.push_back(c);
      continue;
    }
    switch (text[++i]) {
      case 'n':
        out.push_back('\n');
        break;
      case 't':
        out.push_back('\t');
        break;
      case 'r':
        out.push_back('\r');
        break;
      case '\\':
      case '\'':
      case '"':
        out.push_back(text[i]);
        break;
      default:
        out.push_back('\\'), out.push_back(text[i]);
    }
  }
  return std::nullopt;
}

// The text that a template puts between `begin` + white space and `end` when it does so inside one
// literal: a system message that the template itself brings. Occurrences that splice in a variable
// are passed over.
std::string spelled_out(std::string_view jinja, std::string_view begin, std::string_view end) {
  for (size_t at = jinja.find(begin); at != std::string_view::npos;
       at = jinja.find(begin, at + 1)) {
    char quote = 0;
    if (at > 0 && (jinja[at - 1] == '\'' || jinja[at - 1] == '"')) quote = jinja[at - 1];
    if (auto text = literal(jinja.substr(at + begin.size()), quote, end)) {
      text->erase(0, std::min(text->find_first_not_of('\n'), text->size()));
      if (!text->empty()) return *std::move(text);
    }
  }
  return {};
}

// `set NAME = 'literal'`, as templates write defaults. The first non-empty one.
std::string assigned(std::string_view jinja, std::string_view name) {
  for (size_t at = jinja.find(name); at != std::string_view::npos; at = jinja.find(name, at + 1)) {
    std::string_view before = jinja.substr(0, at);
    before = before.substr(0, std::min(before.size(), before.find_last_not_of(kWhite) + 1));
    if (!before.ends_with("set")) continue;
    std::string_view rest = jinja.substr(at + name.size());
    rest.remove_prefix(std::min(rest.find_first_not_of(kWhite), rest.size()));
    if (!rest.starts_with('=')) continue;
    rest.remove_prefix(1);
    rest.remove_prefix(std::min(rest.find_first_not_of(kWhite), rest.size()));
    if (rest.empty() || (rest[0] != '\'' && rest[0] != '"')) continue;
    if (auto text = literal(rest.substr(1), rest[0], {}); text && !text->empty())
      return *std::move(text);
  }
  return {};
}

tl::unexpected<Error> unsupported(std::string_view jinja, std::string_view architecture) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 8> kKnown = {{
      {"<|im_sep|>", "Phi-4"},
      {"<start_of_turn>", "Gemma"},
      {"[INST]", "Llama 2 or Mistral"},
      {"<｜User｜>", "DeepSeek"},
      {"<|start_of_role|>", "Granite"},
      {"<|START_OF_TURN_TOKEN|>", "Command R"},
      {"<|channel|>", "Harmony"},
      {"<|user|>", "Phi-3 or Zephyr"},
  }};
  std::string found = "none";
  if (!jinja.empty()) {
    found = fmt::format("an unknown format that begins \"{}\"", jinja.substr(0, 60));
    for (char& c : found)
      if (static_cast<unsigned char>(c) < 0x20) c = ' ';
    for (const auto& [marker, name] : kKnown) {
      if (!contains(jinja, marker)) continue;
      found = name;
      break;
    }
  }
  return fail(
      ErrorCode::kUnsupported,
      fmt::format("expected a ChatML or Llama 3 chat template, found {}", found),
      fmt::format("chat template of the {} model", architecture.empty() ? "loaded" : architecture));
}

}  // namespace

Result<ChatTemplate> detect_chat_template(std::string_view jinja, std::string_view architecture,
                                          std::string_view bos_text) {
  ChatTemplate chat;
  const std::string dense = without_white(jinja);
  const bool wants_bos = contains(jinja, "bos_token");
  chat.trim_content = contains(dense, "content']|trim") || contains(dense, "content\"]|trim") ||
                      contains(dense, "content|trim") || contains(dense, "content'].strip()") ||
                      contains(dense, "content\"].strip()") || contains(dense, "content.strip()");
  chat.drop_reasoning = contains(jinja, "</think>");

  if (contains(jinja, "<|im_start|>") && contains(jinja, "<|im_end|>") &&
      !contains(jinja, "<|im_sep|>")) {
    chat.format = ChatFormat::kChatMl;
    if (wants_bos && bos_text.empty())
      return fail(ErrorCode::kUnsupported,
                  "the chat template starts with bos_token, but the tokenizer has none",
                  fmt::format("chat template of the {} model", architecture));
    if (wants_bos) chat.begin_of_text = bos_text;
    chat.default_system = spelled_out(jinja, "<|im_start|>system", "<|im_end|>");
  } else if (contains(jinja, "<|start_header_id|>") && contains(jinja, "<|eot_id|>")) {
    chat.format = ChatFormat::kLlama3;
    if (wants_bos || contains(jinja, "<|begin_of_text|>"))
      chat.begin_of_text = bos_text.empty() ? std::string_view("<|begin_of_text|>") : bos_text;
    chat.default_system =
        spelled_out(jinja, "<|start_header_id|>system<|end_header_id|>", "<|eot_id|>");
    if (constexpr std::string_view kKnowledge = "Cutting Knowledge Date: ";
        contains(jinja, kKnowledge)) {
      // The template would take today's date where it can. A reply must depend on the request
      // alone, so the fixed date that the template falls back to is used.
      const size_t at = jinja.find(kKnowledge);
      const std::string_view line = jinja.substr(at, jinja.substr(at).find_first_of("\\\n\"'"));
      const std::string date = assigned(jinja, "date_string");
      chat.system_preamble =
          fmt::format("{}\nToday Date: {}\n\n", line, date.empty() ? "26 Jul 2024" : date);
      chat.default_system.clear();
    }
  } else {
    return unsupported(jinja, architecture);
  }
  if (chat.default_system.empty()) {
    chat.default_system = assigned(jinja, "system_message");
    if (chat.default_system.empty())
      chat.default_system = assigned(jinja, "default_system_message");
  }
  return chat;
}

Result<std::vector<Segment>> render_chat(const ChatTemplate& chat,
                                         std::span<const ChatMessage> messages) {
  if (messages.empty())
    return fail(ErrorCode::kInvalidArgument, "expected at least one message, found none",
                "messages");
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
  if (!own_system && !(chat.default_system.empty() && chat.system_preamble.empty())) {
    open("system");
    text(chat.system_preamble + chat.default_system);
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
    if (chat.drop_reasoning && message.role == "assistant") {
      if (const size_t end = content.rfind("</think>"); end != std::string_view::npos) {
        content.remove_prefix(end + std::string_view("</think>").size());
        content.remove_prefix(std::min(content.find_first_not_of('\n'), content.size()));
      }
    }
    if (chat.trim_content) content = trim(content);
    open(message.role);
    if (i == 0 && own_system && !chat.system_preamble.empty()) text(chat.system_preamble);
    text(std::string(content));
    close();
  }
  open("assistant");
  return out;
}

}  // namespace deepmint::recipe
