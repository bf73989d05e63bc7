// JSON and SSE text of Chat Completions answers, appended to a caller's buffer. Pure formatting:
// what was said is decided elsewhere. One object per request keeps the part that every chunk
// repeats.
//
//   ChatOutput out({.id = "chatcmpl-1", .model = "m", .created = 1700000000, ...});
//   out.role_chunk(sse, 0);
//   out.text_chunk(sse, 0, "Hello", {});
//   out.finish_chunk(sse, 0, "stop");
//   sse += ChatOutput::kDone;
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "deepmint/engine.h"
#include "server/errors.h"

namespace deepmint {

class Tokenizer;

struct ChatIdentity {
  std::string id, model, fingerprint;
  int64_t created = 0;         // unix seconds
  uint64_t seed = 0;           // the seed in force
  bool include_usage = false;  // chunks before the last carry "usage":null
  int64_t prompt_tokens = 0;
};

struct ChatUsage {
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  std::string details = {};  // prompt_details()
};

// Members of usage.prompt_tokens_details beyond OpenAI's, each with a comma in front: how many of
// the cached tokens were run again, why no more was cached, and what was approximated, if anything.
std::string prompt_details(const Usage& usage);

struct FinishedChoice {
  std::string_view content;
  std::string_view reasoning = {};   // reasoning_content; empty: none
  std::string_view tool_calls = {};  // entries joined by commas; empty: none
  std::string_view logprobs;         // entries joined by commas; null data = not asked for
  std::string_view finish_reason;
};

struct CalledTool {
  int32_t index = 0;
  std::string_view id, name, arguments;
};

class ChatOutput {
 public:
  static constexpr std::string_view kDone = "data: [DONE]\n\n";
  static constexpr std::string_view kKeepAlive = ": keep-alive\n\n";

  explicit ChatOutput(const ChatIdentity& identity);

  // SSE events, one each. `logprobs` holds entries joined by commas; null data (a default
  // string_view) gives null.
  void role_chunk(std::string& out, int32_t choice) const;
  void text_chunk(std::string& out, int32_t choice, std::string_view text,
                  std::string_view logprobs) const;
  void reasoning_chunk(std::string& out, int32_t choice, std::string_view text) const;
  void tool_chunk(std::string& out, int32_t choice, const CalledTool& call) const;
  void finish_chunk(std::string& out, int32_t choice, std::string_view finish_reason) const;
  void usage_chunk(std::string& out, const ChatUsage& usage) const;
  static void error_event(std::string& out, const ApiError& error);

  // The whole answer.
  std::string completion(std::span<const FinishedChoice> choices, const ChatUsage& usage) const;

  // One entry of tool_calls; `with_index` in a stream.
  static void tool_entry(std::string& out, const CalledTool& call, bool with_index);

  // One entry of logprobs.content: {"token":…,"logprob":…,"bytes":[…],"top_logprobs":[…]}.
  static void logprob_entry(std::string& out, const Tokenizer& tokenizer, TokenId id, float logprob,
                            std::span<const TopLogprob> top);

 private:
  void open_chunk(std::string& out, int32_t choice) const;
  void close_delta(std::string& out) const;
  void close_chunk(std::string& out) const;
  std::string chunk_head_;  // "data: {…,"choices":[{"index":"
  std::string whole_head_;
  std::string_view chunk_tail_;
  std::string seed_;  // "\"seed\":7"
};

}  // namespace deepmint
