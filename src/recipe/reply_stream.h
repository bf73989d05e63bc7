// Model output → the events of one protocol, and the complete response.
//
//   ReplyStream reply(request, {.id = "chatcmpl-1", .model = "flash", .created = now});
//   reply.ready({.prompt_tokens = 12}, "fp-1");
//   for (each step) {
//     reply.push_tokens(ids);
//     send(reply.take_sse());
//     if (reply.wants_stop()) break;
//   }
//   reply.finish(BackendFinish::kStop);
//   send(reply.take_sse());                // streaming; ends with data: [DONE] for chat
//   std::string body = reply.response();   // not streaming
//
// One stream is one choice of one request; use it from one thread. Events come as soon as their
// text is decided.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "deepmint/types.h"
#include "recipe/conversation.h"
#include "recipe/output_parser.h"
#include "recipe/token_codec.h"
#include "recipe/turn_store.h"

namespace deepmint::recipe {

struct ReplyMeta {
  std::string id = {};
  std::string model = {};  // as answered to the client
  int64_t created = 0;     // Unix seconds
  int64_t completed = 0;   // Responses completed_at; 0: the same as created
  Compat compat = Compat::kOurs;
  int choice = 0;                     // chat: index of this choice (n > 1)
  bool last_choice = true;            // chat: this stream sends the usage chunk
  std::optional<uint64_t> seed = {};  // chat, ours: told to the client, who can repeat the reply
  std::shared_ptr<const TokenCodec> tokens = {};  // needed for push_tokens
  const SealedReasoning* sealer =
      nullptr;  // Responses: fills encrypted_content when the request includes it
  std::string tenant = {};
};

struct PromptUsage {
  uint64_t prompt_tokens = 0;
  uint64_t cached_tokens = 0;
  uint64_t cache_created_tokens = 0;  // Messages cache_creation_input_tokens
  // Chat, ours: more members of prompt_tokens_details as JSON, each with a comma in front.
  std::string details = {};
};

struct TokenLogprob {
  float logprob = 0;
  std::vector<std::pair<TokenId, float>> top = {};
};

// Events of one or more pushes in one buffer; views are valid until the next change.
class EventBuffer {
 public:
  struct Event {
    std::string_view name;  // "message_start"; empty for chat
    size_t begin = 0, end = 0;
  };
  std::string& open(std::string_view name) {
    events_.push_back({name, bytes_.size(), 0});
    return bytes_;
  }
  void close() { events_.back().end = bytes_.size(); }
  size_t size() const { return events_.size(); }
  std::string_view name(size_t i) const { return events_[i].name; }
  std::string_view data(size_t i) const {
    return std::string_view(bytes_).substr(events_[i].begin, events_[i].end - events_[i].begin);
  }
  void append_sse(std::string& out) const;  // "event: NAME\ndata: JSON\n\n" (chat: no event line)
  void clear() {
    bytes_.clear();
    events_.clear();
  }

 private:
  std::string bytes_;
  std::vector<Event> events_;
};

// A tool call as it was answered, for ReplayStore and for callers that run tools themselves.
struct FinishedCall {
  std::string id, name, arguments;
  bool complete = true;
};

class Generator;

class ReplyStream {
 public:
  ReplyStream(const ConversationRequest& request, ReplyMeta meta);
  ~ReplyStream();
  ReplyStream(const ReplyStream&) = delete;
  ReplyStream& operator=(const ReplyStream&) = delete;

  void ready(const PromptUsage& usage, std::string_view fingerprint);  // once, before any output
  void push_text(std::string_view text,
                 uint64_t n_tokens = 1);  // cut anywhere; counted as n_tokens
  void push_tokens(std::span<const TokenId> ids, std::span<const TokenLogprob> logprobs = {});
  void finish(std::optional<BackendFinish> reason);  // the end; later calls do nothing
  // Ends the stream with an error event (chat: a data line with the error, Responses:
  // response.failed, Messages: error).
  void fail(std::string_view type, std::string_view message);

  bool wants_stop() const;  // generation should end: a stop string or the end of the calls
  bool finished() const { return finished_; }
  FinishReason finish_reason() const { return reason_; }

  EventBuffer& events();         // clear() it after sending
  std::string take_sse();        // all events so far as SSE text, and clears them
  std::string response() const;  // the whole response object; after finish()
  std::string choice() const;    // chat: the choice object of response()

  // Before finish(), when the engine says only at the end what it found in its caches.
  void set_prompt_usage(const PromptUsage& usage) { usage_ = usage; }
  // Chat, n > 1: tokens of the choices that ended before this one; before finish() of the last.
  void add_usage_of(const ReplyStream& other);
  // Chat, n > 1, in place of ReplyMeta::last_choice where the order of the ends is not known
  // before: this choice ends last. Before its finish().
  void make_last_choice();

  uint64_t completion_tokens() const { return completion_tokens_; }
  uint64_t reasoning_tokens() const { return reasoning_tokens_; }
  const std::string& reasoning_text() const { return reasoning_text_; }
  const std::vector<FinishedCall>& calls() const { return calls_; }
  // Puts the sampled markup of the calls, with the reasoning, into the store under their call ids
  // (docs/recipe.md, replay).
  void remember_calls(TurnStore& store) const;

 private:
  friend std::string merge_chat_choices(std::span<const std::unique_ptr<ReplyStream>> choices);
  class Sink;
  struct Piece {         // a token that is not yet attributed
    uint64_t begin = 0;  // offset of its first byte in everything pushed
    TokenId id = 0;
    size_t logprob = 0;  // index in logprobs_, or npos
  };
  struct Shared;  // what the generator points into
  void ensure_started();
  void record(std::string_view bytes, bool control);
  void push_bytes(std::string_view bytes, bool control);
  void flush_utf8();
  void check_stop();
  std::string_view attribute(uint64_t begin, uint64_t end, bool reasoning);

  std::unique_ptr<Shared> shared_;
  Protocol protocol_;
  std::unique_ptr<Generator> generator_;
  std::unique_ptr<Sink> sink_;
  std::unique_ptr<OutputParser> parser_;
  PromptUsage usage_;
  std::string fingerprint_;
  bool started_ = false, finished_ = false, tracks_tokens_ = false, done_sent_ = false;
  const bool remembers_, thinking_;
  const bool begins_thinking_, whole_turn_;  // the prompt ended in <think>; nothing was prefilled
  const bool wants_logprobs_;
  FinishReason reason_ = FinishReason::kEndOfStream;
  uint64_t completion_tokens_ = 0, reasoning_tokens_ = 0, pushed_bytes_ = 0;
  uint64_t others_completion_ = 0, others_reasoning_ = 0;  // add_usage_of()
  std::string pending_utf8_;  // bytes of a character whose rest is in the next token
  std::vector<Piece> pieces_;
  std::vector<TokenLogprob> logprobs_;
  std::string logprob_text_, reasoning_text_, content_text_;
  std::vector<FinishedCall> calls_;
  std::vector<Segment> sampled_;  // everything pushed, when tools are declared
};

// Chat responses of n choices, in order, as one response object whose usage is that of all.
std::string merge_chat_choices(std::span<const std::unique_ptr<ReplyStream>> choices);

}  // namespace deepmint::recipe
