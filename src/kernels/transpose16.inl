// Transposes 16 x 16 dwords in AVX-512 registers. Included by files that are compiled per
// instruction set, after simd16.inl.
#if DEEPMINT_ISA_LEVEL >= 2
namespace deepmint::kernels::DEEPMINT_ISA_NS {
namespace {

// v[i] dword j ↔ v[j] dword i.
DM_INLINE void transpose16(__m512i v[16]) {
  __m512i a[16], b[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    a[2 * i] = _mm512_unpacklo_epi32(v[2 * i], v[2 * i + 1]);
    a[2 * i + 1] = _mm512_unpackhi_epi32(v[2 * i], v[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    b[4 * i] = _mm512_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
    b[4 * i + 1] = _mm512_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
    b[4 * i + 2] = _mm512_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
    b[4 * i + 3] = _mm512_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
  }
  // b[4r + c] lane l: dwords of rows 4r .. 4r + 3 at column 4l + c.
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512i x0 = _mm512_shuffle_i32x4(b[c], b[4 + c], 0x88);
    const __m512i x1 = _mm512_shuffle_i32x4(b[c], b[4 + c], 0xDD);
    const __m512i y0 = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0x88);
    const __m512i y1 = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0xDD);
    v[c] = _mm512_shuffle_i32x4(x0, y0, 0x88);
    v[8 + c] = _mm512_shuffle_i32x4(x0, y0, 0xDD);
    v[4 + c] = _mm512_shuffle_i32x4(x1, y1, 0x88);
    v[12 + c] = _mm512_shuffle_i32x4(x1, y1, 0xDD);
  }
}

}  // namespace
}  // namespace deepmint::kernels::DEEPMINT_ISA_NS
#endif
