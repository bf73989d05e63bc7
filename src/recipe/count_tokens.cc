#include "recipe/count_tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "recipe/convert_common.h"
#include "recipe/image_tokens.h"

namespace deepmint::recipe {
namespace {

constexpr uint64_t kMostImageTokens = 1024;
constexpr int64_t kLowDetailSide = 512;  // low detail: the long side is brought to this first
constexpr int64_t kWebpSide = 16383;

// Unsigned integers at an offset; the caller has checked the length.
int64_t big(std::string_view s, size_t at, size_t n) {
  int64_t v = 0;
  for (size_t i = 0; i < n; ++i) v = v << 8 | static_cast<unsigned char>(s[at + i]);
  return v;
}
int64_t little(std::string_view s, size_t at, size_t n) {
  int64_t v = 0;
  for (size_t i = n; i-- > 0;) v = v << 8 | static_cast<unsigned char>(s[at + i]);
  return v;
}

// Walks the segments up to the frame header (SOF).
std::optional<ImageSize> jpeg_size(std::string_view s) {
  size_t at = 2;
  while (at + 4 <= s.size()) {
    if (s[at] != '\xFF') return std::nullopt;
    const auto marker = static_cast<unsigned char>(s[at + 1]);
    if (marker == 0xFF) {  // fill bytes
      ++at;
      continue;
    }
    const bool frame = marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 &&
                       marker != 0xCC;  // those are tables, a reserved code, and conditioning
    if (frame)
      return at + 9 > s.size() ? std::nullopt
                               : std::optional(ImageSize{big(s, at + 7, 2), big(s, at + 5, 2)});
    if (marker == 0xD9 || marker == 0xDA) return std::nullopt;  // image data without a frame header
    const bool bare = marker == 0x01 || (marker >= 0xD0 && marker <= 0xD8);
    at += bare ? 2 : 2 + static_cast<size_t>(std::max<int64_t>(big(s, at + 2, 2), 2));
  }
  return std::nullopt;
}

std::optional<ImageSize> webp_size(std::string_view s) {
  if (s.size() < 30) return std::nullopt;
  const std::string_view chunk = s.substr(12, 4);
  if (chunk == "VP8X") return ImageSize{little(s, 24, 3) + 1, little(s, 27, 3) + 1, true};
  if (chunk == "VP8L" && s[20] == '\x2F') {
    const int64_t bits = little(s, 21, 4);
    return ImageSize{(bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1, true};
  }
  if (chunk == "VP8 " && s.substr(23, 3) == "\x9D\x01\x2A")
    return ImageSize{little(s, 26, 2) & 0x3FFF, little(s, 28, 2) & 0x3FFF, true};
  return std::nullopt;
}

std::optional<uint64_t> tokens_of(const ImageSource& image) {
  if (image.kind != ImageSource::Kind::kDataUrl) return std::nullopt;
  const size_t comma = image.data.find(',');
  if (comma == std::string::npos) return std::nullopt;
  const auto bytes = base64_decode(std::string_view(image.data).substr(comma + 1));
  if (!bytes) return std::nullopt;
  auto size = image_size(*bytes);
  if (!size) return std::nullopt;
  const int64_t side = std::max(size->width, size->height);
  if (image.detail == ImageDetail::kLow && side > kLowDetailSide) {
    const double scale = static_cast<double>(kLowDetailSide) / static_cast<double>(side);
    size->width = std::max<int64_t>(1, std::llround(static_cast<double>(size->width) * scale));
    size->height = std::max<int64_t>(1, std::llround(static_cast<double>(size->height) * scale));
  }
  const auto grid = image_grid(size->width, size->height, size->webp ? kWebpSide : 0);
  if (!grid) return std::nullopt;
  return static_cast<uint64_t>(grid->tokens);
}

}  // namespace

std::optional<ImageSize> image_size(std::string_view bytes) {
  if (bytes.starts_with("\x89PNG\r\n\x1A\n") && bytes.size() >= 24)
    return ImageSize{big(bytes, 16, 4), big(bytes, 20, 4)};
  if (bytes.starts_with("\xFF\xD8")) return jpeg_size(bytes);
  if ((bytes.starts_with("GIF87a") || bytes.starts_with("GIF89a")) && bytes.size() >= 10)
    return ImageSize{little(bytes, 6, 2), little(bytes, 8, 2)};
  if (bytes.starts_with("RIFF") && bytes.substr(0, 12).ends_with("WEBP")) return webp_size(bytes);
  return std::nullopt;
}

TokenCount count_prompt_tokens(const Prompt& prompt, const TokenCodec& codec) {
  TokenCount count;
  count.tokens = codec.encode(prompt.segments()).size();
  for (const ImageSource& image : prompt.images) {
    const auto tokens = tokens_of(image);
    if (!tokens) count.exact = false;
    count.tokens += tokens.value_or(kMostImageTokens) - 1;  // its mark is one token of the text
  }
  return count;
}

Result<std::string> count_tokens_response(const json::Value& body, const ConvertOptions& options,
                                          const TokenCodec& codec) {
  DEEPMINT_TRY(request, convert_messages(body, options));
  const Prompt prompt =
      render_prompt(request.conversation, {.version = options.version, .compat = options.compat});
  return fmt::format("{{\"input_tokens\":{}}}", count_prompt_tokens(prompt, codec).tokens);
}

}  // namespace deepmint::recipe
