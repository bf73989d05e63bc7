#include "recipe/image_tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace deepmint::recipe {
namespace {

constexpr int64_t kPatch = 14;
constexpr int64_t kMerge = 3;               // patches per side of a grid cell
constexpr int64_t kCell = kPatch * kMerge;  // 42 pixels
constexpr int64_t kMaxTokens = 1024;
constexpr double kMinArea = 544.0 * 544.0;
constexpr int64_t kMaxSide = int64_t{1} << 31;

struct Size {
  int64_t width, height;
  bool operator==(const Size&) const = default;
};

ImageGrid grid_of(Size s) {
  ImageGrid g{.width = s.width, .height = s.height};
  g.rows = (s.height / kPatch + kMerge - 1) / kMerge;
  g.cols = (s.width / kPatch + kMerge - 1) / kMerge;
  g.tokens = g.rows * (g.cols + 1) + 2;
  return g;
}

int64_t round_up(int64_t v) { return (v + kPatch - 1) / kPatch * kPatch; }
int64_t round_down(double v) { return static_cast<int64_t>(v) / kPatch * kPatch; }

Size fit_once(Size in, int64_t side_limit) {
  double w = static_cast<double>(in.width), h = static_cast<double>(in.height);
  if (w * h < kMinArea) {
    const double scale = std::sqrt(kMinArea / (w * h));
    w = std::max(1.0, std::trunc(w * scale));
    h = std::max(1.0, std::trunc(h * scale));
  }
  Size out{round_up(static_cast<int64_t>(w)), round_up(static_cast<int64_t>(h))};
  if (side_limit > 0) {
    if (out.width > side_limit) out.width = side_limit / kPatch * kPatch;
    if (out.height > side_limit) out.height = side_limit / kPatch * kPatch;
  }
  if (grid_of(out).tokens <= kMaxTokens) return out;
  const double ratio = static_cast<double>(out.height) / static_cast<double>(out.width);
  const double cols = std::sqrt((kMaxTokens - 2) / ratio + 0.25) - 0.5;
  const double rows = cols * ratio;
  if (cols < 1) return {kCell, 511 * kCell};
  if (rows < 1) return {1021 * kCell, kCell};
  const double scale = std::min(std::floor(cols) * kCell / w, std::floor(rows) * kCell / h);
  return {round_down(w * scale), round_down(h * scale)};
}

}  // namespace

Result<ImageGrid> image_grid(int64_t width, int64_t height, int64_t side_limit) {
  if (width <= 0 || height <= 0 || width > kMaxSide || height > kMaxSide)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("an image needs sides of 1 to {} pixels, found {} x {}", kMaxSide,
                            width, height));
  Size size{width, height};
  for (int round = 0; round < 10; ++round) {
    const Size next = fit_once(size, side_limit);
    if (next == size) return grid_of(size);
    if (next.width <= 0 || next.height <= 0) break;  // scaled down to nothing
    size = next;
  }
  return fail(ErrorCode::kInternal,
              fmt::format("the model size of an image of {} x {} does not settle", width, height));
}

}  // namespace deepmint::recipe
