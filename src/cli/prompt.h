// What the user wants answered or scored, as token ids: from --prompt, --text, --ids or standard
// input.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "deepmint/result.h"
#include "deepmint/types.h"
#include "tokenizer/tokenizer.h"

namespace deepmint::cli {

// "-" reads standard input to its end; anything else is the text itself.
Result<std::string> text_or_stdin(const std::string& argument);

// "1,2,3" or "1 2 3" (one comma, white space or both between two); "-" reads standard input. At
// least one id. Errors name `option`, the entry and `what` was expected.
Result<std::vector<TokenId>> parse_ids(const std::string& argument, std::string_view option,
                                       std::string_view what = "token ids");

// The engine says "tokens" and "tokens[3]"; whoever called the program gave them as `option`.
Error in_option(Error error, std::string_view option);

// Text without a chat template, framed by begin and end tokens where the tokenizer asks for them.
// With allow_control, control strings in it ("<|im_end|>") are control tokens; else they are text.
std::vector<TokenId> plain_ids(const Tokenizer& tokenizer, std::string_view text,
                               bool allow_control);

std::string join_ids(std::span<const TokenId> ids, std::string_view separator);

}  // namespace deepmint::cli
