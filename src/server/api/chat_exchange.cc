#include "server/api/chat_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <random>
#include <utility>

#include "core/log.h"
#include "recipe/convert.h"
#include "server/api/constraint.h"

namespace deepmint {
namespace {

constexpr size_t kLargeBody =
    128 << 10;  // bytes; beyond it a body waits in the lane for large jobs
constexpr size_t kMaxInbox =
    1 << 16;  // tokens that the io thread may be behind; it normally is behind by one step

// Below 2^53, so that a client that reads JSON numbers as doubles can send it back unchanged.
uint64_t draw_seed() {
  std::random_device device;
  return ((uint64_t{device()} << 32) | device()) >> 11;
}

ApiError model_not_found(const ApiContext& context, std::string_view name) {
  ApiError error = http_error(404, fmt::format("the model \"{}\" is not served here; \"{}\" is",
                                               name.substr(0, 100), context.model.id));
  error.code = "model_not_found";
  error.param = "model";
  return error;
}

// Whether what the model writes first is thinking, and not yet the answer.
bool thinks_first(const ChatRequest& request, const ChatPlan& plan) {
  if (!request.conversation) return plan.starts_in_thinking;
  return request.conversation->conversation.thinking &&
         request.conversation->parsing.stage != recipe::ThinkingStage::kContent;
}

// The engine's names of what a request has under another one.
ApiError from_engine(Error error) {
  const bool too_long = error.code == ErrorCode::kTooLarge;
  if (too_long || error.where.starts_with("tokens")) error.where = "messages";
  if (error.where == "tail_keep_tokens")  // a model without a tail, or too few tokens
    error.where =
        error.code == ErrorCode::kUnsupported ? "prefill_tail" : "prefill_tail_keep_tokens";
  ApiError out = api_error(error);
  if (too_long) out.code = "context_length_exceeded";
  return out;
}

}  // namespace

// Engine thread. One per choice; keeps the exchange alive until the engine is done with it.
class ChatExchange::Sink final : public EventSink {
 public:
  Sink(std::shared_ptr<ChatExchange> owner, int32_t choice)
      : owner_(std::move(owner)), choice_(choice) {}
  void on_token(const TokenEvent& event) override {
    {
      const std::lock_guard lock(owner_->mutex_);
      if (owner_->gone_ || owner_->overflowed_) return;
      if (owner_->inbox_.size() >= kMaxInbox) {
        owner_->overflowed_ = true;  // pump() ends the exchange
      } else {
        owner_->inbox_.push_back(
            {choice_, event.id, event.logprob, {event.top.begin(), event.top.end()}});
      }
    }
    owner_->exchange_->wake();
  }
  void on_finish(const FinishEvent& event) override {
    Metrics& metrics = owner_->context_->metrics;
    switch (event.reason) {
      case FinishReason::kStop:
        ++metrics.finished_stop;
        break;
      case FinishReason::kLength:
        ++metrics.finished_length;
        break;
      case FinishReason::kCancelled:
        ++metrics.finished_cancelled;
        break;
      case FinishReason::kDeadline:
      case FinishReason::kError:
        ++metrics.finished_error;
        break;
    }
    metrics.prompt_tokens += event.usage.prompt_tokens;
    metrics.cached_tokens += event.usage.cached_tokens;
    ++metrics.cache_misses[static_cast<size_t>(event.usage.cache_miss)];
    metrics.output_tokens += event.usage.output_tokens;
    {
      const std::lock_guard lock(owner_->mutex_);
      if (owner_->gone_) return;
      owner_->finishes_.push_back({choice_, event});
    }
    owner_->exchange_->wake();
  }

 private:
  const std::shared_ptr<ChatExchange> owner_;
  const int32_t choice_;
};

void ChatExchange::start(const std::shared_ptr<ApiContext>& context, http::Body body,
                         const std::shared_ptr<http::Exchange>& exchange, std::string cors_origin,
                         std::string account) {
  const auto chat =
      std::make_shared<ChatExchange>(context, exchange, std::move(cors_origin), std::move(account));
  exchange->set_responder(chat);
  const auto size =
      body.text().size() > kLargeBody ? WorkerPool::Size::kLarge : WorkerPool::Size::kSmall;
  const auto held = std::make_shared<http::Body>(std::move(body));
  if (!context->workers.submit([chat, held] { chat->prepare(std::move(*held)); }, size))
    chat->end_with_error(*exchange,
                         http_error(503, "too many requests are waiting to be parsed; try again"));
}

ChatExchange::ChatExchange(std::shared_ptr<ApiContext> context,
                           std::shared_ptr<http::Exchange> exchange, std::string cors_origin,
                           std::string account)
    : context_(std::move(context)),
      exchange_(std::move(exchange)),
      cors_origin_(std::move(cors_origin)),
      account_(std::move(account)) {}

ChatExchange::~ChatExchange() = default;

// --- worker thread

void ChatExchange::prepare(http::Body body) {
  if (exchange_->closed()) return;
  try {
    const auto& chat = context_->model.chat;
    auto request = parse_chat_request(body.text(), context_->model.default_sampling,
                                      chat ? chat->deepseek : std::nullopt);
    body = {};
    if (!request) return fail_with(api_error(request.error()));
    if (!request->model.empty() && !context_->knows_model(recipe::model_to_look_up(request->model)))
      return fail_with(model_not_found(*context_, request->model));
    if (auto admitted = admit(std::move(*request)); !admitted)
      fail_with(from_engine(std::move(admitted).error()));
  } catch (const std::exception& e) {
    log().error("chat request failed: {}", e.what());
    fail_with(http_error(503, "not enough memory for this request; try again"));
  }
}

Status ChatExchange::admit(ChatRequest request) {
  const ServedModel& model = context_->model;
  if (!request.sampling.seed) request.sampling.seed = draw_seed();
  const bool is_held = request.constraint && request.constraint->must_enforce;
  const bool takes_default = !is_held && !request.asks_for_format && model.default_format;
  if ((is_held || takes_default) && request.ignore_eos)
    return fail(ErrorCode::kInvalidArgument,
                "expected false: a reply with a guaranteed form ends where the form does",
                "ignore_eos");
  DEEPMINT_TRY(plan, plan_chat(context_, request,
                               {.id = context_->next_completion_id(),
                                .model = model.id,
                                .fingerprint = context_->fingerprint,
                                .created = std::chrono::duration_cast<std::chrono::seconds>(
                                               std::chrono::system_clock::now().time_since_epoch())
                                               .count(),
                                .seed = *request.sampling.seed,
                                .include_usage = request.include_usage}));
  std::vector<std::shared_ptr<TokenMask>> masks(static_cast<size_t>(request.n));
  if (takes_default) {
    for (auto& mask : masks) {
      DEEPMINT_TRY(made, make_default_mask(model, thinks_first(request, plan)));
      mask = std::move(made);
    }
  } else if (request.constraint) {
    if (plan.starts_in_thinking) request.constraint->after_thinking = true;
    for (auto& mask : masks) {
      DEEPMINT_TRY(made, make_token_mask(*request.constraint, model));
      mask = std::move(made);
    }
  }

  GenerationRequest generation;
  generation.sampling = request.sampling;
  const int64_t room =
      int64_t{model.engine->info().context_tokens} - static_cast<int64_t>(plan.tokens.size());
  const int64_t wanted = request.max_tokens ? *request.max_tokens : model.default_max_tokens;
  generation.max_tokens = static_cast<int32_t>(wanted < 0 ? room : std::min(wanted, room));
  if (!request.ignore_eos) generation.stop_ids = model.end_ids;
  // Tenants share nothing, so that none can tell by timing what another has asked.
  generation.cache_salt =
      account_.empty() ? request.cache_salt : account_ + "/" + request.cache_salt;
  generation.tail_keep_tokens = request.tail_keep_tokens;
  generation.bounded_replay = request.bounded_replay;
  generation.request_class = model.request_class.value_or(request.request_class);
  generation.fair_key = account_.empty() ? request.user : account_;
  if (request.deadline_ms)
    generation.deadline = arrived_ + std::chrono::milliseconds(*request.deadline_ms);
  if (request.max_queue_ms)
    generation.start_by = arrived_ + std::chrono::milliseconds(*request.max_queue_ms);
  generation.tokens = std::move(plan.tokens);

  reply_ = std::move(plan.reply);
  stream_ = request.stream;
  n_ = request.n;
  request = {};  // its messages are tokens now
  for (int32_t choice = 0; choice < n_; ++choice) {
    if (exchange_->closed()) return {};
    GenerationRequest one = generation;
    one.choice = choice;
    one.mask = std::move(masks[static_cast<size_t>(choice)]);
    auto ticket =
        model.engine->submit(std::move(one), std::make_shared<Sink>(shared_from_this(), choice));
    const std::lock_guard lock(mutex_);
    if (!ticket) {
      for (const auto& earlier : tickets_) earlier->cancel();
      tickets_ = {};
      return tl::unexpected(std::move(ticket).error());
    }
    if (gone_)
      (*ticket)->cancel();
    else
      tickets_.push_back(std::move(*ticket));
  }
  ++context_->metrics.requests;
  {
    const std::lock_guard lock(mutex_);
    admitted_ = true;
  }
  exchange_->wake();
  return {};
}

void ChatExchange::fail_with(ApiError error) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::move(error);
  }
  exchange_->wake();
}

// --- io thread

void ChatExchange::cancel_all() {
  std::vector<std::shared_ptr<Ticket>> tickets;
  {
    const std::lock_guard lock(mutex_);
    gone_ = true;
    tickets.swap(tickets_);  // a ticket may keep its sink, and the sink keeps this object
    inbox_ = {};
    finishes_ = {};
  }
  for (const auto& ticket : tickets) ticket->cancel();
}

void ChatExchange::client_gone() { cancel_all(); }

void ChatExchange::shutting_down(http::Exchange& exchange) {
  end_with_error(exchange, http_error(503, "the server is shutting down"));
}

void ChatExchange::keep_alive(http::Exchange& exchange) { exchange.write(ChatOutput::kKeepAlive); }

void ChatExchange::pump(http::Exchange& exchange) {
  std::optional<ApiError> failure;
  bool admitted = false;
  {
    const std::lock_guard lock(mutex_);
    admitted = admitted_;
    failure = std::exchange(failure_, std::nullopt);
    if (overflowed_ && !failure) failure = http_error(500, "the server fell behind the engine");
    if (admitted && !failure) {
      now_.swap(inbox_);
      finished_now_.swap(finishes_);
    }
  }
  if (failure) return end_with_error(exchange, *failure);
  if (!admitted) return;  // tokens may come before admit() is done with the last choice
  if (!begun_) begin(exchange);
  for (const Event& event : now_) take_token(event);
  now_.clear();
  for (const Finish& finish : finished_now_) take_finish(finish);
  finished_now_.clear();
  if (trouble_) return end_with_error(exchange, *trouble_);
  if (stream_ && !out_.empty()) {
    exchange.write(out_);
    out_.clear();
  }
  if (unfinished_ == 0) end(exchange);
}

void ChatExchange::begin(http::Exchange& exchange) {
  begun_ = true;
  choices_.resize(static_cast<size_t>(n_));
  unfinished_ = choices_.size();
  http::Response head{.content_type = "text/event-stream; charset=utf-8"};
  reply_->begin(head.body);
  if (!stream_) return;
  head.headers = {{"cache-control", "no-cache"}, {"x-accel-buffering", "no"}};
  http::allow_origin(head, cors_origin_);
  context_->metrics.count_response(200);
  exchange.begin_stream(head);
}

void ChatExchange::take_token(const Event& event) {
  Choice& choice = choices_[static_cast<size_t>(event.choice)];
  // A stop string ends the reply at once; the engine may have made a token more before it heard of
  // it. How many depends on timing, and an answer must not.
  if (choice.complete || choice.finished) return;
  choice.complete = reply_->take_token(event.choice, {event.id, event.logprob, event.top}, out_);
  if (!choice.complete) return;
  std::shared_ptr<Ticket> ticket;
  {
    const std::lock_guard lock(mutex_);
    if (!tickets_.empty()) ticket = tickets_[static_cast<size_t>(event.choice)];
  }
  if (ticket) ticket->cancel();
}

void ChatExchange::take_finish(const Finish& finish) {
  Choice& choice = choices_[static_cast<size_t>(finish.choice)];
  if (choice.finished) return;
  choice.finished = true;
  --unfinished_;
  const FinishEvent& event = finish.event;
  FinishReason reason = FinishReason::kStop;
  if (!choice.complete) {
    switch (event.reason) {
      case FinishReason::kStop:
        break;
      case FinishReason::kLength:
        reason = event.reason;
        break;
      case FinishReason::kCancelled:
        trouble_ = http_error(503, "the request was cancelled by the server");
        return;
      case FinishReason::kDeadline:
        trouble_ = http_error(504, "the request's deadline has passed");
        return;
      case FinishReason::kError:
        trouble_ = event.error ? api_error(*event.error) : http_error(500, "the engine failed");
        return;
    }
  }
  const bool bounded_replay = event.usage.bounded_replay || (usage_ && usage_->bounded_replay);
  if (!usage_ || event.usage.cached_tokens < usage_->cached_tokens) usage_ = event.usage;
  usage_->bounded_replay = bounded_replay;
  reply_->take_finish(finish.choice, reason, *usage_, out_);
}

void ChatExchange::end(http::Exchange& exchange) {
  {
    const std::lock_guard lock(mutex_);
    tickets_ = {};
  }
  if (stream_) {
    reply_->end(out_);
    exchange.write(out_);
    return exchange.finish();
  }
  http::Response response{.body = reply_->whole()};
  http::allow_origin(response, cors_origin_);
  context_->metrics.count_response(200);
  exchange.respond(response);
}

void ChatExchange::end_with_error(http::Exchange& exchange, const ApiError& error) {
  cancel_all();
  if (begun_ && stream_) {
    // The status is long gone. No [DONE] follows: it would make a broken reply look whole.
    ChatOutput::error_event(out_, error);
    exchange.write(out_);
    return exchange.finish();
  }
  http::Response response = http::error_response(error);
  http::allow_origin(response, cors_origin_);
  context_->metrics.count_response(response.status);
  exchange.respond(response);
}

}  // namespace deepmint
