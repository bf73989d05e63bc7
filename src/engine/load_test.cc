// From a path to something that can answer, and every way in which that can fail.
#include "engine/load.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "support/tiny_model.h"

namespace deepmint {
namespace {

namespace fs = std::filesystem;
using testing::tiny_gguf;
using testing::TinyModel;

class LoadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("deepmint_load_" + std::to_string(getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path write_gguf(testing::GgufWriter writer) {
    const fs::path path = folder_ / "model.gguf";
    writer.write(path);
    return path;
  }
  fs::path write_hf() {
    TinyModel tiny;
    tiny.weights = tiny.embedding = DType::kBF16;
    const fs::path path = folder_ / "hf";
    testing::write_tiny_hf(tiny, path);
    return path;
  }
  static void put(const fs::path& path, std::string_view text) {
    std::ofstream(path, std::ios::binary) << text;
  }
  static Error error_of(const fs::path& path) {
    const auto loaded = load_model(path, {.threads = 1});
    if (loaded) return {ErrorCode::kInternal, "loaded", {}};
    EXPECT_EQ(loaded.error().str().find('\n'), std::string::npos) << loaded.error().str();
    EXPECT_NE(loaded.error().str().find(path.filename().string()), std::string::npos)
        << loaded.error().str();
    return loaded.error();
  }

  fs::path folder_;
};

bool contains(const std::vector<TokenId>& ids, TokenId id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

TEST_F(LoadTest, GgufGivesModelTokenizerTemplateAndDefaults) {
  const fs::path path = write_gguf(tiny_gguf({}));
  double last = 0;
  const auto loaded = load_model(path, {.threads = 2}, [&](double fraction) {
    EXPECT_GE(fraction, last);
    last = fraction;
  });
  ASSERT_TRUE(loaded.has_value()) << loaded.error().str();
  EXPECT_EQ(last, 1.0);
  EXPECT_EQ(loaded->model->info().architecture, "llama");
  ASSERT_NE(loaded->tokenizer, nullptr);
  EXPECT_EQ(loaded->tokenizer->decode(loaded->tokenizer->encode_text("hello")), "hello");
  EXPECT_EQ(loaded->chat_template, testing::kChatMlTemplate);
  EXPECT_TRUE(contains(loaded->end_ids, testing::kTinyImEnd));
  EXPECT_EQ(loaded->threads, 2);
  EXPECT_EQ(loaded->pool->size(), 2);
  EXPECT_EQ(loaded->default_sampling.temperature, 1.0f);
  EXPECT_EQ(loaded->default_sampling.top_p, 1.0);
}

TEST_F(LoadTest, GgufRecommendationsBecomeDefaults) {
  auto w = tiny_gguf({});
  w.set("general.sampling.temp", 0.25f)
      .set("general.sampling.top_k", int32_t{20})
      .set("general.sampling.top_p", 0.5f);
  w.set("general.sampling.min_p", 0.125f).set("general.sampling.penalty_repeat", 1.5f);
  const auto loaded = load_model(write_gguf(std::move(w)), {.threads = 1});
  ASSERT_TRUE(loaded.has_value()) << loaded.error().str();
  EXPECT_EQ(loaded->default_sampling.temperature, 0.25f);
  EXPECT_EQ(loaded->default_sampling.top_k, 20);
  EXPECT_EQ(loaded->default_sampling.top_p, 0.5);
  EXPECT_EQ(loaded->default_sampling.min_p, 0.125f);
  EXPECT_EQ(loaded->default_sampling.repetition_penalty, 1.5f);
}

TEST_F(LoadTest, BadGgufFiles) {
  auto w = tiny_gguf({});
  w.set("general.sampling.temp", -1.0f);
  Error e = error_of(write_gguf(std::move(w)));
  EXPECT_EQ(e.code, ErrorCode::kInvalidFile);
  EXPECT_NE(e.str().find("temperature"), std::string::npos);
  w = tiny_gguf({});
  w.set("general.sampling.temp", "warm");
  EXPECT_EQ(error_of(write_gguf(std::move(w))).code, ErrorCode::kInvalidFile);
  w = tiny_gguf({});
  w.set("general.architecture", "mamba");
  e = error_of(write_gguf(std::move(w)));
  EXPECT_EQ(e.code, ErrorCode::kUnsupported);
  EXPECT_NE(e.message.find("\"mamba\""), std::string::npos);
  w = tiny_gguf({});
  w.set("tokenizer.ggml.pre", "unheard-of");
  e = error_of(write_gguf(std::move(w)));
  EXPECT_EQ(e.code, ErrorCode::kUnsupported);
  EXPECT_NE(e.str().find("unheard-of"), std::string::npos);

  const fs::path path = folder_ / "other.gguf";
  put(path, "");
  EXPECT_EQ(error_of(path).code, ErrorCode::kInvalidFile);
  put(path, "This is not a model, but a letter to my aunt.");
  EXPECT_EQ(error_of(path).code, ErrorCode::kInvalidFile);
  EXPECT_EQ(error_of(folder_ / "absent.gguf").code, ErrorCode::kNotFound);
  EXPECT_EQ(load_model(path, {.threads = -1}).error().where, "threads");
  EXPECT_EQ(load_model(path, {.threads = 100'000}).error().where, "threads");
  EXPECT_EQ(error_of("/dev/null").code, ErrorCode::kInvalidFile);
}

TEST_F(LoadTest, FolderGivesModelTokenizerAndDefaults) {
  const fs::path path = write_hf();
  put(path / "generation_config.json",
      R"({"eos_token_id": [1, 2], "temperature": 0.5, "top_p": 0.75, "top_k": 7, "repetition_penalty": 1.25, "do_sample": true, "x": {}})");
  put(path / "tokenizer_config.json",
      R"({"chat_template": [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}]})");
  auto loaded = load_model(path, {.threads = 1});
  ASSERT_TRUE(loaded.has_value()) << loaded.error().str();
  ASSERT_NE(loaded->tokenizer, nullptr);
  EXPECT_TRUE(contains(loaded->end_ids, 1));
  EXPECT_TRUE(contains(loaded->end_ids, 2));
  EXPECT_EQ(loaded->default_sampling.temperature, 0.5f);
  EXPECT_EQ(loaded->default_sampling.top_p, 0.75);
  EXPECT_EQ(loaded->default_sampling.top_k, 7);
  EXPECT_EQ(loaded->default_sampling.repetition_penalty, 1.25f);
  EXPECT_EQ(loaded->chat_template, "b");
  put(path / "chat_template.jinja", "c");
  put(path / "generation_config.json",
      R"({"eos_token_id": 3, "do_sample": false, "temperature": null})");
  loaded = load_model(path, {.threads = 1});
  ASSERT_TRUE(loaded.has_value()) << loaded.error().str();
  EXPECT_EQ(loaded->chat_template, "c");
  EXPECT_TRUE(contains(loaded->end_ids, 3));
  EXPECT_EQ(loaded->default_sampling.temperature, 0.0f);
}

TEST_F(LoadTest, FolderWithoutTokenizerWorksOnIds) {
  const fs::path path = write_hf();
  fs::remove(path / "tokenizer.json");
  fs::remove(path / "tokenizer_config.json");
  const auto loaded = load_model(path, {.threads = 1});
  ASSERT_TRUE(loaded.has_value()) << loaded.error().str();
  EXPECT_EQ(loaded->tokenizer, nullptr);
  EXPECT_TRUE(make_engine(*loaded, {.kv_bytes = 1 << 22}).has_value());
}

TEST_F(LoadTest, BadFolders) {
  EXPECT_EQ(error_of(folder_).code, ErrorCode::kNotFound);  // no config.json
  const fs::path path = write_hf();
  put(path / "config.json", "{");
  EXPECT_EQ(error_of(path).code, ErrorCode::kInvalidFile);
  put(path / "config.json", "[]");
  EXPECT_EQ(error_of(path).code, ErrorCode::kInvalidFile);
  put(path / "config.json", "{}");
  EXPECT_EQ(error_of(path).code, ErrorCode::kInvalidFile);
  put(path / "config.json", R"({"architectures": ["MambaForCausalLM"]})");
  const Error e = error_of(path);
  EXPECT_EQ(e.code, ErrorCode::kUnsupported);
  EXPECT_NE(e.message.find("\"MambaForCausalLM\""), std::string::npos);
  for (const char* generation :
       {"{", "3", R"({"temperature": "hot"})", R"({"temperature": -1})", R"({"top_p": 0})",
        R"({"eos_token_id": "x"})", R"({"eos_token_id": -1})", R"({"eos_token_id": 99999999})",
        R"({"eos_token_id": [1, 5000000000]})", R"({"temperature": 1e999})"}) {
    const fs::path whole = write_hf();
    put(whole / "generation_config.json", generation);
    EXPECT_EQ(error_of(whole).code, ErrorCode::kInvalidFile) << generation;
  }
  const fs::path whole = write_hf();
  fs::remove(whole / "generation_config.json");
  put(whole / "tokenizer.json", "{}");
  EXPECT_FALSE(load_model(whole, {.threads = 1}).has_value());
}

}  // namespace
}  // namespace deepmint
