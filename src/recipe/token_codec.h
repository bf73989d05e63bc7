// What the recipe needs from a tokenizer, as an interface, so that it can be tested with a toy
// vocabulary.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "deepmint/result.h"
#include "deepmint/types.h"
#include "recipe/compat.h"
#include "tokenizer/segment.h"

namespace deepmint {
class Tokenizer;
}

namespace deepmint::recipe {

class TokenCodec {
 public:
  virtual ~TokenCodec() = default;
  virtual std::vector<TokenId> encode(std::span<const Segment> segments) const = 0;
  virtual std::string_view token_bytes(
      TokenId id) const = 0;                      // empty for ids outside the vocabulary
  virtual bool is_control(TokenId id) const = 0;  // an added token
};

// The real one; keeps `tokenizer` alive.
std::shared_ptr<const TokenCodec> make_token_codec(std::shared_ptr<const Tokenizer> tokenizer);

// Whether the tokenizer has the control tokens of the format; the error names one that it lacks.
Status check_tokenizer(const Tokenizer& tokenizer, ModelVersion version);

}  // namespace deepmint::recipe
