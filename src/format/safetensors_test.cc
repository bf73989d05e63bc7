#include "format/safetensors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "support/gguf_writer.h"
#include "support/random.h"
#include "support/safetensors_writer.h"
#include "support/tiny_model.h"

namespace deepmint {
namespace {

using testing::Random;
using testing::safetensors_index;
using testing::SafetensorsWriter;
using testing::seed_note;
using testing::TempFolder;
using testing::test_seed;
using testing::write_text;

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class Safetensors : public ::testing::Test {
 protected:
  Result<SafetensorsModel> open(const std::string& bytes) {
    write_text(folder_ / "model.safetensors", bytes);
    return SafetensorsModel::open(folder_ / "model.safetensors");
  }
  Result<SafetensorsModel> open_header(std::string_view header, size_t data_bytes) {
    return open(SafetensorsWriter::with_header(header, std::string(data_bytes, 'd')));
  }
  // The error of a file with this header and this much data; its `where` without the path.
  std::string error_of(std::string_view header, size_t data_bytes) {
    const auto model = open_header(header, data_bytes);
    if (model) return "accepted";
    EXPECT_EQ(model.error().message.find('\n'), std::string::npos);
    const std::string prefix = (folder_ / "model.safetensors").string() + ": ";
    const std::string text = model.error().str();
    return text.starts_with(prefix) ? text.substr(prefix.size()) : text;
  }

  TempFolder folder_;
};

TEST_F(Safetensors, ReadsEveryType) {
  const std::pair<const char*, uint64_t> types[] = {{"F32", 4},     {"F16", 2},     {"BF16", 2},
                                                    {"F8_E4M3", 1}, {"F8_E8M0", 1}, {"I8", 1},
                                                    {"U8", 1},      {"I32", 4},     {"I64", 8}};
  SafetensorsWriter w;
  w.metadata("format", "pt");
  char fill = 'a';
  for (const auto& [name, size] : types)
    w.tensor(name, name, {2, 3}, std::string(6 * size, fill++));
  w.tensor("scalar", "F32", {}, "1234").tensor("empty", "I8", {0, 7}, "");
  auto model = open(w.bytes());
  ASSERT_TRUE(model) << model.error().str();
  EXPECT_EQ(model->metadata().at("format"), "pt");
  EXPECT_EQ(model->tensors().size(), std::size(types) + 2);
  EXPECT_TRUE(
      std::is_sorted(model->tensors().begin(), model->tensors().end(),
                     [](const TensorView& a, const TensorView& b) { return a.name < b.name; }));
  fill = 'a';
  for (const auto& [name, size] : types) {
    const TensorView* t = model->tensor(name);
    ASSERT_NE(t, nullptr);
    EXPECT_EQ(info(t->dtype).name, name);
    EXPECT_EQ(t->shape, (std::vector<uint64_t>{2, 3}));
    EXPECT_EQ(text_of(t->bytes), std::string(6 * size, fill++));
    EXPECT_EQ(t->bytes.data(), model->files()[0].bytes().data() + t->file_offset);
  }
  EXPECT_TRUE(model->tensor("scalar")->shape.empty());
  EXPECT_EQ(model->tensor("scalar")->elements(), 1u);
  EXPECT_EQ(model->tensor("empty")->elements(), 0u);
  EXPECT_EQ(model->tensor("other"), nullptr);
}

TEST_F(Safetensors, MovedModelKeepsItsBytes) {
  auto model = open(SafetensorsWriter().tensor("t", "U8", {3}, "abc").bytes());
  ASSERT_TRUE(model);
  const SafetensorsModel moved = std::move(*model);
  EXPECT_EQ(text_of(moved.tensor("t")->bytes), "abc");
}

TEST_F(Safetensors, TinyModelsOpen) {
  for (const char* architecture : {"llama", "qwen2", "qwen3"}) {
    testing::write_tiny_hf({.architecture = architecture, .weights = DType::kBF16},
                           folder_ / architecture);
    auto model = SafetensorsModel::open(folder_ / architecture);
    ASSERT_TRUE(model) << model.error().str();
    EXPECT_EQ(model->tensor("model.layers.1.mlp.down_proj.weight")->shape,
              (std::vector<uint64_t>{64, 96}));
  }
}

TEST_F(Safetensors, RefusesWhatIsDamagedAndSaysWhere) {
  const struct {
    const char* header;
    size_t data_bytes;
    const char* error;
  } cases[] = {
      {R"({)", 0, "byte 0: expected a header of 2 to 1 bytes, found 1"},
      {R"([])", 0, "header: expected a JSON object"},
      {R"( {})", 0, "header: expected a JSON object"},
      {R"({},)", 0, "header: byte 2: invalid JSON: expected the end of the text, found ','"},
      {R"({"a":)", 0,
       "header: byte 5: invalid JSON: a missing or superfluous comma, colon, bracket or value "
       "before the end of the text"},
      {R"({"a":[[[[[1]]]]]})", 0, "header: JSON: nested more than 4 levels deep"},
      {R"({"a":1})", 0, "tensor \"a\": expected a JSON object, found a JSON number"},
      {R"({"a":{}})", 0, "tensor \"a\": dtype: expected a string, found nothing"},
      {R"({"a":{"dtype":1}})", 0, "tensor \"a\": dtype: expected a string, found a JSON number"},
      {R"({"a":{"dtype":"F64","shape":[],"data_offsets":[0,8]}})", 8,
       "tensor \"a\": dtype: expected F32, F16, BF16, F8_E4M3, F8_E8M0, I8, U8, I32 or I64, found "
       "\"F64\""},
      {R"({"a":{"dtype":"Q4_0","shape":[32],"data_offsets":[0,18]}})", 18,
       "tensor \"a\": dtype: expected F32, F16, BF16, F8_E4M3, F8_E8M0, I8, U8, I32 or I64, found "
       "\"Q4_0\""},
      {R"({"a":{"dtype":"U8","data_offsets":[0,8]}})", 8,
       "tensor \"a\": shape: expected an array, found nothing"},
      {R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1,
       "tensor \"a\": shape: expected integers from 0, found -1"},
      {R"({"a":{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}})", 1,
       "tensor \"a\": shape: expected integers from 0, found 1.5"},
      {R"({"a":{"dtype":"U8","shape":["1"],"data_offsets":[0,1]}})", 1,
       "tensor \"a\": shape: expected integers from 0, found a JSON string"},
      {R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}})", 1,
       "tensor \"a\": shape: expected at most 8 dimensions, found 9"},
      {R"({"a":{"dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,1]}})", 1,
       "tensor \"a\": shape: expected integers from 0, found 18446744073709551616"},
      {R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0,
       "tensor \"a\": shape: expected fewer than 2^63 elements"},
      {R"({"a":{"dtype":"I64","shape":[4611686018427387904],"data_offsets":[0,0]}})", 0,
       "tensor \"a\": data_offsets: expected fewer than 2^64 bytes for 4611686018427387904 "
       "elements of I64, found 0"},
      {R"({"a":{"dtype":"U8","shape":[1]}})", 1,
       "tensor \"a\": data_offsets: expected an array of two integers, found nothing"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}})", 1,
       "tensor \"a\": data_offsets: expected an array of two integers, found 3 items"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[-1,0]}})", 1,
       "tensor \"a\": data_offsets: expected two integers from 0"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", 1,
       "tensor \"a\": data_offsets: expected a range inside the 1 bytes of data, found 1 to 0"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 1,
       "tensor \"a\": data_offsets: expected a range inside the 1 bytes of data, found 1 to 2"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[18446744073709551615,1]}})", 1,
       "tensor \"a\": data_offsets: expected a range inside the 1 bytes of data, found "
       "18446744073709551615 to 1"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4,
       "tensor \"a\": data_offsets: expected 8 bytes for 2 elements of F32, found 4"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"extra":1}})", 1,
       "tensor \"a\": expected dtype, shape and data_offsets once each, found \"extra\""},
      {R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1,
       "tensor \"a\": expected dtype, shape and data_offsets once each, found \"dtype\" twice"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
       2, "tensor \"a\": expected it once, found it twice"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
       3, "tensor \"b\": expected to start at data byte 2, where \"a\" ends, found 1"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
       2, "tensor \"b\": expected to start at data byte 2, where \"a\" ends, found 0"},
      {R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
       3, "tensor \"b\": expected to start at data byte 1, where \"a\" ends, found 2"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2,
       "tensor \"a\": expected to start at data byte 0, where the header ends, found 1"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 2,
       "expected 1 bytes of data after the header, found 2"},
      {R"({})", 1, "expected 0 bytes of data after the header, found 1"},
      {R"({"__metadata__":[]})", 0, "__metadata__: expected a JSON object, found a JSON array"},
      {R"({"__metadata__":{"k":1}})", 0,
       "__metadata__ \"k\": expected a string, found a JSON number"},
      {"{\"\\u001b[2J\":1}", 0, "tensor \"\\x1b[2J\": expected a JSON object, found a JSON number"},
  };
  for (const auto& c : cases) EXPECT_EQ(error_of(c.header, c.data_bytes), c.error) << c.header;
  EXPECT_EQ(error_of("{}", 0), "accepted");
  EXPECT_EQ(error_of("{}   ", 0), "accepted");
}

TEST_F(Safetensors, HeaderLengthIsChecked) {
  const auto with_length = [&](uint64_t length) {
    std::string bytes;
    testing::append_le(bytes, length);
    return open(bytes + "{}");
  };
  EXPECT_TRUE(with_length(2));
  EXPECT_EQ(with_length(3).error().code, ErrorCode::kInvalidFile);
  EXPECT_EQ(with_length(0).error().code, ErrorCode::kInvalidFile);
  EXPECT_EQ(with_length(100'000'000).error().code, ErrorCode::kInvalidFile);
  EXPECT_EQ(with_length(100'000'001).error().code, ErrorCode::kTooLarge);
  EXPECT_EQ(with_length(UINT64_MAX).error().code, ErrorCode::kTooLarge);
  EXPECT_EQ(with_length(UINT64_MAX - 7).error().code, ErrorCode::kTooLarge);
  for (size_t n = 0; n < 10; ++n)
    EXPECT_FALSE(open(SafetensorsWriter::with_header("{}", "").substr(0, n)));
}

TEST_F(Safetensors, TruncationAtEveryByteIsRefused) {
  SafetensorsWriter w;
  w.metadata("k", "v").tensor("a", "F32", {2}, "01234567").tensor("b", "U8", {3}, "abc");
  const std::string whole = w.bytes();
  ASSERT_TRUE(open(whole));
  for (size_t n = 0; n < whole.size(); ++n) ASSERT_FALSE(open(whole.substr(0, n))) << n;
  ASSERT_FALSE(open(whole + "x"));
}

// Whatever one changed byte does, a file that opens is consistent: every view lies inside the
// mapping and has its shape's size.
TEST_F(Safetensors, DamagedBytesNeverGiveAnInconsistentModel) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(seed_note(seed));
  Random random(seed);
  SafetensorsWriter w;
  w.metadata("k", "v")
      .tensor("a", "F32", {2, 1}, "01234567")
      .tensor("b", "U8", {3}, "abc")
      .tensor("c", "BF16", {2}, "wxyz");
  const std::string whole = w.bytes();
  for (int round = 0; round < 3'000; ++round) {
    std::string damaged = whole;
    damaged[random.below(damaged.size())] =
        static_cast<char>(random.below(2) ? random.next() : "0123456789[]{},:\""[random.below(17)]);
    const auto model = open(damaged);
    if (!model) {
      ASSERT_EQ(model.error().message.find('\n'), std::string::npos);
      continue;
    }
    for (const TensorView& t : model->tensors()) {
      const auto file = model->files()[0].bytes();
      ASSERT_TRUE(t.bytes.data() >= file.data() &&
                  t.bytes.data() + t.bytes.size() <= file.data() + file.size());
      ASSERT_EQ(t.bytes.size(), *row_bytes(t.dtype, t.elements()));
    }
  }
}

class ShardedSafetensors : public Safetensors {
 protected:
  void SetUp() override {
    SafetensorsWriter()
        .tensor("b", "U8", {1}, "b")
        .tensor("a", "U8", {1}, "a")
        .metadata("k", "1")
        .write(folder_ / "x-1.safetensors");
    SafetensorsWriter()
        .tensor("c", "U8", {2}, "cc")
        .metadata("k", "2")
        .write(folder_ / "x-2.safetensors");
    index({{"a", "x-1.safetensors"}, {"b", "x-1.safetensors"}, {"c", "x-2.safetensors"}});
  }
  void index(const std::vector<std::pair<std::string, std::string>>& map) {
    write_text(folder_ / "model.safetensors.index.json", safetensors_index(map));
  }
  std::string error() {
    const auto model = SafetensorsModel::open(folder_.path());
    return model ? "accepted" : model.error().str();
  }
};

TEST_F(ShardedSafetensors, FilesAndIndexAgree) {
  for (const auto& path : {folder_.path(), folder_ / "model.safetensors.index.json"}) {
    auto model = SafetensorsModel::open(path);
    ASSERT_TRUE(model) << model.error().str();
    ASSERT_EQ(model->files().size(), 2u);
    EXPECT_EQ(model->tensors().size(), 3u);
    EXPECT_EQ(text_of(model->tensor("c")->bytes), "cc");
    EXPECT_EQ(model->tensor("c")->file_index, 1);
    EXPECT_EQ(model->metadata().at("k"), "1");
  }
}

TEST_F(ShardedSafetensors, DisagreementIsRefused) {
  index({{"a", "x-1.safetensors"},
         {"b", "x-1.safetensors"},
         {"c", "x-2.safetensors"},
         {"d", "x-2.safetensors"}});
  EXPECT_EQ(error(),
            folder_.path().string() +
                ": tensor \"d\": expected it in \"x-2.safetensors\" by the index, found nothing");
  index({{"a", "x-1.safetensors"}, {"c", "x-2.safetensors"}});
  EXPECT_EQ(error(),
            folder_.path().string() +
                ": tensor \"b\": expected it in the index, found it only in \"x-1.safetensors\"");
  index({{"a", "x-1.safetensors"}, {"b", "x-2.safetensors"}, {"c", "x-2.safetensors"}});
  EXPECT_EQ(error(), folder_.path().string() +
                         ": tensor \"b\": expected it in \"x-2.safetensors\" by the index, found "
                         "it in \"x-1.safetensors\"");
  index({{"a", "x-1.safetensors"}, {"a", "x-2.safetensors"}});
  EXPECT_EQ(error(), (folder_ / "model.safetensors.index.json").string() +
                         ": weight_map \"a\": expected it once, found it twice");
  index({});
  EXPECT_EQ(error(), (folder_ / "model.safetensors.index.json").string() +
                         ": weight_map: expected at least one tensor, found none");
  index({{"a", "x-3.safetensors"}});
  EXPECT_EQ(SafetensorsModel::open(folder_.path()).error().code, ErrorCode::kNotFound);
  SafetensorsWriter().tensor("a", "U8", {1}, "a").write(folder_ / "x-2.safetensors");
  index({{"a", "x-1.safetensors"}, {"b", "x-1.safetensors"}, {"c", "x-2.safetensors"}});
  EXPECT_EQ(error(), folder_.path().string() +
                         ": tensor \"a\": expected it once, found it in \"x-1.safetensors\" and "
                         "\"x-2.safetensors\"");
  write_text(folder_ / "x-2.safetensors", "damaged");
  EXPECT_EQ(error(), (folder_ / "x-2.safetensors").string() +
                         ": expected a header length of 8 bytes, found a file of 7");
}

TEST_F(ShardedSafetensors, FileNamesStayInTheFolder) {
  std::filesystem::create_directory(folder_ / "sub");
  SafetensorsWriter().tensor("a", "U8", {1}, "a").write(folder_ / "sub/x.safetensors");
  for (const char* name : {"../x.safetensors", "sub/x.safetensors", "/etc/passwd", "/x.safetensors",
                           "x\x7f.safetensors", "x\n.safetensors", "sub\\x.safetensors", "..", ".",
                           "", ".safetensors", "x.bin", "./x-1.safetensors", "x.safetensors/"}) {
    index({{"a", name}});
    EXPECT_NE(error().find("expected the name of a .safetensors file in the same folder"),
              std::string::npos)
        << name << ": " << error();
  }
  index({{"a", std::string("x-1\0.safetensors", 16)}});
  EXPECT_NE(error().find("expected the name of a .safetensors file"), std::string::npos);
  index({{"a", std::string(300, 'x') + ".safetensors"}});
  EXPECT_NE(error().find("expected the name of a .safetensors file"), std::string::npos);
}

TEST_F(ShardedSafetensors, DamagedIndexIsRefused) {
  const auto path = folder_ / "model.safetensors.index.json";
  for (const char* text : {"", "[]", "{}", "{\"weight_map\":[]}", "{\"weight_map\":{\"a\":1}}",
                           "{\"weight_map\":{\"a\":\"x-1.safetensors\"}"}) {
    write_text(path, text);
    const auto model = SafetensorsModel::open(folder_.path());
    ASSERT_FALSE(model) << text;
    EXPECT_EQ(model.error().code, ErrorCode::kInvalidFile) << text;
    EXPECT_TRUE(model.error().str().starts_with(path.string())) << model.error().str();
  }
}

TEST_F(Safetensors, FolderWithoutAModelSaysWhatIsExpected) {
  const auto model = SafetensorsModel::open(folder_.path());
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(model.error().str(),
            folder_.path().string() +
                ": expected model.safetensors or model.safetensors.index.json, found neither");
  EXPECT_EQ(SafetensorsModel::open(folder_ / "absent.safetensors").error().code,
            ErrorCode::kNotFound);
}

}  // namespace
}  // namespace deepmint
