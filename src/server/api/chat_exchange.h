// One POST /v1/chat/completions from body to last byte. A worker thread parses, tokenises and
// submits; the engine's thread leaves events in a bounded inbox; the io thread turns them into text
// and bytes. Each part holds this object for as long as it needs it, and the client's leaving
// cancels the tickets from the io thread.
//
//   auto chat = ChatExchange::start(context, std::move(body), exchange, cors_origin);
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "deepmint/engine.h"
#include "recipe/text_stream.h"
#include "server/api/chat_output.h"
#include "server/api/chat_request.h"
#include "server/api/context.h"
#include "server/http/transport.h"

namespace deepmint {

class ChatExchange final : public http::Responder,
                           public std::enable_shared_from_this<ChatExchange> {
 public:
  // Io thread. Answers on the exchange, now or later.
  static void start(std::shared_ptr<ApiContext> context, http::Body body,
                    const std::shared_ptr<http::Exchange>& exchange, std::string cors_origin);

  ChatExchange(std::shared_ptr<ApiContext> context, std::shared_ptr<http::Exchange> exchange,
               std::string cors_origin);
  ~ChatExchange() override;

  // Io thread.
  void pump(http::Exchange& exchange) override;
  void keep_alive(http::Exchange& exchange) override;
  void shutting_down(http::Exchange& exchange) override;
  void client_gone() override;

 private:
  class Sink;
  struct Event {  // a token of one choice
    int32_t choice;
    TokenId id;
    float logprob;
    std::vector<TopLogprob> top;
  };
  struct Finish {
    int32_t choice;
    FinishEvent event;
  };
  struct Choice;
  class ReplyReader;

  // Worker thread.
  void prepare(http::Body body);
  Status admit(ChatRequest request);
  Result<std::vector<TokenId>> encode_prompt(const ChatRequest& request);
  void fail_with(ApiError error);  // any thread

  // Io thread.
  void begin(http::Exchange& exchange);
  void take_token(const Event& event);
  void take_finish(const Finish& finish);
  void put_text(Choice& choice, int32_t index, std::string_view text);
  void release(Choice& choice, int32_t index, std::string_view text, bool at_end);
  void end(http::Exchange& exchange);
  void end_with_error(http::Exchange& exchange, const ApiError& error);
  void cancel_all();
  bool ends_reply(TokenId id) const;

  const std::shared_ptr<ApiContext> context_;
  const std::shared_ptr<http::Exchange> exchange_;
  const std::string cors_origin_;

  // Written by the worker before `admitted_`, read by the io thread after it.
  ChatRequest request_;  // messages are dropped once they are tokens
  int64_t prompt_tokens_ = 0;
  std::string completion_id_;
  std::optional<ChatOutput> output_;
  bool has_tools_ = false, starts_in_thinking_ = false, reads_reply_ = false;
  std::vector<TokenId> markers_;  // special tokens that the reader of the reply looks for

  std::mutex mutex_;  // guards what follows
  std::vector<Event> inbox_;
  std::vector<Finish> finishes_;
  std::vector<std::shared_ptr<Ticket>> tickets_;
  std::optional<ApiError> failure_;
  bool admitted_ = false, gone_ = false, overflowed_ = false;

  // Io thread only.
  std::vector<Event> now_;
  std::vector<Finish> finished_now_;
  std::vector<Choice> choices_;
  std::string out_;
  bool begun_ = false;
  ChatUsage usage_;
  size_t unfinished_ = 0;
  std::optional<ApiError> trouble_;
};

}  // namespace deepmint
