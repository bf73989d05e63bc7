#include "cli/bench_measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <optional>

#include "cli/command_line.h"

namespace deepmint::cli {
namespace {

using SteadyClock = std::chrono::steady_clock;
double seconds(SteadyClock::duration d) { return std::chrono::duration<double>(d).count(); }

// When each token of one request came.
class Timeline : public EventSink {
 public:
  explicit Timeline(size_t tokens) { times_.reserve(tokens); }
  void on_token(const TokenEvent&) override { times_.push_back(SteadyClock::now()); }
  void on_finish(const FinishEvent& event) override {
    const std::lock_guard lock(mutex_);
    finish_ = event;
    finished_.notify_all();
  }
  Status wait() {
    std::unique_lock lock(mutex_);
    finished_.wait(lock, [&] { return finish_.has_value(); });
    if (finish_->reason == FinishReason::kError)
      return tl::unexpected(finish_->error.value_or(
          Error{ErrorCode::kInternal, "the engine gave no reason", "engine"}));
    return {};
  }
  const std::vector<SteadyClock::time_point>& times() const { return times_; }  // after wait()

 private:
  std::vector<SteadyClock::time_point> times_;
  std::mutex mutex_;
  std::condition_variable finished_;
  std::optional<FinishEvent> finish_;
};

// Ids spread over the vocabulary, the same on every run; different for every row, so that nothing
// can be shared.
std::vector<TokenId> some_tokens(int64_t vocab, int32_t count, uint64_t salt) {
  std::vector<TokenId> ids;
  uint64_t state = 0x9e3779b97f4a7c15u * (salt + 1);
  for (int32_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    ids.push_back(static_cast<TokenId>((state >> 33) % static_cast<uint64_t>(vocab)));
  }
  return ids;
}

class Bench {
 public:
  Bench(const OpenModel& open, const BenchPlan& plan) : open_(open), plan_(plan) {
    for (const StatePart& part : open.loaded.model->state_parts())
      if (part.family == StatePart::Family::kGlobal)
        kv_bytes_per_token_ += double(part.bytes) / kBlockTokens;
  }

  // Tokens per second of `rows` sequences that decode together after `context` tokens each: over
  // the time in which all of them do.
  Result<double> decode(int32_t rows, int32_t context) {
    DEEPMINT_TRY(lines, run(rows, context, plan_.tokens + 1));
    SteadyClock::time_point begin = SteadyClock::time_point::min(),
                            end = SteadyClock::time_point::max();
    for (const auto& line : lines) {
      begin = std::max(begin, line->times().front());
      end = std::min(end, line->times().back());
    }
    int64_t tokens = 0;
    for (const auto& line : lines)
      for (const auto& at : line->times()) tokens += at > begin && at <= end;
    if (tokens == 0)
      return fail(ErrorCode::kUnavailable, fmt::format("{} rows never decoded together", rows),
                  "bench");
    return double(tokens) / seconds(end - begin);
  }

  Result<double> prefill(int32_t context) {
    const auto begin = SteadyClock::now();
    DEEPMINT_TRY(lines, run(1, context, 1));
    return context / seconds(lines[0]->times().front() - begin);
  }

  // Bytes that a step of `rows` rows reads, with `context` tokens behind each.
  double step_bytes(int32_t rows, double context) const {
    return double(open_.loaded.model->info().weight_bytes_per_token) +
           rows * context * kv_bytes_per_token_;
  }
  double step_flops(int32_t rows, int32_t logit_rows, double context) const {
    const ModelInfo& info = open_.loaded.model->info();
    return 2 *
           (rows * (double(info.macs_per_row) + context * double(info.macs_per_row_and_position)) +
            logit_rows * double(info.macs_per_logit_row));
  }

 private:
  Result<std::vector<std::shared_ptr<Timeline>>> run(int32_t rows, int32_t context,
                                                     int32_t tokens) {
    std::vector<std::shared_ptr<Timeline>> lines;
    const EngineInfo& info = open_.engine->info();
    std::vector<std::shared_ptr<Ticket>> tickets;
    for (int32_t row = 0; row < rows; ++row) {
      GenerationRequest request;
      request.tokens = some_tokens(info.vocab_size, context, salt_++);
      request.sampling = plan_.sampling;
      request.max_tokens = tokens;
      auto line = std::make_shared<Timeline>(static_cast<size_t>(tokens));
      auto ticket = open_.engine->submit(std::move(request), line);
      if (!ticket) {
        for (const auto& other : tickets) other->cancel();
        for (const auto& other : lines) (void)other->wait();
        return tl::unexpected(std::move(ticket).error());
      }
      lines.push_back(std::move(line));
      tickets.push_back(std::move(*ticket));
    }
    for (const auto& line : lines) {
      DEEPMINT_CHECK_OK(line->wait());
      if (line->times().empty())
        return fail(ErrorCode::kInternal, "a request ended without a token", "bench");
    }
    return lines;
  }

  const OpenModel& open_;
  const BenchPlan& plan_;
  double kv_bytes_per_token_ = 0;
  uint64_t salt_ = 0;
};

}  // namespace

kernels::Roofs median_roofs(std::span<const kernels::Roofs> all) {
  const auto median = [&](double kernels::Roofs::* field) {
    std::vector<double> values;
    for (const kernels::Roofs& roofs : all) values.push_back(roofs.*field);
    return spread(values).median;
  };
  return {.dram_read_gb_per_s = median(&kernels::Roofs::dram_read_gb_per_s),
          .f32_gflop_per_s = median(&kernels::Roofs::f32_gflop_per_s),
          .bf16_gflop_per_s = median(&kernels::Roofs::bf16_gflop_per_s),
          .int8_gop_per_s = median(&kernels::Roofs::int8_gop_per_s)};
}

std::string machine_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown CPU";
}

Result<BenchReport> measure(const OpenModel& open, const BenchPlan& plan,
                            const std::function<kernels::Roofs()>& roofs,
                            const std::function<double()>& dram,
                            const std::function<void(double)>& progress) {
  const EngineInfo& info = open.engine->info();
  const ModelInfo& model = open.loaded.model->info();
  BenchReport report;
  report.model = info.model_name;
  report.architecture = info.architecture;
  report.machine = machine_name();
  report.isa = info.isa;
  report.version = program_version();
  report.arithmetic = model.arithmetic;
  report.threads = info.threads;
  report.runs = plan.runs;
  report.weight_bytes = model.weight_bytes;

  for (const int32_t rows : plan.rows)
    report.rows.push_back({.kind = BenchRow::Kind::kDecode, .rows = rows, .context = plan.prompt});
  for (const int32_t context : plan.contexts)
    report.rows.push_back({.kind = BenchRow::Kind::kContext, .rows = 1, .context = context});
  report.rows.push_back({.kind = BenchRow::Kind::kPrefill, .rows = 1, .context = plan.prefill});
  std::erase_if(report.rows, [&](const BenchRow& row) {
    const int32_t tokens = row.kind == BenchRow::Kind::kPrefill ? 1 : plan.tokens + 1;
    return row.context + tokens > info.context_tokens || row.rows > info.max_running;
  });

  Bench bench(open, plan);
  DEEPMINT_CHECK_OK(
      bench.decode(1, plan.prompt));  // first touch of weights and K/V, thread start-up
  // Round after round over everything, roofs first: a slow moment of the machine falls on all
  // figures alike, and the medians leave it out.
  std::vector<kernels::Roofs> measured_roofs;
  std::vector<double> bandwidths;
  std::vector<std::vector<double>> rates(report.rows.size()), per_gb(report.rows.size());
  for (int32_t round = 0; round < plan.runs; ++round) {
    measured_roofs.push_back(roofs());
    double before = measured_roofs.back().dram_read_gb_per_s;
    bandwidths.push_back(before);
    for (size_t i = 0; i < report.rows.size(); ++i) {
      const BenchRow& row = report.rows[i];
      const bool prefills = row.kind == BenchRow::Kind::kPrefill;
      DEEPMINT_TRY(rate,
                   prefills ? bench.prefill(row.context) : bench.decode(row.rows, row.context));
      const double after = dram();
      bandwidths.push_back(after);
      rates[i].push_back(rate);
      per_gb[i].push_back(rate / ((before + after) / 2));
      before = after;
      const size_t done = static_cast<size_t>(round) * report.rows.size() + i + 1;
      progress(double(done) / double(report.rows.size() * static_cast<size_t>(plan.runs)));
    }
  }
  report.roofs = median_roofs(measured_roofs);
  report.roofs.dram_read_gb_per_s = spread(bandwidths).median;
  for (size_t i = 0; i < report.rows.size(); ++i) {
    BenchRow& row = report.rows[i];
    row.tokens_per_s = spread(rates[i]);
    if (row.kind == BenchRow::Kind::kPrefill) {
      // Causal: on average half of the prompt lies before a row. Weights are read once per step of
      // the engine.
      const double per_s = row.tokens_per_s.median / row.context;
      row.gb_per_s = bench.step_bytes(1, row.context / 2.0) * per_s / 1e9;
      row.gflop_per_s = bench.step_flops(row.context, 1, row.context / 2.0) * per_s / 1e9;
    } else {
      const double steps_per_s = row.tokens_per_s.median / row.rows;
      const double behind = row.context + plan.tokens / 2.0;
      row.gb_per_s = bench.step_bytes(row.rows, behind) * steps_per_s / 1e9;
      row.gflop_per_s = bench.step_flops(row.rows, row.rows, behind) * steps_per_s / 1e9;
    }
    if (model.macs_per_row == 0) row.gflop_per_s = 0;
    row.dram_share = row.gb_per_s / row.tokens_per_s.median * spread(per_gb[i]).median;
  }
  return report;
}

}  // namespace deepmint::cli
