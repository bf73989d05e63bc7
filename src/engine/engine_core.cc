#include "engine/engine_core.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <random>

#include "core/check.h"
#include "core/cpu_isa.h"
#include "core/log.h"
#include "engine/guarded.h"
#include "engine/memory.h"
#include "kvcache/seq_state.h"

namespace deepmint {
namespace {

constexpr size_t kLogitRows =
    64;  // of a step, at least: how fast prompt log-probabilities go when few sequences may run

std::vector<kvcache::PartSpec> specs_of(const Model& model) {
  std::vector<kvcache::PartSpec> specs;
  for (const StatePart& part : model.state_parts())
    specs.push_back({std::string(part.name),
                     part.family == StatePart::Family::kGlobal ? kvcache::PartFamily::kGlobal
                                                               : kvcache::PartFamily::kPrivate,
                     part.bytes});
  return specs;
}

// Below 2^53, so that a reader of JSON numbers as doubles, and the HTTP API, can send it back.
uint64_t random_seed() {
  std::random_device device;  // getrandom
  return (uint64_t{device()} << 32 | device()) >> 11;
}

tl::unexpected<Error> bad_request(std::string where, std::string message) {
  return fail(ErrorCode::kInvalidArgument, std::move(message), std::move(where));
}

Status check_ids(std::span<const TokenId> ids, int64_t vocab_size, std::string_view field) {
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= vocab_size)
      return bad_request(
          fmt::format("{}[{}]", field, i),
          fmt::format("expected a token id in [0, {}), found {}", vocab_size, ids[i]));
  return {};
}

void fail_request(Sequence& s, std::optional<Error> error) {
  if (!error) return;
  s.error = std::move(error);
  s.ending = FinishReason::kError;
}

// Who came longer ago than this is not passed by anybody of its key, whatever their deadline.
constexpr std::chrono::minutes kPatience{10};

constexpr const char* kReceiver = "the receiver of events";

bool is_stop(const Sequence& s, TokenId id) {
  const auto& stops = s.request.stop_ids;
  return std::find(stops.begin(), stops.end(), id) != stops.end();
}

QueueModel::Options queue_options(const EngineConfig& config, const SchedulerLimits& limits) {
  QueueModel::Options options;
  options.max_waiting = config.max_waiting;
  options.max_running = limits.max_running;
  options.step_rows = limits.step_rows;
  options.first_token[static_cast<size_t>(RequestClass::kInteractive)] =
      std::chrono::milliseconds(config.interactive_first_token_ms);
  options.first_token[static_cast<size_t>(RequestClass::kAgent)] =
      std::chrono::milliseconds(config.agent_first_token_ms);
  return options;
}

// What a position that a row looks at costs beside the row itself, where the model does not say.
constexpr double kWorkPerPosition = 1.0 / 4096;

double work_per_position(const ModelInfo& info) {
  return info.macs_per_row > 0 ? static_cast<double>(info.macs_per_row_and_position) /
                                     static_cast<double>(info.macs_per_row)
                               : kWorkPerPosition;
}

double mib(size_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

// What the budget for state has become, at start.
void log_memory(const kvcache::CacheReport& r, uint64_t park_bytes) {
  log().info("state: {} blocks of {} tokens, {:.1f} KiB each: {:.1f} MiB", r.blocks_total,
             kBlockTokens, 1024 * mib(r.block_bytes), mib(r.blocks_total * r.block_bytes));
  if (r.slot_bytes > 0)
    log().info("state: window state of {:.1f} KiB: {} running {:.1f} MiB, {} snapshots {:.1f} MiB",
               1024 * mib(r.slot_bytes), r.slots_total, mib(r.slots_total * r.slot_bytes),
               r.snapshots_total, mib(r.snapshots_total * r.slot_bytes));
  log().info(
      "state: up to {:.1f} MiB for requests that step aside; beside the budget {:.1f} MiB of books",
      mib(park_bytes), mib(r.bookkeeping_bytes));
}

}  // namespace

Result<std::unique_ptr<EngineCore>> EngineCore::create(const LoadedModel& loaded,
                                                       const EngineConfig& config,
                                                       const Clock& clock,
                                                       const EngineHooks& hooks) {
  DEEPMINT_CHECK(loaded.model != nullptr);
  std::vector<kvcache::PartSpec> parts = specs_of(*loaded.model);
  StatePlan plan;
  if (hooks.state != nullptr) {
    plan = *hooks.state;
  } else {
    DEEPMINT_TRY(
        made, plan_state(config, parts, loaded.model->info().context_tokens, available_memory()));
    plan = made;
  }
  if (config.context_tokens == 0 && plan.context_tokens < loaded.model->info().context_tokens)
    log().warn("context is {} tokens, not the model's {}: engine.kv_bytes holds no more",
               plan.context_tokens, loaded.model->info().context_tokens);
  kvcache::CacheSetup setup;
  setup.parts = std::move(parts);
  setup.n_blocks = plan.n_blocks;
  setup.n_slots = plan.n_slots;
  setup.n_snapshots = plan.n_snapshots;
  setup.prefix_caching = config.prefix_cache;
  setup.hash_bits = hooks.hash_bits;
  if (hooks.change_cache) hooks.change_cache(setup);
  DEEPMINT_TRY(cache, kvcache::CacheManager::create(std::move(setup)));

  SchedulerLimits limits;
  limits.max_running = static_cast<size_t>(plan.max_running);
  limits.step_rows = static_cast<size_t>(config.step_tokens);
  limits.step_logit_rows = std::max(limits.max_running, std::min(kLogitRows, limits.step_rows));
  limits.step_attention = config.step_attention;

  LoadedModel with_pool = loaded;
  if (with_pool.pool == nullptr)
    with_pool.pool = std::make_shared<ThreadPool>(std::max(1, loaded.threads));
  EngineInfo info;
  info.model_name = loaded.model->info().name;
  info.architecture = loaded.model->info().architecture;
  info.vocab_size = loaded.model->info().vocab_size;
  info.context_tokens = plan.context_tokens;
  info.max_running = plan.max_running;
  info.kv_bytes = static_cast<int64_t>(plan.bytes);
  log_memory(cache->report(), plan.park_bytes);
  info.isa = std::string(isa_class(active_isa()));
  info.threads = with_pool.pool->size();

  std::unique_ptr<EngineCore> core;
  try {
    core.reset(new EngineCore(with_pool, config, clock, hooks, std::move(cache), limits,
                              plan.park_bytes, std::move(info)));
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kResourceExhausted,
                "the system refused memory for the engine's buffers");
  }
  DEEPMINT_CHECK_OK(core->executor_->reserve());
  if (hooks.log != nullptr)
    hooks.log->setup({.model = core->info_.model_name,
                      .isa = core->info_.isa,
                      .fingerprint = loaded.model->info().fingerprint,
                      .state = plan,
                      .step_tokens = config.step_tokens,
                      .step_attention = config.step_attention,
                      .prefix_cache = config.prefix_cache,
                      .plan_ahead = config.plan_ahead,
                      .hash_bits = hooks.hash_bits});
  return core;
}

EngineCore::EngineCore(const LoadedModel& loaded, const EngineConfig& config, const Clock& clock,
                       const EngineHooks& hooks, std::unique_ptr<kvcache::CacheManager> cache,
                       const SchedulerLimits& limits, uint64_t park_budget, EngineInfo info)
    : model_(loaded.model),
      clock_(clock),
      hooks_(hooks),
      info_(std::move(info)),
      max_queue_(config.max_queue_ms),
      work_per_position_(work_per_position(loaded.model->info())),
      park_budget_(park_budget),
      layout_(kvcache::layout_fingerprint(cache->arena().parts())),
      cache_(std::move(cache)),
      snapshots_(cache_->report().snapshots_total > 0),
      scheduler_(limits, *cache_, *this),
      executor_(hooks.make_executor
                    ? hooks.make_executor(limits)
                    : std::make_unique<ModelExecutor>(loaded.model, loaded.pool, cache_->arena(),
                                                      limits, loaded.never_ids)),
      queue_(queue_options(config, limits)) {
  ending_.reserve(limits.max_running);
  kvcache::StateArena& arena = cache_->arena();
  for (size_t part = 0; part < arena.parts().size(); ++part)
    state_.push_back({arena.base(part), arena.count(part)});
  if (config.plan_ahead) runner_ = std::make_unique<StepRunner>(*executor_, clock_, hooks_.tap);
}

EngineCore::~EngineCore() = default;

// ---------------------------------------------------------------- requests

Result<std::unique_ptr<Sequence>> EngineCore::prepare(GenerationRequest request,
                                                      std::shared_ptr<EventSink> sink) const {
  DEEPMINT_CHECK(sink != nullptr);
  if (request.tokens.empty())
    return bad_request("tokens", "expected at least one token id, found none");
  if (request.tokens.size() > static_cast<size_t>(info_.context_tokens))
    return fail(ErrorCode::kTooLarge,
                fmt::format("expected at most {} tokens, the context, found {}",
                            info_.context_tokens, request.tokens.size()),
                "tokens");
  DEEPMINT_CHECK_OK(check_ids(request.tokens, info_.vocab_size, "tokens"));
  DEEPMINT_CHECK_OK(model_->check_tokens(request.tokens));
  DEEPMINT_CHECK_OK(check_ids(request.stop_ids, info_.vocab_size, "stop_ids"));
  DEEPMINT_CHECK_OK(request.sampling.validate(info_.vocab_size));
  if (request.max_tokens < -1)
    return bad_request("max_tokens",
                       fmt::format("expected at least -1, found {}", request.max_tokens));
  if (!(request.fair_weight >= 0.001 && request.fair_weight <= 1000))
    return bad_request("fair_weight",
                       fmt::format("expected 0.001 to 1000, found {}", request.fair_weight));
  if (request.choice < 0)
    return bad_request("choice", fmt::format("expected at least 0, found {}", request.choice));
  const auto prompt = static_cast<int32_t>(request.tokens.size());
  const int32_t room = info_.context_tokens - prompt;
  if (request.max_tokens != 0 && room == 0)
    return fail(ErrorCode::kTooLarge,
                fmt::format("expected a prompt shorter than the context of {} tokens, found {}",
                            info_.context_tokens, prompt),
                "tokens");

  auto s = std::make_unique<Sequence>();
  s->control = std::make_shared<RequestControl>();
  s->control->id = next_id_.fetch_add(1, std::memory_order_relaxed);
  s->prompt_tokens = prompt;
  s->limit = prompt + (request.max_tokens < 0 ? room : std::min(room, request.max_tokens));
  s->seed = request.sampling.seed ? *request.sampling.seed : random_seed();
  s->tokens = TokenTimeline(request.tokens, s->limit);
  request.tokens = {};
  s->work = work(0, prompt);
  if (request.tail_keep_tokens) {
    if (request.want_prompt_logits)
      return bad_request("tail_keep_tokens",
                         "expected the whole model for every token of a prompt whose "
                         "log-probabilities are wanted, found a bounded decoder tail");
    DEEPMINT_TRY(tail, model_->bounded_prompt_tail(prompt, *request.tail_keep_tokens));
    s->tail = tail;
  } else if (!request.want_prompt_logits) {
    // Exact at the last block boundary already, where a snapshot may be taken; whether one is, is
    // no part of the request, which may go on in another engine.
    const int32_t boundary = s->last_boundary();
    s->tail = model_->exact_prompt_tail(boundary > 0 ? boundary : prompt);
  }
  s->use_own_tail();
  s->request = std::move(request);
  s->sink = std::move(sink);
  if (!scheduler_.can_ever_fit(s->positions_needed()))
    return fail(
        ErrorCode::kTooLarge,
        fmt::format("expected a need of at most {} blocks of state, found {}",
                    cache_->report().blocks_total, kvcache::blocks_for(s->positions_needed())),
        "tokens");
  s->lease = kvcache::Lease(kvcache::blocks_for(s->positions_needed()));
  s->chain = kvcache::HashChain({.model_fingerprint = model_->info().fingerprint,
                                 .layout_fingerprint = layout_,
                                 .salt = s->request.cache_salt});
  s->chain.reserve(static_cast<size_t>(s->limit));
  s->chain.append(s->prompt());
  s->may_reuse = !s->request.want_prompt_logits;
  s->may_publish = true;
  return s;
}

Result<std::unique_ptr<Sequence>> EngineCore::prepare_saved(GenerationRequest request,
                                                            std::vector<std::byte> state,
                                                            std::shared_ptr<EventSink> sink) const {
  DEEPMINT_TRY(view,
               kvcache::decode_seq_state(state, {.model_fingerprint = model_->info().fingerprint,
                                                 .vocab_size = info_.vocab_size,
                                                 .context_tokens = info_.context_tokens,
                                                 .parts = cache_->arena().parts()}));
  const kvcache::SeqState& saved = view.state;
  if (request.tail_keep_tokens)
    return bad_request("tail_keep_tokens",
                       "expected none for a saved sequence, found a bounded decoder tail");
  if (!request.sampling.seed) request.sampling.seed = saved.seed;
  DEEPMINT_TRY(s, prepare(std::move(request), std::move(sink)));
  if (s->prompt_tokens != saved.prompt_tokens ||
      !std::equal(s->prompt().begin(), s->prompt().end(), saved.tokens.begin()))
    return bad_request("tokens",
                       "expected the prompt that the saved sequence began with, found another");
  if (s->seed != saved.seed || s->request.choice != saved.choice)
    return bad_request(
        "seed", fmt::format("expected seed {} and choice {} as saved, found {} and {}", saved.seed,
                            saved.choice, s->seed, s->request.choice));
  const auto length = static_cast<int32_t>(saved.tokens.size());
  if (length >= s->limit && s->limit > s->prompt_tokens)
    return bad_request(
        "max_tokens",
        fmt::format("expected more than the {} tokens that the saved sequence has, found {}",
                    length - saved.prompt_tokens, s->limit - s->prompt_tokens));
  // Rows that a decoder tail left out have nothing in the rings that a full run would read.
  if (s->request.want_prompt_logits && saved.computed > 0 && saved.computed < s->prompt_tokens &&
      model_->exact_prompt_tail(s->prompt_tokens).first_full > 0)
    return bad_request("want_prompt_logits",
                       "expected a saved sequence that has run its prompt, found one inside it");
  if (saved.computed >= length)
    return bad_request("state", "expected a token that has not been run, found none to go on from");
  if (auto ok = model_->check_tokens(saved.tokens); !ok)
    return tl::unexpected(std::move(ok).error().at("state"));
  for (const TokenId id : std::span(saved.tokens).subspan(static_cast<size_t>(s->prompt_tokens)))
    s->tokens.append_known(id);
  s->computed = s->granted = saved.computed;
  // What others computed and this one did not see is not mixed in, and what came from outside is
  // nobody else's.
  s->may_reuse = false;
  s->may_publish = false;
  s->work = work(s->computed, length - s->computed);
  s->saved = std::move(state);
  return s;
}

Status EngineCore::take_place(const Sequence& sequence) {
  return queue_.enter(sequence.request.request_class, sequence.work);
}

void EngineCore::add(std::unique_ptr<Sequence> sequence) {
  Sequence& s = *sequence;
  s.cost = s.work + 2 * queue_.expected_output(s.request.request_class, s.limit - s.length());
  if (!s.request.start_by && max_queue_.count() > 0) s.request.start_by = clock_.now() + max_queue_;
  if (!s.due) {
    s.due = clock_.now() + kPatience;
    if (s.request.deadline) s.due = std::min(*s.due, *s.request.deadline);
  }
  if (hooks_.log != nullptr) hooks_.log->add(s);
  scheduler_.enqueue(std::move(sequence));
}

void EngineCore::cancel_all_at(Clock::time_point when) {
  cancel_all_at_ = when;
  if (hooks_.log != nullptr) hooks_.log->cancel_all_at(when);
}

// One call, from here to the end of its scope, at one time.
class EngineCore::Call {
 public:
  Call(EngineCore& core, std::string_view name, uint64_t value) : log_(core.hooks_.log) {
    core.now_ = core.clock_.now();
    if (log_ != nullptr) log_->open(name, value, core.now_);
  }
  ~Call() {
    if (log_ != nullptr) log_->close();
  }
  Call(const Call&) = delete;

 private:
  ScheduleLog* const log_;
};

Result<std::vector<std::byte>> EngineCore::export_state(uint64_t id) {
  const Call call(*this, "export", id);
  quiesce();
  const auto is_it = [id](const std::unique_ptr<Sequence>& s) { return s->control->id == id; };
  const auto where = fmt::format("request {}", id);
  for (const auto* list : {&scheduler_.running(), &scheduler_.parked()}) {
    const auto it = std::find_if(list->begin(), list->end(), is_it);
    if (it == list->end()) continue;
    Sequence& s = **it;
    // Its rings belong to this request's own approximation, which the saved form does not name.
    if (s.request.tail_keep_tokens)
      return fail(ErrorCode::kUnsupported,
                  "expected a request without a bounded decoder tail, found one", where);
    if (s.window_floor > 0 && s.request.bounded_replay)
      return fail(ErrorCode::kUnsupported, "expected an exact request, found a bounded replay",
                  where);
    if (s.replaying()) return encode(s, 0);
    return s.saved.empty() ? encode(s, s.computed) : s.saved;
  }
  return fail(ErrorCode::kNotFound,
              fmt::format("expected a running request, found none with id {}", id));
}

bool EngineCore::preempt(uint64_t id) {
  const Call call(*this, "preempt", id);
  quiesce();
  for (const auto& s : scheduler_.running())
    if (s->control->id == id) return scheduler_.preempt(s.get(), now_);
  return false;
}

EngineStats EngineCore::stats() const {
  EngineStats s = stats_;
  s.running = static_cast<int64_t>(scheduler_.running().size());
  s.waiting = queue_.waiting() + static_cast<int64_t>(scheduler_.parked().size());
  const kvcache::CacheReport r = cache_->report();
  const kvcache::CacheCounters& c = cache_->counters();
  const auto n = [](size_t value) { return static_cast<int64_t>(value); };
  s.blocks_total = n(r.blocks_total);
  s.blocks_cached = n(r.blocks_cached);
  s.blocks_free = n(r.blocks_free + r.blocks_cached);
  s.cache_evictions = c.evicted;
  s.cache_collisions = c.collisions;
  s.snapshots = n(r.snapshots_used);
  s.snapshots_restored = c.snapshots_restored;
  s.bytes_running =
      n((r.blocks_taken + r.blocks_pinned) * r.block_bytes + r.slots_used * r.slot_bytes);
  s.bytes_cached = n(r.blocks_cached * r.block_bytes);
  s.bytes_snapshots = n(r.snapshots_used * r.slot_bytes);
  s.bytes_free = n(r.state_bytes) - s.bytes_running - s.bytes_cached - s.bytes_snapshots;
  s.bytes_books = n(r.bookkeeping_bytes);
  return s;
}

// ---------------------------------------------------------------- one step

void EngineCore::observe(StepPoint point, const StepPlan* plan) {
  if (hooks_.observer != nullptr) hooks_.observer->at(point, plan);
}

double EngineCore::work(int32_t begin, int32_t count) const {
  const Grant g{.begin = begin, .count = count};
  return count + work_per_position_ * static_cast<double>(g.attention());
}

void EngineCore::move(Sequence& s, RequestState next) {
  if (s.move_to(next)) return;
  fail_request(s, Error{ErrorCode::kInternal,
                        fmt::format("a request cannot go from {} to {}", to_string(s.state),
                                    to_string(next)),
                        {}});
}

void EngineCore::step() {
  const Call call(*this, "step", ++calls_);
  observe(StepPoint::kStart, nullptr);
  sweep();
  if (scheduler_.idle()) {
    step_ended_ = {};
    return;
  }
  if (runner_ != nullptr) {
    step_ahead();
  } else {
    step_alone();
  }
  if (idle()) step_ended_ = {};  // what follows is not a gap: nobody is there
  report_load();
}

// Plan, run, deliver: one after the other.
void EngineCore::step_alone() {
  const StepPlan& plan = scheduler_.plan(now_);
  if (hooks_.log != nullptr) hooks_.log->plan(plan);
  admitted(plan);
  // Or the engine would spin: whatever waits fits into an empty pool.
  DEEPMINT_CHECK(plan.rows > 0);
  observe(StepPoint::kPlanned, &plan);
  executor_->prepare(plan);
  StepResult result;
  result.began = clock_.now();
  result.forward = executor_->run(hooks_.tap);
  result.ended = clock_.now();
  result.took = result.ended - result.began;
  observe(StepPoint::kForwarded, &plan);
  if (result.forward) {
    executor_->masks(plan);
    const auto sampling = clock_.now();
    result.outcomes = executor_->sample(plan);
    result.ended = clock_.now();
    result.took += result.ended - sampling;
  }
  observe(StepPoint::kSampled, &plan);
  settle(plan, result, nullptr);
  apply(plan, result);
  observe(StepPoint::kApplied, &plan);
}

// The next step is planned while one runs, from upper bounds; then the outcome of the one that ran
// takes rows out of the plan, the plan starts, and beside it the events of the former are
// delivered.
void EngineCore::step_ahead() {
  const StepPlan& next = scheduler_.plan(now_);
  if (hooks_.log != nullptr) hooks_.log->plan(next);
  observe(StepPoint::kPlanned, &next);
  const StepPlan* before = in_flight_;
  DEEPMINT_CHECK(before != nullptr || next.rows > 0);
  StepResult result;
  bool applied = before == nullptr;
  if (before != nullptr) {
    result = runner_->wait();
    in_flight_ = nullptr;
    observe(StepPoint::kForwarded, before);
    observe(StepPoint::kSampled, before);
    settle(*before, result, &next);
    // The next step overwrites the logits.
    applied = std::any_of(before->grants.begin(), before->grants.end(),
                          [](const Grant& g) { return g.all_logits; });
    if (applied) apply(*before, result);
  }
  admitted(next);
  const bool runs = next.rows > 0;
  if (runs) {
    executor_->prepare(next);
    runner_->start(next);
  } else {
    scheduler_.retire(next, true, now_);
  }
  if (!applied) apply(*before, result);
  if (before != nullptr) observe(StepPoint::kApplied, before);
  if (runs) {
    executor_->masks(next);
    runner_->sample();
    in_flight_ = &next;
  }
}

// Nothing is in flight afterwards.
void EngineCore::quiesce() {
  if (in_flight_ == nullptr) return;
  const StepPlan& plan = *in_flight_;
  const StepResult result = runner_->wait();
  in_flight_ = nullptr;
  settle(plan, result, nullptr);
  apply(plan, result);
}

// Ends what was cancelled, ran out of time, or must go because the engine stops.
void EngineCore::sweep() {
  ending_.clear();
  const bool all = cancel_all_at_ && now_ >= *cancel_all_at_;
  const auto look = [&](Sequence& s) {
    notice_cancelled(s, true);
    if (all || s.cancelled) {
      s.ending = FinishReason::kCancelled;
    } else if (s.request.deadline && now_ >= *s.request.deadline) {
      s.ending = FinishReason::kDeadline;
    }
    if (s.ending) ending_.push_back(&s);
  };
  for (const auto& s : scheduler_.running()) look(*s);
  for (const auto& s : scheduler_.parked()) look(*s);
  scheduler_.waiting().for_each([&](Sequence& s) {
    look(s);
    if (s.ending || !s.request.start_by || now_ < *s.request.start_by) return;
    Error error{ErrorCode::kResourceExhausted,
                "the request waited for a place until its time was up; try again later",
                {}};
    error.retry_after_s =
        std::clamp(queue_.predicted_first_token(s.request.request_class, s.work), 1.0, 600.0);
    fail_request(s, std::move(error));
    ending_.push_back(&s);
  });
  for (Sequence* s : ending_) retire(s);
}

// Callers cancel at any moment; the engine looks at two points of a step, so that what follows is a
// function of where it saw it.
void EngineCore::notice_cancelled(Sequence& s, bool before_plan) {
  if (s.cancelled || !s.control->cancelled.load(std::memory_order_relaxed)) return;
  s.cancelled = true;
  if (hooks_.log != nullptr) hooks_.log->cancelled(s, before_plan);
}

void EngineCore::admitted(const StepPlan& plan) {
  for (Sequence* s : plan.admitted) {
    if (hooks_.log != nullptr) hooks_.log->admitted(*s);
    if (!s->started_at) {
      queue_.leave(s->request.request_class, s->work);
      s->started_at = now_;
    }
    start(*s);
  }
}

// A sequence got its place, for the first time or again.
void EngineCore::start(Sequence& s) {
  move(s, RequestState::kMatching);
  if (s.leader != nullptr) return move(s, RequestState::kLoading);  // it comes by again
  if (s.request.mask != nullptr && !s.mask_fed)
    for (const TokenId id : s.output()) s.request.mask->accept(id);
  s.mask_fed = true;
  if (s.parked) ++stats_.resumed;
  s.parked = false;
  stats_.cached_tokens += s.reused - s.counted_reused;
  s.counted_reused = s.reused;
  if (s.decoding()) move(s, RequestState::kLoading);
  move(s, s.decoding() ? RequestState::kDecode : RequestState::kPrefill);
  model_->prefetch(s.tokens.known().subspan(static_cast<size_t>(s.computed)));
}

// The plan has been executed. What is known to have ended leaves the next plan before that starts.
void EngineCore::settle(const StepPlan& plan, const StepResult& result, const StepPlan* next) {
  if (result.forward) {
    double work_done = 0;
    for (const Grant& g : plan.grants) {
      work_done += work(g.begin, g.count);
      stats_.replayed_tokens += std::clamp(g.sequence->hit - g.begin, 0, g.count);
      if (g.sequence->state == RequestState::kDone) stats_.late_rows += g.count;
    }
    queue_.step_took(work_done, result.took);
    // Between two steps, and inside one while masks are made, the model's threads have nothing to
    // do.
    stats_.step_ns += std::max<int64_t>(0, result.took.count());
    stats_.step_gap_ns += std::max<int64_t>(0, (result.ended - result.began - result.took).count());
    if (step_ended_)
      stats_.step_gap_ns += std::max<int64_t>(0, (result.began - *step_ended_).count());
    ++stats_.steps;
    stats_.rows += static_cast<int64_t>(plan.rows);
  }
  step_ended_ = result.ended;
  scheduler_.retire(plan, result.forward.has_value(), now_);
  for (size_t i = 0; i < plan.grants.size(); ++i) {
    const Grant& g = plan.grants[i];
    if (g.sequence == nullptr) continue;
    Sequence& s = *g.sequence;
    if (result.forward) {
      executor_->commit(s);
      take_snapshot(s);
    }
    notice_cancelled(s, false);
    if (next == nullptr) continue;
    const bool ended =
        !result.forward || s.cancelled ||
        (g.sample && (result.outcomes[i].error || is_stop(s, result.outcomes[i].token)));
    if (ended) scheduler_.withdraw(s, *next);
  }
}

void EngineCore::apply(const StepPlan& plan, const StepResult& result) {
  ending_.clear();
  for (size_t i = 0; i < plan.grants.size(); ++i) {
    const Grant& g = plan.grants[i];
    if (g.sequence == nullptr) continue;
    Sequence& s = *g.sequence;
    if (!result.forward) {
      fail_request(s, result.forward.error());
    } else if (s.cancelled) {
      s.ending = FinishReason::kCancelled;
    } else {
      deliver(g, i, g.sample ? &result.outcomes[i] : nullptr);
    }
    if (s.ending) ending_.push_back(&s);
  }
  for (Sequence* s : ending_) retire(s);
}

// The events of one grant.
void EngineCore::deliver(const Grant& g, size_t index, const SampleOutcome* outcome) {
  Sequence& s = *g.sequence;
  if (g.begin < s.prompt_tokens) {
    const int32_t done = std::min(s.prompt_tokens, g.begin + g.count);
    stats_.prompt_tokens += done - g.begin;
    fail_request(s, guarded(kReceiver, [&] { s.sink->on_prefill(done, s.prompt_tokens); }));
    for (int32_t row = 0; g.all_logits && row < g.count && !s.ending; ++row)
      fail_request(s, guarded(kReceiver, [&] {
                     s.sink->on_prompt_logits(
                         g.begin + row, executor_->logits_of(index, static_cast<size_t>(row)));
                   }));
    if (s.ending) return;
  }
  if (outcome != nullptr) {
    deliver_token(s, *outcome);
  } else if (g.begin + g.count == s.length()) {
    s.ending = FinishReason::kLength;  // prefill only
  }
}

void EngineCore::deliver_token(Sequence& s, const SampleOutcome& outcome) {
  if (outcome.error) return fail_request(s, outcome.error);
  TokenEvent event{};
  event.id = outcome.token;
  event.choice = s.request.choice;
  event.position = s.length();
  event.logprob = outcome.logprob;
  event.top = std::span(outcome.top).first(outcome.n_top);
  s.tokens.deliver();
  --s.in_flight;
  if (hooks_.log != nullptr) hooks_.log->token(s, outcome.token, outcome.logprob);
  ++stats_.output_tokens;
  if (s.state == RequestState::kPrefill) move(s, RequestState::kDecode);
  if (s.request.mask != nullptr)
    fail_request(s, guarded("the mask", [&] { s.request.mask->accept(outcome.token); }));
  if (s.ending) return;
  fail_request(s, guarded(kReceiver, [&] { s.sink->on_token(event); }));
  if (s.ending) return;
  if (is_stop(s, outcome.token)) {
    s.ending = FinishReason::kStop;
  } else if (s.length() == s.limit) {
    s.ending = FinishReason::kLength;
  }
}

// Out of the scheduler, blocks back, last event.
void EngineCore::retire(Sequence* s) {
  const bool whole = s->ending == FinishReason::kStop || s->ending == FinishReason::kLength;
  move(*s, whole ? RequestState::kDraining : RequestState::kAborting);
  s->state = RequestState::kDone;
  FinishEvent event;
  event.reason = *s->ending;
  event.choice = s->request.choice;
  event.usage.prompt_tokens = s->prompt_tokens;
  event.usage.cached_tokens = s->reused;
  event.usage.replayed_tokens = s->replayed;
  event.usage.cache_miss = static_cast<CacheMiss>(s->miss);
  // A bounded tail as long as the exact one is none.
  if (s->tail.first_full > model_->exact_prompt_tail(s->prompt_tokens).first_full)
    event.usage.tail_skipped_tokens = s->tail.first_full;
  event.usage.bounded_replay = s->replay_is_bounded;
  event.usage.output_tokens = s->length() - s->prompt_tokens;
  event.seed = s->seed;
  event.error = std::move(s->error);
  if (!s->started_at) {
    queue_.leave(s->request.request_class, s->work);
  } else if (whole) {
    queue_.finished(s->request.request_class, event.usage.output_tokens, now_ - *s->started_at);
  }
  if (s->parked) stats_.parked_bytes -= static_cast<int64_t>(s->saved.size());
  switch (event.reason) {
    case FinishReason::kStop:
    case FinishReason::kLength:
      ++stats_.finished;
      break;
    case FinishReason::kCancelled:
    case FinishReason::kDeadline:
      ++stats_.cancelled;
      break;
    case FinishReason::kError:
      ++stats_.failed;
      break;
  }
  if (hooks_.log != nullptr) hooks_.log->end(*s, event.reason);
  const std::shared_ptr<EventSink> sink = std::move(s->sink);
  scheduler_.finish(s, now_);
  (void)guarded(kReceiver,
                [&] { sink->on_finish(event); });  // nobody is left to tell if this fails
}

// What stands before a request that comes now.
void EngineCore::report_load() {
  QueueModel::Running load;
  for (const auto& s : scheduler_.running()) {
    if (s->decoding()) {
      ++load.decode_rows;
    } else {
      load.prefill_work[s->class_index()] += work(s->granted, s->pending());
    }
  }
  for (const auto& s : scheduler_.parked())
    if (!s->decoding()) load.prefill_work[s->class_index()] += work(s->granted, s->pending());
  if (!scheduler_.blocked())
    load.free_places = scheduler_.limits().max_running - scheduler_.running().size();
  queue_.report(load);
}

}  // namespace deepmint
