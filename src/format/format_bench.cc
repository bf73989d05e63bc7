// Time to open checkpoints with a warm page cache. Pass a GGUF file in DEEPMINT_BENCH_GGUF to
// measure it too.
#include <benchmark/benchmark.h>

#include <cstdlib>

#include "format/gguf.h"
#include "format/inspect.h"
#include "format/safetensors.h"
#include "support/official_layout.h"
#include "support/safetensors_writer.h"

namespace deepmint {
namespace {

const std::filesystem::path& official() {
  static const testing::TempFolder* folder = [] {
    static testing::TempFolder made;
    testing::write_official_layout(made.path());
    return &made;
  }();
  return folder->path();
}

void open_official_safetensors(benchmark::State& state) {
  for (auto _ : state) {
    auto model = SafetensorsModel::open(official());
    if (!model) return state.SkipWithError(model.error().str().c_str());
    benchmark::DoNotOptimize(model);
  }
}
BENCHMARK(open_official_safetensors)->Unit(benchmark::kMillisecond);

void inspect_official_safetensors(benchmark::State& state) {
  for (auto _ : state) {
    auto report = inspect_model(official());
    if (!report) return state.SkipWithError(report.error().str().c_str());
    std::string text = to_text(*report);
    benchmark::DoNotOptimize(text);
  }
}
BENCHMARK(inspect_official_safetensors)->Unit(benchmark::kMillisecond);

void open_gguf(benchmark::State& state) {
  const char* path = std::getenv("DEEPMINT_BENCH_GGUF");
  if (path == nullptr) return state.SkipWithError("DEEPMINT_BENCH_GGUF is not set");
  for (auto _ : state) {
    auto file = GgufFile::open(path);
    if (!file) return state.SkipWithError(file.error().str().c_str());
    benchmark::DoNotOptimize(file);
  }
}
BENCHMARK(open_gguf)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace deepmint

BENCHMARK_MAIN();
