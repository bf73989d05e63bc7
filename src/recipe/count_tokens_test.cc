#include "recipe/count_tokens.h"

#include <gtest/gtest.h>

#include "recipe/image_tokens.h"

namespace deepmint::recipe {
namespace {

// One token a control string, one a byte.
class Bytes final : public TokenCodec {
 public:
  std::vector<TokenId> encode(std::span<const Segment> segments) const override {
    std::vector<TokenId> out;
    for (const Segment& s : segments)
      out.insert(out.end(), s.kind == Segment::Kind::kControl ? 1 : s.text.size(), 7);
    return out;
  }
  std::string_view token_bytes(TokenId) const override { return {}; }
  bool is_control(TokenId) const override { return false; }
};

std::string bytes(std::initializer_list<int> list) {
  std::string s;
  for (const int b : list) s.push_back(static_cast<char>(b));
  return s;
}

std::string base64(std::string_view s) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < s.size(); i += 3) {
    uint32_t v = 0;
    for (size_t k = 0; k < 3; ++k)
      v = v << 8 | (i + k < s.size() ? static_cast<unsigned char>(s[i + k]) : 0U);
    for (size_t k = 0; k < 4; ++k)
      out.push_back(i + k <= s.size() ? kDigits[v >> (18 - 6 * k) & 63] : '=');
  }
  return out;
}

std::string png(int width, int height) {
  return bytes({0x89, 'P', 'N',        'G',         '\r', '\n', 0x1A,        '\n',
                0,    0,   0,          13,          'I',  'H',  'D',         'R',
                0,    0,   width >> 8, width & 255, 0,    0,    height >> 8, height & 255});
}

const std::string kJpeg = bytes({0xFF, 0xD8, 0xFF, 0xE0, 0, 4,  1, 2,    0xFF, 0xFF, 0xC4, 0,
                                 3,    9,    0xFF, 0xC2, 0, 17, 8, 0x01, 0x02, 0x03, 0x04});

TEST(ImageSizes, AreReadFromHeaders) {
  const auto expect = [](std::string_view s, int64_t width, int64_t height) {
    const auto size = image_size(s);
    ASSERT_TRUE(size.has_value());
    EXPECT_EQ(size->width, width);
    EXPECT_EQ(size->height, height);
  };
  expect(png(640, 480), 640, 480);
  expect(kJpeg, 0x304, 0x102);
  expect("GIF89a" + bytes({0x40, 0x01, 0xF0, 0x00}), 320, 240);
  const std::string riff = "RIFF" + bytes({0, 0, 0, 0}) + "WEBP";
  expect(riff + "VP8X" + bytes({10, 0, 0, 0, 0, 0, 0, 0, 0x7F, 2, 0, 0xDF, 1, 0}), 640, 480);
  expect(riff + "VP8 " + bytes({0, 0, 0, 0, 0, 0, 0, 0x9D, 1, 0x2A, 0x80, 2, 0xE0, 1}), 640, 480);
  // 640 x 480: (639) | (479 << 14)
  expect(riff + "VP8L" + bytes({0, 0, 0, 0, 0x2F, 0x7F, 0xC2, 0x77, 0, 0, 0, 0, 0, 0}), 640, 480);
}

// A WebP header may claim sides so unequal that one is scaled to nothing on the way.
TEST(ImageSizes, AStripThatScalesToNothingHasNoGrid) {
  EXPECT_FALSE(image_grid(4343128, 478, 16383).has_value());
  EXPECT_FALSE(image_grid(478, 16777216, 16383).has_value());
  EXPECT_TRUE(image_grid(16777216, 1).has_value());
}

TEST(ImageSizes, EveryPrefixAndEveryByteIsSafe) {
  for (const std::string& whole : {png(640, 480), kJpeg}) {
    for (size_t n = 0; n < whole.size(); ++n) EXPECT_FALSE(image_size(whole.substr(0, n)));
    for (size_t i = 0; i < whole.size(); ++i)
      for (int b = 0; b < 256; ++b) {
        std::string changed = whole;
        changed[i] = static_cast<char>(b);
        (void)image_size(changed);
      }
  }
  EXPECT_FALSE(image_size("BM and so on"));
}

TEST(CountTokens, TextAndImages) {
  const std::string text =
      R"({"model":"m","thinking":{"type":"disabled"},"messages":[{"role":"user","content":[{"type":"text","text":"hello"})";
  const Bytes codec;
  const auto count = [&](const std::string& more) {
    const auto r = count_tokens_response(*json::parse(text + more + "]}]}"), {}, codec);
    EXPECT_TRUE(r.has_value()) << (r ? "" : r.error().str());
    return r.value_or("");
  };
  // begin, user, assistant, </think> and five bytes
  EXPECT_EQ(count(""), R"({"input_tokens":9})");
  const std::string image =
      R"(,{"type":"image","source":{"type":"base64","media_type":"image/png","data":")" +
      base64(png(640, 480)) + "\"}}";
  const int64_t tokens = image_grid(640, 480)->tokens;
  EXPECT_EQ(count(image), "{\"input_tokens\":" + std::to_string(9 + 2 + tokens) + "}");
  EXPECT_EQ(count(R"(,{"type":"image","source":{"type":"url","url":"https://example.com/a.png"}})"),
            R"({"input_tokens":1035})");  // unknown: the most an image can take
  EXPECT_FALSE(count_tokens_response(*json::parse(R"({"model":"m"})"), {}, codec).has_value());
}

TEST(CountTokens, SaysWhenItIsAnEstimate) {
  Prompt prompt;
  prompt.text = std::string(kImageMark);
  prompt.controls.push_back({0, kImageMark.size(), -1});
  ImageSource image;
  image.kind = ImageSource::Kind::kDataUrl;
  image.data = "data:image/png;base64," + base64(png(4000, 2000));
  prompt.images = {image};
  const TokenCount high = count_prompt_tokens(prompt, Bytes());
  EXPECT_TRUE(high.exact);
  EXPECT_EQ(high.tokens, static_cast<uint64_t>(image_grid(4000, 2000)->tokens));
  prompt.images[0].detail = ImageDetail::kLow;
  EXPECT_EQ(count_prompt_tokens(prompt, Bytes()).tokens,
            static_cast<uint64_t>(image_grid(512, 256)->tokens));
  prompt.images[0].data = "data:image/png;base64,AAAA";
  EXPECT_FALSE(count_prompt_tokens(prompt, Bytes()).exact);
  EXPECT_EQ(count_prompt_tokens(prompt, Bytes()).tokens, 1024U);
}

}  // namespace
}  // namespace deepmint::recipe
