// The engine with real weights: batched, chunked, threaded and resumed answers are those of a
// request alone.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <string>
#include <tuple>

#include "engine/engine_core.h"
#include "engine/load.h"
#include "support/collecting_sink.h"
#include "support/counting_new.h"
#include "support/source_dir.h"
#include "support/test_seed.h"
#include "support/tiny_model.h"

namespace deepmint {
namespace {

namespace fs = std::filesystem;
using testing::CollectingSink;

struct Reply {
  std::vector<TokenId> ids;
  std::vector<float> logprobs;
  friend bool operator==(const Reply&, const Reply&) = default;
};

LoadedModel load(const fs::path& path, int threads) {
  auto loaded = load_model(path, {.threads = threads});
  if (!loaded) throw std::runtime_error(loaded.error().str());
  return std::move(*loaded);
}

LoadedModel tiny(const testing::TinyModel& shape, int threads) {
  const fs::path path =
      fs::temp_directory_path() / ("deepmint_engine_" + std::to_string(getpid()) + ".gguf");
  testing::tiny_gguf(shape).write(path);
  LoadedModel loaded = load(path, threads);
  fs::remove(path);
  return loaded;
}

std::unique_ptr<EngineCore> core_of(const LoadedModel& loaded, int32_t max_running,
                                    int32_t step_tokens, int32_t context = 512) {
  EngineConfig c;
  c.max_running = max_running;
  c.step_tokens = step_tokens;
  c.context_tokens = context;
  auto core = EngineCore::create(loaded, c, Clock::steady());
  if (!core) throw std::runtime_error(core.error().str());
  return std::move(*core);
}

std::shared_ptr<CollectingSink> add(EngineCore& core, const GenerationRequest& request) {
  auto sink = std::make_shared<CollectingSink>();
  auto sequence = core.prepare(request, sink);
  if (!sequence) throw std::runtime_error(sequence.error().str());
  EXPECT_TRUE(core.take_place(**sequence));
  core.add(std::move(*sequence));
  return sink;
}

Reply run_of(const CollectingSink& sink) {
  Reply run;
  for (const auto& t : sink.tokens()) {
    run.ids.push_back(t.id);
    run.logprobs.push_back(t.logprob);
  }
  return run;
}

std::vector<Reply> run_all(EngineCore& core, const std::vector<GenerationRequest>& requests,
                           int stagger) {
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (const auto& r : requests) {
    sinks.push_back(add(core, r));
    for (int i = 0; i < stagger; ++i) core.step();
  }
  while (!core.idle()) core.step();
  std::vector<Reply> runs;
  for (const auto& s : sinks) {
    EXPECT_EQ(s->finish()->reason, FinishReason::kLength);
    runs.push_back(run_of(*s));
  }
  EXPECT_EQ(core.stats().blocks_free, core.stats().blocks_total);
  return runs;
}

std::vector<GenerationRequest> requests_for(int64_t vocab, size_t count, size_t max_prompt,
                                            int32_t max_tokens) {
  std::mt19937_64 rng(testing::test_seed());
  std::vector<GenerationRequest> requests(count);
  for (auto& r : requests) {
    r.tokens.resize(1 + rng() % max_prompt);
    for (TokenId& id : r.tokens) id = static_cast<TokenId>(rng() % static_cast<uint64_t>(vocab));
    r.max_tokens = max_tokens;
    r.sampling.seed = rng();
    r.sampling.top_logprobs = 0;
    if (rng() % 3 == 0) r.sampling.temperature = 0;
    if (rng() % 3 == 0) r.sampling.top_p = 0.9;
  }
  return requests;
}

using Shape = std::tuple<std::string, DType>;
class TinyEngine : public ::testing::TestWithParam<Shape> {
 protected:
  testing::TinyModel shape() const {
    testing::TinyModel s = testing::tiny_model_for(std::get<1>(GetParam()));
    s.architecture = std::get<0>(GetParam());
    return s;
  }
};
INSTANTIATE_TEST_SUITE_P(Shapes, TinyEngine,
                         ::testing::Values(Shape{"llama", DType::kQ4_1},
                                           Shape{"qwen2", DType::kF32},
                                           Shape{"qwen3", DType::kBF16}),
                         [](const auto& p) { return std::get<0>(p.param); });

TEST_P(TinyEngine, OneAnswerUnderAnySchedule) {
  const LoadedModel one = tiny(shape(), 1), two = tiny(shape(), 2);
  const auto requests = requests_for(one.model->info().vocab_size, 9, 200, 24);
  std::vector<Reply> alone;
  for (const auto& r : requests) {
    auto core = core_of(one, 1, 512);
    alone.push_back(run_all(*core, {r}, 0)[0]);
  }
  int variant = 0;
  for (const auto& [running, step] :
       std::array<std::pair<int, int>, 6>{{{9, 512}, {9, 9}, {3, 64}, {2, 65}, {1, 1}, {9, 127}}}) {
    const LoadedModel& loaded = variant % 2 == 0 ? two : one;
    auto core = core_of(loaded, running, step);
    const auto batched = run_all(*core, requests, variant++ % 3);
    for (size_t i = 0; i < requests.size(); ++i)
      EXPECT_EQ(batched[i], alone[i])
          << "request " << i << ", " << running << " running, steps of " << step;
  }
}

TEST_P(TinyEngine, SavedAndResumed) {
  const LoadedModel loaded = tiny(shape(), 1);
  GenerationRequest r = requests_for(loaded.model->info().vocab_size, 1, 100, 110)[0];
  auto whole_core = core_of(loaded, 1, 512);
  const Reply whole = run_all(*whole_core, {r}, 0)[0];
  auto from = core_of(loaded, 4, 40);
  add(*from, requests_for(loaded.model->info().vocab_size, 2, 50, 100)[1]);
  const auto sink = add(*from, r);
  for (int i = 0; i < 9; ++i) from->step();
  const auto state = from->export_state(2);
  ASSERT_TRUE(state.has_value()) << state.error().str();
  const size_t before = sink->tokens().size();
  auto to = core_of(loaded, 3, 33);
  auto twin = std::make_shared<CollectingSink>();
  auto sequence = to->prepare_saved(r, *state, twin);
  ASSERT_TRUE(sequence.has_value()) << sequence.error().str();
  ASSERT_TRUE(to->take_place(**sequence));
  to->add(std::move(*sequence));
  while (!to->idle()) to->step();
  const Reply rest = run_of(*twin);
  ASSERT_EQ(rest.ids.size() + before, whole.ids.size());
  ASSERT_GE(rest.ids.size(), 100u);
  EXPECT_TRUE(std::equal(rest.ids.begin(), rest.ids.end(),
                         whole.ids.begin() + static_cast<ptrdiff_t>(before)));
  EXPECT_TRUE(std::equal(rest.logprobs.begin(), rest.logprobs.end(),
                         whole.logprobs.begin() + static_cast<ptrdiff_t>(before)));
}

// Memory that others have used before leaves no trace in a saved state.
TEST_P(TinyEngine, SavedStatesDoNotTellTheirHistory) {
  const LoadedModel loaded = tiny(shape(), 1);
  const auto requests = requests_for(loaded.model->info().vocab_size, 12, 200, 80);
  GenerationRequest r = requests[0];
  r.max_tokens = 200;
  const auto saved_after = [&](EngineCore& core, uint64_t id, size_t tokens) {
    const auto sink = add(core, r);
    while (sink->tokens().size() < tokens) core.step();
    auto state = core.export_state(id);
    while (!core.idle()) core.step();
    return std::move(state).value();
  };
  auto used = core_of(loaded, 4, 33);
  run_all(*used, requests, 1);
  uint64_t id = requests.size();
  for (const size_t tokens : {1u, 9u, 70u}) {
    auto fresh = core_of(loaded, 1, 512);
    EXPECT_EQ(saved_after(*used, ++id, tokens), saved_after(*fresh, 1, tokens)) << tokens;
  }
}

class SilentSink : public EventSink {
 public:
  void on_token(const TokenEvent&) override {}
  void on_finish(const FinishEvent&) override {}
};

TEST_P(TinyEngine, DecodeStepsAllocateNothing) {
  const LoadedModel loaded = tiny(shape(), 2);
  auto core = core_of(loaded, 6, 64);
  for (auto& r : requests_for(loaded.model->info().vocab_size, 6, 40, 200)) {
    auto sequence = core->prepare(r, std::make_shared<SilentSink>()).value();
    ASSERT_TRUE(core->take_place(*sequence));
    core->add(std::move(sequence));
  }
  // Past everyone's first block: the first that a thread closes sizes its buffer for hashing.
  for (int i = 0; i < 70; ++i) core->step();
  ASSERT_EQ(core->stats().running, 6);
  const uint64_t before = testing::allocations();
  for (int i = 0; i < 100; ++i) core->step();
  EXPECT_EQ(testing::allocations() - before, 0u);
  ASSERT_EQ(core->stats().running, 6);
}

TEST(SmolLm2, BatchedAndChunkedEqualAlone) {
  const fs::path path = testing::source_path("models/SmolLM2-135M-Instruct.Q4_1.gguf");
  if (!fs::exists(path))
    GTEST_SKIP() << "no " << path.filename() << " in models/ (./quickstart.sh gets it)";
  const LoadedModel loaded = load(path, 2);
  const std::array<const char*, 3> prompts = {"The capital of France is", "def fibonacci(n):",
                                              "Once upon a time, in a small village by the sea,"};
  std::vector<GenerationRequest> requests;
  for (size_t i = 0; i < prompts.size(); ++i) {
    GenerationRequest r;
    r.tokens = loaded.tokenizer->encode_text(prompts[i]);
    r.max_tokens = 8;
    r.sampling.seed = 40 + i;
    r.sampling.temperature = i == 0 ? 0.0f : 0.8f;
    r.sampling.top_logprobs = 0;
    requests.push_back(r);
  }
  std::vector<Reply> alone;
  for (const auto& r : requests) {
    auto core = core_of(loaded, 1, 512, 256);
    alone.push_back(run_all(*core, {r}, 0)[0]);
  }
  auto core = core_of(loaded, 3, 5, 256);
  EXPECT_EQ(run_all(*core, requests, 1), alone);
  EXPECT_NE(loaded.tokenizer->decode(alone[0].ids).find("Paris"), std::string::npos);
}

}  // namespace
}  // namespace deepmint
