// V4.1 linear products against the roofs of this machine, measured in the same run, and against
// oneDNN.
//
//   v41_linear_bench [--formats BF16,FP8,FP4] [--rows 1,2,4,8,16,512] [--threads N]
//                    [--seconds 0.2] [--shapes official|bench] [--no-rival] [--cached K]
//
// --cached K: rows of K weights from each core's second-level cache instead, GB/s of all threads.
// Weights are cold: each product takes the next of enough copies of its matrix that the last cache
// holds none of them for the next turn. Activations are warm. GB/s counts codes and scales; the
// time includes quantising the activations.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "core/cpu_isa.h"
#include "kernels/roofs.h"
#include "kernels/v41_linear.h"
#include "kernels/v41_linear_kernels.h"
#include "linear_rival.h"
#include "timing.h"
#include "v41_cache_roofs.h"

namespace deepmint::bench {
namespace {

using kernels::V41Format;
using kernels::V41Round;

struct Shape {
  const char* name;
  V41Format format;
  int64_t n, k;
};
constexpr Shape kOfficial[] = {
    {"head (part)", V41Format::kBf16, 8192, 5120}, {"compressor", V41Format::kBf16, 512, 5120},
    {"router", V41Format::kBf16, 384, 5120},       {"wq_a", V41Format::kFp8, 1280, 5120},
    {"wq_b", V41Format::kFp8, 32768, 1280},        {"wo_b", V41Format::kFp8, 5120, 8192},
    {"shared w1", V41Format::kFp8, 2304, 5120},    {"expert w1", V41Format::kFp4, 2304, 5120},
    {"expert w2", V41Format::kFp4, 5120, 2304},
};
constexpr Shape kBench[] = {
    {"head", V41Format::kBf16, 16384, 1024},   {"wq_a", V41Format::kFp8, 512, 1024},
    {"wq_b", V41Format::kFp8, 8192, 512},      {"wo_b", V41Format::kFp8, 1024, 1024},
    {"expert w1", V41Format::kFp4, 512, 1024}, {"expert w2", V41Format::kFp4, 1024, 512},
};
constexpr const char* kNames[] = {"BF16", "FP8", "FP4"};
constexpr size_t kColdBytes = size_t{160} << 20;

struct Options {
  std::vector<std::string> formats = {"BF16", "FP8", "FP4"};
  std::vector<int64_t> rows = {1, 2, 4, 8, 16, 512};
  int threads = physical_cores();
  double seconds = 0.15;
  std::string shapes = "official";
  bool no_rival = false;
  int64_t cached = 0;
};

int run_cached(const Options& options) {
  ThreadPool pool(options.threads);
  fmt::print("{}, {} threads, GB/s of codes and scales\n{:<6}", to_string(active_isa()),
             pool.size(), "rows");
  for (const int64_t m : options.rows) fmt::print("{:>8}", m);
  for (size_t format = 0; format < std::size(kNames); ++format) {
    if (std::ranges::find(options.formats, kNames[format]) == options.formats.end()) continue;
    fmt::print("\n{:<6}", kNames[format]);
    for (const int64_t m : options.rows)
      fmt::print("{:>8.1f}",
                 cached_product(pool, static_cast<V41Format>(format), options.cached, m));
  }
  fmt::print("\n");
  return 0;
}

int run(const Options& options) {
  ThreadPool pool(options.threads);
  kernels::Roofs roofs;
  fmt::print("{}, {} threads\n", to_string(active_isa()), pool.size());
  fmt::print("{:<12} {:<5} {:>5} {:>6} {:>4} {:>10}  {:>21}  {:>22}\n", "matrix", "type", "n", "k",
             "rows", "us", "GB/s, of DRAM", "GFLOP/s, of BF16 peak");
  std::mt19937_64 rng(1);
  const std::span<const Shape> shapes = options.shapes == "bench"
                                            ? std::span<const Shape>(kBench)
                                            : std::span<const Shape>(kOfficial);
  for (const Shape& s : shapes) {
    const char* format = kNames[static_cast<size_t>(s.format)];
    if (std::ranges::find(options.formats, format) == options.formats.end()) continue;
    const auto elements = static_cast<size_t>(s.n * s.k);
    const size_t code_bytes = s.format == V41Format::kBf16  ? 2 * elements
                              : s.format == V41Format::kFp8 ? elements
                                                            : elements / 2;
    const size_t scale_bytes = s.format == V41Format::kBf16  ? 0
                               : s.format == V41Format::kFp8 ? elements / 1024
                                                             : elements / 32;
    const size_t each = code_bytes + scale_bytes, copies = kColdBytes / each + 1;
    AlignedBuffer<std::byte> memory(each * copies);
    for (size_t i = 0; i < each; ++i) {
      const auto bits = static_cast<uint8_t>(rng());
      const bool high = s.format == V41Format::kBf16 && i % 2 == 1;
      memory[i] = std::byte{i >= code_bytes ? static_cast<uint8_t>(115 + bits % 8)
                            : high          ? static_cast<uint8_t>(0x3c | (bits & 0x80))
                            : s.format == V41Format::kFp8 ? static_cast<uint8_t>(bits & 0xbf)
                                                          : bits};
    }
    for (size_t c = 1; c < copies; ++c) std::copy_n(memory.data(), each, memory.data() + c * each);
    for (const int64_t m : options.rows) {
      roofs = kernels::measure_roofs(pool);  // neighbours on the host make them drift
      std::normal_distribution<float> normal;
      std::vector<float> x(static_cast<size_t>(m * s.k)), y(static_cast<size_t>(m * s.n));
      for (float& v : x) v = normal(rng);
      kernels::V41Rows rows;
      kernels::V41Workspace workspace;
      size_t turn = 0;
      const double seconds = time_of(options.seconds, [&] {
        const std::byte* at = memory.data() + turn * each;
        rows.set(s.format, s.format == V41Format::kBf16 ? V41Round::kPlain : V41Round::kQ8,
                 x.data(), m, s.k, s.k, pool);
        const kernels::V41Product product{
            {s.format, at, at + code_bytes, s.n, s.k}, rows.rows(), y.data(), s.n, true};
        kernels::v41_linear({&product, 1}, workspace, pool);
        turn = (turn + 1) % copies;
      });
      const double ops = 2.0 * static_cast<double>(m * s.n * s.k);
      const auto report = [&](const char* type, double t, const char* note) {
        fmt::print(
            "{:<12} {:<5} {:>5} {:>6} {:>4} {:>10.1f}  {:>6.2f} of {:>4.1f} {:>4.0f} %  {:>6.1f} "
            "of {:>5.0f} {:>4.0f} % {}\n",
            s.name, type, s.n, s.k, m, t * 1e6, static_cast<double>(each) / t / 1e9,
            roofs.dram_read_gb_per_s,
            100 * static_cast<double>(each) / t / 1e9 / roofs.dram_read_gb_per_s, ops / t / 1e9,
            roofs.bf16_gflop_per_s, 100 * ops / t / 1e9 / roofs.bf16_gflop_per_s, note);
      };
      report(format, seconds, "");
      if (options.no_rival || m < 64 || s.format != V41Format::kBf16) continue;
      // What oneDNN is asked for: the product alone, of activations that are BF16 already.
      report("",
             time_of(
                 options.seconds,
                 [&] {
                   const std::byte* at = memory.data() + turn * each;
                   const kernels::V41Product product{
                       {s.format, at, at + code_bytes, s.n, s.k}, rows.rows(), y.data(), s.n, true};
                   kernels::v41_linear({&product, 1}, workspace, pool);
                   turn = (turn + 1) % copies;
                 }),
             "product alone");
      if (const auto call = bf16_rival(m, s.n, s.k); call)
        report("", time_of(options.seconds, call), "oneDNN, weights warm");
    }
  }
  return 0;
}

}  // namespace
}  // namespace deepmint::bench

int main(int argc, char** argv) {
  using namespace deepmint;
  bench::Options options;
  CLI::App app("V4.1 linear products against the roofs of this machine");
  app.add_option("--formats", options.formats, "BF16, FP8, FP4")->delimiter(',');
  app.add_option("--rows", options.rows, "rows of activations")->delimiter(',');
  app.add_option("--threads", options.threads, "threads");
  app.add_option("--seconds", options.seconds, "time per measurement");
  app.add_option("--shapes", options.shapes, "official or bench");
  app.add_flag("--no-rival", options.no_rival, "without oneDNN");
  app.add_option("--cached", options.cached, "columns of weights that stay in the cache")
      ->check(CLI::Range(32, 65536));
  CLI11_PARSE(app, argc, argv);
  if (options.cached % kernels::kV41Step != 0) {
    fmt::print(stderr, "--cached: expected a multiple of {}, found {}\n", kernels::kV41Step,
               options.cached);
    return 2;
  }
  if (const auto ok = init_active_isa(); !ok) {
    fmt::print(stderr, "{}\n", ok.error().str());
    return 2;
  }
  return options.cached > 0 ? bench::run_cached(options) : bench::run(options);
}
