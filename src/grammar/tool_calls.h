// Tool calls in DeepSeek's markup as a grammar: free text until the calls begin, then calls of the
// given tools with arguments that their schemas allow.
//
//   \n\n<M calls>\n<M invoke name="f">\n<M parameter name="a" string="true">text</M parameter>\n…
//
// M is a control token, so that no text can be taken for it. Strings stand as they are, everything
// else as JSON. Parameters come in the order of the schema.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/json.h"
#include "deepmint/result.h"
#include "grammar/compiled.h"

namespace deepmint::grammar {

struct ToolMarkup {
  TokenId mark = -1;                     // the control token behind every `<` and `</`
  std::string block, invoke, parameter;  // tag names behind it: " calls", " invoke", " parameter"
};

struct ToolSignature {
  std::string name;
  json::Value parameters;  // JSON Schema of an object; null: none
  bool strict = false;     // false: any parameters
  // A custom tool: its one parameter is the string "input", and this is what it must be.
  std::optional<Spec> input = {};
};

// A call of any of the tools, given the call of one. Errors name the tool's place, tools[i]; a tool
// whose call nothing satisfies is one. Every family's markup is built around it.
Result<Symbol> any_call_of(GrammarBuilder& g, std::span<const ToolSignature> tools,
                           const std::function<Result<Symbol>(const ToolSignature&)>& call);

struct ToolCallOptions {
  bool required = false;       // the reply is calls and nothing else
  bool opened = false;         // with required: the prompt ends behind `\n\n<M calls>\n`
  bool single = false;         // exactly one call
  std::optional<Spec> answer;  // what the text must be when there are no calls; unset: any text
};

// Errors: kInvalidArgument and kUnsupported with the tool's place and the JSON pointer in it; of a
// strict tool's parameters only type, properties, required, additionalProperties, definitions and
// annotations may stand at the top.
Result<Grammar> tool_call_grammar(const ToolMarkup& markup, std::span<const ToolSignature> tools,
                                  const ToolCallOptions& options);

}  // namespace deepmint::grammar
