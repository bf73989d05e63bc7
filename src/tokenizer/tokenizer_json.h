// Hugging Face tokenizer.json to TokenizerSpec. What it may hold and what is refused:
// docs/tokenizer.md.
#pragma once

#include <string_view>

#include "core/json.h"
#include "deepmint/result.h"
#include "tokenizer/tokenizer.h"

namespace deepmint {

// Errors: kInvalidFile naming the field, what was expected and found; kUnsupported naming the
// feature.
Result<TokenizerSpec> tokenizer_spec_from_json(std::string_view text);

// What tokenizer_config.json and generation_config.json add: bos, eos, pad, add_bos, add_eos,
// end_ids. Unknown fields are ignored.
Status apply_tokenizer_config(const json::Value& config, TokenizerSpec& spec);
Status apply_generation_config(const json::Value& config, TokenizerSpec& spec);

// Adds eos and every added token that is known to end a turn ("<|im_end|>", "<|eot_id|>", …) to
// spec.end_ids.
void add_known_end_ids(TokenizerSpec& spec);

}  // namespace deepmint
