#include "server/api/constraint.h"

#include <optional>

#include "engine/grammar_masks.h"

namespace deepmint {
namespace {

using Kind = recipe::OutputConstraint::Kind;

bool is_format(Kind kind) { return kind == Kind::kJson || kind == Kind::kRegex; }

grammar::Spec format_spec(Kind kind, const std::string& text) {
  if (kind == Kind::kRegex) return {grammar::SpecKind::kRegex, text};
  if (text.empty()) return {grammar::SpecKind::kJsonObject, ""};
  return {grammar::SpecKind::kJsonSchema, text};
}

}  // namespace

Result<std::shared_ptr<TokenMask>> make_token_mask(const recipe::OutputConstraint& constraint,
                                                   const ServedModel& model) {
  if (!constraint.must_enforce) return std::shared_ptr<TokenMask>();
  if (is_format(constraint.kind)) {
    if (model.grammars == nullptr)
      return fail(ErrorCode::kUnsupported,
                  "a reply cannot be held to a format here; expected {\"type\": \"text\"}",
                  "response_format");
    std::optional<TokenId> begins_after;
    if (constraint.after_thinking) {
      begins_after = model.tokenizer->find_added("</think>");
      if (!begins_after)
        return fail(ErrorCode::kUnsupported,
                    "the model has no token that ends its thinking; expected a reply without it",
                    "response_format");
    }
    auto mask = model.grammars->mask(format_spec(constraint.kind, constraint.schema), begins_after);
    if (!mask) return tl::unexpected(std::move(mask).error().at("response_format"));
    return mask;
  }
  if (constraint.answer)
    return fail(ErrorCode::kUnsupported,
                "a format beside tools cannot be enforced here; expected {\"type\": \"text\"}, and "
                "tools without strict",
                "response_format");
  if (constraint.kind == Kind::kToolCallsRequired)
    return fail(ErrorCode::kUnsupported,
                "a call cannot be forced here; expected \"none\" or \"auto\"", "tool_choice");
  return fail(ErrorCode::kUnsupported,
              "strict tools and tools with a grammar cannot be enforced here; expected tools "
              "without strict and without a grammar format",
              "tools");
}

}  // namespace deepmint
