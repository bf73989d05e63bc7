// Any bytes as an image: its header is read within the bytes that are there, and whatever size it
// claims gives a token count within the model's bounds or none.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/check.h"
#include "recipe/count_tokens.h"
#include "recipe/image_tokens.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace deepmint;
  // A copy of exactly this size, so that a sanitizer sees a read beyond it.
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  const auto found = recipe::image_size(bytes);
  if (!found) return 0;
  DEEPMINT_CHECK(found->width >= 0 && found->height >= 0);  // a header may say 0
  constexpr int64_t kWebpSide = 16383, kMostTokens = 1024;
  const auto grid = recipe::image_grid(found->width, found->height, found->webp ? kWebpSide : 0);
  if (!grid) return 0;
  DEEPMINT_CHECK(grid->tokens > 0 && grid->tokens <= kMostTokens);
  DEEPMINT_CHECK(grid->tokens == grid->rows * (grid->cols + 1) + 2);
  return 0;
}
