#include "server/api/constraint.h"

namespace deepmint {
namespace {

using Kind = recipe::OutputConstraint::Kind;

bool is_format(Kind kind) { return kind == Kind::kJson || kind == Kind::kRegex; }

}  // namespace

Result<std::shared_ptr<TokenMask>> make_token_mask(const recipe::OutputConstraint& constraint,
                                                   const ServedModel& /*model*/) {
  if (!constraint.must_enforce) return std::shared_ptr<TokenMask>();
  if (is_format(constraint.kind) || constraint.answer)
    return fail(ErrorCode::kUnsupported,
                constraint.answer ? "a format beside tools cannot be enforced here; expected "
                                    "{\"type\": \"text\"}, and tools without strict"
                                  : "a reply cannot be held to a format here; expected {\"type\": "
                                    "\"text\"}",
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
