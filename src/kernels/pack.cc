// Row-major matrices into panels of 16 interleaved outputs. Layouts: linear_kernels.h and
// docs/kernels/linear.md.
//
// SSE2 only, which every x86-64 machine has: the work is moving 4-byte groups of 16 rows side by
// side.
#include <emmintrin.h>
#include <fmt/format.h>

#include <array>
#include <cstring>
#include <new>
#include <optional>
#include <vector>

#include "core/check.h"
#include "core/checked.h"
#include "kernels/linear.h"
#include "kernels/linear_kernels.h"
#include "kernels/linear_pack.h"
#include "kernels/quant.h"

namespace deepmint::kernels {
namespace {

using Rows = std::array<const uint8_t*, kLanes>;  // the 16 source rows of a panel

__m128i load(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
void store(uint8_t* p, __m128i v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), v); }

// out[64 * s + 4 * row …] = bytes 4s … 4s+3 of v[row], for s 0 … 3.
void interleave(const __m128i (&v)[kLanes], uint8_t* out) {
  for (int g = 0; g < 4; ++g) {
    const __m128i a = _mm_unpacklo_epi32(v[4 * g], v[4 * g + 1]),
                  b = _mm_unpackhi_epi32(v[4 * g], v[4 * g + 1]);
    const __m128i c = _mm_unpacklo_epi32(v[4 * g + 2], v[4 * g + 3]);
    const __m128i d = _mm_unpackhi_epi32(v[4 * g + 2], v[4 * g + 3]);
    store(out + 16 * g, _mm_unpacklo_epi64(a, c));
    store(out + 64 + 16 * g, _mm_unpackhi_epi64(a, c));
    store(out + 128 + 16 * g, _mm_unpacklo_epi64(b, d));
    store(out + 192 + 16 * g, _mm_unpackhi_epi64(b, d));
  }
}
void interleave_at(const Rows& rows, size_t offset, __m128i flip, uint8_t* out) {
  __m128i v[kLanes];
  for (int r = 0; r < kLanes; ++r) v[r] = _mm_xor_si128(load(rows[r] + offset), flip);
  interleave(v, out);
}
void copy_u16(const Rows& rows, size_t offset, uint8_t* out) {
  for (int r = 0; r < kLanes; ++r) std::memcpy(out + 2 * r, rows[r] + offset, 2);
}

// Bit 4s + j of `bits` becomes bit s of byte j.
uint32_t spread_bits(uint32_t bits) {
  static constexpr std::array<uint32_t, 16> kSpread = [] {
    std::array<uint32_t, 16> t{};
    for (uint32_t n = 0; n < 16; ++n)
      for (uint32_t j = 0; j < 4; ++j) t[n] |= (n >> j & 1u) << (8 * j);
    return t;
  }();
  uint32_t out = 0;
  for (uint32_t s = 0; s < 8; ++s) out |= kSpread[bits >> (4 * s) & 15u] << s;
  return out;
}
void spread_bits_at(const Rows& rows, size_t offset, uint8_t* out) {
  for (int r = 0; r < kLanes; ++r) {
    uint32_t bits;
    std::memcpy(&bits, rows[r] + offset, sizeof bits);
    bits = spread_bits(bits);
    std::memcpy(out + 4 * r, &bits, sizeof bits);
  }
}

// Q8_0, Q4_0, Q5_0: pairs of blocks behind a common head.
template <size_t kQuants, class Quants>
void pack_pairs(const Rows& rows, int64_t k, size_t block_bytes, uint8_t* out, Quants&& quants) {
  for (int64_t b = 0; b < k / kBlock; ++b) {
    uint8_t* pair = out + static_cast<size_t>(b / 2) * (kPairHead + 2 * kQuants);
    const size_t odd = static_cast<size_t>(b % 2), source = static_cast<size_t>(b) * block_bytes;
    copy_u16(rows, source, pair + odd * kF16Lanes);
    quants(source, pair + kPairHead + odd * kQuants);
  }
}
void pack_q8_0(const Rows& rows, int64_t k, uint8_t* out) {
  const __m128i flip = _mm_set1_epi8(-128);
  pack_pairs<kQ8_0Quants>(rows, k, 34, out, [&](size_t source, uint8_t* q) {
    interleave_at(rows, source + 2, flip, q);
    interleave_at(rows, source + 18, flip, q + 256);
  });
}
void pack_q4_0(const Rows& rows, int64_t k, uint8_t* out) {
  pack_pairs<kQ4Quants>(rows, k, 18, out, [&](size_t source, uint8_t* q) {
    interleave_at(rows, source + 2, _mm_setzero_si128(), q);
  });
}
void pack_q5_0(const Rows& rows, int64_t k, uint8_t* out) {
  pack_pairs<kQ5Quants>(rows, k, 22, out, [&](size_t source, uint8_t* q) {
    spread_bits_at(rows, source + 2, q);
    interleave_at(rows, source + 6, _mm_setzero_si128(), q + kBit);
  });
}
void pack_q4_1(const Rows& rows, int64_t k, uint8_t* out) {
  for (int64_t b = 0; b < k / kBlock; ++b, out += kMinHead + kQ4Quants) {
    const size_t source = static_cast<size_t>(b) * 20;
    copy_u16(rows, source, out);
    copy_u16(rows, source + 2, out + kF16Lanes);
    interleave_at(rows, source + 4, _mm_setzero_si128(), out + kMinHead);
  }
}
void pack_q5_1(const Rows& rows, int64_t k, uint8_t* out) {
  for (int64_t b = 0; b < k / kBlock; ++b, out += kMinHead + kQ5Quants) {
    const size_t source = static_cast<size_t>(b) * 24;
    copy_u16(rows, source, out);
    copy_u16(rows, source + 2, out + kF16Lanes);
    spread_bits_at(rows, source + 4, out + kMinHead);
    interleave_at(rows, source + 8, _mm_setzero_si128(), out + kMinHead + kBit);
  }
}

// 32 nibbles of one half of 32 bytes, as 16 bytes with value i low and i + 16 high.
__m128i pair_nibbles(const uint8_t* p, bool high) {
  const __m128i a = load(p), b = load(p + 16), mask = _mm_set1_epi8(15);
  if (high)
    return _mm_or_si128(_mm_and_si128(_mm_srli_epi16(a, 4), mask), _mm_andnot_si128(mask, b));
  return _mm_or_si128(_mm_and_si128(a, mask), _mm_slli_epi16(_mm_and_si128(b, mask), 4));
}
// Head of a super-block of Q4_K or Q5_K. The minimum is stored negated: the kernels only add.
void pack_k_head(const Rows& rows, size_t source, uint8_t* out) {
  copy_u16(rows, source, out);
  for (int r = 0; r < kLanes; ++r) {
    uint16_t dmin;
    std::memcpy(&dmin, rows[r] + source + 2, 2);
    dmin ^= 0x8000u;
    std::memcpy(out + kF16Lanes + 2 * static_cast<size_t>(r), &dmin, 2);
    for (int j = 0; j < 8; ++j) {
      const KScale s = k_scale(rows[r] + source + 4, j);
      out[2 * kF16Lanes + static_cast<size_t>(32 * j + r)] = s.scale;
      out[2 * kF16Lanes + static_cast<size_t>(32 * j + 16 + r)] = s.min;
    }
  }
}
void pack_q4_k(const Rows& rows, int64_t k, uint8_t* out) {
  for (int64_t super = 0; super < k / kSuper; ++super, out += kSuperHead + 8 * kQ4Quants) {
    const size_t source = static_cast<size_t>(super) * 144;
    pack_k_head(rows, source, out);
    for (int j = 0; j < 8; ++j) {
      __m128i v[kLanes];
      for (int r = 0; r < kLanes; ++r)
        v[r] = pair_nibbles(rows[r] + source + 16 + 32 * (j / 2), j % 2 != 0);
      interleave(v, out + kSuperHead + static_cast<size_t>(j) * kQ4Quants);
    }
  }
}
void pack_q5_k(const Rows& rows, int64_t k, uint8_t* out) {
  for (int64_t super = 0; super < k / kSuper; ++super, out += kSuperHead + 8 * kQ5Quants) {
    const size_t source = static_cast<size_t>(super) * 176;
    pack_k_head(rows, source, out);
    for (int j = 0; j < 8; ++j) {
      uint8_t* q = out + kSuperHead + static_cast<size_t>(j) * kQ5Quants;
      __m128i v[kLanes];
      for (int r = 0; r < kLanes; ++r) {
        const uint8_t* fifth = rows[r] + source + 16;
        const __m128i shift = _mm_cvtsi32_si128(7 - j);  // bit j of every byte to the top
        const uint32_t low =
            static_cast<uint32_t>(_mm_movemask_epi8(_mm_sll_epi16(load(fifth), shift)));
        const uint32_t high =
            static_cast<uint32_t>(_mm_movemask_epi8(_mm_sll_epi16(load(fifth + 16), shift)));
        const uint32_t bits = spread_bits(low | high << 16);
        std::memcpy(q + 4 * r, &bits, sizeof bits);
        v[r] = pair_nibbles(rows[r] + source + 48 + 32 * (j / 2), j % 2 != 0);
      }
      interleave(v, q + kBit);
    }
  }
}
// Two bits of each of 16 bytes: byte j of the result has those of byte 4s + j at bit 2s.
uint32_t spread_pairs(__m128i top) {
  alignas(16) std::array<uint32_t, 4> t;
  _mm_store_si128(reinterpret_cast<__m128i*>(t.data()), _mm_and_si128(top, _mm_set1_epi8(3)));
  return t[0] | t[1] << 2 | t[2] << 4 | t[3] << 6;
}
void pack_q6_k(const Rows& rows, int64_t k, uint8_t* out) {
  for (int64_t super = 0; super < k / kSuper; ++super, out += kSuperHead + 8 * kQ6Quants) {
    const size_t source = static_cast<size_t>(super) * 210;
    copy_u16(rows, source + 208, out);
    for (int r = 0; r < kLanes; ++r)
      for (int i = 0; i < 16; ++i)
        out[2 * kF16Lanes + static_cast<size_t>(16 * i + r)] =
            rows[r][source + 192 + static_cast<size_t>(i)];
    for (int j = 0; j < 8; ++j) {
      uint8_t* q = out + kSuperHead + static_cast<size_t>(j) * kQ6Quants;
      const int h = j / 4, t = j % 4;
      __m128i v[kLanes];
      for (int r = 0; r < kLanes; ++r) {
        const uint8_t* top = rows[r] + source + 128 + 32 * h;
        const __m128i shift = _mm_cvtsi32_si128(2 * t);
        const uint32_t low = spread_pairs(_mm_srl_epi16(load(top), shift));
        const uint32_t high = spread_pairs(_mm_srl_epi16(load(top + 16), shift));
        std::memcpy(q + 4 * r, &low, sizeof low);
        std::memcpy(q + kBit + 4 * r, &high, sizeof high);
        v[r] = pair_nibbles(rows[r] + source + 64 * h + 32 * (t % 2), t >= 2);
      }
      interleave(v, q + 2 * kBit);
    }
  }
}

// F32: one k per 4 bytes; BF16: two.
void pack_dwords(const Rows& rows, size_t row_bytes, uint8_t* out) {
  size_t at = 0;
  for (; at + 16 <= row_bytes; at += 16)
    interleave_at(rows, at, _mm_setzero_si128(), out + 16 * at);
  for (; at < row_bytes; at += 4) {  // a last odd BF16 is paired with zero: the panel starts zeroed
    const size_t left = row_bytes - at < 4 ? row_bytes - at : 4;
    for (size_t r = 0; r < kLanes; ++r) std::memcpy(out + 16 * at + 4 * r, rows[r] + at, left);
  }
}
void pack_f16(const Rows& rows, int64_t k, uint8_t* out) {
  int64_t i = 0;
  for (; i + 8 <= k; i += 8) {
    for (int g = 0; g < 2; ++g) {  // 8 x 8 transposes
      __m128i v[8], t[8];
      for (int r = 0; r < 8; ++r) v[r] = load(rows[static_cast<size_t>(8 * g + r)] + 2 * i);
      for (int r = 0; r < 4; ++r) {
        t[2 * r] = _mm_unpacklo_epi16(v[r], v[r + 4]);
        t[2 * r + 1] = _mm_unpackhi_epi16(v[r], v[r + 4]);
      }
      for (int r = 0; r < 4; ++r) {
        v[2 * r] = _mm_unpacklo_epi16(t[r], t[r + 4]);
        v[2 * r + 1] = _mm_unpackhi_epi16(t[r], t[r + 4]);
      }
      for (int r = 0; r < 4; ++r) {
        t[2 * r] = _mm_unpacklo_epi16(v[r], v[r + 4]);
        t[2 * r + 1] = _mm_unpackhi_epi16(v[r], v[r + 4]);
      }
      for (int r = 0; r < 8; ++r) store(out + 32 * (i + r) + 16 * g, t[r]);
    }
  }
  for (; i < k; ++i)
    for (size_t r = 0; r < kLanes; ++r)
      std::memcpy(out + 32 * i + 2 * static_cast<int64_t>(r), rows[r] + 2 * i, 2);
}

void pack_panel(DType dtype, const Rows& rows, int64_t k, uint8_t* out) {
  switch (dtype) {
    case DType::kF32:
      return pack_dwords(rows, static_cast<size_t>(k) * 4, out);
    case DType::kBF16:
      return pack_dwords(rows, static_cast<size_t>(k) * 2, out);
    case DType::kF16:
      return pack_f16(rows, k, out);
    case DType::kQ8_0:
      return pack_q8_0(rows, k, out);
    case DType::kQ4_0:
      return pack_q4_0(rows, k, out);
    case DType::kQ4_1:
      return pack_q4_1(rows, k, out);
    case DType::kQ5_0:
      return pack_q5_0(rows, k, out);
    case DType::kQ5_1:
      return pack_q5_1(rows, k, out);
    case DType::kQ4_K:
      return pack_q4_k(rows, k, out);
    case DType::kQ5_K:
      return pack_q5_k(rows, k, out);
    case DType::kQ6_K:
      return pack_q6_k(rows, k, out);
    default:
      DEEPMINT_CHECK(is_linear_type(dtype));
  }
}

size_t paired(size_t blocks, size_t quants) {
  return (blocks + 1) / 2 * kPairHead + blocks * quants;
}

}  // namespace

size_t panel_bytes(DType dtype, int64_t k) {
  const auto n = static_cast<size_t>(k), blocks = n / kBlock, supers = n / kSuper;
  constexpr size_t kLine = 64;
  switch (dtype) {
    case DType::kF32:
      return n * 4 * kLanes;
    case DType::kF16:
      return (n * 2 * kLanes + kLine - 1) / kLine * kLine;
    case DType::kBF16:
      return (n + 1) / 2 * 4 * kLanes;
    case DType::kQ8_0:
      return paired(blocks, kQ8_0Quants);
    case DType::kQ4_0:
      return paired(blocks, kQ4Quants);
    case DType::kQ5_0:
      return paired(blocks, kQ5Quants);
    case DType::kQ4_1:
      return blocks * (kMinHead + kQ4Quants);
    case DType::kQ5_1:
      return blocks * (kMinHead + kQ5Quants);
    case DType::kQ4_K:
      return supers * (kSuperHead + 8 * kQ4Quants);
    case DType::kQ5_K:
      return supers * (kSuperHead + 8 * kQ5Quants);
    case DType::kQ6_K:
      return supers * (kSuperHead + 8 * kQ6Quants);
    default:
      DEEPMINT_CHECK(is_linear_type(dtype));
      return 0;
  }
}

bool is_linear_type(DType type) {
  switch (type) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kQ8_0:
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kQ5_0:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K:
    case DType::kQ6_K:
      return true;
    default:
      return false;
  }
}

Result<PackedMatrix> pack_stacked(DType dtype, std::span<const RowSource> sources, int64_t k,
                                  ThreadPool& pool) {
  const DTypeInfo& type = info(dtype);
  if (!is_linear_type(dtype))
    return fail(ErrorCode::kUnsupported,
                fmt::format("expected a matrix type with a kernel, found {}", type.name));
  const auto width = k > 0 ? row_bytes(dtype, static_cast<uint64_t>(k)) : std::nullopt;
  // Sixteen rows may grow by 3 % and must still fit in 64 bits.
  if (!width || *width > (uint64_t{1} << 56))
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("expected k a positive multiple of {} for {}, found {}",
                            type.block_elements, type.name, k));
  int64_t n = 0;
  for (const RowSource& s : sources) {
    const auto bytes = s.n > 0 ? checked_mul(*width, static_cast<uint64_t>(s.n)) : std::nullopt;
    if (!bytes || *bytes != s.bytes.size() || __builtin_add_overflow(n, s.n, &n))
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("expected {} rows of {} bytes of {}, found {} bytes", s.n, *width,
                              type.name, s.bytes.size()));
  }
  if (n == 0) return fail(ErrorCode::kInvalidArgument, "expected at least one row");

  PackedMatrix w;
  w.n_ = n;
  w.k_ = k;
  w.dtype_ = dtype;
  const size_t panel = panel_bytes(dtype, k);
  const auto total = checked_mul(panel, static_cast<uint64_t>(w.tiles()));
  // Rows beyond n read as zero bytes, which stand for the value 0 times 0 in every type.
  std::vector<uint8_t> zeros;
  try {
    if (!total) throw std::bad_alloc();
    w.data_ = WeightMemory(*total);
    zeros.resize(*width);
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kResourceExhausted,
                fmt::format("expected {} bytes of memory for weights", total.value_or(0)));
  }

  pool.run(static_cast<size_t>(w.tiles()), [&](size_t begin, size_t end, int) {
    size_t source = 0;
    int64_t row = 0;  // next row of `source`
    int64_t skip = static_cast<int64_t>(begin) * kLanes;
    while (skip > 0) {
      const int64_t step = skip < sources[source].n - row ? skip : sources[source].n - row;
      skip -= step;
      row += step;
      if (row == sources[source].n) ++source, row = 0;
    }
    for (size_t tile = begin; tile < end; ++tile) {
      Rows rows;
      for (const uint8_t*& r : rows) {
        if (source == sources.size()) {
          r = zeros.data();
          continue;
        }
        r = reinterpret_cast<const uint8_t*>(sources[source].bytes.data()) +
            static_cast<uint64_t>(row) * *width;
        if (++row == sources[source].n) ++source, row = 0;
      }
      pack_panel(dtype, rows, k, reinterpret_cast<uint8_t*>(w.data_.data()) + tile * panel);
    }
  });
  return w;
}

Result<PackedMatrix> pack(DType dtype, std::span<const std::byte> source, int64_t n, int64_t k,
                          ThreadPool& pool) {
  const RowSource one{source, n};
  return pack_stacked(dtype, {&one, 1}, k, pool);
}

}  // namespace deepmint::kernels
