// Parsing speed on the two kinds of large documents that we read: a tokenizer.json and a
// safetensors header.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <string>

#include "core/json.h"

namespace deepmint {
namespace {

// Like the tokenizer.json of a model with 128,000 tokens: one object of names to ids, one list of
// merges; about 7 MB.
std::string tokenizer_like() {
  json::Writer w;
  w.begin_object().key("model").begin_object().key("vocab").begin_object();
  for (int id = 0; id < 128'000; ++id) w.key(fmt::format("Ġtoken{}é", id * 7)).value(id);
  w.end_object().key("merges").begin_array();
  for (int rank = 0; rank < 127'000; ++rank) w.value(fmt::format("Ġto ken{}", rank));
  w.end_array().end_object().end_object();
  return w.take();
}

// 20,000 tensors; about 2.5 MB.
std::string safetensors_like() {
  json::Writer w;
  w.begin_object();
  for (int i = 0; i < 20'000; ++i) {
    w.key(fmt::format("model.layers.{}.ffn.experts.{}.w1.weight", i / 256, i % 256)).begin_object();
    w.key("dtype").value("F8_E4M3").key("shape").begin_array().value(2304).value(5120).end_array();
    w.key("data_offsets")
        .begin_array()
        .value(int64_t{i} * 11'796'480)
        .value(int64_t{i + 1} * 11'796'480)
        .end_array();
    w.end_object();
  }
  w.end_object();
  return w.take();
}

void parse(benchmark::State& state, const std::string& text) {
  for (auto _ : state) {
    auto value = json::parse(text);
    if (!value) state.SkipWithError(value.error().str().c_str());
    benchmark::DoNotOptimize(value);
  }
  state.SetBytesProcessed(static_cast<int64_t>(text.size()) * state.iterations());
}

BENCHMARK_CAPTURE(parse, tokenizer, tokenizer_like())->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(parse, safetensors, safetensors_like())->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(parse, long_string, "\"" + std::string(10'000'000, 'x') + "\"")
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace deepmint

BENCHMARK_MAIN();
