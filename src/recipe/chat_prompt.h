// Conversation → prompt segments for dense models, until (and beside) the general template interpreter: ChatML and Llama 3 are
// recognised from the model's chat template. Anything else is refused by name rather than answered with a wrong prompt.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "deepmint/result.h"
#include "tokenizer/segment.h"

namespace deepmint::recipe {

struct ChatMessage {
  std::string role;       // "system", "user", "assistant"
  std::string content;    // caller text: never a control token
};

enum class ChatFormat : uint8_t { kChatMl, kLlama3 };

struct ChatTemplate {
  ChatFormat format = ChatFormat::kChatMl;
  std::string default_system;   // used when the first message is not a system message (SmolLM2, Qwen2 have one); may be empty
};

// Recognises a template text. kUnsupported when it is neither format, naming what it looks like.
Result<ChatTemplate> detect_chat_template(std::string_view jinja, std::string_view architecture);

// Segments of the whole conversation, ending where the assistant's reply begins. Errors: kInvalidArgument for an unknown role or an
// empty list, with the message index in `where`.
Result<std::vector<Segment>> render_chat(const ChatTemplate& chat, std::span<const ChatMessage> messages);

}  // namespace deepmint::recipe
