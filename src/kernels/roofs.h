// What this machine can do at best, measured: memory reads and arithmetic on all threads of a pool.
// Benchmarks divide by it.
//
//   const Roofs roofs = measure_roofs(pool);          // about 0.3 s, needs 256 MiB for the moment
//   of the call fmt::print("{:.0f} % of DRAM\n", 100 * gb_per_s / roofs.dram_read_gb_per_s);
//
// Arithmetic counts a multiplication and an addition as two operations, and uses the instructions
// of active_isa().
#pragma once

#include "core/thread_pool.h"

namespace deepmint::kernels {

struct Roofs {
  double dram_read_gb_per_s =
      0;                       // sequential reads of memory beyond the last cache, 1 GB = 1e9 bytes
  double f32_gflop_per_s = 0;  // f32 FMA (mul + add below AVX2)
  double bf16_gflop_per_s =
      0;  // BF16 dot where the set has it, else f32 on expanded values: equal to f32
  double int8_gop_per_s = 0;  // unsigned x signed 8-bit dot, 32-bit sums
};

Roofs measure_roofs(ThreadPool& pool);
double measure_dram_read(ThreadPool& pool);  // GB/s, the first of them alone

}  // namespace deepmint::kernels
