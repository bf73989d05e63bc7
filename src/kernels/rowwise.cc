#include "kernels/rowwise.h"

#include <cmath>

#include "core/cpu_isa.h"
#include "kernels/rowwise_table.h"
#include "kernels/scalar_math.h"

namespace deepmint::kernels {
namespace {

const RowwiseTable& table() {
  switch (active_isa()) {
    case Isa::kX86_64:
      return isa_x86_64::rowwise_table;
    case Isa::kAvx2:
      return isa_avx2::rowwise_table;
    case Isa::kAvx512:
      return isa_avx512::rowwise_table;
    case Isa::kAvx512Vnni:
      return isa_avx512vnni::rowwise_table;
    case Isa::kAvx512Bf16:
      return isa_avx512bf16::rowwise_table;
  }
  return isa_x86_64::rowwise_table;
}

}  // namespace

void rms_norm(const float* x, const float* weight, int64_t n, float eps, float* y) {
  table().rms_norm(x, weight, n, eps, y);
}
void rope(float* x, const float* cos_sin, int64_t rotary, RopePairing pairing) {
  if (pairing == RopePairing::kHalves)
    table().rope_halves(x, cos_sin, rotary);
  else
    table().rope_interleaved(x, cos_sin, rotary);
}
void swiglu(const float* gate, const float* up, int64_t n, float* y) {
  table().swiglu(gate, up, n, y);
}
void add(const float* x, int64_t n, float* y) { table().add(x, n, y); }
void scale(float factor, int64_t n, float* y) { table().scale(factor, n, y); }
void exp_row(const float* x, int64_t n, float* y) { table().exp_row(x, n, y); }

void rms_norm_ref(const float* x, const float* weight, int64_t n, float eps, float* y) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * x[i];
  const double inverse = 1.0 / std::sqrt(sum / static_cast<double>(n) + static_cast<double>(eps));
  for (int64_t i = 0; i < n; ++i) y[i] = static_cast<float>(x[i] * inverse * weight[i]);
}

void rope_ref(float* x, const float* cos_sin, int64_t rotary, RopePairing pairing) {
  const int64_t half = rotary / 2;
  for (int64_t i = 0; i < half; ++i) {
    const bool halves = pairing == RopePairing::kHalves;
    float& first = x[halves ? i : 2 * i];
    float& second = x[halves ? i + half : 2 * i + 1];
    const double a = first, b = second, c = cos_sin[i], s = cos_sin[half + i];
    first = static_cast<float>(a * c - b * s);
    second = static_cast<float>(a * s + b * c);
  }
}

void swiglu_ref(const float* gate, const float* up, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) {
    const double g = gate[i];
    y[i] = static_cast<float>(g / (1.0 + exp_double(-g)) * up[i]);
  }
}

}  // namespace deepmint::kernels
