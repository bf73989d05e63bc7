// Dense models: prompts by their chat template, replies read in their family's format.
#include <fmt/format.h>

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/hash.h"
#include "recipe/family_parser.h"
#include "recipe/text_stream.h"
#include "server/api/chat_reply.h"

namespace deepmint {
namespace {

// Nine letters and digits, which is what Mistral's templates insist on.
std::string call_id(std::string_view completion, int32_t choice, int32_t call) {
  const std::string key = fmt::format("{}/{}/{}", completion, choice, call);
  return fmt::format("{:016x}", xxh3_64(as_byte_span(key))).substr(0, 9);
}

// How the replies to one prompt are read.
struct Reading {
  bool reads = false;  // else the text is all there is
  bool has_tools = false, starts_in_thinking = false;
  std::vector<TokenId> markers = {};  // special tokens that the parser looks for
};

class TemplateReply final : public ChatReply {
 public:
  TemplateReply(std::shared_ptr<const ApiContext> context, const ChatRequest& request,
                const ChatIdentity& identity, const Reading& reading)
      : context_(std::move(context)),
        output_(identity),
        completion_id_(identity.id),
        stream_(request.stream),
        include_usage_(request.include_usage),
        ignore_eos_(request.ignore_eos),
        logprobs_(request.logprobs) {
    usage_.prompt_tokens = identity.prompt_tokens;
    choices_.reserve(static_cast<size_t>(request.n));  // parsers point into it
    for (int32_t i = 0; i < request.n; ++i) {
      Choice& choice =
          choices_.emplace_back(*context_->model.tokenizer, request.stop, reading.markers);
      if (reading.reads) choice.reader = std::make_unique<ReplyReader>(*this, i, reading);
    }
  }

  void begin(std::string& out) override {
    if (!stream_) return;
    for (size_t i = 0; i < choices_.size(); ++i) output_.role_chunk(out, static_cast<int32_t>(i));
  }

  bool take_token(int32_t index, const ReplyToken& token, std::string& out) override {
    Choice& choice = choices_[static_cast<size_t>(index)];
    ++choice.tokens;
    if (ends_reply(*context_, ignore_eos_, token.id)) return false;
    const size_t begin = choice.text.decoded_bytes();
    const auto piece = choice.text.push(token.id);
    if (logprobs_) {
      Choice::Held held{begin, choice.text.decoded_bytes(), {}};
      ChatOutput::logprob_entry(held.entry, *context_->model.tokenizer, token.id, token.logprob,
                                token.top);
      choice.held.push_back(std::move(held));
    }
    out_ = &out;
    release(choice, index, piece.text, /*at_end=*/false);
    if (piece.stopped) choice.stopped = true;
    return piece.stopped;
  }

  void take_finish(int32_t index, FinishReason reason, const Usage& usage,
                   std::string& out) override {
    Choice& choice = choices_[static_cast<size_t>(index)];
    out_ = &out;
    choice.finish_reason = reason == FinishReason::kLength ? "length" : "stop";
    if (!choice.stopped) {
      const auto rest = choice.text.finish();
      if (rest.stopped) choice.finish_reason = "stop";
      release(choice, index, rest.text, /*at_end=*/true);
    }
    if (choice.reader != nullptr && choice.reader->called() && choice.finish_reason == "stop")
      choice.finish_reason = "tool_calls";
    usage_.completion_tokens += choice.tokens;
    usage_.cached_tokens = usage.cached_tokens;
    usage_.details = prompt_details(usage);
    if (stream_) output_.finish_chunk(out, index, choice.finish_reason);
  }

  void end(std::string& out) override {
    if (include_usage_) output_.usage_chunk(out, usage_);
    out += ChatOutput::kDone;
  }

  std::string whole() override {
    std::vector<FinishedChoice> finished;
    finished.reserve(choices_.size());
    for (const Choice& choice : choices_)
      finished.push_back(
          {.content = choice.content,
           .reasoning = choice.reasoning,
           .tool_calls = choice.tool_calls,
           .logprobs = logprobs_ ? std::string_view(choice.logprobs) : std::string_view(),
           .finish_reason = choice.finish_reason});
    return output_.completion(finished, usage_);
  }

 private:
  class ReplyReader;

  // One timeline of the reply.
  struct Choice {
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
  };

  // Text of one choice → reasoning, content and calls: chunks of the stream, or parts of the whole.
  class ReplyReader final : public recipe::OutputSink {
   public:
    ReplyReader(TemplateReply& owner, int32_t choice, const Reading& reading)
        : owner_(owner),
          choice_(choice),
          parser_(owner.context_->model.chat->reply,
                  {.tools = reading.has_tools, .starts_in_thinking = reading.starts_in_thinking},
                  *this) {}
    void push(std::string_view text) { parser_.push(text); }
    void finish() { parser_.finish(); }
    bool called() const { return parser_.called(); }

    void reasoning(std::string_view text) override {
      if (owner_.stream_)
        owner_.output_.reasoning_chunk(*owner_.out_, choice_, text);
      else
        this_choice().reasoning += text;
    }
    void text(std::string_view text) override { owner_.put_text(this_choice(), choice_, text); }
    void tool_begin(std::string_view name) override { name_ = name, arguments_.clear(); }
    void tool_arguments(std::string_view json) override { arguments_ += json; }
    void tool_end(bool) override {
      const std::string id = call_id(owner_.completion_id_, choice_, n_calls_);
      const CalledTool call{n_calls_++, id, name_, arguments_};
      if (owner_.stream_) return owner_.output_.tool_chunk(*owner_.out_, choice_, call);
      std::string& all = this_choice().tool_calls;
      if (!all.empty()) all += ',';
      ChatOutput::tool_entry(all, call, /*with_index=*/false);
    }

   private:
    Choice& this_choice() { return owner_.choices_[static_cast<size_t>(choice_)]; }

    TemplateReply& owner_;
    const int32_t choice_;
    recipe::FamilyParser parser_;
    std::string name_, arguments_;
    int32_t n_calls_ = 0;
  };

  // Text that is final, with the log-probabilities of the tokens that it completes; at the end of
  // the reply, of all of them.
  void release(Choice& choice, int32_t index, std::string_view text, bool at_end) {
    const size_t passed = choice.text.emitted_bytes();
    const bool stopped = !choice.text.matched_stop().empty();
    while (!choice.held.empty()) {
      const Choice::Held& first = choice.held.front();
      // Of a token that is cut by the stop string, the part before it counts. A token without text
      // of its own (the first bytes of a character) goes where the next text goes.
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
    if (stream_ && !choice.logprobs.empty()) put_text(choice, index, {});
  }

  void put_text(Choice& choice, int32_t index, std::string_view text) {
    if (!stream_) {
      choice.content += text;
      return;
    }
    if (text.empty() && choice.logprobs.empty()) return;
    output_.text_chunk(*out_, index, text,
                       logprobs_ ? std::string_view(choice.logprobs) : std::string_view());
    choice.logprobs.clear();
  }

  const std::shared_ptr<const ApiContext> context_;
  const ChatOutput output_;
  const std::string completion_id_;
  const bool stream_, include_usage_, ignore_eos_, logprobs_;
  std::vector<Choice> choices_;
  ChatUsage usage_;
  std::string* out_ = nullptr;  // of the call in progress
};

}  // namespace

Result<ChatPlan> plan_template_chat(std::shared_ptr<const ApiContext> context,
                                    const ChatRequest& request, ChatIdentity identity) {
  const ServedModel& model = context->model;
  DEEPMINT_TRY(segments, recipe::render_chat(*model.chat, request.messages, request.variables));
  const recipe::ReplyFormat& format = model.chat->reply;
  Reading reading;
  reading.has_tools = request.variables.tools.is_array();
  reading.starts_in_thinking = recipe::ends_in_thinking(segments);
  reading.reads =
      format.thinks || (reading.has_tools && format.calls != recipe::ReplyFormat::Calls::kNone);
  if (reading.reads)
    for (const std::string_view marker : recipe::reply_markers(format))
      if (const auto id = model.tokenizer->find_added(marker)) reading.markers.push_back(*id);
  DEEPMINT_TRY(tokens, encode_prompt(*context, segments));
  identity.prompt_tokens = static_cast<int64_t>(tokens.size());
  ChatPlan plan;
  plan.tokens = std::move(tokens);
  plan.starts_in_thinking = format.thinks && reading.starts_in_thinking;
  plan.reply = std::make_unique<TemplateReply>(std::move(context), request, identity, reading);
  return plan;
}

}  // namespace deepmint
