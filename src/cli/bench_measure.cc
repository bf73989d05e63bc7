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

// A moment, and what the model had done until then.
struct Mark {
  SteadyClock::time_point time;
  StepWork work;
};

// When each token of one request came.
class Timeline : public EventSink {
 public:
  Timeline(const Model& model, size_t tokens) : model_(model) { marks_.reserve(tokens); }
  void on_token(const TokenEvent&) override {
    marks_.push_back({SteadyClock::now(), model_.work()});
  }
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
  const std::vector<Mark>& marks() const { return marks_; }  // after wait()

 private:
  const Model& model_;
  std::vector<Mark> marks_;
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

  // A rate, and what the memory and the arithmetic did for it.
  struct Measured {
    double tokens_per_s = 0, gb_per_s = 0, gflop_per_s = 0;
  };

  // Of `rows` sequences that decode together after `context` tokens each: over the time in which
  // all of them do.
  Result<Measured> decode(int32_t rows, int32_t context) {
    DEEPMINT_TRY(lines, run(rows, context, plan_.tokens + 1));
    const auto later = [](const Mark& a, const Mark& b) { return a.time < b.time; };
    Mark begin = lines[0]->marks().front(), end = lines[0]->marks().back();
    for (const auto& line : lines) {
      begin = std::max(begin, line->marks().front(), later);
      end = std::min(end, line->marks().back(), later);
    }
    int64_t tokens = 0;
    for (const auto& line : lines)
      for (const Mark& at : line->marks()) tokens += at.time > begin.time && at.time <= end.time;
    if (tokens == 0)
      return fail(ErrorCode::kUnavailable, fmt::format("{} rows never decoded together", rows),
                  "bench");
    const double behind = context + plan_.tokens / 2.0, steps = double(tokens) / rows;
    return over(begin, end, double(tokens), step_bytes(rows, behind) * steps,
                step_flops(rows, rows, behind) * steps);
  }

  // Causal: on average half of the prompt lies before a row. Weights are taken as read once.
  Result<Measured> prefill(int32_t context) {
    const Mark begin{SteadyClock::now(), open_.loaded.model->work()};
    DEEPMINT_TRY(lines, run(1, context, 1));
    return over(begin, lines[0]->marks().front(), context, step_bytes(1, context / 2.0),
                step_flops(context, 1, context / 2.0));
  }

 private:
  // What the model has counted, or else what its description says.
  static Measured over(const Mark& begin, const Mark& end, double tokens, double bytes,
                       double flops) {
    if (end.work.bytes > begin.work.bytes) {
      bytes = double(end.work.bytes - begin.work.bytes);
      flops = 2 * double(end.work.macs - begin.work.macs);
    }
    const double time = seconds(end.time - begin.time);
    return {tokens / time, bytes / time / 1e9, flops / time / 1e9};
  }

  // Bytes that a step of `rows` rows reads, with `context` tokens behind each.
  double step_bytes(int32_t rows, double context) const {
    return double(open_.loaded.model->info().weight_bytes_per_token) +
           rows * context * kv_bytes_per_token_;
  }
  double step_flops(int32_t rows, int32_t logit_rows, double context) const {
    const ModelInfo& info = open_.loaded.model->info();
    if (info.macs_per_row == 0) return 0;
    return 2 *
           (rows * (double(info.macs_per_row) + context * double(info.macs_per_row_and_position)) +
            logit_rows * double(info.macs_per_logit_row));
  }

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
      auto line = std::make_shared<Timeline>(*open_.loaded.model, static_cast<size_t>(tokens));
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
      if (line->marks().empty())
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
  struct Rounds {
    std::vector<double> tokens, gb, gflop, share;
  };
  std::vector<Rounds> rounds(report.rows.size());
  for (int32_t round = 0; round < plan.runs; ++round) {
    measured_roofs.push_back(roofs());
    double before = measured_roofs.back().dram_read_gb_per_s;
    bandwidths.push_back(before);
    for (size_t i = 0; i < report.rows.size(); ++i) {
      const BenchRow& row = report.rows[i];
      const bool prefills = row.kind == BenchRow::Kind::kPrefill;
      DEEPMINT_TRY(measured,
                   prefills ? bench.prefill(row.context) : bench.decode(row.rows, row.context));
      const double after = dram();
      bandwidths.push_back(after);
      rounds[i].tokens.push_back(measured.tokens_per_s);
      rounds[i].gb.push_back(measured.gb_per_s);
      rounds[i].gflop.push_back(measured.gflop_per_s);
      rounds[i].share.push_back(measured.gb_per_s / ((before + after) / 2));
      before = after;
      const size_t done = static_cast<size_t>(round) * report.rows.size() + i + 1;
      progress(double(done) / double(report.rows.size() * static_cast<size_t>(plan.runs)));
    }
  }
  report.roofs = median_roofs(measured_roofs);
  report.roofs.dram_read_gb_per_s = spread(bandwidths).median;
  for (size_t i = 0; i < report.rows.size(); ++i) {
    BenchRow& row = report.rows[i];
    row.tokens_per_s = spread(rounds[i].tokens);
    row.gb_per_s = spread(rounds[i].gb).median;
    row.gflop_per_s = spread(rounds[i].gflop).median;
    row.dram_share = spread(rounds[i].share).median;
  }
  return report;
}

}  // namespace deepmint::cli
