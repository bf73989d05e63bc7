// Where a step of a V4.1 model spends its time, per operator.
//
//   v41_phases FOLDER [--threads N] [--prefill ROWS] [--steps N] [--decode POSITION] [--rows N]
//              [--cold] [--make-official-layers]
//
// FOLDER is a checkpoint (`deepmint synth --preset bench FOLDER` makes one). --prefill runs that
// many rows as one step; --decode runs steps of --rows sequences at that position, in caches
// filled with ordinary numbers. The page cache is warm: a first step is not counted. --cold
// throws the Engram tables out of it before every step, so that their rows come from the disk. The
// share of the memory bandwidth is that measured right before and after.
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

namespace deepmint::v41 {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Times every call of another arithmetic.
class Timed : public Arithmetic {
 public:
  explicit Timed(std::unique_ptr<Arithmetic> inner) : inner_(std::move(inner)) {}
  std::map<std::string_view, double> seconds;

  std::vector<std::span<const std::byte>> engram_tables;

  Status prepare(const Config& c, const Weights& w) override {
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
    const Timer t(this, w.kind == WeightKind::kFp8 ? "linear fp8"
                        : w.n > 4096               ? "linear bf16, head"
                                                   : "linear bf16");
    inner_->linear(w, x, m, y, output);
  }
  void linears(std::span<const Product> products, const float* x, int64_t m) override {
    const Timer t(this, "linear fp8");
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
    inner_->attend(q, rows, c, sink);
  }
  void pool(std::span<const Pair> pairs, int d, float* out) override {
    const Timer t(this, "pool");
    inner_->pool(pairs, d, out);
  }
  void select(float* q, const float* w, std::span<const SelectRow> rows, const Config& c,
              Candidates candidates) override {
    const Timer t(this, "index scores, selection");
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
    double start = now();
    Timer(Timed* t, std::string_view n) : to(t), name(n) {}
    ~Timer() { to->seconds[name] += now() - start; }
  };
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

int measure(const std::string& folder, int threads, int prefill, int steps, int position,
            int sequences, bool cold) {
  ThreadPool pool(threads);
  auto timed = std::make_unique<Timed>(make_fast_arithmetic(&pool));
  Timed& times = *timed;
  const double loading = now();
  auto loaded = V41Model::load(folder, std::move(timed));
  if (!loaded) die(loaded.error());
  V41Model& model = **loaded;
  const size_t n = prefill > 0 ? 1 : static_cast<size_t>(sequences),
               rows_each = prefill > 0 ? static_cast<size_t>(prefill) : 1;
  if (auto ok = model.reserve(n * rows_each, n); !ok) die(ok.error());
  fmt::print("{}: {} threads, {}; loaded in {:.2f} s\n", model.info().name, threads,
             to_string(active_isa()), now() - loading);
  const size_t blocks_each =
      (static_cast<size_t>(position) + rows_each + kBlockTokens) / kBlockTokens + 1;
  std::vector<AlignedBuffer<std::byte>> buffers;
  std::vector<PartMemory> memory;
  for (const StatePart& part : model.state_parts()) {
    const size_t count = part.family == StatePart::Family::kGlobal ? n * blocks_each : n;
    buffers.emplace_back(count * part.bytes);
    // Codes and scales of ordinary numbers: zeros would be scales at the end of their range.
    for (size_t i = 0; i < buffers.back().size(); ++i)
      buffers.back()[i] = static_cast<std::byte>(0x30 + i % 16);
    memory.push_back({buffers.back().data(), count});
  }
  std::vector<std::vector<BlockId>> tables(n);
  std::vector<SequenceRef> refs;
  for (size_t s = 0; s < n; ++s) {
    for (size_t b = 0; b < blocks_each; ++b)
      tables[s].push_back(BlockId(static_cast<uint32_t>(s * blocks_each + b)));
    refs.push_back({tables[s], SlotId(static_cast<uint32_t>(s))});
  }
  uint64_t state = 1;
  std::vector<float> logits(n * static_cast<size_t>(model.info().vocab_size));
  // Medians over the steps: of the whole and of each operator.
  std::vector<double> totals;
  std::map<std::string_view, std::vector<double>> operators;
  const double before = kernels::measure_dram_read(pool);
  StepWork first{};
  double left = 0;
  for (int i = 0; i <= steps; ++i) {
    std::vector<Row> rows;
    for (size_t s = 0; s < n; ++s)
      for (size_t r = 0; r < rows_each; ++r) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        rows.push_back({.sequence = static_cast<uint32_t>(s),
                        .position = position + static_cast<int32_t>(r),
                        .token = static_cast<TokenId>(
                            (state >> 33) % static_cast<uint64_t>(model.info().vocab_size)),
                        .needs_logits = r + 1 == rows_each});
      }
    if (i == 1) first = model.work();
    if (cold)
      for (const auto table : times.engram_tables) left = std::max(left, throw_out(table));
    times.seconds.clear();
    const double start = now();
    if (auto ok = model.forward({rows, refs, memory}, logits, nullptr); !ok) die(ok.error());
    if (i == 0) continue;
    totals.push_back(now() - start);
    double rest = totals.back();
    for (const auto& [name, seconds] : times.seconds) {
      operators[name].push_back(seconds);
      rest -= seconds;
    }
    operators["outside the operators"].push_back(rest);
  }
  const double total = median(totals);
  fmt::print("{} rows at position {}, median of {} steps: {:.2f} ms a step, {:.1f} rows/s\n",
             n * rows_each, position, steps, total * 1e3,
             static_cast<double>(n * rows_each) / total);
  if (cold)
    fmt::print("Engram tables cold: at most {:.1f} % of their pages were left in memory\n",
               100 * left);
  const StepWork work = model.work();
  const auto per_step = [&](uint64_t from, uint64_t to) {
    return static_cast<double>(to - from) / steps / total / 1e9;
  };
  const double gb = per_step(first.bytes, work.bytes),
               dram = (before + kernels::measure_dram_read(pool)) / 2,
               gflop = 2 * per_step(first.macs, work.macs);
  const kernels::Roofs roofs = kernels::measure_roofs(pool);
  fmt::print("{:.1f} GB/s, {:.0f} % of {:.1f}; {:.0f} GFLOP/s, {:.0f} % of {:.0f}\n", gb,
             100 * gb / dram, dram, gflop, 100 * gflop / roofs.bf16_gflop_per_s,
             roofs.bf16_gflop_per_s);
  std::vector<std::pair<double, std::string_view>> sorted;
  for (auto& [name, seconds] : operators) sorted.emplace_back(median(seconds), name);
  std::sort(sorted.rbegin(), sorted.rend());
  for (const auto& [seconds, name] : sorted)
    fmt::print("  {:<26} {:>10.3f} ms {:>6.1f} %\n", name, seconds * 1e3, 100 * seconds / total);
  return 0;
}

}  // namespace
}  // namespace deepmint::v41

int main(int argc, char** argv) {
  std::string folder;
  bool cold = false, make = false;
  int threads = deepmint::physical_cores(), prefill = 0, steps = 3, position = 0, rows = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    const auto number = [&] { return i + 1 < argc ? std::max(0, std::atoi(argv[++i])) : 0; };
    if (arg == "--threads")
      threads = std::max(1, number());
    else if (arg == "--prefill")
      prefill = number();
    else if (arg == "--steps")
      steps = std::max(1, number());
    else if (arg == "--decode" || arg == "--position")
      position = number();
    else if (arg == "--rows")
      rows = std::max(1, number());
    else if (arg == "--cold")
      cold = true;
    else if (arg == "--make-official-layers")
      make = true;
    else
      folder = arg;
  }
  if (folder.empty()) {
    fmt::print(stderr,
               "usage: v41_phases FOLDER [--threads N] [--prefill ROWS] [--steps N] [--decode "
               "POSITION] [--rows N] [--cold] [--make-official-layers]\n");
    return 2;
  }
  if (make) {
    const auto ok = deepmint::v41::synthesize(deepmint::v41::official_layers(), folder);
    if (!ok) deepmint::v41::die(ok.error());
  }
  return deepmint::v41::measure(folder, threads, prefill, steps, position, rows, cold);
}
