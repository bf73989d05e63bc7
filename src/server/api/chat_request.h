// The body of POST /v1/chat/completions, checked: JSON in, typed request out, or one line that
// names the field, what was expected and what was found. Pure; no exceptions; time and memory are
// linear in the body.
//
//   DEEPMINT_TRY(request, parse_chat_request(body, model.default_sampling, model.chat->deepseek));
//
// What the engine needs (sampling, limits, streaming) is read here for every model. The
// conversation is read here for dense models, whose templates take what they take, and by the
// recipe's converter for DeepSeek.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "deepmint/engine.h"
#include "deepmint/result.h"
#include "deepmint/sampling.h"
#include "recipe/chat_prompt.h"
#include "recipe/conversation.h"

namespace deepmint {

inline constexpr int32_t kMaxChoices = 16;
inline constexpr size_t kMaxStopStrings = 16;
inline constexpr size_t kMaxStopBytes = 1024;  // of one stop string
inline constexpr int32_t kMaxTopLogprobs = 20;
inline constexpr size_t kMaxLogitBias = 1024;
inline constexpr size_t kMaxTools = 1024;
inline constexpr size_t kMaxUserBytes = 256;  // what comes behind is not looked at

struct ChatRequest {
  std::string model;                                        // empty: the one that is served
  std::vector<recipe::ChatMessage> messages;                // dense models
  std::optional<recipe::ConversationRequest> conversation;  // DeepSeek, instead of messages
  SamplingParams sampling;  // the given defaults, with what the request says over them
  std::optional<int32_t> max_tokens;
  int32_t n = 1;
  bool stream = false;
  bool include_usage = false;
  bool logprobs = false;
  int32_t top_logprobs = 0;
  std::vector<std::string> stop;  // none empty
  bool ignore_eos = false;
  std::string cache_salt;
  RequestClass request_class = RequestClass::kInteractive;  // service_tier
  std::optional<int64_t> deadline_ms, max_queue_ms;         // from the request's arrival
  // Approximations of DeepSeek-V4.1, off unless asked for: prefill_tail, prefix_replay.
  std::optional<int32_t> tail_keep_tokens;
  bool bounded_replay = false;
  std::string user;                 // safety_identifier, else user; empty: not said, or no text
  recipe::ChatVariables variables;  // tools (unless tool_choice is none), chat_template_kwargs
  // What the reply must look like (response_format, strict tools, forced calls): for
  // make_token_mask().
  std::optional<recipe::OutputConstraint> constraint;
  bool asks_for_format = false;  // there is a response_format, be it text
};

// Errors: kInvalidArgument (wrong JSON, type or range; `where` is the field), kUnsupported (a field
// that asks for something this endpoint does not do), kTooLarge (JSON nested or split up too far).
Result<ChatRequest> parse_chat_request(std::string_view body, const SamplingParams& defaults,
                                       std::optional<recipe::ModelVersion> deepseek = {});

}  // namespace deepmint
