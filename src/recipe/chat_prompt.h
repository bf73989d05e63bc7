// Conversation → prompt segments of a served model. Dense models: through the chat template that
// the model brings (recipe/jinja, docs/jinja.md), or, when it brings none, through a built-in
// ChatML or Llama 3 prompt, by what its vocabulary has. DeepSeek V4.1: the recipe's own encoder
// (recipe/prompt.h); requests of an API go through recipe/convert.h instead, which knows more.
//
//   DEEPMINT_TRY(chat, load_chat_template(metadata.chat_template, "llama", tokenizer));
//   DEEPMINT_TRY(segments, render_chat(chat, std::array{ChatMessage{"user", "hello"}}));
//   auto ids = tokenizer.encode(segments);
//
// Pure functions of their arguments; no state, any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "deepmint/result.h"
#include "recipe/compat.h"
#include "recipe/family_parser.h"
#include "recipe/jinja/jinja.h"
#include "tokenizer/segment.h"
#include "tokenizer/tokenizer.h"

namespace deepmint::recipe {

struct ChatCall {
  std::string id, name;
  std::string arguments;  // JSON text; templates see the object, or this text when it is none
};

struct ChatMessage {
  std::string role;                           // "system", "user", "assistant", "tool"
  std::string content;                        // caller text: never a control token
  std::optional<std::string> reasoning = {};  // assistant: reasoning_content
  std::vector<ChatCall> calls = {};           // assistant: tool_calls
  std::string call_id = {};                   // tool: the call that it answers
  std::string name = {};
};

// What a request gives a template beside the messages.
struct ChatVariables {
  json::Value tools;   // array of {"type": "function", "function": {…}}; null: none
  json::Value kwargs;  // object of further variables (chat_template_kwargs); null: none
};

enum class ChatFormat : uint8_t { kChatMl, kLlama3 };

struct ChatTemplate {
  ChatFormat format = ChatFormat::kChatMl;
  std::string default_system;  // used when the first message is not a system message
  std::string begin_of_text;   // control token in front of everything; empty for none
  bool trim_content = false;   // white space around every message's content is dropped (Llama 3)

  // DeepSeek: the recipe makes the prompt and reads the reply, and nothing below is used.
  std::optional<ModelVersion> deepseek = std::nullopt;

  // The model's own template, which then makes the prompt instead of the fields above.
  std::shared_ptr<const jinja::Template> source = nullptr;
  std::string bos_token, eos_token;  // what the template sees under these names
  bool takes_tools = false;          // the template has a place for tools
  ReplyFormat reply;                 // how the family writes calls and reasoning
};

// The prompt format of a model: its own template when it has one (an error names what is not
// supported and its line), else DeepSeek's for architecture "deepseek_v41" (kInvalidArgument when
// the tokenizer lacks one of its control tokens), else ChatML or Llama 3 when the vocabulary has
// their control tokens. kUnsupported when there is neither.
Result<ChatTemplate> load_chat_template(std::string_view jinja, std::string_view architecture,
                                        const Tokenizer& tokenizer);

// Segments of the whole conversation, ending where the assistant's reply begins. Errors:
// kInvalidArgument for an unknown role or an empty list, with the message index in `where`, and for
// what the template refuses; kUnsupported for tools that the prompt format has no place for.
// DeepSeek: the reply answers at once, without thinking; tools are the API's business.
Result<std::vector<Segment>> render_chat(const ChatTemplate& chat,
                                         std::span<const ChatMessage> messages,
                                         const ChatVariables& variables = {});

// True when the prompt ends in an opened thinking block, so that the reply begins inside it.
bool ends_in_thinking(std::span<const Segment> prompt);

}  // namespace deepmint::recipe
