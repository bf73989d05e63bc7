// Grammars in the EBNF that llama.cpp calls GBNF: `rule ::= "text" [a-z] ( … | … )? * + {m,n}`,
// comments from # to the end of the line, left and mutual recursion. The start rule is `root`.
//
// Errors say "line:column" in `where`.
#pragma once

#include <string_view>

#include "deepmint/result.h"
#include "grammar/grammar.h"

namespace deepmint::grammar {

Result<Symbol> add_ebnf(GrammarBuilder& builder, std::string_view text);  // the root's symbol
Result<Grammar> compile_ebnf(std::string_view text);

}  // namespace deepmint::grammar
