#include "cli/reply.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>
#include <optional>
#include <variant>

#include "core/check.h"
#include "core/mailbox.h"
#include "recipe/text_stream.h"

namespace deepmint::cli {
namespace {

using SteadyClock = std::chrono::steady_clock;

struct Prefill {
  int32_t done, total;
};
struct Token {
  TokenId id;
  TokenLogprobs logprobs;
  SteadyClock::time_point at;
};
using Event = std::variant<Prefill, Token, FinishEvent>;

// Filled on the engine's thread, emptied by the caller, who waits on fd().
class EventQueue : public EventSink {
 public:
  EventQueue() { DEEPMINT_CHECK(events_.fd() >= 0); }

  void on_prefill(int32_t done, int32_t total) override { events_.push(Prefill{done, total}); }
  void on_token(const TokenEvent& e) override {
    events_.push(Token{e.id, {e.logprob, {e.top.begin(), e.top.end()}}, SteadyClock::now()});
  }
  void on_finish(const FinishEvent& e) override { events_.push(e); }

  int fd() const { return events_.fd(); }
  void take(std::vector<Event>& out) { events_.take(out); }

 private:
  Mailbox<Event> events_;
};

// What the caller's thread knows of the reply so far.
class Collector {
 public:
  Collector(const Tokenizer* tokenizer, const ReplyOptions& options, std::vector<TokenId> stop_ids,
            bool want_logprobs)
      : options_(options),
        stop_ids_(std::move(stop_ids)),
        want_logprobs_(want_logprobs),
        start_(SteadyClock::now()) {
    if (tokenizer != nullptr) text_.emplace(*tokenizer, options.stop);
  }

  bool done() const { return done_; }
  bool stopped() const { return stopped_ || !error_; }  // what still comes is not part of the reply

  void handle(Event& event) {
    if (auto* prefill = std::get_if<Prefill>(&event)) {
      if (options_.on_prefill) options_.on_prefill(prefill->done, prefill->total);
    } else if (auto* token = std::get_if<Token>(&event)) {
      if (!stopped()) on_token(*token);
    } else {
      on_finish(std::get<FinishEvent>(event));
    }
  }

  Result<Reply> take(int signal) {
    if (!error_) return tl::unexpected(std::move(error_).error());
    if (reply_.finish.reason == FinishReason::kError && !stopped_)
      return tl::unexpected(reply_.finish.error.value_or(
          Error{ErrorCode::kInternal, "the engine gave no reason", "engine"}));
    reply_.signal = signal;
    reply_.finish_reason = stopped_ ? std::string_view("stop") : to_string(reply_.finish.reason);
    reply_.finish.usage.output_tokens = static_cast<int32_t>(reply_.ids.size());
    return std::move(reply_);
  }

 private:
  void on_token(Token& token) {
    if (reply_.ids.empty()) first_ = token.at;
    reply_.first_token_s = std::chrono::duration<double>(first_ - start_).count();
    reply_.decode_s = std::chrono::duration<double>(token.at - first_).count();
    reply_.ids.push_back(token.id);
    if (want_logprobs_) reply_.logprobs.push_back(std::move(token.logprobs));
    if (options_.on_id) error_ = options_.on_id(token.id);
    const bool is_end = std::find(stop_ids_.begin(), stop_ids_.end(), token.id) != stop_ids_.end();
    if (!text_ || is_end || !error_) return;
    const auto piece = text_->push(token.id);
    emit(piece.text);
    if (piece.stopped) {
      stopped_ = true;
      reply_.matched_stop = text_->matched_stop();
    }
  }

  void on_finish(const FinishEvent& event) {
    if (text_ && !stopped_ && error_) emit(text_->finish().text);
    reply_.finish = event;
    done_ = true;
  }

  void emit(std::string_view text) {
    if (text.empty()) return;
    reply_.text += text;
    if (options_.on_text) error_ = options_.on_text(text);
  }

  const ReplyOptions& options_;
  const std::vector<TokenId> stop_ids_;
  const bool want_logprobs_;
  const SteadyClock::time_point start_;
  SteadyClock::time_point first_;
  std::optional<recipe::TextStream> text_;
  Reply reply_;
  Status error_;
  bool stopped_ = false, done_ = false;
};

}  // namespace

Result<Reply> generate(Engine& engine, const Tokenizer* tokenizer, GenerationRequest request,
                       const ReplyOptions& options) {
  if (tokenizer == nullptr && !options.stop.empty())
    return fail(ErrorCode::kInvalidArgument,
                "stop strings need a tokenizer, and the model has none", "--stop");
  Collector collector(tokenizer, options, request.stop_ids, request.sampling.top_logprobs >= 0);
  auto queue = std::make_shared<EventQueue>();
  DEEPMINT_TRY(ticket, engine.submit(std::move(request), queue));
  int signal = 0;
  std::vector<Event> events;
  while (!collector.done()) {
    pollfd fds[2] = {{queue->fd(), POLLIN, 0},
                     {options.signals != nullptr ? options.signals->fd() : -1, POLLIN, 0}};
    if (::poll(fds, 2, -1) < 0 && errno != EINTR)
      return fail(ErrorCode::kInternal, "poll failed", "events");
    if (options.signals != nullptr) {
      while (const int next = options.signals->take()) {
        if (signal == 0) signal = next;
        ticket->cancel();
      }
    }
    queue->take(events);
    for (Event& event : events) collector.handle(event);
    if (collector.stopped()) ticket->cancel();
  }
  return collector.take(signal);
}

}  // namespace deepmint::cli
