// Tool calls of dense models as a grammar: each family's markup around JSON whose arguments the
// tool's schema allows. Free text until a call begins, the call, then free text again.
//
//   Hermes, Qwen   <tool_call>\n{"name": "f", "arguments": {…}}\n</tool_call>
//   Llama 3        the reply is {"name": "f", "parameters": {…}}, perhaps several with `;` between
//
// A mark is the tokenizer's control token where it has one, else its text. Free text never spells a
// mark, so that nothing but a call of the grammar is read as one.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "deepmint/result.h"
#include "grammar/tool_calls.h"

namespace deepmint::grammar {

struct CallMark {
  std::string text;
  std::optional<TokenId> token = {};
};

struct FamilyMarkup {
  std::optional<CallMark> open, close;            // around each call; neither: Llama 3
  std::optional<CallMark> prefix = {};            // Llama 3: <|python_tag|>, may stand in front
  std::string arguments = "arguments";            // the member of the call that holds them
  std::optional<CallMark> think, end_think = {};  // a block that may stand in front of everything
};

// `opened` of the options is not for these families. Errors as tool_call_grammar() has them; of a
// strict tool's parameters everything that a JSON Schema can say is enforced.
Result<Grammar> family_call_grammar(const FamilyMarkup& markup,
                                    std::span<const ToolSignature> tools,
                                    const ToolCallOptions& options);

}  // namespace deepmint::grammar
