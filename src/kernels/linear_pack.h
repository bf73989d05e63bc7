// Shared by packing and dispatch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace deepmint::kernels {

// Bytes of one panel of 16 outputs; a multiple of 64. k is a multiple of the type's block.
size_t panel_bytes(DType dtype, int64_t k);

}  // namespace deepmint::kernels
