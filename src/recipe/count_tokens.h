// How many tokens a request's prompt takes, without an engine: Anthropic's count_tokens, and the
// check of a request against the context before any image is fetched.
//
//   DEEPMINT_TRY(body, json::parse(text));
//   DEEPMINT_TRY(answer, count_tokens_response(body, options, *codec));   // {"input_tokens":42}
//
// Pure functions; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "deepmint/result.h"
#include "recipe/convert.h"
#include "recipe/prompt.h"
#include "recipe/token_codec.h"

namespace deepmint::recipe {

struct ImageSize {
  int64_t width = 0, height = 0;  // pixels
  bool webp = false;              // its format bounds the side of the resized image
};

// From the header of a JPEG, PNG, GIF or WebP; nullopt for everything else. Reads nothing beyond
// `bytes`, whatever they claim.
std::optional<ImageSize> image_size(std::string_view bytes);

struct TokenCount {
  uint64_t tokens = 0;
  bool exact = true;  // false: an image's size is unknown (a URL, an unknown format); counted as
                      // the most an image can take
};
TokenCount count_prompt_tokens(const Prompt& prompt, const TokenCodec& codec);

// POST /v1/messages/count_tokens: a Messages request (max_tokens may be absent) → the answer's
// body. Errors are those of convert().
Result<std::string> count_tokens_response(const json::Value& body, const ConvertOptions& options,
                                          const TokenCodec& codec);

}  // namespace deepmint::recipe
