// What a protocol makes of segments: its events, and the object that they add up to. Internal to
// the recipe module; ReplyStream drives it.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "recipe/reply_stream.h"
#include "recipe/spelling.h"

namespace deepmint::recipe {

struct ReplyUsage {
  PromptUsage prompt;
  uint64_t completion_tokens = 0;
  uint64_t reasoning_tokens = 0;
  bool has_reasoning = false;  // token counts are known per kind
};

class Generator {
 public:
  virtual ~Generator() = default;
  // `logprobs` is a JSON array of the tokens whose text this is, or empty when they were not asked
  // for.
  virtual void start(const PromptUsage& usage, const std::string* fingerprint) = 0;
  virtual void reasoning(std::string_view text, std::string_view logprobs) = 0;
  virtual void text(std::string_view text, std::string_view logprobs) = 0;
  virtual void tool_begin(std::string_view call_id, std::string_view name) = 0;
  virtual void tool_arguments(std::string_view json) = 0;
  virtual void tool_end(bool complete) = 0;
  virtual void finish(FinishReason reason, const std::string& stop, const ReplyUsage& usage) = 0;
  virtual void fail(std::string_view type, std::string_view message) = 0;
  virtual std::string response() const = 0;
  virtual std::string choice() const { return {}; }
  // Chat: the response with these choices (JSON objects, comma-separated) and this usage.
  virtual std::string response_of(const std::string& /*choices*/,
                                  const ReplyUsage& /*usage*/) const {
    return {};
  }
  virtual std::string call_id(int n) const = 0;
};

std::unique_ptr<Generator> make_chat_generator(const ConversationRequest& request,
                                               const ReplyMeta& meta, EventBuffer& events);
std::unique_ptr<Generator> make_messages_generator(const ConversationRequest& request,
                                                   const ReplyMeta& meta, EventBuffer& events);
std::unique_ptr<Generator> make_responses_generator(const ConversationRequest& request,
                                                    const ReplyMeta& meta, EventBuffer& events);

// Appends ,"key":"text" and the like.
void put_string(std::string& out, std::string_view key, std::string_view value);  // "key":"value"

}  // namespace deepmint::recipe
