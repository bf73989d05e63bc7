// Where a step's time goes with a real model: planning, the forward step, sampling, applying.
//
//   engine_phases models/SmolLM2-135M-Instruct.Q4_1.gguf [rows = 16] [steps = 200] [threads = all
//   cores]
//
// Then the same requests through the engine's own thread, with steps planned one after another and
// one ahead, in turns: how long the model's threads have nothing to do between two steps.
//
// Prints medians over the steps, for greedy, temperature 1, and temperature 1 with top-p and
// log-probabilities. Limits: sampling 5 % of the step at temperature 1; everything of the
// scheduler's own 2 %.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <future>
#include <vector>

#include "engine/engine_core.h"
#include "engine/load.h"
#include "engine/local_engine.h"

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

GenerationRequest request_of(int32_t i) {
  GenerationRequest r;
  for (int32_t p = 0; p < 32; ++p) r.tokens.push_back((p * 37 + i * 101) % 1000 + 300);
  r.sampling.seed = static_cast<uint64_t>(i);
  return r;
}

class EndSink : public EventSink {
 public:
  void on_token(const TokenEvent&) override {}
  void on_finish(const FinishEvent&) override { ended.set_value(); }
  std::promise<void> ended;
};

// Three rounds of each kind, alternating; the median of each.
int idle_gaps(const LoadedModel& loaded, int32_t rows, int steps) {
  constexpr int kRounds = 3;
  struct Round {
    double gap_us, share, tokens_per_s;
  };
  std::array<std::vector<Round>, 2> rounds;
  for (int round = 0; round < 2 * kRounds; ++round) {
    const bool ahead = round % 2 == 1;
    EngineConfig config;
    config.max_running = rows;
    config.context_tokens = std::min(2048, loaded.model->info().context_tokens);
    config.plan_ahead = ahead;
    config.prefix_cache = false;
    auto engine = LocalEngine::create(loaded, config);
    if (!engine) {
      fmt::print(stderr, "engine_phases: {}\n", engine.error().str());
      return 2;
    }
    std::vector<std::shared_ptr<EndSink>> sinks;
    const auto begin = std::chrono::steady_clock::now();
    for (int32_t i = 0; i < rows; ++i) {
      GenerationRequest r = request_of(i);
      r.max_tokens = steps;
      r.sampling.top_p = 0.95;
      sinks.push_back(std::make_shared<EndSink>());
      if (!(*engine)->submit(std::move(r), sinks.back())) return 1;
    }
    for (const auto& sink : sinks) sink->ended.get_future().wait();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    (*engine)->drain(std::chrono::seconds(10));
    const EngineStats s = (*engine)->stats();
    const auto gap = static_cast<double>(s.step_gap_ns), work = static_cast<double>(s.step_ns);
    rounds[ahead].push_back({gap / 1000 / static_cast<double>(s.steps), 100 * gap / (gap + work),
                             static_cast<double>(s.output_tokens) / took.count()});
  }
  fmt::print("\n{:28}{:>14}{:>10}{:>12}\n", "idle gap, median of 3", "us per step", "share",
             "tokens/s");
  for (const bool ahead : {false, true}) {
    const auto of = [&](double Round::* value) {
      std::vector<double> all;
      for (const Round& r : rounds[ahead]) all.push_back(r.*value);
      return median(std::move(all));
    };
    fmt::print("{:28}{:14.1f}{:9.2f}%{:12.1f}\n", ahead ? "planned one ahead" : "one after another",
               of(&Round::gap_us), of(&Round::share), of(&Round::tokens_per_s));
  }
  return 0;
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
      GenerationRequest r = request_of(i);
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
  return idle_gaps(*loaded, rows, steps);
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
