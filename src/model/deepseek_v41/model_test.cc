// The whole model on the specification's tiny checkpoint, against the oracle's outputs and against
// itself under every cut.
#include "model/deepseek_v41/model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "core/hash.h"
#include "core/mapped_file.h"
#include "core/thread_pool.h"
#include "model/deepseek_v41/v41_testing.h"
#include "support/source_dir.h"

namespace deepmint::v41 {
namespace {

using namespace testing;  // NOLINT: the fixtures of v41_testing.h
using nlohmann::json;

const json& expected() {
  static const json v = json::parse(
      std::ifstream(deepmint::testing::source_path("tests/spec/model/tiny/expected.json")));
  return v;
}

const Checkpoint& tiny_checkpoint() {
  static const Checkpoint checkpoint(synth_config(SynthPreset::kTiny));
  return checkpoint;
}
V41Model& tiny() {
  static const std::unique_ptr<V41Model> model =
      tiny_checkpoint().load(make_reference_arithmetic());
  return *model;
}

std::vector<int> prompt() { return expected()["prompt"].get<std::vector<int>>(); }
size_t argmax(std::span<const float> x) {
  return static_cast<size_t>(std::max_element(x.begin(), x.end()) - x.begin());
}
int ulps(float a, float b) {
  const auto key = [](float x) {
    const auto i = std::bit_cast<int32_t>(x);
    return i < 0 ? INT32_MIN - i : i;
  };
  return std::abs(key(a) - key(b));
}

TEST(V41Synth, TinyIsTheOraclesCheckpoint) {
  auto file = MappedFile::open(tiny_checkpoint().folder() / "model.safetensors");
  ASSERT_TRUE(file);
  const auto bytes = file->bytes();
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), 8);
  // SHA-256 of the tensor data (all bytes after the JSON header) of `oracle.py tiny DIR`.
  EXPECT_EQ(hex(sha256(bytes.subspan(8 + header))),
            "2a0f0491d4ab811f48c765c969d032481b8c84f367391643b978038b37830eb0");
}

TEST(V41Model, EqualsTheOracle) {
  V41Model& model = tiny();
  Cache cache(model, 1, 2);
  const auto tokens = prompt();
  auto logits = run(model, cache, rows_of(tokens, 0));
  const auto vocab = static_cast<size_t>(model.info().vocab_size);
  const size_t last = tokens.size() - 1;
  for (size_t i = 0; i < tokens.size(); ++i)
    EXPECT_EQ(argmax(std::span(logits).subspan(i * vocab, vocab)),
              expected()["argmax_per_position"][i].get<size_t>())
        << i;
  for (size_t v = 0; v < vocab; ++v)
    ASSERT_LE(ulps(logits[last * vocab + v], expected()["prefill_last_logits"][v].get<float>()), 1)
        << v;
  EXPECT_EQ(model.selected_rows(last),
            expected()["selected_rows_last_token"].get<std::vector<int32_t>>());
  EXPECT_EQ(model.candidate_blocks(last),
            expected()["candidate_blocks_last_token"].get<std::vector<int32_t>>());
  int token = static_cast<int>(argmax(std::span(logits).subspan(last * vocab, vocab)));
  for (size_t step = 0; step < 12; ++step) {
    EXPECT_EQ(token, expected()["greedy_tokens"][step].get<int>()) << step;
    logits = run(model, cache, rows_of(std::array{token}, static_cast<int>(tokens.size() + step)));
    for (size_t v = 0; v < 8; ++v)
      EXPECT_LE(ulps(logits[v], expected()["decode_logits_first8"][step][v].get<float>()), 1)
          << step;
    token = static_cast<int>(argmax(logits));
  }
}

TEST(V41Model, ChunkedEqualsWhole) {
  V41Model& model = tiny();
  const auto tokens = prompt();
  Cache whole_cache(model, 1, 2, std::byte{0});
  const auto whole = run(model, whole_cache, rows_of(tokens, 0));
  const std::vector<std::vector<size_t>> cuts = {{1},  {2},  {7},      {16},           {17},
                                                 {33}, {64}, {100, 1}, {1, 2, 3, 5, 8}};
  for (const auto& cut : cuts) {
    Cache cache(model, 1, 2, std::byte{0});
    std::vector<float> logits;
    for (size_t at = 0, i = 0; at < tokens.size(); ++i) {
      const size_t n = std::min(cut[i % cut.size()], tokens.size() - at);
      const auto part =
          run(model, cache, rows_of(std::span(tokens).subspan(at, n), static_cast<int>(at)));
      logits.insert(logits.end(), part.begin(), part.end());
      at += n;
    }
    EXPECT_TRUE(same_bits(whole, logits)) << "chunk " << cut[0];
    for (size_t part = 0; part < 5; ++part)
      EXPECT_TRUE(std::ranges::equal(whole_cache.bytes(part), cache.bytes(part)))
          << "state part " << part << ", chunk " << cut[0];
  }
}

TEST(V41Model, BatchedEqualsAlone) {
  V41Model& model = tiny();
  const auto tokens = prompt();
  Cache alone(model, 1, 2);
  const auto want = run(model, alone, rows_of(tokens, 0));
  Cache cache(model, 3, 2);
  const std::vector<int> other(tokens.rbegin(), tokens.rend());
  std::vector<Row> rows;
  const auto add = [&](uint32_t sequence, std::span<const int> ids) {
    for (Row r : rows_of(ids, 0)) {
      r.sequence = sequence;
      rows.push_back(r);
    }
  };
  add(2, std::span(other).first(41));
  add(0, tokens);
  add(1, other);
  const auto got = run(model, cache, rows, {0, 1, 2});
  const auto vocab = static_cast<size_t>(model.info().vocab_size);
  EXPECT_TRUE(same_bits(want, std::span(got).subspan(41 * vocab, tokens.size() * vocab)));
}

// Rows before the last `keep` stop at the last kv source; the kept ones see decoder windows from
// the first kept row on.
std::vector<Row> skipping_rows(const V41Model& model, std::span<const int> tokens, int keep) {
  auto rows = rows_of(tokens, 0, false);
  const int first = static_cast<int>(tokens.size()) - keep;
  for (Row& r : rows) {
    if (r.position < first) r.layer_end = static_cast<int16_t>(model.config().kv_sources.back());
    r.decoder_floor = first;
  }
  return rows;
}

TEST(V41Model, ExactDecoderTailEqualsTheFullRun) {
  V41Model& model = tiny();
  const auto tokens = prompt();
  Cache full(model, 1, 2, std::byte{0}), tail(model, 1, 2, std::byte{0}),
      bounded(model, 1, 2, std::byte{0});
  const auto want = run(model, full, rows_of(tokens, 0, false));
  // Three layers follow the last source: window + 2 * (window - 1) rows reach every decoder ring
  // and the last logits.
  const auto exact = run(model, tail, skipping_rows(model, tokens, 16 + 2 * 15));
  EXPECT_TRUE(same_bits(want, exact));
  for (size_t part = 0; part < 2; ++part)
    EXPECT_TRUE(std::ranges::equal(full.bytes(part), tail.bytes(part)));
  const auto near = run(model, bounded, skipping_rows(model, tokens, 16));
  EXPECT_FALSE(same_bits(want, near));
  EXPECT_EQ(argmax(want), argmax(near));
  float worst = 0;
  for (size_t v = 0; v < want.size(); ++v) worst = std::max(worst, std::fabs(want[v] - near[v]));
  EXPECT_LE(worst, 0.1f);
  // Skipped prefill in chunks equals skipped prefill whole.
  Cache chunked(model, 1, 2, std::byte{0});
  const auto rows = skipping_rows(model, tokens, 16);
  std::vector<float> last;
  for (size_t at = 0; at < rows.size(); at += 7) {
    const size_t n = std::min<size_t>(7, rows.size() - at);
    last = run(model, chunked,
               std::vector<Row>(rows.begin() + static_cast<std::ptrdiff_t>(at),
                                rows.begin() + static_cast<std::ptrdiff_t>(at + n)));
  }
  EXPECT_TRUE(same_bits(near, last));
}

TEST(V41Model, RejectedDraftsLeaveNoTrace) {
  V41Model& model = tiny();
  const auto tokens = prompt();
  Cache plain(model, 1, 2, std::byte{0}), drafted(model, 1, 2, std::byte{0});
  std::vector<float> want, got;
  for (size_t at = 0; at + 6 <= tokens.size();) {
    // Verify rows: the true token and up to five wrong ones, of which none is accepted.
    std::vector<int> guess = {tokens[at]};
    for (size_t k = 0; k < at % 6; ++k)
      guess.push_back(static_cast<int>((tokens[at] * 31 + static_cast<int>(k) * 7 + 5) % 512));
    const auto logits = run(model, drafted, rows_of(guess, static_cast<int>(at)));
    got.insert(got.end(), logits.begin(), logits.begin() + model.info().vocab_size);
    const auto p = run(model, plain, rows_of(std::array{tokens[at]}, static_cast<int>(at)));
    want.insert(want.end(), p.begin(), p.end());
    ++at;
  }
  EXPECT_TRUE(same_bits(want, got));
}

TEST(V41Model, RefusesRowsThatCannotRun) {
  V41Model& model = tiny();
  Cache cache(model, 1, 2, std::byte{0});
  const auto refused = [&](Row r, ErrorCode code = ErrorCode::kInvalidArgument) {
    std::vector<float> logits(512);
    const SequenceRef ref = cache.ref(0);
    const auto before = std::vector<std::byte>(cache.bytes(2).begin(), cache.bytes(2).end());
    const auto status =
        model.forward({std::span(&r, 1), std::span(&ref, 1), cache.memory()}, logits, nullptr);
    EXPECT_EQ(std::ranges::equal(before, cache.bytes(2)), !status);
    return !status && status.error().code == code;
  };
  Row good;
  good.token = 3;
  EXPECT_FALSE(refused(good));
  for (const auto& change : std::vector<std::function<void(Row&)>>{
           [](Row& r) { r.token = 512; }, [](Row& r) { r.token = -1; },
           [](Row& r) { r.position = -1; }, [](Row& r) { r.position = 128; },
           [](Row& r) { r.position = 4096; }, [](Row& r) { r.sequence = 1; },
           [](Row& r) { r.layer_begin = 1; }, [](Row& r) { r.layer_end = 4; },
           [](Row& r) { r.layer_end = 5, r.needs_logits = true; }}) {
    Row r = good;
    change(r);
    EXPECT_TRUE(refused(r));
  }
  Row image = good;  // pictures are not there yet
  image.image_row = 0;
  EXPECT_TRUE(refused(image, ErrorCode::kUnsupported));
}

// Float32 in a fixed order against double, rounded once: last-bit differences flip codes and then
// selections, so the gate is on the median and on the greedy choice (spec 13).
TEST(V41Model, FastIsWithinTheGateOfTheReference) {
  ThreadPool pool(2);
  auto loaded = V41Model::load(tiny_checkpoint().folder(), make_fast_arithmetic(&pool));
  ASSERT_TRUE(loaded) << loaded.error().str();
  V41Model& fast = **loaded;
  ASSERT_TRUE(fast.reserve(1024, 1024));
  const auto tokens = prompt();
  Cache cache(tiny(), 1, 2), fast_cache(fast, 1, 2);
  const auto want = run(tiny(), cache, rows_of(tokens, 0)),
             got = run(fast, fast_cache, rows_of(tokens, 0));
  const auto vocab = static_cast<size_t>(fast.info().vocab_size);
  std::vector<float> differences(want.size());
  size_t same = 0;
  for (size_t i = 0; i < want.size(); ++i) differences[i] = std::fabs(want[i] - got[i]);
  for (size_t i = 0; i < tokens.size(); ++i)
    same += argmax(std::span(want).subspan(i * vocab, vocab)) ==
            argmax(std::span(got).subspan(i * vocab, vocab));
  const auto middle = differences.begin() + static_cast<std::ptrdiff_t>(differences.size() / 2);
  std::nth_element(differences.begin(), middle, differences.end());
  EXPECT_LT(*middle, 0.05f);
  EXPECT_GE(static_cast<double>(same), 0.95 * static_cast<double>(tokens.size()));
}

// A decode step reads what info() says a token touches, and the keys; rows that choose the same
// experts share their bytes.
TEST(V41Model, CountsWhatStepsRead) {
  ThreadPool pool(1);
  auto loaded = V41Model::load(tiny_checkpoint().folder(), make_fast_arithmetic(&pool));
  ASSERT_TRUE(loaded) << loaded.error().str();
  V41Model& model = **loaded;
  ASSERT_TRUE(model.reserve(200, 200));
  EXPECT_EQ(model.info().arithmetic, "bf16");
  EXPECT_EQ(tiny().info().arithmetic, "f32");
  const auto work_of = [&](int rows) {
    Cache cache(model, 1, 4);
    const StepWork before = model.work();
    run(model, cache, rows_of(std::vector<int>(static_cast<size_t>(rows), 7), 0));
    return std::pair(model.work().bytes - before.bytes, model.work().macs - before.macs);
  };
  const auto [one, one_macs] = work_of(1);
  const auto told = static_cast<double>(model.info().weight_bytes_per_token);
  EXPECT_NEAR(static_cast<double>(one), told, 0.02 * told);
  EXPECT_GT(one_macs, 0u);
  EXPECT_LE(one_macs, model.info().macs_per_row + model.info().macs_per_logit_row);
  const auto [many, many_macs] = work_of(100);
  EXPECT_GT(many, one);
  EXPECT_LT(many,
            model.info().weight_bytes + 200'000);  // all experts, and the keys of one sequence
  EXPECT_GE(many_macs, 100 * one_macs);
  EXPECT_LE(many_macs, 100 * (model.info().macs_per_row + model.info().macs_per_logit_row +
                              100 * model.info().macs_per_row_and_position));
}

TEST(V41State, OfficialSizesMatchTheSpecification) {
  Config c = synth_config(
      SynthPreset::kBench);  // same roles, head_dim and index_dim as the official checkpoint
  const StateLayout layout(c);
  EXPECT_EQ(layout.global_bytes_per_token(), 890.0);
  EXPECT_EQ(layout.window_snapshot_bytes(), 2703360u);
  EXPECT_GE(layout.ring_rows(), 133);
}

}  // namespace
}  // namespace deepmint::v41
