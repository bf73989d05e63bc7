// The conversation that all three protocols become, and that both prompt formats render. Plain
// data; no JSON, no tokens.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/json.h"
#include "recipe/compat.h"
#include "tokenizer/segment.h"

namespace deepmint::recipe {

inline constexpr std::string_view kImageMark = "<｜image｜>";

enum class Role : uint8_t { kSystem, kUser, kAssistant, kTool, kLatestReminder };
enum class ImageDetail : uint8_t { kLow, kHigh, kOriginal, kAuto };
enum class ToolChoice : uint8_t { kAuto, kNone, kRequired };
enum class Effort : uint8_t { kLow, kHigh, kXHigh, kMax };

struct ImageSource {
  enum class Kind : uint8_t { kDataUrl, kUrl };
  Kind kind = Kind::kUrl;
  std::string data;  // the URL, or the whole data URL
  ImageDetail detail = ImageDetail::kHigh;
  std::string path;  // place in the request, for messages of the image loader
};

struct ToolCall {
  std::string id, name;
  std::string arguments;  // JSON text as the client sent it; not checked
};

struct Tool {
  std::string name;  // as the model sees it; "namespace::name" for tools of a namespace
  std::optional<std::string> description;
  json::Value parameters;  // JSON Schema, key order kept
  std::optional<bool> strict;
  bool deferred = false;  // not in the tools text: the model sees it from the message on that loads
                          // it (Message::loaded_tools)
  bool custom = false;    // one string argument "input", which the client gets as bare text
  // Custom tool: the grammar that `input` must follow, as custom_tool_format() gives it; none for
  // free text.
  std::optional<json::Value> format;
};

struct Message {
  Role role = Role::kUser;
  std::string content;
  std::optional<std::string> reasoning;  // assistant
  std::vector<ToolCall> tool_calls;      // assistant; empty means none
  std::vector<Tool> loaded_tools;        // system: tools that become known here
  bool prefix = false;  // assistant, last: its text is continued instead of followed by a new turn
  std::string tool_call_id;         // tool
  std::vector<ImageSource> images;  // system, user and tool: one per entry of image_marks, in order
  std::vector<size_t>
      image_marks;  // byte offsets in `content` where kImageMark stands for an image, ascending.
                    // The same characters anywhere else are plain text.
  // The exact text that the calls of this message were sampled as, from ReplayStore; rendered
  // instead of `tool_calls`, so that the cached prefix of the earlier turn survives. Null: render
  // the calls.
  std::shared_ptr<const std::vector<Segment>> replay;
  // The same for the whole turn, from the first sampled byte to the end of the calls; used instead
  // of reasoning, content and calls where the prompt would open the turn in the same way.
  std::shared_ptr<const std::vector<Segment>> replay_turn;
  bool replay_thinking = false;  // replay_turn began inside a thinking block
};

struct ResponseFormat {
  enum class Kind : uint8_t { kText, kJsonObject, kJsonSchema, kRegex };
  Kind kind = Kind::kText;
  json::Value schema;   // kJsonSchema
  bool strict = false;  // kJsonSchema
  std::string regex;    // kRegex
};

struct Conversation {
  std::vector<Message> messages;
  bool thinking = true;
  std::vector<Tool> tools;
  ToolChoice tool_choice = ToolChoice::kAuto;
  std::optional<Effort> effort;
  ResponseFormat response_format;
};

// What the model's output must look like; a grammar engine enforces it. `after_thinking`: from the
// end of the thinking block on (never inside it), else from the first token.
struct OutputConstraint {
  enum class Kind : uint8_t { kJson, kRegex, kToolCalls, kToolCallsRequired, kCustomTool };
  Kind kind = Kind::kJson;
  // JSON Schema or "" for any JSON; the regex; the tools as a JSON array of
  // {"type":"function","function":{"name","description","parameters","strict"}}, with "format"
  // beside "function" where the string argument `input` of a custom tool follows a grammar.
  std::string schema;
  // Beside tools: what the answer must be when the model answers instead of calling. kJson or
  // kRegex; its schema or expression stands in answer_schema.
  std::optional<Kind> answer = {};
  std::string answer_schema = {};
  bool after_thinking = false;
  bool single_call = false;  // parallel_tool_calls false: exactly one call
  bool must_enforce =
      false;  // the client asked for a guarantee: refuse the request when nothing can enforce it
};

// Everything a request says about inference. Empty means that the client gave no value.
struct InferenceOptions {
  std::optional<uint32_t> max_tokens;
  std::optional<float> temperature, top_p;
  std::optional<float> frequency_penalty, presence_penalty;
  std::optional<uint64_t> seed;
  bool logprobs = false;
  std::optional<uint32_t> top_logprobs;  // 0..20
  std::optional<uint32_t> thinking_budget_tokens;
  std::optional<bool> disable_parallel_tool_use;
  uint32_t n = 1;
  std::optional<OutputConstraint> constraint;
};

enum class ThinkingStage : uint8_t {
  kOff,
  kStart,      // the prompt ends in <think>: leading newlines are dropped
  kReasoning,  // continuing a given reasoning prefix
  kContent,    // continuing a given answer prefix
};

struct ParsingOptions {
  bool parse_tool_calls = true;
  bool starts_in_tool_calls = false;  // the prompt ends in an opened calls block
  bool parse_json_output = false;
  bool single_call = false;  // ours: the output ends behind the first call (no parallel calls)
  ThinkingStage stage = ThinkingStage::kOff;
  std::vector<std::string> stop_sequences;
};

enum class Protocol : uint8_t { kChat, kResponses, kMessages };

// What the event generators need to know about the request beside the conversation.
struct ReplyContext {
  bool stream = false;
  bool include_usage = false;             // chat: stream_options.include_usage
  std::vector<std::string> custom_tools;  // chat, Responses: names answered as custom calls
  std::map<std::string, std::pair<std::string, std::string>>
      namespaces;            // Responses: model-side name → (namespace, name)
  bool tool_search = false;  // Responses: calls of "tool_search" are answered as tool_search_call
  // Responses: settings repeated in every response object, as JSON members that stand before
  // "model" (each followed by a comma), before "usage", and after it. Empty: no settings are
  // repeated (0.1).
  std::string echo_head, echo_settings, echo_tail;
  bool include_encrypted_reasoning = false;  // Responses: include[] asks for encrypted_content
  std::optional<std::string> previous_response_id;  // Responses
  bool store = true;                                // Responses
};

struct ConversationRequest {
  Protocol protocol = Protocol::kChat;
  std::string model;  // as the client named it
  Conversation conversation;
  InferenceOptions inference;
  ParsingOptions parsing;
  ReplyContext reply;
  std::vector<std::string> warnings;  // accepted but without effect; one line each
};

}  // namespace deepmint::recipe
