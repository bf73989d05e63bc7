// What one chat request is to a model family: a prompt on the way in, the client's bytes on the way
// out. ChatExchange moves tokens and bytes and knows neither prompts nor replies.
//
//   DEEPMINT_TRY(plan, plan_chat(context, std::move(request), identity));   // worker thread
//   plan.reply->begin(out);                                                 // io thread from here
//   if (plan.reply->take_token(0, {id}, out)) cancel(0);
//   plan.reply->take_finish(0, FinishReason::kStop, usage, out);
//   streaming ? plan.reply->end(out) : respond(plan.reply->whole());
//
// A reply is a function of its tokens: not of how many come at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "deepmint/engine.h"
#include "deepmint/result.h"
#include "recipe/conversation.h"
#include "server/api/chat_output.h"
#include "server/api/chat_request.h"
#include "server/api/context.h"

namespace deepmint {

struct ReplyToken {
  TokenId id;
  float logprob;
  std::span<const TopLogprob> top;
};

// The replies of all choices of one request. Methods append SSE events to `out` when the request
// streams; else they gather what whole() needs and leave `out` alone. One thread at a time.
class ChatReply {
 public:
  virtual ~ChatReply() = default;
  virtual void begin(std::string& out) = 0;  // before everything else
  // True: this choice is complete, whatever the engine would make after this token.
  virtual bool take_token(int32_t choice, const ReplyToken& token, std::string& out) = 0;
  // kStop or kLength; once per choice, and the last for it. What the cache had is known only now:
  // usage is that of the choice that found least, among those that have ended.
  virtual void take_finish(int32_t choice, FinishReason reason, const Usage& usage,
                           std::string& out) = 0;
  virtual void end(std::string& out) = 0;  // after the last choice: usage and [DONE]
  virtual std::string whole() = 0;         // after the last choice: the response object
};

struct ChatPlan {
  std::vector<TokenId> tokens;  // the prompt; leaves room for at least one token
  // Of a dense model: the prompt has opened the thinking block, and a constraint binds behind it.
  bool starts_in_thinking = false;
  std::unique_ptr<ChatReply> reply;
};

// By the model's prompt format. Errors: kInvalidArgument and kUnsupported (what the format
// refuses), kTooLarge (the prompt fills the context), or the reason why the model has no chat.
// `identity.prompt_tokens` is filled in.
Result<ChatPlan> plan_chat(std::shared_ptr<const ApiContext> context, const ChatRequest& request,
                           ChatIdentity identity);

// The two kinds, for plan_chat().
Result<ChatPlan> plan_template_chat(std::shared_ptr<const ApiContext> context,
                                    const ChatRequest& request, ChatIdentity identity);
Result<ChatPlan> plan_recipe_chat(std::shared_ptr<const ApiContext> context,
                                  const ChatRequest& request, ChatIdentity identity);

// Segments → ids. kTooLarge when they fill the context; a prompt that cannot fit however well it
// compresses is not tokenised.
Result<std::vector<TokenId>> encode_prompt(const ApiContext& context,
                                           std::span<const Segment> segments);

// Whether this id ends a reply.
bool ends_reply(const ApiContext& context, bool ignore_eos, TokenId id);

}  // namespace deepmint
