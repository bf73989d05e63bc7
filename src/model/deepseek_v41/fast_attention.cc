// Attention of a step's rows: which thread unpacks and multiplies what (kernels/v41_attention.h).
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/v41_attention.h"
#include "kernels/v41_ops.h"
#include "model/deepseek_v41/fast_internal.h"

namespace deepmint::v41 {
namespace {

// Selected rows lie anywhere in the cache's memory: ask for one some rows before it is unpacked.
constexpr int32_t kAhead = 6;
void fetch(const PagedRows& rows, int32_t row) {
  const std::byte* at = rows.row(row);
  for (size_t byte = 0; byte < rows.row_bytes; byte += 64) __builtin_prefetch(at + byte);
}

// Rows of one sequence that one thread takes in a row: they share most of their window, and often
// most of their global rows.
constexpr int64_t kBlockRows = 16;

float attention_scale(const Config& c) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.head_dim)));
}

}  // namespace

FastOps::AttentionScratch::AttentionScratch(const Config& c)
    : max_window(c.window + kBlockRows), max_global(c.index_topk), stride(c.head_dim + 32) {
  const auto size = [](int64_t n) { return static_cast<size_t>(n); };
  const int64_t dim = c.head_dim, lanes = kernels::v41_lanes(c.heads), n = max_window + max_global;
  window = AlignedBuffer<uint16_t>::uninitialized(size(max_window * stride));
  global = AlignedBuffer<uint16_t>::uninitialized(size(max_global * stride));
  packed = AlignedBuffer<float>::uninitialized(size(lanes * dim));
  for (auto* b : {&scores, &exps, &weights})
    *b = AlignedBuffer<float>::uninitialized(size(n * lanes));
  scratch = AlignedBuffer<float>::uninitialized(size(kernels::kV41RowStep * dim));
  rows.resize(size(n));
  for (auto* b : {&held, &slots, &next_slots, &free_slots}) b->resize(size(max_global));
  memory = {packed.data(), scores.data(), exps.data(), weights.data(), scratch.data()};
}

// Rows of one sequence, ascending positions.
void FastOps::attend_block(float* q, std::span<const AttentionRow> rows, const Config& c,
                           const float* sink, AttentionScratch& s) {
  const int64_t dim = c.head_dim, width = static_cast<int64_t>(c.heads) * dim;
  const float scale = attention_scale(c);
  const int32_t first = rows.front().floor;
  int32_t unpacked = first;  // window positions [first, unpacked) are in s.window
  s.n_held = 0;
  for (const AttentionRow& r : rows) {
    for (; unpacked <= r.position; ++unpacked)
      kernels::v41_unpack_window(r.window.row(unpacked), dim,
                                 s.window.data() + (unpacked - first) * s.stride);
    int64_t n = 0;
    for (int32_t p = r.floor; p <= r.position; ++p)
      s.rows[static_cast<size_t>(n++)] = s.window.data() + (p - first) * s.stride;
    s.hold(r, dim);
    for (int32_t i = 0; i < r.n_selected; ++i)
      s.rows[static_cast<size_t>(n++)] =
          s.global.data() + s.slots[static_cast<size_t>(i)] * s.stride;
    kernels::v41_attend(q, s.rows.data(), n, c.heads, dim, scale, sink, s.memory, q);
    q += width;
  }
}

// Makes s.slots[i] the place of selected row i. Rows that the last query had too stay where they
// are; both lists ascend.
void FastOps::AttentionScratch::hold(const AttentionRow& r, int64_t dim) {
  size_t n_free = 0, old = 0;
  // Places that no held row uses: all beyond the held ones are taken in order below.
  const auto n_new = static_cast<size_t>(r.n_selected);
  for (size_t i = 0; i < n_new; ++i) {
    const int32_t id = r.selected[i];
    while (old < n_held && held[old] < id) free_slots[n_free++] = slots[old++];
    next_slots[i] = old < n_held && held[old] == id ? slots[old++] : -1;
  }
  while (old < n_held) free_slots[n_free++] = slots[old++];
  auto fresh = static_cast<int32_t>(n_held);
  for (size_t i = 0; i < n_new; ++i) {
    held[i] = r.selected[i];
    if (i + kAhead < n_new && next_slots[i + kAhead] < 0) fetch(r.global, r.selected[i + kAhead]);
    if (next_slots[i] >= 0) continue;
    next_slots[i] = n_free > 0 ? free_slots[--n_free] : fresh++;
    kernels::v41_unpack_global(r.global.row(r.selected[i]), dim,
                               global.data() + next_slots[i] * stride);
  }
  // A shorter list leaves places behind; forget them all rather than keep a list of holes.
  n_held = n_free == 0 ? n_new : 0;
  std::swap(slots, next_slots);
}

// One row, shared among the threads.
void FastOps::attend_shared(float* q, const AttentionRow& r, const Config& c, const float* sink) {
  AttentionScratch& s = *attention_[0];
  const int64_t dim = c.head_dim, window = r.position - r.floor + 1, n = window + r.n_selected;
  const float scale = attention_scale(c);
  kernels::v41_pack_queries(q, c.heads, dim, s.memory);
  const auto steps = static_cast<size_t>((n + kernels::kV41RowStep - 1) / kernels::kV41RowStep);
  const auto first_of = [&](size_t step) {
    return std::min(n, static_cast<int64_t>(step) * kernels::kV41RowStep);
  };
  pool_->run(steps, [&](size_t begin, size_t end, int worker) {
    for (int64_t t = first_of(begin); t < first_of(end); ++t) {
      uint16_t* to;
      if (t < window) {
        to = s.window.data() + t * s.stride;
        kernels::v41_unpack_window(r.window.row(r.floor + static_cast<int32_t>(t)), dim, to);
      } else {
        const int64_t i = t - window;
        if (i + kAhead < r.n_selected) fetch(r.global, r.selected[i + kAhead]);
        to = s.global.data() + i * s.stride;
        kernels::v41_unpack_global(r.global.row(r.selected[i]), dim, to);
      }
      s.rows[static_cast<size_t>(t)] = to;
    }
    kernels::v41_scores(s.rows.data(), first_of(begin), first_of(end), c.heads, dim, scale,
                        s.memory, attention_[static_cast<size_t>(worker)]->scratch.data());
  });
  pool_->run(steps, [&](size_t begin, size_t end, int) {
    kernels::v41_weights(n, first_of(begin), first_of(end), c.heads, s.memory);
  });
  pool_->run(static_cast<size_t>(dim / 32), [&](size_t begin, size_t end, int) {
    kernels::v41_values(s.rows.data(), n, c.heads, dim, static_cast<int64_t>(begin) * 32,
                        static_cast<int64_t>(end) * 32, sink, s.memory, q);
  });
}

void FastOps::attend(float* q, std::span<const AttentionRow> rows, const Config& c,
                     const float* sink) {
  const int64_t width = static_cast<int64_t>(c.heads) * c.head_dim;
  const auto m = static_cast<int64_t>(rows.size());
  if (m < 2 * pool_->size() && pool_->size() > 1) {
    for (const AttentionRow& r : rows) {
      attend_shared(q, r, c, sink);
      q += width;
    }
    return;
  }
  // Few rows: smaller blocks, so that every thread has some.
  const int64_t block = std::clamp<int64_t>(m / (4 * pool_->size()), 1, kBlockRows);
  pool_->run(
      static_cast<size_t>((m + block - 1) / block),
      [&](size_t begin, size_t end, int worker) {
        AttentionScratch& s = *attention_[static_cast<size_t>(worker)];
        const int64_t last = std::min(m, static_cast<int64_t>(end) * block);
        for (int64_t i = static_cast<int64_t>(begin) * block; i < last;) {
          int64_t n = 1;
          const auto at = [&](int64_t k) -> const AttentionRow& {
            return rows[static_cast<size_t>(k)];
          };
          // The same sequence: the same ring.
          while (n < kBlockRows && i + n < last && at(i + n).window.ring == at(i).window.ring &&
                 at(i + n).position == at(i + n - 1).position + 1 && at(i + n).floor >= at(i).floor)
            ++n;
          attend_block(q + i * width, rows.subspan(static_cast<size_t>(i), static_cast<size_t>(n)),
                       c, sink, s);
          i += n;
        }
      },
      1);
}

}  // namespace deepmint::v41
