// Where a step of a V4.1 model spends its time, per operator.
//
//   v41_phases FOLDER [--threads N] [--prefill ROWS] [--steps N] [--decode POSITION] [--rows N,...]
//              [--cold] [--timeline] [--make-official-layers]
//
// FOLDER is a checkpoint (`deepmint synth --preset bench FOLDER` makes one). --prefill runs that
// many rows as one step; --decode runs steps of --rows sequences at that position, in caches
// filled with ordinary numbers; several numbers of rows (--rows 1,2,4) take turns in one process.
// The page cache is warm: a first step is not counted, and the Engram tables are read through
// before. --cold throws them out of it before every step instead, so that their rows come from the
// disk. The share of the memory bandwidth is of the median measured before and between the steps.
// What binds a decode step: what its bytes take at that bandwidth, or its arithmetic, which is what
// the same products take with weights in the second-level cache (v41_cache_roofs.h), attention at
// the BF16 peak and index scores at the int8 peak. The longer one binds; the share is of it.
// --timeline adds where the threads were: every call of the thread pool, by the operator that made
// it (products by their largest matrix), how long one thread worked alone before it, and what the
// threads waited for each other.
// --make-official-layers writes FOLDER first, 3.1 GB: three layers of every official width (a
// ratio-2 source, a ratio-1 source, a layer that chooses among candidates) with 48 experts, so that
// 512 rows give each expert the 64 rows that a chunk of 4,096 gives each of the official 384.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "core/aligned.h"
#include "core/cpu_isa.h"
#include "core/thread_pool.h"
#include "kernels/roofs.h"
#include "model/deepseek_v41/arithmetic.h"
#include "model/deepseek_v41/model.h"
#include "model/deepseek_v41/synth.h"
#include "v41_cache_roofs.h"

namespace deepmint::v41 {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

using kernels::V41Format;

// Products of one format and width: what a step reads for them.
struct Products {
  V41Format format;
  int64_t k;
  double bytes = 0;
  auto operator<=>(const Products&) const = default;
};

// What a decode step of any number of rows reads, and what it multiplies beside products.
struct Reads {
  std::vector<Products> dense, expert;  // of all layers; of one expert
  double mix_bytes = 0, dense_macs = 0, expert_macs = 0;
  int64_t mix_outputs = 0, mix_k = 0;

  explicit Reads(const Config& c, const Weights& w) {
    const auto add = [](std::vector<Products>& to, const Matrix& m) {
      const V41Format format = m.kind == WeightKind::kFp8   ? V41Format::kFp8
                               : m.kind == WeightKind::kFp4 ? V41Format::kFp4
                                                            : V41Format::kBf16;
      const auto at = std::ranges::find_if(
          to, [&](const Products& p) { return p.format == format && p.k == m.k; });
      Products& p = at != to.end() ? *at : to.emplace_back(Products{format, m.k});
      p.bytes += static_cast<double>(m.weight->bytes.size() +
                                     (m.scale != nullptr ? m.scale->bytes.size() : 0));
      return static_cast<double>(m.n) * static_cast<double>(m.k);
    };
    for (const LayerWeights& l : w.layers) {
      for (const Matrix* m :
           {&l.wkv, &l.wq_a, &l.wq_b, &l.wo_b, &l.gate, &l.shared.w1, &l.shared.w2, &l.shared.w3})
        dense_macs += add(dense, *m);
      for (const Matrix& m : l.wo_a) dense_macs += add(dense, m);
      if (l.compressor) {
        dense_macs += add(dense, l.compressor->wkv) + add(dense, l.compressor->wk);
        if (l.compressor->wgate) dense_macs += add(dense, *l.compressor->wgate);
      }
      if (l.indexer)
        dense_macs += add(dense, l.indexer->wq_b) + add(dense, l.indexer->weights_proj);
      if (l.engram) dense_macs += add(dense, l.engram->wkv);
      for (const MixWeights* m : {&l.attn_mix, &l.ffn_mix})
        mix_bytes += static_cast<double>(m->fn.size() * sizeof(float));
    }
    dense_macs += add(dense, w.head);
    const Expert& e = w.layers.front().experts.front();
    for (const Matrix* m : {&e.w1, &e.w2, &e.w3}) expert_macs += add(expert, *m);
    mix_k = int64_t{c.streams} * c.hidden;
    mix_outputs = static_cast<int64_t>(w.layers.front().attn_mix.fn.size()) / mix_k;
  }
  double expert_bytes() const {
    double sum = 0;
    for (const Products& p : expert) sum += p.bytes;
    return sum;
  }
  double dense_bytes() const {
    double sum = mix_bytes;
    for (const Products& p : dense) sum += p.bytes;
    return sum;
  }
};

// Where the threads were during one step.
class Timeline : public PoolWatch {
 public:
  // Of all calls of one kind: seconds.
  struct Sum {
    double calls = 0;
    double before = 0;  // from the end of the call in front: one thread's work
    double span = 0;    // from the first beginning to the last end
    double late = 0;    // from the first beginning to the last
    double uneven = 0;  // from the first end to the last
  };

  explicit Timeline(int threads) : at_(static_cast<size_t>(threads)), calls_(1 << 14) {
    for (Call& call : calls_) call.parts.resize(at_.size());
  }

  void start() {
    for (Count& at : at_) at.n = 0;
    begin_ = PoolWatch::Time::clock::now();
  }
  // What the calls until the next one belong to.
  void enter(std::string_view label) {
    label_ = label;
    ordinal_ = 0;
  }
  std::string_view label() const { return label_; }

  void worked(int rank, Time begin, Time end) override {
    size_t& at = at_[static_cast<size_t>(rank)].n;
    if (at == calls_.size()) return;
    calls_[at].parts[static_cast<size_t>(rank)] = {begin, end};
    if (rank == 0) {
      calls_[at].label = label_;
      calls_[at].ordinal = ordinal_++;
    }
    ++at;
  }

  // By name, and what the step ends with on one thread.
  std::map<std::string, Sum> sums(double& rest) const {
    std::map<std::string, Sum> sums;
    Time last = begin_;
    const auto seconds = [](Time from, Time to) {
      return std::chrono::duration<double>(to - from).count();
    };
    for (size_t i = 0; i < at_[0].n; ++i) {
      const Call& call = calls_[i];
      const auto [first_begin, last_begin] =
          std::ranges::minmax_element(call.parts, {}, &Part::begin);
      const auto [first_end, last_end] = std::ranges::minmax_element(call.parts, {}, &Part::end);
      Sum& sum = sums[call.ordinal == 0 ? std::string(call.label)
                                        : fmt::format("{}, {}", call.label, call.ordinal + 1)];
      sum.calls += 1;
      sum.before += seconds(last, first_begin->begin);
      sum.span += seconds(first_begin->begin, last_end->end);
      sum.late += seconds(first_begin->begin, last_begin->begin);
      sum.uneven += seconds(first_end->end, last_end->end);
      last = last_end->end;
    }
    rest = seconds(last, Time::clock::now());
    return sums;
  }

 private:
  struct Part {
    Time begin, end;
  };
  struct Call {
    std::string_view label;
    int ordinal = 0;
    std::vector<Part> parts;  // of each thread
  };
  struct alignas(kCacheLine) Count {
    size_t n = 0;
  };
  std::vector<Count> at_;  // calls that each thread has seen
  std::vector<Call> calls_;
  std::string_view label_;
  int ordinal_ = 0;
  Time begin_;
};

// Times every call of another arithmetic, when it is asked to: 700 operators of a step, and half a
// percent of it.
class Timed : public Arithmetic {
 public:
  explicit Timed(std::unique_ptr<Arithmetic> inner) : inner_(std::move(inner)) {}
  bool on = false;
  std::map<std::string_view, double> seconds;
  Timeline* timeline = nullptr;

  std::vector<std::span<const std::byte>> engram_tables;
  std::optional<Reads> reads;
  double routed = 0;  // experts that a row goes to, over all layers
  // Of the steps since they were last set to zero: keys in bytes, and multiply-adds on them.
  double key_bytes = 0, attention_macs = 0, index_macs = 0;

  Status prepare(const Config& c, const Weights& w) override {
    reads.emplace(c, w);
    routed = static_cast<double>(c.layers) * c.experts_per_token;
    for (const LayerWeights& l : w.layers)
      if (l.engram)
        engram_tables.insert(engram_tables.end(),
                             {l.engram->table->bytes, l.engram->table_scale->bytes});
    return inner_->prepare(c, w);
  }
  Status reserve(const Config& c, size_t rows) override { return inner_->reserve(c, rows); }
  std::string_view roof() const override { return inner_->roof(); }
  void set_hints(WeightHints* hints) override { inner_->set_hints(hints); }
  void linear(const Matrix& w, const float* x, int64_t m, float* y, Output output) override {
    const Timer t(this,
                  w.kind == WeightKind::kFp8 ? "linear fp8"
                  : w.n > 4096               ? "linear bf16, head"
                                             : "linear bf16",
                  &w);
    inner_->linear(w, x, m, y, output);
  }
  void linears(std::span<const Product> products, const float* x, int64_t m) override {
    const Timer t(this, "linear fp8", std::ranges::max(products, {}, [](const Product& p) {
                                        return p.w->n * p.w->k;
                                      }).w);
    inner_->linears(products, x, m);
  }
  void mix_beside(const float* X, int64_t m, const Config& c, const MixWeights& w, float* pre,
                  float* post, float* comb) override {
    const Timer t(this, "mix");
    inner_->mix_beside(X, m, c, w, pre, post, comb);
  }
  void soon(std::span<const Matrix* const> weights) override { inner_->soon(weights); }
  void linear_groups(std::span<const Matrix> w, const float* x, int64_t m, float* y) override {
    const Timer t(this, "linear groups (wo_a)");
    inner_->linear_groups(w, x, m, y);
  }
  void rms_norm(const float* x, int64_t m, int d, const float* w, double eps, float* y) override {
    const Timer t(this, "rms_norm");
    inner_->rms_norm(x, m, d, w, eps, y);
  }
  void rope_table(const int32_t* positions, int64_t m, std::span<const float> inv,
                  float* table) override {
    const Timer t(this, "rope");
    inner_->rope_table(positions, m, inv, table);
  }
  void rope(float* x, int64_t m, int groups, int d, int rotary, const float* table,
            int sign) override {
    const Timer t(this, "rope");
    inner_->rope(x, m, groups, d, rotary, table, sign);
  }
  void mix(const float* X, int64_t m, const Config& c, const MixWeights& w, float* pre, float* post,
           float* comb) override {
    const Timer t(this, "mix");
    inner_->mix(X, m, c, w, pre, post, comb);
  }
  void collapse(const float* X, int64_t m, const Config& c, const float* pre, float* y) override {
    const Timer t(this, "collapse");
    inner_->collapse(X, m, c, pre, y);
  }
  void expand(const float* y, int64_t m, const Config& c, const float* post, const float* comb,
              float* X) override {
    const Timer t(this, "expand");
    inner_->expand(y, m, c, post, comb, X);
  }
  void pack(Packing packing, const float* x, int64_t m, int d, std::byte* const* rows) override {
    const Timer t(this, "pack");
    inner_->pack(packing, x, m, d, rows);
  }
  void attend(float* q, std::span<const AttentionRow> rows, const Config& c,
              const float* sink) override {
    const Timer t(this, "attention");
    for (const AttentionRow& r : rows) {
      const double window = r.position + 1.0 - r.floor, chosen = r.n_selected;
      key_bytes += window * static_cast<double>(r.window.row_bytes) +
                   chosen * static_cast<double>(r.global.row_bytes);
      attention_macs += 2.0 * c.heads * c.head_dim * (window + chosen);
    }
    inner_->attend(q, rows, c, sink);
  }
  void pool(std::span<const Pair> pairs, int d, float* out) override {
    const Timer t(this, "pool");
    inner_->pool(pairs, d, out);
  }
  void select(float* q, const float* w, std::span<const SelectRow> rows, const Config& c,
              Candidates candidates) override {
    const Timer t(this, "index scores, selection");
    for (const SelectRow& r : rows) {
      double keys = r.visible;
      if (candidates == Candidates::kUse)
        keys = std::min(keys, static_cast<double>(*r.n_blocks) * c.candidate_block_size);
      key_bytes += keys * static_cast<double>(r.keys.row_bytes);
      index_macs += keys * c.index_heads * c.index_dim;
    }
    inner_->select(q, w, rows, c, candidates);
  }
  void moe(const float* u, int64_t m, const Config& c, int layer, const LayerWeights& w,
           float* y) override {
    const Timer t(this, "mixture of experts");
    inner_->moe(u, m, c, layer, w, y);
  }
  void engram_rows(const EngramWeights& w, std::span<const int64_t> rows, const Config& c,
                   float* out) override {
    const Timer t(this, "engram gather");
    inner_->engram_rows(w, rows, c, out);
  }
  void engram(float* X, const float* z, int64_t m, const Config& c,
              const EngramWeights& w) override {
    const Timer t(this, "engram gate");
    inner_->engram(X, z, m, c, w);
  }

 private:
  struct Timer {
    Timed* to;
    std::string_view name;
    double start = 0;
    Timer(Timed* t, std::string_view n, const Matrix* largest = nullptr) : to(t), name(n) {
      if (!to->on) return;
      if (to->timeline != nullptr)
        to->timeline->enter(largest == nullptr ? n : to->name_of(largest->weight->name));
      start = now();
    }
    ~Timer() {
      if (!to->on) return;
      to->seconds[name] += now() - start;
      if (to->timeline != nullptr) to->timeline->enter("outside the operators");
    }
  };
  // A tensor's name without its layer.
  std::string_view name_of(std::string_view name) {
    if (name.starts_with("layers.")) {
      name.remove_prefix(7);
      name.remove_prefix(std::min(name.find('.') + 1, name.size()));
    }
    return *names_.emplace(name).first;
  }
  std::set<std::string, std::less<>> names_;
  std::unique_ptr<Arithmetic> inner_;
};

double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

[[noreturn]] void die(const Error& error) {
  fmt::print(stderr, "v41_phases: {}\n", error.str());
  std::exit(1);
}

// Throws these mapped bytes out of this process and then, through the file that /proc says is
// mapped there, out of the page cache. Whether the system follows is its own choice: returns the
// share of the pages that is still in memory.
double throw_out(std::span<const std::byte> bytes) {
  constexpr uintptr_t kPage = 4096;
  const auto begin = (reinterpret_cast<uintptr_t>(bytes.data()) + kPage - 1) / kPage * kPage,
             end = (reinterpret_cast<uintptr_t>(bytes.data()) + bytes.size()) / kPage * kPage;
  if (begin >= end) return 0;
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long low = 0, high = 0, offset = 0;
    int path = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx %*s %lx %*s %*s %n", &low, &high, &offset, &path) < 3 ||
        begin < low || end > high)
      continue;
    const int fd = ::open(line.c_str() + path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) break;
    posix_fadvise(fd, static_cast<off_t>(begin - low + offset), static_cast<off_t>(end - begin),
                  POSIX_FADV_DONTNEED);
    ::close(fd);
    break;
  }
  std::vector<unsigned char> resident((end - begin) / kPage);
  if (mincore(reinterpret_cast<void*>(begin), end - begin, resident.data()) != 0) return 1;
  const auto left =
      std::count_if(resident.begin(), resident.end(), [](unsigned char r) { return (r & 1) != 0; });
  return static_cast<double>(left) / static_cast<double>(resident.size());
}

// Brings mapped bytes into memory, a page at a time.
void read_through(const std::vector<std::span<const std::byte>>& tables) {
  volatile unsigned sum = 0;
  for (const auto table : tables)
    for (size_t at = 0; at < table.size(); at += 4096) sum = sum + static_cast<unsigned>(table[at]);
}

Config official_layers() {
  Config c = synth_config(SynthPreset::kOfficial);
  set_vocab(c, 16384);
  c.layers = 3;
  c.ratios = {2, 1, 1};
  c.kv_sources = {0, 1};
  c.index_sources = {0, 1, 2};
  c.candidate_layer = 1;
  c.experts = 48;
  c.draft_layers = 0;
  c.engram_layers.clear();
  c.engram_rows.clear();
  return c;
}

struct Options {
  std::string folder;
  bool cold = false, make = false, timeline = false;
  int threads = physical_cores(), prefill = 0, steps = 3, position = 0;
  std::vector<int> rows = {1};
};

// Sequences of one length in caches filled with ordinary numbers.
class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        pool_(options.threads),
        rows_each_(static_cast<size_t>(std::max(options.prefill, 1))) {
    auto timed = std::make_unique<Timed>(make_fast_arithmetic(&pool_));
    times_ = timed.get();
    if (options.timeline) {
      times_->timeline = &timeline_.emplace(pool_.size());
    }
    const double loading = now();
    auto loaded = V41Model::load(options.folder, std::move(timed));
    if (!loaded) die(loaded.error());
    model_ = std::move(*loaded);
    const size_t most = static_cast<size_t>(*std::ranges::max_element(options.rows));
    if (auto ok = model_->reserve(most * rows_each_, most); !ok) die(ok.error());
    fmt::print("{}: {} threads, {}; loaded in {:.2f} s\n", model_->info().name, pool_.size(),
               to_string(active_isa()), now() - loading);
    const size_t blocks_each =
        (static_cast<size_t>(options.position) + rows_each_ + kBlockTokens) / kBlockTokens + 1;
    for (const StatePart& part : model_->state_parts()) {
      const size_t count = part.family == StatePart::Family::kGlobal ? most * blocks_each : most;
      buffers_.emplace_back(count * part.bytes);
      // Codes and scales of ordinary numbers: zeros would be scales at the end of their range.
      for (size_t i = 0; i < buffers_.back().size(); ++i)
        buffers_.back()[i] = static_cast<std::byte>(0x30 + i % 16);
      memory_.push_back({buffers_.back().data(), count});
    }
    if (!options.cold) read_through(times_->engram_tables);
    tables_.resize(most);
    for (size_t s = 0; s < most; ++s) {
      for (size_t b = 0; b < blocks_each; ++b)
        tables_[s].push_back(BlockId(static_cast<uint32_t>(s * blocks_each + b)));
      refs_.push_back({tables_[s], SlotId(static_cast<uint32_t>(s))});
    }
  }

  void measure(size_t sequences);

 private:
  std::vector<Row> random_rows(size_t sequences) {
    std::vector<Row> rows;
    const auto vocab = static_cast<uint64_t>(model_->info().vocab_size);
    for (size_t s = 0; s < sequences; ++s)
      for (size_t r = 0; r < rows_each_; ++r) {
        state_ = state_ * 6364136223846793005u + 1442695040888963407u;
        rows.push_back({.sequence = static_cast<uint32_t>(s),
                        .position = options_.position + static_cast<int32_t>(r),
                        .token = static_cast<TokenId>((state_ >> 33) % vocab),
                        .needs_logits = r + 1 == rows_each_});
      }
    return rows;
  }
  void print_what_binds(double rows, double seconds, double bytes, double dram,
                        const kernels::Roofs& roofs);
  void print_timeline(const std::vector<std::map<std::string, Timeline::Sum>>& steps, double rest);

  const Options& options_;
  ThreadPool pool_;
  const size_t rows_each_;
  std::optional<Timeline> timeline_;
  Timed* times_ = nullptr;
  std::unique_ptr<V41Model> model_;
  std::vector<AlignedBuffer<std::byte>> buffers_;
  std::vector<PartMemory> memory_;
  std::vector<std::vector<BlockId>> tables_;
  std::vector<SequenceRef> refs_;
  uint64_t state_ = 1;
};

void Bench::measure(size_t sequences) {
  const auto n = static_cast<double>(sequences * rows_each_);
  std::vector<float> logits(sequences * static_cast<size_t>(model_->info().vocab_size));
  const std::span<const SequenceRef> refs(refs_.data(), sequences);
  // Medians over the steps: of the whole, and of each operator in steps between those, because the
  // clocks take time of their own.
  std::vector<double> totals, clocked;
  std::map<std::string_view, std::vector<double>> operators;
  std::vector<std::map<std::string, Timeline::Sum>> calls;
  std::vector<double> rests;
  // Memory shared with others changes within seconds: its speed is the median over the run.
  std::vector<double> drams = {kernels::measure_dram_read(pool_)};
  StepWork first{};
  double left = 0;
  for (int i = 0; i <= 2 * options_.steps; ++i) {
    const std::vector<Row> rows = random_rows(sequences);
    times_->on = i % 2 == 1;
    if (i == 1) {
      first = model_->work();
      times_->key_bytes = times_->attention_macs = times_->index_macs = 0;
    }
    if (options_.cold)
      for (const auto table : times_->engram_tables) left = std::max(left, throw_out(table));
    times_->seconds.clear();
    if (timeline_) {
      timeline_->start();
      pool_.set_watch(times_->on ? &*timeline_ : nullptr);
    }
    const double start = now();
    if (auto ok = model_->forward({rows, refs, memory_}, logits, nullptr); !ok) die(ok.error());
    const double taken = now() - start;
    if (i == 0) continue;
    if (i % std::max(2, options_.steps / 2) == 0)
      drams.push_back(kernels::measure_dram_read(pool_));
    if (!times_->on) {
      totals.push_back(taken);
      continue;
    }
    if (timeline_) calls.push_back(timeline_->sums(rests.emplace_back()));
    clocked.push_back(taken);
    double rest = taken;
    for (const auto& [name, seconds] : times_->seconds) {
      operators[name].push_back(seconds);
      rest -= seconds;
    }
    operators["outside the operators"].push_back(rest);
  }
  const int steps = 2 * options_.steps;
  const double total = median(totals);
  fmt::print("{} rows at position {}, median of {} steps: {:.2f} ms a step, {:.1f} rows/s\n", n,
             options_.position, options_.steps, total * 1e3, n / total);
  if (options_.cold)
    fmt::print("Engram tables cold: at most {:.1f} % of their pages were left in memory\n",
               100 * left);
  const StepWork work = model_->work();
  const auto per_step = [&](uint64_t from, uint64_t to) {
    return static_cast<double>(to - from) / steps;
  };
  const double bytes = per_step(first.bytes, work.bytes), gb = bytes / total / 1e9,
               dram = median(drams), gflop = 2 * per_step(first.macs, work.macs) / total / 1e9;
  const kernels::Roofs roofs = kernels::measure_roofs(pool_);
  fmt::print("{:.1f} GB/s, {:.0f} % of {:.1f}; {:.0f} GFLOP/s, {:.0f} % of {:.0f}\n", gb,
             100 * gb / dram, dram, gflop, 100 * gflop / roofs.bf16_gflop_per_s,
             roofs.bf16_gflop_per_s);
  if (options_.prefill == 0) print_what_binds(n, total, bytes, dram, roofs);
  const double with_clocks = median(clocked);
  fmt::print("  with clocks, {:.2f} ms:\n", with_clocks * 1e3);
  std::vector<std::pair<double, std::string_view>> sorted;
  for (auto& [name, seconds] : operators) sorted.emplace_back(median(seconds), name);
  std::sort(sorted.rbegin(), sorted.rend());
  for (const auto& [seconds, name] : sorted)
    fmt::print("  {:<26} {:>10.3f} ms {:>6.1f} %\n", name, seconds * 1e3,
               100 * seconds / with_clocks);
  if (timeline_) print_timeline(calls, median(rests));
}

// Medians over the steps of what the calls of a kind took together.
void Bench::print_timeline(const std::vector<std::map<std::string, Timeline::Sum>>& steps,
                           double rest) {
  fmt::print("  {:<44} {:>5} {:>11} {:>9} {:>9} {:>11}\n", "calls of the thread pool", "calls",
             "before, ms", "span, ms", "late, ms", "uneven, ms");
  Timeline::Sum all;
  for (const auto& [name, first] : steps.front()) {
    const auto median_of = [&](double Timeline::Sum::* member) {
      std::vector<double> values;
      for (const auto& step : steps) {
        const auto at = step.find(name);
        values.push_back(at == step.end() ? 0 : at->second.*member);
      }
      const double value = median(values);
      all.*member += value;
      return value;
    };
    const double n = median_of(&Timeline::Sum::calls), before = median_of(&Timeline::Sum::before),
                 span = median_of(&Timeline::Sum::span), late = median_of(&Timeline::Sum::late),
                 uneven = median_of(&Timeline::Sum::uneven);
    fmt::print("  {:<44} {:>5.0f} {:>11.3f} {:>9.3f} {:>9.3f} {:>11.3f}\n", name, n, before * 1e3,
               span * 1e3, late * 1e3, uneven * 1e3);
  }
  fmt::print("  {:<44} {:>5.0f} {:>11.3f} {:>9.3f} {:>9.3f} {:>11.3f}\n", "all, and after the last",
             all.calls, (all.before + rest) * 1e3, all.span * 1e3, all.late * 1e3,
             all.uneven * 1e3);
}

void Bench::print_what_binds(double rows, double seconds, double bytes, double dram,
                             const kernels::Roofs& roofs) {
  const Reads& reads = *times_->reads;
  const double keys = times_->key_bytes / (2 * options_.steps),
               experts = (bytes - reads.dense_bytes() - keys) / reads.expert_bytes(),
               rows_of_one = rows * times_->routed / experts;
  double memory_sum = 0, arithmetic_sum = 0, both_sum = 0;
  fmt::print("  {:<26} {:>8} {:>6} {:>12} {:>14} {:>16}\n", "what binds", "MB", "rows",
             "memory, ms", "arithmetic, ms", "GB/s from cache");
  const auto line = [&](std::string_view name, double mb, double of_rows, double arithmetic_s) {
    const double memory_s = mb / dram / 1e3;
    memory_sum += memory_s;
    arithmetic_sum += arithmetic_s;
    both_sum += std::max(memory_s, arithmetic_s);
    fmt::print("  {:<26} {:>8.1f} {:>6.1f} {:>12.2f} {:>14.2f} {:>16.1f}  {}\n", name, mb, of_rows,
               memory_s * 1e3, arithmetic_s * 1e3, mb / 1e3 / arithmetic_s,
               memory_s > arithmetic_s ? "memory" : "arithmetic");
  };
  // Between two numbers of rows the time of a product is taken as linear.
  const auto time_of = [&](const Products& p, double of_rows) {
    const auto few = static_cast<int64_t>(of_rows);
    const double more = of_rows - static_cast<double>(few);
    const auto at = [&](int64_t m) {
      return p.bytes / 1e9 / bench::cached_product(pool_, p.format, p.k, m);
    };
    return more < 0.01 ? at(few) : (1 - more) * at(few) + more * at(few + 1);
  };
  for (const auto& [format, name] :
       {std::pair{V41Format::kFp8, "FP8 products"}, {V41Format::kBf16, "BF16 products"}}) {
    double mb = 0, arithmetic_s = 0;
    for (const Products& p : reads.dense)
      if (p.format == format) mb += p.bytes / 1e6, arithmetic_s += time_of(p, rows);
    if (mb > 0) line(name, mb, rows, arithmetic_s);
  }
  double one = 0;
  for (const Products& p : reads.expert) one += time_of(p, rows_of_one);
  line("FP4 products, experts", experts * reads.expert_bytes() / 1e6, rows_of_one, experts * one);
  line("hyper-connections, F32", reads.mix_bytes / 1e6, rows,
       reads.mix_bytes / 1e9 /
           bench::cached_mix(pool_, reads.mix_outputs, reads.mix_k, static_cast<int64_t>(rows)));
  line("attention and index", keys / 1e6, rows,
       2 * times_->attention_macs / (2 * options_.steps) / roofs.bf16_gflop_per_s / 1e9 +
           2 * times_->index_macs / (2 * options_.steps) / roofs.int8_gop_per_s / 1e9);
  fmt::print(
      "  together: memory {:.2f} ms ({:.0f} % of the step), arithmetic {:.2f} ms ({:.0f} %): {} "
      "binds\n  one after the other, each at what binds it: {:.2f} ms, {:.0f} % of the step\n",
      memory_sum * 1e3, 100 * memory_sum / seconds, arithmetic_sum * 1e3,
      100 * arithmetic_sum / seconds, memory_sum > arithmetic_sum ? "memory" : "arithmetic",
      both_sum * 1e3, 100 * both_sum / seconds);
}

}  // namespace
}  // namespace deepmint::v41

int main(int argc, char** argv) {
  deepmint::v41::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    const auto number = [&] { return i + 1 < argc ? std::max(0, std::atoi(argv[++i])) : 0; };
    if (arg == "--threads")
      options.threads = std::max(1, number());
    else if (arg == "--prefill")
      options.prefill = number();
    else if (arg == "--steps")
      options.steps = std::max(1, number());
    else if (arg == "--decode" || arg == "--position")
      options.position = number();
    else if (arg == "--rows") {
      options.rows.clear();
      std::istringstream list(i + 1 < argc ? argv[++i] : "1");
      for (std::string one; std::getline(list, one, ',');)
        options.rows.push_back(std::max(1, std::atoi(one.c_str())));
    } else if (arg == "--cold")
      options.cold = true;
    else if (arg == "--timeline")
      options.timeline = true;
    else if (arg == "--make-official-layers")
      options.make = true;
    else
      options.folder = arg;
  }
  if (options.prefill > 0 || options.rows.empty()) options.rows = {1};
  if (options.folder.empty()) {
    fmt::print(stderr,
               "usage: v41_phases FOLDER [--threads N] [--prefill ROWS] [--steps N] [--decode "
               "POSITION] [--rows N,...] [--cold] [--timeline] [--make-official-layers]\n");
    return 2;
  }
  if (options.make) {
    const auto ok = deepmint::v41::synthesize(deepmint::v41::official_layers(), options.folder);
    if (!ok) deepmint::v41::die(ok.error());
  }
  deepmint::v41::Bench bench(options);
  for (const int rows : options.rows) bench.measure(static_cast<size_t>(rows));
  return 0;
}
