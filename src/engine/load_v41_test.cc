// DeepSeek-V4.1 folders through load_model() and the engine: the decoder tail that the engine
// leaves out never shows, memory is stated before it is taken, and what does not fit is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <stdexcept>

#include "engine/engine_core.h"
#include "engine/load.h"
#include "engine/local_engine.h"
#include "kvcache/seq_state.h"
#include "model/deepseek_v41/replay.h"
#include "model/deepseek_v41/synth.h"
#include "support/collecting_sink.h"

namespace deepmint {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

class LoadV41 : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = fs::temp_directory_path() / ("deepmint_load_v41_" + std::to_string(getpid()));
    fs::remove_all(folder_);
    ASSERT_TRUE(v41::synthesize(v41::synth_config(v41::SynthPreset::kTiny), folder_));
  }
  static void TearDownTestSuite() { fs::remove_all(folder_); }
  static std::string refusal(const LoadOptions& options) {
    const auto loaded = load_model(folder_, options);
    return loaded ? "loaded" : loaded.error().str();
  }
  static fs::path folder_;
};
fs::path LoadV41::folder_;

// Rows that each layer's attention ran for.
class CountingTap : public Tap {
 public:
  void sublayer(int layer, std::string_view name, std::span<const float> values,
                size_t width) override {
    if (name == "attn") rows_[layer] += values.size() / width;
  }
  size_t rows(int layer) const { return rows_.at(layer); }

 private:
  std::map<int, size_t> rows_;
};

GenerationRequest request_of(int32_t prompt, bool prompt_logits) {
  GenerationRequest request;
  for (int32_t i = 0; i < prompt; ++i) request.tokens.push_back((i * 131 + 17) % 512);
  request.max_tokens = 24;
  request.sampling.temperature = 0;
  request.sampling.top_logprobs = 3;
  request.want_prompt_logits = prompt_logits;
  return request;
}

TEST_F(LoadV41, TheDecoderTailThatIsLeftOutNeverShows) {
  for (const ArithmeticChoice arithmetic : {ArithmeticChoice::kReference, ArithmeticChoice::kFast})
    for (const int32_t step_tokens : {512, 13}) {
      auto loaded = load_model(folder_, {.threads = 2, .arithmetic = arithmetic});
      ASSERT_TRUE(loaded) << loaded.error().str();
      std::vector<std::vector<float>> logprobs;
      std::vector<std::vector<TokenId>> tokens;
      for (const bool prompt_logits : {true, false}) {
        CountingTap tap;
        EngineConfig config;
        config.max_running = 2;
        config.step_tokens = step_tokens;
        auto engine = LocalEngine::create(*loaded, config, Clock::steady(), {.tap = &tap});
        ASSERT_TRUE(engine) << engine.error().str();
        const auto sink = std::make_shared<testing::CollectingSink>();
        ASSERT_TRUE((*engine)->submit(request_of(100, prompt_logits), sink));
        sink->wait();
        tokens.push_back(sink->ids());
        for (logprobs.emplace_back(); const auto& token : sink->tokens())
          logprobs.back().push_back(token.logprob);
        (*engine)->drain(std::chrono::milliseconds(0));
        // Of the prompt's rows 46 before its last block boundary reach the last layer (16 + 2 *
        // 15), the 36 behind that, and every decode step.
        EXPECT_EQ(tap.rows(0), 123u);
        EXPECT_EQ(tap.rows(8), prompt_logits ? 123u : 46u + 36u + 23u);
      }
      EXPECT_EQ(tokens[0].size(), 24u);
      EXPECT_EQ(tokens[0], tokens[1]);
      EXPECT_EQ(logprobs[0], logprobs[1]);
    }
}

// A run of a request with a bounded tail: its tokens with their log-probabilities, and how many
// rows the last layer saw.
struct TailRun {
  std::vector<TokenId> ids;
  std::vector<float> logprobs;
  size_t last_layer_rows = 0;
};

TEST_F(LoadV41, ABoundedTailDependsOnTheRequestAlone) {
  auto loaded = load_model(folder_, {.threads = 2});
  ASSERT_TRUE(loaded) << loaded.error().str();
  // Beside it runs another request, with the exact tail, or nothing.
  const auto run = [&](int32_t step_tokens, std::optional<int32_t> keep, bool company) {
    CountingTap tap;
    EngineConfig config;
    config.max_running = 2;
    config.step_tokens = step_tokens;
    auto engine = LocalEngine::create(*loaded, config, Clock::steady(), {.tap = &tap});
    if (!engine) throw std::runtime_error(engine.error().str());
    GenerationRequest request = request_of(100, false);
    request.tail_keep_tokens = keep;
    const auto sink = std::make_shared<testing::CollectingSink>(),
               other = std::make_shared<testing::CollectingSink>();
    if (company) {
      EXPECT_TRUE((*engine)->submit(request_of(77, false), other));
    }
    EXPECT_TRUE((*engine)->submit(std::move(request), sink));
    sink->wait();
    if (company) other->wait();
    (*engine)->drain(std::chrono::milliseconds(0));
    TailRun result{.ids = sink->ids(), .logprobs = {}, .last_layer_rows = tap.rows(8)};
    for (const auto& token : sink->tokens()) result.logprobs.push_back(token.logprob);
    return result;
  };
  const TailRun exact = run(512, {}, false), bounded = run(512, 20, false);
  EXPECT_EQ(bounded.last_layer_rows, 20u + 23u);
  EXPECT_EQ(bounded.ids.size(), 24u);
  EXPECT_NE(bounded.logprobs, exact.logprobs);
  for (const bool company : {false, true})
    for (const int32_t step_tokens : {512, 13, 2}) {
      const TailRun again = run(step_tokens, 20, company);
      EXPECT_EQ(again.ids, bounded.ids) << step_tokens;
      EXPECT_EQ(again.logprobs, bounded.logprobs) << step_tokens;
    }
  // As many rows as the exact tail has, or more than the prompt has: the exact answer.
  for (const int32_t keep : {46, 1000}) EXPECT_EQ(run(512, keep, false).logprobs, exact.logprobs);
}

TEST_F(LoadV41, ABoundedTailThatCannotBeIsRefused) {
  auto loaded = load_model(folder_, {.threads = 1});
  ASSERT_TRUE(loaded) << loaded.error().str();
  auto engine = LocalEngine::create(*loaded, {}, Clock::steady());
  ASSERT_TRUE(engine) << engine.error().str();
  const auto refusal_of = [&](int32_t keep, bool prompt_logits) {
    GenerationRequest request = request_of(100, prompt_logits);
    request.tail_keep_tokens = keep;
    const auto ticket =
        (*engine)->submit(std::move(request), std::make_shared<testing::CollectingSink>());
    return ticket ? "taken" : ticket.error().str();
  };
  EXPECT_EQ(refusal_of(15, false), "tail_keep_tokens: expected at least the window, 16, found 15");
  EXPECT_THAT(refusal_of(-1, false), HasSubstr("found -1"));
  EXPECT_THAT(refusal_of(20, true), HasSubstr("log-probabilities are wanted, found a bounded"));
  EXPECT_EQ(refusal_of(16, false), "taken");
  EXPECT_EQ(v41::TailOptions().keep_tokens, kDefaultTailKeepTokens);
}

// By its place in the prompt, wherever chunks of it would have begun, and before anything runs.
TEST_F(LoadV41, AnImageTokenIsRefusedAtAdmissionByItsPlaceInThePrompt) {
  const fs::path folder = folder_.string() + "_image";
  fs::remove_all(folder);
  v41::Config config = v41::synth_config(v41::SynthPreset::kTiny);
  config.image_token = 5;
  ASSERT_TRUE(v41::synthesize(config, folder));
  const auto loaded = load_model(folder, {.threads = 1});
  fs::remove_all(folder);
  ASSERT_TRUE(loaded) << loaded.error().str();
  EngineConfig engine_config;
  engine_config.max_running = 2;
  engine_config.step_tokens = 13;
  auto engine = LocalEngine::create(*loaded, engine_config, Clock::steady());
  ASSERT_TRUE(engine) << engine.error().str();
  for (const bool prompt_logits : {false, true})
    for (const size_t place : {0u, 12u, 13u, 99u}) {
      GenerationRequest request = request_of(100, prompt_logits);
      std::ranges::replace(request.tokens, 5, 6);
      request.tokens[place] = 5;
      const auto ticket =
          (*engine)->submit(std::move(request), std::make_shared<testing::CollectingSink>());
      ASSERT_FALSE(ticket.has_value()) << place;
      EXPECT_EQ(ticket.error().code, ErrorCode::kUnsupported);
      EXPECT_EQ(ticket.error().str(), "tokens[" + std::to_string(place) +
                                          "]: expected a text token, found image token 5");
    }
  EXPECT_EQ((*engine)->stats().steps, 0);

  // Nor does one come in behind the prompt of a saved sequence.
  auto core = std::move(*EngineCore::create(*loaded, engine_config, Clock::steady()));
  GenerationRequest request = request_of(3, false);
  request.sampling.seed = 1;
  kvcache::SeqState saved{.model_fingerprint = loaded->model->info().fingerprint,
                          .tokens = request.tokens,
                          .prompt_tokens = 3,
                          .seed = 1};
  const auto resume = [&](TokenId next) {
    saved.tokens.resize(3);
    saved.tokens.push_back(next);
    auto bytes = kvcache::encode_seq_state(saved, core->cache().arena(), {}, kNoSlot);
    const auto sequence =
        core->prepare_saved(request, std::move(bytes), std::make_shared<testing::CollectingSink>());
    return sequence ? "taken" : sequence.error().str();
  };
  EXPECT_EQ(resume(6), "taken");
  EXPECT_EQ(resume(5), "state: tokens[3]: expected a text token, found image token 5");
}

TEST_F(LoadV41, StatesMemoryBeforeItIsTaken) {
  std::vector<std::string> order;
  LoadOptions options;
  options.threads = 1;
  options.on_memory = [&](const std::string& line) { order.push_back(line); };
  const auto loaded = load_model(folder_, options, [&](double) { order.push_back("reading"); });
  ASSERT_TRUE(loaded);
  ASSERT_GE(order.size(), 2u);
  EXPECT_THAT(order[0], HasSubstr("4.1 MiB resident"));
  EXPECT_EQ(order[1], "reading");

  options.experts = ExpertChoice::kMapped;
  order.clear();
  ASSERT_TRUE(load_model(folder_, options));
  EXPECT_THAT(order[0], HasSubstr("2.3 MiB resident"));
}

TEST_F(LoadV41, TooLittleMemoryIsOneClearLine) {
  constexpr uint64_t kMiB = 1 << 20;
  EXPECT_THAT(refusal({.threads = 1, .available_bytes = 1 * kMiB}),
              HasSubstr("expected 2.3 MiB of free memory for the weights that every step reads, "
                        "found 1.0 MiB"));
  EXPECT_THAT(
      refusal({.threads = 1, .experts = ExpertChoice::kResident, .available_bytes = 3 * kMiB}),
      HasSubstr("cpu.experts: expected 4.1 MiB"));
  EXPECT_EQ(refusal({.threads = 1, .available_bytes = 3 * kMiB}), "loaded");
}

}  // namespace
}  // namespace deepmint
