// A tensor as it lies in a mapped file. Shape is outermost first (row-major): a matrix [n, k] has n
// rows of k.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"

namespace deepmint {

struct TensorView {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<uint64_t> shape;  // outermost first; empty for a scalar
  std::span<const std::byte>
      bytes;           // exactly the tensor's bytes, inside the mapping; alignment is the file's
  int file_index = 0;  // which file of a sharded checkpoint
  uint64_t file_offset = 0;  // of bytes in that file

  uint64_t elements() const {
    uint64_t n = 1;
    for (const uint64_t d : shape) n *= d;  // checked by the reader
    return n;
  }
};

}  // namespace deepmint
