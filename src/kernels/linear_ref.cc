#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/check.h"
#include "kernels/linear.h"
#include "kernels/linear_kernels.h"
#include "kernels/quant.h"

namespace deepmint::kernels {
namespace {

// x rounded to the form that weights of this type meet, as exact values.
void round_activations(ActivationType type, const float* x, int64_t k, double* out) {
  if (type == ActivationType::kF32) {
    for (int64_t i = 0; i < k; ++i) out[i] = x[i];
    return;
  }
  if (type == ActivationType::kBF16) {
    for (int64_t i = 0; i < k; ++i) out[i] = bf16_to_f32(f32_to_bf16(x[i]));
    return;
  }
  for (int64_t b = 0; b < k; b += kBlock) {
    float largest = 0;
    bool finite = true;
    for (int64_t i = b; i < b + kBlock; ++i) {
      finite = finite && std::isfinite(x[i]);
      largest = std::fmax(largest, std::fabs(x[i]));
    }
    const float d = largest / 127.0f;
    for (int64_t i = b; i < b + kBlock; ++i) {
      if (!finite) {
        out[i] = std::numeric_limits<double>::quiet_NaN();
      } else if (d == 0) {
        out[i] = 0;
      } else {
        const float q = std::nearbyintf(x[i] / d);  // to nearest even in the default mode
        out[i] = static_cast<double>(d) * std::fmin(std::fmax(q, -127.0f), 127.0f);
      }
    }
  }
}

}  // namespace

void linear_ref(DType dtype, std::span<const std::byte> source, int64_t n, int64_t k,
                const float* x, int64_t m, float* y) {
  const auto width = row_bytes(dtype, static_cast<uint64_t>(k));
  DEEPMINT_CHECK(width && source.size() == *width * static_cast<uint64_t>(n));
  const auto columns = static_cast<size_t>(k);
  std::vector<double> activations(static_cast<size_t>(m) * columns), weights(columns);
  for (int64_t row = 0; row < m; ++row)
    round_activations(activation_type(dtype), x + row * k, k, activations.data() + row * k);
  for (int64_t output = 0; output < n; ++output) {
    dequantize_row_exact(dtype, source.data() + static_cast<uint64_t>(output) * *width, k,
                         weights.data());
    for (int64_t row = 0; row < m; ++row) {
      double sum = 0;
      for (int64_t i = 0; i < k; ++i)
        sum += weights[static_cast<size_t>(i)] * activations[static_cast<size_t>(row * k + i)];
      y[row * n + output] = static_cast<float>(sum);
    }
  }
}

}  // namespace deepmint::kernels
