// y[m, n] = x[m, k] · W[n, k]^T for every weight type, in a fixed order: one row or a thousand, any
// thread, the same bits.
//
// Weights are packed once (pack), activations once per layer input (Activations::set), then any
// number of products use them. Canonical arithmetic (design 4): block-quantised weights meet
// activations rounded to int8 per 32 values with an f32 scale; the integer dot of a block is exact
// and block results are added in ascending k with FMA. BF16 weights meet BF16 activations, F16 and
// F32 weights meet F32 activations. docs/kernels/linear.md has the formula and layout of each type.
//
// Bits of y[row, :] are a function of that row of x, of W and of the instruction-set class
// (core/cpu_isa.h) alone. active_isa() is read in every call; a PackedMatrix and an Activations
// hold the same bytes for every instruction set.
//
//   DEEPMINT_TRY(w, pack(DType::kQ4_1, tensor.bytes, n, k, pool));
//   Activations x;
//   x.reserve(max_rows, k);                                      // nothing below allocates
//   x.set(activation_type(w.dtype()), hidden, m, k, k, pool);
//   linear(w, x, out, n, pool);
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/aligned.h"
#include "core/dtype.h"
#include "core/thread_pool.h"
#include "deepmint/result.h"
#include "kernels/weight_memory.h"

namespace deepmint::kernels {

// What form the activations of a product with this weight type take.
enum class ActivationType : uint8_t { kInt8Block32, kBF16, kF32 };
ActivationType activation_type(DType weight);  // weight must be a type that pack() takes
bool is_linear_type(DType type);  // F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q4_K Q5_K Q6_K

// Outputs of one tile: the unit in which a product may be cut for threads.
inline constexpr int64_t kTileOutputs = 16;

// Part of a stacked matrix: n rows, row-major in the stored layout of the type.
struct RowSource {
  std::span<const std::byte> bytes;
  int64_t n = 0;
};

// A weight matrix in the layout that the kernels read: panels of 16 outputs, interleaved.
// Move-only. About as large as the source (at most 3 % more, and n rounded up to 16).
class PackedMatrix {
 public:
  PackedMatrix() = default;
  int64_t n() const { return n_; }
  int64_t k() const { return k_; }
  DType dtype() const { return dtype_; }
  int64_t tiles() const { return (n_ + kTileOutputs - 1) / kTileOutputs; }
  size_t bytes() const { return data_.size(); }
  const std::byte* data() const { return data_.data(); }

 private:
  friend Result<PackedMatrix> pack_stacked(DType, std::span<const RowSource>, int64_t, ThreadPool&);
  WeightMemory data_;
  int64_t n_ = 0, k_ = 0;
  DType dtype_ = DType::kF32;
};

// source: [n, k] row-major in the GGUF or plain layout of `dtype`, at any alignment. k must be a
// multiple of the type's block. Errors: kUnsupported (type), kInvalidArgument (shape, or a span
// whose size is not n rows).
Result<PackedMatrix> pack(DType dtype, std::span<const std::byte> source, int64_t n, int64_t k,
                          ThreadPool& pool);

// The matrices one above the other, as one of n = sum of their n (for example Q, K and V, or gate
// and up): one product, one hand-over to the threads.
Result<PackedMatrix> pack_stacked(DType dtype, std::span<const RowSource> sources, int64_t k,
                                  ThreadPool& pool);

// Rows of activations ready for products. Reusable; memory grows in reserve, or in set/prepare
// beyond what was reserved.
//
// Non-finite values stay in their row: a block of 32 that holds one becomes NaN as a whole in int8
// form.
class Activations {
 public:
  void reserve(int64_t max_rows, int64_t max_k);  // for every type
  // Converts x: [m, k] float, rows `stride` floats apart. Each row on its own: no statistics are
  // shared between rows.
  void set(ActivationType type, const float* x, int64_t m, int64_t k, int64_t stride,
           ThreadPool& pool);

  // The same in two parts, for use inside a larger parallel region: prepare on one thread, then
  // each thread converts rows of its own. x points to row 0 in convert_rows.
  void prepare(ActivationType type, int64_t m, int64_t k);
  void convert_rows(const float* x, int64_t stride, int64_t row_begin, int64_t row_end);
  // Values [begin, end) of one row: multiples of 32. x points to value 0 of that row. Same bytes as
  // convert_rows gives there.
  void convert_part(const float* x, int64_t row, int64_t begin, int64_t end);

  int64_t m() const { return m_; }
  int64_t k() const { return k_; }
  ActivationType type() const { return type_; }
  const std::byte* data() const { return values_.data(); }
  size_t row_stride() const { return row_stride_; }  // bytes

 private:
  AlignedBuffer<std::byte> values_;
  size_t row_stride_ = 0;
  int64_t m_ = 0, k_ = 0;
  ActivationType type_ = ActivationType::kF32;
};

// y: [x.m(), w.n()] float, rows `stride` floats apart; floats between n and stride are left alone.
// x.type() must be activation_type(w.dtype()), x.k() == w.k(). add: y += product (the product is
// rounded to f32 first, then one addition).
void linear(const PackedMatrix& w, const Activations& x, float* y, int64_t stride, ThreadPool& pool,
            bool add = false);

// Several products with the same x in one hand-over to the threads.
struct Product {
  const PackedMatrix* w = nullptr;
  float* y = nullptr;
  int64_t stride = 0;
  bool add = false;
};
void linear_group(std::span<const Product> products, const Activations& x, ThreadPool& pool);

// One thread's share, for use inside a larger parallel region: all rows of x, outputs of tiles
// [tile_begin, tile_end) of w.tiles(). Runs on the caller only.
void linear_tiles(const PackedMatrix& w, const Activations& x, float* y, int64_t stride,
                  int64_t tile_begin, int64_t tile_end, bool add = false);

// Brings the first bytes of a tile on their way to the caches, so that a product that starts there
// next finds them. A hint: waits for nothing.
void fetch_tile(const PackedMatrix& w, int64_t tile);

// Scalar twin in double, from the unpacked source: the definition that linear() is tested against.
// Activations are rounded to the form of activation_type() first, exactly as Activations::set does.
// x: [m, k], y: [m, n], both dense.
void linear_ref(DType dtype, std::span<const std::byte> source, int64_t n, int64_t k,
                const float* x, int64_t m, float* y);

// One row of a matrix in its stored layout, as float (embedding look-up). One rounding per value at
// most.
void dequantize_row(DType dtype, const std::byte* source, int64_t k, float* out);

}  // namespace deepmint::kernels
