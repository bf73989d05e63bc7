// What the loader must refuse, one change at a time: every tensor missing, mis-shaped, mis-typed,
// an extra one, and each inconsistent configuration value. The message must name the culprit.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "model/deepseek_v41/model.h"
#include "model/deepseek_v41/synth.h"

namespace deepmint::v41 {
namespace {

using nlohmann::ordered_json;

std::string read(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
void write(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

class Load : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ =
        std::filesystem::temp_directory_path() / ("deepmint_v41_load_" + std::to_string(getpid()));
    std::filesystem::remove_all(folder_);
    ASSERT_TRUE(synthesize(synth_config(SynthPreset::kTiny), folder_));
    config_ = ordered_json::parse(read(folder_ / "config.json"));
    weights_ = read(folder_ / "model.safetensors");
    uint64_t size = 0;
    std::memcpy(&size, weights_.data(), 8);
    header_ = ordered_json::parse(weights_.substr(8, size));
    data_ = weights_.substr(8 + size);
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(folder_); }
  void TearDown() override {
    write(folder_ / "config.json", config_.dump());
    write(folder_ / "model.safetensors", weights_);
  }

  std::string load_error() {
    auto model = V41Model::load(folder_, make_reference_arithmetic());
    return model ? "" : model.error().str();
  }
  std::string with_config(const std::function<void(ordered_json&)>& change) {
    ordered_json c = config_;
    change(c);
    write(folder_ / "config.json", c.dump());
    return load_error();
  }
  std::string with_header(const std::function<void(ordered_json&)>& change) {
    ordered_json h = header_;
    change(h);
    std::string text = h.dump();
    text.append((8 - text.size() % 8) % 8, ' ');
    const uint64_t size = text.size();
    write(folder_ / "model.safetensors",
          std::string(reinterpret_cast<const char*>(&size), 8) + text + data_);
    return load_error();
  }

  static std::filesystem::path folder_;
  static ordered_json config_, header_;
  static std::string weights_, data_;
};
std::filesystem::path Load::folder_;
ordered_json Load::config_, Load::header_;
std::string Load::weights_, Load::data_;

TEST_F(Load, TheCheckpointItselfLoads) { EXPECT_EQ(load_error(), ""); }

TEST_F(Load, EveryTensorIsNeededUnderItsNameAndType) {
  size_t checked = 0;
  for (const auto& [name, entry] : header_.items()) {
    if (name.find("experts.") != std::string::npos && name.find("experts.3.") == std::string::npos)
      continue;
    ++checked;
    // Renamed: the old name is missing. Renamed into another family's prefix, only that is wrong.
    const std::string missing = with_header([&](ordered_json& h) {
      h["mtp.0.moved"] = h[name];
      h.erase(name);
    });
    EXPECT_NE(missing.find('"' + name + '"'), std::string::npos) << name << ": " << missing;
    EXPECT_NE(missing.find("no such tensor"), std::string::npos) << missing;
    const std::string shape = with_header([&](ordered_json& h) { h[name]["shape"].push_back(1); });
    EXPECT_NE(shape.find('"' + name + '"'), std::string::npos) << name << ": " << shape;
    EXPECT_NE(shape.find("expected ["), std::string::npos) << shape;
  }
  EXPECT_GT(checked, 200u);
}

TEST_F(Load, WrongTypesAndExtraTensorsAreNamed) {
  const std::string type =
      with_header([](ordered_json& h) { h["layers.0.attn.wq_a.weight"]["dtype"] = "U8"; });
  EXPECT_NE(type.find("layers.0.attn.wq_a.weight"), std::string::npos) << type;
  EXPECT_NE(type.find("expected [64, 128] F8_E4M3, found [64, 128] U8"), std::string::npos) << type;
  const std::string extra = with_header([](ordered_json& h) {
    h["layers.0.attn.bias"] = h["layers.0.attn.attn_sink"];
    h["layers.0.attn.bias"]["shape"] = {0};
    h["layers.0.attn.bias"]["data_offsets"] = {0, 0};
  });
  EXPECT_NE(extra.find("layers.0.attn.bias"), std::string::npos) << extra;
  for (const char* other : {"vision.a", "aligner.b", "image_newline", "mtp.0.c"}) {
    EXPECT_EQ(with_header([&](ordered_json& h) {
                h[other] = {{"dtype", "F32"}, {"shape", {0}}, {"data_offsets", {0, 0}}};
              }),
              "")
        << other;
  }
}

TEST_F(Load, InconsistentConfigurationIsNamed) {
  struct Case {
    const char* field;
    ordered_json value;
    const char* says;
  };
  const std::vector<Case> cases = {
      {"compress_ratios", {0, 0, 2, 2, 2, 1, 1, 1}, "compress_ratios"},
      {"compress_ratios", {0, 0, 3, 3, 2, 1, 1, 1, 1}, "compress_ratios"},
      {"compress_ratios", {0, 0, 2, 1, 2, 1, 1, 1, 1}, "compress_ratios"},
      {"kv_source_layer_ids", {2, 4, 9}, "kv_source_layer_ids"},
      {"kv_source_layer_ids", {4, 5}, "kv_source_layer_ids"},
      {"kv_source_layer_ids", {5, 4, 2}, "kv_source_layer_ids"},
      {"index_source_layer_ids", {2, 5, 7}, "index_source_layer_ids"},
      {"index_source_layer_ids", {2, 4, 5, 70}, "index_source_layer_ids"},
      {"candidate_topk_blocks", 2, "candidate_topk_blocks"},
      {"candidate_source_layer_id", 6, "candidate_source_layer_id"},
      {"vocab_size", 511, "embed.weight"},
      {"engram_num_embeddings", {630, 835}, "engram_num_embeddings"},
      {"engram_num_embeddings", {630}, "engram_num_embeddings"},
      {"engram_layer_ids", {1, 9}, "engram_layer_ids"},
      {"hidden_size", 130, "hidden_size"},
      {"hidden_size", -5, "hidden_size"},
      {"hidden_size", "128", "hidden_size"},
      {"head_dim", 1e300, "head_dim"},
      {"num_attention_heads", 7, "o_groups"},
      {"qk_rope_head_dim", 66, "qk_rope_head_dim"},
      {"num_experts_per_tok", 17, "num_experts_per_tok"},
      {"scoring_func", "softmax", "scoring_func"},
      {"hidden_act", "gelu", "hidden_act"},
      {"attention_bias", true, "attention_bias"},
      {"tie_word_embeddings", true, "tie_word_embeddings"},
      {"n_shared_experts", 2, "n_shared_experts"},
      {"topk_method", "greedy", "topk_method"},
      {"first_k_dense_replace", 3, "first_k_dense_replace"},
      {"n_group", 8, "n_group"},
  };
  for (const Case& c : cases) {
    const std::string error =
        with_config([&](ordered_json& j) { j["text_config"][c.field] = c.value; });
    EXPECT_NE(error.find(c.says), std::string::npos)
        << c.field << " = " << c.value << ": " << error;
    EXPECT_NE(error.find("expected"), std::string::npos) << error;
  }
  for (const char* field : {"vocab_size", "hidden_size", "sliding_window", "compress_ratios",
                            "swiglu_limit", "rms_norm_eps", "hc_mult", "engram_layer_ids",
                            "index_topk", "kv_source_layer_ids", "compress_rope_theta"}) {
    const std::string error = with_config([&](ordered_json& j) { j["text_config"].erase(field); });
    EXPECT_NE(error.find(field), std::string::npos) << error;
  }
  EXPECT_NE(with_config([](ordered_json& j) {
              j["text_config"]["rope_scaling"]["type"] = "linear";
            }).find("rope_scaling"),
            std::string::npos);
  EXPECT_NE(with_config([](ordered_json& j) {
              j["quantization_config"]["weight_block_size"] = {128, 128};
            }).find("weight_block_size"),
            std::string::npos);
  EXPECT_NE(with_config([](ordered_json& j) { j.erase("x_engram_map"); }).find("x_engram_map"),
            std::string::npos);
  write(folder_ / "config.json", "[1, 2");
  EXPECT_NE(load_error().find("invalid JSON"), std::string::npos);
}

TEST_F(Load, TheFlatConfigurationIsTheSame) {
  const ordered_json flat_names = {{"hidden_size", "dim"},
                                   {"num_hidden_layers", "n_layers"},
                                   {"num_attention_heads", "n_heads"},
                                   {"qk_rope_head_dim", "rope_head_dim"},
                                   {"moe_intermediate_size", "moe_inter_dim"},
                                   {"num_experts_per_tok", "n_activated_experts"},
                                   {"scoring_func", "score_func"},
                                   {"routed_scaling_factor", "route_scale"},
                                   {"rms_norm_eps", "norm_eps"},
                                   {"sliding_window", "window_size"},
                                   {"kv_source_layer_ids", "kv_source_layers"},
                                   {"index_source_layer_ids", "index_source_layers"},
                                   {"max_position_embeddings", "max_seq_len"},
                                   {"num_nextn_predict_layers", "n_mtp_layers"},
                                   {"engram_pad_token_id", "engram_pad_id"}};
  const std::string error = with_config([&](ordered_json& j) {
    ordered_json flat;
    for (const auto& [key, value] : j["text_config"].items()) {
      if (key == "rope_scaling") {
        flat["rope_factor"] = value["factor"];
        flat["beta_fast"] = value["beta_fast"];
        flat["beta_slow"] = value["beta_slow"];
        flat["original_seq_len"] = value["original_max_position_embeddings"];
      } else if (key != "norm_topk_prob" && key != "model_type") {
        flat[flat_names.contains(key) ? flat_names[key].get<std::string>() : key] = value;
      }
    }
    flat["x_engram_map"] = "tiny";
    j = flat;
  });
  EXPECT_EQ(error, "");
}

}  // namespace
}  // namespace deepmint::v41
