// One step of 32 k as V4.1's linear kernels take it: a register of BF16 pairs, or two of f32.
//
// Included after simd16.inl by files that deepmint_isa_sources compiles once per instruction set.

namespace deepmint::kernels::DEEPMINT_ISA_NS {
namespace {

#if DEEPMINT_ISA_LEVEL >= 4
constexpr size_t kOperandBytes = 2;
struct Operand {
  __m512i v;
};
DM_INLINE void store_operand(uint8_t* p, Operand a) { _mm512_store_si512(p, a.v); }
#else
// avx2: an F16 of operands holds the even lanes, then the odd ones, because that is how pairs of
// BF16 in 32-bit words come apart.
constexpr size_t kOperandBytes = 4;
struct Operand {
  F16 a, b;
};
DM_INLINE void store_operand(uint8_t* p, Operand x) {
  store(reinterpret_cast<float*>(p), x.a);
  store(reinterpret_cast<float*>(p) + 16, x.b);
}
#endif
constexpr size_t kOperandStep = kV41Step * kOperandBytes;

}  // namespace
}  // namespace deepmint::kernels::DEEPMINT_ISA_NS
