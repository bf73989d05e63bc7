// Where a step's time goes with a real model: planning, the forward step, sampling, applying.
//
//   engine_phases models/SmolLM2-135M-Instruct.Q4_1.gguf [rows = 16] [steps = 200] [threads = all
//   cores]
//
// Prints medians over the steps, for greedy, temperature 1, and temperature 1 with top-p and
// log-probabilities. Limits: sampling 5 % of the step at temperature 1; everything of the
// scheduler's own 2 %.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <vector>

#include "engine/engine_core.h"
#include "engine/load.h"

namespace deepmint {
namespace {

class SilentSink : public EventSink {
 public:
  void on_token(const TokenEvent&) override {}
  void on_finish(const FinishEvent&) override {}
};

class Watch : public StepObserver {
 public:
  using Clock = std::chrono::steady_clock;
  std::array<std::vector<double>, 4> us;  // plan, forward, sample, apply
  void at(StepPoint point, const StepPlan*) override {
    const auto now = Clock::now();
    if (point != StepPoint::kStart)
      us[static_cast<size_t>(point) - 1].push_back(
          std::chrono::duration<double, std::micro>(now - last_).count());
    last_ = now;
  }

 private:
  Clock::time_point last_;
};

double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + static_cast<ptrdiff_t>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

int run(const char* path, int32_t rows, int steps, int32_t threads) {
  auto loaded = load_model(path, {.threads = threads});
  if (!loaded) {
    fmt::print(stderr, "engine_phases: {}\n", loaded.error().str());
    return 2;
  }
  fmt::print(
      "{} rows, {} steps, {} threads; medians in us\n{:28}{:>8}{:>10}{:>9}{:>8}{:>10}{:>12}\n",
      rows, steps, loaded->threads, "", "plan", "forward", "sample", "apply", "sampling",
      "scheduler");
  for (const char* kind : {"greedy", "temperature 1", "top-p 0.95, log-probs"}) {
    Watch watch;
    EngineConfig config;
    config.max_running = rows;
    config.context_tokens = std::min(2048, loaded->model->info().context_tokens);
    auto core = EngineCore::create(*loaded, config, Clock::steady(), {.observer = &watch});
    if (!core) {
      fmt::print(stderr, "engine_phases: {}\n", core.error().str());
      return 2;
    }
    for (int32_t i = 0; i < rows; ++i) {
      GenerationRequest r;
      for (int32_t p = 0; p < 32; ++p) r.tokens.push_back((p * 37 + i * 101) % 1000 + 300);
      r.sampling.seed = static_cast<uint64_t>(i);
      r.sampling.temperature = std::string_view(kind) == "greedy" ? 0.0f : 1.0f;
      if (kind[0] == 't' && kind[1] == 'o') {
        r.sampling.top_p = 0.95;
        r.sampling.top_logprobs = 5;
      }
      auto sequence = std::move(*(*core)->prepare(r, std::make_shared<SilentSink>()));
      if (!(*core)->take_place(*sequence)) return 1;
      (*core)->add(std::move(sequence));
    }
    for (int i = 0; i < 20; ++i) (*core)->step();
    for (auto& phase : watch.us) phase.clear();
    for (int i = 0; i < steps; ++i) (*core)->step();
    const double plan = median(watch.us[0]), forward = median(watch.us[1]),
                 sample = median(watch.us[2]), apply = median(watch.us[3]);
    const double total = plan + forward + sample + apply;
    fmt::print("{:28}{:8.1f}{:10.1f}{:9.1f}{:8.1f}{:9.1f}%{:11.2f}%\n", kind, plan, forward, sample,
               apply, 100 * sample / total, 100 * (plan + apply) / total);
  }
  return 0;
}

}  // namespace
}  // namespace deepmint

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: engine_phases MODEL [rows] [steps] [threads]\n");
    return 2;
  }
  const auto number = [&](int at, int fallback) {
    return argc > at ? std::atoi(argv[at]) : fallback;
  };
  return deepmint::run(argv[1], std::clamp(number(2, 16), 1, 512),
                       std::clamp(number(3, 200), 1, 1500), std::max(0, number(4, 0)));
}
