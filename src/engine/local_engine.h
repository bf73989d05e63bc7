// The engine of this process: EngineCore on a thread of its own. Requests come in through a
// mailbox, everything else happens between or inside steps on that thread. Without requests the
// thread sleeps.
//
//   DEEPMINT_TRY(engine, LocalEngine::create(loaded, config));
//   auto ticket = engine->submit(request, sink);
//   DEEPMINT_TRY(bytes, engine->export_state((*ticket)->id()));            // goes on meanwhile
//   auto twin = other_engine->resume(request, bytes, other_sink);          // and from there
//                                                                          // a second time
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "deepmint/engine.h"
#include "engine/engine_core.h"

namespace deepmint {

class LocalEngine : public Engine {
 public:
  static Result<std::unique_ptr<LocalEngine>> create(const LoadedModel& loaded,
                                                     const EngineConfig& config,
                                                     const Clock& clock = Clock::steady(),
                                                     const EngineHooks& hooks = {});
  ~LocalEngine() override;  // cancels what is left

  Result<std::shared_ptr<Ticket>> submit(GenerationRequest request,
                                         std::shared_ptr<EventSink> sink) override;
  const EngineInfo& info() const override { return core_->info(); }
  EngineStats stats() const override;
  void drain(std::chrono::milliseconds deadline) override;  // not from a sink

  // Saved sequences. Any thread but the engine's own. Neither changes an answer.
  Result<std::vector<std::byte>> export_state(uint64_t ticket_id);
  Result<std::shared_ptr<Ticket>> resume(GenerationRequest request, std::vector<std::byte> state,
                                         std::shared_ptr<EventSink> sink);

 private:
  struct Recording;
  LocalEngine(std::unique_ptr<EngineCore> core, std::unique_ptr<Recording> recording,
              const Clock& clock);
  Result<std::shared_ptr<Ticket>> enqueue(Result<std::unique_ptr<Sequence>> sequence);
  void loop();

  std::unique_ptr<Recording> recording_;  // null: not asked for
  std::unique_ptr<EngineCore> core_;
  const Clock& clock_;
  mutable std::mutex mutex_;
  std::condition_variable wake_, changed_;
  std::vector<std::unique_ptr<Sequence>> mailbox_;
  std::vector<std::function<void(EngineCore&)>> tasks_;
  EngineStats stats_;  // as of the last step
  int64_t refused_ = 0;
  bool stopping_ = false, exit_ = false, idle_ = true;
  std::thread thread_;
};

}  // namespace deepmint
