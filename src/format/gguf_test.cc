#include "format/gguf.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

#include "support/gguf_writer.h"
#include "support/random.h"
#include "support/safetensors_writer.h"
#include "support/source_dir.h"
#include "support/tiny_model.h"

namespace deepmint {
namespace {

using testing::append_le;
using testing::GgufWriter;
using testing::Random;
using testing::seed_note;
using testing::TempFolder;
using testing::test_seed;
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

  // The error of a file without its path, or "accepted" after checking the promises of open().
  std::string error_of(const std::string& bytes) {
    const auto file = open(bytes);
    if (file) {
      check_promises(*file);
      return "accepted";
    }
    EXPECT_EQ(file.error().message.find('\n'), std::string::npos);
    EXPECT_TRUE(file.error().code == ErrorCode::kInvalidFile ||
                file.error().code == ErrorCode::kUnsupported ||
                file.error().code == ErrorCode::kTooLarge);
    const std::string prefix = (folder_ / "model.gguf").string() + ": ", text = file.error().str();
    EXPECT_TRUE(text.starts_with(prefix)) << text;
    return text.substr(prefix.size());
  }
  std::string error_of(GgufWriter w) { return error_of(w.bytes()); }

  static void check_promises(const GgufFile& file) {
    const auto bytes = file.file().bytes();
    uint64_t sum = 0;
    for (const TensorView& t : file.tensors()) {
      ASSERT_TRUE(t.bytes.data() >= bytes.data() &&
                  t.bytes.data() + t.bytes.size() <= bytes.data() + bytes.size());
      ASSERT_EQ(t.bytes.data(), bytes.data() + t.file_offset);
      ASSERT_EQ(t.bytes.size(), *row_bytes(t.dtype, t.elements()));
      ASSERT_EQ(file.tensor(t.name), &t);
      sum += t.bytes.size();
    }
    ASSERT_LE(sum, bytes.size());  // no overlaps
    for (const auto& [key, value] : file.metadata()) ASSERT_EQ(file.find(key), &value);
  }

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

// A small file with every kind of field.
GgufWriter small_file() {
  GgufWriter w;
  w.set("general.architecture", "x")
      .set("u8", uint8_t{200})
      .set("i8", int8_t{-100})
      .set("u16", uint16_t{60000});
  w.set("i16", int16_t{-30000})
      .set("u32", uint32_t{4'000'000'000})
      .set("i32", int32_t{-2'000'000'000});
  w.set("f32", 0.5f).set("yes", true).set("no", false).set("text", "caf\xC3\xA9");
  w.set("u64", std::numeric_limits<uint64_t>::max())
      .set("i64", std::numeric_limits<int64_t>::min())
      .set("f64", 0.1);
  w.set_array("words", std::vector<std::string>{"a", "", "\xff\xfe"})
      .set_array("flags", std::vector<bool>{true, false});
  w.set_array("nested", std::vector<std::vector<uint16_t>>{{1, 2}, {}, {3}});
  w.tensor_f32("m", {2, 3}, std::vector<float>{1, 2, 3, 4, 5, 6});
  w.tensor("q", DType::kQ8_0, {1, 32}, std::string(34, '\0'));
  return w;
}

TEST_F(Gguf, EveryMetadataTypeReadsBack) {
  auto file = open(small_file());
  ASSERT_TRUE(file) << file.error().str();
  EXPECT_EQ(file->version(), 3u);
  EXPECT_EQ(*file->integer("u8"), 200);
  EXPECT_EQ(*file->integer("i8"), -100);
  EXPECT_EQ(*file->integer("u16"), 60000);
  EXPECT_EQ(*file->integer("i16"), -30000);
  EXPECT_EQ(*file->integer("u32"), 4'000'000'000);
  EXPECT_EQ(*file->integer("i32"), -2'000'000'000);
  EXPECT_EQ(*file->integer("i64"), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(*file->number("f32"), 0.5);
  EXPECT_EQ(*file->number("f64"), 0.1);
  EXPECT_EQ(*file->number("i8"), -100.0);
  EXPECT_EQ(*file->number("u64"), 0x1p64);
  EXPECT_TRUE(*file->boolean("yes"));
  EXPECT_FALSE(*file->boolean("no"));
  EXPECT_EQ(*file->string("text"), "café");
  EXPECT_EQ(*file->strings("words"), (std::vector<std::string_view>{"a", "", "\xff\xfe"}));
  const auto& flags = std::get<GgufFile::Array>(file->find("flags")->data);
  EXPECT_EQ(std::get<std::vector<bool>>(flags), (std::vector<bool>{true, false}));
  const auto& nested =
      std::get<std::vector<GgufFile::Value>>(std::get<GgufFile::Array>(file->find("nested")->data));
  ASSERT_EQ(nested.size(), 3u);
  EXPECT_EQ(std::get<std::vector<uint64_t>>(std::get<GgufFile::Array>(nested[0].data)),
            (std::vector<uint64_t>{1, 2}));
  EXPECT_TRUE(std::get<std::vector<uint64_t>>(std::get<GgufFile::Array>(nested[1].data)).empty());
}

TEST_F(Gguf, ArraysOfEveryNumberRead) {
  const auto check = [&]<class T>(std::vector<T> values) {
    GgufWriter w;
    w.set_array("a", values);
    auto file = open(w);
    ASSERT_TRUE(file) << file.error().str();
    EXPECT_EQ(*file->numbers("a"), std::vector<double>(values.begin(), values.end()));
    if constexpr (std::is_integral_v<T>)
      EXPECT_EQ(*file->integers("a"), std::vector<int64_t>(values.begin(), values.end()));
    else
      EXPECT_FALSE(file->integers("a"));
  };
  check(std::vector<uint8_t>{0, 255});
  check(std::vector<int8_t>{-128, 127});
  check(std::vector<uint16_t>{0, 65535});
  check(std::vector<int16_t>{-32768, 32767});
  check(std::vector<uint32_t>{0, 4294967295});
  check(std::vector<int32_t>{-2147483648, 2147483647});
  check(std::vector<uint64_t>{0, uint64_t{1} << 62});
  check(std::vector<int64_t>{-(int64_t{1} << 62), 1});
  check(std::vector<float>{0.5f, -1e30f});
  check(std::vector<double>{0.1, -1e300});
  check(std::vector<uint8_t>{});
}

TEST_F(Gguf, LookUpsNameKeyAndBothTypes) {
  auto file = open(small_file());
  ASSERT_TRUE(file);
  const std::string path = (folder_ / "model.gguf").string();
  EXPECT_EQ(file->string("u8").error().str(),
            path + ": metadata \"u8\": expected a string, found an integer");
  EXPECT_EQ(file->string("gone").error().str(),
            path + ": metadata \"gone\": expected a string, found nothing");
  EXPECT_EQ(file->integer("f32").error().str(),
            path + ": metadata \"f32\": expected an integer, found a float");
  EXPECT_EQ(file->integer("yes").error().str(),
            path + ": metadata \"yes\": expected an integer, found a boolean");
  EXPECT_EQ(
      file->integer("u64").error().str(),
      path + ": metadata \"u64\": expected an integer below 2^63, found 18446744073709551615");
  EXPECT_EQ(file->number("text").error().str(),
            path + ": metadata \"text\": expected a number, found a string");
  EXPECT_EQ(file->boolean("u8").error().str(),
            path + ": metadata \"u8\": expected a boolean, found an integer");
  EXPECT_EQ(file->strings("nested").error().str(),
            path + ": metadata \"nested\": expected an array of strings, found an array of arrays");
  EXPECT_EQ(
      file->integers("words").error().str(),
      path + ": metadata \"words\": expected an array of integers, found an array of strings");
  EXPECT_EQ(
      file->numbers("flags").error().str(),
      path + ": metadata \"flags\": expected an array of numbers, found an array of booleans");
  EXPECT_EQ(file->string("gone").error().code, ErrorCode::kInvalidFile);

  EXPECT_EQ(*file->integer_or("gone", 7), 7);
  EXPECT_EQ(*file->integer_or("u8", 7), 200);
  EXPECT_EQ(*file->number_or("gone", 0.5), 0.5);
  EXPECT_EQ(*file->string_or("gone", "x"), "x");
  EXPECT_TRUE(*file->boolean_or("gone", true));
  EXPECT_FALSE(file->integer_or("text", 7));
  EXPECT_FALSE(file->boolean_or("text", true));
}

TEST_F(Gguf, MovedFileKeepsItsViews) {
  auto file = open(small_file());
  ASSERT_TRUE(file);
  const GgufFile moved = std::move(*file);
  EXPECT_EQ(*moved.string("text"), "café");
  float second = 0;
  std::memcpy(&second, moved.tensor("m")->bytes.data() + sizeof(float), sizeof(float));
  EXPECT_EQ(second, 2.0f);
}

TEST_F(Gguf, Versions) {
  EXPECT_EQ(error_of(small_file().version(2)), "accepted");
  EXPECT_EQ(error_of(small_file().version(1)),
            "byte 4: version: expected GGUF version 2 or 3, found 1");
  EXPECT_EQ(error_of(small_file().version(4)),
            "byte 4: version: expected GGUF version 2 or 3, found 4");
  EXPECT_EQ(error_of(small_file().version(0x03000000)),
            "byte 4: version: expected a little-endian file, found big-endian GGUF v3");
  EXPECT_EQ(open(small_file().version(0x03000000)).error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(error_of(std::string("GGUF")),
            "expected a GGUF file of at least 24 bytes, found 4 bytes");
  EXPECT_EQ(error_of(std::string("GGML") + std::string(40, '\0')),
            "byte 0: expected the magic bytes \"GGUF\", found \"GGML\"");
  EXPECT_EQ(error_of(std::string()), "expected a GGUF file of at least 24 bytes, found 0 bytes");
}

TEST_F(Gguf, CountsAreBoundedByTheFile) {
  GgufWriter w = small_file();
  const std::string whole = w.bytes();
  const auto with = [&](size_t offset, uint64_t value) {
    std::string bytes = whole;
    std::memcpy(bytes.data() + offset, &value, sizeof(value));
    return error_of(bytes);
  };
  const uint64_t left = whole.size() - 16;
  EXPECT_EQ(with(8, 1 << 20), "byte 8: tensor count: expected at most " +
                                  std::to_string(left / 24) + " (more do not fit into the " +
                                  std::to_string(left) + " bytes that follow), found 1048576");
  EXPECT_EQ(with(8, std::numeric_limits<uint64_t>::max()).substr(0, 40),
            "byte 8: tensor count: expected at most 2");
  EXPECT_EQ(with(16, std::numeric_limits<uint64_t>::max()).substr(0, 43),
            "byte 16: metadata count: expected at most 4");
  // Past the real entries the walk reads what comes next as an entry, and that does not make sense.
  EXPECT_NE(with(16, 18), "accepted");
  EXPECT_NE(with(8, 3), "accepted");
}

TEST_F(Gguf, SplitFilesAreRefused) {
  EXPECT_EQ(error_of(small_file().set("split.count", uint16_t{3}).set("split.no", uint16_t{0})),
            "metadata \"split.count\": expected a file that is whole, found one part of a split "
            "checkpoint of 3 files; join "
            "the parts first");
  EXPECT_EQ(error_of(small_file().set("split.count", uint16_t{1})), "accepted");
  EXPECT_EQ(error_of(small_file().set("split.count", uint16_t{0})), "accepted");
  EXPECT_NE(error_of(small_file().set("split.count", "3")), "accepted");
}

TEST_F(Gguf, AlignmentIsAPowerOfTwo) {
  for (const uint32_t alignment : {8u, 16u, 64u, 4096u, 1u << 20})
    EXPECT_EQ(error_of(small_file().alignment(alignment)), "accepted");
  for (const uint32_t bad : {0u, 1u, 4u, 12u, 33u, 48u, 1u << 21, 0xffffffffu})
    EXPECT_EQ(error_of(small_file().set("general.alignment", bad)),
              "metadata \"general.alignment\": expected a power of two from 8 to 1048576, found " +
                  std::to_string(bad));
  EXPECT_EQ(
      error_of(small_file().set("general.alignment", "32")),
      "metadata \"general.alignment\": expected a power of two from 8 to 1048576, found a string");
  // Written for 8, read with 64: the offsets no longer fit.
  EXPECT_NE(error_of(small_file().alignment(8).set("general.alignment", uint32_t{64})), "accepted");
}

TEST_F(Gguf, TensorTypesThatWeDoNotReadAreNamed) {
  const std::pair<uint32_t, const char*> cases[] = {
      {4, "Q4_2"}, {9, "Q8_1"},   {10, "Q2_K"},     {16, "IQ2_XXS"}, {20, "IQ4_NL"}, {24, "I8"},
      {28, "F64"}, {29, "IQ1_M"}, {31, "Q4_0_4_4"}, {34, "TQ1_0"},   {39, "MXFP4"}};
  for (const auto& [number, name] : cases) {
    GgufWriter w;
    w.tensor_raw("t", number, {256}, std::string(2048, '\0'));
    const auto file = open(w);
    ASSERT_FALSE(file);
    EXPECT_EQ(file.error().code, ErrorCode::kUnsupported);
    EXPECT_TRUE(file.error().message.ends_with(std::string(", found ") + name))
        << file.error().str();
    EXPECT_NE(file.error().where.find("tensor \"t\" type"), std::string::npos);
  }
  GgufWriter w;
  w.tensor_raw("t", 1000, {256}, std::string(2048, '\0'));
  EXPECT_TRUE(error_of(w).ends_with("found type number 1000"));
}

TEST_F(Gguf, TensorShapesAreChecked) {
  const auto with = [&](uint32_t type, std::vector<uint64_t> dims, size_t bytes) {
    GgufWriter w;
    w.tensor_raw("t", type, dims, std::string(bytes, '\0'));
    return error_of(w);
  };
  EXPECT_EQ(with(0, {}, 4), "accepted");
  EXPECT_EQ(with(0, {1, 1, 1, 1}, 4), "accepted");
  EXPECT_EQ(with(0, {1, 1, 1, 1, 1}, 4),
            "byte 33: tensor \"t\" dimension count: expected at most 4, found 5");
  EXPECT_EQ(with(0, {0}, 0), "byte 37: tensor \"t\" dimension 0: expected at least 1, found 0");
  EXPECT_EQ(with(0, {4, 0}, 0), "byte 45: tensor \"t\" dimension 1: expected at least 1, found 0");
  EXPECT_EQ(with(0, {uint64_t{1} << 32, uint64_t{1} << 32}, 4),
            "byte 45: tensor \"t\" dimension 1: expected fewer than 2^63 elements, found "
            "4294967296 × 4294967296");
  EXPECT_NE(with(0, {(uint64_t{1} << 62) + 1, 4}, 16),
            "accepted");                                   // wraps to 4 elements in 64 bits
  EXPECT_NE(with(0, {uint64_t{1} << 62}, 4), "accepted");  // bytes wrap to 0
  EXPECT_NE(with(0, {uint64_t{1} << 63}, 4), "accepted");
  EXPECT_EQ(with(2, {48}, 27),
            "byte 49: tensor \"t\": expected rows of a multiple of 32 elements for Q4_0, found 48");
  EXPECT_EQ(with(2, {16, 2}, 18),
            "byte 57: tensor \"t\": expected rows of a multiple of 32 elements for Q4_0, found 16");
  EXPECT_EQ(
      with(14, {128}, 105),
      "byte 49: tensor \"t\": expected rows of a multiple of 256 elements for Q6_K, found 128");
  EXPECT_EQ(with(14, {256, 3}, 630), "accepted");
}

TEST_F(Gguf, TensorsStayInsideTheFileAndApart) {
  const auto with = [&](int64_t skew_a, int64_t skew_b) {
    GgufWriter w;
    w.tensor_raw("a", 0, {16}, std::string(64, 'a'), skew_a)
        .tensor_raw("b", 0, {16}, std::string(64, 'b'), skew_b);
    return error_of(w);
  };
  EXPECT_EQ(with(0, 0), "accepted");
  EXPECT_EQ(with(64, -64), "accepted");  // any order
  EXPECT_EQ(
      with(0, -64),
      "tensor \"b\": expected it to start at or after byte 160, where \"a\" ends, found byte 96");
  EXPECT_EQ(
      with(0, -32),
      "tensor \"b\": expected it to start at or after byte 160, where \"a\" ends, found byte 128");
  EXPECT_EQ(with(0, 64),
            "tensor \"b\": expected its 64 bytes at offset 96 + 128 to lie inside the file, found "
            "a file of 224 bytes");
  EXPECT_EQ(with(1, 0),
            "byte 49: tensor \"a\" offset: expected a multiple of the alignment 32, found 1");
  EXPECT_NE(with(0, std::numeric_limits<int64_t>::max() - 63), "accepted");
  EXPECT_NE(with(-64, 0), "accepted");  // 2^64 - 64: begin + size wraps
}

TEST_F(Gguf, NamesAreUniqueUtf8) {
  EXPECT_EQ(error_of(small_file().raw("u8", 0, "x")),
            "metadata \"u8\": expected it once, found it twice");
  EXPECT_EQ(error_of(small_file().tensor_raw("m", 0, {1}, "abcd")),
            "tensor \"m\": expected it once, found it twice");
  EXPECT_TRUE(
      error_of(small_file().set("\xff", true))
          .ends_with("expected 1 to 65535 bytes of UTF-8, found 1 bytes: \"\xEF\xBF\xBD\""));
  EXPECT_NE(error_of(small_file().set("", true)), "accepted");
  EXPECT_NE(error_of(small_file().tensor_raw("\xc0\x80", 0, {1}, "abcd")), "accepted");
  EXPECT_NE(error_of(small_file().tensor_raw("", 0, {1}, "abcd")), "accepted");
  EXPECT_NE(error_of(small_file().tensor_raw(std::string(1025, 'n'), 0, {1}, "abcd")), "accepted");
  EXPECT_EQ(error_of(small_file().tensor_raw(std::string(1024, 'n'), 0, {1}, "abcd")), "accepted");
  EXPECT_EQ(error_of(small_file().set(std::string(65'535, 'k'), true)), "accepted");
  EXPECT_NE(error_of(small_file().set(std::string(65'536, 'k'), true)), "accepted");
}

TEST_F(Gguf, ValuesAreChecked) {
  const auto with = [&](uint32_t type, std::string payload) {
    GgufWriter w;
    w.raw("k", type, std::move(payload));
    return error_of(w);
  };
  EXPECT_EQ(with(7, "\2"), "byte 37: metadata \"k\": expected a boolean of 0 or 1, found 2");
  EXPECT_EQ(with(13, "x"), "byte 33: metadata \"k\" type: expected 0 to 12, found 13");
  EXPECT_EQ(with(0xffffffff, "x"),
            "byte 33: metadata \"k\" type: expected 0 to 12, found 4294967295");
  const auto array = [](uint32_t type, uint64_t count, std::string items) {
    std::string out;
    append_le(out, type);
    append_le(out, count);
    return out + items;
  };
  EXPECT_EQ(with(9, array(13, 0, "")),
            "byte 37: metadata \"k\" element type: expected 0 to 12, found 13");
  EXPECT_EQ(with(9, array(7, 3, std::string("\0\1\2", 3))),
            "byte 51: metadata \"k\" item 2: expected a boolean of 0 or 1, found 2");
  EXPECT_EQ(with(9, array(4, 5, std::string(16, '\0')) + std::string(100, '\0')), "accepted");
  std::string strings;
  testing::append_gguf_string(strings, "ok");
  append_le(strings, uint64_t{1000});
  EXPECT_TRUE(with(9, array(8, 2, strings))
                  .starts_with("byte 59: metadata \"k\" item 1: expected more data"));
  for (const uint64_t count : {uint64_t{1} << 20, uint64_t{1} << 61, uint64_t{1} << 63,
                               std::numeric_limits<uint64_t>::max()})
    for (uint32_t type = 0; type < 13; ++type) {
      const std::string error = with(9, array(type, count, std::string(100, '\0')));
      EXPECT_TRUE(error.starts_with("byte 41: metadata \"k\" count: expected at most")) << error;
    }
}

TEST_F(Gguf, NestedArraysHaveALimit) {
  const auto nested = [](int depth) {
    std::string payload;
    append_le(payload, uint32_t{4});
    append_le(payload, uint64_t{0});
    for (int level = 1; level < depth; ++level) {
      std::string outer;
      append_le(outer, uint32_t{9});
      append_le(outer, uint64_t{1});
      payload = outer + payload;
    }
    GgufWriter w;
    w.raw("k", 9, payload);
    return w;
  };
  EXPECT_EQ(error_of(nested(8)), "accepted");
  EXPECT_TRUE(error_of(nested(9)).ends_with("metadata \"k\": arrays nested more than 8 deep"));
  EXPECT_EQ(open(nested(1'000)).error().code, ErrorCode::kTooLarge);
}

TEST_F(Gguf, ArraysHaveATotalLimit) {
  const uint64_t half = uint64_t{1} << 23;
  GgufWriter w;
  w.set_array("a", std::vector<uint8_t>(half)).set_array("b", std::vector<uint8_t>(half));
  EXPECT_EQ(error_of(w), "accepted");
  w.set_array("c", std::vector<uint8_t>(1));
  EXPECT_TRUE(error_of(w).ends_with("metadata \"c\" count: expected at most 0, found 1"));
  EXPECT_EQ(open(w).error().code, ErrorCode::kTooLarge);
}

TEST_F(Gguf, ErrorsShowHostileNamesSafely) {
  const std::string error = error_of(
      small_file().tensor_raw("\x1b[2J\xc2\x9b\n" + std::string(500, 'n'), 99, {1}, "abcd"));
  for (const char c : error) EXPECT_GE(static_cast<unsigned char>(c), 0x20) << error;
  EXPECT_LT(error.size(), 400u);
}

TEST_F(Gguf, TruncationAtEveryByteIsRefused) {
  for (const uint32_t version : {2u, 3u}) {
    GgufWriter w = small_file().version(version);
    const std::string whole = w.bytes();
    ASSERT_EQ(error_of(whole), "accepted");
    // The padding behind the last tensor may be missing.
    size_t end = 0;
    {
      auto file = open(whole);
      ASSERT_TRUE(file);
      for (const TensorView& t : file->tensors())
        end = std::max<size_t>(end, t.file_offset + t.bytes.size());
    }
    for (size_t n = 0; n < whole.size(); ++n)
      ASSERT_EQ(error_of(whole.substr(0, n)) == "accepted", n >= end)
          << n << " of " << whole.size();
    EXPECT_EQ(error_of(whole + "trailing bytes"), "accepted");
  }
}

// Each field alone takes each hostile value: the file is refused with one line, or what opens keeps
// every promise.
TEST_F(Gguf, EveryFieldSurvivesHostileValues) {
  GgufWriter w = small_file();
  const std::string whole = w.bytes();
  int refused = 0, accepted = 0;
  for (const GgufWriter::Field& field : w.fields()) {
    if (field.name == "data") continue;
    std::vector<uint64_t> values = {0,      1,      2,      0x7f,       0x80,       0xff,
                                    0x7fff, 0x8000, 0xffff, 0x7fffffff, 0x80000000, 0xffffffff};
    for (const int bit : {32, 40, 61, 62, 63})
      for (const int64_t near : {-1, 0, 1})
        values.push_back((uint64_t{1} << bit) + static_cast<uint64_t>(near));
    for (const int64_t near : {-1, -2, -8, -24, -64}) values.push_back(static_cast<uint64_t>(near));
    uint64_t old = 0;
    std::memcpy(&old, whole.data() + field.offset, std::min<size_t>(field.bytes, 8));
    for (const int64_t near : {-1, 1, 8, 32}) values.push_back(old + static_cast<uint64_t>(near));
    for (const uint64_t value : values) {
      std::string bytes = whole;
      std::memcpy(bytes.data() + field.offset, &value, std::min<size_t>(field.bytes, 8));
      SCOPED_TRACE(field.name + " = " + std::to_string(value));
      ++(error_of(bytes) == "accepted" ? accepted : refused);
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(accepted, 100);
}

TEST_F(Gguf, DamagedBytesKeepEveryPromise) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(seed_note(seed));
  Random random(seed);
  const std::string whole = small_file().bytes();
  for (int round = 0; round < 3'000; ++round) {
    std::string bytes = whole;
    for (uint64_t edits = 1 + random.below(3); edits > 0; --edits)
      bytes[random.below(bytes.size())] = static_cast<char>(random.below(3) ? random.next() : 0);
    error_of(bytes);
  }
}

// What the writer was told is what the reader says, for random files.
TEST_F(Gguf, RandomFilesReadBack) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(seed_note(seed));
  Random random(seed);
  for (int round = 0; round < 50; ++round) {
    GgufWriter w;
    w.version(2 + static_cast<uint32_t>(random.below(2))).alignment(8u << random.below(6));
    std::vector<std::pair<std::string, int64_t>> integers;
    for (uint64_t i = random.below(20); i > 0; --i) {
      integers.emplace_back("key" + std::to_string(random.next()),
                            static_cast<int64_t>(random.next()));
      w.set(integers.back().first, integers.back().second);
    }
    struct Written {
      std::string name, bytes;
      std::vector<uint64_t> shape;
      DType type;
    };
    std::vector<Written> tensors;
    for (uint64_t i = random.below(12); i > 0; --i) {
      const DType type =
          std::array{DType::kF32, DType::kBF16, DType::kQ4_1, DType::kQ6_K}[random.below(4)];
      std::vector<uint64_t> shape = {info(type).block_elements * (1 + random.below(3))};
      for (uint64_t d = random.below(4); d > 0; --d)
        shape.insert(shape.begin(), 1 + random.below(3));
      uint64_t rows = 1;
      for (size_t d = 0; d + 1 < shape.size(); ++d) rows *= shape[d];
      tensors.push_back({"t" + std::to_string(random.next()),
                         testing::random_rows(type, rows, shape.back(), 1, random.next()), shape,
                         type});
      w.tensor(tensors.back().name, type, shape, tensors.back().bytes);
    }
    auto file = open(w);
    ASSERT_TRUE(file) << file.error().str();
    check_promises(*file);
    for (const auto& [key, value] : integers) ASSERT_EQ(*file->integer(key), value);
    ASSERT_EQ(file->tensors().size(), tensors.size());
    for (const Written& t : tensors) {
      const TensorView* view = file->tensor(t.name);
      ASSERT_NE(view, nullptr);
      ASSERT_EQ(view->shape, t.shape);
      ASSERT_EQ(view->dtype, t.type);
      ASSERT_EQ(
          std::string_view(reinterpret_cast<const char*>(view->bytes.data()), view->bytes.size()),
          t.bytes);
    }
  }
}

TEST(GgufReal, SmolLm2) {
  const std::filesystem::path path = testing::source_path("models/SmolLM2-135M-Instruct.Q4_1.gguf");
  if (!std::filesystem::exists(path))
    GTEST_SKIP() << path << " is not there; quickstart.sh fetches it";
  auto file = GgufFile::open(path);
  ASSERT_TRUE(file) << file.error().str();
  EXPECT_EQ(file->version(), 3u);
  EXPECT_EQ(file->metadata().size(), 33u);
  EXPECT_EQ(file->tensors().size(), 272u);
  EXPECT_EQ(*file->string("general.architecture"), "llama");
  EXPECT_EQ(*file->integer("llama.block_count"), 30);
  EXPECT_NEAR(*file->number("llama.attention.layer_norm_rms_epsilon"), 1e-5, 1e-12);
  EXPECT_FALSE(*file->boolean("tokenizer.ggml.add_bos_token"));
  EXPECT_EQ(file->strings("tokenizer.ggml.tokens")->size(), 49'152u);
  EXPECT_EQ((*file->strings("tokenizer.ggml.merges"))[0], "Ġ t");
  const TensorView* down = file->tensor("blk.0.ffn_down.weight");
  ASSERT_NE(down, nullptr);
  EXPECT_EQ(down->dtype, DType::kQ4_1);
  EXPECT_EQ(down->shape, (std::vector<uint64_t>{576, 1536}));  // 1536 innermost in the file
  EXPECT_EQ(down->file_offset, 1'785'664u + 30'083'328u);
}

}  // namespace
}  // namespace deepmint
