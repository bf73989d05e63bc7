// Row operations of the DeepSeek-V4.1 text model (spec model.md 3, 4.1, 5.5, 8.3): norm, rotary
// embedding, hyper-connections, pair pooling, the three quantisers, the Engram gate. Each call
// works on one row (or a few) and the caller splits rows among threads. Bits of a row depend on its
// own values alone: every reduction has one fixed tree. Values called bf16 are floats with 16 zero
// bits.
//
// The scalar twins are model/deepseek_v41/ref_ops.h and formats.h; docs/kernels/v41_ops.md has the
// bounds. n is a multiple of 32 unless said otherwise.
//
//   v41_rms_norm(x, weight, 5120, 1e-20f, y);
#pragma once

#include "kernels/v41_ops_table.h"

namespace deepmint::kernels {

const V41OpsTable& v41_ops();

// y = bf16(w * (x * r)), r = 1 / sqrt(mean(x^2) + eps). y may be x.
inline void v41_rms_norm(const float* x, const float* weight, int64_t n, float eps, float* y) {
  v41_ops().rms_norm(x, weight, n, eps, y);
}

// Turns the last `rotary` (even, any) of each `width` values of `groups` heads: pair m by the angle
// with cosine cos_sin[m] and sine sign * cos_sin[rotary / 2 + m]; bf16. Equals the reference bit
// for bit.
inline void v41_rope(float* x, int64_t groups, int64_t width, int64_t rotary, const float* cos_sin,
                     int sign) {
  v41_ops().rope(x, groups, width, rotary, cos_sin, sign);
}

// Hyper-connection coefficients, in two steps. x: [rows, n], n = streams * hidden; fn: [outputs, n]
// with outputs = streams * (streams + 2), in F32; streams <= kV41MaxStreams.
//   dots[row][o] = fn[o] . x[row] for o in [begin, end), summed in double, rounded once; column
//   `outputs` is for the caller's 1 / sqrt(mean square + eps).
//   finish: pre, post: [rows, streams], comb: [rows, streams, streams], with `rounds` of Sinkhorn
//   normalisation.
inline constexpr int64_t kV41MaxStreams = 8;
inline double v41_sum_squares(const float* x, int64_t n) { return v41_ops().sum_squares(x, n); }
inline void v41_mix_dots(const float* x, int64_t rows, int64_t n, const float* fn, int64_t begin,
                         int64_t end, float* dots, int64_t dots_stride) {
  v41_ops().mix_dots(x, rows, n, fn, begin, end, dots, dots_stride);
}
inline void v41_mix_finish(const float* dots, int64_t rows, int64_t dots_stride, int64_t streams,
                           const float* base, const float* scale, int rounds, float hc_eps,
                           float* pre, float* post, float* comb) {
  v41_ops().mix_finish(dots, rows, dots_stride, streams, base, scale, rounds, hc_eps, pre, post,
                       comb);
}

// y = bf16(sum_c pre[c] * x[c]). x: [streams, n].
inline void v41_collapse(const float* x, int64_t streams, int64_t n, const float* pre, float* y) {
  v41_ops().collapse(x, streams, n, pre, y);
}
// x[k] = bf16(post[k] * y + sum_j comb[j][k] * x[j]) in place.
inline void v41_expand(const float* y, int64_t streams, int64_t n, const float* post,
                       const float* comb, float* x) {
  v41_ops().expand(y, streams, n, post, comb, x);
}

// y[i] = bf16((kv0 e0 + kv1 e1) / (e0 + e1)), e = exp(gate - max gate), per channel.
inline void v41_pool_pair(const float* kv0, const float* kv1, const float* gate0,
                          const float* gate1, int64_t n, float* y) {
  v41_ops().pool_pair(kv0, kv1, gate0, gate1, n, y);
}

// Packed rows, equal to the reference bit for bit for every finite input.
//   q8: n codes, n / 32 scales; q4idx: n / 2 and n / 32 bytes; q4kv: n / 2 and n / 16 bytes.
inline void v41_pack_q8(const float* x, int64_t n, uint8_t* codes, uint8_t* scales) {
  v41_ops().pack_q8(x, n, codes, scales);
}
inline void v41_pack_q4idx(const float* x, int64_t n, uint8_t* codes, uint8_t* scales) {
  v41_ops().pack_q4idx(x, n, codes, scales);
}
inline void v41_pack_q4kv(const float* x, int64_t n, uint8_t* codes, uint8_t* scales) {
  v41_ops().pack_q4kv(x, n, codes, scales);
}
// The values of q8 codes; exact, NaN for code 127.
inline void v41_unpack_q8(const uint8_t* codes, const uint8_t* scales, int64_t n, float* y) {
  v41_ops().unpack_q8(codes, scales, n, y);
}

// One stream: x += gate * value with gate = sigmoid(copysign(sqrt(max(|s|, 1e-6)), s)),
// s = (x q_weight k_weight key) summed * rs(x) * rs(key) / sqrt(n), rs = 1 / sqrt(mean square +
// eps).
inline void v41_engram_gate(float* x, const float* key, const float* value, const float* q_weight,
                            const float* k_weight, int64_t n, float eps) {
  v41_ops().engram_gate(x, key, value, q_weight, k_weight, n, eps);
}

// y = bf16((((0 + rows[which[0]]) + rows[which[1]]) + ...) + last) in float32. rows: of n floats, a
// multiple of 8.
inline void v41_sum_rows(const float* rows, const int32_t* which, int64_t count, const float* last,
                         int64_t n, float* y) {
  v41_ops().sum_rows(rows, which, count, last, n, y);
}

// scores[i] = sqrt(softplus(logits[i] / temperature)) in double by the exp and ln of scalar_math.h,
// rounded once: the same bits on every instruction set. Any n; scores may be logits.
inline void v41_router_scores(const float* logits, int64_t n, double temperature, float* scores) {
  v41_ops().router_scores(logits, n, temperature, scores);
}

}  // namespace deepmint::kernels
