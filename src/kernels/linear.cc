#include "kernels/linear.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/check.h"
#include "core/cpu_isa.h"
#include "kernels/linear_kernels.h"
#include "kernels/linear_pack.h"

namespace deepmint::kernels {
namespace {

struct Tables {
  const Int8Kernels* int8;
  const FloatKernels* floats;
  const ActivationKernels* activations;
  const Bf16Kernels* bf16;
};

const Tables& tables() {
  static constexpr std::array<Tables, 5> kTables = {{
      {&isa_x86_64::kInt8, &isa_x86_64::kFloat, &isa_x86_64::kActivations, &isa_x86_64::kBf16},
      {&isa_avx2::kInt8, &isa_avx2::kFloat, &isa_avx2::kActivations, &isa_avx2::kBf16},
      {&isa_avx512::kInt8, &isa_avx512::kFloat, &isa_avx512::kActivations, &isa_avx512::kBf16},
      {&isa_avx512vnni::kInt8, &isa_avx512::kFloat, &isa_avx512::kActivations, &isa_avx512::kBf16},
      {&isa_avx512vnni::kInt8, &isa_avx512::kFloat, &isa_avx512::kActivations,
       &isa_avx512bf16::kBf16},
  }};
  return kTables[static_cast<size_t>(active_isa())];
}

LinearFn kernel(DType dtype) {
  const Tables& t = tables();
  switch (dtype) {
    case DType::kF32:
      return t.floats->f32;
    case DType::kF16:
      return t.floats->f16;
    case DType::kBF16:
      return t.bf16->bf16;
    case DType::kQ8_0:
      return t.int8->q8_0;
    case DType::kQ4_0:
      return t.int8->q4_0;
    case DType::kQ4_1:
      return t.int8->q4_1;
    case DType::kQ5_0:
      return t.int8->q5_0;
    case DType::kQ5_1:
      return t.int8->q5_1;
    case DType::kQ4_K:
      return t.int8->q4_k;
    case DType::kQ5_K:
      return t.int8->q5_k;
    case DType::kQ6_K:
      return t.int8->q6_k;
    default:
      DEEPMINT_CHECK(is_linear_type(dtype));
      return nullptr;
  }
}

// Bytes between rows: whole cache lines, an odd number of them, so that the rows of a tile do not
// meet in the same sets of the first-level cache.
size_t stride_of(ActivationType type, int64_t k) {
  const auto n = static_cast<size_t>(k);
  size_t bytes = n * sizeof(float);
  if (type == ActivationType::kInt8Block32) bytes = (n + kBlock - 1) / kBlock * sizeof(ActBlock);
  if (type == ActivationType::kBF16) bytes = (n + 1) / 2 * 4;
  return ((bytes + kCacheLine - 1) / kCacheLine | 1) * kCacheLine;
}

LinearArgs arguments(const PackedMatrix& w, const Activations& x, float* y, int64_t stride,
                     bool add) {
  DEEPMINT_CHECK(x.type() == activation_type(w.dtype()) && x.k() == w.k() && stride >= w.n());
  return {.w = reinterpret_cast<const uint8_t*>(w.data()),
          .panel_bytes = panel_bytes(w.dtype(), w.k()),
          .n = w.n(),
          .k = w.k(),
          .x = reinterpret_cast<const uint8_t*>(x.data()),
          .x_stride = x.row_stride(),
          .m = x.m(),
          .y = y,
          .y_stride = stride,
          .add = add};
}

// Below this many values one thread converts them sooner than it can wake another.
constexpr int64_t kSerialValues = 1 << 14;

// What a product of one row keeps on its way (kOneRowAhead), and a little more. Measured with 512
// to 4096: no other is better.
constexpr size_t kStartBytes = 1024;

}  // namespace

ActivationType activation_type(DType weight) {
  switch (weight) {
    case DType::kF32:
    case DType::kF16:
      return ActivationType::kF32;
    case DType::kBF16:
      return ActivationType::kBF16;
    default:
      DEEPMINT_CHECK(is_linear_type(weight));
      return ActivationType::kInt8Block32;
  }
}

void Activations::reserve(int64_t max_rows, int64_t max_k) {
  const size_t need = static_cast<size_t>(max_rows) * stride_of(ActivationType::kF32, max_k);
  if (need > values_.size()) values_ = AlignedBuffer<std::byte>::uninitialized(need);
}

void Activations::prepare(ActivationType type, int64_t m, int64_t k) {
  DEEPMINT_CHECK(m >= 0 && k > 0 && (type != ActivationType::kInt8Block32 || k % kBlock == 0));
  type_ = type;
  m_ = m;
  k_ = k;
  row_stride_ = stride_of(type, k);
  const size_t need = static_cast<size_t>(m) * row_stride_;
  if (need > values_.size()) values_ = AlignedBuffer<std::byte>::uninitialized(need);
}

void Activations::convert_rows(const float* x, int64_t stride, int64_t row_begin, int64_t row_end) {
  const ActivationKernels& kernels = *tables().activations;
  for (int64_t row = row_begin; row < row_end; ++row) {
    const float* source = x + row * stride;
    std::byte* out = values_.data() + static_cast<size_t>(row) * row_stride_;
    switch (type_) {
      case ActivationType::kInt8Block32:
        kernels.quantize(source, k_, reinterpret_cast<ActBlock*>(out));
        break;
      case ActivationType::kBF16: {
        auto* halves = reinterpret_cast<uint16_t*>(out);
        kernels.to_bf16(source, k_, halves);
        if (k_ % 2 != 0) halves[k_] = 0;  // the partner of the last value
        break;
      }
      case ActivationType::kF32:
        std::memcpy(out, source, static_cast<size_t>(k_) * sizeof(float));
        break;
    }
  }
}

void Activations::convert_part(const float* x, int64_t row, int64_t begin, int64_t end) {
  DEEPMINT_DCHECK(begin % kBlock == 0 && end % kBlock == 0 && end <= k_);
  const ActivationKernels& kernels = *tables().activations;
  std::byte* out = values_.data() + static_cast<size_t>(row) * row_stride_;
  switch (type_) {
    case ActivationType::kInt8Block32:
      kernels.quantize(x + begin, end - begin, reinterpret_cast<ActBlock*>(out) + begin / kBlock);
      break;
    case ActivationType::kBF16:
      kernels.to_bf16(x + begin, end - begin, reinterpret_cast<uint16_t*>(out) + begin);
      break;
    case ActivationType::kF32:
      std::memcpy(reinterpret_cast<float*>(out) + begin, x + begin,
                  static_cast<size_t>(end - begin) * sizeof(float));
      break;
  }
}

void Activations::set(ActivationType type, const float* x, int64_t m, int64_t k, int64_t stride,
                      ThreadPool& pool) {
  prepare(type, m, k);
  if (m * k < kSerialValues) return convert_rows(x, stride, 0, m);
  pool.run(static_cast<size_t>(m), [&](size_t begin, size_t end, int) {
    convert_rows(x, stride, static_cast<int64_t>(begin), static_cast<int64_t>(end));
  });
}

void linear_tiles(const PackedMatrix& w, const Activations& x, float* y, int64_t stride,
                  int64_t tile_begin, int64_t tile_end, bool add) {
  DEEPMINT_DCHECK(tile_begin >= 0 && tile_end <= w.tiles());
  LinearArgs args = arguments(w, x, y, stride, add);
  args.tile_begin = tile_begin;
  args.tile_end = tile_end;
  kernel(w.dtype())(args);
}

void fetch_tile(const PackedMatrix& w, int64_t tile) {
  DEEPMINT_DCHECK(tile >= 0 && tile < w.tiles());
  const size_t from = static_cast<size_t>(tile) * panel_bytes(w.dtype(), w.k());
  const size_t end = std::min(w.bytes(), from + kStartBytes);
  for (size_t at = from; at < end; at += kCacheLine) __builtin_prefetch(w.data() + at, 0, 2);
}

void linear(const PackedMatrix& w, const Activations& x, float* y, int64_t stride, ThreadPool& pool,
            bool add) {
  const Product one{&w, y, stride, add};
  linear_group({&one, 1}, x, pool);
}

void linear_group(std::span<const Product> products, const Activations& x, ThreadPool& pool) {
  int64_t tiles = 0;
  for (const Product& p : products) tiles += p.w->tiles();
  pool.run(static_cast<size_t>(tiles), [&](size_t begin, size_t end, int) {
    auto at = static_cast<int64_t>(begin), left = static_cast<int64_t>(end - begin);
    for (const Product& p : products) {
      if (at >= p.w->tiles()) {
        at -= p.w->tiles();
        continue;
      }
      if (left == 0) return;
      const int64_t count = std::min(left, p.w->tiles() - at);
      linear_tiles(*p.w, x, p.y, p.stride, at, at + count, p.add);
      left -= count;
      at = 0;
    }
  });
}

}  // namespace deepmint::kernels
