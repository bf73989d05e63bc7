#include "recipe/reply_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "core/utf8.h"
#include "recipe/generator.h"
#include "recipe/prompt_text.h"

namespace deepmint::recipe {
namespace {

// Answer text before calls that is longer is not compared, so its turn is not replayed as a whole.
constexpr size_t kMaxContent = size_t{256} << 10;

constexpr size_t kNoLogprob = static_cast<size_t>(-1);

void append_float(std::string& out, float v) {
  std::array<char, 32> buffer;
  const auto r = std::to_chars(buffer.data(), buffer.data() + buffer.size(), v);
  const std::string_view s(buffer.data(), static_cast<size_t>(r.ptr - buffer.data()));
  if (s.find_first_of("in") != std::string_view::npos) {  // inf or nan: a masked token
    out.append("-9999.0");
    return;
  }
  out.append(s);
  if (s.find_first_of(".e") == std::string_view::npos) out.append(".0");
}

void append_token(std::string& out, std::string_view bytes, float logprob) {
  out.append("{\"token\":");
  json::append_escaped(out, utf8::sanitize(bytes));
  out.append(",\"logprob\":");
  append_float(out, logprob);
  out.append(",\"bytes\":[");
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (i > 0) out.push_back(',');
    out.append(std::to_string(static_cast<unsigned char>(bytes[i])));
  }
  out.push_back(']');
}

}  // namespace

void EventBuffer::append_sse(std::string& out) const {
  for (size_t i = 0; i < size(); ++i) {
    if (!name(i).empty()) out.append("event: ").append(name(i)).append("\n");
    out.append("data: ").append(data(i)).append("\n\n");
  }
}

struct ReplyStream::Shared {
  ConversationRequest request;  // the part that the generator reads
  ReplyMeta meta;
  EventBuffer events;
};

// Turns segments of the parser into calls of the generator, with the tokens that belong to them.
class ReplyStream::Sink final : public OutputSink {
 public:
  explicit Sink(ReplyStream& s) : s_(s) {}

  void reasoning(std::string_view text) override {
    if (s_.remembers_) s_.reasoning_text_.append(text);
    s_.generator_->reasoning(text, tokens_of(text, true));
  }
  void text(std::string_view text) override {
    if (s_.remembers_ && s_.content_text_.size() <= kMaxContent) s_.content_text_.append(text);
    s_.generator_->text(text, tokens_of(text, false));
  }
  void tool_begin(std::string_view name) override {
    const std::string id = s_.generator_->call_id(static_cast<int>(s_.calls_.size()));
    s_.calls_.push_back({id, std::string(name), {}, false});
    s_.generator_->tool_begin(id, name);
  }
  void tool_arguments(std::string_view json) override {
    s_.calls_.back().arguments.append(json);
    s_.generator_->tool_arguments(json);
  }
  void tool_end(bool complete) override {
    s_.calls_.back().complete = complete;
    s_.generator_->tool_end(complete);
  }

 private:
  std::string_view tokens_of(std::string_view text, bool is_reasoning) {
    if (!s_.tracks_tokens_) return {};
    const uint64_t begin = s_.parser_->position();
    return s_.attribute(begin, begin + text.size(), is_reasoning);
  }
  ReplyStream& s_;
};

ReplyStream::ReplyStream(const ConversationRequest& request, ReplyMeta meta)
    : shared_(std::make_unique<Shared>()),
      protocol_(request.protocol),
      remembers_(!request.conversation.tools.empty()),
      thinking_(request.conversation.thinking),
      begins_thinking_(request.parsing.stage == ThinkingStage::kStart),
      whole_turn_(
          request.parsing.stage == ThinkingStage::kStart ||
          (request.parsing.stage == ThinkingStage::kOff && !request.parsing.starts_in_tool_calls)),
      wants_logprobs_(request.inference.logprobs) {
  shared_->request.protocol = request.protocol;
  shared_->request.conversation.thinking = request.conversation.thinking;
  shared_->request.reply = request.reply;
  shared_->meta = std::move(meta);
  switch (protocol_) {
    case Protocol::kChat:
      generator_ = make_chat_generator(shared_->request, shared_->meta, shared_->events);
      break;
    case Protocol::kResponses:
      generator_ = make_responses_generator(shared_->request, shared_->meta, shared_->events);
      break;
    case Protocol::kMessages:
      generator_ = make_messages_generator(shared_->request, shared_->meta, shared_->events);
      break;
  }
  sink_ = std::make_unique<Sink>(*this);
  parser_ = OutputParser::create(request.parsing, request.conversation.tools, shared_->meta.compat,
                                 *sink_);
}

ReplyStream::~ReplyStream() = default;

void ReplyStream::ready(const PromptUsage& usage, std::string_view fingerprint) {
  if (started_) return;
  started_ = true;
  usage_ = usage;
  fingerprint_ = std::string(fingerprint);
  generator_->start(usage_, fingerprint.data() == nullptr ? nullptr : &fingerprint_);
}

void ReplyStream::ensure_started() {
  if (!started_) ready({}, {});
}

void ReplyStream::push_text(std::string_view text, uint64_t n_tokens) {
  if (finished_) return;
  ensure_started();
  completion_tokens_ += n_tokens;
  push_bytes(text, false);
}

void ReplyStream::record(std::string_view bytes, bool control) {
  if (!remembers_) return;
  const Segment::Kind kind = control ? Segment::Kind::kControl : Segment::Kind::kText;
  if (sampled_.empty() || control || sampled_.back().kind != kind) {
    sampled_.push_back({kind, std::string(bytes)});
  } else {
    sampled_.back().text.append(bytes);
  }
}

void ReplyStream::check_stop() {
  if (shared_->meta.compat != Compat::kOurs && !parser_->matched_stop().empty())
    finish(std::nullopt);
}

void ReplyStream::push_tokens(std::span<const TokenId> ids,
                              std::span<const TokenLogprob> logprobs) {
  if (finished_ || shared_->meta.tokens == nullptr) return;
  ensure_started();
  if (!tracks_tokens_) parser_->expect_control_tokens();
  tracks_tokens_ = true;
  const TokenCodec& tokens = *shared_->meta.tokens;
  for (size_t i = 0; i < ids.size() && !finished_; ++i) {
    const TokenId id = ids[i];
    const std::string_view bytes = tokens.token_bytes(id);
    size_t logprob = kNoLogprob;
    if (wants_logprobs_ && i < logprobs.size()) {
      logprob = logprobs_.size();
      logprobs_.push_back(logprobs[i]);
    }
    ++completion_tokens_;
    pieces_.push_back({pushed_bytes_ + pending_utf8_.size(), id, logprob});
    push_bytes(bytes, tokens.is_control(id));
    // Tokens that became markup, or text that was dropped, are never shown.
    const uint64_t passed = parser_->position();
    while (!pieces_.empty() && pieces_.size() > 256 && pieces_.front().begin < passed)
      pieces_.erase(pieces_.begin());
    if (pieces_.empty()) logprobs_.clear();
  }
}

void ReplyStream::push_bytes(std::string_view bytes, bool control) {
  if (control) {
    flush_utf8();
    ControlToken kind = ControlToken::kOther;
    if (bytes == kDsml) kind = ControlToken::kDsml;
    if (bytes == kThinkClose) kind = ControlToken::kThinkClose;
    record(bytes, true);
    pushed_bytes_ += bytes.size();
    parser_->push_control(kind, bytes);
  } else if (pending_utf8_.empty() && utf8::is_valid(bytes)) {
    record(bytes, false);
    pushed_bytes_ += bytes.size();
    parser_->push(bytes);
  } else {
    // Only whole characters reach the parser.
    pending_utf8_.append(bytes);
    const size_t keep = utf8::incomplete_tail(pending_utf8_);
    const std::string_view whole =
        std::string_view(pending_utf8_).substr(0, pending_utf8_.size() - keep);
    if (whole.empty()) return;
    if (utf8::is_valid(whole)) {
      record(whole, false);
      pushed_bytes_ += whole.size();
      parser_->push(whole);
    } else {
      const std::string clean = utf8::sanitize(whole);
      record(clean, false);
      pushed_bytes_ += clean.size();
      parser_->push(clean);
    }
    pending_utf8_.erase(0, pending_utf8_.size() - keep);
  }
  check_stop();
}

void ReplyStream::flush_utf8() {
  if (pending_utf8_.empty()) return;
  const std::string clean = utf8::sanitize(pending_utf8_);
  pending_utf8_.clear();
  record(clean, false);
  pushed_bytes_ += clean.size();
  parser_->push(clean);
}

std::string_view ReplyStream::attribute(uint64_t begin, uint64_t end, bool reasoning) {
  logprob_text_.clear();
  size_t used = 0;
  for (; used < pieces_.size() && pieces_[used].begin < end; ++used) {
    const Piece& p = pieces_[used];
    if (p.begin < begin) continue;  // part of something that is not shown
    if (reasoning) ++reasoning_tokens_;
    if (p.logprob == kNoLogprob) continue;
    const TokenLogprob& l = logprobs_[p.logprob];
    logprob_text_.append(logprob_text_.empty() ? "[" : ",");
    append_token(logprob_text_, shared_->meta.tokens->token_bytes(p.id), l.logprob);
    logprob_text_.append(",\"top_logprobs\":[");
    for (size_t k = 0; k < l.top.size(); ++k) {
      if (k > 0) logprob_text_.push_back(',');
      append_token(logprob_text_, shared_->meta.tokens->token_bytes(l.top[k].first),
                   l.top[k].second);
      logprob_text_.push_back('}');
    }
    logprob_text_.append("]}");
  }
  pieces_.erase(pieces_.begin(), pieces_.begin() + static_cast<ptrdiff_t>(used));
  if (!logprob_text_.empty()) logprob_text_.push_back(']');
  return logprob_text_;
}

void ReplyStream::finish(std::optional<BackendFinish> reason) {
  if (finished_) return;
  ensure_started();
  flush_utf8();
  if (finished_) return;  // the last bytes completed a stop string
  finished_ = true;
  parser_->finish();
  reason_ = parser_->finish_reason(reason);
  ReplyUsage usage;
  usage.prompt = usage_;
  usage.completion_tokens = completion_tokens_ + others_completion_;
  usage.reasoning_tokens = reasoning_tokens_ + others_reasoning_;
  usage.has_reasoning = thinking_ && tracks_tokens_ && (shared_->meta.compat != Compat::kRecipe01);
  generator_->finish(reason_, parser_->matched_stop(), usage);
}

void ReplyStream::add_usage_of(const ReplyStream& other) {
  others_completion_ += other.completion_tokens_;
  others_reasoning_ += other.reasoning_tokens_;
}

void ReplyStream::make_last_choice() { shared_->meta.last_choice = true; }

std::string merge_chat_choices(std::span<const std::unique_ptr<ReplyStream>> choices) {
  if (choices.empty()) return {};
  ReplyUsage usage;
  usage.prompt = choices.front()->usage_;
  std::string list;
  for (const auto& c : choices) {
    list.append(list.empty() ? "" : ",").append(c->choice());
    usage.completion_tokens += c->completion_tokens_;
    usage.reasoning_tokens += c->reasoning_tokens_;
    usage.has_reasoning = usage.has_reasoning || (c->thinking_ && c->tracks_tokens_);
  }
  return choices.front()->generator_->response_of(list, usage);
}

void ReplyStream::fail(std::string_view type, std::string_view message) {
  if (finished_) return;
  ensure_started();
  finished_ = true;
  generator_->fail(type, message);
}

bool ReplyStream::wants_stop() const { return finished_ || parser_->wants_stop(); }

EventBuffer& ReplyStream::events() { return shared_->events; }

std::string ReplyStream::take_sse() {
  std::string out;
  shared_->events.append_sse(out);
  shared_->events.clear();
  if (finished_ && protocol_ == Protocol::kChat && shared_->meta.last_choice && !done_sent_) {
    out.append("data: [DONE]\n\n");
    done_sent_ = true;
  }
  return out;
}

std::string ReplyStream::response() const { return generator_->response(); }
std::string ReplyStream::choice() const { return generator_->choice(); }

void ReplyStream::remember_calls(TurnStore& store) const {
  const auto [begin, end] = parser_->markup_range();
  const bool complete =
      std::all_of(calls_.begin(), calls_.end(), [](const FinishedCall& c) { return c.complete; });
  if (calls_.empty()) return;
  // Bytes [from, to) of everything sampled.
  const auto sampled = [&](uint64_t from, uint64_t to) {
    auto out = std::make_shared<std::vector<Segment>>();
    uint64_t at = 0;
    for (const Segment& s : sampled_) {
      const uint64_t first = std::max(at, from), last = std::min<uint64_t>(at + s.text.size(), to);
      if (first < last) out->push_back({s.kind, s.text.substr(first - at, last - first)});
      at += s.text.size();
    }
    return out;
  };
  std::shared_ptr<const std::vector<Segment>> markup, turn;
  if (end > 0 && complete) {
    if (whole_turn_ && content_text_.size() <= kMaxContent) turn = sampled(0, end);
    if (end > begin) markup = sampled(begin, end);
  }
  for (const FinishedCall& c : calls_) {
    store.put_call(shared_->meta.tenant, c.id,
                   {.markup = markup,
                    .block_id = shared_->meta.id,
                    .n_calls = calls_.size(),
                    .name = c.name,
                    .arguments = c.arguments,
                    .reasoning = reasoning_text_,
                    .turn = turn,
                    .content = content_text_,
                    .thinking = begins_thinking_});
  }
}

std::string_view to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kToolCalls:
      return "tool_calls";
    case FinishReason::kStopSequence:
      return "stop_sequence";
    case FinishReason::kContentFilter:
      return "content_filter";
    case FinishReason::kEndOfStream:
      return "end_of_stream";
    case FinishReason::kMalformedToolCall:
      return "malformed_tool_call";
  }
  return {};
}

}  // namespace deepmint::recipe
