// What the scheduler itself costs: planning a step and delivering its events, with a model that
// computes nothing. Targets on one core: plan and apply together <= 150 us at 256 running rows
// (spec/serving.md 2.5), <= 1 ms at 4,096.
#include <benchmark/benchmark.h>

#include <chrono>

#include "engine/engine_core.h"

namespace deepmint {
namespace {

class NullModel : public Model {
 public:
  NullModel() {
    info_.architecture = info_.name = "null";
    info_.vocab_size = 64;
    info_.context_tokens = 1 << 20;
  }
  const ModelInfo& info() const override { return info_; }
  std::span<const StatePart> state_parts() const override { return parts_; }
  Status reserve(size_t, size_t) override { return {}; }
  Status forward(const StepInput&, std::span<float> logits, Tap*) override {
    std::fill(logits.begin(), logits.end(), 0.0f);
    return {};
  }

 private:
  ModelInfo info_;
  std::vector<StatePart> parts_ = {{"kv", StatePart::Family::kGlobal, 64}};
};

class CountingSink : public EventSink {
 public:
  void on_token(const TokenEvent& event) override { sum += event.id; }
  void on_finish(const FinishEvent&) override {}
  int64_t sum = 0;
};

// Time outside forward and sampling.
class Watch : public StepObserver {
 public:
  using Clock = std::chrono::steady_clock;
  void at(StepPoint point, const StepPlan*) override {
    const auto now = Clock::now();
    if (point == StepPoint::kStart || point == StepPoint::kSampled) since_ = now;
    if (point == StepPoint::kPlanned || point == StepPoint::kApplied) own += now - since_;
  }
  Clock::duration own{};

 private:
  Clock::time_point since_;
};

void plan_and_apply(benchmark::State& state) {
  const auto rows = static_cast<int32_t>(state.range(0));
  Watch watch;
  LoadedModel loaded;
  loaded.model = std::make_shared<NullModel>();
  EngineConfig config;
  config.max_running = rows;
  config.step_tokens = std::max(rows, 512);
  config.context_tokens = 1 << 13;
  config.kv_bytes = int64_t{rows} * (1 << 7) * 64;
  config.park_bytes = 0;
  config.max_waiting = 4096;
  auto core = std::move(*EngineCore::create(loaded, config, Clock::steady(), {.observer = &watch}));
  for (int32_t i = 0; i < rows; ++i) {
    GenerationRequest r;
    r.tokens = {1};
    r.sampling.temperature = 0;
    r.sampling.seed = 1;
    r.stop_ids = {63, 62};
    r.sampling.banned_ids = {63, 62};
    auto sequence = std::move(*core->prepare(r, std::make_shared<CountingSink>()));
    if (!core->take_place(*sequence)) state.SkipWithError("queue full");
    core->add(std::move(sequence));
  }
  for (int i = 0; i < 10; ++i) core->step();
  for (auto _ : state) {
    watch.own = {};
    core->step();
    state.SetIterationTime(std::chrono::duration<double>(watch.own).count());
  }
  state.counters["rows"] = static_cast<double>(core->stats().running);
}
BENCHMARK(plan_and_apply)
    ->Arg(1)
    ->Arg(16)
    ->Arg(64)
    ->Arg(256)
    ->Arg(4096)
    ->Iterations(2000)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace deepmint

BENCHMARK_MAIN();
