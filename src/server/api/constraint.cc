#include "server/api/constraint.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "engine/grammar_masks.h"
#include "grammar/tool_calls.h"
#include "recipe/prompt_text.h"

namespace deepmint {
namespace {

using Kind = recipe::OutputConstraint::Kind;

bool is_format(Kind kind) { return kind == Kind::kJson || kind == Kind::kRegex; }

grammar::Spec format_spec(Kind kind, const std::string& text) {
  if (kind == Kind::kRegex) return {grammar::SpecKind::kRegex, text};
  if (text.empty()) return {grammar::SpecKind::kJsonObject, ""};
  return {grammar::SpecKind::kJsonSchema, text};
}

// Strict tools and forced calls of DeepSeek, whose markup the recipe knows.
Result<std::shared_ptr<TokenMask>> call_mask(const recipe::OutputConstraint& constraint,
                                             const ServedModel& model) {
  const recipe::VersionText& text = recipe::version_text(*model.chat->deepseek);
  const auto mark = model.tokenizer->find_added(recipe::kDsml);
  const auto thinking_ends = model.tokenizer->find_added(recipe::kThinkClose);
  if (!mark || !thinking_ends)
    return fail(ErrorCode::kUnsupported, "the tokenizer lacks the control tokens of calls",
                "tools");
  const grammar::ToolMarkup markup{*mark, std::string(text.block), std::string(text.invoke),
                                   std::string(text.parameter)};
  const auto build = [&]() -> Result<grammar::Grammar> {
    DEEPMINT_TRY(list, json::parse(constraint.schema));
    std::vector<grammar::ToolSignature> tools;
    for (size_t i = 0; list.kind() == json::Kind::kArray && i < list.items().size(); ++i) {
      const json::Value& tool = list.items()[i];
      if (tool.find("format") != nullptr)
        return fail(ErrorCode::kUnsupported, "tools with a grammar cannot be enforced here",
                    fmt::format("tools[{}]", i));
      const json::Value* function = tool.find("function");
      const json::Value* name = function != nullptr ? function->find("name") : nullptr;
      if (name == nullptr || !name->is_string())
        return fail(ErrorCode::kInvalidArgument, "expected a function with a name",
                    fmt::format("tools[{}]", i));
      const json::Value* parameters = function->find("parameters");
      const json::Value* strict = function->find("strict");
      tools.push_back({name->as_string(), parameters != nullptr ? *parameters : json::Value(),
                       strict != nullptr && strict->is_bool() && strict->as_bool()});
    }
    grammar::ToolCallOptions options;
    options.required = constraint.kind == Kind::kToolCallsRequired;
    // Without thinking the recipe's prompt opens the block itself.
    options.opened = options.required && !constraint.after_thinking;
    options.single = constraint.single_call;
    if (constraint.answer && !options.required)
      options.answer = format_spec(*constraint.answer, constraint.answer_schema);
    return grammar::tool_call_grammar(markup, tools, options);
  };
  std::string key =
      fmt::format("calls\n{}\n{}\n{}\n{}\n{}\n{}\n{}", text.block, constraint.after_thinking,
                  constraint.kind == Kind::kToolCallsRequired, constraint.single_call,
                  constraint.answer ? static_cast<int>(*constraint.answer) : -1,
                  constraint.answer_schema, constraint.schema);
  return model.grammars->mask(std::move(key), build,
                              constraint.after_thinking ? thinking_ends : std::optional<TokenId>());
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
  const bool is_call =
      constraint.kind == Kind::kToolCalls || constraint.kind == Kind::kToolCallsRequired;
  if (is_call && model.grammars != nullptr && model.chat && model.chat->deepseek)
    return call_mask(constraint, model);
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
