#include "server/api/chat_reply.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace deepmint {

Result<ChatPlan> plan_chat(std::shared_ptr<const ApiContext> context, const ChatRequest& request,
                           ChatIdentity identity) {
  if (const auto& chat = context->model.chat; !chat) return tl::unexpected(chat.error());
  return request.conversation
             ? plan_recipe_chat(std::move(context), request, std::move(identity))
             : plan_template_chat(std::move(context), request, std::move(identity));
}

Result<std::vector<TokenId>> encode_prompt(const ApiContext& context,
                                           std::span<const Segment> segments) {
  const auto context_tokens = static_cast<size_t>(context.model.engine->info().context_tokens);
  size_t bytes = 0;
  for (const Segment& s : segments) bytes += s.text.size();
  const size_t at_least = bytes / context.longest_token_bytes;
  if (at_least >= context_tokens)
    return fail(
        ErrorCode::kTooLarge,
        fmt::format("prompt has at least {} tokens, context is {}", at_least, context_tokens),
        "messages");
  std::vector<TokenId> tokens = context.model.tokenizer->encode(segments);
  if (tokens.size() >= context_tokens)
    return fail(ErrorCode::kTooLarge,
                fmt::format("prompt has {} tokens, context is {}", tokens.size(), context_tokens),
                "messages");
  return tokens;
}

bool ends_reply(const ApiContext& context, bool ignore_eos, TokenId id) {
  const auto& ends = context.model.end_ids;
  return !ignore_eos && std::find(ends.begin(), ends.end(), id) != ends.end();
}

}  // namespace deepmint
