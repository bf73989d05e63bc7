// The rowwise kernels of one instruction set. Plain structs only: included by files that are
// compiled per instruction set.
#pragma once

#include <cstdint>

namespace deepmint::kernels {

struct RowwiseTable {
  void (*rms_norm)(const float* x, const float* weight, int64_t n, float eps, float* y);
  void (*rope_halves)(float* x, const float* cos_sin, int64_t rotary);
  void (*rope_interleaved)(float* x, const float* cos_sin, int64_t rotary);
  void (*swiglu)(const float* gate, const float* up, int64_t n, float* y);
  void (*add)(const float* x, int64_t n, float* y);
  void (*scale)(float factor, int64_t n, float* y);
  void (*exp_row)(const float* x, int64_t n, float* y);
};

namespace isa_x86_64 {
extern const RowwiseTable rowwise_table;
}
namespace isa_avx2 {
extern const RowwiseTable rowwise_table;
}
namespace isa_avx512 {
extern const RowwiseTable rowwise_table;
}
namespace isa_avx512vnni {
extern const RowwiseTable rowwise_table;
}
namespace isa_avx512bf16 {
extern const RowwiseTable rowwise_table;
}

}  // namespace deepmint::kernels
