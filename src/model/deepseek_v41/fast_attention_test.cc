// Attention and selection of FastOps on every instruction set: against the reference within what
// the roundings allow, each row as if it were alone, and one class of instruction sets, one answer.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <random>

#include "core/cpu_isa.h"
#include "kernels/v41_attention.h"
#include "model/deepseek_v41/fast_ops_testing.h"
#include "model/deepseek_v41/ref_ops.h"

namespace deepmint::v41 {
namespace {

using testing::config;
using testing::Ops;
using testing::Random;
using testing::rounded;
using testing::same_bits;

class FastAttentionTest : public testing::FastOpsTest {};
INSTANTIATE_TEST_SUITE_P(Isas, FastAttentionTest, ::testing::ValuesIn(available_isas()),
                         deepmint::testing::isa_name);

// A sequence's packed rows: a ring, rows of the step, and blocks in a shuffled order.
struct Store {
  Config c;
  std::vector<std::byte> ring, step, pages;
  std::vector<BlockId> blocks;
  size_t window_bytes, global_bytes;
  int32_t ring_rows, step_first;

  Store(const Config& config, int length, int first_of_step, int global_rows, bool index,
        Random& random)
      : c(config), step_first(first_of_step) {
    const auto d = static_cast<size_t>(c.head_dim), i = static_cast<size_t>(c.index_dim);
    window_bytes = d + d / 32;
    global_bytes = index ? i / 2 + i / 32 : d / 2 + d / 16;
    ring_rows = c.window + 8;
    ring.assign(static_cast<size_t>(ring_rows) * window_bytes, std::byte{0xFF});  // NaN
    step.assign(static_cast<size_t>(length - step_first) * window_bytes, std::byte{0xFF});
    auto reference = make_reference_arithmetic();
    // Of two rows the second nearly takes the first away in odd columns, and equals it in the
    // others.
    std::vector<float> x;
    const auto next = [&](int row, size_t n) {
      if (index || row % 2 == 0 || x.empty()) {
        x = random.bf16(n);
      } else {
        for (size_t k = 1; k < n; k += 2) x[k] = round_bf16(-1.1f * x[k]);
      }
    };
    for (int p = std::max(0, step_first - c.window); p < length; ++p) {
      next(p, d);
      std::byte* to = const_cast<std::byte*>(window().row(p));
      reference->pack(Packing::kWindow, x.data(), 1, c.head_dim, &to);
    }
    for (int b = 0; b * 64 < global_rows; ++b)
      blocks.push_back(static_cast<BlockId>(static_cast<uint32_t>(b)));
    std::shuffle(blocks.begin(), blocks.end(), random.rng);
    pages.assign(blocks.size() * 64 * global_bytes, std::byte{0xFF});
    for (int r = 0; r < global_rows; ++r) {
      next(r, index ? i : d);
      std::byte* to = const_cast<std::byte*>(paged().row(r));
      reference->pack(index ? Packing::kIndex : Packing::kGlobal, x.data(), 1,
                      index ? c.index_dim : c.head_dim, &to);
    }
  }
  WindowKeys window() const {
    return {ring.data(), step.data(), ring_rows, step_first, window_bytes};
  }
  PagedRows paged() const {
    return {pages.data(), blocks.data(), 64 * global_bytes, global_bytes, 64};
  }
  // The rows that a query reads, one behind the other.
  std::vector<float> values(const AttentionRow& r) const {
    const auto d = static_cast<size_t>(c.head_dim);
    std::vector<float> v;
    const auto next = [&](const std::byte* row, auto&& dequantize, size_t code_bytes) {
      const auto* codes = reinterpret_cast<const uint8_t*>(row);
      v.resize(v.size() + d);
      dequantize(codes, codes + code_bytes, c.head_dim, v.data() + v.size() - d);
    };
    for (int32_t p = r.floor; p <= r.position; ++p) next(r.window.row(p), dequantize_q8, d);
    for (int32_t i = 0; i < r.n_selected; ++i)
      next(r.global.row(r.selected[i]), dequantize_q4kv, d / 2);
    return v;
  }
};

TEST_P(FastAttentionTest, AttentionOverEveryListLength) {
  int determined = 0, checked = 0;
  for (const auto& [heads, dim] : {std::pair{8, 64}, {16, 512}, {64, 64}, {3, 96}, {33, 32}}) {
    Config c = config(128, heads, dim);
    Random random(6);
    c.index_topk = 512;
    const int length = dim > 96 ? 134 : 200, first = dim > 96 ? 110 : 90;
    const Store store(c, length, first, 700, false, random);
    const size_t width = static_cast<size_t>(heads * dim);
    auto sink = random.f32(static_cast<size_t>(heads), 2);
    sink[0] = -60, sink[1] = 30;
    std::vector<std::vector<int32_t>> lists;
    std::vector<AttentionRow> rows;
    // Windows of 1 .. 128 rows and 0 .. 512 global ones, every remainder of both.
    for (int p = first; p < length; ++p) {
      const int n = p < first + 2 ? 0 : p == first + 2 ? 512 : static_cast<int>(random.rng() % 513);
      std::vector<int32_t> all(700);
      std::iota(all.begin(), all.end(), 0);
      if (p % 3 != 0) std::shuffle(all.begin(), all.end(), random.rng);
      all.resize(static_cast<size_t>(n));
      std::sort(all.begin(), all.end());
      lists.push_back(all);
    }
    for (int p = first; p < length; ++p) {
      const auto& list = lists[static_cast<size_t>(p - first)];
      const int floor = p == first ? p : std::max({0, p - c.window + 1, p < 120 ? 88 : 0});
      rows.push_back({store.window(), floor, p, store.paged(), list.data(),
                      static_cast<int32_t>(list.size())});
    }
    auto q = random.bf16(rows.size() * width, 1.5f);
    // Every other query asks only for what the rows of a pair have in common.
    for (size_t i = 0; i < rows.size(); i += 2)
      for (size_t k = i * width + 1; k < (i + 1) * width; k += 2) q[k] = 0;
    auto want = q;
    reference_->attend(want.data(), rows, c, sink.data());
    auto got = q;
    ops(c)->attend(got.data(), rows, c, sink.data());
    const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(dim)));
    for (size_t i = 0; i < rows.size(); ++i) {
      const std::vector<float> values = store.values(rows[i]);
      std::vector<const float*> keys;
      for (size_t at = 0; at < values.size(); at += static_cast<size_t>(dim))
        keys.push_back(values.data() + at);
      // Three heads of each row: the first ones, the last one, and another.
      for (const size_t head : {i % 3, static_cast<size_t>(heads) - 1, i % sink.size()}) {
        const size_t at = i * width + head * static_cast<size_t>(dim);
        const auto allowed = attend_twin(q.data() + at, keys, dim, sink[head], scale,
                                         GetParam() == Isa::kAvx512Bf16);
        for (size_t k = 0; k < allowed.size(); ++k) {
          ASSERT_TRUE(rounded(allowed[k], got[at + k], want[at + k]))
              << heads << " heads of " << dim << ", row " << i << ", head " << head << ", " << k;
          determined += allowed[k].certain() ? 1 : 0;
          ++checked;
        }
      }
    }

    // Row by row on three threads, in blocks on two, and in reverse order: the same bits.
    auto shared = ops(c, 3);
    auto pair = ops(c, 2);
    // What is fetched meanwhile is never looked at.
    std::vector<std::byte> bytes(100001);
    TensorView tensor[3];
    Matrix matrix[3];
    const Matrix* soon[3];
    for (size_t i = 0; i < 3; ++i) {
      tensor[i].bytes = std::span(bytes).subspan(i * 30001, 30001 + i % 2);
      matrix[i].weight = &tensor[i];
      soon[i] = &matrix[i];
    }
    for (size_t i = 0; i < rows.size(); i += 7) {
      auto one = std::vector<float>(q.begin() + static_cast<std::ptrdiff_t>(i * width),
                                    q.begin() + static_cast<std::ptrdiff_t>((i + 1) * width));
      if (i % 2 == 0) shared->soon(soon);
      shared->attend(one.data(), {&rows[i], 1}, c, sink.data());
      ASSERT_TRUE(same_bits(one, std::span(got).subspan(i * width, width))) << i;
    }
    auto again = q;
    pair->soon(soon);
    pair->attend(again.data(), rows, c, sink.data());
    EXPECT_TRUE(same_bits(again, got));
    std::vector<AttentionRow> reversed(rows.rbegin(), rows.rend());
    std::vector<float> rq(q.size());
    for (size_t i = 0; i < rows.size(); ++i)
      std::copy_n(q.data() + i * width, width, rq.data() + (rows.size() - 1 - i) * width);
    pair->attend(rq.data(), reversed, c, sink.data());
    for (size_t i = 0; i < rows.size(); ++i)
      ASSERT_TRUE(same_bits(std::span(rq).subspan((rows.size() - 1 - i) * width, width),
                            std::span(got).subspan(i * width, width)));
  }
  EXPECT_GT(determined, checked / 5 * 4)
      << "of " << checked;  // in one way only, whatever the order
}

TEST_P(FastAttentionTest, AttentionWithoutRowsGivesZerosAndASinkMayDominate) {
  Config c = config();
  Random random(8);
  const Store store(c, 4, 0, 64, false, random);
  const std::vector<float> low(8, -1e30f), high(8, 90.0f);
  AttentionRow row{store.window(), 4, 3, store.paged(), nullptr, 0};
  for (const int threads : {1, 3}) {
    auto fast = ops(c, threads);
    auto q = random.bf16(512);
    fast->attend(q.data(), {&row, 1}, c, low.data());
    EXPECT_EQ(q, std::vector<float>(512, 0.0f));
    row.floor = 3;  // one row: the output is that row when the sink is far below
    q = random.bf16(512);
    fast->attend(q.data(), {&row, 1}, c, low.data());
    std::vector<float> value(64);
    const auto* codes = reinterpret_cast<const uint8_t*>(store.window().row(3));
    dequantize_q8(codes, codes + 64, 64, value.data());
    for (size_t i = 0; i < q.size(); ++i) ASSERT_EQ(q[i], value[i % 64]);
    fast->attend(q.data(), {&row, 1}, c, high.data());
    for (const float v : q) ASSERT_LT(std::fabs(v), 1e-20f);
    row.floor = 4;
  }
}

struct Selection {
  std::vector<int32_t> rows, blocks;
  bool operator==(const Selection&) const = default;
};

Selection select_one(Arithmetic& a, const Config& c, const SelectRow& base,
                     const std::vector<float>& q, const std::vector<float>& w,
                     Candidates candidates, const std::vector<int32_t>& kept = {}) {
  Selection s;
  s.rows.assign(static_cast<size_t>(c.index_topk), -1);
  s.blocks.assign(static_cast<size_t>(c.candidate_blocks), -1);
  std::copy(kept.begin(), kept.end(), s.blocks.begin());
  auto n_rows = int32_t{-1}, n_blocks = static_cast<int32_t>(kept.size());
  SelectRow row = base;
  row.rows = s.rows.data();
  row.n_rows = &n_rows;
  row.blocks = s.blocks.data();
  row.n_blocks = &n_blocks;
  auto copy = q;
  a.select(copy.data(), w.data(), {&row, 1}, c, candidates);
  s.rows.resize(static_cast<size_t>(n_rows));
  s.blocks.resize(static_cast<size_t>(n_blocks));
  return s;
}

TEST_P(FastAttentionTest, SelectionEqualsTheReference) {
  for (const int block_size : {8, 5, 100}) {
    Config c = config();
    c.candidate_block_size = block_size;
    c.candidate_blocks = 200 / block_size + 12;
    Random random(9);
    const int keys = 1000;
    const Store store(c, 1, 0, keys, true, random);
    auto one = ops(c, 1);
    auto three = ops(c, 3);
    const size_t width = static_cast<size_t>(c.index_heads * c.index_dim);
    for (const int visible : {0, 1, 15, 63, 64, 65, 128, 129, 300, 301, 1000}) {
      const auto q = random.bf16(width), w = random.f32(static_cast<size_t>(c.index_heads));
      SelectRow row;
      row.keys = store.paged();
      row.visible = visible;
      for (const Candidates use : {Candidates::kNone, Candidates::kMake}) {
        const Selection want = select_one(*reference_, c, row, q, w, use);
        EXPECT_EQ(select_one(*one, c, row, q, w, use), want) << visible;
        EXPECT_EQ(select_one(*three, c, row, q, w, use), want) << visible;
        if (use != Candidates::kMake) continue;
        const Selection in = select_one(*reference_, c, row, q, w, Candidates::kUse, want.blocks);
        EXPECT_EQ(select_one(*one, c, row, q, w, Candidates::kUse, want.blocks), in) << visible;
        EXPECT_EQ(select_one(*three, c, row, q, w, Candidates::kUse, want.blocks), in) << visible;
      }
      // Ties: with weights of zero every score is zero and the lowest indices win.
      const std::vector<float> zero(w.size(), 0.0f);
      const Selection tied = select_one(*one, c, row, q, zero, Candidates::kNone);
      for (size_t i = 0; i < tied.rows.size(); ++i) ASSERT_EQ(tied.rows[i], static_cast<int>(i));
      EXPECT_EQ(select_one(*three, c, row, q, zero, Candidates::kNone), tied);
    }
  }
}

TEST_P(FastAttentionTest, SelectionOfManyRowsEqualsEachAlone) {
  Config c = config();
  Random random(10);
  const Store a(c, 1, 0, 900, true, random), b(c, 1, 0, 700, true, random);
  const size_t width = static_cast<size_t>(c.index_heads * c.index_dim),
               heads = static_cast<size_t>(c.index_heads), m = 57;
  const auto q = random.bf16(m * width), w = random.f32(m * heads);
  for (const Candidates use : {Candidates::kNone, Candidates::kMake, Candidates::kUse}) {
    std::vector<SelectRow> rows(m);
    std::vector<int32_t> chosen(m * 64), blocks(m * 40), n_rows(m), n_blocks(m, 40);
    for (size_t i = 0; i < m; ++i) {
      rows[i].keys = i < 40 ? a.paged() : b.paged();
      rows[i].visible = i < 40 ? 800 + static_cast<int>(i) : 10 * static_cast<int>(i);
      if (use == Candidates::kUse) {
        const int all = (rows[i].visible + 7) / 8;
        n_blocks[i] = std::min(all, 40);
        for (int k = 0; k < n_blocks[i]; ++k)
          blocks[i * 40 + static_cast<size_t>(k)] = all - n_blocks[i] + k;
      }
      rows[i].rows = chosen.data() + i * 64;
      rows[i].n_rows = &n_rows[i];
      rows[i].blocks = blocks.data() + i * 40;
      rows[i].n_blocks = &n_blocks[i];
    }
    const auto kept = blocks;
    const auto n_kept = n_blocks;
    for (const int threads : {1, 2}) {
      auto copy = q;
      ops(c, threads)->select(copy.data(), w.data(), rows, c, use);
      auto single = ops(c, 3);
      for (size_t i = 0; i < m; ++i) {
        const Selection alone =
            select_one(*single, c, rows[i],
                       {q.begin() + static_cast<std::ptrdiff_t>(i * width),
                        q.begin() + static_cast<std::ptrdiff_t>((i + 1) * width)},
                       {w.begin() + static_cast<std::ptrdiff_t>(i * heads),
                        w.begin() + static_cast<std::ptrdiff_t>((i + 1) * heads)},
                       use,
                       use == Candidates::kUse
                           ? std::vector<int32_t>(
                                 kept.begin() + static_cast<std::ptrdiff_t>(i * 40),
                                 kept.begin() + static_cast<std::ptrdiff_t>(i * 40) + n_kept[i])
                           : std::vector<int32_t>{});
        const std::span<const int32_t> got(chosen.data() + i * 64, static_cast<size_t>(n_rows[i]));
        ASSERT_TRUE(std::ranges::equal(alone.rows, got)) << i << ", " << threads << " threads";
        if (use == Candidates::kMake) {
          const std::span<const int32_t> made(blocks.data() + i * 40,
                                              static_cast<size_t>(n_blocks[i]));
          ASSERT_TRUE(std::ranges::equal(alone.blocks, made)) << i;
        }
      }
    }
  }
}

// One class, one answer: attention, norms and hyper-connections of all instruction sets that share
// a class hash alike.
TEST(FastOpsIsa, OneClassOneAnswer) {
  const Isa before = active_isa();
  std::map<std::string, std::vector<float>> answers;
  for (const Isa isa : available_isas()) {
    set_active_isa(isa);
    const Config c = config(256, 16, 128);
    Random random(11);
    ThreadPool pool(2);
    Ops fast(&pool);
    ASSERT_TRUE(fast.reserve(c, 64));
    std::vector<float> all;
    const size_t m = 20, hidden = 256;
    const auto x = random.bf16(m * 4 * hidden);
    const auto w = random.bf16(4 * hidden);
    const std::vector<float> fn = random.f32(24 * 4 * hidden, 0.03f);
    const MixWeights mix{fn, random.f32(24), {1, 1, 1}, {}};
    std::vector<float> y(x.size()), pre(m * 4), post(m * 4), comb(m * 16);
    fast.rms_norm(x.data(), static_cast<int64_t>(m), 1024, w.data(), 1e-20, y.data());
    all.insert(all.end(), y.begin(), y.end());
    fast.mix(x.data(), m, c, mix, pre.data(), post.data(), comb.data());
    for (const auto* v : {&pre, &post, &comb}) all.insert(all.end(), v->begin(), v->end());
    auto X = x;
    fast.expand(y.data(), m, c, post.data(), comb.data(), X.data());
    all.insert(all.end(), X.begin(), X.end());
    const Store store(c, 150, 100, 300, false, random);
    std::vector<int32_t> list(64);
    std::iota(list.begin(), list.end(), 77);
    std::vector<AttentionRow> rows;
    for (int p = 130; p < 150; ++p)
      rows.push_back({store.window(), p - 100, p, store.paged(), list.data(), p % 64});
    auto q = random.bf16(m * 16 * 128);
    fast.attend(q.data(), rows, c, w.data());
    all.insert(all.end(), q.begin(), q.end());
    const auto [at, fresh] = answers.emplace(isa_class(isa), all);
    EXPECT_TRUE(same_bits(at->second, all)) << to_string(isa);
    (void)fresh;
  }
  set_active_isa(before);
}

}  // namespace
}  // namespace deepmint::v41
