// How many prompt tokens an image takes in V4.1, from its size alone.
#pragma once

#include <cstdint>

#include "deepmint/result.h"

namespace deepmint::recipe {

struct ImageGrid {
  int64_t width = 0, height = 0;  // the size that the model sees, in pixels
  int64_t rows = 0, cols = 0;     // merged patches
  int64_t tokens = 0;             // rows × (cols + 1) + 2: a row break per row, a start and an end
};

// `side_limit`: largest side of the encoded image (16383 for WebP); 0: none. Error when the size
// does not settle within ten rounds, or when a side is not positive.
Result<ImageGrid> image_grid(int64_t width, int64_t height, int64_t side_limit = 0);

}  // namespace deepmint::recipe
