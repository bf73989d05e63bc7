// V4.1 cache rows from packed form to BF16 words: window rows (E4M3 codes under E8M0 scales) and
// global rows (E2M1 codes under E4M3 scales). Exact.
//
// Included by v41_attention_simd.cc, which is compiled once per instruction set, after simd16.inl
// and v41_attention_table.h.

namespace deepmint::kernels::DEEPMINT_ISA_NS {
namespace {

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

// 32 codes under any scale, one by one.
[[gnu::noinline]] void unpack_window_slowly(const uint8_t* codes, uint8_t scale, uint16_t* out) {
  const float s = e8m0_value(scale);
  for (int64_t i = 0; i < 32; ++i)
    out[i] = static_cast<uint16_t>(bits_of(float_of(e4m3_bits(codes[i])) * s) >> 16);
}

#if DEEPMINT_ISA_LEVEL >= 2
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
void unpack_window(const uint8_t* row, int64_t dim, int64_t begin, int64_t end, uint16_t* out) {
  for (int64_t i = begin; i < end; i += 32)
    unpack_window_slowly(row + i, row[dim + i / 32], out + i);
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
                   uint16_t* out) {
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

#if DEEPMINT_ISA_LEVEL != 4
void unpack_until(V41Unpack& u, int64_t count) {
  for (; u.done < count; ++u.done) {
    const V41Unpack::Row& r = u.rows[u.done];
    fetch_packed(u, u.done + kAhead);
    (r.window ? unpack_window : unpack_global)(r.packed, u.dim, r.begin, r.end, r.out);
  }
}
#endif

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

#endif

}  // namespace
}  // namespace deepmint::kernels::DEEPMINT_ISA_NS
