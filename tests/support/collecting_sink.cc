#include "support/collecting_sink.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>

namespace deepmint::testing {

void CollectingSink::on_prefill(int32_t done, int32_t total) {
  const std::lock_guard lock(mutex_);
  late_ += finish_.has_value();
  prefill_.emplace_back(done, total);
}

void CollectingSink::on_prompt_logits(int32_t position, std::span<const float> logits) {
  const std::lock_guard lock(mutex_);
  late_ += finish_.has_value();
  prompt_logits_.emplace_back(position, std::vector<float>(logits.begin(), logits.end()));
}

void CollectingSink::on_token(const TokenEvent& event) {
  {
    const std::lock_guard lock(mutex_);
    late_ += finish_.has_value();
    tokens_.push_back({event.id,
                       event.choice,
                       event.position,
                       event.logprob,
                       {event.top.begin(), event.top.end()}});
    changed_.notify_all();
  }
  if (hook) hook(event);
}

void CollectingSink::on_finish(const FinishEvent& event) {
  const std::lock_guard lock(mutex_);
  ++finishes_;
  finish_ = event;
  changed_.notify_all();
}

template <class Ready>
void CollectingSink::wait_for(Ready ready) const {
  std::unique_lock lock(mutex_);
  if (changed_.wait_for(lock, std::chrono::minutes(1), ready)) return;
  std::fprintf(stderr, "CollectingSink: nothing came for a minute\n");
  std::abort();
}

FinishEvent CollectingSink::wait() const {
  wait_for([this] { return finish_.has_value(); });
  const std::lock_guard lock(mutex_);
  return *finish_;
}

void CollectingSink::wait_tokens(size_t count) const {
  wait_for([this, count] { return finish_.has_value() || tokens_.size() >= count; });
}

bool CollectingSink::finished() const { return finish().has_value(); }

int CollectingSink::finishes() const {
  const std::lock_guard lock(mutex_);
  return finishes_;
}

int CollectingSink::events_after_finish() const {
  const std::lock_guard lock(mutex_);
  return late_;
}

std::optional<FinishEvent> CollectingSink::finish() const {
  const std::lock_guard lock(mutex_);
  return finish_;
}

std::vector<CollectingSink::Token> CollectingSink::tokens() const {
  const std::lock_guard lock(mutex_);
  return tokens_;
}

std::vector<TokenId> CollectingSink::ids() const {
  const std::lock_guard lock(mutex_);
  std::vector<TokenId> ids;
  for (const Token& t : tokens_) ids.push_back(t.id);
  return ids;
}

std::vector<std::pair<int32_t, int32_t>> CollectingSink::prefill() const {
  const std::lock_guard lock(mutex_);
  return prefill_;
}

std::vector<std::pair<int32_t, std::vector<float>>> CollectingSink::prompt_logits() const {
  const std::lock_guard lock(mutex_);
  return prompt_logits_;
}

}  // namespace deepmint::testing
