// Rowwise kernels on sixteen lanes. Compiled once per instruction set.
#include "kernels/rowwise_table.h"
#include "kernels/simd16.inl"

namespace deepmint::kernels::DEEPMINT_ISA_NS {
namespace {

float sum_of_squares(const float* x, int64_t n) {
  // Element i goes to partial sum i mod 64; the tail is padded with zeros.
  F16 s0 = zero(), s1 = zero(), s2 = zero(), s3 = zero();
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    const F16 a = load(x + i), b = load(x + i + 16), c = load(x + i + 32), d = load(x + i + 48);
    s0 = fma(a, a, s0);
    s1 = fma(b, b, s1);
    s2 = fma(c, c, s2);
    s3 = fma(d, d, s3);
  }
  F16* const sums[4] = {&s0, &s1, &s2, &s3};
  for (int part = 0; i < n; ++part, i += kLanes) {
    const F16 a = n - i >= kLanes ? load(x + i) : load_n(x + i, static_cast<int>(n - i), 0.0f);
    *sums[part] = fma(a, a, *sums[part]);
  }
  return sum(add(add(s0, s1), add(s2, s3)));
}

void rms_norm(const float* x, const float* weight, int64_t n, float eps, float* y) {
  const float mean = sum_of_squares(x, n) / static_cast<float>(n);
  // sqrt and division round correctly on every machine.
  const float inverse = 1.0f / _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(mean + eps)));
  const F16 s = set1(inverse);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(y + i, mul(mul(load(x + i), s), load(weight + i)));
  for (; i < n; ++i) y[i] = x[i] * inverse * weight[i];
}

void rope_halves(float* __restrict x, const float* __restrict cos_sin, int64_t rotary) {
  const int64_t half = rotary / 2;
  float* __restrict second = x + half;
  const float* __restrict sines = cos_sin + half;
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[i], b = second[i], c = cos_sin[i], s = sines[i];
    x[i] = fma_scalar(a, c, -(b * s));
    second[i] = fma_scalar(a, s, b * c);
  }
}

void rope_interleaved(float* __restrict x, const float* __restrict cos_sin, int64_t rotary) {
  const int64_t half = rotary / 2;
  const float* __restrict sines = cos_sin + half;
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1], c = cos_sin[i], s = sines[i];
    x[2 * i] = fma_scalar(a, c, -(b * s));
    x[2 * i + 1] = fma_scalar(a, s, b * c);
  }
}

DM_INLINE F16 swiglu(F16 gate, F16 up) {
  const F16 e = exp(sub(zero(), gate));
  return mul(div(gate, add(set1(1.0f), e)), up);
}

void swiglu_row(const float* gate, const float* up, int64_t n, float* y) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(y + i, swiglu(load(gate + i), load(up + i)));
  if (const int rest = static_cast<int>(n - i); rest > 0)
    store_n(y + i, rest, swiglu(load_n(gate + i, rest, 0.0f), load_n(up + i, rest, 0.0f)));
}

void add_row(const float* x, int64_t n, float* y) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(y + i, add(load(y + i), load(x + i)));
  for (; i < n; ++i) y[i] += x[i];
}

void scale_row(float factor, int64_t n, float* y) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(y + i, mul(load(y + i), set1(factor)));
  for (; i < n; ++i) y[i] *= factor;
}

void exp_row(const float* x, int64_t n, float* y) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(y + i, exp(load(x + i)));
  if (const int rest = static_cast<int>(n - i); rest > 0)
    store_n(y + i, rest, exp(load_n(x + i, rest, 0.0f)));
}

}  // namespace

extern const RowwiseTable rowwise_table = {rms_norm, rope_halves, rope_interleaved, swiglu_row,
                                           add_row,  scale_row,   exp_row};

}  // namespace deepmint::kernels::DEEPMINT_ISA_NS
