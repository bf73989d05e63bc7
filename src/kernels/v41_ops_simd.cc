// V4.1 row operations on sixteen lanes. Compiled once per instruction set. Loops on plain arrays
// are written so that the compiler makes vector code of them: no branch, no early exit.
// clang-format off: double8.inl builds on simd16.inl
#include "kernels/simd16.inl"
#include "kernels/double8.inl"
// clang-format on
#include "kernels/v41_ops_table.h"

namespace deepmint::kernels::DEEPMINT_ISA_NS {
namespace {

DM_INLINE float round_bf16(float x) { return float_of(rounded_bits(x)); }

DM_INLINE double sqrt_double(double x) {
  return _mm_cvtsd_f64(_mm_sqrt_sd(_mm_setzero_pd(), _mm_set_sd(x)));
}

// ln(1 + e) keeps its relative accuracy for small e by the quotient (Kahan).
DM_INLINE V8 router_scores(V8 logits, double temperature) {
  const D8 t = wide(logits) / temperature, e = exact_exp8(t), u = 1.0 + e,
           softplus = select8(u == all8(1), e, exact_ln8(u) * (e / (u - 1.0)));
  return narrow(sqrt8(select8(t > all8(20), t, softplus)));
}
void router_scores(const float* logits, int64_t n, double temperature, float* scores) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) store8(scores + i, router_scores(load8(logits + i), temperature));
  if (i == n) return;
  V8 rest = {};
  for (int64_t k = i; k < n; ++k) rest[k - i] = logits[k];
  rest = router_scores(rest, temperature);
  for (int64_t k = i; k < n; ++k) scores[k] = rest[k - i];
}

// Sum over i of a[i] * b[i]: lane i mod 16, ascending, in double; n a multiple of 32.
DM_INLINE double dot(const float* a, const float* b, int64_t n) {
  D8 s0 = all8(0), s1 = all8(0);
  for (int64_t i = 0; i < n; i += 16) {
    s0 = fma8(wide8(a + i), wide8(b + i), s0);
    s1 = fma8(wide8(a + i + 8), wide8(b + i + 8), s1);
  }
  return sum8(s0 + s1);
}

void rms_norm(const float* x, const float* weight, int64_t n, float eps, float* y) {
  const double mean = dot(x, x, n) / static_cast<double>(n);
  const V8 r = all8f(static_cast<float>(1.0 / sqrt_double(mean + static_cast<double>(eps))));
  for (int64_t i = 0; i < n; i += 8)
    store8(y + i, round_bf16(load8(weight + i) * (load8(x + i) * r)));
}

// In double, so that it may stand in a float's place exactly as the reference rounds it.
double sum_squares(const float* x, int64_t n) { return dot(x, x, n); }

void rope(float* __restrict x, int64_t groups, int64_t width, int64_t rotary,
          const float* __restrict cos_sin, int sign) {
  const int64_t half = rotary / 2;
  const float sign_f = static_cast<float>(sign);
  x += width - rotary;
  for (int64_t g = 0; g < groups; ++g, x += width)
    for (int64_t m = 0; m < half; ++m) {
      const float c = cos_sin[m], s = sign_f * cos_sin[half + m];
      const float a = x[2 * m], b = x[2 * m + 1];
      x[2 * m] = round_bf16(a * c - b * s);
      x[2 * m + 1] = round_bf16(a * s + b * c);
    }
}

// Rows by Outputs dot products in double: lane i mod 8, ascending.
template <int Rows, int Outputs>
DM_INLINE void dots_block(const float* x, int64_t n, const float* fn, float* out, int64_t stride) {
  D8 sums[Rows][Outputs];
  for (int r = 0; r < Rows; ++r)
    for (int o = 0; o < Outputs; ++o) sums[r][o] = all8(0);
  for (int64_t i = 0; i < n; i += 8) {
    D8 v[Rows];
    for (int r = 0; r < Rows; ++r) v[r] = wide8(x + r * n + i);
    for (int o = 0; o < Outputs; ++o) {
      const D8 w = wide8(fn + o * n + i);
      for (int r = 0; r < Rows; ++r) sums[r][o] = fma8(v[r], w, sums[r][o]);
    }
  }
  for (int r = 0; r < Rows; ++r)
    for (int o = 0; o < Outputs; ++o) out[r * stride + o] = static_cast<float>(sum8(sums[r][o]));
}

// No more outputs than the first-level cache has ways: their weights lie a multiple of its sets
// apart.
#if DEEPMINT_ISA_LEVEL >= 2
constexpr int kMixRows = 4, kMixOutputs = 6, kMixSingle = 8;
#elif DEEPMINT_ISA_LEVEL == 1
constexpr int kMixRows = 2, kMixOutputs = 2, kMixSingle = 4;
#else
constexpr int kMixRows = 1, kMixOutputs = 2, kMixSingle = 2;
#endif

template <int Rows, int Outputs>
void dots_outputs(const float* x, int64_t n, const float* fn, int64_t begin, int64_t end,
                  float* out, int64_t stride) {
  int64_t o = begin;
  for (; o + Outputs <= end; o += Outputs)
    dots_block<Rows, Outputs>(x, n, fn + o * n, out + o, stride);
  for (; o < end; ++o) dots_block<Rows, 1>(x, n, fn + o * n, out + o, stride);
}

constexpr int64_t kMaxStreams = 8;

#if DEEPMINT_ISA_LEVEL == 1
constexpr int64_t kMaxMixOutputs = kMaxStreams * (kMaxStreams + 2);
// Many rows: some rows at a time over one block of the weights after the other, so that these come
// from the second-level cache, whose size they would pass; sums wait in memory between blocks.
// Rows are widened once a block.
constexpr int64_t kMixGroup = 16, kMixBlock = 512;

template <int Rows, int Outputs>
DM_INLINE void dots_part(const double (*x)[kMixBlock], int64_t count, const float* fn, int64_t n,
                         D8* lanes) {
  D8 sums[Rows][Outputs];
  for (int r = 0; r < Rows; ++r)
    for (int o = 0; o < Outputs; ++o) sums[r][o] = lanes[r * kMaxMixOutputs + o];
  for (int64_t i = 0; i < count; i += 8) {
    D8 v[Rows];
    for (int r = 0; r < Rows; ++r) __builtin_memcpy(&v[r], x[r] + i, sizeof v[r]);
    for (int o = 0; o < Outputs; ++o) {
      const D8 w = wide8(fn + o * n + i);
      for (int r = 0; r < Rows; ++r) sums[r][o] = fma8(v[r], w, sums[r][o]);
    }
  }
  for (int r = 0; r < Rows; ++r)
    for (int o = 0; o < Outputs; ++o) lanes[r * kMaxMixOutputs + o] = sums[r][o];
}

void dots_group(const float* x, int64_t rows, int64_t n, const float* fn, int64_t begin,
                int64_t end, float* out, int64_t stride) {
  D8 lanes[kMixGroup * kMaxMixOutputs];  // [row][output]
  alignas(64) double wide_x[kMixRows][kMixBlock];
  const int64_t outputs = end - begin;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t o = 0; o < outputs; ++o) lanes[r * kMaxMixOutputs + o] = all8(0);
  for (int64_t first = 0; first < n; first += kMixBlock) {
    const int64_t count = first + kMixBlock < n ? kMixBlock : n - first;
    for (int64_t row = 0; row < rows; row += kMixRows) {
      for (int64_t r = 0; r < kMixRows; ++r)
        for (int64_t i = 0; i < count; ++i)
          wide_x[r][i] = static_cast<double>(x[(row + r) * n + first + i]);
      const float* w = fn + begin * n + first;
      int64_t o = 0;
      for (; o + kMixOutputs <= outputs; o += kMixOutputs)
        dots_part<kMixRows, kMixOutputs>(wide_x, count, w + o * n, n,
                                         lanes + row * kMaxMixOutputs + o);
      for (; o < outputs; ++o)
        dots_part<kMixRows, 1>(wide_x, count, w + o * n, n, lanes + row * kMaxMixOutputs + o);
    }
  }
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t o = 0; o < outputs; ++o)
      out[r * stride + begin + o] = static_cast<float>(sum8(lanes[r * kMaxMixOutputs + o]));
}
#endif

void mix_dots(const float* x, int64_t rows, int64_t n, const float* fn, int64_t begin, int64_t end,
              float* out, int64_t stride) {
  int64_t row = 0;
#if DEEPMINT_ISA_LEVEL == 1
  while (rows - row >= 2 * kMixRows && end - begin <= kMaxMixOutputs) {
    const int64_t left = (rows - row) / kMixRows * kMixRows,
                  some = left < kMixGroup ? left : kMixGroup;
    dots_group(x + row * n, some, n, fn, begin, end, out + row * stride, stride);
    row += some;
  }
#endif
  for (; row + kMixRows <= rows; row += kMixRows)
    dots_outputs<kMixRows, kMixOutputs>(x + row * n, n, fn, begin, end, out + row * stride, stride);
#if DEEPMINT_ISA_LEVEL >= 2
  // Once over the weights, for which memory is waited.
  if (rows - row == 3)
    return dots_outputs<3, 8>(x + row * n, n, fn, begin, end, out + row * stride, stride);
  if (rows - row == 2)
    return dots_outputs<2, 6>(x + row * n, n, fn, begin, end, out + row * stride, stride);
#endif
  for (; row < rows; ++row)
    dots_outputs<1, kMixSingle>(x + row * n, n, fn, begin, end, out + row * stride, stride);
}

DM_INLINE V8 sigmoid8(V8 x) { return narrow(1.0 / (1.0 + exp8(-wide(x)))); }

// Sum of count vectors, `step` apart, in double and rounded once.
DM_INLINE V8 sum_rounded(const V8* v, int64_t count, int64_t step) {
  D8 s = wide(v[0]);
  for (int64_t k = 1; k < count; ++k) s += wide(v[k * step]);
  return narrow(s);
}

// Eight rows at a time, one per lane; lanes without a row compute on zeros.
template <int Streams>
DM_INLINE void finish_rows(const float* dots, int64_t count, int64_t dots_stride, int64_t streams,
                           const float* base, const float* scale, int rounds, float hc_eps,
                           float* pre, float* post, float* comb) {
  const int64_t hc = Streams > 0 ? Streams : streams, outputs = hc * (hc + 2);
  float lane[kMaxStreams * (kMaxStreams + 2) + 1][8];
  for (int64_t o = 0; o <= outputs; ++o)
    for (int64_t r = 0; r < 8; ++r) lane[o][r] = r < count ? dots[r * dots_stride + o] : 0.0f;
  const V8 r = load8(lane[outputs]), eps = all8f(hc_eps);
  const auto value = [&](int64_t o, float s) __attribute__((always_inline)) {
    return load8(lane[o]) * r * s + base[o];
  };
  V8 c[kMaxStreams * kMaxStreams];
  for (int64_t j = 0; j < hc; ++j) {
    V8 most = value(2 * hc + j * hc, scale[2]);
    for (int64_t k = 0; k < hc; ++k) {
      const V8 v = value(2 * hc + j * hc + k, scale[2]);
      most = v > most ? v : most;
      c[j * hc + k] = v;
    }
    for (int64_t k = 0; k < hc; ++k) c[j * hc + k] = exp8f(c[j * hc + k] - most);
    const V8 total = sum_rounded(c + j * hc, hc, 1);
    for (int64_t k = 0; k < hc; ++k) c[j * hc + k] = c[j * hc + k] / total + eps;
  }
  for (int round = 0; round < rounds; ++round) {
    if (round > 0)
      for (int64_t j = 0; j < hc; ++j) {
        const V8 total = sum_rounded(c + j * hc, hc, 1) + eps;
        for (int64_t k = 0; k < hc; ++k) c[j * hc + k] /= total;
      }
    for (int64_t k = 0; k < hc; ++k) {
      const V8 total = sum_rounded(c + k, hc, hc) + eps;
      for (int64_t j = 0; j < hc; ++j) c[j * hc + k] /= total;
    }
  }
  for (int64_t j = 0; j < hc; ++j) {
    store8(lane[j], sigmoid8(value(j, scale[0])) + eps);
    store8(lane[hc + j], 2.0f * sigmoid8(value(hc + j, scale[1])));
    for (int64_t k = 0; k < hc; ++k) store8(lane[2 * hc + j * hc + k], c[j * hc + k]);
  }
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t j = 0; j < hc; ++j) {
      pre[i * hc + j] = lane[j][i];
      post[i * hc + j] = lane[hc + j][i];
    }
    for (int64_t j = 0; j < hc * hc; ++j) comb[i * hc * hc + j] = lane[2 * hc + j][i];
  }
}

void mix_finish(const float* dots, int64_t rows, int64_t dots_stride, int64_t hc, const float* base,
                const float* scale, int rounds, float hc_eps, float* pre, float* post,
                float* comb) {
  for (int64_t first = 0; first < rows; first += 8) {
    const int64_t count = rows - first < 8 ? rows - first : 8;
    const auto run = hc == 4 ? finish_rows<4> : finish_rows<0>;
    run(dots + first * dots_stride, count, dots_stride, hc, base, scale, rounds, hc_eps,
        pre + first * hc, post + first * hc, comb + first * hc * hc);
  }
}

template <int Streams>
DM_INLINE void collapse_streams(const float* x, int64_t hc, int64_t n, const float* pre, float* y) {
  for (int64_t i = 0; i < n; i += 8) {
    D8 s = static_cast<double>(pre[0]) * wide8(x + i);
    for (int64_t c = 1; c < (Streams > 0 ? Streams : hc); ++c)
      s = fma8(all8(static_cast<double>(pre[c])), wide8(x + c * n + i), s);
    store8(y + i, round_bf16(narrow(s)));
  }
}
void collapse(const float* x, int64_t hc, int64_t n, const float* pre, float* y) {
  hc == 4 ? collapse_streams<4>(x, hc, n, pre, y) : collapse_streams<0>(x, hc, n, pre, y);
}

template <int Streams>
DM_INLINE void expand_streams(const float* y, int64_t streams, int64_t n, const float* post,
                              const float* comb, float* x) {
  const int64_t hc = Streams > 0 ? Streams : streams;
  for (int64_t i = 0; i < n; i += 8) {
    D8 v[Streams > 0 ? Streams : kMaxStreams];
    for (int64_t j = 0; j < hc; ++j) v[j] = wide8(x + j * n + i);
    const D8 out = wide8(y + i);
    for (int64_t k = 0; k < hc; ++k) {
      D8 s = static_cast<double>(comb[k]) * v[0];
      for (int64_t j = 1; j < hc; ++j)
        s = fma8(all8(static_cast<double>(comb[j * hc + k])), v[j], s);
      store8(x + k * n + i, round_bf16(narrow(fma8(all8(static_cast<double>(post[k])), out, s))));
    }
  }
}
void expand(const float* y, int64_t hc, int64_t n, const float* post, const float* comb, float* x) {
  hc == 4 ? expand_streams<4>(y, hc, n, post, comb, x) : expand_streams<0>(y, hc, n, post, comb, x);
}

void pool_pair(const float* kv0, const float* kv1, const float* gate0, const float* gate1,
               int64_t n, float* y) {
  for (int64_t i = 0; i < n; i += 8) {
    const V8 g0 = load8(gate0 + i), g1 = load8(gate1 + i), most = g0 > g1 ? g0 : g1;
    const D8 e0 = wide(exp8f(g0 - most)), e1 = wide(exp8f(g1 - most));
    const D8 s = wide8(kv0 + i) * e0 + wide8(kv1 + i) * e1;
    store8(y + i, round_bf16(narrow(s / (e0 + e1))));
  }
}

// Largest magnitude of Block values, as the bits of a float.
template <int Block>
DM_INLINE float block_max(const float* x, float floor) {
  int32_t most = static_cast<int32_t>(bits_of(floor));
  for (int i = 0; i < Block; ++i) {
    const int32_t a = static_cast<int32_t>(bits_of(x[i]) & 0x7FFFFFFFu);
    most = a > most ? a : most;
  }
  return float_of(static_cast<uint32_t>(most));
}

// Exponent field (biased by 127) of the smallest power of two >= v.
DM_INLINE int32_t ceil_exponent(float v) {
  const uint32_t u = bits_of(v);
  return static_cast<int32_t>(u >> 23) + ((u & 0x7FFFFFu) != 0 ? 1 : 0);
}
DM_INLINE float power_of_two(int32_t biased) {
  return biased >= 255 ? __builtin_inff()
         : biased <= 0 ? 0x1p-127f
                       : float_of(static_cast<uint32_t>(biased) << 23);
}

DM_INLINE uint32_t e4m3_code(float x) {
  const uint32_t u = bits_of(x), sign = (u >> 31) << 7;
  float a = float_of(u & 0x7FFFFFFFu);
  a = a < 448.0f ? a : 448.0f;
  const uint32_t v = bits_of(a);
  const uint32_t normal = ((v + 0x7FFFFu + ((v >> 20) & 1u)) >> 20) - (120u << 3);
  // a * 512 rounds to an integer when it is added to 1.5 * 2^23.
  const uint32_t small = bits_of(a * 512.0f + 12582912.0f) - 0x4B400000u;
  return (a < 0x1p-6f ? small : normal) | sign;
}

DM_INLINE uint32_t e2m1_code(float x) {
  const uint32_t u = bits_of(x);
  const float a = float_of(u & 0x7FFFFFFFu);
  // Ties go to the even code.
  const uint32_t code = static_cast<uint32_t>(a > 0.25f) + static_cast<uint32_t>(a >= 0.75f) +
                        static_cast<uint32_t>(a > 1.25f) + static_cast<uint32_t>(a >= 1.75f) +
                        static_cast<uint32_t>(a > 2.5f) + static_cast<uint32_t>(a >= 3.5f) +
                        static_cast<uint32_t>(a > 5.0f);
  return code | (u >> 31) << 3;
}

DM_INLINE float e4m3_value(uint32_t code) {  // masks instead of branches
  const uint32_t u = code & 127u, is_small = 0u - static_cast<uint32_t>(u < 8),
                 is_nan = 0u - static_cast<uint32_t>(u == 127);
  const uint32_t small = bits_of(static_cast<float>(static_cast<int32_t>(u)) * 0x1p-9f);
  const uint32_t normal = (u << 20) + (120u << 23);
  return float_of((small & is_small) | (normal & ~is_small) | (is_nan & 0x7FC00000u) |
                  (code & 128u) << 24);
}

DM_INLINE float e8m0_value(uint8_t b) {
  return b == 255 ? __builtin_nanf("") : power_of_two(static_cast<int32_t>(b));
}

void pack_q8(const float* x, int64_t n, uint8_t* codes, uint8_t* scales) {
  for (int64_t b = 0; b < n / 32; ++b) {
    const int32_t e = ceil_exponent(block_max<32>(x + 32 * b, 1e-4f) / 448.0f);
    scales[b] = static_cast<uint8_t>(e);
    const float s = power_of_two(e);
    uint32_t c[32];
    for (int i = 0; i < 32; ++i) c[i] = e4m3_code(x[32 * b + i] / s);
    for (int i = 0; i < 32; ++i) codes[32 * b + i] = static_cast<uint8_t>(c[i]);
  }
}

template <int Block>
DM_INLINE void pack_e2m1(const float* x, float s, uint8_t* codes) {
  uint32_t c[Block];
  for (int i = 0; i < Block; ++i) c[i] = e2m1_code(x[i] / s);
  for (int i = 0; i < Block / 2; ++i) codes[i] = static_cast<uint8_t>(c[2 * i] | c[2 * i + 1] << 4);
}

void pack_q4idx(const float* x, int64_t n, uint8_t* codes, uint8_t* scales) {
  for (int64_t b = 0; b < n / 32; ++b) {
    const int32_t e = ceil_exponent(block_max<32>(x + 32 * b, 6.0f * 0x1p-126f) / 6.0f);
    scales[b] = static_cast<uint8_t>(e);
    pack_e2m1<32>(x + 32 * b, power_of_two(e), codes + 16 * b);
  }
}

void pack_q4kv(const float* x, int64_t n, uint8_t* codes, uint8_t* scales) {
  for (int64_t b = 0; b < n / 16; ++b) {
    const uint32_t code = e4m3_code(block_max<16>(x + 16 * b, 6.0f * 0x1p-9f) / 6.0f);
    scales[b] = static_cast<uint8_t>(code);
    pack_e2m1<16>(x + 16 * b, e4m3_value(code), codes + 8 * b);
  }
}

void unpack_q8(const uint8_t* codes, const uint8_t* scales, int64_t n, float* y) {
  for (int64_t b = 0; b < n / 32; ++b) {
    const float s = e8m0_value(scales[b]);
    for (int i = 0; i < 32; ++i) y[32 * b + i] = e4m3_value(codes[32 * b + i]) * s;
  }
}

void engram_gate(float* x, const float* key, const float* value, const float* q_weight,
                 const float* k_weight, int64_t n, float eps) {
  D8 products = all8(0);
  for (int64_t i = 0; i < n; i += 8)
    products += wide8(x + i) * wide8(q_weight + i) * wide8(k_weight + i) * wide8(key + i);
  const double count = static_cast<double>(n), e = static_cast<double>(eps);
  const double rx = 1.0 / sqrt_double(dot(x, x, n) / count + e);
  const double rk = 1.0 / sqrt_double(dot(key, key, n) / count + e);
  const double s = sum8(products) * rx * rk / sqrt_double(count);
  const double magnitude = __builtin_fabs(s) < 1e-6 ? 1e-6 : __builtin_fabs(s);
  const double argument = __builtin_copysign(sqrt_double(magnitude), s);
  const float gate = static_cast<float>(1.0 / (1.0 + exp8(all8(-argument))[0]));
  for (int64_t i = 0; i < n; i += 8)
    store8(x + i, round_bf16(narrow(wide8(x + i) + static_cast<double>(gate) * wide8(value + i))));
}

void sum_rows(const float* rows, const int32_t* which, int64_t count, const float* last, int64_t n,
              float* y) {
  for (int64_t i = 0; i < n; i += 8) {
    V8 sum = {};
    for (int64_t k = 0; k < count; ++k) sum = sum + load8(rows + which[k] * n + i);
    store8(y + i, round_bf16(sum + load8(last + i)));
  }
}

}  // namespace

extern const V41OpsTable v41_ops_table = {
    rms_norm, rope,       sum_squares, mix_dots,  mix_finish,  collapse, expand,       pool_pair,
    pack_q8,  pack_q4idx, pack_q4kv,   unpack_q8, engram_gate, sum_rows, router_scores};

}  // namespace deepmint::kernels::DEEPMINT_ISA_NS
