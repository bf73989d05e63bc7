// An EventSink that keeps everything and lets a test wait for the end.
//
//   auto sink = std::make_shared<CollectingSink>();
//   auto ticket = engine->submit(request, sink);
//   const FinishEvent end = sink->wait();
//   EXPECT_EQ(sink->ids(), expected);
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "deepmint/engine.h"

namespace deepmint::testing {

class CollectingSink : public EventSink {
 public:
  struct Token {
    TokenId id;
    int32_t choice, position;
    float logprob;
    std::vector<TopLogprob> top;
  };

  // Called inside on_token after the event is kept; may cancel a ticket or throw. Set before
  // submitting.
  std::function<void(const TokenEvent&)> hook;

  void on_prefill(int32_t done, int32_t total) override;
  void on_prompt_logits(int32_t position, std::span<const float> logits) override;
  void on_token(const TokenEvent& event) override;
  void on_finish(const FinishEvent& event) override;

  FinishEvent wait()
      const;  // blocks until on_finish; gives up after a minute by aborting the test program
  void wait_tokens(size_t count) const;  // blocks until that many tokens came, or the end
  bool finished() const;
  int finishes() const;  // how often on_finish came
  int events_after_finish() const;
  std::optional<FinishEvent> finish() const;
  std::vector<Token> tokens() const;
  std::vector<TokenId> ids() const;
  std::vector<std::pair<int32_t, int32_t>> prefill() const;                   // (done, total)
  std::vector<std::pair<int32_t, std::vector<float>>> prompt_logits() const;  // (position, logits)

 private:
  template <class Ready>
  void wait_for(Ready ready) const;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::vector<Token> tokens_;
  std::vector<std::pair<int32_t, int32_t>> prefill_;
  std::vector<std::pair<int32_t, std::vector<float>>> prompt_logits_;
  std::optional<FinishEvent> finish_;
  int finishes_ = 0, late_ = 0;
};

}  // namespace deepmint::testing
