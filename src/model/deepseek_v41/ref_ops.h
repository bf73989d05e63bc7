// Reference arithmetic of the V4.1 text model: every reduction and every transcendental in double,
// rounded once to float where the specification says f32; elementwise float arithmetic stays float.
// This is the definition that the fast kernels and the product are measured against; it equals
// spec/model/oracle.py. Values that the specification calls bf16 are floats with 16 zero bits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace deepmint::v41::ref {

// y[m, n] = x[m, k] · w[n, k]^T in double, rounded to float; to_bf16 rounds once more.
void matmul(const float* x, int64_t m, int64_t k, const float* w, int64_t n, float* y,
            bool to_bf16);
// Each block of 32 becomes the value that its E4M3 codes stand for (q8, spec 3.2), in place.
void fake_q8(float* x, int64_t n);

// y = bf16(w * (x * r)), r = 1/sqrt(mean(x^2) + eps).  x, w, y: [d]; y may alias x.
void rms_norm(const float* x, const float* w, int d, double eps, float* y);

// Inverse frequencies [dim / 2], float step by step; factor 0 = no YaRN (spec 3.9).
std::vector<float> inverse_frequencies(int dim, double theta, double factor, double original,
                                       double beta_fast, double beta_slow);
// Rotates the last 2 * inv.size() of x's d values at `position`; sign -1 undoes it.
void rope(float* x, int d, std::span<const float> inv, int64_t position, int sign);
// The same in two parts: cos_sin: [2, inv.size()], for one position.
void rope_table(std::span<const float> inv, int64_t position, float* cos_sin);
void rope_by_table(float* x, int d, int rotary, const float* cos_sin, int sign);

struct MixResult {               // hc = number of streams
  std::vector<float> pre, post;  // [hc]
  std::vector<float> comb;       // [hc, hc]
};
// X: [hc, d]; fn: [2hc + hc*hc, hc * d]; base: same rows; scale: [3].
void mix(const float* X, int hc, int d, const float* fn, const float* base, const float* scale,
         int iterations, float hc_eps, double norm_eps, float* pre, float* post, float* comb);
void collapse(const float* X, int hc, int d, const float* pre, float* y);  // y: [d]
void expand(const float* y, const float* X, int hc, int d, const float* post, const float* comb,
            float* out);  // out: [hc, d], not X

// One head: q [d] against rows of K [d] each (also V), with a sink in the denominator. out: [d],
// zeros without rows.
void attend(const float* q, std::span<const float* const> rows, int d, float sink, float scale,
            float* out);

// Pair pooling of the ratio-r compressor: per channel softmax over `r` rows of gates. kv, gate: r
// rows of [d]. out bf16.
void pool(std::span<const float* const> kv, std::span<const float* const> gate, int d, float* out);

// score = sum_h w[h] * relu(q[h] . k); q: [heads, d], k: [d].
float index_score(const float* q, const float* w, int heads, int d, const float* k);
// Ascending indices of the `k` largest scores; ties to the lower index; -inf is never chosen.
void top_rows(std::span<const float> scores, int k, std::vector<int32_t>& out);
// Ascending block indices: best score per block of `size`, the newest block always kept (spec 6.1).
void candidate_blocks(std::span<const float> scores, int size, int k, std::vector<int32_t>& out);

// Scores sqrt(softplus(u . gate / temp)); the `k` experts with the largest score + bias, ascending
// by id, with weights scale * score / (sum + 1e-20), the sum in selection order. logits: [experts]
// = u . gate as float.
void route(std::span<const float> logits, std::span<const float> bias, int k, float scale,
           double temperature, std::span<int32_t> experts, std::span<float> weights);
// t = bf16(a * silu(min(g, limit)) * clamp(p, ±limit)), the input of w2. Without a weight pass
// has_weight false.
void swiglu(const float* g, const float* p, int n, float limit, bool has_weight, float weight,
            float* t);

// X: [hc, d] in place; z: [(hc + 1) * d] keys then value (spec 8.3).
void engram_gate(float* X, const float* z, int hc, int d, const float* q_weight,
                 const float* k_weight, double eps);

}  // namespace deepmint::v41::ref
