// Speed of one model's forward step against the machine's roofs, measured in the same run.
//
//   forward_bench MODEL.gguf [--threads N] [--only prefill|decode|batch] [--context N] [--seconds
//   S]
//
// --context: decode at this context alone.
// Every figure is for a warm page cache. GB/s counts each weight byte of the step once, and the K/V
// bytes that attention reads. A step's time is the median; the share of the roof uses it.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "core/aligned.h"
#include "core/cpu_isa.h"
#include "core/thread_pool.h"
#include "kernels/roofs.h"
#include "model/dense/load.h"

namespace deepmint {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class Bench {
 public:
  Bench(Model& model, const kernels::Roofs& roofs, double seconds)
      : model_(model), roofs_(roofs), seconds_(seconds) {
    const size_t block = model.state_parts()[0].bytes;
    n_blocks_ = 16 * 16;
    memory_ = AlignedBuffer<std::byte>(n_blocks_ * block);
    for (size_t i = 0; i < n_blocks_; ++i) blocks_.push_back(static_cast<BlockId>(i));
    logits_.resize(16 * static_cast<size_t>(model.info().vocab_size));
  }

  // Rows of `sequences` sequences at consecutive positions from `position`; the last row of each
  // gives logits.
  void run(std::string_view what, size_t sequences, int position, int rows_each) {
    std::vector<SequenceRef> refs;
    std::vector<Row> rows;
    const size_t share = n_blocks_ / sequences;
    for (size_t s = 0; s < sequences; ++s) {
      refs.push_back({.blocks = std::span(blocks_).subspan(s * share, share)});
      for (int i = 0; i < rows_each; ++i)
        rows.push_back({.sequence = static_cast<uint32_t>(s),
                        .position = position + i,
                        .token = token(),
                        .needs_logits = i + 1 == rows_each});
    }
    const size_t n_logits = sequences * static_cast<size_t>(model_.info().vocab_size);
    check(model_.reserve(rows.size(), sequences));
    const PartMemory part{memory_.data(), n_blocks_};
    std::vector<double> times;
    for (const double end = seconds_now() + seconds_; seconds_now() < end || times.size() < 5;) {
      for (Row& r : rows) r.token = token();
      const double start = seconds_now();
      check(model_.forward({rows, refs, {&part, 1}}, std::span(logits_).first(n_logits)));
      times.push_back(seconds_now() - start);
    }
    std::sort(times.begin(), times.end());
    const double time = times[times.size() / 2];
    const ModelInfo& info = model_.info();
    const double positions = position + (rows_each + 1) / 2.0;
    const double row_count = static_cast<double>(rows.size());
    const double kv = static_cast<double>(model_.state_parts()[0].bytes) / kBlockTokens *
                      (position + rows_each) * static_cast<double>(sequences);
    const double gb = (static_cast<double>(info.weight_bytes_per_token) + kv) / 1e9 / time;
    const double ops =
        2 *
        (row_count * static_cast<double>(info.macs_per_row) +
         static_cast<double>(sequences) * static_cast<double>(info.macs_per_logit_row) +
         row_count * positions * static_cast<double>(info.macs_per_row_and_position)) /
        1e9 / time;
    const double roof = info.arithmetic == "int8"   ? roofs_.int8_gop_per_s
                        : info.arithmetic == "bf16" ? roofs_.bf16_gflop_per_s
                                                    : roofs_.f32_gflop_per_s;
    fmt::print(
        "{:<24} {:>9.3f} ms  {:>8.1f} tok/s  {:>6.1f} GB/s {:>4.0f} % of DRAM  {:>7.1f} Gop/s "
        "{:>4.0f} % of {}   ({} steps, fastest {:.3f} ms)\n",
        what, time * 1e3, row_count / time, gb, 100 * gb / roofs_.dram_read_gb_per_s, ops,
        100 * ops / roof, info.arithmetic, times.size(), times.front() * 1e3);
  }

 private:
  static void check(const Status& status) {
    if (status) return;
    fmt::print(stderr, "forward_bench: {}\n", status.error().str());
    std::exit(1);
  }
  TokenId token() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<TokenId>((state_ >> 33) % static_cast<uint64_t>(model_.info().vocab_size));
  }

  Model& model_;
  const kernels::Roofs& roofs_;
  double seconds_;
  size_t n_blocks_;
  AlignedBuffer<std::byte> memory_;
  std::vector<BlockId> blocks_;
  std::vector<float> logits_;
  uint64_t state_ = 1;
};

int bench(const std::string& path, int threads, std::string_view only, int only_context,
          double seconds) {
  const double start = seconds_now();
  auto file = GgufFile::open(path);
  if (!file) return fmt::print(stderr, "forward_bench: {}\n", file.error().str()), 2;
  const auto pool = std::make_shared<ThreadPool>(threads);
  auto model = load_dense_gguf(std::make_shared<const GgufFile>(std::move(*file)), {.pool = pool});
  if (!model) return fmt::print(stderr, "forward_bench: {}\n", model.error().str()), 2;
  const double loaded = seconds_now() - start;
  const kernels::Roofs roofs = kernels::measure_roofs(*pool);
  const ModelInfo& info = (*model)->info();
  fmt::print("{} ({}), {} threads, {}; load {:.3f} s, weights {:.1f} MB\n", info.name,
             info.architecture, threads, to_string(active_isa()), loaded,
             static_cast<double>(info.weight_bytes) / 1e6);
  fmt::print("roofs: DRAM {:.1f} GB/s, f32 {:.0f}, bf16 {:.0f}, int8 {:.0f} Gop/s\n",
             roofs.dram_read_gb_per_s, roofs.f32_gflop_per_s, roofs.bf16_gflop_per_s,
             roofs.int8_gop_per_s);
  Bench b(**model, roofs, seconds);
  const int context = std::min(info.context_tokens, 16 * 16 * kBlockTokens);
  if (only.empty() || only == "prefill") {
    b.run("prefill 512", 1, 0, std::min(512, context));
    if (context >= 1024 && only.empty()) b.run("prefill 512 after 512", 1, 512, 512);
    b.run("prefill 64", 1, 0, std::min(64, context));
  }
  if (only == "decode" && only_context > 0)
    b.run(fmt::format("decode, context {}", only_context), 1, std::min(only_context, context) - 1,
          1);
  else if (only.empty() || only == "decode")
    for (const int position : {0, 256, 511, 2047, 8191})
      if (position < context)
        b.run(fmt::format("decode, context {}", position + 1), 1, position, 1);
  if (only.empty() || only == "batch")
    for (const size_t n : {2, 4, 8, 16})
      b.run(fmt::format("{} rows, context 256", n), n, std::min(255, context - 1), 1);
  return 0;
}

}  // namespace
}  // namespace deepmint

int main(int argc, char** argv) {
  std::string path, only;
  int threads = deepmint::physical_cores();
  int context = 0;
  double seconds = 1.0;
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (arg == "--threads" && i + 1 < argc)
      threads = std::max(1, std::atoi(argv[++i]));
    else if (arg == "--only" && i + 1 < argc)
      only = argv[++i];
    else if (arg == "--context" && i + 1 < argc)
      context = std::atoi(argv[++i]);
    else if (arg == "--seconds" && i + 1 < argc)
      seconds = std::atof(argv[++i]);
    else
      path = arg;
  }
  if (path.empty()) {
    fmt::print(stderr,
               "usage: forward_bench MODEL.gguf [--threads N] [--only prefill|decode|batch] "
               "[--context N] [--seconds S]\n");
    return 2;
  }
  return deepmint::bench(path, threads, only, context, seconds);
}
