// Speed of the V4.1 operations that read no weight matrix, against the machine's roofs measured in
// the same run.
//
//   v41_ops [--threads N] [--shape bench|official] [--only ops|context] [--seconds S]
//
// `ops`: one line per operation, for one row and for 512, with the bytes that it must read and
// write. `context`: what attention and the indexer of a whole decode step cost against the context
// length, and how near the index scan is to its roof (bytes of keys or integer multiply-adds,
// whichever binds). Random values; everything warm.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "core/aligned.h"
#include "core/cpu_isa.h"
#include "core/thread_pool.h"
#include "kernels/roofs.h"
#include "model/deepseek_v41/fast_ops.h"
#include "model/deepseek_v41/formats.h"
#include "model/deepseek_v41/ref_ops.h"
#include "model/deepseek_v41/synth.h"
#include "timing.h"

namespace deepmint::v41 {
namespace {

class Ops : public FastOps {
 public:
  using FastOps::FastOps;
  void linear(const Matrix&, const float*, int64_t, float*, Output) override {}
  void linear_groups(std::span<const Matrix>, const float*, int64_t, float*) override {}
  void moe(const float*, int64_t, const Config&, int, const LayerWeights&, float*) override {}
};

double g_seconds = 0.3;

template <class Call>
double time_of(Call&& call) {
  return bench::time_of(g_seconds, call);
}

std::mt19937 g_rng(1);
AlignedBuffer<float> random_bf16(size_t n, float spread = 1) {
  auto v = AlignedBuffer<float>::uninitialized(n);
  std::normal_distribution<float> normal;
  std::vector<float> pool(4099);
  for (float& x : pool) x = round_bf16(normal(g_rng) * spread);
  for (size_t i = 0; i < n; ++i) v[i] = pool[(i + i / 4099) % 4099];
  return v;
}

struct Bench {
  Config c;
  ThreadPool& pool;
  const kernels::Roofs& roofs;
  Ops ops;
  Bench(Config config, ThreadPool& p, const kernels::Roofs& r)
      : c(std::move(config)), pool(p), roofs(r), ops(&p) {
    (void)ops.reserve(c, 512);
  }

  void line(std::string_view name, int64_t m, double seconds, double bytes, double flops = 0) {
    fmt::print("{:<28} {:>5} rows {:>10.2f} us {:>9.3f} us/row {:>7.1f} GB/s", name, m,
               seconds * 1e6, seconds * 1e6 / static_cast<double>(m), bytes / seconds / 1e9);
    if (flops > 0) fmt::print(" {:>7.1f} Gop/s", flops / seconds / 1e9);
    fmt::print("\n");
  }

  void run_ops() {
    const auto size = [](auto n) { return static_cast<size_t>(n); };
    const size_t hidden = size(c.hidden), hc = size(c.streams), d = size(c.head_dim),
                 heads = size(c.heads);
    const auto inv = ref::inverse_frequencies(c.rope_dim, 160000, 16, 65536, 32, 1);
    const auto w = random_bf16(hidden);
    MixWeights mix;
    std::vector<float> fn((2 * hc + hc * hc) * hc * hidden);
    for (float& x : fn) x = static_cast<float>(g_rng() % 1000) * 1e-5f - 5e-3f;
    mix.fn = fn;
    mix.base.resize(24);
    mix.scale = {1, 1, 1};
    for (const int64_t m : {int64_t{1}, int64_t{512}}) {
      const size_t M = size(m);
      const double dm = static_cast<double>(m), row = static_cast<double>(hidden) * 4 * dm;
      auto X = random_bf16(M * hc * hidden), u = random_bf16(M * hidden);
      AlignedBuffer<float> y(M * hidden), pre(M * hc), post(M * hc), comb(M * hc * hc);
      line("rms_norm hidden", m,
           time_of([&] { ops.rms_norm(u.data(), m, c.hidden, w.data(), 1e-20, y.data()); }),
           2 * row);
      line("mix", m,
           time_of([&] { ops.mix(X.data(), m, c, mix, pre.data(), post.data(), comb.data()); }),
           4 * row + static_cast<double>(mix.fn.size()) * 4,
           2.0 * dm * static_cast<double>(mix.fn.size()));
      line("collapse", m, time_of([&] { ops.collapse(X.data(), m, c, pre.data(), y.data()); }),
           5 * row);
      for (float& v : comb.span()) v = 0.25f;
      line("expand", m,
           time_of([&] { ops.expand(u.data(), m, c, post.data(), comb.data(), X.data()); }),
           9 * row);
      auto q = random_bf16(M * heads * d);
      std::vector<int32_t> positions(M);
      std::iota(positions.begin(), positions.end(), 1000000 - 512);
      AlignedBuffer<float> table(M * size(c.rope_dim));
      line("rope table", m,
           time_of([&] { ops.rope_table(positions.data(), m, inv, table.data()); }),
           static_cast<double>(table.size()) * 4);
      line("rope, all heads", m, time_of([&] {
             ops.rope(q.data(), m, c.heads, c.head_dim, c.rope_dim, table.data(), 1);
           }),
           dm * static_cast<double>(heads) * c.rope_dim * 8);
      std::vector<std::byte> packed(M * 1024);
      std::vector<std::byte*> rows(M);
      for (size_t i = 0; i < M; ++i) rows[i] = packed.data() + 1024 * i;
      for (const auto& [packing, name] : {std::pair{Packing::kWindow, "pack window row (q8)"},
                                          {Packing::kGlobal, "pack global row (q4kv)"}})
        line(name, m, time_of([&] { ops.pack(packing, q.data(), m, c.head_dim, rows.data()); }),
             dm * static_cast<double>(d) * 4);
      std::vector<Arithmetic::Pair> pairs(M);
      for (size_t i = 0; i < M; ++i)
        pairs[i] = {{q.data() + i * 4 * d, q.data() + i * 4 * d + d},
                    {q.data() + i * 4 * d + 2 * d, q.data() + i * 4 * d + 3 * d}};
      line("pool pair", m, time_of([&] { ops.pool(pairs, c.head_dim, y.data()); }),
           dm * static_cast<double>(d) * 20);
      if (c.engram_layers.empty()) continue;
      const size_t columns = size(c.engram_ngram - 1) * size(c.engram_heads),
                   dim = size(c.engram_dim), table_rows = 100000;
      std::vector<std::byte> codes(table_rows * dim, std::byte{0x35}),
          scales(table_rows * dim / 32, std::byte{120});
      TensorView t, ts;
      t.bytes = codes;
      ts.bytes = scales;
      EngramWeights e;
      e.table = &t;
      e.table_scale = &ts;
      e.q_weight.assign(hc * hidden, 1.0f);
      e.k_weight.assign(hc * hidden, 1.0f);
      std::vector<int64_t> ids(M * columns);
      for (int64_t& id : ids) id = static_cast<int64_t>(g_rng() % table_rows);
      AlignedBuffer<float> values(M * columns * dim);
      const auto z = random_bf16(M * (hc + 1) * hidden);
      line("engram gather", m, time_of([&] { ops.engram_rows(e, ids, c, values.data()); }),
           static_cast<double>(values.size()) * 5);
      line("engram gate", m, time_of([&] { ops.engram(X.data(), z.data(), m, c, e); }), 13 * row);
    }
  }

  // Packed rows with plausible codes; content does not matter for speed.
  struct Pages {
    std::vector<std::byte> bytes;
    std::vector<BlockId> blocks;
    PagedRows rows;
    Pages(int64_t n, size_t row_bytes, size_t code_bytes, std::byte scale) {
      const auto count = static_cast<size_t>((n + 63) / 64);
      bytes.resize(count * 64 * row_bytes);
      for (size_t i = 0; i < bytes.size(); ++i)
        bytes[i] = i % row_bytes < code_bytes ? static_cast<std::byte>(g_rng() & 0x77) : scale;
      for (size_t b = 0; b < count; ++b) blocks.push_back(static_cast<BlockId>(b));
      rows = {bytes.data(), blocks.data(), 64 * row_bytes, row_bytes, 64};
    }
  };

  double attend_time(int64_t m, int window, int selected) {
    const auto d = static_cast<size_t>(c.head_dim);
    const Pages global(65536, d / 2 + d / 16, d / 2, std::byte{0x38}),
        ring(window + m, d + d / 32, d, std::byte{120});
    std::vector<int32_t> list(static_cast<size_t>(selected) * static_cast<size_t>(m));
    for (int64_t i = 0; i < m; ++i) {
      const auto begin = list.begin() + i * selected;
      for (int k = 0; k < selected; ++k)
        begin[k] = static_cast<int32_t>(
            static_cast<uint64_t>(k) * 65536 / static_cast<uint64_t>(selected) + g_rng() % 100);
      std::sort(begin, begin + selected);
    }
    std::vector<AttentionRow> rows;
    for (int64_t i = 0; i < m; ++i) {
      AttentionRow r;
      r.window = {ring.bytes.data(), ring.bytes.data(), 1 << 20, 1 << 30, ring.rows.row_bytes};
      r.floor = static_cast<int32_t>(i);
      r.position = r.floor + window - 1;
      r.global = global.rows;
      r.selected = list.data() + i * selected;
      r.n_selected = selected;
      rows.push_back(r);
    }
    const size_t width = static_cast<size_t>(c.heads) * d;
    auto q = random_bf16(static_cast<size_t>(m) * width), work = random_bf16(q.size());
    const std::vector<float> sink(static_cast<size_t>(c.heads), 0.0f);
    return time_of([&] {
      std::copy(q.span().begin(), q.span().end(), work.data());
      ops.attend(work.data(), rows, c, sink.data());
    });
  }

  double select_time(int64_t m, int64_t visible, Candidates candidates) {
    const auto dim = static_cast<size_t>(c.index_dim);
    const Pages keys(visible, dim / 2 + dim / 32, dim / 2, std::byte{126});
    std::vector<int32_t> chosen(static_cast<size_t>(m) * static_cast<size_t>(c.index_topk)),
        blocks(static_cast<size_t>(m) * static_cast<size_t>(c.candidate_blocks)),
        n_rows(static_cast<size_t>(m)), n_blocks(static_cast<size_t>(m));
    std::vector<SelectRow> rows;
    const int64_t all = (visible + c.candidate_block_size - 1) / c.candidate_block_size,
                  kept = std::min<int64_t>(all, c.candidate_blocks);
    for (int64_t i = 0; i < m; ++i) {
      SelectRow r;
      r.keys = keys.rows;
      r.visible = static_cast<int32_t>(visible);
      r.rows = chosen.data() + i * c.index_topk;
      r.n_rows = &n_rows[static_cast<size_t>(i)];
      r.blocks = blocks.data() + i * c.candidate_blocks;
      r.n_blocks = &n_blocks[static_cast<size_t>(i)];
      *r.n_blocks = static_cast<int32_t>(kept);
      for (int64_t k = 0; k < kept; ++k)
        r.blocks[k] = static_cast<int32_t>((k + 1) * all / kept - 1);
      rows.push_back(r);
    }
    const size_t width = static_cast<size_t>(c.index_heads) * dim;
    auto q = random_bf16(static_cast<size_t>(m) * width);
    const auto w = random_bf16(static_cast<size_t>(m) * static_cast<size_t>(c.index_heads));
    return time_of([&] { ops.select(q.data(), w.data(), rows, c, candidates); });
  }

  void run_context() {
    const double flops = 4.0 * c.heads * c.head_dim;
    for (const int64_t m : {int64_t{1}, int64_t{64}, int64_t{512}})
      for (const auto& [window, selected] : {std::pair{128, 0}, {128, 512}}) {
        const double t = attend_time(m, window, selected);
        const double gflops = flops * (window + selected) * static_cast<double>(m) / t / 1e9;
        fmt::print(
            "attend {:>4} rows, {:>3} + {:>3} keys {:>10.1f} us {:>8.1f} us/row {:>7.1f} GFLOP/s "
            "{:>3.0f} % of bf16 roof, {:>3.0f} % of f32 roof\n",
            m, window, selected, t * 1e6, t * 1e6 / static_cast<double>(m), gflops,
            100 * gflops / roofs.bf16_gflop_per_s, 100 * gflops / roofs.f32_gflop_per_s);
      }
    const auto scan = [&](int64_t m, int64_t keys, double t) {
      const double gb = static_cast<double>(keys) * (c.index_dim / 2 + c.index_dim / 32) / t / 1e9;
      const double gop =
          2.0 * static_cast<double>(m * keys) * c.index_heads * c.index_dim / t / 1e9;
      const double bytes = gb / roofs.dram_read_gb_per_s, work = gop / roofs.int8_gop_per_s;
      return fmt::format("{:>5.1f} GB/s {:>6.1f} Gop/s = {:>3.0f} % of {}", gb, gop,
                         100 * std::max(bytes, work), bytes > work ? "DRAM" : "int8");
    };
    for (const int64_t keys : {8192, 32768, 131072}) {
      for (const int64_t m : {1, 64}) {
        const double t = select_time(m, keys, Candidates::kNone);
        fmt::print("index scan {:>3} rows, {:>7} keys {:>10.1f} us  {}\n", m, keys, t * 1e6,
                   scan(m, keys, t));
      }
    }
    fmt::print(
        "\ndecode step, one row; layers by role: 2 window only, 3 ratio-2 sources, 1 ratio-1 "
        "source, 4 "
        "candidates only\n{:>8} {:>10} {:>10} {:>10} {:>11} {:>11} {:>11}\n",
        "context", "ratio 2 us", "ratio 1 us", "kept us", "indexer us", "attend us", "step us");
    const double window_only = attend_time(1, 128, 0);
    for (int64_t n = 1024; n <= 131072; n *= 2) {
      const double two = select_time(1, n / 2, Candidates::kNone),
                   one = select_time(1, n, Candidates::kMake),
                   kept = select_time(1, n, Candidates::kUse);
      const double indexer = 3 * two + one + 4 * kept;
      const double attend =
          2 * window_only +
          18 * attend_time(1, 128, static_cast<int>(std::min<int64_t>(512, n / 2))) +
          20 * attend_time(1, 128, 512);
      fmt::print("{:>8} {:>10.1f} {:>10.1f} {:>10.1f} {:>11.1f} {:>11.1f} {:>11.1f}\n", n,
                 two * 1e6, one * 1e6, kept * 1e6, indexer * 1e6, attend * 1e6,
                 (indexer + attend) * 1e6);
    }
  }
};

}  // namespace
}  // namespace deepmint::v41

int main(int argc, char** argv) {
  using namespace deepmint;
  int threads = physical_cores();
  std::string_view shape = "bench", only;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view arg = argv[i];
    if (arg == "--threads") threads = std::max(1, std::atoi(argv[i + 1]));
    if (arg == "--shape") shape = argv[i + 1];
    if (arg == "--only") only = argv[i + 1];
    if (arg == "--seconds") v41::g_seconds = std::atof(argv[i + 1]);
  }
  v41::Config c = v41::synth_config(v41::SynthPreset::kBench);
  if (shape == "official") {
    c.hidden = 5120;
    c.heads = 64;
    c.index_heads = 32;
  }
  ThreadPool pool(threads);
  const kernels::Roofs roofs = kernels::measure_roofs(pool);
  fmt::print(
      "{} shape, {} threads, {}; roofs: DRAM {:.1f} GB/s, f32 {:.0f}, bf16 {:.0f}, int8 {:.0f} "
      "Gop/s\n",
      shape, threads, to_string(active_isa()), roofs.dram_read_gb_per_s, roofs.f32_gflop_per_s,
      roofs.bf16_gflop_per_s, roofs.int8_gop_per_s);
  v41::Bench bench(c, pool, roofs);
  if (only.empty() || only == "ops") bench.run_ops();
  if (only.empty() || only == "context") bench.run_context();
  return 0;
}
