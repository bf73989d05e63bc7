#include "tokenizer/tokenizer_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "core/hash.h"
#include "support/random.h"

namespace deepmint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr std::string_view kByteLevel =
    R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true})";
constexpr std::string_view kModel =
    R"({"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":false,)"
    R"("byte_fallback":false,"vocab":{"a":0,"b":1,"Ġ":2,"ab":3,"Ġab":4,"<s>":5},"merges":["a b","Ġ ab"]})";

// A document with the given parts; an empty part is left out.
std::string document(std::string_view pre = kByteLevel, std::string_view model = kModel,
                     std::string_view added = "[]", std::string_view rest = "") {
  std::string out = R"({"version":"1.0","added_tokens":)" + std::string(added);
  if (!pre.empty()) out += R"(,"pre_tokenizer":)" + std::string(pre);
  if (!model.empty()) out += R"(,"model":)" + std::string(model);
  return out + std::string(rest) + "}";
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out(text);
  const size_t at = out.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return out.replace(at, from.size(), to);
}

std::string error_of(const std::string& json, ErrorCode* code = nullptr) {
  const auto spec = tokenizer_spec_from_json(json);
  if (spec) return "no error";
  if (code != nullptr) *code = spec.error().code;
  return spec.error().str();
}

TEST(TokenizerJson, ReadsVocabularyMergesAndAddedTokens) {
  const auto spec = tokenizer_spec_from_json(document(
      kByteLevel, kModel,
      R"([{"id":5,"content":"<s>","special":true,"normalized":false,"lstrip":true,"rstrip":false,"single_word":false},{"id":9,"content":"é","special":false}])"));
  ASSERT_TRUE(spec) << spec.error().str();
  EXPECT_THAT(spec->vocab, ElementsAre("a", "b", " ", "ab", " ab", "<s>", "", "", "", "é"));
  EXPECT_THAT(spec->merges, ElementsAre(std::pair(0, 1), std::pair(2, 3)));
  ASSERT_EQ(spec->added.size(), 2u);
  EXPECT_TRUE(spec->added[0].special);
  EXPECT_TRUE(spec->added[0].lstrip);
  EXPECT_FALSE(spec->added[1].special);
  EXPECT_EQ(spec->pre, PreTokenizer::kGpt2);
  EXPECT_EQ(spec->normalizer, Normalizer::kNone);
  const auto tokenizer = Tokenizer::create(*spec);
  ASSERT_TRUE(tokenizer) << tokenizer.error().str();
  EXPECT_THAT((*tokenizer)->encode_control("ab ab<s>é"), ElementsAre(3, 4, 5, 9));
}

TEST(TokenizerJson, MergesAsPairsAreTheSame) {
  const auto strings = tokenizer_spec_from_json(document());
  const auto pairs = tokenizer_spec_from_json(
      document(kByteLevel, replaced(kModel, R"(["a b","Ġ ab"])", R"([["a","b"],["Ġ","ab"]])")));
  ASSERT_TRUE(strings);
  ASSERT_TRUE(pairs) << pairs.error().str();
  EXPECT_EQ(strings->merges, pairs->merges);
}

TEST(TokenizerJson, KnownPreTokenizersAreRecognisedInEverySpelling) {
  const auto pre_of = [](std::string_view pre) -> std::optional<PreTokenizer> {
    const auto spec = tokenizer_spec_from_json(document(pre));
    EXPECT_TRUE(spec) << (spec ? "" : spec.error().str());
    return spec ? spec->pre : std::nullopt;
  };
  const std::string bytes =
      R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false})";
  const auto split = [&](std::string_view regex) {
    return R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":")" +
           std::string(regex) + R"("},"behavior":"Isolated","invert":false},)" + bytes + "]}";
  };
  EXPECT_EQ(pre_of(kByteLevel), PreTokenizer::kGpt2);
  EXPECT_EQ(
      pre_of(R"({"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true},)" +
             std::string(kByteLevel) + "]}"),
      PreTokenizer::kSmolLm);
  const std::string llama =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)";
  EXPECT_EQ(pre_of(split(llama)), PreTokenizer::kLlama3);
  EXPECT_EQ(pre_of(split(replaced(llama, "{1,3}", ""))), PreTokenizer::kQwen2);
  // Line ends as themselves instead of escapes; the form that keeps matches only.
  std::string raw = split(llama);
  for (size_t at; (at = raw.find(R"(\\r\\n)")) != std::string::npos;) raw.replace(at, 6, R"(\r\n)");
  EXPECT_EQ(pre_of(raw), PreTokenizer::kLlama3);
  EXPECT_EQ(pre_of(replaced(replaced(split(llama), "Isolated", "Removed"), R"("invert":false)",
                            R"("invert":true)")),
            PreTokenizer::kLlama3);
  EXPECT_EQ(pre_of(split("a+")), std::nullopt);
  EXPECT_EQ(pre_of(bytes), std::nullopt);  // no pattern: a stretch is one piece
}

TEST(TokenizerJson, OtherPatternsAreKept) {
  const auto spec = tokenizer_spec_from_json(document(
      R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"x+"},"behavior":"Isolated"},{"type":"Split","pattern":{"String":"a.b"},"behavior":"Isolated"},)"
      R"({"type":"Digits"},{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]})"));
  ASSERT_TRUE(spec) << spec.error().str();
  EXPECT_EQ(spec->pre, std::nullopt);
  EXPECT_THAT(spec->patterns, ElementsAre("x+", "a\\.b", "\\p{N}+"));
}

TEST(TokenizerJson, ByteFallbackAndUnknownTokens) {
  const auto spec = tokenizer_spec_from_json(document(
      kByteLevel,
      R"({"type":"BPE","unk_token":"<unk>","fuse_unk":true,"byte_fallback":true,"vocab":{"a":0,"<0xFF>":1,"<unk>":2,"<0xXY>":3,"中":4},"merges":[]})"));
  ASSERT_TRUE(spec) << spec.error().str();
  EXPECT_EQ(spec->unk, 2);
  EXPECT_TRUE(spec->fuse_unk);
  EXPECT_THAT(spec->byte_fallback, ElementsAre(std::pair<unsigned char, TokenId>(0xFF, 1)));
  EXPECT_THAT(spec->decode_only, ElementsAre(4));  // not of the byte-level alphabet
  const auto tokenizer = Tokenizer::create(*spec);
  ASSERT_TRUE(tokenizer) << tokenizer.error().str();
  EXPECT_THAT((*tokenizer)->encode_text("a\xFF中a"), ElementsAre(0, 1, 2, 0));
  EXPECT_EQ((*tokenizer)->decode(std::vector<TokenId>{1, 4}), "\xFF中");
}

TEST(TokenizerJson, ATemplateSaysWhichTokensTheModelWantsAround) {
  const std::string_view added =
      R"([{"id":5,"content":"<s>","special":true},{"id":6,"content":"</s>","special":true}])";
  const auto spec = tokenizer_spec_from_json(document(
      kByteLevel, kModel, added,
      R"(,"post_processor":{"type":"Sequence","processors":[{"type":"ByteLevel"},{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}},{"SpecialToken":{"id":"</s>","type_id":0}}]}]})"));
  ASSERT_TRUE(spec) << spec.error().str();
  EXPECT_TRUE(spec->add_bos);
  EXPECT_TRUE(spec->add_eos);
  EXPECT_EQ(spec->bos, 5);
  EXPECT_EQ(spec->eos, 6);
}

TEST(TokenizerJson, WhatIsNotSupportedIsNamed) {
  struct Case {
    std::string json, words;
  };
  const std::string bpe(kModel);
  const std::vector<Case> cases = {
      {document(kByteLevel, R"({"type":"WordPiece","vocab":{}})"), "\"WordPiece\""},
      {document(kByteLevel, R"({"type":"Unigram","vocab":[]})"), "\"Unigram\""},
      {document(kByteLevel, kModel, "[]", R"(,"normalizer":{"type":"NFKC"})"), "\"NFKC\""},
      {document(
           kByteLevel, kModel, "[]",
           R"(,"normalizer":{"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"Lowercase"}]})"),
       "\"Lowercase\""},
      {document(R"({"type":"Metaspace","replacement":"▁"})"), "\"Metaspace\""},
      {document(""), "expected a byte-level pre-tokenizer"},
      {document(R"({"type":"Split","pattern":{"Regex":"a"},"behavior":"Isolated"})"),
       "expected a byte-level pre-tokenizer"},
      {document(R"({"type":"ByteLevel","add_prefix_space":true})"), "add_prefix_space"},
      {document(R"({"type":"Sequence","pretokenizers":[)" + std::string(kByteLevel) +
                R"(,{"type":"Digits"}]})"),
       "after ByteLevel"},
      {document(R"({"type":"Split","pattern":{"Regex":"a"},"behavior":"MergedWithNext"})"),
       "MergedWithNext"},
      {document(
           R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"a"},"behavior":"Removed","invert":true},)" +
           std::string(kByteLevel) + "]}"),
       "Removed"},
      {document(kByteLevel, replaced(bpe, R"("dropout":null)", R"("dropout":0.1)")), "dropout"},
      {document(kByteLevel,
                replaced(bpe, R"("end_of_word_suffix":null)", R"("end_of_word_suffix":"</w>")")),
       "end_of_word_suffix"},
  };
  for (const Case& c : cases) {
    ErrorCode code{};
    EXPECT_THAT(error_of(c.json, &code), HasSubstr(c.words));
    EXPECT_EQ(code, ErrorCode::kUnsupported) << c.words;
  }
}

TEST(TokenizerJson, DamagedFilesAreOneLineThatNamesTheField) {
  const std::string bpe(kModel);
  const std::pair<std::string, std::string> cases[] = {
      {"", "byte 0"},
      {"[]", "expected an object, found array"},
      {"{}", "model"},
      {document(kByteLevel, ""), "model: expected an object, found nothing"},
      {document(kByteLevel, replaced(bpe, R"({"a":0,"b":1,"Ġ":2,"ab":3,"Ġab":4,"<s>":5})", "7")),
       "model.vocab: expected an object, found number"},
      {document(kByteLevel, replaced(bpe, R"("a":0)", R"("a":-1)")), "model.vocab"},
      {document(kByteLevel, replaced(bpe, R"("a":0)", R"("a":0.5)")), "model.vocab"},
      {document(kByteLevel, replaced(bpe, R"("a":0)", R"("a":99999999999)")), "99999999999"},
      {document(kByteLevel, replaced(bpe, R"("a":0)", R"("a":16777215)")), "largest id"},
      {document(kByteLevel, replaced(bpe, R"("b":1)", R"("b":0)")), "belongs to both"},
      {document(kByteLevel, replaced(bpe, R"("b":1)", R"("":1)")), "is empty"},
      {document(kByteLevel, replaced(bpe, R"("a b")", R"("ab")")), "model.merges[0]"},
      {document(kByteLevel, replaced(bpe, R"("a b")", R"("a b b")")), "model.merges[0]"},
      {document(kByteLevel, replaced(bpe, R"("a b")", R"(["a"])")), "model.merges[0]"},
      {document(kByteLevel, replaced(bpe, R"("a b")", R"(["a",1])")), "model.merges[0]"},
      {document(kByteLevel, replaced(bpe, R"("a b")", R"("a zz")")),
       "\"zz\" is not in the vocabulary"},
      {document(kByteLevel, replaced(bpe, R"("fuse_unk":false)", R"("fuse_unk":"no")")),
       "model.fuse_unk"},
      {document(kByteLevel, kModel, R"({"id":1})"), "added_tokens: expected an array"},
      {document(kByteLevel, kModel, R"([{"content":"x"}])"), "added_tokens[0].id"},
      {document(kByteLevel, kModel, R"([{"id":7}])"), "added_tokens[0].content"},
      {document(kByteLevel, kModel, R"([{"id":7,"content":""}])"), "added_tokens[0].content"},
      {document(kByteLevel, kModel, R"([{"id":7,"content":"x","special":1}])"),
       "added_tokens[0].special"},
      {document(R"({"type":7})"), "pre_tokenizer.type"},
      {document(R"({"type":"Sequence"})"), "pretokenizers"},
      {document(R"({"type":"Split","behavior":"Isolated"})"), "pre_tokenizer.pattern"},
  };
  for (const auto& [json, words] : cases) {
    const std::string error = error_of(json);
    EXPECT_THAT(error, HasSubstr(words));
    EXPECT_EQ(error.find('\n'), std::string::npos);
  }
}

TEST(TokenizerJson, DeepNestingEnds) {
  std::string pre(kByteLevel);
  for (int i = 0; i < 60; ++i) pre = R"({"type":"Sequence","pretokenizers":[)" + pre + "]}";
  EXPECT_THAT(error_of(document(pre)), HasSubstr("Sequence"));
}

class Folder {
 public:
  Folder()
      : path_(fs::temp_directory_path() /
              ("deepmint_tokenizer_json_" + std::to_string(::getpid()))) {
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  fs::path write(const char* name, std::string_view text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
    return path_ / name;
  }

 private:
  fs::path path_;
};

TEST(TokenizerJson, TheFilesBesideSayHowATurnBeginsAndEnds) {
  const Folder folder;
  const fs::path path = folder.write(
      "tokenizer.json",
      document(
          kByteLevel, kModel,
          R"([{"id":5,"content":"<s>"},{"id":6,"content":"<|im_end|>"},{"id":7,"content":"<|x|>"}])"));
  auto made = Tokenizer::from_file(path);
  ASSERT_TRUE(made) << made.error().str();
  EXPECT_EQ((*made)->spec().bos, std::nullopt);
  EXPECT_THAT((*made)->spec().end_ids, ElementsAre(6));

  folder.write(
      "tokenizer_config.json",
      R"({"bos_token":{"content":"<s>"},"eos_token":"ab","pad_token":null,"add_bos_token":true,"add_eos_token":false,"extra":[1]})");
  folder.write("generation_config.json", R"({"eos_token_id":[7,3]})");
  made = Tokenizer::from_file(path);
  ASSERT_TRUE(made) << made.error().str();
  EXPECT_EQ((*made)->spec().bos, 5);
  EXPECT_EQ((*made)->spec().eos, 3);
  EXPECT_TRUE((*made)->spec().add_bos);
  EXPECT_THAT((*made)->spec().end_ids, ElementsAre(7, 3, 6));

  folder.write("generation_config.json", R"({"eos_token_id":70})");
  made = Tokenizer::from_file(path);
  ASSERT_FALSE(made);
  EXPECT_THAT(made.error().str(), HasSubstr("generation_config.json: eos_token_id: token id 70"));
  folder.write("generation_config.json", "{");
  made = Tokenizer::from_file(path);
  ASSERT_FALSE(made);
  EXPECT_THAT(made.error().str(), HasSubstr("generation_config.json"));
  EXPECT_EQ(made.error().code, ErrorCode::kInvalidFile);
  EXPECT_FALSE(
      Tokenizer::from_file(folder.write("other.json", "{}").parent_path() / "absent.json"));
}

TEST(TokenizerJson, DamageAnywhereIsAnErrorOrAWorkingTokenizer) {
  const uint64_t seed = testing::test_seed();
  SCOPED_TRACE(testing::seed_note(seed));
  testing::Random random(seed);
  const std::string good =
      document(kByteLevel, kModel, R"([{"id":5,"content":"<s>","special":true}])",
               R"(,"normalizer":{"type":"NFC"})");
  for (int round = 0; round < 5000; ++round) {
    std::string bad = good;
    for (uint64_t n = 1 + random.below(3); n > 0; --n) {
      const size_t at = random.below(bad.size());
      if (random.below(3) == 0)
        bad.erase(at, 1 + random.below(8));
      else
        bad[at] = static_cast<char>(random.below(2) == 0 ? random.below(256)
                                                         : good[random.below(good.size())]);
    }
    auto spec = tokenizer_spec_from_json(bad);
    if (!spec) {
      ASSERT_FALSE(spec.error().message.empty());
      continue;
    }
    const auto made = Tokenizer::create(std::move(*spec));
    if (made)
      (*made)->encode_control(
          "ab ab<s> \xFF"
          "ab");
  }
}

}  // namespace
}  // namespace deepmint
