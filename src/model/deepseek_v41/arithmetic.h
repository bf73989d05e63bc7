// The operations of one forward step, as an interface with two implementations: `reference`
// (double, rounded once; equals the oracle) and `fast` (float32 in a fixed order). The control flow
// and the state in model.cc are shared, so what is proven about caching and chunking on one holds
// for the other. All values are floats; those that the specification calls bf16 have 16 zero bits.
//
// Every method treats each of its m rows on its own: results do not depend on the other rows or on
// m.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "model/deepseek_v41/weights.h"

namespace deepmint {
class ThreadPool;
}

namespace deepmint::v41 {

enum class Output : uint8_t { kBf16, kF32 };

// Packed cache rows that one query may read: window rows oldest first, then global rows ascending.
// Null-free.
struct KeyRows {
  std::span<const std::byte* const> window;  // head_dim E4M3 codes, head_dim / 32 E8M0 scales
  std::span<const std::byte* const>
      global;  // head_dim / 2 bytes of E2M1 codes, head_dim / 16 E4M3 scales
};

class Arithmetic {
 public:
  virtual ~Arithmetic() = default;

  // y: [m, w.n] = W x. FP8 and FP4 weights see x through the FP8 activation quantiser, BF16 weights
  // see x as it is.
  virtual void linear(const Matrix& w, const float* x, int64_t m, float* y, Output output) = 0;
  // The same, but FP8 weights see x as it is too (wo_a, spec 5.4).
  virtual void linear_plain(const Matrix& w, const float* x, int64_t m, float* y,
                            Output output) = 0;
  // x, y: [m, d], y may be x.
  virtual void rms_norm(const float* x, int64_t m, int d, const float* weight, double eps,
                        float* y) = 0;
  // x: [m, groups, d]; rotates the last 2 * inv.size() of each d values at positions[row].
  virtual void rope(float* x, int64_t m, int groups, int d, std::span<const float> inv,
                    const int32_t* positions, int sign) = 0;
  // X: [m, hc, d] → pre, post: [m, hc], comb: [m, hc, hc].
  virtual void mix(const float* X, int64_t m, const Config& c, const MixWeights& w, float* pre,
                   float* post, float* comb) = 0;
  virtual void collapse(const float* X, int64_t m, const Config& c, const float* pre, float* y) = 0;
  // X: [m, hc, d] in place; y: [m, d].
  virtual void expand(const float* y, int64_t m, const Config& c, const float* post,
                      const float* comb, float* X) = 0;
  // One query row: q, out: [heads, head_dim].
  virtual void attend(const float* q, const KeyRows& keys, const Config& c, const float* sink,
                      float* out) = 0;
  // kv, gate: two rows of [d] each → bf16 [d].
  virtual void pool(const float* const kv[2], const float* const gate[2], int d, float* out) = 0;
  // q: [heads, dim] (exact FP4 values), w: [heads] (scaled), keys: packed index rows → scores, one
  // per key.
  virtual void index_scores(const float* q, const float* w, std::span<const std::byte* const> keys,
                            const Config& c, float* scores) = 0;
  // u: [m, hidden] → y: [m, hidden]; routing included.
  virtual void moe(const float* u, int64_t m, const Config& c, const LayerWeights& w, float* y) = 0;
  // X: [m, hc, d] in place; z: [m, (hc + 1) * d].
  virtual void engram(float* X, const float* z, int64_t m, const Config& c,
                      const EngramWeights& w) = 0;
};

std::unique_ptr<Arithmetic> make_reference_arithmetic();
// `pool` must outlive the result.
std::unique_ptr<Arithmetic> make_fast_arithmetic(ThreadPool* pool);

}  // namespace deepmint::v41
