// One POST /v1/chat/completions from body to last byte. A worker thread parses, tokenises and
// submits; the engine's thread leaves events in a bounded inbox; the io thread turns them into text
// and bytes. Each part holds this object for as long as it needs it, and the client's leaving
// cancels the tickets from the io thread.
//
//   ChatExchange::start(context, std::move(body), exchange, cors_origin, account);
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "deepmint/engine.h"
#include "server/api/chat_reply.h"
#include "server/api/chat_request.h"
#include "server/api/context.h"
#include "server/http/transport.h"

namespace deepmint {

class ChatExchange final : public http::Responder,
                           public std::enable_shared_from_this<ChatExchange> {
 public:
  // Io thread. Answers on the exchange, now or later. account: ApiKeys::account.
  static void start(const std::shared_ptr<ApiContext>& context, http::Body body,
                    const std::shared_ptr<http::Exchange>& exchange, std::string cors_origin,
                    std::string account);

  ChatExchange(std::shared_ptr<ApiContext> context, std::shared_ptr<http::Exchange> exchange,
               std::string cors_origin, std::string account);
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
  struct Choice {
    bool complete = false;  // needs no more tokens; the engine may not have heard of it yet
    bool finished = false;
  };

  // Worker thread.
  void prepare(http::Body body);
  Status admit(ChatRequest request);
  void fail_with(ApiError error);  // any thread

  // Io thread.
  void begin(http::Exchange& exchange);
  void take_token(const Event& event);
  void take_finish(const Finish& finish);
  void end(http::Exchange& exchange);
  void end_with_error(http::Exchange& exchange, const ApiError& error);
  void cancel_all();

  const std::shared_ptr<ApiContext> context_;
  const std::shared_ptr<http::Exchange> exchange_;
  const std::string cors_origin_;
  const std::string account_;
  const std::chrono::steady_clock::time_point arrived_ = std::chrono::steady_clock::now();

  // Written by the worker before `admitted_`, read by the io thread after it.
  bool stream_ = false;
  int32_t n_ = 1;
  std::unique_ptr<ChatReply> reply_;

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
  size_t unfinished_ = 0;
  // Of the choice that found least in the cache, among those that have ended: a prompt that is new
  // is run for one choice, and the others find it, which is no hit. bounded_replay: of any of them.
  std::optional<Usage> usage_;
  std::optional<ApiError> trouble_;
};

}  // namespace deepmint
