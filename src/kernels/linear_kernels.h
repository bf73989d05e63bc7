// What linear.cc and the per-instruction-set code agree on: layouts as constants, arguments as
// plain structs, one table of functions per instruction set. No inline functions here
// (cmake/isa.cmake). Formulas and layouts: docs/kernels/linear.md.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deepmint::kernels {

inline constexpr int64_t kLanes = 16;   // outputs of a panel = floats of a 512-bit register
inline constexpr int64_t kBlock = 32;   // activations that share a scale
inline constexpr int64_t kSuper = 256;  // weights of a K-type super-block

// Bytes per block and panel of each part.
inline constexpr size_t kF16Lanes = kLanes * 2;          // one f16 per output
inline constexpr size_t kNibbles = kLanes * kBlock / 2;  // low 4 bits of 32 x 16 weights
inline constexpr size_t kBit = kLanes * kBlock / 8;      // one more bit of each
inline constexpr size_t kByteQuants = kLanes * kBlock;   // whole bytes
inline constexpr size_t kQ8_0Quants = kByteQuants;       // [8 steps][16 outputs][4 k], value + 128
inline constexpr size_t kQ4Quants =
    kNibbles;  // [4 steps][16 outputs][4 k], k + 16 in the high nibble
inline constexpr size_t kQ5Quants = kBit + kNibbles;
inline constexpr size_t kQ6Quants = 2 * kBit + kNibbles;

// Q8_0, Q4_0, Q5_0 go in pairs of blocks, so that quants start on a cache line:
// [d of block 0][d of block 1][quants 0][quants 1].
inline constexpr size_t kPairHead = 2 * kF16Lanes;
// Q4_1, Q5_1: [d][m][quants].
inline constexpr size_t kMinHead = 2 * kF16Lanes;
// Q4_K, Q5_K: [d][-dmin][8 x (scale u8 x 16, min u8 x 16)][8 x quants]. Q6_K: [d][unused][16 x
// scale i8 x 16][8 x quants].
inline constexpr size_t kSuperHead = 2 * kF16Lanes + 16 * kLanes;

// One block of a row of activations: x[i] ~ d * q[i].
struct ActBlock {
  int8_t q[kBlock];  // -127 … 127
  float d;           // largest magnitude / 127; NaN when the block holds a value that is not finite
  float s;           // d * (sum of q)
  int32_t neg_sum;   // -(sum of q)
  int32_t neg_sum_high;  // -(sum of q[16 … 31])
};
static_assert(sizeof(ActBlock) == 48);

struct LinearArgs {
  const uint8_t* w = nullptr;  // packed panels
  size_t panel_bytes = 0;
  int64_t n = 0, k = 0;
  const uint8_t* x = nullptr;  // rows of activations in the form that the weight type takes
  size_t x_stride = 0;         // bytes
  int64_t m = 0;
  float* y = nullptr;
  int64_t y_stride = 0;                  // floats
  int64_t tile_begin = 0, tile_end = 0;  // panels
  bool add = false;
};

using LinearFn = void (*)(const LinearArgs&);

struct Int8Kernels {
  LinearFn q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k, q6_k;
};
struct FloatKernels {
  LinearFn f32, f16;
};
struct ActivationKernels {
  void (*quantize)(const float* x, int64_t k, ActBlock* out);
  void (*to_bf16)(const float* x, int64_t k, uint16_t* out);
};
struct Bf16Kernels {
  LinearFn bf16;
};

// Each set has only the kernels that differ from those of the set below it.
namespace isa_x86_64 {
extern const Int8Kernels kInt8;
extern const FloatKernels kFloat;
extern const ActivationKernels kActivations;
extern const Bf16Kernels kBf16;
}  // namespace isa_x86_64
namespace isa_avx2 {
extern const Int8Kernels kInt8;
extern const FloatKernels kFloat;
extern const ActivationKernels kActivations;
extern const Bf16Kernels kBf16;
}  // namespace isa_avx2
namespace isa_avx512 {
extern const Int8Kernels kInt8;
extern const FloatKernels kFloat;
extern const ActivationKernels kActivations;
extern const Bf16Kernels kBf16;
}  // namespace isa_avx512
namespace isa_avx512vnni {
extern const Int8Kernels kInt8;
}
namespace isa_avx512bf16 {
extern const Bf16Kernels kBf16;
}

}  // namespace deepmint::kernels
