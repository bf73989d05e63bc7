// What a prompt costs whose beginning the engine knows: first tokens of a cold run and of each way
// to serve a hit, on a real model.
//
//   prefix_hits DIR [prompt tokens = 8192] [threads = all cores]
//
// cold: nobody has seen the prompt. next turn: the prompt that was asked before and a few hundred
// tokens more; private state comes from a snapshot (models without private state: from the blocks
// alone). exact replay, bounded replay: the same with the snapshots gone, so that window state is
// computed again, in full or for one window (docs/cache.md). "same" says whether the reply has the
// ids of a cold run of the same prompt.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <random>
#include <vector>

#include "engine/engine_core.h"
#include "engine/load.h"

namespace deepmint {
namespace {

constexpr int32_t kReply = 8, kTurn = 300;

struct Outcome {
  double first_token_s = 0;
  std::vector<TokenId> ids;
  Usage usage;
};

class TimingSink : public EventSink {
 public:
  explicit TimingSink(Outcome& out) : out_(out), begin_(std::chrono::steady_clock::now()) {}
  void on_token(const TokenEvent& event) override {
    if (out_.ids.empty())
      out_.first_token_s =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    out_.ids.push_back(event.id);
  }
  void on_finish(const FinishEvent& event) override { out_.usage = event.usage; }

 private:
  Outcome& out_;
  std::chrono::steady_clock::time_point begin_;
};

Result<Outcome> ask(EngineCore& core, std::vector<TokenId> prompt, bool bounded) {
  GenerationRequest r;
  r.tokens = std::move(prompt);
  r.max_tokens = kReply;
  r.sampling.temperature = 0;
  r.sampling.seed = 1;
  r.bounded_replay = bounded;
  Outcome out;
  DEEPMINT_TRY(sequence, core.prepare(std::move(r), std::make_shared<TimingSink>(out)));
  DEEPMINT_CHECK_OK(core.take_place(*sequence));
  core.add(std::move(sequence));
  while (!core.idle()) core.step();
  return out;
}

void print(const char* way, const Outcome& o, const Outcome& cold) {
  fmt::print("{:<16}{:>10.0f}{:>10.1f}{:>9}{:>10}{:>10}   {}\n", way, 1e3 * o.first_token_s,
             cold.first_token_s / o.first_token_s, o.usage.prompt_tokens, o.usage.cached_tokens,
             o.usage.replayed_tokens, o.ids == cold.ids ? "yes" : "no");
  std::fflush(stdout);
}

Status run(const char* path, int32_t tokens, int32_t threads) {
  DEEPMINT_TRY(loaded, load_model(path, {.threads = threads}));
  std::mt19937_64 rng(1);
  const auto vocab = static_cast<uint64_t>(loaded.model->info().vocab_size);
  std::vector<TokenId> turn(static_cast<size_t>(tokens + kTurn));
  for (TokenId& id : turn) id = static_cast<TokenId>(rng() % vocab);
  const std::vector<TokenId> first(turn.begin(), turn.begin() + tokens);

  EngineConfig config;
  config.max_running = 2;
  config.context_tokens = tokens + kTurn + kReply;
  config.kv_bytes = int64_t{1} << 30;
  config.park_bytes = 0;
  fmt::print("{:<16}{:>10}{:>10}{:>9}{:>10}{:>10}   {}\n", "", "first, ms", "x sooner", "prompt",
             "cached", "replayed", "same");
  Outcome cold;
  {
    config.prefix_cache = false;
    DEEPMINT_TRY(core, EngineCore::create(loaded, config, Clock::steady()));
    DEEPMINT_TRY(o, ask(*core, turn, false));
    cold = o;
    print("cold", o, cold);
    config.prefix_cache = true;
  }
  {
    DEEPMINT_TRY(core, EngineCore::create(loaded, config, Clock::steady()));
    DEEPMINT_CHECK_OK(ask(*core, first, false));
    DEEPMINT_TRY(o, ask(*core, turn, false));
    print("next turn", o, cold);
  }
  const auto parts = loaded.model->state_parts();
  if (std::ranges::none_of(
          parts, [](const StatePart& p) { return p.family == StatePart::Family::kPrivate; }))
    return {};
  config.snapshot_bytes = 0;
  DEEPMINT_TRY(core, EngineCore::create(loaded, config, Clock::steady()));
  DEEPMINT_CHECK_OK(ask(*core, first, false));
  DEEPMINT_TRY(bounded, ask(*core, turn, true));  // publishes nothing
  print("bounded replay", bounded, cold);
  DEEPMINT_TRY(exact, ask(*core, turn, false));
  print("exact replay", exact, cold);
  return {};
}

}  // namespace
}  // namespace deepmint

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: prefix_hits MODEL [prompt tokens] [threads]\n");
    return 2;
  }
  const auto number = [&](int at, int fallback) {
    return argc > at ? std::atoi(argv[at]) : fallback;
  };
  const auto ok =
      deepmint::run(argv[1], std::clamp(number(2, 8192), 1, 1 << 20), std::max(0, number(3, 0)));
  if (!ok) {
    fmt::print(stderr, "prefix_hits: {}\n", ok.error().str());
    return deepmint::exit_code(ok.error());
  }
  return 0;
}
