// Conversation → prompt segments for dense models, until (and beside) the general template
// interpreter: ChatML and Llama 3 are recognised from the model's chat template. Anything else is
// refused by name rather than answered with a wrong prompt.
//
//   DEEPMINT_TRY(chat, detect_chat_template(metadata.chat_template, "llama"));
//   DEEPMINT_TRY(segments, render_chat(chat, std::array{ChatMessage{"user", "hello"}}));
//   auto ids = tokenizer.encode(segments);
//
// Pure functions of their arguments; no state, any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "deepmint/result.h"
#include "tokenizer/segment.h"

namespace deepmint::recipe {

struct ChatMessage {
  std::string role;     // "system", "user", "assistant"
  std::string content;  // caller text: never a control token
};

enum class ChatFormat : uint8_t { kChatMl, kLlama3 };

struct ChatTemplate {
  ChatFormat format = ChatFormat::kChatMl;
  std::string default_system;  // used when the first message is not a system message (SmolLM2,
                               // Qwen2 have one); may be empty
  // Put before the text of the system message, which is then always there (Llama 3.1 and later: the
  // knowledge and date lines).
  std::string system_preamble;
  std::string begin_of_text;  // control token in front of everything; empty for none
  bool trim_content = false;  // white space around every message's content is dropped (Llama 3)
  bool drop_reasoning =
      false;  // assistant turns lose everything up to "</think>" (Qwen3, R1 distills)
};

// Recognises a template text. kUnsupported when it is neither format, naming what it looks like.
// `architecture` only serves the message. `bos_text` is the text of the tokenizer's begin-of-text
// token, for templates that emit bos_token; when it is empty a Llama 3 template uses
// <|begin_of_text|> and a ChatML template that needs one is refused.
Result<ChatTemplate> detect_chat_template(std::string_view jinja, std::string_view architecture,
                                          std::string_view bos_text = {});

// Segments of the whole conversation, ending where the assistant's reply begins. Errors:
// kInvalidArgument for an unknown role or an empty list, with the message index in `where`.
Result<std::vector<Segment>> render_chat(const ChatTemplate& chat,
                                         std::span<const ChatMessage> messages);

}  // namespace deepmint::recipe
