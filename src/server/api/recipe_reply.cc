// DeepSeek: prompts and replies by the recipe (docs/recipe.md), on token ids throughout.
#include <memory>
#include <utility>
#include <vector>

#include "recipe/prompt.h"
#include "recipe/reply_stream.h"
#include "recipe/token_codec.h"
#include "server/api/chat_reply.h"

namespace deepmint {
namespace {

using recipe::BackendFinish;
using recipe::ReplyStream;

class RecipeReply final : public ChatReply {
 public:
  RecipeReply(std::shared_ptr<const ApiContext> context, const ChatRequest& request,
              const ChatIdentity& identity)
      : context_(std::move(context)),
        stream_(request.stream),
        ignore_eos_(request.ignore_eos),
        logprobs_(request.logprobs),
        fingerprint_(identity.fingerprint),
        unfinished_(request.n) {
    usage_.prompt_tokens = static_cast<uint64_t>(identity.prompt_tokens);
    const auto codec = recipe::make_token_codec(context_->model.tokenizer);
    for (int choice = 0; choice < request.n; ++choice)
      choices_.push_back(std::make_unique<ReplyStream>(
          *request.conversation, recipe::ReplyMeta{.id = identity.id,
                                                   .model = identity.model,
                                                   .created = identity.created,
                                                   .choice = choice,
                                                   .last_choice = false,
                                                   .seed = identity.seed,
                                                   .tokens = codec}));
  }

  void begin(std::string& out) override {
    for (const auto& choice : choices_) {
      choice->ready(usage_, fingerprint_);
      flush(*choice, out);
    }
  }

  bool take_token(int32_t choice, const ReplyToken& token, std::string& out) override {
    ReplyStream& reply = *choices_[static_cast<size_t>(choice)];
    if (ends_reply(*context_, ignore_eos_, token.id)) {
      reply.push_text({}, 1);  // counted, not shown
      return false;
    }
    if (logprobs_) {
      recipe::TokenLogprob logprob{.logprob = token.logprob};
      for (const TopLogprob& top : token.top) logprob.top.emplace_back(top.id, top.logprob);
      reply.push_tokens({&token.id, 1}, {&logprob, 1});
    } else {
      reply.push_tokens({&token.id, 1});
    }
    flush(reply, out);
    return reply.wants_stop();
  }

  void take_finish(int32_t choice, FinishReason reason, const Usage& usage,
                   std::string& out) override {
    ReplyStream& reply = *choices_[static_cast<size_t>(choice)];
    usage_.cached_tokens = static_cast<uint64_t>(usage.cached_tokens);
    usage_.details = prompt_details(usage);
    reply.set_prompt_usage(usage_);
    if (--unfinished_ == 0) {
      for (const auto& other : choices_)
        if (other.get() != &reply) reply.add_usage_of(*other);
      reply.make_last_choice();
    }
    reply.finish(reason == FinishReason::kLength ? BackendFinish::kLength : BackendFinish::kStop);
    flush(reply, out);
  }

  void end(std::string& out) override { out += ChatOutput::kDone; }

  std::string whole() override {
    if (choices_.size() == 1) return choices_.front()->response();
    choices_.front()->set_prompt_usage(usage_);  // of the choice that found least in the cache
    return recipe::merge_chat_choices(choices_);
  }

 private:
  void flush(ReplyStream& reply, std::string& out) const {
    if (stream_) reply.events().append_sse(out);
    reply.events().clear();
  }

  const std::shared_ptr<const ApiContext> context_;
  const bool stream_, ignore_eos_, logprobs_;
  const std::string fingerprint_;
  recipe::PromptUsage usage_;
  std::vector<std::unique_ptr<ReplyStream>> choices_;
  int32_t unfinished_;
};

}  // namespace

Result<ChatPlan> plan_recipe_chat(std::shared_ptr<const ApiContext> context,
                                  const ChatRequest& request, ChatIdentity identity) {
  const recipe::Prompt prompt = recipe::render_prompt(request.conversation->conversation,
                                                      {.version = *context->model.chat->deepseek});
  if (!prompt.images.empty())
    return fail(ErrorCode::kUnsupported, "this model is served without its eyes: text parts only",
                prompt.images.front().path);
  DEEPMINT_TRY(tokens, encode_prompt(*context, prompt.segments()));
  identity.prompt_tokens = static_cast<int64_t>(tokens.size());
  ChatPlan plan;
  plan.tokens = std::move(tokens);
  plan.reply = std::make_unique<RecipeReply>(std::move(context), request, identity);
  return plan;
}

}  // namespace deepmint
