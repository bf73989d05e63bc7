// Values of the stored block formats, one row at a time. Portable; the definition that packing and
// kernels are tested against.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace deepmint::kernels {

float f16_to_f32(uint16_t bits);    // exact
float bf16_to_f32(uint16_t bits);   // exact
uint16_t f32_to_bf16(float value);  // to nearest even; NaN stays NaN

// The k values of one row, exactly. dequantize_row (linear.h) is this with one rounding to float.
void dequantize_row_exact(DType dtype, const std::byte* source, int64_t k, double* out);

// 6-bit scale and minimum of sub-block j (0 … 7) of the 12 scale bytes of Q4_K and Q5_K.
struct KScale {
  uint8_t scale, min;
};
KScale k_scale(const uint8_t* scales, int j);

}  // namespace deepmint::kernels
