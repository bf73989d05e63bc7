// An Engine that plays events from a script instead of running a model, for tests of what stands
// above the engine.
//
//   ScriptedEngine engine([](const GenerationRequest& r) -> Result<ScriptedEngine::Play> {
//     return ScriptedEngine::Play{.tokens = {5, 6, 7}, .reason = FinishReason::kStop};
//   });
//   ... submit through the code under test ...
//   EXPECT_EQ(engine.requests().at(0).max_tokens, 100);
//
// It keeps an engine's promises: one thread calls all sinks; every tick gives each live request at
// most one token, in the order of submission; a cancelled request finishes within one tick;
// on_finish comes exactly once. With Mode::kManual nothing moves until tick(), so that a test can
// cut in at every event.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "deepmint/engine.h"

namespace deepmint::testing {

class ScriptedEngine : public Engine {
 public:
  // What one request gets.
  struct Play {
    std::vector<TokenId> tokens = {};
    FinishReason reason = FinishReason::kStop;
    std::optional<Error> error = {};  // with kError
    bool hang = false;                // after the tokens: no end until cancelled
    int32_t prefill_chunks = 0;       // on_prefill calls before the first token, one per tick
    std::vector<std::vector<TopLogprob>> top = {};  // per token; missing ones are empty
    std::vector<float> logprobs = {};   // per token; missing ones are 0 when asked for, else NaN
    std::chrono::microseconds pace{0};  // real time between two tokens (kFree only)
    Usage cache = {};                   // what the cache had: cached, replayed, miss
  };
  // An error is what submit() returns.
  using Script = std::function<Result<Play>(const GenerationRequest&)>;
  enum class Mode : uint8_t { kFree, kManual };

  explicit ScriptedEngine(Script script, Mode mode = Mode::kFree, EngineInfo info = default_info());
  ~ScriptedEngine() override;
  static EngineInfo default_info();

  Result<std::shared_ptr<Ticket>> submit(GenerationRequest request,
                                         std::shared_ptr<EventSink> sink) override;
  const EngineInfo& info() const override { return info_; }
  EngineStats stats() const override;
  void drain(std::chrono::milliseconds deadline) override;

  void tick(int count = 1);  // kManual: plays that many ticks and returns when they are done
  std::vector<GenerationRequest> requests() const;  // everything that was submitted, refused or not
  int live() const;                                 // submitted and not finished
  int cancelled() const;
  void wait_idle() const;  // until nothing is live; aborts the test program after a minute

 private:
  class LiveTicket;
  struct Live;
  void loop();
  void play_tick();
  bool play_one(Live& live);

  Script script_;
  const Mode mode_;
  const EngineInfo info_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::vector<std::shared_ptr<Live>> live_;
  std::vector<GenerationRequest> requests_;
  EngineStats stats_;
  uint64_t next_id_ = 1;
  int ticks_due_ = 0;
  bool stopping_ = false, exit_ = false;
  std::thread thread_;
};

}  // namespace deepmint::testing
