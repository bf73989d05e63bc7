#include "sim/replay.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <unordered_set>
#include <utility>

#include "core/clock.h"
#include "engine/engine_core.h"

namespace deepmint::sim {
namespace {

constexpr size_t kFinePerBlock = kTraceBlockTokens / kBlockTokens;
constexpr size_t kBlockBytes = 64;  // the least that a state part may have
constexpr int64_t kVocab = std::numeric_limits<TokenId>::max();

class StandInModel : public Model {
 public:
  explicit StandInModel(int32_t context) {
    info_.architecture = info_.name = "stand-in";
    info_.vocab_size = kVocab;
    info_.context_tokens = context;
  }
  const ModelInfo& info() const override { return info_; }
  std::span<const StatePart> state_parts() const override { return parts_; }
  Status reserve(size_t, size_t) override { return {}; }
  Status forward(const StepInput&, std::span<float>, Tap*) override {
    return fail(ErrorCode::kInternal, "a stand-in has no forward step");
  }

 private:
  ModelInfo info_;
  std::array<StatePart, 1> parts_ = {
      StatePart{.name = "stand-in", .family = StatePart::Family::kGlobal, .bytes = kBlockBytes}};
};

// Steps that cost time and nothing else. Every sampled token is 0.
class StandInExecutor : public Executor {
 public:
  StandInExecutor(const std::optional<StepCost>& cost, ManualClock& clock, double& busy_s)
      : cost_(cost), clock_(clock), busy_s_(busy_s) {}
  Status reserve() override { return {}; }
  void prepare(const StepPlan& plan) override { rows_ = plan.rows; }
  Status run(Tap*) override {
    if (!cost_) return {};
    const double seconds = cost_->step_ms / 1e3 + static_cast<double>(rows_) / cost_->tokens_per_s;
    busy_s_ += seconds;
    clock_.advance(std::chrono::nanoseconds(std::llround(seconds * 1e9)));
    return {};
  }
  void masks(const StepPlan&) override {}
  std::span<const SampleOutcome> sample(const StepPlan& plan) override {
    outcomes_.assign(plan.grants.size(), SampleOutcome{});
    for (const Grant& g : plan.grants)
      if (g.sample) g.sequence->tokens.append_sampled(0);
    return outcomes_;
  }
  std::span<const float> logits_of(size_t, size_t) const override { return {}; }
  void commit(const Sequence&) override {}

 private:
  const std::optional<StepCost> cost_;
  ManualClock& clock_;
  double& busy_s_;
  size_t rows_ = 0;
  std::vector<SampleOutcome> outcomes_;
};

class Recorder : public EventSink {
 public:
  Recorder(const TraceRequest& request, bool whole_blocks, const ManualClock& clock,
           ReplayReport& report)
      : request_(request),
        whole_blocks_(whole_blocks),
        clock_(clock),
        arrived_(clock.now()),
        report_(report) {}
  void on_token(const TokenEvent&) override {
    if (std::exchange(first_, false))
      report_.first_token_s.push_back(
          std::chrono::duration<double>(clock_.now() - arrived_).count());
  }
  void on_finish(const FinishEvent& event) override {
    const int32_t cached = event.usage.cached_tokens;
    report_.hit_tokens +=
        whole_blocks_ ? request_.tokens_in(static_cast<size_t>(cached / kBlockTokens)) : cached;
    report_.output_tokens += event.usage.output_tokens;
  }

 private:
  const TraceRequest& request_;
  const bool whole_blocks_;
  const ManualClock& clock_;
  const Clock::time_point arrived_;
  ReplayReport& report_;
  bool first_ = true;
};

// Ids that stand for part `part` of a trace block, and nothing else.
void append_ids(std::vector<TokenId>& out, uint64_t block, size_t part) {
  const size_t begin = out.size();
  out.resize(begin + kBlockTokens, 0);
  constexpr int kBits = 30;
  for (size_t i = 0; i < 3; ++i)
    out[begin + i] = static_cast<TokenId>(block >> (kBits * i) & ((1u << kBits) - 1));
  out[begin + 3] = static_cast<TokenId>(part);
}

std::vector<TokenId> prompt_of(const TraceRequest& r, bool whole_blocks) {
  std::vector<TokenId> tokens;
  tokens.reserve((r.blocks.size() * kFinePerBlock + 1) * kBlockTokens);
  for (const uint64_t block : r.blocks)
    for (size_t part = 0; part < (whole_blocks ? 1 : kFinePerBlock); ++part)
      append_ids(tokens, block, part);
  // One token more: the last one is always run, so that the block before it may be a hit.
  tokens.resize(whole_blocks ? tokens.size() + 1 : static_cast<size_t>(r.input_tokens), 0);
  return tokens;
}

// Blocks that one request needs, and all of them where nothing gives way.
struct Need {
  size_t longest = 1, everything = 0;
};

Need need_of(const std::vector<TraceRequest>& trace, const ReplaySetting& setting) {
  Need need;
  for (const TraceRequest& r : trace) {
    const size_t prompt = setting.whole_trace_blocks ? r.blocks.size() * kBlockTokens + 1
                                                     : static_cast<size_t>(r.input_tokens);
    const size_t output = setting.cost ? static_cast<size_t>(r.output_tokens) : 0;
    const size_t blocks = (prompt + output) / kBlockTokens + 1;
    need.longest = std::max(need.longest, blocks);
    need.everything += output / kBlockTokens + 2;
  }
  need.everything +=
      distinct_blocks(trace) * (setting.whole_trace_blocks ? 1 : kFinePerBlock) + need.longest;
  return need;
}

}  // namespace

ReplaySetting ReplaySetting::reference(size_t capacity_blocks, std::optional<double> ttl_s) {
  return {.capacity_blocks = capacity_blocks,
          .ttl_s = ttl_s,
          .policy = kvcache::EvictionPolicy::kLru,
          .whole_trace_blocks = true};
}

ReplaySetting ReplaySetting::product(size_t capacity_blocks, std::optional<double> ttl_s) {
  return {.capacity_blocks = capacity_blocks, .ttl_s = ttl_s};
}

ReplaySetting ReplaySetting::under_load(double step_ms, double tokens_per_s) const {
  ReplaySetting out = *this;
  out.cost = StepCost{.step_ms = step_ms, .tokens_per_s = tokens_per_s};
  return out;
}

double ReplayReport::first_token_ms(double quantile) const {
  if (first_token_s.empty()) return std::numeric_limits<double>::quiet_NaN();
  const auto last = static_cast<double>(first_token_s.size() - 1);
  return 1e3 * first_token_s[static_cast<size_t>(std::lround(quantile * last))];
}

size_t distinct_blocks(const std::vector<TraceRequest>& trace) {
  std::unordered_set<uint64_t> seen;
  for (const TraceRequest& r : trace) seen.insert(r.blocks.begin(), r.blocks.end());
  return seen.size();
}

Result<ReplayReport> replay(const std::vector<TraceRequest>& trace, const ReplaySetting& setting) {
  const Need need = need_of(trace, setting);
  size_t blocks = need.everything;
  if (setting.capacity_blocks > 0)  // the token more of each request stands beside the capacity
    blocks = setting.whole_trace_blocks ? setting.capacity_blocks + 1
                                        : setting.capacity_blocks * kFinePerBlock;
  const auto context = static_cast<int32_t>(std::min(blocks, need.longest) * kBlockTokens);

  ManualClock clock;
  double busy_s = 0;
  EngineConfig config;
  config.kv_bytes = static_cast<int64_t>(blocks * kBlockBytes);
  config.park_bytes = 0;
  config.max_running = setting.max_running;
  config.max_waiting = 1'000'000;
  config.step_tokens = std::max(setting.step_tokens, setting.max_running);
  config.step_attention = int64_t{1} << 40;
  EngineHooks hooks;
  hooks.make_executor = [&](const SchedulerLimits&) {
    return std::make_unique<StandInExecutor>(setting.cost, clock, busy_s);
  };
  hooks.change_cache = [&](kvcache::CacheSetup& setup) {
    setup.n_blocks = blocks;
    setup.policy = setting.policy;
    setup.event_capacity = 0;
    if (setting.ttl_s)
      setup.block_ttl = std::chrono::nanoseconds(std::llround(*setting.ttl_s * 1e9));
  };
  LoadedModel loaded;
  loaded.model = std::make_shared<StandInModel>(context);
  DEEPMINT_TRY(core, EngineCore::create(loaded, config, clock, hooks));

  ReplayReport report;
  const int64_t start = trace.empty() ? 0 : trace.front().timestamp_ms;
  const auto arrival = [&](size_t i) {
    return Clock::time_point(std::chrono::milliseconds(trace[i].timestamp_ms - start));
  };
  const auto submit = [&](const TraceRequest& r) {
    ++report.requests;
    report.prompt_tokens += r.input_tokens;
    GenerationRequest request;
    request.tokens = prompt_of(r, setting.whole_trace_blocks);
    request.max_tokens = setting.cost ? r.output_tokens : 0;
    request.sampling.seed = 0;
    auto sequence =
        core->prepare(std::move(request),
                      std::make_shared<Recorder>(r, setting.whole_trace_blocks, clock, report));
    if (sequence && core->take_place(**sequence)) {
      core->add(std::move(*sequence));
    } else {
      ++report.refused;
    }
  };
  for (size_t next = 0; next < trace.size() || !core->idle();) {
    if (core->idle() && arrival(next) > clock.now()) clock.advance(arrival(next) - clock.now());
    // Without time requests do not meet: one is over before the next one comes.
    for (; next < trace.size() && arrival(next) <= clock.now(); ++next) {
      if (!setting.cost && !core->idle()) break;
      submit(trace[next]);
    }
    if (!core->idle()) core->step();
  }
  report.steps = core->stats().steps;
  report.cache = core->cache().counters();
  report.seconds = std::chrono::duration<double>(clock.now().time_since_epoch()).count();
  report.busy_share = report.seconds > 0 ? busy_s / report.seconds : 0;
  std::ranges::sort(report.first_token_s);
  DEEPMINT_CHECK_OK(core->cache().check());
  return report;
}

}  // namespace deepmint::sim
