#include "support/scripted_engine.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <limits>

namespace deepmint::testing {

struct ScriptedEngine::Live {
  uint64_t id = 0;
  GenerationRequest request;
  std::shared_ptr<EventSink> sink;
  Play play;
  std::atomic<bool> cancelled{false};
  size_t next_token = 0;
  int32_t next_chunk = 0;
  std::chrono::steady_clock::time_point not_before{};
};

class ScriptedEngine::LiveTicket : public Ticket {
 public:
  explicit LiveTicket(std::shared_ptr<Live> live) : live_(std::move(live)) {}
  void cancel() override { live_->cancelled = true; }
  uint64_t id() const override { return live_->id; }

 private:
  std::shared_ptr<Live> live_;
};

EngineInfo ScriptedEngine::default_info() {
  EngineInfo info;
  info.model_name = "scripted";
  info.architecture = "scripted";
  info.vocab_size = 1000;
  info.context_tokens = 4096;
  info.max_running = 64;
  info.isa = "x86-64";
  info.threads = 1;
  return info;
}

ScriptedEngine::ScriptedEngine(Script script, Mode mode, EngineInfo info)
    : script_(std::move(script)),
      mode_(mode),
      info_(std::move(info)),
      thread_([this] { loop(); }) {}

ScriptedEngine::~ScriptedEngine() {
  {
    const std::lock_guard lock(mutex_);
    exit_ = stopping_ = true;
    for (const auto& live : live_) live->cancelled = true;
    changed_.notify_all();
  }
  thread_.join();
}

Result<std::shared_ptr<Ticket>> ScriptedEngine::submit(GenerationRequest request,
                                                       std::shared_ptr<EventSink> sink) {
  auto play = script_(request);
  const std::lock_guard lock(mutex_);
  requests_.push_back(request);
  if (stopping_) {
    ++stats_.refused;
    return fail(ErrorCode::kUnavailable, "the engine is stopping");
  }
  if (!play) {
    ++stats_.refused;
    return tl::unexpected(std::move(play).error());
  }
  auto live = std::make_shared<Live>();
  live->id = next_id_++;
  live->request = std::move(request);
  live->sink = std::move(sink);
  live->play = std::move(*play);
  live_.push_back(live);
  stats_.running = static_cast<int64_t>(live_.size());
  changed_.notify_all();
  return std::make_shared<LiveTicket>(std::move(live));
}

EngineStats ScriptedEngine::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void ScriptedEngine::drain(std::chrono::milliseconds deadline) {
  std::unique_lock lock(mutex_);
  stopping_ = true;
  if (changed_.wait_for(lock, deadline, [this] { return live_.empty(); })) return;
  for (const auto& live : live_) live->cancelled = true;
  if (mode_ == Mode::kManual) ++ticks_due_;
  changed_.notify_all();
  changed_.wait(lock, [this] { return live_.empty(); });
}

void ScriptedEngine::tick(int count) {
  std::unique_lock lock(mutex_);
  ticks_due_ += count;
  changed_.notify_all();
  changed_.wait(lock, [this] { return ticks_due_ == 0; });
}

std::vector<GenerationRequest> ScriptedEngine::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

int ScriptedEngine::live() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(live_.size());
}

int ScriptedEngine::cancelled() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(stats_.cancelled);
}

void ScriptedEngine::wait_idle() const {
  std::unique_lock lock(mutex_);
  if (changed_.wait_for(lock, std::chrono::minutes(1), [this] { return live_.empty(); })) return;
  std::fprintf(stderr, "ScriptedEngine: still busy after a minute\n");
  std::abort();
}

void ScriptedEngine::loop() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] {
        return exit_ || (mode_ == Mode::kFree ? !live_.empty() : ticks_due_ > 0);
      });
      if (exit_ && live_.empty()) return;
    }
    play_tick();
    if (mode_ == Mode::kManual) {
      const std::lock_guard lock(mutex_);
      if (ticks_due_ > 0) --ticks_due_;
      changed_.notify_all();
    }
  }
}

void ScriptedEngine::play_tick() {
  std::vector<std::shared_ptr<Live>> now;
  {
    const std::lock_guard lock(mutex_);
    now = live_;
  }
  auto wake = std::chrono::steady_clock::time_point::max();
  bool moved = false;
  for (const auto& live : now) {
    if (!live->cancelled && live->not_before > std::chrono::steady_clock::now()) {
      wake = std::min(wake, live->not_before);
      continue;
    }
    moved = true;
    if (!play_one(*live)) continue;
    const std::lock_guard lock(mutex_);
    std::erase(live_, live);
    stats_.running = static_cast<int64_t>(live_.size());
    changed_.notify_all();
  }
  const bool all_hang = std::all_of(now.begin(), now.end(), [](const auto& live) {
    return live->play.hang && live->next_token == live->play.tokens.size() && !live->cancelled;
  });
  if (mode_ == Mode::kManual || (moved && !all_hang)) return;
  // Nothing to say now: look again when the next token is due, or soon, for a cancelled ticket.
  std::unique_lock lock(mutex_);
  const auto soon = std::chrono::steady_clock::now() + std::chrono::milliseconds(1);
  changed_.wait_until(lock, std::min(wake, soon), [this] { return exit_; });
}

// Gives one request its next event. True: it has finished.
bool ScriptedEngine::play_one(Live& live) {
  const Play& play = live.play;
  const auto finish = [&](FinishReason reason) {
    FinishEvent event;
    event.reason = reason;
    event.choice = live.request.choice;
    event.usage = play.cache;
    event.usage.prompt_tokens = static_cast<int32_t>(live.request.tokens.size());
    event.usage.output_tokens = static_cast<int32_t>(live.next_token);
    event.seed = live.request.sampling.seed.value_or(0x5eed);
    if (reason == FinishReason::kError)
      event.error = play.error.value_or(Error{ErrorCode::kInternal, "scripted error", {}});
    {
      const std::lock_guard lock(mutex_);
      ++(reason == FinishReason::kCancelled ? stats_.cancelled
         : reason == FinishReason::kError   ? stats_.failed
                                            : stats_.finished);
      stats_.output_tokens += event.usage.output_tokens;
    }
    live.sink->on_finish(event);
    return true;
  };
  if (live.cancelled) return finish(FinishReason::kCancelled);
  if (live.next_chunk < play.prefill_chunks) {
    const auto total = static_cast<int32_t>(live.request.tokens.size());
    ++live.next_chunk;
    live.sink->on_prefill(total * live.next_chunk / play.prefill_chunks, total);
    return false;
  }
  const auto limit = [&] {
    return live.request.max_tokens >= 0 &&
           live.next_token >= static_cast<size_t>(live.request.max_tokens);
  };
  if (limit()) return finish(FinishReason::kLength);
  if (live.next_token == play.tokens.size()) return play.hang ? false : finish(play.reason);
  const size_t index = live.next_token++;
  const bool wanted = live.request.sampling.top_logprobs >= 0;
  TokenEvent event{};
  event.id = play.tokens[index];
  event.choice = live.request.choice;
  event.position = static_cast<int32_t>(live.request.tokens.size() + index);
  event.logprob = !wanted                        ? std::numeric_limits<float>::quiet_NaN()
                  : index < play.logprobs.size() ? play.logprobs[index]
                                                 : 0.0f;
  if (index < play.top.size()) event.top = play.top[index];
  live.not_before = std::chrono::steady_clock::now() + play.pace;
  live.sink->on_token(event);
  // Like an engine: the end comes in the same step as the last token.
  if (live.next_token == play.tokens.size() && !play.hang) return finish(play.reason);
  return limit() ? finish(FinishReason::kLength) : false;
}

}  // namespace deepmint::testing
