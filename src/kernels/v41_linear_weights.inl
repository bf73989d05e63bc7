// One step of V4.1 weights of each format as operands, and what becomes of sums: lanes meet, round,
// are stored.
//
// Included after v41_operand.inl by v41_linear_simd.cc, which is compiled once per instruction set.

namespace deepmint::kernels::DEEPMINT_ISA_NS {
namespace {

#if DEEPMINT_ISA_LEVEL >= 4
DM_INLINE Operand load_operand(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
DM_INLINE F16 dot(F16 acc, Operand w, Operand x) {
  return {
      _mm512_dpbf16_ps(acc.v, reinterpret_cast<__m512bh>(w.v), reinterpret_cast<__m512bh>(x.v))};
}
#else
DM_INLINE Operand load_operand(const uint8_t* p) {
  return {load(reinterpret_cast<const float*>(p)), load(reinterpret_cast<const float*>(p) + 16)};
}
DM_INLINE F16 dot(F16 acc, Operand w, Operand x) { return fma(w.b, x.b, fma(w.a, x.a, acc)); }
#endif

// ---- Weights of each format, 32 at a time

#if DEEPMINT_ISA_LEVEL == 1
// Formats that come in BF16 words: Codes is what a step loads once, words() the words of its first
// sixteen weights or the others, in the order of lanes.
template <class Format>
concept InWords = requires { typename Format::Codes; };
#endif

struct Bf16 {
  static constexpr size_t kStepBytes = 64;
  static constexpr bool kSharedScale = true;
  struct Scale {};
  DM_INLINE Scale scale(const V41Args&, uint8_t) { return {}; }
  DM_INLINE Operand load_weights(const V41Args&, const uint8_t* p, Scale) {
#if DEEPMINT_ISA_LEVEL >= 4
    return load_operand(p);
#elif DEEPMINT_ISA_LEVEL >= 2
    const __m512i w = _mm512_loadu_si512(p);
    const __m512i a = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(w)),
                  b = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(w, 1));
    return {{_mm512_castsi512_ps(_mm512_slli_epi32(a, 16))},
            {_mm512_castsi512_ps(_mm512_slli_epi32(b, 16))}};
#elif DEEPMINT_ISA_LEVEL == 1
    const __m256i first = words({p}, 0), second = words({p}, 1);
    return {{even_words(first), odd_words(first)}, {even_words(second), odd_words(second)}};
#else
    __m128 q[8];
    for (int i = 0; i < 4; ++i) {
      const __m128i w = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p) + i);
      q[2 * i] = _mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), w));
      q[2 * i + 1] = _mm_castsi128_ps(_mm_unpackhi_epi16(_mm_setzero_si128(), w));
    }
    return {{{q[0], q[1], q[2], q[3]}}, {{q[4], q[5], q[6], q[7]}}};
#endif
  }
#if DEEPMINT_ISA_LEVEL == 1
  struct Codes {
    const uint8_t* p;
  };
  DM_INLINE Codes load_codes(const V41Args&, const uint8_t* p, Scale) { return {p}; }
  DM_INLINE __m256i words(Codes c, size_t half) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(c.p) + half);
  }
#endif
};

struct Fp8 {
  static constexpr size_t kStepBytes = 32;
  static constexpr bool kSharedScale = true;  // by 32 outputs, so by every register tile
#if DEEPMINT_ISA_LEVEL >= 4
  // 64 codes at a time: two look-ups of the seven bits give both bytes of a BF16. Interleaving them
  // leaves k 0-7, 16-23, 32-39 and 48-55 in the first step and the others in the second.
  struct Pair {
    Operand first, second;
  };
  struct Table {
    __m512i high[2], low[2];
  };
  DM_INLINE Table table(const V41Args& a) {
    const uint8_t* bytes = a.tables->e4m3_bf16_bytes;
    return {{_mm512_loadu_si512(bytes), _mm512_loadu_si512(bytes + 64)},
            {_mm512_loadu_si512(bytes + 128), _mm512_loadu_si512(bytes + 192)}};
  }
  // Two scales as additions to the exponent: of the first 32 codes and of the others.
  DM_INLINE __m512i exponents(uint8_t b0, uint8_t b1) {
    const auto shifted = [](uint8_t b) __attribute__((always_inline)) {
      return static_cast<short>((static_cast<int>(b) - 127) << 7);
    };
    return _mm512_mask_set1_epi16(_mm512_set1_epi16(shifted(b0)), 0xFFFF0000u, shifted(b1));
  }
  DM_INLINE Operand scaled(__m512i v, __m512i exponents) {
    const __mmask32 nonzero = _mm512_test_epi16_mask(v, _mm512_set1_epi16(0x7FFF));
    return {_mm512_mask_add_epi16(v, nonzero, v, exponents)};
  }
  DM_INLINE Pair load_pair(const Table& t, __m512i codes) {
    const __m512i low = _mm512_permutex2var_epi8(t.low[0], codes, t.low[1]);
    const __m512i high = _mm512_ternarylogic_epi64(
        _mm512_permutex2var_epi8(t.high[0], codes, t.high[1]), codes,
        _mm512_set1_epi8(static_cast<char>(0x80)), 0xF8);  // high | (codes & sign)
    return {{_mm512_unpacklo_epi8(low, high)}, {_mm512_unpackhi_epi8(low, high)}};
  }
  DM_INLINE Pair load_pair(const Table& t, __m512i codes, __m512i exponents) {
    const Pair w = load_pair(t, codes);
    return {scaled(w.first.v, exponents), scaled(w.second.v, exponents)};
  }
  // An activation times the scale of its weights. Zeros, subnormal numbers (which the BF16 dot
  // takes as zero), infinities and NaNs stay what they are. `outside` collects the values whose
  // exponent does not fit BF16.
  DM_INLINE __m512i scaled_activations(__m512i x, __m512i exponents, __mmask32& outside) {
    const __m512i field = _mm512_set1_epi16(0x7F80), unit = _mm512_set1_epi16(0x80);
    // Exponents from 1 to 254 are those that are below 254 after 1 is taken away.
    const __m512i before = _mm512_sub_epi16(_mm512_and_si512(x, field), unit),
                  after = _mm512_add_epi16(before, exponents),
                  limit = _mm512_set1_epi16(static_cast<short>(254 << 7));
    const __mmask32 normal = _mm512_cmplt_epu16_mask(before, limit);
    outside |= _mm512_mask_cmpge_epu16_mask(normal, after, limit);
    return _mm512_mask_add_epi16(x, normal, x, exponents);
  }
#elif DEEPMINT_ISA_LEVEL >= 1
  struct Scale {
    F16 f;
  };
  DM_INLINE Scale scale(const V41Args& a, uint8_t b) { return {set1(a.tables->e8m0_half[b])}; }
  // Read as f16 (sign, 0eeee, mmm0000000), a code is 2^-8 of its value, subnormal ones too.
#if DEEPMINT_ISA_LEVEL >= 2
  DM_INLINE Operand load_weights(const V41Args&, const uint8_t* p, const Scale& s) {
    const __m512i c = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    const __m512i h =
        _mm512_and_si512(_mm512_slli_epi16(c, 7), _mm512_set1_epi16(static_cast<short>(0xBFFF)));
    return {mul({_mm512_cvtph_ps(_mm512_castsi512_si256(h))}, s.f),
            mul({_mm512_cvtph_ps(_mm512_extracti64x4_epi64(h, 1))}, s.f)};
  }
#else
  DM_INLINE F16 half(const uint8_t* p) {
    const __m128i apart = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    const __m256i c = _mm256_cvtepi8_epi16(
        _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), apart));
    const __m256i h =
        _mm256_and_si256(_mm256_slli_epi16(c, 7), _mm256_set1_epi16(static_cast<short>(0xBFFF)));
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(h)),
            _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))};
  }
  DM_INLINE Operand load_weights(const V41Args&, const uint8_t* p, const Scale& s) {
    return {mul(half(p), s.f), mul(half(p + 16), s.f)};
  }
#endif
#else
  struct Scale {
    float f;
  };
  DM_INLINE Scale scale(const V41Args& a, uint8_t b) { return {a.tables->e8m0[b]}; }
  DM_INLINE Operand load_weights(const V41Args& a, const uint8_t* p, const Scale& s) {
    alignas(64) float v[32];
    for (int i = 0; i < 32; ++i) v[i] = a.tables->e4m3[p[i]] * s.f;
    return {load(v), load(v + 16)};
  }
#endif
};

#if DEEPMINT_ISA_LEVEL == 1
// FP8 codes shifted to where BF16 has its exponent: 2^-120 of their value, the subnormal ones as
// subnormal floats. Their scale and 2^120 are in the activations.
struct Fp8Shifted {
  static constexpr size_t kStepBytes = 32;
  static constexpr bool kSharedScale = true;
  struct Scale {};
  DM_INLINE Scale scale(const V41Args&, uint8_t) { return {}; }
  struct Codes {
    const uint8_t* p;
  };
  DM_INLINE Codes load_codes(const V41Args&, const uint8_t* p, Scale) { return {p}; }
  DM_INLINE __m256i words(Codes c, size_t half) {
    const __m256i codes =
        _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(c.p) + half));
    return _mm256_and_si256(_mm256_slli_epi16(codes, 4),
                            _mm256_set1_epi16(static_cast<short>(0x87F0)));
  }
  // An activation times the scale b and 2^120. False when 2^(b - 7) is no float.
  DM_INLINE bool factor(uint8_t b, F16& f) {
    f = set1(float_of((static_cast<uint32_t>(b) + 120) << 23));
    return b <= 134;
  }
};
#endif

// Even k of a step come first, then the odd ones, because that is how nibbles come apart.
struct Fp4 {
  static constexpr size_t kStepBytes = 16;
  static constexpr bool kSharedScale = false;
#if DEEPMINT_ISA_LEVEL >= 4
  struct Scale {
    const uint16_t* table;  // the 16 weights that this scale allows, twice
  };
  DM_INLINE Scale scale(const V41Args& a, uint8_t b) { return {a.tables->fp4_bf16[b]}; }
  struct Halves {
    __m256i even, odd;
  };
  DM_INLINE Halves load_halves(const uint8_t* p, Scale s) {
    const __m256i c = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m256i table = _mm256_load_si256(reinterpret_cast<const __m256i*>(s.table));
    return {_mm256_permutexvar_epi16(c, table),
            _mm256_permutexvar_epi16(_mm256_srli_epi16(c, 4), table)};
  }
  DM_INLINE Operand load_weights(const V41Args&, const uint8_t* p, Scale s) {
    const __m256i twice =
        _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    // Of the second copy the high nibbles; what lies above a nibble chooses between equal entries.
    const __m256i codes =
        _mm256_srlv_epi16(twice, _mm256_setr_epi16(0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4));
    return {_mm512_permutexvar_epi16(_mm512_cvtepu8_epi16(codes), _mm512_load_si512(s.table))};
  }
#elif DEEPMINT_ISA_LEVEL == 1
  struct Scale {
    const uint8_t* table;  // the high bytes of the 16 weights that this scale allows, the low ones
  };
  DM_INLINE Scale scale(const V41Args& a, uint8_t b) { return {a.tables->fp4_bf16_bytes[b]}; }
  struct Codes {
    __m256i low, high;  // bytes of the words
  };
  DM_INLINE Codes load_codes(const V41Args&, const uint8_t* p, Scale s) {
    const auto twice = [](const uint8_t* from) __attribute__((always_inline)) {
      return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(from)));
    };
    // Eight bytes in each half: their low nibbles and their high ones.
    const __m256i bytes =
        _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m256i eights =
        _mm256_castpd_si256(_mm256_permute_pd(_mm256_castsi256_pd(bytes), 0b1100));
    const __m256i codes = _mm256_and_si256(
        _mm256_srlv_epi64(eights, _mm256_setr_epi64x(0, 4, 0, 4)), _mm256_set1_epi8(15));
    return {_mm256_shuffle_epi8(twice(s.table + 16), codes),
            _mm256_shuffle_epi8(twice(s.table), codes)};
  }
  DM_INLINE __m256i words(Codes c, size_t half) {
    return half == 0 ? _mm256_unpacklo_epi8(c.low, c.high) : _mm256_unpackhi_epi8(c.low, c.high);
  }
#else
  struct Scale {
    float f;
  };
  DM_INLINE Scale scale(const V41Args& a, uint8_t b) { return {a.tables->e8m0[b]}; }
#if DEEPMINT_ISA_LEVEL >= 2
  DM_INLINE Operand load_weights(const V41Args& a, const uint8_t* p, Scale s) {
    const __m512i c = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m512 table = _mm512_loadu_ps(a.tables->e2m1);
    const F16 f = set1(s.f);
    return {mul({_mm512_permutexvar_ps(c, table)}, f),
            mul({_mm512_permutexvar_ps(_mm512_srli_epi32(c, 4), table)}, f)};
  }
#else
  DM_INLINE Operand load_weights(const V41Args& a, const uint8_t* p, Scale s) {
    alignas(64) float v[32];
    for (int i = 0; i < 16; ++i) {
      v[i] = a.tables->e2m1[p[i] & 15] * s.f;
      v[16 + i] = a.tables->e2m1[p[i] >> 4] * s.f;
    }
    return {load(v), load(v + 16)};
  }
#endif
#endif
};

// The last k % 32 weights of a BF16 row, followed by zeros.
DM_INLINE Operand load_tail(const V41Args& a, const uint8_t* p, int64_t count) {
  alignas(64) uint8_t words[64] = {};
  for (int64_t i = 0; i < 2 * count; ++i) words[i] = p[i];
  return Bf16::load_weights(a, words, {});
}

// Of the scales that begin at `first`, those of an output on. Null for BF16.
template <class Format>
DM_INLINE const uint8_t* scales_of(const uint8_t* first, const V41Args& a, int64_t output) {
  if constexpr (Format::kStepBytes == 64) return nullptr;
  return first + static_cast<size_t>(Format::kSharedScale ? output / 32 : output) * a.scale_stride;
}

// ---- Sums of the lanes, rounding, storing

#if DEEPMINT_ISA_LEVEL >= 2
// Four sums at once: lanes i and i + 8 meet, then i and i + 4; each quarter keeps one of them.
DM_INLINE __m512 quarters(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512 ab =
      _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
  const __m512 cd =
      _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xEE));
  return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
}
// The sums of eight registers, in their order; the same tree as sum().
DM_INLINE __m256 sums(const F16* a) {
  const __m512 p = quarters(a[0].v, a[1].v, a[2].v, a[3].v),
               q = quarters(a[4].v, a[5].v, a[6].v, a[7].v);
  const __m512 t = _mm512_add_ps(_mm512_shuffle_ps(p, q, 0x44), _mm512_shuffle_ps(p, q, 0xEE));
  const __m512 s = _mm512_add_ps(t, _mm512_permute_ps(t, 0xB1));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 4, 8, 12, 2, 6, 10, 14);
  return _mm512_castps512_ps256(_mm512_permutexvar_ps(order, s));
}
#endif

#if DEEPMINT_ISA_LEVEL >= 4
// The same from the halves of eight registers: lanes 0-7 and 8-15.
DM_INLINE __m256 sums(const __m256* low, const __m256* high) {
  __m256 half[8], pair[4];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) half[i] = _mm256_add_ps(low[i], high[i]);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    pair[i] = _mm256_add_ps(_mm256_permute2f128_ps(half[2 * i], half[2 * i + 1], 0x20),
                            _mm256_permute2f128_ps(half[2 * i], half[2 * i + 1], 0x31));
  const __m256 p = _mm256_add_ps(_mm256_shuffle_ps(pair[0], pair[2], 0x44),
                                 _mm256_shuffle_ps(pair[0], pair[2], 0xEE)),
               q = _mm256_add_ps(_mm256_shuffle_ps(pair[1], pair[3], 0x44),
                                 _mm256_shuffle_ps(pair[1], pair[3], 0xEE));
  const __m256 s = _mm256_add_ps(_mm256_shuffle_ps(p, q, 0x88), _mm256_shuffle_ps(p, q, 0xDD));
  return _mm256_permutevar8x32_ps(s, _mm256_setr_epi32(0, 4, 2, 6, 1, 5, 3, 7));
}
#endif

#if DEEPMINT_ISA_LEVEL >= 2
// Rounds and stores kRows x kOutputs sums, row by row, eight at a time: sums_of(i) are those from
// the i-th on.
template <int kRows, int kOutputs, class Sums>
DM_INLINE void store_sums(Sums&& sums_of, float* y, int64_t stride, bool to_bf16) {
  constexpr int kSums = kRows * kOutputs, kPadded = (kSums + 7) / 8 * 8;
  constexpr bool kWhole = kOutputs == 8, kHalves = kOutputs == 4 && kRows % 2 == 0;
  alignas(64) float out[kPadded];
#pragma GCC unroll 4
  for (int i = 0; i < kPadded; i += 8) {
    __m256i s = _mm256_castps_si256(sums_of(i));
    if (to_bf16) s = rounded_bits(s);
    float* row = y + i / kOutputs * stride;
    if constexpr (kWhole) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(row), s);
    } else if constexpr (kHalves) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(row), _mm256_castsi256_si128(s));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(row + stride), _mm256_extracti128_si256(s, 1));
    } else {
      _mm256_store_si256(reinterpret_cast<__m256i*>(out + i), s);
    }
  }
  if constexpr (!kWhole && !kHalves)
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
      for (int o = 0; o < kOutputs; ++o) y[r * stride + o] = out[r * kOutputs + o];
}
#endif

#if DEEPMINT_ISA_LEVEL == 1
// The tree of sum(), of even lanes and odd ones.
DM_INLINE float sum_of(F16 x) {
  const auto fours = [](__m256 v) __attribute__((always_inline)) {
    return _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  };
  const __m128 even = fours(x.a), odd = fours(x.b);
  const __m128 s4 = _mm_add_ps(_mm_unpacklo_ps(even, odd), _mm_unpackhi_ps(even, odd));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}
// Four sums at once, in their order; the same tree.
DM_INLINE __m128 sums4(F16 a, F16 b, F16 c, F16 d) {
  // Two of them side by side: even lanes i and i + 8 meet, odd ones, then i and i + 4 of both.
  const auto pair = [](F16 x, F16 y) __attribute__((always_inline)) {
    const auto fours = [](__m256 v, __m256 w) __attribute__((always_inline)) {
      return _mm256_add_ps(_mm256_permute2f128_ps(v, w, 0x20), _mm256_permute2f128_ps(v, w, 0x31));
    };
    const __m256 even = fours(x.a, y.a), odd = fours(x.b, y.b);
    return _mm256_add_ps(_mm256_unpacklo_ps(even, odd), _mm256_unpackhi_ps(even, odd));
  };
  const __m256 ab = pair(a, b), cd = pair(c, d);
  const __m256 twos =
      _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xEE));
  const __m256 s = _mm256_hadd_ps(twos, twos);  // a, c, a, c | b, d, b, d
  return _mm_unpacklo_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
}
// Rounded to BF16 if asked for.
DM_INLINE __m128 rounded4(__m128 x, bool to_bf16) {
  if (!to_bf16) return x;
  return _mm_castsi128_ps(
      _mm256_castsi256_si128(rounded_bits(_mm256_castsi128_si256(_mm_castps_si128(x)))));
}
#else
DM_INLINE float sum_of(F16 x) { return sum(x); }
#endif

template <int kRows, int kOutputs>
DM_INLINE void finish(const F16 (&acc)[kRows][kOutputs], float* y, int64_t stride, bool to_bf16) {
#if DEEPMINT_ISA_LEVEL >= 2
  constexpr int kSums = kRows * kOutputs, kPadded = (kSums + 7) / 8 * 8;
  F16 all[kPadded];
#pragma GCC unroll 32
  for (int i = 0; i < kPadded; ++i) all[i] = i < kSums ? acc[i / kOutputs][i % kOutputs] : zero();
  store_sums<kRows, kOutputs>([&](int i) __attribute__((always_inline)) { return sums(all + i); },
                              y, stride, to_bf16);
#else
#if DEEPMINT_ISA_LEVEL == 1
  if constexpr (kRows * kOutputs == 4) {
    const auto at = [&](int i)
                        __attribute__((always_inline)) { return acc[i / kOutputs][i % kOutputs]; };
    alignas(16) float out[4];
    _mm_store_ps(out, rounded4(sums4(at(0), at(1), at(2), at(3)), to_bf16));
    for (int r = 0; r < kRows; ++r)
      for (int o = 0; o < kOutputs; ++o) y[r * stride + o] = out[r * kOutputs + o];
    return;
  }
#endif
  for (int r = 0; r < kRows; ++r)
    for (int o = 0; o < kOutputs; ++o) {
      const float s = sum_of(acc[r][o]);
      y[r * stride + o] = to_bf16 ? float_of(rounded_bits(s)) : s;
    }
#endif
}

}  // namespace
}  // namespace deepmint::kernels::DEEPMINT_ISA_NS
