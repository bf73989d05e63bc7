#include "engine/local_engine.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <future>

#include "core/check.h"
#include "core/log.h"

namespace deepmint {
namespace {

class LocalTicket : public Ticket {
 public:
  explicit LocalTicket(std::shared_ptr<RequestControl> control) : control_(std::move(control)) {}
  void cancel() override { control_->cancelled.store(true, std::memory_order_relaxed); }
  uint64_t id() const override { return control_->id; }

 private:
  std::shared_ptr<RequestControl> control_;
};

}  // namespace

// The file of engine.record_schedule. A write that fails ends the recording, not the engine.
struct LocalEngine::Recording {
  static Result<std::unique_ptr<Recording>> open(const std::string& path) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    std::FILE* file = fd < 0 ? nullptr : ::fdopen(fd, "w");
    if (file == nullptr)
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("expected a file that can be written, found \"{}\": {}", path,
                              std::strerror(errno)),
                  "engine.record_schedule");
    return std::make_unique<Recording>(file);
  }
  explicit Recording(std::FILE* f) : file(f) {}
  ~Recording() {
    if (file != nullptr) std::fclose(file);
  }
  void write(std::string_view line) {
    if (file == nullptr) return;
    if (std::fwrite(line.data(), 1, line.size(), file) == line.size() && std::fflush(file) == 0)
      return;
    deepmint::log().error("engine.record_schedule: cannot write any more: {}",
                          std::strerror(errno));
    std::fclose(file);
    file = nullptr;
  }
  std::FILE* file;
  ScheduleLog log{[this](std::string_view line) { write(line); }};
};

std::string_view to_string(RequestClass request_class) {
  switch (request_class) {
    case RequestClass::kInteractive:
      return "interactive";
    case RequestClass::kAgent:
      return "agent";
    case RequestClass::kBatch:
      return "batch";
  }
  return "unknown";
}

std::string_view to_string(CacheMiss miss) {
  return kvcache::to_string(static_cast<kvcache::MissReason>(miss));
}
static_assert(static_cast<int>(CacheMiss::kSalt) == static_cast<int>(kvcache::MissReason::kSalt) &&
              static_cast<int>(CacheMiss::kNeverSeen) ==
                  static_cast<int>(kvcache::MissReason::kNeverSeen) &&
              static_cast<int>(CacheMiss::kEvicted) ==
                  static_cast<int>(kvcache::MissReason::kEvicted) &&
              kvcache::kMissReasons == 6);

std::string_view to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kDeadline:
      return "deadline";
    case FinishReason::kError:
      return "error";
  }
  return "unknown";
}

Result<std::unique_ptr<Engine>> make_engine(const LoadedModel& loaded, const EngineConfig& config,
                                            const Clock& clock) {
  DEEPMINT_TRY(engine, LocalEngine::create(loaded, config, clock));
  return engine;
}

Result<std::unique_ptr<LocalEngine>> LocalEngine::create(const LoadedModel& loaded,
                                                         const EngineConfig& config,
                                                         const Clock& clock,
                                                         const EngineHooks& hooks) {
  std::unique_ptr<Recording> recording;
  EngineHooks with_log = hooks;
  if (!config.record_schedule.empty()) {
    DEEPMINT_TRY(opened, Recording::open(config.record_schedule));
    recording = std::move(opened);
    with_log.log = &recording->log;
  }
  DEEPMINT_TRY(core, EngineCore::create(loaded, config, clock, with_log));
  return std::unique_ptr<LocalEngine>(
      new LocalEngine(std::move(core), std::move(recording), clock));
}

LocalEngine::LocalEngine(std::unique_ptr<EngineCore> core, std::unique_ptr<Recording> recording,
                         const Clock& clock)
    : recording_(std::move(recording)),
      core_(std::move(core)),
      clock_(clock),
      stats_(core_->stats()),
      thread_([this] { loop(); }) {}

LocalEngine::~LocalEngine() {
  drain(std::chrono::milliseconds(0));
  {
    const std::lock_guard lock(mutex_);
    exit_ = true;
    wake_.notify_one();
  }
  thread_.join();
}

Result<std::shared_ptr<Ticket>> LocalEngine::submit(GenerationRequest request,
                                                    std::shared_ptr<EventSink> sink) {
  return enqueue(core_->prepare(std::move(request), std::move(sink)));
}

Result<std::shared_ptr<Ticket>> LocalEngine::resume(GenerationRequest request,
                                                    std::vector<std::byte> state,
                                                    std::shared_ptr<EventSink> sink) {
  return enqueue(core_->prepare_saved(std::move(request), std::move(state), std::move(sink)));
}

Result<std::shared_ptr<Ticket>> LocalEngine::enqueue(Result<std::unique_ptr<Sequence>> sequence) {
  const std::lock_guard lock(mutex_);
  const auto refuse = [this](Error error) -> Result<std::shared_ptr<Ticket>> {
    ++refused_;
    return tl::unexpected(std::move(error));
  };
  if (!sequence) return refuse(std::move(sequence).error());
  if (stopping_)
    return refuse(
        {ErrorCode::kUnavailable, "the engine is stopping and takes no new requests", {}});
  if (auto place = core_->take_place(**sequence); !place) return refuse(std::move(place).error());
  auto ticket = std::make_shared<LocalTicket>((*sequence)->control);
  mailbox_.push_back(std::move(*sequence));
  wake_.notify_one();
  return ticket;
}

EngineStats LocalEngine::stats() const {
  const std::lock_guard lock(mutex_);
  EngineStats stats = stats_;
  stats.refused = refused_;
  return stats;
}

void LocalEngine::drain(std::chrono::milliseconds deadline) {
  DEEPMINT_CHECK(std::this_thread::get_id() != thread_.get_id());
  std::unique_lock lock(mutex_);
  stopping_ = true;
  const Clock::time_point when = clock_.now() + deadline;
  tasks_.push_back([when](EngineCore& core) { core.cancel_all_at(when); });
  idle_ = false;  // until the thread has looked again
  wake_.notify_one();
  changed_.wait(lock, [this] { return idle_; });
}

Result<std::vector<std::byte>> LocalEngine::export_state(uint64_t ticket_id) {
  DEEPMINT_CHECK(std::this_thread::get_id() != thread_.get_id());
  std::promise<Result<std::vector<std::byte>>> promise;
  auto answer = promise.get_future();
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back([&promise, ticket_id](EngineCore& core) {
      promise.set_value(core.export_state(ticket_id));
    });
    wake_.notify_one();
  }
  return answer.get();
}

void LocalEngine::loop() {
  std::vector<std::unique_ptr<Sequence>> arrived;
  std::vector<std::function<void(EngineCore&)>> tasks;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      stats_ = core_->stats();
      const auto work = [this] { return !mailbox_.empty() || !tasks_.empty() || !core_->idle(); };
      if (!work()) {
        idle_ = true;
        changed_.notify_all();
        wake_.wait(lock, [&] { return exit_ || work(); });
        if (!work()) return;  // exit_
      }
      idle_ = false;
      arrived.swap(mailbox_);
      tasks.swap(tasks_);
    }
    for (auto& sequence : arrived) core_->add(std::move(sequence));
    arrived.clear();
    for (auto& task : tasks) task(*core_);
    tasks.clear();
    if (!core_->idle()) core_->step();
  }
}

}  // namespace deepmint
