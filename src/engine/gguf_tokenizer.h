// The tokenizer that a GGUF file carries in its metadata. Lives here because `tokenizer` knows
// nothing of file formats.
//
//   DEEPMINT_TRY(spec, tokenizer_spec_from_gguf(file));
//   DEEPMINT_TRY(tokenizer, Tokenizer::create(std::move(spec)));
#pragma once

#include "deepmint/result.h"
#include "format/gguf.h"
#include "tokenizer/tokenizer.h"

namespace deepmint {

// Errors: kUnsupported naming the tokenizer model or pre-tokenizer; kInvalidFile naming the key or
// token.
Result<TokenizerSpec> tokenizer_spec_from_gguf(const GgufFile& file);

}  // namespace deepmint
