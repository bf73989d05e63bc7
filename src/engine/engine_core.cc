#include "engine/engine_core.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <random>

#include "core/check.h"
#include "core/cpu_isa.h"
#include "core/log.h"
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

// Calls into a sink; what it throws becomes the error of its own request.
template <class Call>
void guarded(Sequence& s, const Call& call) {
  std::string what;
  try {
    call();
    return;
  } catch (const std::exception& e) {
    what = e.what();
  } catch (...) {
    what = "unknown exception";
  }
  s.error = Error{ErrorCode::kInternal, fmt::format("the receiver of events failed: {}", what), {}};
  s.ending = FinishReason::kError;
}

}  // namespace

Result<std::unique_ptr<EngineCore>> EngineCore::create(const LoadedModel& loaded,
                                                       const EngineConfig& config,
                                                       const Clock& clock,
                                                       const EngineHooks& hooks) {
  DEEPMINT_CHECK(loaded.model != nullptr);
  std::vector<kvcache::PartSpec> parts = specs_of(*loaded.model);
  // Weights in mapped files count as available until the page cache is squeezed: not here.
  const uint64_t available = available_memory(),
                 mapped = std::min(available, loaded.model->info().mapped_resident_bytes);
  DEEPMINT_TRY(plan,
               plan_state(config, parts, loaded.model->info().context_tokens, available - mapped));
  if (config.context_tokens == 0 && plan.context_tokens < loaded.model->info().context_tokens)
    log().warn("context is {} tokens, not the model's {}: engine.kv_bytes holds no more",
               plan.context_tokens, loaded.model->info().context_tokens);
  DEEPMINT_TRY(arena, kvcache::StateArena::create(std::move(parts), plan.n_blocks, plan.n_slots));

  SchedulerLimits limits;
  limits.max_running = static_cast<size_t>(plan.max_running);
  limits.step_rows = static_cast<size_t>(config.step_tokens);
  limits.step_logit_rows = std::max(limits.max_running, std::min(kLogitRows, limits.step_rows));
  limits.n_blocks = plan.n_blocks;
  limits.n_slots = plan.n_slots;

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
  info.isa = std::string(isa_class(active_isa()));
  info.threads = with_pool.pool->size();

  std::unique_ptr<EngineCore> core;
  try {
    core.reset(
        new EngineCore(with_pool, config, clock, hooks, std::move(arena), limits, std::move(info)));
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kResourceExhausted,
                "the system refused memory for the engine's buffers");
  }
  DEEPMINT_CHECK_OK(core->executor_.reserve());
  return core;
}

EngineCore::EngineCore(const LoadedModel& loaded, const EngineConfig& config, const Clock& clock,
                       const EngineHooks& hooks, kvcache::StateArena arena,
                       const SchedulerLimits& limits, EngineInfo info)
    : model_(loaded.model),
      clock_(clock),
      hooks_(hooks),
      info_(std::move(info)),
      max_waiting_(config.max_waiting),
      arena_(std::move(arena)),
      scheduler_(limits),
      executor_(loaded.model, loaded.pool, arena_, limits, loaded.never_ids) {
  ending_.reserve(limits.max_running);
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
  DEEPMINT_CHECK_OK(check_ids(request.stop_ids, info_.vocab_size, "stop_ids"));
  DEEPMINT_CHECK_OK(request.sampling.validate(info_.vocab_size));
  if (request.max_tokens < -1)
    return bad_request("max_tokens",
                       fmt::format("expected at least -1, found {}", request.max_tokens));
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
  s->tokens = std::move(request.tokens);
  s->tokens.reserve(static_cast<size_t>(s->limit));
  if (request.tail_keep_tokens) {
    if (request.want_prompt_logits)
      return bad_request("tail_keep_tokens",
                         "expected the whole model for every token of a prompt whose "
                         "log-probabilities are wanted, found a bounded decoder tail");
    DEEPMINT_TRY(tail, model_->bounded_prompt_tail(prompt, *request.tail_keep_tokens));
    s->tail = tail;
  } else if (!request.want_prompt_logits) {
    s->tail = model_->exact_prompt_tail(prompt);
  }
  s->request = std::move(request);
  s->sink = std::move(sink);
  if (!scheduler_.can_ever_fit(s->positions_needed()))
    return fail(
        ErrorCode::kTooLarge,
        fmt::format("expected a need of at most {} blocks of state, found {}",
                    scheduler_.blocks().total(), kvcache::blocks_for(s->positions_needed())),
        "tokens");
  return s;
}

Result<std::unique_ptr<Sequence>> EngineCore::prepare_saved(GenerationRequest request,
                                                            std::vector<std::byte> state,
                                                            std::shared_ptr<EventSink> sink) const {
  DEEPMINT_TRY(view,
               kvcache::decode_seq_state(state, {.model_fingerprint = model_->info().fingerprint,
                                                 .vocab_size = info_.vocab_size,
                                                 .context_tokens = info_.context_tokens,
                                                 .parts = arena_.parts()}));
  const kvcache::SeqState& saved = view.state;
  if (request.tail_keep_tokens)
    return bad_request("tail_keep_tokens",
                       "expected none for a saved sequence, found a bounded decoder tail");
  if (!request.sampling.seed) request.sampling.seed = saved.seed;
  DEEPMINT_TRY(s, prepare(std::move(request), std::move(sink)));
  if (s->prompt_tokens != saved.prompt_tokens ||
      !std::equal(s->tokens.begin(), s->tokens.end(), saved.tokens.begin()))
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
  if (s->request.want_prompt_logits && saved.computed < s->prompt_tokens &&
      model_->exact_prompt_tail(s->prompt_tokens).first_full > 0)
    return bad_request("want_prompt_logits",
                       "expected a saved sequence that has run its prompt, found one inside it");
  if (saved.computed >= length)
    return bad_request("state", "expected a token that has not been run, found none to go on from");
  s->tokens.insert(s->tokens.end(), saved.tokens.begin() + s->prompt_tokens, saved.tokens.end());
  s->computed = saved.computed;
  s->saved = std::move(state);
  return s;
}

bool EngineCore::take_place() {
  if (queued_.fetch_add(1, std::memory_order_relaxed) < max_waiting_) return true;
  queued_.fetch_sub(1, std::memory_order_relaxed);
  return false;
}

void EngineCore::add(std::unique_ptr<Sequence> sequence) {
  scheduler_.enqueue(std::move(sequence));
}

Result<std::vector<std::byte>> EngineCore::export_state(uint64_t id) const {
  for (const auto& s : scheduler_.running()) {
    if (s->control->id != id) continue;
    // Its rings belong to this request's own approximation, which the saved form does not name.
    if (s->request.tail_keep_tokens)
      return fail(ErrorCode::kUnsupported,
                  "expected a request without a bounded decoder tail, found one",
                  fmt::format("request {}", id));
    kvcache::SeqState state;
    state.model_fingerprint = model_->info().fingerprint;
    state.tokens = s->tokens;
    state.prompt_tokens = s->prompt_tokens;
    state.computed = s->computed;
    state.seed = s->seed;
    state.choice = s->request.choice;
    return kvcache::encode_seq_state(state, arena_, s->blocks, s->slot);
  }
  return fail(ErrorCode::kNotFound,
              fmt::format("expected a running request, found none with id {}", id));
}

EngineStats EngineCore::stats() const {
  EngineStats s = stats_;
  s.running = static_cast<int64_t>(scheduler_.running().size());
  s.waiting = queued_.load(std::memory_order_relaxed);
  s.blocks_total = static_cast<int64_t>(scheduler_.blocks().total());
  s.blocks_free = static_cast<int64_t>(scheduler_.blocks().free());
  return s;
}

// ---------------------------------------------------------------- one step

void EngineCore::observe(StepPoint point, const StepPlan* plan) {
  if (hooks_.observer != nullptr) hooks_.observer->at(point, plan);
}

void EngineCore::step() {
  observe(StepPoint::kStart, nullptr);
  sweep(clock_.now());
  if (scheduler_.idle()) return;
  const StepPlan& plan = scheduler_.plan();
  for (Sequence* admitted : plan.admitted) start(*admitted);
  DEEPMINT_CHECK(plan.rows >
                 0);  // or the engine would spin: whatever waits fits into an empty pool
  observe(StepPoint::kPlanned, &plan);
  const Status forward = executor_.forward(plan, hooks_.tap);
  observe(StepPoint::kForwarded, &plan);
  std::span<const SampleOutcome> outcomes;
  if (forward) {
    scheduler_.advance(plan);
    outcomes = executor_.sample(plan);
    ++stats_.steps;
    stats_.rows += static_cast<int64_t>(plan.rows);
  }
  observe(StepPoint::kSampled, &plan);
  apply(plan, forward, outcomes);
  observe(StepPoint::kApplied, &plan);
}

// Ends what was cancelled, ran out of time, or must go because the engine stops.
void EngineCore::sweep(Clock::time_point now) {
  ending_.clear();
  const bool all = cancel_all_at_ && now >= *cancel_all_at_;
  const auto look = [&](Sequence& s) {
    if (all || s.control->cancelled.load(std::memory_order_relaxed)) {
      s.ending = FinishReason::kCancelled;
    } else if (s.request.deadline && now >= *s.request.deadline) {
      s.ending = FinishReason::kDeadline;
    }
    if (s.ending) ending_.push_back(&s);
  };
  for (const auto& s : scheduler_.running()) look(*s);
  for (const auto& s : scheduler_.waiting()) look(*s);
  for (Sequence* s : ending_) retire(s);
}

// First step of a sequence: its place in the queue is free, its saved state moves in.
void EngineCore::start(Sequence& s) {
  queued_.fetch_sub(1, std::memory_order_relaxed);
  if (s.request.mask != nullptr)
    for (const TokenId id : s.output()) s.request.mask->accept(id);
  if (!s.saved.empty()) {
    const auto view =
        kvcache::decode_seq_state(s.saved, {.model_fingerprint = model_->info().fingerprint,
                                            .vocab_size = info_.vocab_size,
                                            .context_tokens = info_.context_tokens,
                                            .parts = arena_.parts()});
    DEEPMINT_CHECK(view.has_value());  // prepare_saved() has read the same bytes
    kvcache::restore_parts(*view, arena_, s.blocks, s.slot);
    s.saved = {};
  }
  model_->prefetch(std::span(s.tokens).subspan(static_cast<size_t>(s.computed)));
}

void EngineCore::apply(const StepPlan& plan, const Status& forward,
                       std::span<const SampleOutcome> outcomes) {
  ending_.clear();
  for (size_t i = 0; i < plan.grants.size(); ++i) {
    Sequence& s = *plan.grants[i].sequence;
    if (!forward) {
      s.ending = FinishReason::kError;
      s.error = forward.error();
    } else if (s.control->cancelled.load(std::memory_order_relaxed)) {
      s.ending = FinishReason::kCancelled;
    } else {
      executor_.commit(s);
      deliver(plan.grants[i], i, plan.grants[i].sample ? &outcomes[i] : nullptr);
    }
    if (s.ending) ending_.push_back(&s);
  }
  for (Sequence* s : ending_) retire(s);
}

// The events of one grant.
void EngineCore::deliver(const Grant& g, size_t index, const SampleOutcome* outcome) {
  Sequence& s = *g.sequence;
  if (g.begin < s.prompt_tokens) {
    stats_.prompt_tokens += std::min(s.prompt_tokens, g.begin + g.count) - g.begin;
    guarded(s, [&] { s.sink->on_prefill(std::min(s.prompt_tokens, s.computed), s.prompt_tokens); });
    for (int32_t row = 0; g.all_logits && row < g.count && !s.ending; ++row)
      guarded(s, [&] {
        s.sink->on_prompt_logits(g.begin + row,
                                 executor_.logits_of(index, static_cast<size_t>(row)));
      });
    if (s.ending) return;
  }
  if (outcome != nullptr) {
    deliver_token(s, *outcome);
  } else if (s.pending() == 0) {
    s.ending = FinishReason::kLength;  // prefill only
  }
}

void EngineCore::deliver_token(Sequence& s, const SampleOutcome& outcome) {
  if (outcome.error) {
    s.error = outcome.error;
    s.ending = FinishReason::kError;
    return;
  }
  TokenEvent event{};
  event.id = outcome.token;
  event.choice = s.request.choice;
  event.position = s.length();
  event.logprob = outcome.logprob;
  event.top = std::span(outcome.top).first(outcome.n_top);
  s.tokens.push_back(outcome.token);
  ++stats_.output_tokens;
  if (s.request.mask != nullptr) s.request.mask->accept(outcome.token);
  guarded(s, [&] { s.sink->on_token(event); });
  if (s.ending) return;
  const auto& stops = s.request.stop_ids;
  if (std::find(stops.begin(), stops.end(), outcome.token) != stops.end()) {
    s.ending = FinishReason::kStop;
  } else if (s.length() == s.limit) {
    s.ending = FinishReason::kLength;
  }
}

// Out of the scheduler, blocks back, last event.
void EngineCore::retire(Sequence* sequence) {
  const std::unique_ptr<Sequence> s = scheduler_.finish(sequence);
  if (!s->admitted) queued_.fetch_sub(1, std::memory_order_relaxed);
  FinishEvent event;
  event.reason = *s->ending;
  event.choice = s->request.choice;
  event.usage.prompt_tokens = s->prompt_tokens;
  event.usage.output_tokens = s->length() - s->prompt_tokens;
  event.seed = s->seed;
  event.error = std::move(s->error);
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
  guarded(*s, [&] { s->sink->on_finish(event); });  // nobody is left to tell if this fails
}

}  // namespace deepmint
