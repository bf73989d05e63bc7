// Attention of a step's rows: which thread unpacks and multiplies what (kernels/v41_attention.h).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "kernels/v41_attention.h"
#include "kernels/v41_ops.h"
#include "model/deepseek_v41/fast_internal.h"

namespace deepmint::v41 {
namespace {

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
  const auto lines = [](int64_t bytes) { return (static_cast<size_t>(bytes) + 63) / 64 * 64; };
  const size_t per_key = lines(n * lanes * 4);
  pages = kernels::WeightMemory(lines(max_window * stride * 2) + lines(max_global * stride * 2) +
                                lines(lanes * dim * 4) + 3 * per_key +
                                lines(kernels::kV41RowStep * dim * 4));
  std::byte* at = pages.data();
  const auto take = [&](auto*& pointer, size_t bytes) {
    pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(at);
    at += bytes;
  };
  take(window, lines(max_window * stride * 2));
  take(global, lines(max_global * stride * 2));
  take(memory.packed, lines(lanes * dim * 4));
  take(memory.scores, per_key);
  take(memory.exps, per_key);
  take(memory.weights, per_key);
  take(scratch, lines(kernels::kV41RowStep * dim * 4));
  memory.scratch = scratch;
  rows.resize(size(n));
  packed.resize(size(n));
  due.resize(size(n));
  for (auto* b : {&held, &slots, &next_slots, &free_slots}) b->resize(size(max_global));
}

void FastOps::AttentionScratch::begin_list(int64_t dim) {
  unpack = {.rows = packed.data(), .dim = dim, .due = due.data()};
}

void FastOps::AttentionScratch::add(int64_t t, const std::byte* row, bool of_window, int64_t begin,
                                    int64_t end, uint16_t* out) {
  if (begin < end) {
    packed[static_cast<size_t>(unpack.count++)] = {reinterpret_cast<const uint8_t*>(row), out,
                                                   static_cast<int32_t>(begin),
                                                   static_cast<int32_t>(end), of_window};
  }
  add(t, out);
}

void FastOps::AttentionScratch::add(int64_t t, const uint16_t* out) {
  rows[static_cast<size_t>(t)] = out;
  due[static_cast<size_t>(t)] = static_cast<int32_t>(unpack.count);
}

// Rows of one sequence, ascending positions.
void FastOps::attend_block(float* q, std::span<const AttentionRow> rows, const Config& c,
                           const float* sink, AttentionScratch& s, kernels::V41Fetch* fetch) {
  const int64_t dim = c.head_dim, width = static_cast<int64_t>(c.heads) * dim;
  const float scale = attention_scale(c);
  const int32_t first = rows.front().floor;
  int32_t unpacked = first;  // window positions [first, unpacked) are in s.window
  s.n_held = 0;
  for (const AttentionRow& r : rows) {
    int64_t n = 0;
    s.begin_list(dim);
    for (int32_t p = r.floor; p <= r.position; ++p) {
      uint16_t* out = s.window + (p - first) * s.stride;
      if (p < unpacked)
        s.add(n++, out);
      else
        s.add(n++, r.window.row(p), true, 0, dim, out);
    }
    unpacked = r.position + 1;
    s.hold(r, n);
    n += r.n_selected;
    kernels::v41_attend(q, s.rows.data(), n, c.heads, dim, scale, sink, s.memory, q, fetch,
                        &s.unpack);
    q += width;
  }
}

// Makes slots[i] the place of selected row i, which is row before + i of the list. Rows that the
// last query had too stay where they are; both lists ascend.
void FastOps::AttentionScratch::hold(const AttentionRow& r, int64_t before) {
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
    const bool there = next_slots[i] >= 0;
    if (!there) next_slots[i] = n_free > 0 ? free_slots[--n_free] : fresh++;
    uint16_t* out = global + next_slots[i] * stride;
    const int64_t t = before + static_cast<int64_t>(i);
    if (there)
      add(t, out);
    else
      add(t, r.global.row(r.selected[i]), false, 0, unpack.dim, out);
  }
  // A shorter list leaves places behind; forget them all rather than keep a list of holes.
  n_held = n_free == 0 ? n_new : 0;
  std::swap(slots, next_slots);
}

// What thread `rank` fetches during attention: its part of each piece, as v41_linear shares them.
kernels::V41Fetch FastOps::fetch_of(int rank, std::span<kernels::V41Fetch::Piece> pieces) const {
  const auto r = static_cast<size_t>(rank), threads = static_cast<size_t>(pool_->size());
  for (size_t i = 0; i < n_soon_; ++i) {
    const auto* begin = reinterpret_cast<const uint8_t*>(soon_[i].data());
    const size_t bytes = soon_[i].size();
    pieces[i] = {begin + bytes * r / threads, begin + bytes * (r + 1) / threads};
  }
  return {.next = pieces.data(), .more = static_cast<int64_t>(n_soon_)};
}

// One row, shared among the threads: ranges of keys for scores, ranges of dimensions for values. A
// thread unpacks for itself what it needs of each key, all dimensions of its own and its dimensions
// of the others: less work than taking unpacked rows out of another core's cache.
void FastOps::attend_shared(float* q, const AttentionRow& r, const Config& c, const float* sink) {
  const int64_t dim = c.head_dim, window = r.position - r.floor + 1, n = window + r.n_selected;
  const float scale = attention_scale(c);
  const int64_t steps = (n + kernels::kV41RowStep - 1) / kernels::kV41RowStep, columns = dim / 32;
  kernels::V41QueryMemory shared = attention_[0]->memory;
  pool_->together([&](Team& team) {
    AttentionScratch& s = *attention_[static_cast<size_t>(team.rank())];
    const int64_t rank = team.rank(), size = team.size();
    const int64_t first = std::min(n, steps * rank / size * kernels::kV41RowStep),
                  last = std::min(n, steps * (rank + 1) / size * kernels::kV41RowStep),
                  left = columns * rank / size * 32, right = columns * (rank + 1) / size * 32;
    kernels::V41Fetch::Piece pieces[kMostSoon];
    kernels::V41Fetch fetch = fetch_of(team.rank(), pieces);
    s.begin_list(dim);
    const auto add = [&](int64_t from, int64_t to, int64_t begin, int64_t end) {
      for (int64_t t = from; t < to; ++t) {
        if (t < window) {
          s.add(t, r.window.row(r.floor + static_cast<int32_t>(t)), true, begin, end,
                s.window + t * s.stride);
        } else {
          const int64_t i = t - window;
          s.add(t, r.global.row(r.selected[i]), false, begin, end, s.global + i * s.stride);
        }
      }
    };
    kernels::V41QueryMemory memory = shared;
    memory.packed = s.memory.packed;
    kernels::v41_pack_queries(q, c.heads, dim, memory);
    add(first, last, 0, dim);
    add(0, first, left, right);
    add(last, n, left, right);
    s.unpack.due += first;
    kernels::v41_scores(s.rows.data(), first, last, c.heads, dim, scale, memory, s.scratch, &fetch,
                        &s.unpack);
    team.meet();
    kernels::v41_weights(n, first, last, c.heads, memory);
    team.meet();
    if (left < right)
      kernels::v41_values(s.rows.data(), n, c.heads, dim, left, right, sink, memory, q, &fetch);
  });
}

void FastOps::attend(float* q, std::span<const AttentionRow> rows, const Config& c,
                     const float* sink) {
  // Few rows: as many as there are threads at the same time, and what is left one after the other,
  // shared.
  const auto threads = static_cast<size_t>(pool_->size());
  const size_t together =
      threads == 1 || rows.size() >= 2 * threads ? rows.size() : rows.size() / threads * threads;
  if (together != 0) attend_blocks(q, rows.first(together), c, sink);
  q += static_cast<int64_t>(together) * c.heads * c.head_dim;
  for (const AttentionRow& r : rows.subspan(together)) {
    attend_shared(q, r, c, sink);
    q += static_cast<int64_t>(c.heads) * c.head_dim;
    n_soon_ = 0;  // fetched
  }
}

void FastOps::attend_blocks(float* q, std::span<const AttentionRow> rows, const Config& c,
                            const float* sink) {
  const int64_t width = static_cast<int64_t>(c.heads) * c.head_dim;
  const auto m = static_cast<int64_t>(rows.size());
  // Few rows: smaller blocks, so that every thread has some.
  const int64_t block = std::clamp<int64_t>(m / (4 * pool_->size()), 1, kBlockRows);
  pool_->run(
      static_cast<size_t>((m + block - 1) / block),
      [&](size_t begin, size_t end, int worker) {
        AttentionScratch& s = *attention_[static_cast<size_t>(worker)];
        kernels::V41Fetch::Piece pieces[kMostSoon];
        kernels::V41Fetch fetch;
        // Threads with several blocks fetch with their first.
        if (n_soon_ != 0 && !s.fetched) fetch = fetch_of(worker, pieces);
        s.fetched = n_soon_ != 0;
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
                       c, sink, s, fetch.more != 0 ? &fetch : nullptr);
          i += n;
        }
      },
      1);
  n_soon_ = 0;
  for (const auto& s : attention_) s->fetched = false;
}

}  // namespace deepmint::v41
