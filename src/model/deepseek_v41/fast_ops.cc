#include "model/deepseek_v41/fast_ops.h"

#include <algorithm>
#include <cmath>

#include "kernels/scalar_math.h"
#include "kernels/v41_ops.h"

namespace deepmint::v41 {
namespace {

size_t count(int64_t n) { return static_cast<size_t>(n); }
int64_t row(size_t i) { return static_cast<int64_t>(i); }

float inverse_norm(const float* x, int64_t n, const Config& c) {
  return static_cast<float>(
      1.0 / std::sqrt(kernels::v41_sum_squares(x, n) / static_cast<double>(n) + c.norm_eps));
}

}  // namespace

void FastOps::soon(std::span<const Matrix* const> weights) {
  n_soon_ = 0;
  for (const Matrix* w : weights) {
    const std::span<const std::byte> bytes = w->weight->bytes;
    // Groups of one tensor lie one behind the other.
    if (n_soon_ > 0 && soon_[n_soon_ - 1].data() + soon_[n_soon_ - 1].size() == bytes.data())
      soon_[n_soon_ - 1] = {soon_[n_soon_ - 1].data(), soon_[n_soon_ - 1].size() + bytes.size()};
    else if (n_soon_ < kMostSoon)
      soon_[n_soon_++] = bytes;
  }
}

void FastOps::rms_norm(const float* x, int64_t m, int d, const float* weight, double eps,
                       float* y) {
  const auto eps_f = static_cast<float>(eps);
  for_rows(count(m), d, [&](size_t begin, size_t end, int) {
    for (int64_t i = row(begin); i < row(end); ++i)
      kernels::v41_rms_norm(x + i * d, weight, d, eps_f, y + i * d);
  });
}

void FastOps::rope_table(const int32_t* positions, int64_t m, std::span<const float> inv,
                         float* table) {
  const size_t half = inv.size();
  for_rows(count(m), 200 * row(half), [&](size_t begin, size_t end, int) {
    for (size_t i = begin; i < end; ++i)
      for (size_t k = 0; k < half; ++k) {
        const float angle = static_cast<float>(positions[i]) * inv[k];
        const kernels::SinCos v = kernels::sincos_double(static_cast<double>(angle));
        table[i * 2 * half + k] = static_cast<float>(v.cos);
        table[(i * 2 + 1) * half + k] = static_cast<float>(v.sin);
      }
  });
}

void FastOps::rope(float* x, int64_t m, int groups, int d, int rotary, const float* table,
                   int sign) {
  for_rows(count(m), groups * rotary, [&](size_t begin, size_t end, int) {
    for (int64_t i = row(begin); i < row(end); ++i)
      kernels::v41_rope(x + i * groups * d, groups, d, rotary, table + i * rotary, sign);
  });
}

void FastOps::mix_rows(const float* X, int64_t m, const Config& c, const MixWeights& w, float* pre,
                       float* post, float* comb) {
  const int64_t hc = c.streams, n = hc * c.hidden, outputs = hc * (hc + 2), stride = outputs + 1;
  kernels::v41_mix_dots(X, m, n, w.fn.data(), 0, outputs, dots_.data(), stride);
  for (int64_t i = 0; i < m; ++i)
    dots_[count(i * stride + outputs)] = inverse_norm(X + i * n, n, c);
  kernels::v41_mix_finish(dots_.data(), m, stride, hc, w.base.data(), w.scale.data(),
                          c.sinkhorn_rounds, c.hc_eps, pre, post, comb);
}

void FastOps::mix(const float* X, int64_t m, const Config& c, const MixWeights& w, float* pre,
                  float* post, float* comb) {
  const int64_t hc = c.streams, n = hc * c.hidden, outputs = hc * (hc + 2), stride = outputs + 1;
  // Rows in eights, outputs in halves when there are few rows: each dot product is one thread's.
  const int64_t blocks = (m + kMixRows - 1) / kMixRows;
  const int64_t parts = blocks < 2 * pool_->size() ? std::min<int64_t>(2 * pool_->size(), 8) : 1;
  pool_->run(
      count(blocks * parts),
      [&](size_t begin, size_t end, int) {
        for (int64_t item = row(begin); item < row(end); ++item) {
          const int64_t first = item / parts * kMixRows, part = item % parts,
                        rows = std::min(kMixRows, m - first);
          kernels::v41_mix_dots(X + first * n, rows, n, w.fn.data(), outputs * part / parts,
                                outputs * (part + 1) / parts, dots_.data() + first * stride,
                                stride);
          if (part == 0)
            for (int64_t i = first; i < first + rows; ++i)
              dots_[count(i * stride + outputs)] = inverse_norm(X + i * n, n, c);
        }
      },
      1);
  constexpr int64_t kLanes = 8;
  for_rows(count((m + kLanes - 1) / kLanes), 1 << 14, [&](size_t begin, size_t end, int) {
    const int64_t first = row(begin) * kLanes, last = std::min(m, row(end) * kLanes);
    kernels::v41_mix_finish(dots_.data() + first * stride, last - first, stride, hc, w.base.data(),
                            w.scale.data(), c.sinkhorn_rounds, c.hc_eps, pre + first * hc,
                            post + first * hc, comb + first * hc * hc);
  });
}

void FastOps::collapse(const float* X, int64_t m, const Config& c, const float* pre, float* y) {
  const int64_t hc = c.streams, d = c.hidden;
  for_rows(count(m), hc * d, [&](size_t begin, size_t end, int) {
    for (int64_t i = row(begin); i < row(end); ++i)
      kernels::v41_collapse(X + i * hc * d, hc, d, pre + i * hc, y + i * d);
  });
}

void FastOps::expand(const float* y, int64_t m, const Config& c, const float* post,
                     const float* comb, float* X) {
  const int64_t hc = c.streams, d = c.hidden;
  for_rows(count(m), 3 * hc * d, [&](size_t begin, size_t end, int) {
    for (int64_t i = row(begin); i < row(end); ++i)
      kernels::v41_expand(y + i * d, hc, d, post + i * hc, comb + i * hc * hc, X + i * hc * d);
  });
}

void FastOps::pack(Packing packing, const float* x, int64_t m, int d, std::byte* const* rows) {
  for_rows(count(m), 4 * d, [&](size_t begin, size_t end, int) {
    for (size_t i = begin; i < end; ++i) {
      if (rows[i] == nullptr) continue;
      const float* from = x + row(i) * d;
      auto* to = reinterpret_cast<uint8_t*>(rows[i]);
      switch (packing) {
        case Packing::kWindow:
          kernels::v41_pack_q8(from, d, to, to + d);
          break;
        case Packing::kGlobal:
          kernels::v41_pack_q4kv(from, d, to, to + d / 2);
          break;
        case Packing::kIndex:
          kernels::v41_pack_q4idx(from, d, to, to + d / 2);
          break;
      }
    }
  });
}

void FastOps::pool(std::span<const Pair> pairs, int d, float* out) {
  for_rows(pairs.size(), 12 * d, [&](size_t begin, size_t end, int) {
    for (size_t i = begin; i < end; ++i) {
      const Pair& p = pairs[i];
      kernels::v41_pool_pair(p.kv[0], p.kv[1], p.gate[0], p.gate[1], d, out + row(i) * d);
    }
  });
}

void FastOps::engram_rows(const EngramWeights& w, std::span<const int64_t> rows, const Config& c,
                          float* out) {
  const auto dim = count(c.engram_dim);
  const auto* codes = reinterpret_cast<const uint8_t*>(w.table->bytes.data());
  const auto* scales = reinterpret_cast<const uint8_t*>(w.table_scale->bytes.data());
  pool_->run(rows.size(), [&](size_t begin, size_t end, int) {
    constexpr size_t kAhead = 8;  // rows lie anywhere in the table
    for (size_t i = begin; i < end; ++i) {
      if (i + kAhead < end) {
        const auto next = static_cast<size_t>(rows[i + kAhead]);
        for (size_t byte = 0; byte < dim; byte += 64) __builtin_prefetch(codes + next * dim + byte);
        __builtin_prefetch(scales + next * (dim / 32));
      }
      const auto at = static_cast<size_t>(rows[i]);
      kernels::v41_unpack_q8(codes + at * dim, scales + at * (dim / 32), c.engram_dim,
                             out + i * dim);
    }
  });
}

void FastOps::engram(float* X, const float* z, int64_t m, const Config& c, const EngramWeights& w) {
  const int64_t hc = c.streams, d = c.hidden;
  const auto eps = static_cast<float>(c.norm_eps);
  pool_->run(count(m * hc), [&](size_t begin, size_t end, int) {
    for (int64_t item = row(begin); item < row(end); ++item) {
      const int64_t i = item / hc, stream = item % hc;
      const float* keys = z + i * (hc + 1) * d;
      kernels::v41_engram_gate(X + item * d, keys + stream * d, keys + hc * d,
                               w.q_weight.data() + stream * d, w.k_weight.data() + stream * d, d,
                               eps);
    }
  });
}

}  // namespace deepmint::v41
