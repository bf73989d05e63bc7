// Files that the published writers made: tests/golden/formats/PROVENANCE.md.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "format/gguf.h"
#include "format/safetensors.h"
#include "support/source_dir.h"
#include "support/tiny_model.h"

namespace deepmint {
namespace {

const std::filesystem::path kFolder = testing::source_path("tests/golden/formats");

// Element i of every tensor.
int expected_value(size_t i) { return static_cast<int>(i % 7) - 3; }

template <class T>
void expect_values(const TensorView* t) {
  ASSERT_NE(t, nullptr);
  ASSERT_EQ(t->bytes.size(), t->elements() * sizeof(T)) << t->name;
  for (size_t i = 0; i < t->elements(); ++i) {
    T value;
    std::memcpy(&value, t->bytes.data() + i * sizeof(T), sizeof(T));
    ASSERT_EQ(value, static_cast<T>(expected_value(i))) << t->name << " " << i;
  }
}
void expect_half_values(const TensorView* t, uint16_t (*encode)(float)) {
  ASSERT_NE(t, nullptr);
  ASSERT_EQ(t->bytes.size(), t->elements() * 2) << t->name;
  for (size_t i = 0; i < t->elements(); ++i) {
    uint16_t value = 0;
    std::memcpy(&value, t->bytes.data() + i * 2, 2);
    ASSERT_EQ(value, encode(static_cast<float>(expected_value(i)))) << t->name << " " << i;
  }
}

TEST(Golden, GgufOfThePublishedWriter) {
  const auto file = GgufFile::open(kFolder / "published.gguf");
  ASSERT_TRUE(file) << file.error().str();
  EXPECT_EQ(file->version(), 3u);
  EXPECT_EQ(*file->string("general.architecture"), "llama");
  EXPECT_EQ(*file->integer("general.alignment"), 64);
  EXPECT_EQ(*file->integer("x.u8"), 200);
  EXPECT_EQ(*file->integer("x.i8"), -100);
  EXPECT_EQ(*file->integer("x.u16"), 60000);
  EXPECT_EQ(*file->integer("x.i16"), -30000);
  EXPECT_EQ(*file->integer("llama.block_count"), 2);
  EXPECT_EQ(*file->integer("x.i32"), -2000000000);
  EXPECT_EQ(std::get<uint64_t>(file->find("x.u64")->data), (uint64_t{1} << 63) + 1);
  EXPECT_EQ(*file->integer("x.i64"), INT64_MIN);
  EXPECT_EQ(*file->number("llama.rope.freq_base"), 10000.0);
  EXPECT_EQ(*file->number("x.f64"), 0.1);
  EXPECT_TRUE(*file->boolean("x.bool"));
  EXPECT_EQ(*file->strings("tokenizer.ggml.tokens"),
            (std::vector<std::string_view>{"<s>", "é", "Ġ the"}));
  EXPECT_EQ(*file->integers("tokenizer.ggml.token_type"), (std::vector<int64_t>{3, 1, 1}));
  EXPECT_EQ(*file->numbers("tokenizer.ggml.scores"), (std::vector<double>{0.0, -1.5, -2.5}));
  const auto& nested = std::get<std::vector<GgufFile::Value>>(
      std::get<GgufFile::Array>(file->find("x.nested")->data));
  ASSERT_EQ(nested.size(), 2u);

  ASSERT_EQ(file->tensors().size(), 8u);
  expect_values<float>(file->tensor("plain.f32"));
  expect_half_values(file->tensor("plain.f16"), testing::to_f16);
  expect_half_values(file->tensor("block.BF16"), testing::to_bf16);
  EXPECT_EQ(file->tensor("plain.f16")->shape, (std::vector<uint64_t>{3, 5}));
  for (const DType type : {DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1}) {
    const TensorView* t = file->tensor("block." + std::string(info(type).name));
    ASSERT_NE(t, nullptr) << info(type).name;
    EXPECT_EQ(t->dtype, type);
    EXPECT_EQ(t->shape, (std::vector<uint64_t>{2, 64}));
    EXPECT_EQ(t->file_offset % 64, 0u);
  }
}

TEST(Golden, SafetensorsOfThePublishedWriter) {
  const auto model = SafetensorsModel::open(kFolder / "published.safetensors");
  ASSERT_TRUE(model) << model.error().str();
  EXPECT_EQ(model->metadata().at("quote"), "\"é\"");
  EXPECT_EQ(model->tensors().size(), 7u);
  expect_values<float>(model->tensor("f32"));
  expect_half_values(model->tensor("f16"), testing::to_f16);
  expect_values<int8_t>(model->tensor("i8"));
  expect_values<uint8_t>(model->tensor("u8"));
  expect_values<int32_t>(model->tensor("i32"));
  expect_values<int64_t>(model->tensor("i64"));
  const TensorView* scalar = model->tensor("scalar");
  ASSERT_NE(scalar, nullptr);
  EXPECT_TRUE(scalar->shape.empty());
  float value = 0;
  std::memcpy(&value, scalar->bytes.data(), sizeof(value));
  EXPECT_EQ(value, 2.5f);
}

// The seeds of tests/fuzz/make_corpus.py are built without our writers too.
TEST(Golden, FuzzSeedsOpenOrNameTheirFault) {
  const std::filesystem::path corpus = testing::source_path("tests/fuzz/corpus");
  for (const char* whole : {"empty", "llama", "llama-v2", "every-scalar", "every-array",
                            "every-tensor-type", "scalar-tensor", "alignment-64"}) {
    const auto file = GgufFile::open(corpus / "gguf" / whole);
    EXPECT_TRUE(file) << file.error().str();
  }
  for (const char* broken : {"split", "big-endian", "unsupported-type", "truncated"})
    EXPECT_FALSE(GgufFile::open(corpus / "gguf" / broken)) << broken;
  for (const char* whole : {"empty", "every-type", "padded", "zero-elements"}) {
    const auto file = SafetensorsModel::open(corpus / "safetensors" / whole);
    EXPECT_TRUE(file) << file.error().str();
  }
  for (const char* broken :
       {"overlap", "hole", "huge-shape", "unsupported-type", "duplicate", "long-header"})
    EXPECT_FALSE(SafetensorsModel::open(corpus / "safetensors" / broken)) << broken;
}

}  // namespace
}  // namespace deepmint
