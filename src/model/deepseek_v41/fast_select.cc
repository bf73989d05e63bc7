// Selection of an index source: which thread scores which keys, and how parts of a list meet
// (kernels/v41_index.h). The choice is a total order (score, then lower index), so it does not
// depend on how keys are cut.
#include <algorithm>
#include <limits>
#include <numeric>

#include "kernels/v41_ops.h"
#include "model/deepseek_v41/fast_internal.h"

namespace deepmint::v41 {
namespace {

constexpr int64_t kChunk = kernels::V41TopK::kChunk;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

int64_t block_count(const SelectRow& r, const Config& c) {
  return (static_cast<int64_t>(r.visible) + c.candidate_block_size - 1) / c.candidate_block_size;
}

// Whether the row reads kept candidate blocks only, and not all keys.
bool is_restricted(const SelectRow& r, const Config& c, Candidates candidates) {
  return candidates == Candidates::kUse && *r.n_blocks < block_count(r, c);
}

// Rows whose choice needs no scores. Candidate blocks always hold at least index_topk rows, so a
// row that sees no more than that takes them all.
bool choose_all(const SelectRow& r, const Config& c, Candidates candidates) {
  if (candidates == Candidates::kMake && block_count(r, c) <= c.candidate_blocks) {
    *r.n_blocks = static_cast<int32_t>(block_count(r, c));
    std::iota(r.blocks, r.blocks + *r.n_blocks, 0);
  }
  if (r.visible > c.index_topk) return false;
  *r.n_rows = r.visible;
  std::iota(r.rows, r.rows + r.visible, 0);
  return true;
}

// The keys that a row scores, in ascending order: all of them, or those of kept blocks.
struct Keys {
  const SelectRow& row;
  int64_t block_size;
  bool restricted;
  int64_t count() const {
    if (!restricted) return row.visible;
    const int64_t last = row.blocks[*row.n_blocks - 1];  // may be cut short
    return (*row.n_blocks - 1) * block_size +
           std::min(block_size, static_cast<int64_t>(row.visible) - last * block_size);
  }
  int32_t index(int64_t i) const {
    return static_cast<int32_t>(
        restricted ? row.blocks[i / block_size] * block_size + i % block_size : i);
  }
};

}  // namespace

FastOps::SelectScratch::SelectScratch(const Config& c, int threads) {
  const auto size = [](int64_t n) { return static_cast<size_t>(n); };
  const int64_t dim = c.index_dim, heads = c.index_heads, k_rows = c.index_topk,
                k_blocks = std::max(c.candidate_blocks, 1), most = std::max(k_rows, k_blocks);
  const auto capacity = [](int64_t k) { return kernels::V41TopK::capacity(k); };
  prune_scratch = AlignedBuffer<int32_t>::uninitialized(size(capacity(most)));
  lists.resize(kRows);
  for (Lists& l : lists) {
    l.row_scores = AlignedBuffer<float>::uninitialized(size(capacity(k_rows)));
    l.row_index = AlignedBuffer<int32_t>::uninitialized(size(capacity(k_rows)));
    l.block_scores = AlignedBuffer<float>::uninitialized(size(capacity(k_blocks)));
    l.block_index = AlignedBuffer<int32_t>::uninitialized(size(capacity(k_blocks)));
  }
  const int64_t merged = threads * most;
  merge_scratch = AlignedBuffer<int32_t>::uninitialized(size(merged));
  merge_scores = AlignedBuffer<float>::uninitialized(size(merged));
  merge_index = AlignedBuffer<int32_t>::uninitialized(size(merged));
  packed = AlignedBuffer<uint8_t>(size(dim / 2 + dim / 32));
  queries = AlignedBuffer<int8_t>::uninitialized(size(kRows * heads * dim));
  blocks.resize(size(kRows * heads * dim / 32));
  tile = AlignedBuffer<uint8_t>::uninitialized(size(kChunk * dim));
  key_scales = AlignedBuffer<float>::uninitialized(size(kChunk * dim / 32));
  scores = AlignedBuffer<float>::uninitialized(size(kChunk));
  key_rows.resize(kChunk);
  key_index.resize(kChunk);
  eights.resize(kChunk / 8);
}

void FastOps::SelectScratch::start(Lists& l, const Config& c) {
  l.rows.reset(c.index_topk, l.row_scores.data(), l.row_index.data(), prune_scratch.data());
  l.blocks.reset(std::max(c.candidate_blocks, 1), l.block_scores.data(), l.block_index.data(),
                 prune_scratch.data());
  l.block = -1;
}

void FastOps::SelectScratch::flush_block(Lists& l) {
  if (l.block >= 0) l.blocks.push(l.block_best, static_cast<int32_t>(l.block));
  l.block = -1;
}

void FastOps::SelectScratch::pass_blocks(Lists& l, const float* s, int64_t n, int64_t base,
                                         int64_t block_size) {
  for (int64_t i = 0; i < n;) {
    const int64_t block = (base + i) / block_size;
    const int64_t end = std::min(n, (block + 1) * block_size - base);
    float best = s[i];
    for (++i; i < end; ++i) best = std::max(best, s[i]);
    if (block == l.block) {
      l.block_best = std::max(l.block_best, best);
    } else {
      flush_block(l);
      l.block = block;
      l.block_best = best;
    }
  }
}

void FastOps::SelectScratch::pack_query(const float* q, int64_t slot, const Config& c) {
  const int64_t dim = c.index_dim, heads = c.index_heads;
  for (int64_t h = slot * heads; h < (slot + 1) * heads; ++h, q += dim) {
    kernels::v41_pack_q4idx(q, dim, packed.data(), packed.data() + dim / 2);
    kernels::v41_index().pack_query(packed.data(), packed.data() + dim / 2, dim,
                                    queries.data() + h * dim, blocks.data() + h * dim / 32);
  }
}

// Loads keys [begin, end) of at most kChunk into the tile; a last group of sixteen is filled up.
void FastOps::SelectScratch::load_keys(const SelectRow& r, const Config& c, bool restricted,
                                       int64_t begin, int64_t end) {
  const Keys keys{r, c.candidate_block_size, restricted};
  const int64_t dim = c.index_dim, n = end - begin, page = r.keys.rows_per_block;
  for (int64_t i = 0; i < n;) {
    // Keys that follow each other in a candidate block and in a page.
    const int64_t index = keys.index(begin + i);
    int64_t run = std::min(n - i, page - index % page);
    if (restricted) run = std::min(run, c.candidate_block_size - index % c.candidate_block_size);
    const std::byte* row = r.keys.row(index);
    for (int64_t k = 0; k < run; ++k, ++i, row += r.keys.row_bytes) {
      key_index[static_cast<size_t>(i)] = static_cast<int32_t>(index + k);
      key_rows[static_cast<size_t>(i)] = reinterpret_cast<const uint8_t*>(row);
    }
  }
  for (int64_t i = n; i % 16 != 0; ++i)
    key_rows[static_cast<size_t>(i)] = key_rows[static_cast<size_t>(n - 1)];
  for (int64_t g = 0; 16 * g < n; ++g)
    kernels::v41_index().unpack_keys(key_rows.data() + 16 * g, dim, tile.data() + g * 16 * dim,
                                     key_scales.data() + g * dim / 2);
}

// Scores of the first n keys of the tile for the query in `slot`. `q` is the scratch that holds the
// queries.
void FastOps::SelectScratch::score_tile(const SelectScratch& q, int64_t slot, const float* w,
                                        const Config& c, int64_t n) {
  const int64_t dim = c.index_dim, heads = c.index_heads;
  kernels::v41_index().scores(
      tile.data(), key_scales.data(), (n + 15) / 16, q.queries.data() + slot * heads * dim,
      q.blocks.data() + slot * heads * dim / 32, w, heads, dim, scores.data());
}

// Whether keys come in eights that stand together, and a kernel reads them so.
bool FastOps::SelectScratch::scans_in_place(const Config& c) {
  return kernels::v41_index().scan128 != nullptr && c.index_dim == 128 && c.index_heads % 8 == 0 &&
         c.candidate_block_size % 8 == 0;
}

// The same scores of keys [begin, end) of at most kChunk without a tile; `begin` is a multiple of
// eight. A last eight is read to its end: blocks of the cache are whole.
void FastOps::SelectScratch::scan_keys(const SelectRow& r, const SelectScratch& q, int64_t slot,
                                       const float* w, const Config& c, bool restricted,
                                       int64_t begin, int64_t end, int64_t total) {
  const int64_t heads = c.index_heads, dim = c.index_dim, block_size = c.candidate_block_size;
  // Calls body(first key of an eight, its row), for the eights of keys [from, to).
  const auto for_eights = [&](int64_t from, int64_t to, auto&& body) {
    if (restricted) {
      int64_t block = from / block_size, within = from % block_size;
      for (int64_t i = from; i < to; i += 8) {
        const auto index = static_cast<int32_t>(r.blocks[block] * block_size + within);
        body(index, r.keys.row(index));
        within += 8;
        if (within < block_size) continue;
        within = 0;
        ++block;
      }
      return;
    }
    for (int64_t i = from; i < to;) {
      const std::byte* row = r.keys.row(i);
      const int64_t page_end = std::min(to, i - i % r.keys.rows_per_block + r.keys.rows_per_block);
      for (; i < page_end; i += 8, row += 8 * r.keys.row_bytes) body(static_cast<int32_t>(i), row);
    }
  };
  size_t n = 0;
  for_eights(begin, end, [&](int32_t index, const std::byte* row) {
    if (restricted)
      for (int32_t k = 0; k < 8; ++k) key_index[8 * n + static_cast<size_t>(k)] = index + k;
    eights[n++] = reinterpret_cast<const uint8_t*>(row);
  });
  for_eights(begin + kChunk, std::min(end + kChunk, total), [&](int32_t, const std::byte* row) {
    for (size_t byte = 0; byte < 8 * r.keys.row_bytes; byte += 64) __builtin_prefetch(row + byte);
  });
  if (n % 2 != 0) eights[n] = eights[n - 1];
  kernels::v41_index().scan128(eights.data(), r.keys.row_bytes, static_cast<int64_t>((n + 1) / 2),
                               q.queries.data() + slot * heads * dim,
                               q.blocks.data() + slot * heads * dim / 32, w, heads, scores.data());
}

// Passes n scores to the lists of their query.
void FastOps::SelectScratch::pass(const Config& c, bool restricted, bool make_blocks, int64_t base,
                                  int64_t n, Lists& l) {
  if (restricted) {
    l.rows.make_room();
    const int64_t from = l.rows.size();
    l.rows.add(scores.data(), n, 0);
    l.rows.remap(from, key_index.data());
  } else {
    l.rows.add(scores.data(), n, static_cast<int32_t>(base));
  }
  if (make_blocks) pass_blocks(l, scores.data(), n, base, c.candidate_block_size);
}

// Up to kRows rows of one sequence; none of them restricted, or a single one.
void FastOps::select_block(const float* q, const float* w, std::span<const SelectRow> rows,
                           const Config& c, Candidates candidates, SelectScratch& s) {
  const int64_t width = static_cast<int64_t>(c.index_heads) * c.index_dim;
  const auto slots = static_cast<int64_t>(rows.size());
  bool open[SelectScratch::kRows], make[SelectScratch::kRows];
  const SelectRow* widest = nullptr;
  for (int64_t i = 0; i < slots; ++i) {
    const SelectRow& r = rows[static_cast<size_t>(i)];
    open[i] = !choose_all(r, c, candidates);
    make[i] = candidates == Candidates::kMake && block_count(r, c) > c.candidate_blocks;
    if (!open[i]) continue;
    s.start(s.lists[static_cast<size_t>(i)], c);
    s.pack_query(q + i * width, i, c);
    if (widest == nullptr || r.visible > widest->visible) widest = &r;
  }
  if (widest == nullptr) return;
  const bool restricted = slots == 1 && is_restricted(*widest, c, candidates);
  const int64_t total = Keys{*widest, c.candidate_block_size, restricted}.count();
  const bool alone = slots == 1 && SelectScratch::scans_in_place(c);
  for (int64_t base = 0; base < total; base += kChunk) {
    const int64_t last = std::min(total, base + kChunk);
    if (!alone) s.load_keys(*widest, c, restricted, base, last);
    for (int64_t i = 0; i < slots; ++i) {
      const int64_t limit = restricted ? total : rows[static_cast<size_t>(i)].visible;
      const int64_t n = std::min(limit - base, kChunk);
      if (!open[i] || n <= 0) continue;
      if (alone)
        s.scan_keys(*widest, s, i, w, c, restricted, base, last, total);
      else
        s.score_tile(s, i, w + i * c.index_heads, c, n);
      s.pass(c, restricted, make[i], base, n, s.lists[static_cast<size_t>(i)]);
    }
  }
  for (int64_t i = 0; i < slots; ++i) {
    if (!open[i]) continue;
    const SelectRow& r = rows[static_cast<size_t>(i)];
    SelectScratch::Lists& l = s.lists[static_cast<size_t>(i)];
    l.rows.finish();
    *r.n_rows = static_cast<int32_t>(l.rows.size());
    std::copy_n(l.rows.index(), l.rows.size(), r.rows);
    if (!make[i]) continue;
    l.block_best = kInfinity;  // the newest block is always kept
    s.flush_block(l);
    l.blocks.finish();
    *r.n_blocks = static_cast<int32_t>(l.blocks.size());
    std::copy_n(l.blocks.index(), l.blocks.size(), r.blocks);
  }
}

// Few rows: the threads share the keys of each. Parts begin at whole chunks and candidate blocks.
void FastOps::select_shared(const float* q, const float* w, std::span<const SelectRow> rows,
                            const Config& c, Candidates candidates) {
  const int64_t width = static_cast<int64_t>(c.index_heads) * c.index_dim;
  SelectScratch& home = *select_[0];
  const bool in_place = SelectScratch::scans_in_place(c);
  for (const SelectRow& r : rows) {
    if (!choose_all(r, c, candidates)) {
      const bool restricted = is_restricted(r, c, candidates),
                 make = candidates == Candidates::kMake && block_count(r, c) > c.candidate_blocks;
      home.pack_query(q, 0, c);
      const int64_t total = Keys{r, c.candidate_block_size, restricted}.count();
      const int64_t unit = std::lcm(kChunk, std::min<int64_t>(c.candidate_block_size, total)),
                    units = (total + unit - 1) / unit, parts = pool_->size();
      pool_->run(static_cast<size_t>(parts), [&](size_t first, size_t last, int) {
        for (size_t part = first; part < last; ++part) {
          SelectScratch& s = *select_[part];
          SelectScratch::Lists& l = s.lists[0];
          const auto p = static_cast<int64_t>(part);
          const int64_t begin = units * p / parts * unit,
                        end = std::min(total, units * (p + 1) / parts * unit);
          s.start(l, c);
          for (int64_t base = begin; base < end; base += kChunk) {
            const int64_t n = std::min(end - base, kChunk);
            if (in_place) {
              s.scan_keys(r, home, 0, w, c, restricted, base, base + n, total);
            } else {
              s.load_keys(r, c, restricted, base, base + n);
              s.score_tile(home, 0, w, c, n);
            }
            s.pass(c, restricted, make, base, n, l);
          }
          if (make && begin < end) {
            if (end == total) l.block_best = kInfinity;
            s.flush_block(l);
          }
          l.rows.finish();
          l.blocks.finish();
        }
      });
      const auto merge = [&](int64_t k, auto list_of, int32_t* out, int32_t* n_out) {
        int64_t n = 0;
        for (int64_t part = 0; part < parts; ++part) {
          const kernels::V41TopK& l = list_of(select_[static_cast<size_t>(part)]->lists[0]);
          std::copy_n(l.scores(), l.size(), home.merge_scores.data() + n);
          std::copy_n(l.index(), l.size(), home.merge_index.data() + n);
          n += l.size();
        }
        kernels::V41TopK::keep_best(home.merge_scores.data(), home.merge_index.data(), n, k,
                                    home.merge_scratch.data());
        *n_out = static_cast<int32_t>(std::min(n, k));
        std::copy_n(home.merge_index.data(), *n_out, out);
      };
      merge(c.index_topk, [](auto& l) -> auto& { return l.rows; }, r.rows, r.n_rows);
      if (make)
        merge(c.candidate_blocks, [](auto& l) -> auto& { return l.blocks; }, r.blocks, r.n_blocks);
    }
    q += width;
    w += c.index_heads;
  }
}

void FastOps::select(float* q, const float* w, std::span<const SelectRow> rows, const Config& c,
                     Candidates candidates) {
  const auto m = static_cast<int64_t>(rows.size());
  const int64_t width = static_cast<int64_t>(c.index_heads) * c.index_dim;
  if (m < 2 * pool_->size() && pool_->size() > 1) {
    select_shared(q, w, rows, c, candidates);
    return;
  }
  const int64_t block = std::clamp<int64_t>(m / (4 * pool_->size()), 1, SelectScratch::kRows);
  pool_->run(
      static_cast<size_t>((m + block - 1) / block),
      [&](size_t begin, size_t end, int worker) {
        SelectScratch& s = *select_[static_cast<size_t>(worker)];
        const auto at = [&](int64_t k) -> const SelectRow& { return rows[static_cast<size_t>(k)]; };
        const int64_t last = std::min(m, static_cast<int64_t>(end) * block);
        for (int64_t i = static_cast<int64_t>(begin) * block; i < last;) {
          int64_t n = 1;
          if (!is_restricted(at(i), c, candidates))
            while (n < SelectScratch::kRows && i + n < last &&
                   at(i + n).keys.blocks == at(i).keys.blocks &&
                   !is_restricted(at(i + n), c, candidates))
              ++n;
          select_block(q + i * width, w + i * c.index_heads,
                       rows.subspan(static_cast<size_t>(i), static_cast<size_t>(n)), c, candidates,
                       s);
          i += n;
        }
      },
      1);
}

FastOps::FastOps(ThreadPool* pool) : pool_(pool) {}
FastOps::~FastOps() = default;

Status FastOps::reserve(const Config& c, size_t max_rows) {
  if (attention_.empty()) {
    for (int t = 0; t < pool_->size(); ++t) {
      attention_.push_back(std::make_unique<AttentionScratch>(c));
      select_.push_back(std::make_unique<SelectScratch>(c, pool_->size()));
    }
  }
  const auto outputs = static_cast<size_t>(c.streams) * static_cast<size_t>(c.streams + 2) + 1;
  dots_ = AlignedBuffer<float>::uninitialized(max_rows * outputs);
  return {};
}

}  // namespace deepmint::v41
