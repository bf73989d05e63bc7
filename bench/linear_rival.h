// oneDNN's matrix product, measured beside ours.
#pragma once

#include <cstdint>
#include <functional>

namespace deepmint::bench {

// A call that computes y[m, n] = x[m, k] · W[n, k]^T in BF16 with f32 results, on OpenMP's threads
// (OMP_NUM_THREADS), with the weights in the layout that oneDNN prefers. Empty when the program was
// built without oneDNN or this machine has no BF16.
std::function<void()> bf16_rival(int64_t m, int64_t n, int64_t k);

// The same for unsigned x signed 8-bit integers with 32-bit sums and no scales: the arithmetic
// alone.
std::function<void()> int8_rival(int64_t m, int64_t n, int64_t k);

}  // namespace deepmint::bench
