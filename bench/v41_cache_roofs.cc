#include "v41_cache_roofs.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "core/aligned.h"
#include "kernels/v41_ops.h"

namespace deepmint::bench {
namespace {

constexpr size_t kBytes = size_t{256} << 10;  // a quarter of a second-level cache
constexpr double kSeconds = 0.006;
constexpr int kTries = 5;

// Bytes per second of all threads together, each of which calls `make()` once and then the result
// again and again; a call gets through `bytes`.
double best_rate(ThreadPool& pool, double bytes,
                 const std::function<std::function<void()>()>& make) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  std::vector<double> rates(static_cast<size_t>(pool.size()) * kTries);
  pool.together([&](Team& team) {
    const std::function<void()> call = make();
    call();
    for (size_t i = 0; i < kTries; ++i) {
      team.meet();
      double calls = 0;
      const auto start = Clock::now();
      do {
        call();
        ++calls;
      } while (since(start) < kSeconds);
      rates[static_cast<size_t>(team.rank()) * kTries + i] = calls * bytes / since(start);
    }
  });
  double best = 0;
  for (size_t i = 0; i < kTries; ++i) {
    double sum = 0;
    for (size_t t = i; t < rates.size(); t += kTries) sum += rates[t];
    best = std::max(best, sum);
  }
  return best;
}

}  // namespace

double cached_product(ThreadPool& pool, kernels::V41Format format, int64_t k, int64_t rows) {
  using kernels::V41Format;
  const auto columns = static_cast<size_t>(k);
  const size_t row_bytes = format == V41Format::kBf16  ? 2 * columns
                           : format == V41Format::kFp8 ? columns
                                                       : columns / 2;
  // Whole tiles of 32 outputs, whose scales FP8 shares.
  const size_t n = std::max<size_t>(kBytes / row_bytes / 32, 1) * 32, codes = n * row_bytes;
  const size_t scales = format == V41Format::kBf16  ? 0
                        : format == V41Format::kFp8 ? codes / 1024
                                                    : n * (columns / 32);
  return best_rate(pool, static_cast<double>(codes + scales),
                   [&] {
                     struct State {
                       ThreadPool alone{1};
                       kernels::V41Workspace workspace;
                       kernels::V41Rows rows;
                       AlignedBuffer<std::byte> weights;
                       std::vector<float> y;
                     };
                     const auto s = std::make_shared<State>();
                     s->weights = AlignedBuffer<std::byte>(codes + scales);
                     // 0x38 is 1 in E4M3, -0 and 1.5 in E2M1, and 0x3838 a small number in BF16;
                     // 127 is the scale 1.
                     std::fill_n(s->weights.data(), codes, std::byte{0x38});
                     std::fill_n(s->weights.data() + codes, scales, std::byte{127});
                     const std::vector<float> x(static_cast<size_t>(rows) * columns, 1.0f);
                     s->y.resize(static_cast<size_t>(rows) * n);
                     s->rows.set(format,
                                 format == V41Format::kBf16 ? kernels::V41Round::kPlain
                                                            : kernels::V41Round::kQ8,
                                 x.data(), rows, k, k, s->alone);
                     return [s, format, n, k, codes] {
                       const std::byte* at = s->weights.data();
                       const kernels::V41Product product{
                           {format, at, at + codes, static_cast<int64_t>(n), k},
                           s->rows.rows(),
                           s->y.data(),
                           static_cast<int64_t>(n),
                           true};
                       kernels::v41_linear({&product, 1}, s->workspace, s->alone);
                     };
                   }) /
         1e9;
}

double cached_mix(ThreadPool& pool, int64_t outputs, int64_t k, int64_t rows) {
  const auto elements = static_cast<size_t>(outputs * k);
  return best_rate(pool, static_cast<double>(elements * sizeof(float)),
                   [&] {
                     struct State {
                       std::vector<float> x, weights, dots;
                     };
                     const auto s = std::make_shared<State>();
                     s->x.assign(static_cast<size_t>(rows * k), 1.0f);
                     s->weights.assign(elements, 1.0f);
                     s->dots.resize(static_cast<size_t>(rows * outputs));
                     return [s, outputs, k, rows] {
                       kernels::v41_mix_dots(s->x.data(), rows, k, s->weights.data(), 0, outputs,
                                             s->dots.data(), outputs);
                     };
                   }) /
         1e9;
}

}  // namespace deepmint::bench
