// Kernels that read and write one row at a time: RMSNorm, rotary embedding, SwiGLU, addition. The
// caller splits rows among threads. Bits of a row depend on its own values and length only: every
// reduction has one fixed tree of 64 partial sums.
//
//   rms_norm(x, weight, hidden, eps, y);
//   rope(head, cos_sin, rotary, RopePairing::kHalves);
//
// Each has a scalar twin, *_ref: double inside, one rounding at the end. docs/kernels/attention.md
// has the error bounds.
#pragma once

#include <cstdint>

namespace deepmint::kernels {

// y[i] = x[i] * (1 / sqrt(mean(x^2) + eps)) * weight[i], i < n. y may be x. n >= 1.
void rms_norm(const float* x, const float* weight, int64_t n, float eps, float* y);
void rms_norm_ref(const float* x, const float* weight, int64_t n, float eps, float* y);

// Which two elements of a head turn together: i and i + rotary / 2 (Hugging Face, Qwen), or 2i and
// 2i + 1 (GGUF "llama").
enum class RopePairing : uint8_t { kHalves, kInterleaved };

// Turns pair i < rotary / 2 of x by the angle whose cosine is cos_sin[i] and sine cos_sin[rotary /
// 2 + i]. In place; rotary is even; elements from `rotary` on stay as they are.
void rope(float* x, const float* cos_sin, int64_t rotary, RopePairing pairing);
void rope_ref(float* x, const float* cos_sin, int64_t rotary, RopePairing pairing);

// y[i] = gate[i] / (1 + exp(-gate[i])) * up[i], i < n. y may be gate or up. Below gate = -88 the
// quotient is gate / e^88.
void swiglu(const float* gate, const float* up, int64_t n, float* y);
void swiglu_ref(const float* gate, const float* up, int64_t n, float* y);

// y[i] += x[i] and y[i] *= factor: one rounding each.
void add(const float* x, int64_t n, float* y);
void scale(float factor, int64_t n, float* y);

// exp(x[i]) within 1 ulp for -87 <= x <= 88; 0 below, exp(88) above. y may be x.
void exp_row(const float* x, int64_t n, float* y);

}  // namespace deepmint::kernels
