// How fast V4.1's products and hyper-connection run when nothing comes from memory: every thread
// has weights of its own in its second-level cache, all at once. What a step takes at that speed is
// its arithmetic: expanding weights, multiplying, adding up. Memory faster than this is idle.
//
//   const double gb_per_s = cached_product(pool, kernels::V41Format::kFp4, 1024, 1);
#pragma once

#include <cstdint>

#include "core/thread_pool.h"
#include "kernels/v41_linear.h"

namespace deepmint::bench {

// GB/s of codes and scales that all threads get through, rows of k weights against `rows` rows of
// activations that are in operand form already. The best of five tries of some milliseconds.
double cached_product(ThreadPool& pool, kernels::V41Format format, int64_t k, int64_t rows);
// The same of the F32 matrix [outputs, k] of a hyper-connection.
double cached_mix(ThreadPool& pool, int64_t outputs, int64_t k, int64_t rows);

}  // namespace deepmint::bench
