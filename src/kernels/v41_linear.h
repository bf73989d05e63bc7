// y[m, n] = x[m, k] · W[n, k]^T for the three weight layouts of a V4.1 checkpoint, in place:
// weights are read where the file is mapped, row-major, at any alignment.
//
//   kBf16  BF16 [n, k]
//   kFp8   E4M3 [n, k], E8M0 scale per tile of 32 x 32: [ceil(n / 32), k / 32]
//   kFp4   two E2M1 per byte [n, k / 2] (low nibble = even k), E8M0 scale per 32 of a row: [n, k /
//   32]
//
// Every code times its scale is exact in BF16, activations are BF16 too (after the FP8 quantiser or
// as the model made them), products meet in f32. The order of a sum depends on (format, k) alone:
// one row or a thousand, any tile, any thread, the same bits. docs/kernels/v41_linear.md has the
// order, the error bound and the speed.
//
//   V41Rows x;
//   x.set(w.format, V41Round::kQ8, u, m, k, k, pool);            // activations in operand form
//   v41_linear({{w, x.rows(), y, n, true}}, workspace, pool);    // bf16-rounded y: [m, n]
//
// Bits may differ between the classes of core/cpu_isa.h. active_isa() is read in set() and in
// v41_linear() and must not change between them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/aligned.h"
#include "core/thread_pool.h"
#include "deepmint/result.h"

namespace deepmint::kernels {

enum class V41Format : uint8_t { kBf16, kFp8, kFp4 };
enum class V41Order : uint8_t;  // of a row's k in operand form; v41_linear_kernels.h

struct V41Weights {
  V41Format format = V41Format::kBf16;
  const std::byte* codes = nullptr;
  const std::byte* scales = nullptr;  // null for kBf16
  int64_t n = 0, k = 0;
};

// Whether the kernels can use a matrix: k and n positive, k a multiple of 32 unless BF16, spans as
// large as the shape says. Errors: kInvalidFile (expected and found bytes).
Result<V41Weights> v41_weights(V41Format format, std::span<const std::byte> codes,
                               std::span<const std::byte> scales, int64_t n, int64_t k);
// Whether every scale is a number that keeps every code exact in BF16: 10 … 246 (FP8), 2 … 252
// (FP4; a block of zeros may have any number), and no FP8 code is NaN. Reads the whole matrix (FP4:
// its scales). Errors: kInvalidFile naming the first such byte.
Status v41_check_values(const V41Weights& w);

// What happens to activations before the product.
enum class V41Round : uint8_t {
  kQ8,     // the FP8 activation quantiser: blocks of 32, E4M3 times a power of two
  kPlain,  // nothing: they are BF16 values already (others are rounded to BF16 where the
           // instruction set multiplies BF16)
};

// Activations in operand form. Reusable; memory grows in reserve, or in set beyond it. A NaN or an
// infinity makes its block of 32 NaN under kQ8; other rows never see it.
class V41Rows {
 public:
  void reserve(int64_t max_rows, int64_t max_k);
  // x: [m, k] float, rows `stride` floats apart.
  void set(V41Format format, V41Round round, const float* x, int64_t m, int64_t k, int64_t stride,
           ThreadPool& pool);
  // The same in two parts, for use inside a larger parallel region.
  void prepare(V41Format format, V41Round round, int64_t m, int64_t k);
  void convert_row(int64_t row, const float* x);

  int64_t m() const { return static_cast<int64_t>(pointers_.size()); }
  std::span<const uint8_t* const> rows() const { return pointers_; }

 private:
  AlignedBuffer<std::byte> values_;
  std::vector<const uint8_t*> pointers_;
  int64_t k_ = 0;
  size_t row_bytes_ = 0;
  bool quantise_ = false;
  V41Order order_{};
};

// One product: y[row * stride + output] for every row of x and output of w. to_bf16 rounds y.
struct V41Product {
  V41Weights w;
  std::span<const uint8_t* const> x;  // rows from V41Rows of this format and k, in any order
  float* y = nullptr;
  int64_t stride = 0;
  bool to_bf16 = false;
};

// Other work that the threads of a call do beside its products, item by item. `bytes`: how much of
// the products takes as long as all of it.
struct V41Beside {
  size_t count = 0, bytes = 0;
  void (*run)(void* what, size_t item) = nullptr;
  void* what = nullptr;
};

class V41Lookahead;  // v41_lookahead.h

// Scratch of each thread; grows on first use of a shape (at most about 0.7 MB per thread).
class V41Workspace {
 public:
  void reserve(int64_t max_k, int64_t max_products, ThreadPool& pool);
  // Of the same pool; told of every call. Null: none, as at first.
  void set_lookahead(V41Lookahead* lookahead) { lookahead_ = lookahead; }

 private:
  friend void v41_linear(std::span<const V41Product>, V41Workspace&, ThreadPool&, const V41Beside&);
  void make_shares(std::span<const V41Product> products, size_t threads, const V41Beside& beside);
  struct alignas(kCacheLine) Share {
    std::atomic<size_t> next{0};
    size_t end = 0;
  };
  // What a thread takes at a time of a product: so many rows and outputs, all units of some rows
  // before those of the next.
  struct Units {
    int64_t rows = 0, outputs = 0;
    size_t across = 0, count = 0;  // units of the same rows, units in all
  };
  static Units units_of(const V41Product& product, int threads);
  std::vector<AlignedBuffer<std::byte>> panels_;
  std::vector<Units> units_;        // of each product
  std::vector<size_t> first_unit_;  // of each product, and their sum
  std::vector<Share> shares_;       // of each thread
  Share beside_;
  V41Lookahead* lookahead_ = nullptr;
};

// All products in one hand-over to the threads, which share them by outputs. Products without rows
// are skipped.
void v41_linear(std::span<const V41Product> products, V41Workspace& workspace, ThreadPool& pool,
                const V41Beside& beside = {});

// A BF16 product on the calling thread alone, for use inside a larger parallel region.
void v41_linear_here(const V41Product& product);

// The input of an expert's w2: t = bf16(weight * (g * sigmoid(g) * u)) with g = min(gate, limit)
// and u = up held within ±limit. n is a multiple of 16; weight 1 for the shared expert. In float, 4
// ulp before the last rounding. t may be gate or up.
void v41_swiglu(const float* gate, const float* up, int64_t n, float limit, float weight, float* t);

// Scalar twin in double: the definition that v41_linear is tested against. x: [m, k], y: [m, n].
void v41_linear_ref(const V41Weights& w, V41Round round, const float* x, int64_t m, double* y);
// Row `output` of w as float, exact. out: [k].
void v41_dequantize(const V41Weights& w, int64_t output, float* out);

}  // namespace deepmint::kernels
