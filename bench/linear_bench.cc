// Linear products against the roofs of this machine, measured in the same run, and against oneDNN.
//
//   linear_bench [--types Q4_1,Q8_0,BF16] [--rows 1,16,512] [--threads N] [--seconds 0.2] [--model]
//   [--csv]
//
// Weights are cold: each product takes the next of enough copies of its matrix that the last cache
// holds none of them for the next turn. Activations are warm, as they are in a model. GB/s counts
// packed weight bytes.
#include <fmt/format.h>
#include <sched.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "core/cpu_isa.h"
#include "kernels/linear.h"
#include "kernels/linear_cases.h"
#include "kernels/roofs.h"
#include "linear_rival.h"
#include "timing.h"

namespace deepmint::bench {
namespace {

using kernels::Activations;
using kernels::ActivationType;
using kernels::PackedMatrix;
using Clock = std::chrono::steady_clock;

struct Shape {
  int64_t n, k;
};
// SmolLM2-135M: query and output, key and value, gate and up, down, head; and their stacks.
constexpr Shape kShapes[] = {{576, 576},  {192, 576},  {960, 576},
                             {3072, 576}, {576, 1536}, {49152, 576}};
constexpr Shape kSuperShapes[] = {
    {1024, 2048}, {2048, 8192}, {16384, 2048}};  // K types need multiples of 256

constexpr size_t kColdBytes = size_t{192} << 20;

struct Options {
  std::vector<std::string> types = {"Q4_1", "Q8_0", "BF16"};
  std::vector<int64_t> rows = {1, 4, 16, 64, 512};
  int threads = physical_cores();
  double seconds = 0.15;
  bool model = false, csv = false;
};

PackedMatrix packed(DType dtype, Shape s, const std::vector<std::byte>& source, ThreadPool& pool) {
  auto w = kernels::pack(dtype, source, s.n, s.k, pool);
  if (!w) {
    fmt::print(stderr, "{}\n", w.error().str());
    std::exit(1);
  }
  return std::move(*w);
}

// Each thread on a core of its own: a scheduler may leave two on one core for a while, which is not
// what is measured here. free_caller lets the caller run anywhere again, as OpenMP's threads do
// that it starts.
class Pinned {
 public:
  explicit Pinned(ThreadPool& pool) {
    if (sched_getaffinity(0, sizeof(allowed_), &allowed_) != 0) return;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &allowed_)) cpus_.push_back(cpu);
    pool.run(static_cast<size_t>(pool.size()),
             [&](size_t, size_t, int worker) { pin(static_cast<size_t>(worker)); });
  }
  void free_caller() { sched_setaffinity(0, sizeof(allowed_), &allowed_); }
  void pin_caller() { pin(0); }

 private:
  void pin(size_t worker) {
    if (cpus_.empty()) return;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpus_[worker % cpus_.size()], &one);
    sched_setaffinity(0, sizeof(one), &one);
  }
  cpu_set_t allowed_{};
  std::vector<int> cpus_;
};

struct Bench {
  Options options;
  ThreadPool pool{options.threads};
  Pinned pinned{pool};
  kernels::Roofs roofs = kernels::measure_roofs(pool);
  std::mt19937_64 rng{1};

  void report(const std::string& name, const std::string& type, int64_t m, double seconds,
              double bytes, double ops, double peak, std::string_view note = "") {
    const double gb = bytes / seconds / 1e9, gop = ops / seconds / 1e9;
    if (options.csv) {
      fmt::print("{},{},{},{:.2f},{:.2f},{:.3f},{:.1f},{:.3f},{}\n", name, type, m, seconds * 1e6,
                 gb, gb / roofs.dram_read_gb_per_s, gop, gop / peak, note);
      return;
    }
    fmt::print(
        "{:<14} {:<5} {:>4} {:>10.2f} us {:>7.2f} GB/s {:>4.0f} % of DRAM {:>7.1f} GOP/s {:>4.0f} "
        "% of peak {}\n",
        name, type, m, seconds * 1e6, gb, 100 * gb / roofs.dram_read_gb_per_s, gop,
        100 * gop / peak, note);
  }
  double peak(ActivationType type) const {
    return type == ActivationType::kInt8Block32 ? roofs.int8_gop_per_s
           : type == ActivationType::kBF16      ? roofs.bf16_gflop_per_s
                                                : roofs.f32_gflop_per_s;
  }

  void shapes(DType dtype) {
    const std::string type(info(dtype).name);
    roofs.dram_read_gb_per_s =
        kernels::measure_dram_read(pool);  // neighbours on the host make it drift
    const bool super = info(dtype).block_elements == 256;
    for (const Shape s :
         super ? std::span<const Shape>(kSuperShapes) : std::span<const Shape>(kShapes)) {
      const auto source = kernels::random_weights(dtype, s.n, s.k, kernels::Weights::kRandom, rng);
      std::vector<PackedMatrix> copies;
      size_t have = 0;
      const auto before = Clock::now();
      for (; have < kColdBytes; have += copies.back().bytes())
        copies.push_back(packed(dtype, s, source, pool));
      const double pack_seconds = std::chrono::duration<double>(Clock::now() - before).count();
      const auto bytes = static_cast<double>(copies[0].bytes());
      if (!options.csv)
        fmt::print("{:<14} {:<5} pack at {:.2f} GB/s\n", fmt::format("{}x{}", s.n, s.k), type,
                   static_cast<double>(have) / pack_seconds / 1e9);
      for (const int64_t m : options.rows) {
        const std::vector<float> x = kernels::random_activations(m, s.k, rng);
        std::vector<float> y(static_cast<size_t>(m * s.n));
        Activations a;
        const ActivationType form = kernels::activation_type(dtype);
        size_t turn = 0;
        const double seconds = time_of(options.seconds, [&] {
          a.set(form, x.data(), m, s.k, s.k, pool);
          kernels::linear(copies[turn], a, y.data(), s.n, pool);
          turn = (turn + 1) % copies.size();
        });
        report(fmt::format("{}x{}", s.n, s.k), type, m, seconds, bytes,
               2.0 * static_cast<double>(m * s.n * s.k), peak(form));
        if (m >= 64 && (form == ActivationType::kBF16 || dtype == DType::kQ8_0)) {
          const auto call =
              form == ActivationType::kBF16 ? bf16_rival(m, s.n, s.k) : int8_rival(m, s.n, s.k);
          if (call) {
            pinned.free_caller();
            const double rival = time_of(options.seconds, call);
            pinned.pin_caller();
            report("  oneDNN", form == ActivationType::kBF16 ? "bf16" : "u8s8", m, rival, bytes,
                   2.0 * static_cast<double>(m * s.n * s.k), peak(form),
                   "(weights warm, no scales)");
          }
        }
      }
    }
  }

  // All products of one SmolLM2-135M step in their order: 30 layers of the given type and a Q8_0
  // head.
  void model(DType dtype) {
    struct Layer {
      PackedMatrix qkv, o, gate_up, down;
    };
    std::vector<Layer> layers;
    double bytes = 0, ops = 0;
    const auto source = [&](DType type, Shape s) {
      return kernels::random_weights(type, s.n, s.k, kernels::Weights::kRandom, rng);
    };
    const auto qkv = source(dtype, {960, 576}), o = source(dtype, {576, 576}),
               gate_up = source(dtype, {3072, 576}), down = source(dtype, {576, 1536});
    for (int i = 0; i < 30; ++i) {
      layers.push_back({packed(dtype, {960, 576}, qkv, pool), packed(dtype, {576, 576}, o, pool),
                        packed(dtype, {3072, 576}, gate_up, pool),
                        packed(dtype, {576, 1536}, down, pool)});
      const Layer& l = layers.back();
      for (const PackedMatrix* w : {&l.qkv, &l.o, &l.gate_up, &l.down}) {
        bytes += static_cast<double>(w->bytes());
        ops += 2.0 * static_cast<double>(w->n() * w->k());
      }
    }
    const PackedMatrix head =
        packed(DType::kQ8_0, {49152, 576}, source(DType::kQ8_0, {49152, 576}), pool);
    for (const int64_t m : options.rows) {
      const std::vector<float> x = kernels::random_activations(m, 1536, rng);
      std::vector<float> y(static_cast<size_t>(m * 3072)),
          logits(static_cast<size_t>(std::min<int64_t>(m, 16) * 49152));
      Activations a, last;
      const ActivationType form = kernels::activation_type(dtype);
      const int64_t m_head = std::min<int64_t>(m, 16);
      const double seconds = time_of(4 * options.seconds, [&] {
        for (const Layer& l : layers) {
          a.set(form, x.data(), m, 576, 576, pool);
          kernels::linear(l.qkv, a, y.data(), 960, pool);
          a.set(form, x.data(), m, 576, 576, pool);
          kernels::linear(l.o, a, y.data(), 576, pool);
          a.set(form, x.data(), m, 576, 576, pool);
          kernels::linear(l.gate_up, a, y.data(), 3072, pool);
          a.set(form, x.data(), m, 1536, 1536, pool);
          kernels::linear(l.down, a, y.data(), 576, pool);
        }
        last.set(ActivationType::kInt8Block32, x.data(), m_head, 576, 576, pool);
        kernels::linear(head, last, logits.data(), 49152, pool);
      });
      report("smollm2 step", std::string(info(dtype).name), m, seconds,
             bytes + static_cast<double>(head.bytes()),
             ops * static_cast<double>(m) + 2.0 * 49152 * 576 * static_cast<double>(m_head),
             peak(form));
    }
  }
};

int main_of(int argc, char** argv) {
  CLI::App app("Speed of linear products, as shares of this machine's roofs");
  Options options;
  app.add_option("--types", options.types, "weight types")->delimiter(',');
  app.add_option("--rows", options.rows, "numbers of rows")->delimiter(',');
  app.add_option("--threads", options.threads, "threads")->check(CLI::Range(1, 1024));
  app.add_option("--seconds", options.seconds, "time for each number");
  app.add_flag("--model", options.model, "whole steps of a 135M model instead of single shapes");
  app.add_flag("--csv", options.csv, "comma-separated values");
  CLI11_PARSE(app, argc, argv);
  if (auto ok = init_active_isa(); !ok) {
    fmt::print(stderr, "{}\n", ok.error().str());
    return 2;
  }
  setenv("OMP_NUM_THREADS", std::to_string(options.threads).c_str(), 0);

  Bench bench{.options = options};
  fmt::print(
      stderr,
      "{} threads, {}: DRAM read {:.1f} GB/s, f32 {:.0f}, BF16 {:.0f} GFLOP/s, int8 {:.0f} GOP/s\n",
      options.threads, to_string(active_isa()), bench.roofs.dram_read_gb_per_s,
      bench.roofs.f32_gflop_per_s, bench.roofs.bf16_gflop_per_s, bench.roofs.int8_gop_per_s);
  if (options.csv) fmt::print("shape,type,rows,us,gb_per_s,dram_share,gop_per_s,peak_share,note\n");
  for (const std::string& name : options.types) {
    bool known = false;
    for (const DType dtype : kernels::kLinearTypes) {
      if (info(dtype).name != name) continue;
      known = true;
      options.model ? bench.model(dtype) : bench.shapes(dtype);
    }
    if (!known) {
      fmt::print(stderr, "--types: expected a weight type such as Q4_1, found \"{}\"\n", name);
      return 2;
    }
  }
  return 0;
}

}  // namespace
}  // namespace deepmint::bench

int main(int argc, char** argv) { return deepmint::bench::main_of(argc, argv); }
