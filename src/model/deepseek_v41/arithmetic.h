// The operations of one forward step, as an interface with two implementations: `reference`
// (double, rounded once; equals the oracle) and `fast` (float32 in a fixed order). The control flow
// and the state in forward.cc are shared, so what is proven about caching and chunking on one holds
// for the other. All values are floats; those that the specification calls bf16 have 16 zero bits.
//
// Every method treats each of its m rows on its own: results do not depend on the other rows or on
// m. After reserve() no method of `fast` allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "deepmint/result.h"
#include "model/deepseek_v41/key_rows.h"
#include "model/deepseek_v41/weights.h"

namespace deepmint {
class ThreadPool;
}

namespace deepmint::v41 {

// Up to so many rows a step waits for weights, and what knows the next ones fetches them meanwhile.
inline constexpr int64_t kFewRows = 16;

enum class Output : uint8_t { kBf16, kF32 };

// Packed rows of the caches (formats.h): codes, then scales.
enum class Packing : uint8_t {
  kWindow,  // q8:    d E4M3 codes, d / 32 E8M0 scales
  kGlobal,  // q4kv:  d / 2 bytes of E2M1 codes, d / 16 E4M3 scales
  kIndex,   // q4idx: d / 2 bytes of E2M1 codes, d / 32 E8M0 scales
};

// The keys that one query sees: window positions [floor, position], then the selected global rows
// in ascending order.
struct AttentionRow {
  WindowKeys window;
  int32_t floor = 0, position = 0;
  PagedRows global;
  const int32_t* selected = nullptr;
  int32_t n_selected = 0;
};

// What a query of an index source chooses from and where the choice goes.
enum class Candidates : uint8_t { kNone, kMake, kUse };
struct SelectRow {
  PagedRows keys;
  int32_t visible = 0;          // rows 0 .. visible - 1
  int32_t* rows = nullptr;      // out: at most index_topk rows, ascending
  int32_t* n_rows = nullptr;    // out
  int32_t* blocks = nullptr;    // kMake: out, at most candidate_blocks, ascending; kUse: in
  int32_t* n_blocks = nullptr;  // kMake: out; kUse: in
};

// Told what a step is about to read from weights that may lie on disk, as soon as it is known.
// Calls come from the thread that runs the step and must not block.
class WeightHints {
 public:
  virtual ~WeightHints() = default;
  // Routed experts of this step's rows in a layer, ascending, each once.
  virtual void experts(int layer, std::span<const int32_t> ids) = 0;
  // Rows of Engram table `which` (index into Config::engram_layers); may repeat.
  virtual void engram_rows(size_t which, std::span<const int64_t> rows) = 0;
};

class Arithmetic {
 public:
  virtual ~Arithmetic() = default;

  // Once after loading, before anything else: packs what it wants to keep. `weights` stays valid.
  virtual Status prepare(const Config& config, const Weights& weights) {
    return (void)config, (void)weights, Status{};
  }
  // Scratch for steps of up to max_rows rows. May be called again to raise the limit.
  virtual Status reserve(const Config& config, size_t max_rows) {
    return (void)config, (void)max_rows, Status{};
  }
  // What most of its multiply-adds are done in (ModelInfo::arithmetic).
  virtual std::string_view roof() const { return "f32"; }
  virtual void set_hints(WeightHints* hints) { hints_ = hints; }

  // y: [m, w.n] = W x. FP8 and FP4 weights see x through the FP8 activation quantiser, BF16 weights
  // see x as it is.
  virtual void linear(const Matrix& w, const float* x, int64_t m, float* y, Output output) = 0;
  // Several products of the same x.
  struct Product {
    const Matrix* w = nullptr;
    float* y = nullptr;
    Output output = Output::kBf16;
  };
  virtual void linears(std::span<const Product> products, const float* x, int64_t m) {
    for (const Product& p : products) linear(*p.w, x, m, p.y, p.output);
  }
  // y: [m, groups, n] = W[g] x[:, g], x: [m, groups, k]; bf16. FP8 weights see x as it is (wo_a,
  // spec 5.4).
  virtual void linear_groups(std::span<const Matrix> w, const float* x, int64_t m, float* y) = 0;
  // x, y: [m, d], y may be x.
  virtual void rms_norm(const float* x, int64_t m, int d, const float* weight, double eps,
                        float* y) = 0;
  // table: [m, 2, inv.size()], the cosines and the sines of float(position) * inv, each rounded
  // once.
  virtual void rope_table(const int32_t* positions, int64_t m, std::span<const float> inv,
                          float* table) = 0;
  // x: [m, groups, d]; rotates the last `rotary` of each d values by row i of the table; sign -1
  // undoes it.
  virtual void rope(float* x, int64_t m, int groups, int d, int rotary, const float* table,
                    int sign) = 0;
  // X: [m, hc, d] → pre, post: [m, hc], comb: [m, hc, hc].
  virtual void mix(const float* X, int64_t m, const Config& c, const MixWeights& w, float* pre,
                   float* post, float* comb) = 0;
  // The same, but its results need only be there after the next linears() or moe() of as many rows,
  // which it may run beside.
  virtual void mix_beside(const float* X, int64_t m, const Config& c, const MixWeights& w,
                          float* pre, float* post, float* comb) {
    mix(X, m, c, w, pre, post, comb);
  }
  // y: [m, d]. Below, `X` is [m, hc, d] and changed in place.
  virtual void collapse(const float* X, int64_t m, const Config& c, const float* pre, float* y) = 0;
  virtual void expand(const float* y, int64_t m, const Config& c, const float* post,
                      const float* comb, float* X) = 0;
  // Packs row i of x: [m, d] to rows[i]; null means skip.
  virtual void pack(Packing packing, const float* x, int64_t m, int d, std::byte* const* rows) = 0;
  // Weights that the operations after the next attend() read: it may fetch them meanwhile. Changes
  // no result.
  virtual void soon(std::span<const Matrix* const> weights) { (void)weights; }
  // q: [m, heads, head_dim], replaced by the attention output. Rows of one sequence stand together
  // in ascending positions.
  virtual void attend(float* q, std::span<const AttentionRow> rows, const Config& c,
                      const float* sink) = 0;
  // kv[i], gate[i]: two rows of [d] each → row i of out, bf16.
  struct Pair {
    const float* kv[2];
    const float* gate[2];
  };
  virtual void pool(std::span<const Pair> pairs, int d, float* out) = 0;
  // q: [m, index_heads, index_dim] after RoPE, quantised here; w: [m, index_heads], scaled.
  virtual void select(float* q, const float* w, std::span<const SelectRow> rows, const Config& c,
                      Candidates candidates) = 0;
  // u: [m, hidden] → y: [m, hidden]; routing included.
  virtual void moe(const float* u, int64_t m, const Config& c, int layer, const LayerWeights& w,
                   float* y) = 0;
  // Values of table rows; out: [count, engram_dim].
  virtual void engram_rows(const EngramWeights& w, std::span<const int64_t> rows, const Config& c,
                           float* out) = 0;
  // z: [m, (hc + 1) * d].
  virtual void engram(float* X, const float* z, int64_t m, const Config& c,
                      const EngramWeights& w) = 0;

 protected:
  WeightHints* hints_ = nullptr;
};

std::unique_ptr<Arithmetic> make_reference_arithmetic();
// `pool` must outlive the result, which is made and destroyed between its calls.
std::unique_ptr<Arithmetic> make_fast_arithmetic(ThreadPool* pool);

}  // namespace deepmint::v41
