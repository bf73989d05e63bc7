// Requests of the three protocols → ConversationRequest.
//
//   DEEPMINT_TRY(body, json::parse(text));
//   DEEPMINT_TRY(request, convert(Protocol::kChat, body, {}));
//   Prompt prompt = render_prompt(request.conversation, {.version = ModelVersion::kV41});
//
// Errors are kInvalidArgument (HTTP 400, type invalid_request_error) or kNotFound (an unknown
// previous_response_id). `where` is "invalid request body" when a field has the wrong type or is
// missing, and empty for everything else; `message` is what the client reads.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "deepmint/result.h"
#include "recipe/conversation.h"
#include "recipe/turn_store.h"

namespace deepmint::recipe {

enum class WebSearch : uint8_t { kDrop, kReject };

struct ConvertOptions {
  Compat compat = Compat::kOurs;
  ModelVersion version = ModelVersion::kV41;
  bool default_thinking = true;  // when the request says nothing
  bool require_reasoning =
      false;  // refuse history whose reasoning was not passed back (0.2: an option)
  WebSearch responses_web_search = WebSearch::kDrop;
  WebSearch messages_web_search = WebSearch::kReject;  // ours always accepts, with a warning
  uint32_t max_tokens_bound = 393216;                  // largest max_tokens (0.2)
  std::vector<std::string> model_names =
      {};  // 0.2: names that are accepted; empty accepts every name
  const TurnStore* turns =
      nullptr;  // previous_response_id, reasoning by call id, replay of sampled calls; may be null
  const SealedReasoning* sealer = nullptr;  // reads encrypted_content; may be null
  std::string tenant = {};                  // owner of stored turns and sealed reasoning
};

Result<ConversationRequest> convert(Protocol protocol, const json::Value& body,
                                    const ConvertOptions& options);

Result<ConversationRequest> convert_chat(const json::Value& body, const ConvertOptions& options);
Result<ConversationRequest> convert_responses(const json::Value& body,
                                              const ConvertOptions& options);
Result<ConversationRequest> convert_messages(const json::Value& body,
                                             const ConvertOptions& options);

// The name to look a model up by: without the "[1m]" (a context size) that Claude Code appends.
std::string_view model_to_look_up(std::string_view model);

// max_tokens for the engine: what was asked for, else 8192 without thinking, 131072 with max
// effort, 65536 otherwise; never more than what the context leaves. Error when prompt and wish do
// not fit.
Result<uint32_t> resolve_max_tokens(const ConversationRequest& request, uint64_t prompt_tokens,
                                    uint64_t context_limit);

}  // namespace deepmint::recipe
