// The official preset against the counts that the specification gives for the real checkpoint, and
// the memory plan made from it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <set>

#include "model/deepseek_v41/memory_plan.h"
#include "model/deepseek_v41/synth_tensors.h"

namespace deepmint::v41 {
namespace {

class Official : public testing::Test {
 protected:
  Official() {
    SynthOptions options;
    options.official_files = options.sparse = true;
    tensors_ = synth_tensors(config_, options);
  }
  Config config_ = synth_config(SynthPreset::kOfficial);
  std::vector<SynthTensor> tensors_;
};

TEST_F(Official, HasTheTensorsAndBytesOfTheRealCheckpoint) {
  uint64_t bytes = 0, draft_bytes = 0, vision_bytes = 0, vision = 0, draft = 0;
  std::map<int, int> per_layer;
  std::set<std::string> names;
  std::map<int, std::set<std::string>> files;
  for (const SynthTensor& t : tensors_) {
    EXPECT_TRUE(names.insert(t.name).second) << t.name;
    bytes += t.bytes;
    if (t.name.starts_with("layers.")) ++per_layer[std::stoi(t.name.substr(7))];
    if (t.name.starts_with("mtp.")) ++draft, draft_bytes += t.bytes;
    if (t.file == 0 || t.name.starts_with("image_")) ++vision, vision_bytes += t.bytes;
    if (t.name.find(".experts.") == std::string::npos) files[t.file].insert(t.name);
  }
  // spec model.md 1.3 and 2, dspark.md 2, vision.md 3.
  EXPECT_EQ(tensors_.size(), 96085u);
  EXPECT_EQ(bytes, 510286023000u);
  EXPECT_EQ(draft, 2401u);
  EXPECT_EQ(draft_bytes, 7932874632u);
  EXPECT_EQ(vision, 266u);
  EXPECT_EQ(vision_bytes, 970536960u);
  ASSERT_EQ(per_layer.size(), 40u);
  for (const auto& [layer, count] : per_layer) {
    const int want = layer == 1                                                 ? 2340
                     : layer == 2 || layer == 8                                 ? 2342
                     : layer == 14                                              ? 2348
                     : layer == 20                                              ? 2341
                     : layer == 24 || layer == 28 || layer == 32 || layer == 36 ? 2337
                                                                                : 2334;
    EXPECT_EQ(count, want) << "layer " << layer;
  }
  ASSERT_EQ(files.size(), 48u);
  EXPECT_TRUE(files[1].contains("embed.weight") && files[1].contains("image_newline"));
  EXPECT_TRUE(files[2].contains("layers.0.attn_norm.weight"));
  EXPECT_TRUE(files[41].contains("layers.39.attn_norm.weight"));
  EXPECT_TRUE(files[42].contains("head.weight") && files[42].contains("norm.weight"));
  EXPECT_TRUE(files[43].contains("mtp.0.main_proj.weight"));
  EXPECT_TRUE(files[45].contains("mtp.2.confidence_head.proj.weight"));
  EXPECT_TRUE(files[46].contains("layers.1.engram.embed.weight"));
  EXPECT_TRUE(files[47].contains("layers.14.engram.wkv.scale"));
}

TEST(Vocabulary, OfTheOfficialTokenizerComesWithItsSpecialIds) {
  Config c = synth_config(SynthPreset::kTiny);
  set_vocab(c, 129280);
  EXPECT_EQ(c.vocab, 129280);
  EXPECT_EQ(c.image_token, 129264);
  EXPECT_EQ(c.noise_token, 128799);
  set_vocab(c, 1000);
  EXPECT_EQ(c.image_token, -1);
  const auto rows_of = [](const std::vector<SynthTensor>& tensors, std::string_view name) {
    for (const SynthTensor& t : tensors)
      if (t.name == name) return t.shape.front();
    return int64_t{-1};
  };
  const std::vector<SynthTensor> tensors = synth_tensors(c, {});
  EXPECT_EQ(rows_of(tensors, "embed.weight"), 1000);
  EXPECT_EQ(rows_of(tensors, "head.weight"), 1000);
}

TEST_F(Official, SparseFilesHoldOneSetOfExpertsAndTheSmallTensors) {
  uint64_t real = 0;
  int experts = 0;
  for (const SynthTensor& t : tensors_) {
    if (t.hole) continue;
    real += t.bytes;
    experts += t.name.find(".experts.") != std::string::npos && t.name.ends_with(".w1.weight");
  }
  EXPECT_EQ(experts, 6);
  EXPECT_LT(real, uint64_t{4} << 30);
  EXPECT_GT(real, uint64_t{2} << 30);
}

TEST_F(Official, MemoryIsPlannedByUse) {
  Footprint f;
  for (const SynthTensor& t : tensors_) {
    switch (tensor_use(t.name)) {
      case TensorUse::kDense:
        f.dense += t.bytes;
        break;
      case TensorUse::kExpert:
        f.experts += t.bytes;
        break;
      case TensorUse::kEngramTable:
        f.engram_tables += t.bytes;
        break;
      case TensorUse::kOther:
        f.other += t.bytes;
        break;
    }
  }
  // Routed experts: 40 layers x 384 x 3 matrices of 2304 x 5120 at 4.25 bits.
  EXPECT_EQ(f.experts, uint64_t{40} * 384 * 3 * 2304 * 5120 * 17 / 32);
  EXPECT_EQ(f.engram_tables, uint64_t{384006168 + 384016682} * 264);
  constexpr uint64_t kGiB = uint64_t{1} << 30;

  const auto small = plan_memory(f, ExpertPlacement::kAuto, 24 * kGiB);
  ASSERT_TRUE(small);
  EXPECT_FALSE(small->experts_resident);
  EXPECT_EQ(small->resident_bytes(), f.dense);
  EXPECT_EQ(small->mapped_bytes(), f.experts + f.engram_tables);
  EXPECT_NE(small->statement().find("9.2 GiB resident"), std::string::npos) << small->statement();

  const auto large = plan_memory(f, ExpertPlacement::kAuto, 400 * kGiB);
  ASSERT_TRUE(large);
  EXPECT_TRUE(large->experts_resident);
  EXPECT_EQ(large->mapped_bytes(), f.engram_tables);

  const auto none = plan_memory(f, ExpertPlacement::kAuto, 8 * kGiB);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kResourceExhausted);
  EXPECT_NE(none.error().message.find("found 8.0 GiB"), std::string::npos) << none.error().str();
  const auto forced = plan_memory(f, ExpertPlacement::kResident, 24 * kGiB);
  ASSERT_FALSE(forced);
  EXPECT_NE(forced.error().message.find("mapped experts need less"), std::string::npos);
}

TEST(Synth, NeverWritesOverACheckpoint) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("deepmint_synth_" + std::to_string(getpid()));
  std::filesystem::remove_all(folder);
  const Config config = synth_config(SynthPreset::kTiny);
  ASSERT_TRUE(synthesize(config, folder));
  const auto again = synthesize(config, folder, {.seed = 3});
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, ErrorCode::kInvalidArgument);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace deepmint::v41
