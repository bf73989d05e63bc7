#include "format/inspect.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "core/json.h"
#include "support/official_layout.h"
#include "support/safetensors_writer.h"
#include "support/source_dir.h"
#include "support/tiny_model.h"

namespace deepmint {
namespace {

using testing::GgufWriter;
using testing::SafetensorsWriter;
using testing::TempFolder;
using testing::tiny_gguf;
using testing::TinyModel;
using testing::write_text;

class Inspect : public ::testing::Test {
 protected:
  InspectReport gguf(GgufWriter w) {
    w.write(folder_ / "m.gguf");
    return report(folder_ / "m.gguf");
  }
  InspectReport report(const std::filesystem::path& path) {
    auto out = inspect_model(path);
    EXPECT_TRUE(out) << out.error().str();
    if (!out) return {};
    // Both outputs of every report that a test makes are well-formed.
    const auto parsed = json::parse(to_json(*out));
    EXPECT_TRUE(parsed) << parsed.error().str();
    EXPECT_EQ(parsed->find("verdict")->as_string(), out->verdict());
    const std::string text = to_text(*out);
    EXPECT_TRUE(text.ends_with("\n" + out->verdict() + "\n")) << text;
    for (const char c : text)
      EXPECT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= 0x20) << int{c};
    return *out;
  }
  std::string read(const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void edit_config(const std::string& from, const std::string& to) {
    std::string text = read(folder_ / "hf/config.json");
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << text;
    write_text(folder_ / "hf/config.json", text.replace(at, from.size(), to));
  }

  TempFolder folder_;
};

TEST_F(Inspect, WholeGgufModels) {
  for (const char* architecture : {"llama", "qwen2", "qwen3"})
    for (const bool tied : {true, false})
      for (const DType type : {DType::kF32, DType::kQ4_1, DType::kQ6_K}) {
        TinyModel tiny = testing::tiny_model_for(type);
        tiny.architecture = architecture;
        tiny.tied = tied;
        const InspectReport r = gguf(tiny_gguf(tiny));
        EXPECT_TRUE(r.whole()) << r.verdict();
        EXPECT_TRUE(r.checked_tensors);
        EXPECT_EQ(r.format, "GGUF v3");
        EXPECT_EQ(r.architecture, architecture);
        EXPECT_EQ(r.dimensions.layers, 2);
        EXPECT_EQ(r.dimensions.kv_heads, 2);
        EXPECT_EQ(r.dimensions.head_dim, tiny.head_dim);
        EXPECT_EQ(r.dimensions.tied, tied);
        EXPECT_EQ(r.totals.size(), type == DType::kF32 ? 1u : 2u);
      }
}

TEST_F(Inspect, ReportsTheTokenizer) {
  const InspectReport r = gguf(tiny_gguf({}));
  ASSERT_TRUE(r.tokenizer);
  EXPECT_EQ(r.tokenizer->kind, "gpt2");
  EXPECT_EQ(r.tokenizer->pre, "smollm");
  EXPECT_EQ(r.tokenizer->vocab, 276u);
  EXPECT_EQ(r.tokenizer->merges, 17u);
  EXPECT_EQ(r.tokenizer->added, 3u);
  EXPECT_TRUE(r.tokenizer->chat_template);
  ASSERT_EQ(r.tokenizer->special.size(), 3u);
  EXPECT_EQ(r.tokenizer->special[0].role, "bos");
  EXPECT_EQ(r.tokenizer->special[0].text, "<|im_start|>");
  const InspectReport without = gguf(tiny_gguf({})
                                         .erase("tokenizer.ggml.model")
                                         .erase("tokenizer.ggml.tokens")
                                         .erase("tokenizer.chat_template"));
  EXPECT_FALSE(without.tokenizer);
  EXPECT_TRUE(without.whole()) << without.verdict();
}

TEST_F(Inspect, TotalsAddUp) {
  const InspectReport r = gguf(tiny_gguf({.weights = DType::kQ8_0}));
  uint64_t tensors = 0, elements = 0, bytes = 0, listed = 0;
  for (const auto& total : r.totals) {
    tensors += total.tensors;
    elements += total.elements;
    bytes += total.bytes;
  }
  for (const auto& t : r.tensors) listed += t.bytes;
  EXPECT_EQ(tensors, r.total_tensors);
  EXPECT_EQ(tensors, r.tensors.size());
  EXPECT_EQ(elements, r.total_elements);
  EXPECT_EQ(bytes, r.total_bytes);
  EXPECT_EQ(listed, r.total_bytes);
  EXPECT_GE(r.totals[0].bytes, r.totals[1].bytes);
}

TEST_F(Inspect, MissingMisshapenAndUnexpectedTensorsAreNamed) {
  const std::string path = (folder_ / "m.gguf").string();
  InspectReport r = gguf(tiny_gguf({}).erase_tensor("blk.1.ffn_up.weight"));
  EXPECT_EQ(r.verdict(), "not whole: " + path +
                             ": tensor \"blk.1.ffn_up.weight\": expected [96, 64], found nothing");
  EXPECT_EQ(exit_code(*r.problem), 2);
  r = gguf(tiny_gguf({})
               .erase_tensor("output_norm.weight")
               .tensor("output_norm.weight", DType::kF32, {65}, std::string(260, '\0')));
  EXPECT_EQ(r.verdict(),
            "not whole: " + path + ": tensor \"output_norm.weight\": expected [64], found [65]");
  r = gguf(
      tiny_gguf({}).tensor("blk.2.attn_norm.weight", DType::kF32, {64}, std::string(256, '\0')));
  EXPECT_EQ(r.verdict(), "not whole: " + path +
                             ": tensor \"blk.2.attn_norm.weight\": expected only the tensors of "
                             "llama, found another of [64]");
  // Biases are there in every layer or in none (Qwen2 has them always); norms of queries and keys
  // belong to Qwen3. The loader takes the same (tests/e2e/test_cli_wrong.py).
  r = gguf(tiny_gguf({.architecture = "qwen2"}).erase_tensor("blk.0.attn_k.bias"));
  EXPECT_FALSE(r.whole());
  r = gguf(tiny_gguf({.architecture = "qwen3"})
               .tensor("blk.0.attn_k.bias", DType::kF32, {32}, std::string(128, '\0')));
  EXPECT_FALSE(r.whole());
  r = gguf(tiny_gguf({}).tensor("blk.0.attn_k.bias", DType::kF32, {32}, std::string(128, '\0')));
  EXPECT_FALSE(r.whole());
  r = gguf(
      tiny_gguf({}).tensor("blk.0.attn_output.bias", DType::kF32, {64}, std::string(256, '\0')));
  EXPECT_FALSE(r.whole());
  auto biased = tiny_gguf({.architecture = "qwen3", .n_layers = 1});
  biased.tensor("blk.0.attn_q.bias", DType::kF32, {64}, std::string(256, '\0'));
  for (const char* name : {"blk.0.attn_k.bias", "blk.0.attn_v.bias"})
    biased.tensor(name, DType::kF32, {32}, std::string(128, '\0'));
  r = gguf(biased);
  EXPECT_TRUE(r.whole()) << r.verdict();
  r = gguf(tiny_gguf({}).tensor("rope_freqs.weight", DType::kF32, {8}, std::string(32, '\0')));
  EXPECT_TRUE(r.whole()) << r.verdict();
  EXPECT_EQ(r.dimensions.rope_scaling, "factors in rope_freqs.weight");
}

TEST_F(Inspect, RotaryTablesOfOldConvertersAreNoProblem) {
  const InspectReport r =
      gguf(tiny_gguf({}).tensor("blk.0.attn_rot_embd", DType::kF32, {8}, std::string(32, '\0')));
  EXPECT_TRUE(r.whole()) << r.verdict();
}

TEST_F(Inspect, LongListsOfProblemsAreCut) {
  GgufWriter w = tiny_gguf({.n_layers = 30});
  w.set("llama.embedding_length", uint32_t{128});
  const InspectReport r = gguf(w);
  EXPECT_EQ(r.problems.size(), 21u);
  EXPECT_EQ(
      r.problems.back(),
      "… and 252 more");  // 30 layers of 9 tensors, embedding and final norm, less the 20 shown
}

TEST_F(Inspect, WrongMetadataIsNamed) {
  const auto verdict = [&](GgufWriter w) {
    std::string text = gguf(std::move(w)).verdict();
    const std::string prefix = "not whole: " + (folder_ / "m.gguf").string() + ": ";
    return text.starts_with(prefix) ? text.substr(prefix.size()) : text;
  };
  EXPECT_EQ(verdict(tiny_gguf({}).erase("general.architecture")),
            "metadata \"general.architecture\": expected a string, found nothing");
  EXPECT_EQ(verdict(tiny_gguf({}).set("llama.block_count", "two")),
            "metadata \"llama.block_count\": expected an integer, found a string");
  EXPECT_EQ(
      verdict(tiny_gguf({}).erase("llama.block_count")),
      "metadata \"llama.block_count\": expected an integer from 1 to 1073741824, found nothing");
  EXPECT_EQ(
      verdict(tiny_gguf({}).set("llama.block_count", uint32_t{0xffffffff})),
      "metadata \"llama.block_count\": expected an integer from 1 to 1073741824, found 4294967295");
  EXPECT_EQ(verdict(tiny_gguf({}).set("llama.block_count", uint32_t{1'000'000'000})),
            "metadata \"llama.block_count\": expected the tensors of 1000000000 layers, found 20 "
            "tensors in all");
  EXPECT_EQ(
      verdict(tiny_gguf({}).set("llama.attention.head_count", uint32_t{0})),
      "metadata \"llama.attention.head_count\": expected an integer from 1 to 1073741824, found 0");
  EXPECT_EQ(
      verdict(tiny_gguf({}).set("llama.embedding_length", int64_t{-64})),
      "metadata \"llama.embedding_length\": expected an integer from 1 to 1073741824, found -64");
  EXPECT_EQ(verdict(tiny_gguf({}).set("tokenizer.ggml.bos_token_id", uint32_t{276})),
            "metadata \"tokenizer.ggml.bos_token_id\": expected a token id below 276, found 276");
  EXPECT_EQ(verdict(tiny_gguf({}).set("tokenizer.ggml.tokens", uint32_t{1})).substr(0, 80),
            "metadata \"tokenizer.ggml.tokens\": expected an array of strings, found an integer");
}

TEST_F(Inspect, OtherArchitecturesAreWholeAsFiles) {
  GgufWriter w;
  w.set("general.architecture", "mamba").tensor("x", DType::kF32, {1}, "1234");
  InspectReport r = gguf(w);
  EXPECT_TRUE(r.whole());
  EXPECT_FALSE(r.checked_tensors);
  EXPECT_EQ(r.verdict(), "whole as a file; which tensors mamba needs is not known here");
  r = gguf(tiny_gguf({}).set("llama.expert_count", uint32_t{8}));
  EXPECT_TRUE(r.whole());
  EXPECT_FALSE(r.checked_tensors);
}

TEST_F(Inspect, DamagedFilesGiveAVerdict) {
  std::string bytes = tiny_gguf({}).bytes();
  write_text(folder_ / "m.gguf", bytes.substr(0, bytes.size() / 2));
  InspectReport r = report(folder_ / "m.gguf");
  EXPECT_FALSE(r.whole());
  EXPECT_NE(r.verdict().find("to lie inside the file"), std::string::npos) << r.verdict();
  EXPECT_EQ(r.files.size(), 1u);
  write_text(folder_ / "m.gguf", "");
  EXPECT_FALSE(report(folder_ / "m.gguf").whole());
  write_text(folder_ / "renamed.bin", bytes);
  EXPECT_TRUE(report(folder_ / "renamed.bin").whole());
  write_text(folder_ / "m.safetensors", "x");
  EXPECT_FALSE(report(folder_ / "m.safetensors").whole());
}

TEST_F(Inspect, HostileTextNeverReachesTheTerminal) {
  GgufWriter w;
  w.set("general.architecture", "\x1b[2J")
      .set("general.name", "a\xff\nb\xc2\x9b")
      .tensor("\x1b]0;x\x07", DType::kF32, {1}, "1234");
  w.set("tokenizer.ggml.model", "\r")
      .set_array("tokenizer.ggml.tokens", std::vector<std::string>{"\x1b", "\x80"});
  w.set("tokenizer.ggml.\x08_token_id", uint32_t{1});
  const InspectReport r = gguf(w);  // report() checks both outputs
  EXPECT_EQ(r.tensors[0].name, "\x1b]0;x\x07");
}

TEST_F(Inspect, NothingToDescribeIsAnError) {
  EXPECT_EQ(inspect_model(folder_ / "absent").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(inspect_model(folder_.path()).error().code, ErrorCode::kInvalidFile);
  write_text(folder_ / "notes.txt", "hello");
  EXPECT_EQ(inspect_model(folder_ / "notes.txt").error().code, ErrorCode::kInvalidFile);
}

TEST_F(Inspect, WholeHuggingFaceFolders) {
  for (const char* architecture : {"llama", "qwen2", "qwen3"})
    for (const bool tied : {true, false}) {
      const auto path = folder_ / (std::string(architecture) + (tied ? "-tied" : ""));
      testing::write_tiny_hf({.architecture = architecture, .tied = tied, .weights = DType::kBF16},
                             path);
      const InspectReport r = report(path);
      EXPECT_TRUE(r.whole()) << r.verdict();
      EXPECT_TRUE(r.checked_tensors);
      EXPECT_EQ(r.name, path.filename().string());
      EXPECT_EQ(r.dimensions.hidden, 64);
      EXPECT_EQ(r.dimensions.rope_base, 10000.0);
      EXPECT_EQ(r.dimensions.tied, tied);
      ASSERT_TRUE(r.tokenizer);
      EXPECT_EQ(r.tokenizer->kind, "BPE");
      EXPECT_EQ(r.tokenizer->pre, "Digits + ByteLevel");
      EXPECT_EQ(r.tokenizer->vocab, 276u);
      EXPECT_EQ(r.tokenizer->added, 3u);
      EXPECT_EQ(r.tokenizer->special.size(), 2u);
      EXPECT_TRUE(r.tokenizer->chat_template);
    }
}

TEST_F(Inspect, HuggingFaceConfigMustFitTheTensors) {
  const std::string hf = (folder_ / "hf").string();
  const auto write = [&] { testing::write_tiny_hf({}, folder_ / "hf"); };
  write();
  edit_config("\"num_hidden_layers\":2", "\"num_hidden_layers\":3");
  InspectReport r = report(folder_ / "hf");
  EXPECT_EQ(r.verdict(), "not whole: " + hf +
                             ": tensor \"model.layers.2.input_layernorm.weight\": expected [64], "
                             "found nothing (the first of 9 problems)");
  write();
  edit_config("\"num_hidden_layers\":2", "\"num_hidden_layers\":1");
  EXPECT_FALSE(report(folder_ / "hf").whole());
  write();
  edit_config("\"tie_word_embeddings\":true", "\"tie_word_embeddings\":false");
  EXPECT_EQ(report(folder_ / "hf").verdict(),
            "not whole: " + hf + ": tensor \"lm_head.weight\": expected [276, 64], found nothing");
  write();
  edit_config("\"hidden_size\":64", "\"hidden_size\":\"64\"");
  EXPECT_EQ(report(folder_ / "hf").verdict(),
            "not whole: " + hf +
                "/config.json: \"hidden_size\": expected an integer, found a JSON string");
  write();
  edit_config("\"num_attention_heads\":4", "\"num_attention_heads\":0");
  EXPECT_EQ(report(folder_ / "hf").verdict(), "not whole: " + hf +
                                                  "/config.json: \"num_attention_heads\": expected "
                                                  "an integer from 1 to 1073741824, found 0");
  write();
  edit_config(
      "\"rope_scaling\":null",
      R"("rope_scaling":{"rope_type":"llama3","factor":8.0,"original_max_position_embeddings":8192})");
  r = report(folder_ / "hf");
  EXPECT_TRUE(r.whole()) << r.verdict();
  EXPECT_EQ(r.dimensions.rope_scaling, "llama3 ×8 from 8192");
  write();
  edit_config("LlamaForCausalLM", "OtherForCausalLM");
  r = report(folder_ / "hf");
  EXPECT_TRUE(r.whole());
  EXPECT_EQ(r.verdict(), "whole as a file; which tensors OtherForCausalLM needs is not known here");
  write_text(folder_ / "hf/config.json", "{");
  EXPECT_NE(report(folder_ / "hf").verdict().find("config.json: byte 1: invalid JSON"),
            std::string::npos);
  write_text(folder_ / "hf/config.json", "[]");
  EXPECT_NE(report(folder_ / "hf").verdict().find("expected a JSON object, found a JSON array"),
            std::string::npos);
  std::filesystem::remove(folder_ / "hf/config.json");
  std::filesystem::create_symlink("config.json", folder_ / "hf/config.json");  // to itself
  EXPECT_NE(report(folder_ / "hf").verdict().find("config.json: expected a readable file, found"),
            std::string::npos);
  std::filesystem::remove(folder_ / "hf/config.json");
  EXPECT_EQ(report(folder_ / "hf").verdict(),
            "not whole: " + hf + ": expected a config.json, found none");
  write();
  write_text(folder_ / "hf/tokenizer.json", "{\"model\":");
  EXPECT_FALSE(report(folder_ / "hf").whole());
  write();
  std::filesystem::remove(folder_ / "hf/tokenizer.json");
  r = report(folder_ / "hf");
  EXPECT_TRUE(r.whole());
  EXPECT_FALSE(r.tokenizer);
  std::filesystem::remove(folder_ / "hf/model.safetensors");
  EXPECT_FALSE(report(folder_ / "hf").whole());
}

TEST_F(Inspect, SafetensorsFileAlone) {
  SafetensorsWriter().tensor("t", "F8_E4M3", {2, 2}, "abcd").write(folder_ / "one.safetensors");
  const InspectReport r = report(folder_ / "one.safetensors");
  EXPECT_TRUE(r.whole());
  EXPECT_EQ(r.verdict(),
            "whole as a file; without a configuration the tensors cannot be compared with a model");
  EXPECT_EQ(r.total_bytes, 4u);
}

TEST_F(Inspect, CheckpointOfTheOfficialSize) {
  testing::write_official_layout(folder_ / "v41");
  const InspectReport r = report(folder_ / "v41");
  EXPECT_TRUE(r.whole()) << r.verdict();
  EXPECT_FALSE(r.checked_tensors);
  EXPECT_EQ(r.architecture, "DeepseekV41ForCausalLM");
  EXPECT_EQ(r.files.size(), testing::kOfficialFiles);
  EXPECT_EQ(r.total_tensors, testing::kOfficialTensors);
  EXPECT_EQ(r.dimensions.hidden, 5120);
  EXPECT_EQ(r.dimensions.layers, 40);
  const auto engram = std::find_if(r.tensors.begin(), r.tensors.end(), [](const auto& t) {
    return t.name == "layers.14.engram.embed.weight";
  });
  ASSERT_NE(engram, r.tensors.end());
  EXPECT_EQ(engram->bytes, uint64_t{384'016'682} * 256);  // past 4 GiB
}

TEST(InspectReal, SmolLm2IsWhole) {
  const std::filesystem::path path = testing::source_path("models/SmolLM2-135M-Instruct.Q4_1.gguf");
  if (!std::filesystem::exists(path))
    GTEST_SKIP() << path << " is not there; quickstart.sh fetches it";
  const auto r = inspect_model(path);
  ASSERT_TRUE(r) << r.error().str();
  EXPECT_TRUE(r->whole()) << r->verdict();
  EXPECT_TRUE(r->checked_tensors);
  EXPECT_EQ(r->total_tensors, 272u);
  EXPECT_EQ(r->total_elements, 134'515'008u);
  EXPECT_EQ(r->total_bytes, 96'576'768u);
  EXPECT_EQ(r->tokenizer->merges, 48'900u);
  EXPECT_EQ(r->dimensions.context, 8192);
}

}  // namespace
}  // namespace deepmint
