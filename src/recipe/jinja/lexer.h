// Template source → tokens, with white space handled as trim_blocks and lstrip_blocks say. Internal
// to the interpreter.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "deepmint/result.h"

namespace deepmint::recipe::jinja {

struct Token {
  enum class Kind : uint8_t {
    kData,  // text outside of tags; never empty
    kPrintBegin,
    kPrintEnd,
    kBlockBegin,
    kBlockEnd,
    kName,
    kInteger,  // digits without underscores, base 10
    kFloat,
    kString,  // decoded
    kOperator,
    kEnd,
  };
  Kind kind = Kind::kEnd;
  std::string text;
  int line = 0;
};

// The last token is kEnd.
Result<std::vector<Token>> tokenize(std::string_view source);

// An error of the template itself: what, and on which of its lines.
tl::unexpected<Error> template_error(ErrorCode code, int line, std::string message);

}  // namespace deepmint::recipe::jinja
