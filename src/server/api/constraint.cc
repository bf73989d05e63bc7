#include "server/api/constraint.h"

#include <fmt/format.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "core/names.h"
#include "engine/grammar_masks.h"
#include "grammar/family_calls.h"
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

// What a specification does wrong is the request's fault, whatever the compiler calls it: a limit
// of the grammar is not one of the context, and a reference to nowhere is no missing resource.
Result<std::shared_ptr<TokenMask>> explained(Result<std::shared_ptr<TokenMask>> mask) {
  if (mask) return mask;
  ErrorCode& code = mask.error().code;
  if (code == ErrorCode::kTooLarge) code = ErrorCode::kUnsupported;
  if (code == ErrorCode::kNotFound) code = ErrorCode::kInvalidArgument;
  return mask;
}

// The tools as the grammar takes them. A custom tool's regular expression holds for its input.
Result<std::vector<grammar::ToolSignature>> read_tools(const std::string& text) {
  DEEPMINT_TRY(list, json::parse(text));
  std::vector<grammar::ToolSignature> tools;
  for (size_t i = 0; list.is_array() && i < list.items().size(); ++i) {
    const json::Value& tool = list.items()[i];
    const json::Value* function = tool.find("function");
    const json::Value* name = function != nullptr ? function->find("name") : nullptr;
    if (name == nullptr || !name->is_string())
      return fail(ErrorCode::kInvalidArgument, "expected a function with a name",
                  fmt::format("tools[{}]", i));
    const json::Value* parameters = function->find("parameters");
    const json::Value* strict = function->find("strict");
    grammar::ToolSignature out{name->as_string(),
                               parameters != nullptr ? *parameters : json::Value(),
                               strict != nullptr && strict->is_bool() && strict->as_bool()};
    if (const json::Value* format = tool.find("format")) {
      const json::Value* syntax = format->find("syntax");
      const json::Value* definition = format->find("definition");
      if (syntax == nullptr || !syntax->is_string() || definition == nullptr ||
          !definition->is_string())
        return fail(ErrorCode::kInvalidArgument, "expected a syntax and a definition",
                    fmt::format("tools[{}].format", i));
      if (syntax->as_string() != "regex")
        return fail(ErrorCode::kUnsupported,
                    fmt::format("expected \"regex\": grammars in {} are not supported",
                                quote_name(syntax->as_string())),
                    fmt::format("tools[{}].format.syntax", i));
      out.input = grammar::Spec{grammar::SpecKind::kRegex, definition->as_string()};
    }
    tools.push_back(std::move(out));
  }
  return tools;
}

// Strict tools, forced calls and tools with a grammar, in the markup of the model's family.
Result<std::shared_ptr<TokenMask>> call_mask(const recipe::OutputConstraint& constraint,
                                             const ServedModel& model) {
  const Tokenizer& tokenizer = *model.tokenizer;
  const bool required = constraint.kind == Kind::kToolCallsRequired;
  std::optional<TokenId> thinking_ends;
  if (constraint.after_thinking) {
    thinking_ends = tokenizer.find_added(recipe::kThinkClose);
    if (!thinking_ends)
      return fail(ErrorCode::kUnsupported,
                  "the model has no token that ends its thinking; expected a reply without it",
                  "tools");
  }
  grammar::ToolCallOptions options;
  options.required = required;
  options.single = constraint.single_call;
  if (constraint.answer && !required)
    options.answer = format_spec(*constraint.answer, constraint.answer_schema);
  std::function<Result<grammar::Grammar>(const std::vector<grammar::ToolSignature>&)> build;
  std::string family;
  if (model.chat->deepseek) {
    const recipe::VersionText& text = recipe::version_text(*model.chat->deepseek);
    const auto mark = tokenizer.find_added(recipe::kDsml);
    if (!mark)
      return fail(ErrorCode::kUnsupported, "the tokenizer lacks the control tokens of calls",
                  "tools");
    family = text.block;
    // Without thinking the recipe's prompt opens the block itself.
    options.opened = required && !constraint.after_thinking;
    build = [options,
             markup = grammar::ToolMarkup{*mark, std::string(text.block), std::string(text.invoke),
                                          std::string(text.parameter)}](const auto& tools) {
      return grammar::tool_call_grammar(markup, tools, options);
    };
  } else {
    using Calls = recipe::ReplyFormat::Calls;
    const recipe::ReplyFormat& reply = model.chat->reply;
    const auto mark = [&](std::string_view text) {
      return grammar::CallMark{std::string(text), tokenizer.find_added(text)};
    };
    grammar::FamilyMarkup markup;
    if (reply.calls == Calls::kHermes) {
      markup.open = mark("<tool_call>");
      markup.close = mark("</tool_call>");
    } else if (reply.calls == Calls::kLlama3) {
      markup.prefix = mark("<|python_tag|>");
      markup.arguments = "parameters";
    } else {
      return fail(ErrorCode::kUnsupported,
                  "strict tools and forced calls cannot be enforced for this model's family; "
                  "expected tools without strict, and \"none\" or \"auto\" as tool_choice",
                  required ? "tool_choice" : "tools");
    }
    if (reply.thinks && !constraint.after_thinking) {
      markup.think = mark("<think>");
      markup.end_think = mark(recipe::kThinkClose);
    }
    family = markup.arguments;
    build = [options, markup](const auto& tools) {
      return grammar::family_call_grammar(markup, tools, options);
    };
  }
  std::string key = fmt::format("calls\n{}\n{}\n{}\n{}\n{}\n{}\n{}", family,
                                constraint.after_thinking, required, constraint.single_call,
                                constraint.answer ? static_cast<int>(*constraint.answer) : -1,
                                constraint.answer_schema, constraint.schema);
  const auto compile = [&]() -> Result<grammar::Grammar> {
    DEEPMINT_TRY(tools, read_tools(constraint.schema));
    return build(tools);
  };
  return explained(model.grammars->mask(std::move(key), compile, thinking_ends));
}

Result<std::shared_ptr<TokenMask>> format_mask(const grammar::Spec& spec, const ServedModel& model,
                                               bool after_thinking) {
  if (model.grammars == nullptr)
    return fail(ErrorCode::kUnsupported,
                "a reply cannot be held to a format here; expected {\"type\": \"text\"}",
                "response_format");
  std::optional<TokenId> begins_after;
  if (after_thinking) {
    begins_after = model.tokenizer->find_added(recipe::kThinkClose);
    if (!begins_after)
      return fail(ErrorCode::kUnsupported,
                  "the model has no token that ends its thinking; expected a reply without it",
                  "response_format");
  }
  auto mask = explained(model.grammars->mask(spec, begins_after));
  if (!mask) return tl::unexpected(std::move(mask).error().at("response_format"));
  return mask;
}

}  // namespace

Result<std::shared_ptr<TokenMask>> make_default_mask(const ServedModel& model,
                                                     bool after_thinking) {
  return format_mask(*model.default_format, model, after_thinking);
}

Result<std::shared_ptr<TokenMask>> make_token_mask(const recipe::OutputConstraint& constraint,
                                                   const ServedModel& model) {
  if (!constraint.must_enforce) return std::shared_ptr<TokenMask>();
  if (is_format(constraint.kind)) {
    return format_mask(format_spec(constraint.kind, constraint.schema), model,
                       constraint.after_thinking);
  }
  const bool is_call =
      constraint.kind == Kind::kToolCalls || constraint.kind == Kind::kToolCallsRequired;
  if (is_call && model.grammars != nullptr && model.chat) return call_mask(constraint, model);
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
