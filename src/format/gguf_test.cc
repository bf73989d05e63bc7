#include "format/gguf.h"

#include <gtest/gtest.h>

#include "support/gguf_writer.h"
#include "support/safetensors_writer.h"
#include "support/tiny_model.h"

namespace deepmint {
namespace {

using testing::GgufWriter;
using testing::TempFolder;
using testing::tiny_gguf;
using testing::tiny_model_for;
using testing::TinyModel;

class Gguf : public ::testing::Test {
 protected:
  Result<GgufFile> open(const std::string& bytes) {
    testing::write_text(folder_ / "model.gguf", bytes);
    return GgufFile::open(folder_ / "model.gguf");
  }
  Result<GgufFile> open(GgufWriter w) { return open(w.bytes()); }

  TempFolder folder_;
};

TEST_F(Gguf, EveryTensorTypeHasTheBytesOfTheWriter) {
  for (const DType type :
       {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1,
        DType::kQ5_0, DType::kQ5_1, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K}) {
    const std::string bytes = testing::random_rows(type, 6, 512, 0.5f, 7);
    GgufWriter w;
    w.set("general.architecture", "x").tensor("first", DType::kF32, {1}, std::string(4, '\1'));
    w.tensor("t", type, {2, 3, 512}, bytes);
    auto file = open(w);
    ASSERT_TRUE(file) << file.error().str();
    const TensorView* t = file->tensor("t");
    ASSERT_NE(t, nullptr);
    EXPECT_EQ(t->dtype, type);
    EXPECT_EQ(t->shape, (std::vector<uint64_t>{2, 3, 512}));
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(t->bytes.data()), t->bytes.size()), bytes)
        << info(type).name;
    EXPECT_EQ(t->file_offset, static_cast<uint64_t>(t->bytes.data() - file->file().bytes().data()));
    EXPECT_EQ(file->tensor("u"), nullptr);
  }
}

TEST_F(Gguf, TinyModelsOpen) {
  for (const char* architecture : {"llama", "qwen2", "qwen3"})
    for (const bool tied : {true, false}) {
      auto file = open(tiny_gguf({.architecture = architecture, .tied = tied, .unused_tokens = 5}));
      ASSERT_TRUE(file) << file.error().str();
      EXPECT_EQ(*file->string("general.architecture"), architecture);
      EXPECT_EQ(*file->integer(std::string(architecture) + ".vocab_size"),
                static_cast<int64_t>(file->strings("tokenizer.ggml.tokens")->size()));
      EXPECT_EQ(file->tensor("output.weight") == nullptr, tied);
    }
  for (const DType type : {DType::kQ4_1, DType::kQ4_K, DType::kQ6_K}) {
    TinyModel tiny = tiny_model_for(type);
    auto file = open(tiny_gguf(tiny));
    ASSERT_TRUE(file) << file.error().str();
    EXPECT_EQ(file->tensor("blk.0.attn_q.weight")->dtype, type);
  }
}

}  // namespace
}  // namespace deepmint
