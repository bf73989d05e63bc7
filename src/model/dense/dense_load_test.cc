// Loading: what a checkpoint must hold, what is refused, and that both formats give one answer.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <sstream>

#include "core/json.h"
#include "model/dense/config.h"
#include "model/dense/dense_testing.h"
#include "model/dense/rope.h"

namespace deepmint::dense {
namespace {

using testing::GgufWriter;
using testing::TempFolder;
using testing::TinyModel;

std::shared_ptr<ThreadPool> pool() { return std::make_shared<ThreadPool>(1); }

// The error of loading a file, or "loads".
std::string load_error(GgufWriter writer) {
  const TempFolder folder;
  writer.write(folder / "tiny.gguf");
  auto file = GgufFile::open(folder / "tiny.gguf");
  if (!file) return file.error().str();
  const auto model =
      load_dense_gguf(std::make_shared<const GgufFile>(std::move(*file)), {.pool = pool()});
  if (model) return "loads";
  EXPECT_TRUE(model.error().code == ErrorCode::kInvalidFile ||
              model.error().code == ErrorCode::kUnsupported)
      << model.error().str();
  EXPECT_NE(model.error().str().find("tiny.gguf"), std::string::npos) << model.error().str();
  return model.error().str();
}

void expect_refused(const std::string& error, const std::vector<std::string>& words) {
  EXPECT_NE(error, "loads") << words[0];
  EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  for (const std::string& word : words)
    EXPECT_NE(error.find(word), std::string::npos) << "no \"" << word << "\" in: " << error;
}

std::string read_text(const std::filesystem::path& path) {
  std::ostringstream out;
  out << std::ifstream(path).rdbuf();
  return out.str();
}

// A tiny folder whose config.json went through `change`.
std::string load_error(const TinyModel& tiny, const std::function<void(json::Value&)>& change) {
  const TempFolder folder;
  write_tiny_hf(tiny, folder.path());
  auto config = *json::parse(read_text(folder / "config.json"));
  change(config);
  testing::write_text(folder / "config.json", json::dump(config));
  const auto model = load_dense_hf(folder.path(), {.pool = pool()});
  return model ? "loads" : model.error().str();
}
void put(json::Value& object, std::string_view key, std::string_view value) {
  auto& members = object.members();
  std::erase_if(members, [&](const json::Member& m) { return m.key == key; });
  if (!value.empty()) members.push_back({std::string(key), *json::parse(value)});
}

TEST(DenseLoad, GgufAndHuggingFaceGiveTheSameBits) {
  for (const char* architecture : {"llama", "qwen2", "qwen3"})
    for (const DType type : {DType::kF32, DType::kF16, DType::kBF16})
      for (const bool tied : {true, false}) {
        const TinyModel tiny{.architecture = architecture,
                             .n_heads = 6,
                             .n_kv_heads = 2,
                             .tied = tied,
                             .weights = type,
                             .embedding = type};
        const TempFolder folder;
        write_tiny_hf(tiny, folder.path());
        auto loaded = load_dense_hf(folder.path(), {.pool = std::make_shared<ThreadPool>(2)});
        ASSERT_TRUE(loaded) << loaded.error().str();
        Harness hf(*loaded, 8), gguf = tiny_harness(tiny);
        EXPECT_EQ(hf.model().info().architecture, architecture);
        const auto ids = random_ids(90, hf.vocab(), 2);
        expect_same(gguf.run(ids, 90), hf.run(ids, 90),
                    std::string(architecture) + " " + std::string(info(type).name));
      }
}

TEST(DenseLoad, EveryTensorIsNeededWithItsShape) {
  for (const char* architecture : {"llama", "qwen2", "qwen3"}) {
    const TinyModel tiny{.architecture = architecture, .n_layers = 2, .tied = false};
    GgufWriter whole = testing::tiny_gguf(tiny);
    EXPECT_EQ(load_error(whole), "loads");
    const auto file = write_and_open(whole);
    for (const TensorView& t : file->tensors()) {
      if (t.name == "output.weight") continue;  // without it the model is tied
      expect_refused(load_error(GgufWriter(whole).erase_tensor(t.name)),
                     {"\"" + t.name + "\"", "expected", "found"});
      std::vector<uint64_t> shape = t.shape;
      shape[0] += 1;
      uint64_t n = 1;
      for (const uint64_t d : shape) n *= d;
      if (t.name !=
          "token_embd.weight")  // more rows there make a larger vocabulary, against vocab_size
        expect_refused(load_error(GgufWriter(whole).erase_tensor(t.name).tensor(
                           t.name, DType::kF32, shape, std::string(n * 4, '\0'))),
                       {"\"" + t.name + "\"", "expected shape", "found ["});
      if (t.shape.size() == 1 && t.shape[0] % 32 == 0)
        expect_refused(load_error(GgufWriter(whole).erase_tensor(t.name).tensor(
                           t.name, DType::kQ8_0, t.shape, std::string(t.shape[0] / 32 * 34, '\0'))),
                       {"\"" + t.name + "\"", "F32", "Q8_0"});
    }
    expect_refused(load_error(GgufWriter(whole).tensor("blk.0.ffn_gate_inp.weight", DType::kF32,
                                                       {4}, std::string(16, '\0'))),
                   {"blk.0.ffn_gate_inp.weight", "no such tensor"});
    expect_refused(load_error(GgufWriter(whole).tensor("blk.0.attn_output.bias", DType::kF32, {64},
                                                       std::string(256, '\0'))),
                   {"blk.0.attn_output.bias"});
    EXPECT_EQ(load_error(GgufWriter(whole).tensor("blk.0.attn_rot_embd.weight", DType::kF32, {4},
                                                  std::string(16, '\0'))),
              "loads");
  }
}

TEST(DenseLoad, LlamaMayHaveAQkvBias) {
  const TinyModel tiny{.architecture = "llama", .n_layers = 1};
  GgufWriter w = testing::tiny_gguf(tiny);
  const std::vector<float> q(64, 0.25f), kv(32, -0.5f);
  w.tensor_f32("blk.0.attn_q.bias", {64}, q).tensor_f32("blk.0.attn_k.bias", {32}, kv);
  expect_refused(load_error(w), {"blk.0.attn_v.bias"});
  w.tensor_f32("blk.0.attn_v.bias", {32}, kv);
  const auto file = write_and_open(w);
  auto model = load_dense_gguf(file, {.pool = pool()});
  ASSERT_TRUE(model) << model.error().str();
  Harness h(*model, 4);
  const auto ids = random_ids(20, h.vocab(), 3);
  const auto logits = h.run(ids, 20);
  const auto reference = reference_logits(*file, ids);
  for (size_t i = 0; i < logits.size(); ++i) ASSERT_NEAR(logits[i], reference[i], 0.01);
}

TEST(DenseLoad, MetadataIsNeededAndChecked) {
  for (const char* architecture : {"llama", "qwen2", "qwen3"}) {
    const TinyModel tiny{.architecture = architecture, .n_layers = 1};
    const GgufWriter whole = testing::tiny_gguf(tiny);
    const std::string p = std::string(architecture) + ".";
    for (const char* key :
         {"block_count", "embedding_length", "feed_forward_length", "context_length",
          "attention.head_count", "attention.layer_norm_rms_epsilon"})
      expect_refused(load_error(GgufWriter(whole).erase(p + key)), {p + key});
    const auto with = [&](const std::string& key, auto value) {
      return load_error(GgufWriter(whole).set(p + key, value));
    };
    for (const char* key :
         {"block_count", "embedding_length", "feed_forward_length", "context_length",
          "attention.head_count", "attention.head_count_kv", "attention.key_length"}) {
      expect_refused(with(key, uint32_t{0}), {"expected", "found"});
      expect_refused(with(key, int32_t{-1}), {"expected", "found"});
      expect_refused(with(key, uint32_t{0xffffffffu}), {"expected", "found"});
      expect_refused(with(key, std::numeric_limits<uint64_t>::max()), {"expected", "found"});
      expect_refused(with(key, std::string("64")), {p + key});
      expect_refused(
          load_error(GgufWriter(whole).set_array(p + key, std::vector<uint32_t>{64, 64})),
          {p + key});
    }
    expect_refused(with("attention.layer_norm_rms_epsilon", -1.0f), {"epsilon"});
    expect_refused(with("attention.layer_norm_rms_epsilon", std::nanf("")), {"epsilon"});
    expect_refused(with("attention.head_count_kv", uint32_t{3}), {"multiple"});
    expect_refused(with("attention.value_length", uint32_t{8}), {"value_length", "16", "8"});
    expect_refused(with("vocab_size", uint32_t{5}), {"vocab_size", "5"});
    expect_refused(with("rope.dimension_count", uint32_t{7}), {"rope.dimension_count", "7"});
    expect_refused(with("rope.dimension_count", uint32_t{18}), {"rope.dimension_count", "18"});
    expect_refused(with("rope.freq_base", 0.0f), {"base"});
    expect_refused(with("rope.freq_base", std::nanf("")), {"base"});
    expect_refused(with("rope.scaling.type", std::string("longrope")),
                   {"rope.scaling.type", "longrope"});
    expect_refused(load_error(GgufWriter(whole)
                                  .set(p + "rope.scaling.type", std::string("linear"))
                                  .set(p + "rope.scaling.factor", -2.0f)),
                   {"factor", "-2"});
  }
  expect_refused(
      load_error(testing::tiny_gguf({}).set("general.architecture", std::string("mamba"))),
      {"llama, qwen2 or qwen3", "mamba"});
  expect_refused(load_error(testing::tiny_gguf({}).erase("general.architecture")),
                 {"general.architecture"});
}

// Whatever would change the arithmetic is refused by name; the same key saying "off" is fine.
TEST(DenseLoad, SettingsThatChangeTheArithmeticAreRefused) {
  const GgufWriter whole = testing::tiny_gguf({.n_layers = 1});
  const auto with = [&](const std::string& key, auto value) {
    return load_error(GgufWriter(whole).set("llama." + key, value));
  };
  for (const char* key :
       {"attention.sliding_window", "expert_count", "expert_used_count", "pooling_type"}) {
    expect_refused(with(key, uint32_t{8}), {key});
    EXPECT_EQ(with(key, uint32_t{0}), "loads") << key;
  }
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping", "attention.scale",
                          "attention.clamp_kqv", "attention.max_alibi_bias"}) {
    expect_refused(with(key, 30.0f), {key, "30"});
    EXPECT_EQ(with(key, 0.0f), "loads") << key;
  }
  for (const char* key : {"embedding_scale", "residual_scale", "logit_scale"}) {
    expect_refused(with(key, 12.0f), {key, "12"});
    EXPECT_EQ(with(key, 1.0f), "loads") << key;
  }
  expect_refused(with("attention.causal", false), {"attention.causal"});
  expect_refused(with("use_parallel_residual", true), {"use_parallel_residual"});
  expect_refused(with("attention.indexer.top_k", uint32_t{4}),
                 {"attention.indexer.top_k", "unknown"});
  expect_refused(with("rope.scaling.yarn_ext_factor", 0.5f), {"yarn_ext_factor"});
  EXPECT_EQ(with("tensor_data_layout", std::string("Meta AI original pth")), "loads");
}

TEST(DenseLoad, HuggingFaceConfigIsNeededAndChecked) {
  for (const char* architecture : {"llama", "qwen2", "qwen3"}) {
    const TinyModel tiny{.architecture = architecture, .n_layers = 1};
    EXPECT_EQ(load_error(tiny, [](json::Value&) {}), "loads");
    const auto with = [&](std::string_view key, std::string_view value) {
      return load_error(tiny, [&](json::Value& c) { put(c, key, value); });
    };
    for (const char* key :
         {"architectures", "hidden_size", "intermediate_size", "num_hidden_layers",
          "num_attention_heads", "vocab_size", "rms_norm_eps", "max_position_embeddings"}) {
      expect_refused(with(key, ""), {key, "config.json"});
      expect_refused(with(key, "\"x\""), {key});
      expect_refused(with(key, "{}"), {key});
    }
    for (const char* key :
         {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
          "num_key_value_heads", "vocab_size", "max_position_embeddings", "head_dim"})
      for (const char* value : {"0", "-1", "4294967296", "99999999999999999999", "1.5", "17"})
        if (!(std::string_view(value) == "17" &&
              std::string_view(key) == "max_position_embeddings"))
          expect_refused(with(key, value), {"expected", "found"});
    expect_refused(with("architectures", R"(["MistralForCausalLM"])"),
                   {"MistralForCausalLM", "LlamaForCausalLM"});
    expect_refused(with("hidden_act", R"("gelu")"), {"hidden_act", "gelu"});
    for (const auto& [key, value] : std::initializer_list<std::pair<const char*, const char*>>{
             {"mlp_bias", "true"},
             {"use_sliding_window", "true"},
             {"partial_rotary_factor", "0.5"},
             {"attn_logit_softcapping", "50.0"},
             {"final_logit_softcapping", "30"},
             {"num_experts", "8"},
             {"num_local_experts", "8"},
             {"embedding_multiplier", "12"},
             {"residual_multiplier", "0.2"},
             {"logits_scaling", "8"},
             {"quantization_config", R"({"quant_method":"gptq"})"},
             {"rope_interleaved", "true"},
             {"layer_types", R"(["sliding_attention"])"},
             {"tie_word_embeddings", "1"},
             {"rope_scaling", "[]"},
             {"rope_scaling", R"({"rope_type":"dynamic","factor":2.0})"},
             {"rope_scaling", R"({"rope_type":"linear"})"},
             {"rope_scaling", R"({"rope_type":"linear","factor":0})"},
             {"rope_scaling", R"({"type":"llama3","factor":8.0})"},
             {"rope_scaling", R"({"type":"yarn","factor":4.0,"mscale":0.7})"},
             {"rope_theta", "0"}})
      expect_refused(with(key, value), {std::string(key).substr(0, 9)});
    for (
        const auto& [key, value] : std::initializer_list<std::pair<const char*, const char*>>{
            {"mlp_bias", "false"},
            {"use_sliding_window", "false"},
            {"partial_rotary_factor", "1.0"},
            {"layer_types", R"(["full_attention"])"},
            {"quantization_config", "null"},
            {"pretraining_tp", "1"},
            {"transformers.js_config", R"({"dtype":"q4"})"},
            {"rope_scaling", R"({"rope_type":"default"})"},
            {"rope_scaling", R"({"rope_type":"linear","factor":2})"},
            {"rope_parameters", R"({"rope_type":"default","rope_theta":500000.0})"},
            {"rope_scaling",
             R"({"factor":32.0,"high_freq_factor":4.0,"low_freq_factor":1.0,"original_max_position_embeddings":8192,"rope_type":"llama3"})"},
            {"rope_scaling",
             R"({"type":"yarn","factor":4.0,"original_max_position_embeddings":256})"}})
      EXPECT_EQ(with(key, value), "loads") << key << " " << value;
  }
  const TinyModel llama{.n_layers = 1}, qwen{.architecture = "qwen2", .n_layers = 1};
  expect_refused(load_error(llama, [](json::Value& c) { put(c, "sliding_window", "4096"); }),
                 {"sliding_window"});
  expect_refused(load_error(llama, [](json::Value& c) { put(c, "attention_bias", "true"); }),
                 {"attention_bias"});
  EXPECT_EQ(load_error(qwen, [](json::Value& c) { put(c, "sliding_window", "32768"); }), "loads");
}

TEST(DenseLoad, FoldersWithoutTheirFiles) {
  const TempFolder folder;
  const auto error = [&] { return load_dense_hf(folder.path(), {.pool = pool()}).error(); };
  EXPECT_EQ(error().code, ErrorCode::kNotFound);
  testing::write_text(folder / "config.json", "{\"architectures\": [");
  EXPECT_EQ(error().code, ErrorCode::kInvalidFile);
  EXPECT_NE(error().str().find("config.json"), std::string::npos);
  testing::write_text(folder / "config.json", "[1]");
  EXPECT_EQ(error().code, ErrorCode::kInvalidFile);
}

TEST(DenseLoad, ProgressGoesUpToOne) {
  GgufWriter w = testing::tiny_gguf({});
  std::vector<double> seen;
  auto model = load_dense_gguf(write_and_open(w),
                               {.pool = pool(), .progress = [&](double f) { seen.push_back(f); }});
  ASSERT_TRUE(model);
  ASSERT_GT(seen.size(), 10u);
  for (size_t i = 1; i < seen.size(); ++i) EXPECT_GE(seen[i], seen[i - 1]);
  EXPECT_GT(seen.front(), 0.0);
  EXPECT_GT(seen[seen.size() - 2], 0.99);  // the sum over tensors gets there by itself
  EXPECT_EQ(seen.back(), 1.0);
}

// --- rotary frequencies, against values computed in Python from the published formulas
// ------------

void expect_frequencies(const Rope& rope, const std::vector<std::pair<size_t, double>>& expected) {
  for (const auto& [pair, value] : expected)
    EXPECT_NEAR(rope.frequencies[pair] / value, 1.0, 1e-13) << pair;
}

TEST(DenseRope, Llama3KeepsFastPairsAndSlowsTheRest) {
  expect_frequencies(make_rope({.rotary = 128,
                                .base = 500000,
                                .scaling = RopeConfig::Scaling::kLlama3,
                                .factor = 8,
                                .original_context = 8192,
                                .low_frequency_factor = 1,
                                .high_frequency_factor = 4}),
                     {{0, 1.0},
                      {20, 0.016560440080994446},
                      {28, 0.003211445994752591},
                      {30, 0.0013718935677611381},
                      {32, 0.0005248461609929547},
                      {35, 9.556212353964683e-05},
                      {36, 7.78465527393245e-05},
                      {50, 4.411534674558404e-06},
                      {63, 3.068925988914511e-07}});
}

TEST(DenseRope, YarnRampsBetweenTwoPairs) {
  const auto config = config_from_hf(
      *json::parse(
          R"({"architectures":["Qwen2ForCausalLM"],"hidden_size":128,"intermediate_size":64,
      "num_hidden_layers":1,"num_attention_heads":1,"num_key_value_heads":1,"vocab_size":10,"rms_norm_eps":1e-6,"rope_theta":1000000.0,
      "max_position_embeddings":32768,"rope_scaling":{"type":"yarn","factor":4.0,"original_max_position_embeddings":32768}})"),
      "x");
  ASSERT_TRUE(config) << config.error().str();
  const Rope rope = make_rope(config->rope);
  expect_frequencies(rope, {{0, 1.0},
                            {20, 0.01333521432163324},
                            {23, 0.006978305848598663},
                            {24, 0.005375321490790102},
                            {30, 0.001064360981247002},
                            {39, 6.490394320837029e-05},
                            {40, 4.445698525097307e-05},
                            {41, 3.582531425592407e-05},
                            {63, 3.102344401879299e-07}});
  EXPECT_NEAR(rope.magnitude, 1.138629436111989, 1e-14);
  float table[128];
  rope.fill(0, table);
  EXPECT_FLOAT_EQ(table[0], 1.1386294f);
  EXPECT_EQ(table[64], 0.0f);
}

TEST(DenseRope, GgufScalings) {
  const auto rope_of = [](GgufWriter w) {
    return make_rope(config_from_gguf(*write_and_open(w))->rope);
  };
  const GgufWriter plain = testing::tiny_gguf({});
  const Rope base = rope_of(plain);
  EXPECT_EQ(base.frequencies.size(), 8u);
  for (size_t i = 0; i < 8; ++i)
    EXPECT_NEAR(base.frequencies[i], std::pow(10000.0, -static_cast<double>(i) / 8), 1e-15);
  for (const Rope& linear : {rope_of(GgufWriter(plain)
                                         .set("llama.rope.scaling.type", std::string("linear"))
                                         .set("llama.rope.scaling.factor", 4.0f)),
                             rope_of(GgufWriter(plain).set("llama.rope.scale_linear", 4.0f)),
                             rope_of(GgufWriter(plain).set("llama.rope.scaling.factor", 4.0f))})
    for (size_t i = 0; i < 8; ++i) EXPECT_EQ(linear.frequencies[i], base.frequencies[i] / 4);
  const Rope off = rope_of(GgufWriter(plain)
                               .set("llama.rope.scaling.type", std::string("none"))
                               .set("llama.rope.scaling.factor", 4.0f));
  EXPECT_EQ(off.frequencies, base.frequencies);
  const Rope yarn = rope_of(GgufWriter(plain)
                                .set("llama.rope.scaling.type", std::string("yarn"))
                                .set("llama.rope.scaling.factor", 8.0f)
                                .set("llama.rope.scaling.original_context_length", uint32_t{64})
                                .set("llama.rope.scaling.attn_factor", 0.5f));
  EXPECT_NEAR(yarn.magnitude, 0.5 * (1 + 0.1 * std::log(8.0)), 1e-14);
  EXPECT_EQ(yarn.frequencies[0], base.frequencies[0]);
  EXPECT_EQ(yarn.frequencies[7], base.frequencies[7] / 8);
}

TEST(DenseRope, GgufFrequencyFactors) {
  const std::vector<float> factors = {1, 1, 1, 1.5f, 2, 4, 8, 8};
  GgufWriter w = testing::tiny_gguf({});
  w.tensor_f32("rope_freqs.weight", {8}, factors);
  const auto file = write_and_open(w);
  const Rope rope = make_rope(config_from_gguf(*file)->rope, factors);
  for (size_t i = 0; i < 8; ++i)
    EXPECT_NEAR(rope.frequencies[i], std::pow(10000.0, -static_cast<double>(i) / 8) / factors[i],
                1e-15);
  auto scaled = load_dense_gguf(file, {.pool = pool()});
  ASSERT_TRUE(scaled) << scaled.error().str();
  Harness a(*scaled, 4), b = tiny_harness({});
  const auto ids = random_ids(40, a.vocab(), 5);
  const auto with = a.run(ids, 40), without = b.run(ids, 40);
  EXPECT_EQ(row_of(with, 0, a.vocab()), row_of(without, 0, a.vocab()));  // position 0 does not turn
  EXPECT_NE(row_of(with, 39, a.vocab()), row_of(without, 39, a.vocab()));
  expect_refused(load_error(GgufWriter(w)
                                .erase_tensor("rope_freqs.weight")
                                .tensor_f32("rope_freqs.weight", {8}, std::vector<float>(8, 0.0f))),
                 {"rope_freqs.weight", "positive"});
  expect_refused(load_error(GgufWriter(w)
                                .erase_tensor("rope_freqs.weight")
                                .tensor_f32("rope_freqs.weight", {4}, std::vector<float>(4, 1.0f))),
                 {"rope_freqs.weight", "expected shape [8]"});
}

}  // namespace
}  // namespace deepmint::dense
