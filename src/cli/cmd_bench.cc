// deepmint bench: how fast this machine runs this model, beside what the machine could do at best.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "cli/bench_measure.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/prompt.h"
#include "cli/terminal.h"
#include "core/thread_pool.h"
#include "kernels/roofs.h"

namespace deepmint::cli {
namespace {

Result<int32_t> positive(const std::string& text, std::string_view option, double max) {
  int32_t value = 0;
  if (auto ok =
          assign(value, ConfigValue::from_text(text), Shape{.limits = {.min = 1, .max = max}});
      !ok)
    return tl::unexpected(std::move(ok).error().at(option));
  return value;
}

class BenchCommand : public Command {
 public:
  std::string_view name() const override { return "bench"; }
  std::string_view summary() const override {
    return "speed of this machine on this model, as a share of its roofs";
  }
  std::string_view description() const override {
    return "Each round measures the machine's memory bandwidth and arithmetic first, then decoding "
           "and prefill through the engine; medians of the rounds are shown. The share of the "
           "memory "
           "bandwidth is that of its measurements right before and after. Requests are greedy "
           "unless a temperature is given. Leave the machine alone meanwhile.";
  }
  std::span<const std::string_view> sections() const override {
    static constexpr std::string_view kSections[] = {"engine", "cpu", "log"};
    return kSections;
  }
  void options(Options& o) override {
    o.positional("MODEL", model_, "a .gguf file or a folder in Hugging Face layout");
    o.group("Measurements");
    o.text("--rows", rows_, "N,N,…", "sequences that decode together");
    o.text("--contexts", contexts_, "N,N,…",
           "tokens in front of one decoding sequence; those beyond the context are left out");
    o.text("--prefill", prefill_, "N", "tokens of the prefill measurement");
    o.text("--tokens", tokens_, "N", "tokens decoded per sequence and run");
    o.text("--runs", runs_, "N", "rounds of measurements; the medians count");
    o.text("--temperature", temperature_, "X", "sampling temperature; 0 = greedy");
    o.group("Output");
    o.flag("--json", json_, "one JSON object");
    o.flag("--csv", csv_, "comma-separated values");
    o.text("--svg", svg_, "FILE", "also write a bar chart to this file");
  }
  Status run(const Config& config, const Settings&) override;

 private:
  Result<BenchPlan> plan() const;

  std::string model_;
  std::string rows_ = "1,2,4,8,16", contexts_ = "256,1024,4096", prefill_ = "512", tokens_ = "64",
              runs_ = "3", temperature_ = "0";
  std::optional<std::string> svg_;
  bool json_ = false, csv_ = false;
};

Result<BenchPlan> BenchCommand::plan() const {
  BenchPlan plan;
  DEEPMINT_TRY(rows, parse_ids(rows_, "--rows", "numbers"));
  DEEPMINT_TRY(contexts, parse_ids(contexts_, "--contexts", "numbers"));
  for (const int32_t n : rows)
    if (n < 1 || n > 4096)
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("expected rows from 1 to 4096, found {}", n), "--rows");
  for (const int32_t n : contexts)
    if (n < 1 || n > 1 << 24)
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("expected tokens from 1 to {}, found {}", 1 << 24, n), "--contexts");
  plan.rows = std::move(rows);
  plan.contexts = std::move(contexts);
  DEEPMINT_TRY(prefill, positive(prefill_, "--prefill", 1 << 24));
  DEEPMINT_TRY(tokens, positive(tokens_, "--tokens", 1 << 20));
  DEEPMINT_TRY(runs, positive(runs_, "--runs", 1000));
  plan.prefill = prefill;
  plan.tokens = tokens;
  plan.runs = runs;
  if (auto ok = assign(plan.sampling.temperature, ConfigValue::from_text(temperature_),
                       Shape{.limits = {.min = 0, .max = kMaxTemperature}});
      !ok)
    return tl::unexpected(std::move(ok).error().at("--temperature"));
  plan.sampling.seed = 1;
  return plan;
}

Status BenchCommand::run(const Config& config, const Settings&) {
  if (json_ && csv_)
    return fail(ErrorCode::kInvalidArgument, "expected --json or --csv, found both",
                "deepmint bench");
  DEEPMINT_TRY(bench_plan, plan());
  std::FILE* chart = nullptr;
  if (svg_) {
    chart = std::fopen(svg_->c_str(), "wb");
    if (chart == nullptr)
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("cannot write: {}", std::strerror(errno)), *svg_);
  }
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> closes(
      chart, [](std::FILE* f) { return f != nullptr ? std::fclose(f) : 0; });
  DEEPMINT_TRY(open, open_model(model_, config,
                                *std::max_element(bench_plan.rows.begin(), bench_plan.rows.end())));
  Progress progress("measuring");
  ThreadPool pool(open.engine->info().threads);
  auto report = measure(
      open, bench_plan, [&] { return kernels::measure_roofs(pool); },
      [&] { return kernels::measure_dram_read(pool); },
      [&](double fraction) { progress.update(fraction); });
  progress.clear();
  if (!report) return tl::unexpected(std::move(report).error());
  if (chart != nullptr) {
    const std::string svg = bench_svg(*report);
    if (std::fwrite(svg.data(), 1, svg.size(), chart) != svg.size() || std::fflush(chart) != 0)
      return fail(ErrorCode::kUnavailable, fmt::format("cannot write: {}", std::strerror(errno)),
                  *svg_);
  }
  return write_stdout(json_  ? bench_json(*report) + "\n"
                      : csv_ ? bench_csv(*report)
                             : bench_text(*report));
}

}  // namespace

std::unique_ptr<Command> make_bench() { return std::make_unique<BenchCommand>(); }

}  // namespace deepmint::cli
