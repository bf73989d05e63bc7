// V4.1 attention. Compiled once per instruction set. Lanes are heads for scores and weights,
// dimensions for values.
// clang-format off: the others build on simd16.inl
#include "kernels/simd16.inl"
#include "kernels/double8.inl"
#include "kernels/transpose16.inl"
// clang-format on
#include "kernels/v41_attention_table.h"

namespace deepmint::kernels::DEEPMINT_ISA_NS {
namespace {

DM_INLINE uint32_t bf16_bits(float x) { return rounded_bits(x) >> 16; }

DM_INLINE uint32_t e4m3_bits(uint32_t code) {  // of the float value; masks instead of branches
  const uint32_t u = code & 127u, is_small = 0u - static_cast<uint32_t>(u < 8),
                 is_nan = 0u - static_cast<uint32_t>(u == 127);
  const uint32_t small = bits_of(static_cast<float>(static_cast<int32_t>(u)) * 0x1p-9f);
  const uint32_t normal = (u << 20) + (120u << 23);
  return (small & is_small) | (normal & ~is_small) | (is_nan & 0x7FC00000u) | (code & 128u) << 24;
}
DM_INLINE float e8m0_value(uint8_t b) {
  return b == 255 ? __builtin_nanf("")
         : b == 0 ? 0x1p-127f
                  : float_of(static_cast<uint32_t>(b) << 23);
}

#if DEEPMINT_ISA_LEVEL >= 2
[[gnu::noinline]] void unpack_window_slowly(const uint8_t* codes, uint8_t scale, uint16_t* out) {
  const float s = e8m0_value(scale);
  for (int64_t i = 0; i < 32; ++i)
    out[i] = static_cast<uint16_t>(bits_of(float_of(e4m3_bits(codes[i])) * s) >> 16);
}

// A constant that stays in a register: the compiler would make it anew in each turn of a loop.
DM_INLINE __m512i constant(__m512i v) {
  __asm__("" : "+v"(v));
  return v;
}

// 32 codes under one scale. In BF16 words: a normal code shifts into place and the scale, a power
// of two, adds to the exponent; the seven subnormal codes come from a table. A scale that leaves
// the range of BF16 takes the long way.
struct WindowBlock {
  __m512i magnitude, sign, smallest_normal, bias, small;
  DM_INLINE WindowBlock make() {
    alignas(32) static constexpr uint16_t kSmall[16] = {
        0, 0x3B00, 0x3B80, 0x3BC0, 0x3C00, 0x3C20, 0x3C40, 0x3C60, 0, 0, 0, 0, 0, 0, 0, 0};
    return {constant(_mm512_set1_epi16(127)), constant(_mm512_set1_epi16(128)),
            constant(_mm512_set1_epi16(8)), constant(_mm512_set1_epi16(120 << 7)),
            constant(_mm512_broadcast_i64x4(
                _mm256_load_si256(reinterpret_cast<const __m256i*>(kSmall))))};
  }
  DM_INLINE void unpack(const WindowBlock& c, const uint8_t* codes, uint8_t scale, uint16_t* out) {
    const int shift = static_cast<int>(scale) - 127;
    const __m512i code =
        _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)));
    const __m512i u = _mm512_and_si512(code, c.magnitude);
    const __mmask32 is_small = _mm512_cmplt_epu16_mask(u, c.smallest_normal);
    const __mmask32 is_nan = _mm512_cmpeq_epi16_mask(u, c.magnitude);
    if (is_nan != 0 || shift < -100 || shift > 118) [[unlikely]]
      return unpack_window_slowly(codes, scale, out);
    const __m512i normal = _mm512_add_epi16(_mm512_slli_epi16(u, 4), c.bias);
    const __m512i v = _mm512_mask_permutexvar_epi16(normal, is_small, u, c.small);
    const __mmask32 not_zero = _mm512_test_epi16_mask(u, u);
    const __m512i scaled =
        _mm512_mask_add_epi16(v, not_zero, v, _mm512_set1_epi16(static_cast<short>(shift * 128)));
    const __m512i sign = _mm512_slli_epi16(_mm512_and_si512(code, c.sign), 8);
    _mm512_storeu_si512(out, _mm512_or_si512(scaled, sign));
  }
};
void unpack_window(const uint8_t* row, int64_t dim, int64_t begin, int64_t end, uint16_t* out) {
  const WindowBlock block = WindowBlock::make();
  for (int64_t i = begin; i < end; i += 32)
    WindowBlock::unpack(block, row + i, row[dim + i / 32], out + i);
}
#elif DEEPMINT_ISA_LEVEL == 1
[[gnu::noinline]] void unpack_window_slowly(const uint8_t* codes, uint8_t scale, uint16_t* out) {
  const float s = e8m0_value(scale);
  for (int64_t i = 0; i < 32; ++i)
    out[i] = static_cast<uint16_t>(bits_of(float_of(e4m3_bits(codes[i])) * s) >> 16);
}

// 32 codes under one scale. Read as f16 (sign, 0eeee, mmm0000000), a code is 2^-8 of its value,
// subnormal ones too. NaN codes, and scales that leave the range, take the long way.
void unpack_window(const uint8_t* row, int64_t dim, int64_t begin, int64_t end, uint16_t* out) {
  const __m256i kept = _mm256_set1_epi16(static_cast<short>(0xBFFF));
  const __m256i magnitude = _mm256_set1_epi8(0x7F);
  for (int64_t i = begin; i < end; i += 32) {
    const uint8_t scale = row[dim + i / 32];
    const auto* from = reinterpret_cast<const __m128i*>(row + i);
    const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    const __m256i is_nan = _mm256_cmpeq_epi8(_mm256_and_si256(codes, magnitude), magnitude);
    if (scale < 27 || scale > 240 || _mm256_testz_si256(is_nan, is_nan) == 0) [[unlikely]] {
      unpack_window_slowly(row + i, scale, out + i);
      continue;
    }
    const __m256 factor = _mm256_set1_ps(float_of((static_cast<uint32_t>(scale) + 8) << 23));
    for (int half = 0; half < 2; ++half) {
      const __m256i c = _mm256_cvtepi8_epi16(_mm_loadu_si128(from + half));
      const __m256i h = _mm256_and_si256(_mm256_slli_epi16(c, 7), kept);
      const auto upper = [&](__m128i eight) __attribute__((always_inline)) {
        return _mm256_srli_epi32(_mm256_castps_si256(_mm256_mul_ps(_mm256_cvtph_ps(eight), factor)),
                                 16);
      };
      const __m256i words = _mm256_packus_epi32(upper(_mm256_castsi256_si128(h)),
                                                upper(_mm256_extracti128_si256(h, 1)));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i + 16 * half),
                          _mm256_permute4x64_epi64(words, 0xD8));
    }
  }
}
#else
void unpack_window(const uint8_t* __restrict row, int64_t dim, int64_t begin, int64_t end,
                   uint16_t* __restrict out) {
  const uint8_t* scales = row + dim;
  for (int64_t b = begin / 32; b < end / 32; ++b) {
    const float s = e8m0_value(scales[b]);
    for (int64_t i = 32 * b; i < 32 * b + 32; ++i)
      out[i] = static_cast<uint16_t>(bits_of(float_of(e4m3_bits(row[i])) * s) >> 16);
  }
}
#endif

#if DEEPMINT_ISA_LEVEL >= 1
// The BF16 value of an E2M1 code under an E4M3 scale: a product of two and four significant bits,
// so exact.
constexpr uint16_t global_value(uint32_t scale, uint32_t code) {
  const uint32_t e = scale >> 3 & 15, m = scale & 7;
  if ((scale & 127) == 127) return static_cast<uint16_t>(0x7FC0 | (scale & 128) << 8);
  // In units of 2^-10: the scale is (8 + m) 2^(e - 10) or m 2^-9, the code a multiple of 1/2.
  constexpr uint32_t kHalves[8] = {0, 1, 2, 3, 4, 6, 8, 12};
  uint32_t units = (e == 0 ? m << 1 : (8 + m) << e) / 2 * kHalves[code & 7];
  uint32_t exponent = 127 - 9 - 1 + 7, word = 0;
  for (; units >= 256; units /= 2) ++exponent;
  for (; units != 0 && units < 128; units *= 2) --exponent;
  if (units != 0) word = exponent << 7 | (units & 127);
  return static_cast<uint16_t>(word | (((scale & 128) << 8) ^ ((code & 8) << 12)));
}
#endif

#if DEEPMINT_ISA_LEVEL >= 2
// Of the sixteen codes under each scale.
struct GlobalValues {
  alignas(64) uint16_t of[256][16];
};
constexpr GlobalValues kGlobalValues = [] {
  GlobalValues t{};
  for (uint32_t scale = 0; scale < 256; ++scale)
    for (uint32_t code = 0; code < 16; ++code) t.of[scale][code] = global_value(scale, code);
  return t;
}();

// 32 codes under two scales.
struct GlobalBlock {
  __m512i nibbles, half;
  DM_INLINE GlobalBlock make() {
    // The second sixteen values look into the second half of the table.
    alignas(64) static constexpr uint32_t kHalf[16] = {
        0,          0,          0,          0,          0,          0,
        0,          0,          0x00100010, 0x00100010, 0x00100010, 0x00100010,
        0x00100010, 0x00100010, 0x00100010, 0x00100010};
    return {constant(_mm512_set1_epi32(0x000F000F)), constant(_mm512_load_si512(kHalf))};
  }
  DM_INLINE void unpack(const GlobalBlock& c, const uint8_t* codes, const uint8_t* scales,
                        uint16_t* out) {
    const auto values = [](uint8_t scale) __attribute__((always_inline)) {
      return _mm256_load_si256(reinterpret_cast<const __m256i*>(kGlobalValues.of[scale]));
    };
    const __m512i table =
        _mm512_inserti64x4(_mm512_castsi256_si512(values(scales[0])), values(scales[1]), 1);
    const __m512i bytes =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
    const __m512i index =
        _mm512_ternarylogic_epi32(_mm512_or_si512(bytes, _mm512_slli_epi32(bytes, 12)), c.nibbles,
                                  c.half, 0xEA);  // (a & b) | c
    _mm512_storeu_si512(out, _mm512_permutexvar_epi16(index, table));
  }
};
void unpack_global(const uint8_t* row, int64_t dim, int64_t begin, int64_t end, uint16_t* out) {
  const GlobalBlock block = GlobalBlock::make();
  for (int64_t i = begin; i < end; i += 32)
    GlobalBlock::unpack(block, row + i / 2, row + dim / 2 + i / 16, out + i);
}
#elif DEEPMINT_ISA_LEVEL == 1
// Of the sixteen codes under each scale: the high bytes, then the low ones.
struct GlobalBytes {
  alignas(64) uint8_t of[256][32];
};
constexpr GlobalBytes kGlobalBytes = [] {
  GlobalBytes t{};
  for (uint32_t scale = 0; scale < 256; ++scale)
    for (uint32_t code = 0; code < 16; ++code) {
      const uint16_t word = global_value(scale, code);
      t.of[scale][code] = static_cast<uint8_t>(word >> 8);
      t.of[scale][16 + code] = static_cast<uint8_t>(word);
    }
  return t;
}();

// 32 codes under two scales, one in each half of a register.
void unpack_global(const uint8_t* row, int64_t dim, int64_t begin, int64_t end, uint16_t* out) {
  const __m256i nibbles = _mm256_set1_epi8(15);
  for (int64_t i = begin; i < end; i += 32) {
    const uint8_t* scales = row + dim / 2 + i / 16;
    const auto table = [&](size_t from) __attribute__((always_inline)) {
      const auto at = [&](uint8_t scale) __attribute__((always_inline)) {
        return _mm_load_si128(reinterpret_cast<const __m128i*>(kGlobalBytes.of[scale] + from));
      };
      return _mm256_inserti128_si256(_mm256_castsi128_si256(at(scales[0])), at(scales[1]), 1);
    };
    // A byte becomes a word, and that two indices: its low nibble, then its high one.
    const __m256i bytes =
        _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row + i / 2)));
    const __m256i codes =
        _mm256_and_si256(_mm256_or_si256(bytes, _mm256_slli_epi16(bytes, 4)), nibbles);
    const __m256i high = _mm256_shuffle_epi8(table(0), codes),
                  low = _mm256_shuffle_epi8(table(16), codes);
    const __m256i first = _mm256_unpacklo_epi8(low, high), second = _mm256_unpackhi_epi8(low, high);
    auto* to = reinterpret_cast<__m256i*>(out + i);
    _mm256_storeu_si256(to, _mm256_permute2x128_si256(first, second, 0x20));
    _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(first, second, 0x31));
  }
}
#else
void unpack_global(const uint8_t* __restrict row, int64_t dim, int64_t begin, int64_t end,
                   uint16_t* __restrict out) {
  const uint8_t* scales = row + dim / 2;
  const auto value = [](uint32_t c, float s) __attribute__((always_inline)) {
    const uint32_t u = c & 7u;
    const float magnitude = u < 2 ? static_cast<float>(static_cast<int32_t>(u)) * 0.5f
                                  : float_of((u << 22) + (126u << 23));
    return static_cast<uint16_t>(bits_of(float_of(bits_of(magnitude) | (c & 8u) << 28) * s) >> 16);
  };
  for (int64_t b = begin / 16; b < end / 16; ++b) {
    const float s = float_of(e4m3_bits(scales[b]));
    for (int64_t i = 8 * b; i < 8 * b + 8; ++i) {
      out[2 * i] = value(row[i] & 15u, s);
      out[2 * i + 1] = value(row[i] >> 4, s);
    }
  }
}
#endif

void fetch_packed(const V41Unpack& u, int64_t row) {
  if (row >= u.count) return;
  const V41Unpack::Row& r = u.rows[row];
  const int64_t bytes = r.window ? u.dim + u.dim / 32 : u.dim / 2 + u.dim / 16;
  for (int64_t byte = 0; byte < bytes; byte += 64) __builtin_prefetch(r.packed + byte);
}
constexpr int64_t kAhead = 16;  // rows lie anywhere in the cache's memory

DM_INLINE void fetch_line(V41Fetch& f) {
  if (f.at >= f.end) {
    if (f.more == 0) return;
    f.at = f.next->begin;
    f.end = f.next->end;
    ++f.next;
    --f.more;
  }
  __builtin_prefetch(f.at, 0, 2);
  f.at += 64;
}

#if DEEPMINT_ISA_LEVEL == 4

// A block of 32 dimensions at each step.
class Unpacker {
 public:
  DM_INLINE void start(Unpacker& x, V41Unpack* u) {
    x.all_ = u;
    x.left_ = 0;
    if (u == nullptr) return;
    x.window_block_ = WindowBlock::make();
    x.global_block_ = GlobalBlock::make();
    for (int64_t row = 0; row < kAhead; ++row) fetch_packed(*u, row);
    load(x);
  }
  DM_INLINE void step(Unpacker& x) {
    if (x.left_ == 0) return;
    if (x.window_) {
      WindowBlock::unpack(x.window_block_, x.codes_, *x.scales_, x.out_);
      x.codes_ += 32;
      x.scales_ += 1;
    } else {
      GlobalBlock::unpack(x.global_block_, x.codes_, x.scales_, x.out_);
      x.codes_ += 16;
      x.scales_ += 2;
    }
    x.out_ += 32;
    if (--x.left_ == 0) {
      ++x.all_->done;
      load(x);
    }
  }
  DM_INLINE void until(Unpacker& x, int64_t rows) {
    while (x.all_ != nullptr && x.all_->done < rows) step(x);
  }

 private:
  DM_INLINE void load(Unpacker& x) {
    const V41Unpack& u = *x.all_;
    if (u.done == u.count) return;
    const V41Unpack::Row& r = u.rows[u.done];
    x.window_ = r.window;
    x.codes_ = r.packed + (r.window ? r.begin : r.begin / 2);
    x.scales_ = r.packed + (r.window ? u.dim + r.begin / 32 : u.dim / 2 + r.begin / 16);
    x.out_ = r.out + r.begin;
    x.left_ = (r.end - r.begin) / 32;
    fetch_packed(u, u.done + kAhead);
  }
  V41Unpack* all_;
  const uint8_t *codes_, *scales_;
  uint16_t* out_;
  int64_t left_;
  bool window_;
  WindowBlock window_block_;
  GlobalBlock global_block_;
};

constexpr int kRowStep = 12;

// packed: [lanes / 16][dim / 2][16] pairs of BF16.
void pack_queries(const float* q, int64_t heads, int64_t dim, float* packed) {
  for (int64_t g = 0; g * 16 < heads; ++g)
    for (int64_t i = 0; i < dim; i += 32, packed += 256) {
      __m512i v[16];
#pragma GCC unroll 16
      for (int h = 0; h < 16; ++h) {
        const float* from = q + (16 * g + h) * dim + i;
        v[h] = _mm512_setzero_si512();
        if (16 * g + h < heads)
          v[h] = _mm512_inserti64x4(
              _mm512_castsi256_si512(
                  _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_loadu_si512(from), 16))),
              _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_loadu_si512(from + 16), 16)), 1);
      }
      transpose16(v);
#pragma GCC unroll 16
      for (int p = 0; p < 16; ++p) _mm512_storeu_si512(packed + 16 * p, v[p]);
    }
}

DM_INLINE __m512bh as_bf16(__m512i v) { return reinterpret_cast<__m512bh>(v); }

// kUnpack: a step of `unpack` after each three rows of keys, between whose products there is room.
template <int Rows, int Groups, bool kUnpack>
DM_INLINE void scores_block(const uint32_t* packed, int64_t lanes, int64_t dim,
                            const uint16_t* const* rows, float scale, float* scores,
                            V41Fetch* fetch, Unpacker& unpack) {
  __m512 s[Rows][Groups];
  const uint32_t* k[Rows];
  for (int r = 0; r < Rows; ++r) {
    k[r] = reinterpret_cast<const uint32_t*>(rows[r]);
    for (int g = 0; g < Groups; ++g) s[r][g] = _mm512_setzero_ps();
  }
  const int64_t half = dim / 2;
  // Four pairs at a time: there are more rows than address registers.
  constexpr int kPairs = Groups == 1 ? 4 : 2;
  for (int64_t i = 0; i < half; i += kPairs) {
    if (Rows == kRowStep && fetch != nullptr)
      for (int line = 0; line < 2; ++line) fetch_line(*fetch);
    __m512bh q[kPairs][Groups];
    for (int p = 0; p < kPairs; ++p)
      for (int g = 0; g < Groups; ++g)
        q[p][g] = as_bf16(_mm512_loadu_si512(packed + (g * half + i + p) * 16));
#pragma GCC unroll 12
    for (int r = 0; r < Rows; ++r) {
      const uint32_t* pair = k[r] + i;
      for (int p = 0; p < kPairs; ++p) {
        const __m512bh x = as_bf16(_mm512_set1_epi32(static_cast<int>(pair[p])));
        for (int g = 0; g < Groups; ++g) s[r][g] = _mm512_dpbf16_ps(s[r][g], q[p][g], x);
      }
      if (kUnpack && r % 3 == 2) Unpacker::step(unpack);
    }
  }
  for (int r = 0; r < Rows; ++r)
    for (int g = 0; g < Groups; ++g)
      _mm512_storeu_ps(scores + r * lanes + 16 * g, _mm512_mul_ps(s[r][g], _mm512_set1_ps(scale)));
}

template <int Rows, bool kUnpack>
DM_INLINE void scores_rows(const uint32_t* packed, int64_t lanes, int64_t dim,
                           const uint16_t* const* rows, float scale, float* scores, V41Fetch* fetch,
                           Unpacker& unpack) {
  int64_t g = 0;
  for (; g + 32 <= lanes; g += 32)
    scores_block<Rows, 2, kUnpack>(packed + g * dim / 2, lanes, dim, rows, scale, scores + g, fetch,
                                   unpack);
  if (g < lanes)
    scores_block<Rows, 1, kUnpack>(packed + g * dim / 2, lanes, dim, rows, scale, scores + g, fetch,
                                   unpack);
}

void scores(const float* packed_f, int64_t lanes, int64_t dim, const uint16_t* const* rows,
            int64_t count, float scale, float* out, float*, V41Fetch* fetch, V41Unpack* unpack) {
  const auto* packed = reinterpret_cast<const uint32_t*>(packed_f);
  Unpacker rest;
  Unpacker::start(rest, unpack);
  int64_t t = 0;
  for (; t + kRowStep <= count && unpack != nullptr && unpack->done < unpack->count;
       t += kRowStep) {
    Unpacker::until(rest, unpack->due[t + kRowStep - 1]);
    scores_rows<kRowStep, true>(packed, lanes, dim, rows + t, scale, out + t * lanes, fetch, rest);
  }
  if (unpack != nullptr) Unpacker::until(rest, unpack->count);
  for (; t + kRowStep <= count; t += kRowStep)
    scores_rows<kRowStep, false>(packed, lanes, dim, rows + t, scale, out + t * lanes, fetch, rest);
  for (; t + 4 <= count; t += 4)
    scores_rows<4, false>(packed, lanes, dim, rows + t, scale, out + t * lanes, fetch, rest);
  for (; t < count; ++t)
    scores_rows<1, false>(packed, lanes, dim, rows + t, scale, out + t * lanes, fetch, rest);
}

#else

#if DEEPMINT_ISA_LEVEL >= 2
constexpr int kRowStep = 12;
#elif DEEPMINT_ISA_LEVEL == 1
constexpr int kRowStep = 6;
#else
constexpr int kRowStep = 2;
#endif

// packed: [lanes / 16][dim][16].
void pack_queries(const float* q, int64_t heads, int64_t dim, float* packed) {
#if DEEPMINT_ISA_LEVEL >= 2
  for (int64_t g = 0; g * 16 < heads; ++g)
    for (int64_t i = 0; i < dim; i += 16, packed += 256) {
      __m512i v[16];
#pragma GCC unroll 16
      for (int h = 0; h < 16; ++h)
        v[h] = 16 * g + h < heads ? _mm512_loadu_si512(q + (16 * g + h) * dim + i)
                                  : _mm512_setzero_si512();
      transpose16(v);
#pragma GCC unroll 16
      for (int p = 0; p < 16; ++p) _mm512_storeu_si512(packed + 16 * p, v[p]);
    }
#else
  for (int64_t g = 0; g * 16 < heads; ++g, packed += dim * 16)
    for (int64_t h = 0; h < 16; ++h)
      for (int64_t i = 0; i < dim; ++i)
        packed[i * 16 + h] = 16 * g + h < heads ? q[(16 * g + h) * dim + i] : 0.0f;
#endif
}

#if DEEPMINT_ISA_LEVEL == 1
// Keys are floats in sixteens: eight even dimensions, then eight odd ones, as they come from words.
// Six rows x sixteen heads of sums, a group of heads and a key are fifteen registers. Dimensions
// go in blocks, whose queries stay in the first-level cache for all rows; the chain of a sum waits
// in `scores` between them.
// Rows are unpacked in groups that are still there when their scores begin.
constexpr int64_t kBlockDims = 128, kGroupRows = 48;

void unpack_until(V41Unpack& u, int64_t count) {
  for (; u.done < count; ++u.done) {
    const V41Unpack::Row& r = u.rows[u.done];
    fetch_packed(u, u.done + kAhead);
    (r.window ? unpack_window : unpack_global)(r.packed, u.dim, r.begin, r.end, r.out);
  }
}

template <int Rows>
DM_INLINE void scores_block(const float* packed, int64_t lanes, const float* keys, int64_t dims,
                            bool first, float* scores) {
  F16 s[Rows];
#pragma GCC unroll 6
  for (int r = 0; r < Rows; ++r) s[r] = first ? zero() : load(scores + r * lanes);
  for (int64_t i = 0; i < dims; i += 16) {
#pragma GCC unroll 16
    for (int64_t j = 0; j < 16; ++j) {
      const F16 q = load(packed + (i + j) * 16);
      const float* key = keys + i + j % 2 * 8 + j / 2;
#pragma GCC unroll 6
      for (int r = 0; r < Rows; ++r) s[r] = fma(q, set1(key[r * kBlockDims]), s[r]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < Rows; ++r) store(scores + r * lanes, s[r]);
}

template <int Rows>
DM_INLINE void scores_rows(const float* packed, int64_t lanes, int64_t dim, int64_t first,
                           int64_t dims, const uint16_t* const* rows, float* keys, float* scores,
                           V41Fetch* fetch) {
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xFFFF0000u));
  for (int64_t r = 0; r < Rows; ++r)
    for (int64_t i = 0; i < dims; i += 16) {
      if (fetch != nullptr) fetch_line(*fetch);
      const __m256i words =
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[r] + first + i));
      float* to = keys + r * kBlockDims + i;
      _mm256_store_ps(to, _mm256_castsi256_ps(_mm256_slli_epi32(words, 16)));
      _mm256_store_ps(to + 8, _mm256_castsi256_ps(_mm256_and_si256(words, upper)));
    }
  for (int64_t g = 0; g < lanes; g += 16)
    scores_block<Rows>(packed + g * dim + first * 16, lanes, keys, dims, first == 0, scores + g);
}

void scores(const float* packed, int64_t lanes, int64_t dim, const uint16_t* const* rows,
            int64_t count, float scale, float* out, float*, V41Fetch* fetch, V41Unpack* unpack) {
  alignas(64) float keys[kRowStep * kBlockDims];
  for (int64_t begin = 0; begin < count; begin += kGroupRows) {
    const int64_t end = begin + kGroupRows < count ? begin + kGroupRows : count;
    if (unpack != nullptr) unpack_until(*unpack, unpack->due[end - 1]);
    for (int64_t first = 0; first < dim; first += kBlockDims) {
      const int64_t dims = first + kBlockDims < dim ? kBlockDims : dim - first;
      int64_t t = begin;
      const auto some = [&]<int kRows>() __attribute__((always_inline)) {
        for (; t + kRows <= end; t += kRows)
          scores_rows<kRows>(packed, lanes, dim, first, dims, rows + t, keys, out + t * lanes,
                             fetch);
      };
      some.template operator()<kRowStep>();
      some.template operator()<2>();
      some.template operator()<1>();
    }
  }
  if (unpack != nullptr) unpack_until(*unpack, unpack->count);
  const F16 factor = set1(scale);
  for (int64_t i = 0; i < count * lanes; i += 16) store(out + i, mul(load(out + i), factor));
}
#else
// keys: [Rows][dim] floats.
template <int Rows, int Groups>
DM_INLINE void scores_block(const float* packed, int64_t lanes, int64_t dim, const float* keys,
                            float scale, float* scores) {
  F16 s[Rows][Groups];
  for (int r = 0; r < Rows; ++r)
    for (int g = 0; g < Groups; ++g) s[r][g] = zero();
  for (int64_t i = 0; i < dim; ++i) {
    F16 q[Groups];
    for (int g = 0; g < Groups; ++g) q[g] = load(packed + (g * dim + i) * 16);
    for (int r = 0; r < Rows; ++r) {
      const F16 x = set1(keys[r * dim + i]);
      for (int g = 0; g < Groups; ++g) s[r][g] = fma(q[g], x, s[r][g]);
    }
  }
  for (int r = 0; r < Rows; ++r)
    for (int g = 0; g < Groups; ++g) store(scores + r * lanes + 16 * g, mul(s[r][g], set1(scale)));
}

template <int Rows>
DM_INLINE void scores_rows(const float* packed, int64_t lanes, int64_t dim, const float* keys,
                           float scale, float* scores) {
  int64_t g = 0;
#if DEEPMINT_ISA_LEVEL >= 2
  for (; g + 32 <= lanes; g += 32)
    scores_block<Rows, 2>(packed + g * dim, lanes, dim, keys, scale, scores + g);
#endif
  for (; g < lanes; g += 16)
    scores_block<Rows, 1>(packed + g * dim, lanes, dim, keys, scale, scores + g);
}

void unpack_all(V41Unpack& u) {
  for (; u.done < u.count; ++u.done) {
    const V41Unpack::Row& r = u.rows[u.done];
    fetch_packed(u, u.done + kAhead);
    (r.window ? unpack_window : unpack_global)(r.packed, u.dim, r.begin, r.end, r.out);
  }
}

void scores(const float* packed, int64_t lanes, int64_t dim, const uint16_t* const* rows,
            int64_t count, float scale, float* out, float* scratch, V41Fetch* fetch,
            V41Unpack* unpack) {
  if (unpack != nullptr) unpack_all(*unpack);
  for (int64_t t = 0; t < count;) {
    const int64_t n = count - t >= kRowStep ? kRowStep : 1;
    for (int64_t r = 0; r < n; ++r) {
      const uint16_t* __restrict from = rows[t + r];
      float* __restrict to = scratch + r * dim;
      for (int64_t i = 0; i < dim && fetch != nullptr; i += 16) fetch_line(*fetch);
      for (int64_t i = 0; i < dim; ++i) to[i] = float_of(static_cast<uint32_t>(from[i]) << 16);
    }
    if (n == kRowStep)
      scores_rows<kRowStep>(packed, lanes, dim, scratch, scale, out + t * lanes);
    else
      scores_rows<1>(packed, lanes, dim, scratch, scale, out + t * lanes);
    t += n;
  }
}

#endif

#endif

DM_INLINE F16 largest_score(const float* scores, int64_t lanes, int64_t n, int64_t group) {
  F16 m0 = set1(-__builtin_inff()), m1 = m0;
  int64_t t = 0;
  for (; t + 2 <= n; t += 2) {
    m0 = max(m0, load(scores + t * lanes + group));
    m1 = max(m1, load(scores + (t + 1) * lanes + group));
  }
  if (t < n) m0 = max(m0, load(scores + t * lanes + group));
  return max(m0, m1);
}

// p of rows [begin, end) rounded to BF16: floats [n, lanes], or with BF16 instructions pairs of
// list entries [(n + 1) / 2, lanes].
void weights(const float* scores, int64_t lanes, int64_t n, int64_t begin, int64_t end, float* exps,
             float* p) {
  for (int64_t g = 0; g < lanes; g += 16) {
    alignas(64) float highest[16];
    store(highest, largest_score(scores, lanes, n, g));
    for (int64_t t = begin; t < end; ++t) {
      float* e = exps + t * lanes + g;
      for (int i = 0; i < 16; i += 8)
        store8(e + i, exp8f(load8(scores + t * lanes + g + i) - load8(highest + i)));
#if DEEPMINT_ISA_LEVEL == 4
      uint32_t* out = reinterpret_cast<uint32_t*>(p) + t / 2 * lanes + g;
      if (t % 2 == 0)
        for (int i = 0; i < 16; ++i) out[i] = bf16_bits(e[i]);
      else
        for (int i = 0; i < 16; ++i) out[i] |= bf16_bits(e[i]) << 16;
#else
      for (int i = 0; i < 16; ++i) p[t * lanes + g + i] = float_of(bf16_bits(e[i]) << 16);
#endif
    }
  }
}

// Sum of unrounded weights in list order, and the sink.
void denominators(const float* scores, const float* exps, int64_t lanes, int64_t n,
                  const float* sink, int64_t heads, float* z) {
  for (int64_t g = 0; g < lanes; g += 16) {
    alignas(64) float highest[16];
    store(highest, largest_score(scores, lanes, n, g));
    D8 total[2] = {all8(0), all8(0)};  // two chains wait for each other's additions
    for (int64_t t = 0; t < n; ++t)
      for (int half = 0; half < 2; ++half) total[half] += wide8(exps + t * lanes + g + 8 * half);
    for (int half = 0; half < 2; ++half) {
      const int64_t i = g + 8 * half;
      float s[8];
      for (int64_t h = 0; h < 8; ++h) s[h] = i + h < heads ? sink[i + h] : 0.0f;
      store8(z + i, narrow(total[half] + wide(exp8f(load8(s) - load8(highest + 8 * half)))));
    }
  }
}

// Where the two halves of 32 dimensions go: `low` holds even dimensions and `high` odd ones, or
// with BF16 instructions the order of UNPCKLWD and UNPCKHWD.
DM_INLINE void finish(F16 low, F16 high, float z, float* out) {
#if DEEPMINT_ISA_LEVEL >= 2
  const auto rounded = [&](F16 x) __attribute__((always_inline)) {
    const __m512i u = _mm512_castps_si512(_mm512_div_ps(x.v, _mm512_set1_ps(z)));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    return _mm512_and_si512(_mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF))),
                            _mm512_set1_epi32(static_cast<int>(0xFFFF0000u)));
  };
#if DEEPMINT_ISA_LEVEL == 4
  const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
#else
  const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
#endif
  const __m512i a = rounded(low), b = rounded(high);
  _mm512_storeu_si512(out, _mm512_permutex2var_epi32(a, first, b));
  _mm512_storeu_si512(
      out + 16, _mm512_permutex2var_epi32(a, _mm512_add_epi32(first, _mm512_set1_epi32(8)), b));
#elif DEEPMINT_ISA_LEVEL == 1
  const __m256 divisor = _mm256_set1_ps(z);
  const auto rounded = [&](__m256 x) __attribute__((always_inline)) {
    const __m256i u = _mm256_castps_si256(_mm256_div_ps(x, divisor));
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    return _mm256_and_si256(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF))),
                            _mm256_set1_epi32(static_cast<int>(0xFFFF0000u)));
  };
  const auto sixteen = [&](__m256 even, __m256 odd, float* to) __attribute__((always_inline)) {
    const __m256i a = rounded(even), b = rounded(odd);
    const __m256i first = _mm256_unpacklo_epi32(a, b), second = _mm256_unpackhi_epi32(a, b);
    auto* at = reinterpret_cast<__m256i*>(to);
    _mm256_storeu_si256(at, _mm256_permute2x128_si256(first, second, 0x20));
    _mm256_storeu_si256(at + 1, _mm256_permute2x128_si256(first, second, 0x31));
  };
  sixteen(low.a, high.a, out);
  sixteen(low.b, high.b, out + 16);
#else
  alignas(64) float even[16], odd[16];
  store(even, low);
  store(odd, high);
  for (int i = 0; i < 16; ++i) {
    out[2 * i] = float_of(bf16_bits(even[i] / z) << 16);
    out[2 * i + 1] = float_of(bf16_bits(odd[i] / z) << 16);
  }
#endif
}

#if DEEPMINT_ISA_LEVEL == 1
// Sixteen registers hold the sums of six heads x 16 dimensions, even ones and odd ones, two halves
// of a row and a weight. A chunk of rows stays in the first-level cache until all heads have
// passed; their sums wait in memory meanwhile.
constexpr int64_t kHeadBlock = 16, kRowChunk = 128;
struct ValueSums {
  alignas(32) float of[kHeadBlock][2][2][8];  // head, half of 32 dimensions, even or odd
};

// Rows lie apart in memory: those of the next chunk are fetched during the first pass over this
// one.
struct NextValues {
  const uint16_t* const* rows = nullptr;
  int64_t count = 0, column = 0;
};

template <int Heads>
DM_INLINE void values_chunk(const float* weight, int64_t lanes, const uint16_t* const* rows,
                            int64_t count, int64_t column, size_t half, float (*sums)[2][2][8],
                            V41Fetch* fetch, const NextValues& next) {
  __m256 even[Heads], odd[Heads];
#pragma GCC unroll 6
  for (int h = 0; h < Heads; ++h) {
    even[h] = _mm256_load_ps(sums[h][half][0]);
    odd[h] = _mm256_load_ps(sums[h][half][1]);
  }
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xFFFF0000u));
  for (int64_t t = 0; t < count; ++t, weight += lanes) {
    if (Heads > 1 && fetch != nullptr) fetch_line(*fetch);
    if (t < next.count) __builtin_prefetch(next.rows[t] + next.column);
    const __m256i words =
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[t] + column) + half);
    const __m256 a = _mm256_castsi256_ps(_mm256_slli_epi32(words, 16)),
                 b = _mm256_castsi256_ps(_mm256_and_si256(words, upper));
#pragma GCC unroll 6
    for (int h = 0; h < Heads; ++h) {
      const __m256 w = _mm256_broadcast_ss(weight + h);
      even[h] = _mm256_fmadd_ps(a, w, even[h]);
      odd[h] = _mm256_fmadd_ps(b, w, odd[h]);
    }
  }
#pragma GCC unroll 6
  for (int h = 0; h < Heads; ++h) {
    _mm256_store_ps(sums[h][half][0], even[h]);
    _mm256_store_ps(sums[h][half][1], odd[h]);
  }
}

void values(const float* scores, const float* exps, const float* p, int64_t lanes, int64_t n,
            const float* sink, const uint16_t* const* rows, int64_t heads, int64_t dim,
            int64_t begin, int64_t end, float* out, V41Fetch* fetch) {
  constexpr int64_t kMostLanes = 1024;
  alignas(64) float z[kMostLanes];
  denominators(scores, exps, lanes, n, sink, heads, z);
  ValueSums sums;
  for (int64_t first = 0; first < heads; first += kHeadBlock) {
    const int64_t count = first + kHeadBlock < heads ? kHeadBlock : heads - first;
    for (int64_t column = begin; column < end; column += 32) {
      sums = {};
      for (int64_t t = 0; t < n; t += kRowChunk) {
        const auto chunk = [n](int64_t from) {
          return n - from < kRowChunk ? n - from : kRowChunk;
        };
        const int64_t some = chunk(t);
        NextValues next;
        if (t + some < n)
          next = {rows + t + some, chunk(t + some), column};
        else if (column + 32 < end)
          next = {rows, chunk(0), column + 32};
        for (size_t half = 0; half < 2; ++half) {
          const auto pass = [&]<int kHeads>(int64_t h) __attribute__((always_inline)) {
            values_chunk<kHeads>(p + t * lanes + first + h, lanes, rows + t, some, column, half,
                                 sums.of + h, fetch, h == 0 && half == 0 ? next : NextValues{});
          };
          int64_t h = 0;
          for (; h + 6 <= count; h += 6) pass.template operator()<6>(h);
          for (; h + 4 <= count; h += 4) pass.template operator()<4>(h);
          for (; h < count; ++h) pass.template operator()<1>(h);
        }
      }
      for (int64_t h = 0; h < count; ++h) {
        const auto lanes_of = [&](size_t odd) __attribute__((always_inline)) {
          return F16{_mm256_load_ps(sums.of[h][0][odd]), _mm256_load_ps(sums.of[h][1][odd])};
        };
        finish(lanes_of(0), lanes_of(1), z[first + h], out + (first + h) * dim + column);
      }
    }
  }
}
#else

#if DEEPMINT_ISA_LEVEL >= 2
constexpr int kHeadStep = 8;
#else
constexpr int kHeadStep = 1;
#endif

template <int Heads>
DM_INLINE void values_block(const float* p, int64_t lanes, int64_t n, const uint16_t* const* rows,
                            const float* z, int64_t dim, int64_t column, int64_t head, float* out,
                            V41Fetch* fetch) {
#if DEEPMINT_ISA_LEVEL == 4
  __m512 low[Heads], high[Heads];
  for (int h = 0; h < Heads; ++h) low[h] = high[h] = _mm512_setzero_ps();
  const uint32_t* weight = reinterpret_cast<const uint32_t*>(p) + head;
  for (int64_t t = 0; t < n; t += 2, weight += lanes) {
    if (Heads > 1 && fetch != nullptr) fetch_line(*fetch);
    const __m512i a = _mm512_loadu_si512(rows[t] + column);
    const __m512i b = _mm512_loadu_si512(rows[t + 1 < n ? t + 1 : t] + column);
    const __m512bh lo = as_bf16(_mm512_unpacklo_epi16(a, b));
    const __m512bh hi = as_bf16(_mm512_unpackhi_epi16(a, b));
    for (int h = 0; h < Heads; ++h) {
      const __m512bh w = as_bf16(_mm512_set1_epi32(static_cast<int>(weight[h])));
      low[h] = _mm512_dpbf16_ps(low[h], lo, w);
      high[h] = _mm512_dpbf16_ps(high[h], hi, w);
    }
  }
#else
  F16 low[Heads], high[Heads];
  for (int h = 0; h < Heads; ++h) low[h] = high[h] = zero();
  const float* weight = p + head;
  for (int64_t t = 0; t < n; ++t, weight += lanes) {
    if (Heads > 1 && fetch != nullptr) fetch_line(*fetch);
    F16 even, odd;
    load_bf16_pairs(rows[t] + column, even, odd);
    for (int h = 0; h < Heads; ++h) {
      const F16 w = set1(weight[h]);
      low[h] = fma(even, w, low[h]);
      high[h] = fma(odd, w, high[h]);
    }
  }
#endif
  for (int h = 0; h < Heads; ++h)
#if DEEPMINT_ISA_LEVEL == 4
    finish({low[h]}, {high[h]}, z[head + h], out + (head + h) * dim + column);
#else
    finish(low[h], high[h], z[head + h], out + (head + h) * dim + column);
#endif
}

void values(const float* scores, const float* exps, const float* p, int64_t lanes, int64_t n,
            const float* sink, const uint16_t* const* rows, int64_t heads, int64_t dim,
            int64_t begin, int64_t end, float* out, V41Fetch* fetch) {
  constexpr int64_t kMostLanes = 1024;
  alignas(64) float z[kMostLanes];
  denominators(scores, exps, lanes, n, sink, heads, z);
  for (int64_t column = begin; column < end; column += 32) {
    int64_t head = 0;
    for (; head + kHeadStep <= heads; head += kHeadStep)
      values_block<kHeadStep>(p, lanes, n, rows, z, dim, column, head, out, fetch);
    for (; head < heads; ++head)
      values_block<1>(p, lanes, n, rows, z, dim, column, head, out, fetch);
  }
}
#endif

}  // namespace

extern const V41AttentionTable v41_attention_table = {unpack_window, unpack_global, pack_queries,
                                                      scores,        weights,       values};

}  // namespace deepmint::kernels::DEEPMINT_ISA_NS
