// What v41_linear.cc and its per-instruction-set code agree on: arguments as plain structs, one
// table of functions per instruction set. No inline functions here (cmake/isa.cmake). Formulas and
// orders: docs/kernels/v41_linear.md.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deepmint::kernels {

inline constexpr int64_t kV41Step =
    32;  // k values of one step: one scale, one 512-bit BF16 register

// Where the k of a row stand in operand form.
enum class V41Order : uint8_t {
  kNatural,
  kEvenFirst,    // of each step the even k, then the odd ones (FP4)
  kInterleaved,  // of each 64 k the eights 0, 2, 4 and 6, then 1, 3, 5 and 7 (FP8 on avx512bf16)
};

// Values of codes and scales, made once by portable code.
struct V41Tables {
  float e4m3[256];               // NaN for 0x7F and 0xFF
  uint8_t e4m3_bf16_bytes[256];  // of codes 0 … 127 as BF16: the high bytes, then the low ones
  float e2m1[16];
  float e8m0[256];                         // 2^(b - 127), NaN for 255
  float e8m0_half[256];                    // 2^(b - 119): E4M3 read as f16 is 2^-8 of its value
  alignas(64) uint16_t fp4_bf16[256][32];  // e2m1[code % 16] * e8m0[scale] as BF16
  alignas(64) uint8_t fp4_bf16_bytes[256][32];  // the high bytes of the first 16, the low ones
};

// Weights as stored, and rows of prepared activations.
struct V41Args {
  const V41Tables* tables = nullptr;
  const uint8_t* codes = nullptr;
  const uint8_t* scales = nullptr;
  size_t code_stride = 0;   // bytes per output
  size_t scale_stride = 0;  // bytes per 32 outputs (FP8) or per output (FP4)
  int64_t k = 0;
  int64_t begin = 0, end = 0;  // outputs; begin is a multiple of 32
  const uint8_t* const* x = nullptr;
  int64_t m = 0;
  float* y = nullptr;  // y[row * y_stride + output]
  int64_t y_stride = 0;
  bool to_bf16 = false;
  bool fast_subnormals = false;  // the CPU multiplies subnormal floats as fast as others
  // What this thread reads after the last output, from here on: fetched into the second-level cache
  // when the outputs come to their end. Null: nothing.
  const uint8_t* next = nullptr;
  const uint8_t* next_scales = nullptr;
  uint8_t* scratch = nullptr;  // of the thread, for m rows of operands
};

// Expanded weights: `outputs` rows of ceil(k / 32) steps.
struct V41PanelArgs {
  const uint8_t* panel = nullptr;
  size_t panel_stride = 0;  // bytes per output
  int64_t outputs = 0, steps = 0;
  const uint8_t* const* x = nullptr;
  int64_t m = 0;
  float* y = nullptr;  // of the panel's first output
  int64_t y_stride = 0;
  bool to_bf16 = false;
  const uint8_t* ahead = nullptr;  // memory to fetch into the second-level cache meanwhile
  size_t ahead_bytes = 0;
};

struct V41Kernels {
  int64_t direct_rows[3];  // by format: rows that direct() takes at most
  int64_t panel_outputs;   // outputs of a register tile: panels should be multiples
  size_t operand_bytes;    // per activation: 2 (BF16) or 4 (f32)
  size_t weight_bytes;     // per expanded weight, as well
  V41Order fp8_order;
  // By format: BF16, FP8, FP4.
  void (*direct[3])(const V41Args&);
  void (*expand[3])(const V41Args&, uint8_t* panel, size_t panel_stride);
  void (*panel)(const V41PanelArgs&);
};

struct V41ActivationKernels {
  // One row of k floats to operand form, padded with zeros to whole steps (kInterleaved: to 64).
  // quantise: each block of 32 through the FP8 activation quantiser.
  void (*prepare)(const float* x, int64_t k, bool quantise, V41Order order, uint8_t* out);
  // t = bf16(weight * (g * sigmoid(g) * u)), g = min(gate, limit), u = up within ±limit; n is a
  // multiple of 16. A weight of 1 changes nothing.
  void (*swiglu)(const float* gate, const float* up, int64_t n, float limit, float weight,
                 float* t);
};

namespace isa_x86_64 {
extern const V41Kernels kV41Linear;
extern const V41ActivationKernels kV41Activations;
}  // namespace isa_x86_64
namespace isa_avx2 {
extern const V41Kernels kV41Linear;
extern const V41ActivationKernels kV41Activations;
}  // namespace isa_avx2
namespace isa_avx512 {
extern const V41Kernels kV41Linear;
extern const V41ActivationKernels kV41Activations;
}  // namespace isa_avx512
namespace isa_avx512bf16 {
extern const V41Kernels kV41Linear;
extern const V41ActivationKernels kV41Activations;
}  // namespace isa_avx512bf16

}  // namespace deepmint::kernels
