#include "server/api/chat_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <exception>
#include <limits>
#include <random>
#include <utility>

#include "core/hash.h"
#include "core/log.h"

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

std::string_view name_of(FinishReason reason) {
  return reason == FinishReason::kLength ? "length" : "stop";
}

ApiError model_not_found(const ApiContext& context, std::string_view name) {
  ApiError error = http_error(404, fmt::format("the model \"{}\" is not served here; \"{}\" is",
                                               name.substr(0, 100), context.model.id));
  error.code = "model_not_found";
  error.param = "model";
  return error;
}

// The engine speaks of tokens; the request's field is called messages.
// Nine letters and digits, which is what Mistral's templates insist on.
std::string call_id(std::string_view completion, int32_t choice, int32_t call) {
  const std::string key = fmt::format("{}/{}/{}", completion, choice, call);
  return fmt::format("{:016x}", xxh3_64(as_byte_span(key))).substr(0, 9);
}

ApiError from_engine(Error error) {
  const bool too_long = error.code == ErrorCode::kTooLarge;
  if (too_long || error.where.starts_with("tokens")) error.where = "messages";
  ApiError out = api_error(error);
  if (too_long) out.code = "context_length_exceeded";
  return out;
}

}  // namespace

// One timeline of the reply.
struct ChatExchange::Choice {
  Choice(const Tokenizer& tokenizer, const std::vector<std::string>& stop,
         const std::vector<TokenId>& markers)
      : text(tokenizer, stop, markers) {}

  recipe::TextStream text;
  // What finds reasoning and tool calls in the text; null when the text is all there is.
  std::unique_ptr<ReplyReader> reader;
  std::string content;                // not streamed: all of it
  std::string reasoning, tool_calls;  // the same; entries of tool_calls are joined by commas
  std::string logprobs;  // not streamed: all entries; streamed: those of the next chunk
  // Entries of tokens whose text is not let through yet, with where in the decoded text it begins
  // and ends.
  struct Held {
    size_t begin, end;
    std::string entry;
  };
  std::deque<Held> held;
  std::string_view finish_reason;  // empty while it runs
  int64_t tokens = 0;
  bool stopped = false;  // by a stop string; later tokens are not part of the reply
  bool finished = false;
};

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

// Text of one choice → reasoning, content and calls: chunks of the stream, or parts of the whole.
class ChatExchange::ReplyReader final : public recipe::OutputSink {
 public:
  ReplyReader(ChatExchange& owner, int32_t choice)
      : owner_(owner),
        choice_(choice),
        parser_(owner.context_->model.chat->reply,
                {.tools = owner.has_tools_, .starts_in_thinking = owner.starts_in_thinking_},
                *this) {}
  void push(std::string_view text) { parser_.push(text); }
  void finish() { parser_.finish(); }
  bool called() const { return parser_.called(); }

  void reasoning(std::string_view text) override {
    if (owner_.request_.stream)
      owner_.output_->reasoning_chunk(owner_.out_, choice_, text);
    else
      this_choice().reasoning += text;
  }
  void text(std::string_view text) override { owner_.put_text(this_choice(), choice_, text); }
  void tool_begin(std::string_view name) override { name_ = name, arguments_.clear(); }
  void tool_arguments(std::string_view json) override { arguments_ += json; }
  void tool_end(bool) override {
    const std::string id = call_id(owner_.completion_id_, choice_, n_calls_);
    const CalledTool call{n_calls_++, id, name_, arguments_};
    if (owner_.request_.stream) return owner_.output_->tool_chunk(owner_.out_, choice_, call);
    std::string& all = this_choice().tool_calls;
    if (!all.empty()) all += ',';
    ChatOutput::tool_entry(all, call, /*with_index=*/false);
  }

 private:
  Choice& this_choice() { return owner_.choices_[static_cast<size_t>(choice_)]; }

  ChatExchange& owner_;
  const int32_t choice_;
  recipe::FamilyParser parser_;
  std::string name_, arguments_;
  int32_t n_calls_ = 0;
};

void ChatExchange::start(std::shared_ptr<ApiContext> context, http::Body body,
                         const std::shared_ptr<http::Exchange>& exchange, std::string cors_origin) {
  const auto chat = std::make_shared<ChatExchange>(context, exchange, std::move(cors_origin));
  exchange->set_responder(chat);
  const auto size =
      body.text().size() > kLargeBody ? WorkerPool::Size::kLarge : WorkerPool::Size::kSmall;
  const auto held = std::make_shared<http::Body>(std::move(body));
  if (!context->workers.submit([chat, held] { chat->prepare(std::move(*held)); }, size))
    chat->end_with_error(*exchange,
                         http_error(503, "too many requests are waiting to be parsed; try again"));
}

ChatExchange::ChatExchange(std::shared_ptr<ApiContext> context,
                           std::shared_ptr<http::Exchange> exchange, std::string cors_origin)
    : context_(std::move(context)),
      exchange_(std::move(exchange)),
      cors_origin_(std::move(cors_origin)) {}

ChatExchange::~ChatExchange() = default;

// --- worker thread

void ChatExchange::prepare(http::Body body) {
  if (exchange_->closed()) return;
  try {
    auto request = parse_chat_request(body.text(), context_->model.default_sampling);
    body = {};
    if (!request) return fail_with(api_error(request.error()));
    if (!request->model.empty() && !context_->knows_model(request->model))
      return fail_with(model_not_found(*context_, request->model));
    if (auto admitted = admit(std::move(*request)); !admitted)
      fail_with(from_engine(std::move(admitted).error()));
  } catch (const std::exception& e) {
    log().error("chat request failed: {}", e.what());
    fail_with(http_error(503, "not enough memory for this request; try again"));
  }
}

Result<std::vector<TokenId>> ChatExchange::encode_prompt(const ChatRequest& request) {
  const ServedModel& model = context_->model;
  if (!model.chat) return tl::unexpected(model.chat.error());
  DEEPMINT_TRY(segments, recipe::render_chat(*model.chat, request.messages, request.variables));
  const recipe::ReplyFormat& format = model.chat->reply;
  has_tools_ = request.variables.tools.is_array();
  starts_in_thinking_ = recipe::ends_in_thinking(segments);
  reads_reply_ = format.thinks || (has_tools_ && format.calls != recipe::ReplyFormat::Calls::kNone);
  if (reads_reply_)
    for (const std::string_view marker : recipe::reply_markers(format))
      if (const auto id = model.tokenizer->find_added(marker)) markers_.push_back(*id);
  const auto context_tokens = static_cast<size_t>(model.engine->info().context_tokens);
  // A prompt that cannot fit however well it compresses is not worth tokenising.
  size_t bytes = 0;
  for (const Segment& s : segments) bytes += s.text.size();
  const size_t at_least = bytes / context_->longest_token_bytes;
  if (at_least >= context_tokens)
    return fail(
        ErrorCode::kTooLarge,
        fmt::format("prompt has at least {} tokens, context is {}", at_least, context_tokens),
        "messages");
  std::vector<TokenId> tokens = model.tokenizer->encode(segments);
  if (tokens.size() >= context_tokens)
    return fail(ErrorCode::kTooLarge,
                fmt::format("prompt has {} tokens, context is {}", tokens.size(), context_tokens),
                "messages");
  return tokens;
}

Status ChatExchange::admit(ChatRequest request) {
  const ServedModel& model = context_->model;
  DEEPMINT_TRY(tokens, encode_prompt(request));
  request.messages = {};
  if (!request.sampling.seed) request.sampling.seed = draw_seed();

  GenerationRequest generation;
  generation.sampling = request.sampling;
  const int64_t room =
      int64_t{model.engine->info().context_tokens} - static_cast<int64_t>(tokens.size());
  const int64_t wanted = request.max_tokens ? *request.max_tokens : model.default_max_tokens;
  generation.max_tokens = static_cast<int32_t>(wanted < 0 ? room : std::min(wanted, room));
  if (!request.ignore_eos) generation.stop_ids = model.end_ids;
  generation.cache_salt = request.cache_salt;
  generation.tokens = std::move(tokens);

  prompt_tokens_ = static_cast<int64_t>(generation.tokens.size());
  request.variables = {};
  completion_id_ = context_->next_completion_id();
  output_.emplace(ChatIdentity{.id = completion_id_,
                               .model = model.id,
                               .fingerprint = context_->fingerprint,
                               .created = std::chrono::duration_cast<std::chrono::seconds>(
                                              std::chrono::system_clock::now().time_since_epoch())
                                              .count(),
                               .seed = *request.sampling.seed,
                               .include_usage = request.include_usage});
  const int32_t n = request.n;
  request_ = std::move(request);
  for (int32_t choice = 0; choice < n; ++choice) {
    if (exchange_->closed()) return {};
    GenerationRequest one = choice + 1 < n ? generation : std::move(generation);
    one.choice = choice;
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

bool ChatExchange::ends_reply(TokenId id) const {
  const auto& ends = context_->model.end_ids;
  return !request_.ignore_eos && std::find(ends.begin(), ends.end(), id) != ends.end();
}

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
  if (request_.stream && !out_.empty()) {
    exchange.write(out_);
    out_.clear();
  }
  if (unfinished_ == 0) end(exchange);
}

void ChatExchange::begin(http::Exchange& exchange) {
  begun_ = true;
  choices_.reserve(static_cast<size_t>(request_.n));
  for (int32_t i = 0; i < request_.n; ++i) {
    choices_.emplace_back(*context_->model.tokenizer, request_.stop, markers_);
    if (reads_reply_) choices_.back().reader = std::make_unique<ReplyReader>(*this, i);
  }
  unfinished_ = choices_.size();
  usage_.prompt_tokens = prompt_tokens_;
  if (!request_.stream) return;
  http::Response head{.content_type = "text/event-stream; charset=utf-8"};
  head.headers = {{"cache-control", "no-cache"}, {"x-accel-buffering", "no"}};
  http::allow_origin(head, cors_origin_);
  for (int32_t i = 0; i < request_.n; ++i) output_->role_chunk(head.body, i);
  context_->metrics.count_response(200);
  exchange.begin_stream(std::move(head));
}

void ChatExchange::take_token(const Event& event) {
  Choice& choice = choices_[static_cast<size_t>(event.choice)];
  // A stop string ends the reply at once; the engine may have made a token more before it heard of
  // it. How many depends on timing, and an answer must not.
  if (choice.stopped || choice.finished) return;
  ++choice.tokens;
  if (ends_reply(event.id)) return;
  const size_t begin = choice.text.decoded_bytes();
  const auto piece = choice.text.push(event.id);
  if (request_.logprobs) {
    Choice::Held held{begin, choice.text.decoded_bytes(), {}};
    ChatOutput::logprob_entry(held.entry, *context_->model.tokenizer, event.id, event.logprob,
                              event.top);
    choice.held.push_back(std::move(held));
  }
  release(choice, event.choice, piece.text, /*at_end=*/false);
  if (!piece.stopped) return;
  choice.stopped = true;
  choice.finish_reason = "stop";
  std::shared_ptr<Ticket> ticket;
  {
    const std::lock_guard lock(mutex_);
    if (!tickets_.empty()) ticket = tickets_[static_cast<size_t>(event.choice)];
  }
  if (ticket) ticket->cancel();
}

// Text that is final, with the log-probabilities of the tokens that it completes; at the end of the
// reply, of all of them.
void ChatExchange::release(Choice& choice, int32_t index, std::string_view text, bool at_end) {
  const size_t passed = choice.text.emitted_bytes();
  const bool stopped = !choice.text.matched_stop().empty();
  while (!choice.held.empty()) {
    const Choice::Held& first = choice.held.front();
    // Of a token that is cut by the stop string, the part before it counts. A token without text of
    // its own (the first bytes of a character) goes where the next text goes.
    if (first.begin >= passed && !(at_end && !stopped)) break;
    if (!stopped && !at_end && first.end > passed) break;
    if (!choice.logprobs.empty()) choice.logprobs += ',';
    choice.logprobs += first.entry;
    choice.held.pop_front();
  }
  if (stopped) choice.held.clear();
  if (choice.reader == nullptr) return put_text(choice, index, text);
  choice.reader->push(text);
  if (at_end || stopped) choice.reader->finish();
  if (request_.stream && !choice.logprobs.empty()) put_text(choice, index, {});
}

void ChatExchange::put_text(Choice& choice, int32_t index, std::string_view text) {
  if (!request_.stream) {
    choice.content += text;
    return;
  }
  if (text.empty() && choice.logprobs.empty()) return;
  output_->text_chunk(out_, index, text,
                      request_.logprobs ? std::string_view(choice.logprobs) : std::string_view());
  choice.logprobs.clear();
}

void ChatExchange::take_finish(const Finish& finish) {
  Choice& choice = choices_[static_cast<size_t>(finish.choice)];
  if (choice.finished) return;
  choice.finished = true;
  --unfinished_;
  const FinishEvent& event = finish.event;
  if (!choice.stopped) {
    switch (event.reason) {
      case FinishReason::kStop:
      case FinishReason::kLength:
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
    choice.finish_reason = name_of(event.reason);
    const auto rest = choice.text.finish();
    if (rest.stopped) choice.finish_reason = "stop";
    release(choice, finish.choice, rest.text, /*at_end=*/true);
  }
  if (choice.reader != nullptr && choice.reader->called() && choice.finish_reason == "stop")
    choice.finish_reason = "tool_calls";
  usage_.completion_tokens += choice.tokens;
  usage_.cached_tokens = std::max<int64_t>(usage_.cached_tokens, event.usage.cached_tokens);
  if (request_.stream) output_->finish_chunk(out_, finish.choice, choice.finish_reason);
}

void ChatExchange::end(http::Exchange& exchange) {
  {
    const std::lock_guard lock(mutex_);
    tickets_ = {};
  }
  if (request_.stream) {
    if (request_.include_usage) output_->usage_chunk(out_, usage_);
    out_ += ChatOutput::kDone;
    exchange.write(out_);
    return exchange.finish();
  }
  std::vector<FinishedChoice> finished;
  for (const Choice& choice : choices_)
    finished.push_back(
        {.content = choice.content,
         .reasoning = choice.reasoning,
         .tool_calls = choice.tool_calls,
         .logprobs = request_.logprobs ? std::string_view(choice.logprobs) : std::string_view(),
         .finish_reason = choice.finish_reason});
  http::Response response{.body = output_->completion(finished, usage_)};
  http::allow_origin(response, cors_origin_);
  context_->metrics.count_response(200);
  exchange.respond(std::move(response));
}

void ChatExchange::end_with_error(http::Exchange& exchange, const ApiError& error) {
  cancel_all();
  if (begun_ && request_.stream) {
    // The status is long gone. No [DONE] follows: it would make a broken reply look whole.
    ChatOutput::error_event(out_, error);
    exchange.write(out_);
    return exchange.finish();
  }
  http::Response response = http::error_response(error);
  http::allow_origin(response, cors_origin_);
  context_->metrics.count_response(response.status);
  exchange.respond(std::move(response));
}

}  // namespace deepmint
