#include "engine/gguf_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>

#include "support/gguf_writer.h"
#include "support/source_dir.h"
#include "tokenizer/byte_level.h"

namespace deepmint {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::GgufWriter;
using ::testing::HasSubstr;

const std::vector<std::string> kTokens = {"<|im_start|>", "<|im_end|>", "<tool>", "a", "b", "Ġ",
                                          "ab",           "Ġab",        "[PAD]",  "1", "Ċ"};
const std::vector<int32_t> kTypes = {3, 3, 4, 1, 1, 1, 1, 1, 5, 1, 1};

GgufWriter valid_file() {
  GgufWriter w;
  w.set("general.architecture", "llama")
      .set("tokenizer.ggml.model", "gpt2")
      .set("tokenizer.ggml.pre", "smollm")
      .set_array("tokenizer.ggml.tokens", kTokens)
      .set_array("tokenizer.ggml.token_type", kTypes)
      .set_array("tokenizer.ggml.merges", std::vector<std::string>{"a b", "Ġ ab"})
      .set("tokenizer.ggml.bos_token_id", uint32_t{0})
      .set("tokenizer.ggml.eos_token_id", uint32_t{1});
  return w;
}

Result<TokenizerSpec> read(GgufWriter& w) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() /
      ("deepmint_gguf_tokenizer_" + std::to_string(::getpid()) + ".gguf");
  w.write(path);
  Result<TokenizerSpec> spec = [&]() -> Result<TokenizerSpec> {
    DEEPMINT_TRY(file, GgufFile::open(path));
    return tokenizer_spec_from_gguf(file);
  }();
  std::filesystem::remove(path);
  return spec;
}

TEST(GgufTokenizer, ReadsTokensTypesMergesAndSpecialIds) {
  GgufWriter w = valid_file();
  const auto spec = read(w);
  ASSERT_TRUE(spec) << spec.error().str();
  EXPECT_EQ(spec->vocab[5], " ");
  EXPECT_EQ(spec->vocab[10], "\n");
  EXPECT_EQ(spec->pre, PreTokenizer::kSmolLm);
  EXPECT_THAT(spec->merges, ElementsAre(std::pair(3, 4), std::pair(5, 6)));
  ASSERT_EQ(spec->added.size(), 3u);
  EXPECT_TRUE(spec->added[0].special);
  EXPECT_FALSE(spec->added[2].special);  // user defined: shown to a reader
  EXPECT_THAT(spec->decode_only, ElementsAre(8));
  EXPECT_EQ(spec->bos, 0);
  EXPECT_EQ(spec->eos, 1);
  EXPECT_FALSE(spec->add_bos);
  EXPECT_THAT(spec->end_ids, ElementsAre(1));

  const auto tokenizer = Tokenizer::create(*spec);
  ASSERT_TRUE(tokenizer) << tokenizer.error().str();
  EXPECT_THAT((*tokenizer)->encode_text(" ab1ab"), ElementsAre(7, 9, 6));
  EXPECT_THAT((*tokenizer)->encode_control("<|im_start|>a\n<tool>"), ElementsAre(0, 3, 10, 2));
  EXPECT_EQ((*tokenizer)->token_bytes(8), "[PAD]");
}

TEST(GgufTokenizer, FamiliesBringWhatTheMetadataLeavesOut) {
  struct Case {
    const char* name;
    PreTokenizer pre;
    Normalizer normalizer;
    bool ignore_merges, add_bos;
  };
  for (const Case& c :
       {Case{"gpt-2", PreTokenizer::kGpt2, Normalizer::kNone, false, false},
        Case{"llama-bpe", PreTokenizer::kLlama3, Normalizer::kNone, true, true},
        Case{"qwen2", PreTokenizer::kQwen2, Normalizer::kNfc, false, false},
        Case{"deepseek-v3", PreTokenizer::kDeepSeekV3, Normalizer::kNone, false, false}}) {
    GgufWriter w = valid_file();
    w.set("tokenizer.ggml.pre", c.name);
    const auto spec = read(w);
    ASSERT_TRUE(spec) << c.name << ": " << spec.error().str();
    EXPECT_EQ(spec->pre, c.pre) << c.name;
    EXPECT_EQ(spec->normalizer, c.normalizer) << c.name;
    EXPECT_EQ(spec->ignore_merges, c.ignore_merges) << c.name;
    EXPECT_EQ(spec->add_bos, c.add_bos) << c.name;
  }
}

TEST(GgufTokenizer, ByteTokensAreTheFallbackOfTheirByte) {
  GgufWriter w = valid_file();
  auto tokens = kTokens;
  auto types = kTypes;
  tokens.push_back("<0xFF>");
  types.push_back(6);
  w.set_array("tokenizer.ggml.tokens", tokens).set_array("tokenizer.ggml.token_type", types);
  const auto spec = read(w);
  ASSERT_TRUE(spec) << spec.error().str();
  const auto tokenizer = Tokenizer::create(*spec);
  ASSERT_TRUE(tokenizer);
  EXPECT_THAT((*tokenizer)->encode_text("a\xFF"), ElementsAre(3, 11));
  EXPECT_EQ((*tokenizer)->decode(std::vector<TokenId>{3, 11}), "a\xFF");
}

TEST(GgufTokenizer, WrongMetadataIsOneLineThatNamesTheKey) {
  struct Case {
    const char* what;
    std::function<void(GgufWriter&)> damage;
    ErrorCode code;
    std::vector<const char*> words;
  };
  const std::vector<Case> cases = {
      {"sentencepiece",
       [](auto& w) { w.set("tokenizer.ggml.model", "llama"); },
       ErrorCode::kUnsupported,
       {"tokenizer.ggml.model", "\"llama\""}},
      {"unknown pre-tokenizer",
       [](auto& w) { w.set("tokenizer.ggml.pre", "mystery-9"); },
       ErrorCode::kUnsupported,
       {"tokenizer.ggml.pre", "\"mystery-9\""}},
      {"no model",
       [](auto& w) { w.erase("tokenizer.ggml.model"); },
       ErrorCode::kInvalidFile,
       {"tokenizer.ggml.model"}},
      {"no pre",
       [](auto& w) { w.erase("tokenizer.ggml.pre"); },
       ErrorCode::kInvalidFile,
       {"tokenizer.ggml.pre"}},
      {"no tokens",
       [](auto& w) { w.erase("tokenizer.ggml.tokens"); },
       ErrorCode::kInvalidFile,
       {"tokenizer.ggml.tokens"}},
      {"no merges",
       [](auto& w) { w.erase("tokenizer.ggml.merges"); },
       ErrorCode::kInvalidFile,
       {"tokenizer.ggml.merges"}},
      {"tokens of numbers",
       [](auto& w) { w.set_array("tokenizer.ggml.tokens", std::vector<int32_t>{1, 2}); },
       ErrorCode::kInvalidFile,
       {"tokenizer.ggml.tokens"}},
      {"types too short",
       [](auto& w) { w.set_array("tokenizer.ggml.token_type", std::vector<int32_t>{1}); },
       ErrorCode::kInvalidFile,
       {"tokenizer.ggml.token_type", "11", "found 1"}},
      {"type 9",
       [](auto& w) {
         auto types = kTypes;
         types[4] = 9;
         w.set_array("tokenizer.ggml.token_type", types);
       },
       ErrorCode::kInvalidFile,
       {"token_type[4]", "found 9"}},
      {"merge of one word",
       [](auto& w) { w.set_array("tokenizer.ggml.merges", std::vector<std::string>{"ab"}); },
       ErrorCode::kInvalidFile,
       {"merges[0]", "\"ab\""}},
      {"empty merge",
       [](auto& w) { w.set_array("tokenizer.ggml.merges", std::vector<std::string>{""}); },
       ErrorCode::kInvalidFile,
       {"merges[0]"}},
      {"merge of unknown tokens",
       [](auto& w) { w.set_array("tokenizer.ggml.merges", std::vector<std::string>{"a zz"}); },
       ErrorCode::kInvalidFile,
       {"merges[0]", "\"a zz\""}},
      {"bos outside",
       [](auto& w) { w.set("tokenizer.ggml.bos_token_id", uint32_t{11}); },
       ErrorCode::kInvalidFile,
       {"bos_token_id", "11"}},
      {"eos negative",
       [](auto& w) { w.set("tokenizer.ggml.eos_token_id", int32_t{-7}); },
       ErrorCode::kInvalidFile,
       {"eos_token_id", "-7"}},
      {"empty control token",
       [](auto& w) {
         auto tokens = kTokens;
         tokens[1].clear();
         w.set_array("tokenizer.ggml.tokens", tokens);
       },
       ErrorCode::kInvalidFile,
       {"tokens[1]"}},
  };
  for (const Case& c : cases) {
    GgufWriter w = valid_file();
    c.damage(w);
    const auto spec = read(w);
    ASSERT_FALSE(spec) << c.what;
    EXPECT_EQ(spec.error().code, c.code) << c.what << ": " << spec.error().str();
    for (const char* word : c.words) EXPECT_THAT(spec.error().str(), HasSubstr(word)) << c.what;
    EXPECT_EQ(spec.error().str().find('\n'), std::string::npos);
  }
}

TEST(GgufTokenizer, AMergeWithoutItsResultIsRefusedAtCreation) {
  GgufWriter w = valid_file();
  w.set_array("tokenizer.ggml.merges", std::vector<std::string>{"b a"});
  const auto spec = read(w);
  ASSERT_TRUE(spec) << spec.error().str();
  const auto tokenizer = Tokenizer::create(*spec);
  ASSERT_FALSE(tokenizer);
  EXPECT_THAT(tokenizer.error().str(), AllOf(HasSubstr("merge 0"), HasSubstr("\"ba\"")));
}

TEST(GgufTokenizer, SmolLm2GivesItsPublishedIds) {
  const std::filesystem::path path = testing::source_path("models/SmolLM2-135M-Instruct.Q4_1.gguf");
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path.filename() << " is not in models/";
  const auto file = GgufFile::open(path);
  ASSERT_TRUE(file) << file.error().str();
  const auto spec = tokenizer_spec_from_gguf(*file);
  ASSERT_TRUE(spec) << spec.error().str();
  const auto tokenizer = Tokenizer::create(*spec);
  ASSERT_TRUE(tokenizer) << tokenizer.error().str();
  EXPECT_EQ((*tokenizer)->vocab_size(), 49152);
  EXPECT_THAT(spec->end_ids, ElementsAre(2, 0));  // <|im_end|>, <|endoftext|>
  EXPECT_THAT((*tokenizer)->encode_control("<|im_start|>user\n"), ElementsAre(1, 4093, 198));
  EXPECT_GT((*tokenizer)->encode_text("<|im_start|>").size(), 1u);
}

}  // namespace
}  // namespace deepmint
