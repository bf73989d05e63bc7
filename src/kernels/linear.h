// y[m, n] = x[m, k] · W[n, k]^T for every weight type, in a fixed order: one row or a thousand, any thread, the same bits.
//
// Weights are packed once (pack), activations once per layer input (quantize), then any number of products use them.
// Canonical arithmetic (design 4): block-quantised weights meet activations rounded to int8 per 32 values with an f32 scale;
// the integer dot of a block is exact and block results are added in ascending k with FMA. BF16/F16/F32 weights meet BF16 or
// F32 activations. docs/kernels/linear.md has the formula of each type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/aligned.h"
#include "core/cpu_isa.h"
#include "core/dtype.h"
#include "core/thread_pool.h"
#include "deepmint/result.h"

namespace deepmint::kernels {

// What form the activations of a product with this weight type take.
enum class ActivationType : uint8_t { kInt8Block32, kBF16, kF32 };
ActivationType activation_type(DType weight);

// A weight matrix in the layout that the kernels of one ISA read. Move-only.
class PackedMatrix {
 public:
  PackedMatrix() = default;
  int64_t n() const { return n_; }
  int64_t k() const { return k_; }
  DType dtype() const { return dtype_; }
  size_t bytes() const { return data_.size(); }
  const std::byte* data() const { return data_.data(); }

 private:
  friend Result<PackedMatrix> pack(DType, std::span<const std::byte>, int64_t, int64_t, ThreadPool&);
  AlignedBuffer<std::byte> data_;
  int64_t n_ = 0, k_ = 0;
  DType dtype_ = DType::kF32;
};

// source: [n, k] row-major in the GGUF or plain layout of `dtype`. k must be a multiple of the type's block (and of 32 for
// block types). Also used to stack matrices: see pack_rows in the .cc for concatenation along n.
Result<PackedMatrix> pack(DType dtype, std::span<const std::byte> source, int64_t n, int64_t k, ThreadPool& pool);

// Rows of activations ready for products: values in `type` form. Reusable; grows only in reserve.
class Activations {
 public:
  void reserve(int64_t max_rows, int64_t max_k);   // no allocation in set() within these limits
  // Converts x: [m, k] float, rows `stride` apart. Each row on its own: no statistics are shared between rows.
  void set(ActivationType type, const float* x, int64_t m, int64_t k, int64_t stride, ThreadPool& pool);
  int64_t m() const { return m_; }
  int64_t k() const { return k_; }
  ActivationType type() const { return type_; }

 private:
  friend struct ActivationAccess;
  AlignedBuffer<std::byte> values_;
  AlignedBuffer<float> scales_;        // int8: [m, k/32]
  AlignedBuffer<float> sums_;          // int8: scale * sum of the block, for types with an offset (Q4_1 …)
  int64_t m_ = 0, k_ = 0;
  ActivationType type_ = ActivationType::kF32;
};

// y: [x.m(), w.n()] float, rows `stride` apart. x.type() must be activation_type(w.dtype()), x.k() == w.k().
// add: y += product (the product is rounded to f32 first, then one addition).
void linear(const PackedMatrix& w, const Activations& x, float* y, int64_t stride, ThreadPool& pool, bool add = false);

// Scalar twin in double, from the unpacked source: the definition that linear() is tested against.
void linear_ref(DType dtype, std::span<const std::byte> source, int64_t n, int64_t k, const float* x, int64_t m, float* y);

// One row of a matrix in its stored layout, as float (embedding look-up). Exact up to one rounding per value.
void dequantize_row(DType dtype, const std::byte* source, int64_t k, float* out);

}  // namespace deepmint::kernels
