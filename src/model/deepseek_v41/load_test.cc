// What the loader must refuse, one change at a time: every tensor missing, mis-shaped, mis-typed,
// an extra one, and each inconsistent configuration value. The message must name the culprit.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "core/aligned.h"
#include "model/deepseek_v41/model.h"
#include "model/deepseek_v41/synth.h"
#include "model/deepseek_v41/verify.h"

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

  // Sets one byte of a tensor to `value`.
  void with_byte(const std::string& tensor, size_t at, uint8_t value) {
    std::string bytes = weights_;
    const size_t begin =
        weights_.size() - data_.size() + header_[tensor]["data_offsets"][0].get<size_t>();
    bytes[begin + at] = static_cast<char>(value);
    write(folder_ / "model.safetensors", bytes);
  }
  // Runs tokens 1, 2, 3, … of one sequence; the error, or "".
  std::string run_error(V41Options options, int tokens) {
    auto model = V41Model::load(folder_, make_reference_arithmetic(), std::move(options));
    if (!model) return "load: " + model.error().str();
    const auto size = static_cast<size_t>(tokens);
    EXPECT_TRUE((*model)->reserve(size, 1));
    std::vector<AlignedBuffer<std::byte>> buffers;
    std::vector<PartMemory> memory;
    for (const StatePart& part : (*model)->state_parts()) {
      buffers.emplace_back(2 * part.bytes);
      memory.push_back({buffers.back().data(), 2});
    }
    const std::array<BlockId, 2> blocks = {BlockId(0), BlockId(1)};
    const SequenceRef sequence = {blocks, SlotId(0)};
    std::vector<Row> rows(size);
    for (int i = 0; i < tokens; ++i) {
      rows[static_cast<size_t>(i)].position = i;
      rows[static_cast<size_t>(i)].token = 1 + i;
    }
    const auto ok =
        (*model)->forward({rows, std::span(&sequence, 1), memory}, std::span<float>(), nullptr);
    return ok ? "" : ok.error().str();
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
    // Another type of the same size, so that nothing but the type is wrong.
    const std::map<std::string, std::string> other = {
        {"BF16", "F16"}, {"F32", "I32"}, {"F8_E4M3", "U8"}, {"F8_E8M0", "U8"}, {"I8", "U8"}};
    const std::string type = entry["dtype"].get<std::string>();
    const std::string mistyped =
        with_header([&](ordered_json& h) { h[name]["dtype"] = other.at(type); });
    EXPECT_NE(mistyped.find('"' + name + '"'), std::string::npos) << name << ": " << mistyped;
    EXPECT_NE(mistyped.find("] " + type + ", found ["), std::string::npos) << mistyped;
    EXPECT_NE(mistyped.find("] " + other.at(type)), std::string::npos) << mistyped;
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
      {"engram_layer_ids", {1, 1}, "engram_layer_ids"},
      {"engram_layer_ids", {4, 1}, "engram_layer_ids"},
      {"engram_pad_token_id", 512, "engram_pad_token_id"},
      {"engram_n_heads", 86, "engram_n_heads"},  // 258 columns
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

TEST_F(Load, NaNScalesOfDenseTensorsAreNamedAtLoad) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"layers.3.attn.wkv.scale", "NaN in row 1, column 1"},  // [2, 4]
      {"layers.1.engram.wkv.scale", "NaN in row 0, column 5"},
      {"layers.8.ffn.shared_experts.w2.scale", "NaN in row 2, column 1"}};
  for (const auto& [tensor, place] : cases) {
    with_byte(tensor, 5, 255);
    const std::string error = load_error();
    EXPECT_NE(error.find('"' + tensor + '"'), std::string::npos) << error;
    EXPECT_NE(error.find(place), std::string::npos) << error;
  }
}

TEST_F(Load, NaNScalesOfExpertsAreNamedAtLoadOrOnFirstTouch) {
  // Some expert of layer 0 that 40 tokens do use: all of its layer's are damaged in turn.
  V41Options mapped, resident;
  mapped.experts = ExpertPlacement::kMapped;
  resident.experts = ExpertPlacement::kResident;
  int touched = 0;
  for (int expert = 0; expert < 16; expert += 3) {
    const std::string tensor = "layers.0.ffn.experts." + std::to_string(expert) + ".w2.scale";
    with_byte(tensor, 9, 255);
    EXPECT_NE(run_error(resident, 1).find("load: "), std::string::npos);
    const std::string error = run_error(mapped, 40);
    if (error.empty()) continue;
    ++touched;
    EXPECT_NE(error.find('"' + tensor + '"'), std::string::npos) << error;
    EXPECT_NE(error.find("NaN in row 4, column 1"), std::string::npos) << error;
    EXPECT_EQ(error.find("load: "), std::string::npos) << error;
  }
  EXPECT_GT(touched, 2);
}

TEST_F(Load, ExpertScalesThatBf16CannotHoldAreNamedWhereverTheyAreRead) {
  V41Options mapped, resident;
  mapped.experts = ExpertPlacement::kMapped;
  resident.experts = ExpertPlacement::kResident;
  int touched = 0;
  for (const auto& [value, found] :
       {std::pair<uint8_t, const char*>{253, "found 253"}, {1, "found 1"}})
    for (int expert = 0; expert < 16; expert += 5) {
      const std::string tensor = "layers.0.ffn.experts." + std::to_string(expert) + ".w1";
      with_byte(tensor + ".scale", 5, value);  // [64, 4]
      const auto says = [&](const std::string& error) {
        EXPECT_NE(error.find('"' + tensor + ".weight\""), std::string::npos) << error;
        EXPECT_NE(error.find("expected scales from 2 to 252"), std::string::npos) << error;
        EXPECT_NE(error.find(std::string(found) + " in row 1, column 1"), std::string::npos)
            << error;
      };
      const std::string loading = run_error(resident, 1);
      EXPECT_EQ(loading.substr(0, 6), "load: ");
      says(loading);
      const auto verified = verify_checkpoint(folder_, {.numbers = true});
      ASSERT_FALSE(verified);
      says(verified.error().str());
      const std::string error = run_error(mapped, 40);
      if (error.empty()) continue;  // no token chose it
      ++touched;
      says(error);
      EXPECT_EQ(error.find("load: "), std::string::npos) << error;
    }
  EXPECT_GT(touched, 2);
}

TEST_F(Load, NaNInEngramRowsIsNamedOnFirstTouch) {
  const size_t rows = header_["layers.1.engram.embed.scale"]["shape"][0].get<size_t>();
  int touched = 0;
  for (size_t row = 0; row < rows; row += 23) {
    with_byte("layers.1.engram.embed.scale", row, 255);
    const std::string error = run_error({}, 40);
    if (error.empty()) continue;
    ++touched;
    EXPECT_NE(error.find("layers.1.engram.embed"), std::string::npos) << error;
    EXPECT_NE(error.find("NaN in row " + std::to_string(row)), std::string::npos) << error;
  }
  EXPECT_GT(touched, 1);
}

TEST_F(Load, VerifyReadsEveryNumber) {
  const auto error = [this] {
    const auto ok = verify_checkpoint(folder_, {.numbers = true});
    return ok ? "" : ok.error().str();
  };
  EXPECT_EQ(error(), "");
  struct Case {
    const char* tensor;
    size_t at;
    uint8_t value;
    const char* says;
  };
  for (const Case& c :
       std::vector<Case>{{"layers.4.ffn.experts.11.w3.scale", 255, 255, "row 63, column 3"},
                         {"layers.4.engram.embed.weight", 70, 0x7F, "row 2, column 6"},
                         {"layers.4.attn.wq_b.weight", 4097, 0xFF, "row 64, column 1"},
                         {"head.weight", 257, 0x7F, "row 1, column 0"},
                         {"layers.2.hc_attn_scale", 7, 0x7F, "column 1"}}) {
    with_byte(c.tensor, c.at, c.value);
    // BF16 and F32: the other exponent bits as well.
    if (std::string_view(c.tensor) == "head.weight" ||
        std::string_view(c.tensor) == "layers.2.hc_attn_scale") {
      std::string bytes = read(folder_ / "model.safetensors");
      const size_t begin =
          weights_.size() - data_.size() + header_[c.tensor]["data_offsets"][0].get<size_t>();
      bytes[begin + c.at - 1] = static_cast<char>(0x80);
      write(folder_ / "model.safetensors", bytes);
    }
    const std::string found = error();
    EXPECT_NE(found.find(c.tensor), std::string::npos) << found;
    EXPECT_NE(found.find(c.says), std::string::npos) << found;
    EXPECT_TRUE(verify_checkpoint(folder_));  // names and shapes are those of a whole one
  }
  // Finite, and yet nothing that the fast arithmetic could hold.
  for (const auto& [value, says] :
       {std::pair<uint8_t, const char*>{247, "found 247"}, {9, "found 9"}})
    for (const char* matrix :
         {"layers.4.attn.wq_b", "layers.0.ffn.shared_experts.w2", "layers.1.engram.wkv"}) {
      with_byte(std::string(matrix) + ".scale", 1, value);
      const std::string found = error();
      EXPECT_NE(found.find('"' + std::string(matrix) + ".weight\""), std::string::npos) << found;
      EXPECT_NE(found.find("expected scales from 10 to 246, " + std::string(says)),
                std::string::npos)
          << found;
    }
  EXPECT_TRUE(is_v41_checkpoint(folder_));
  EXPECT_FALSE(is_v41_checkpoint(folder_ / "none"));
}

TEST_F(Load, AMapOfAnotherVocabularyIsRefused) {
  const auto error = [this](std::vector<int32_t> map) {
    auto model = V41Model::load(folder_, make_reference_arithmetic(), {.engram_map = map});
    return model ? "" : model.error().str();
  };
  std::vector<int32_t> map(512);
  for (int i = 0; i < 512; ++i) map[static_cast<size_t>(i)] = i % 400;
  EXPECT_EQ(error(map), "");
  EXPECT_NE(error(std::vector<int32_t>(511, 0)).find("512 ids, found 511"), std::string::npos);
  EXPECT_NE(error(std::vector<int32_t>(512, 7)).find("400 compressed ids"), std::string::npos);
  map[3] = -1;
  EXPECT_NE(error(map).find("compressed ids"), std::string::npos);
}

}  // namespace
}  // namespace deepmint::v41
