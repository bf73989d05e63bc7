// Tokens → tree. Names every construct that the interpreter does not have, with its line. Internal
// to the interpreter.
#pragma once

#include <string_view>

#include "deepmint/result.h"
#include "recipe/jinja/ast.h"

namespace deepmint::recipe::jinja {

inline constexpr int kMaxNesting = 300;  // of blocks and expressions; one bracket counts three

Result<Body> parse_template(std::string_view source);

}  // namespace deepmint::recipe::jinja
