// The values of JSON Schema's `format` as regular languages.
#pragma once

#include <string_view>

#include "grammar/regex_ast.h"

namespace deepmint::grammar {

enum class FormatKind {
  kAsserted,    // format_language() is its language
  kRefused,     // a format of the standard that is not done exactly
  kAnnotation,  // any other name: the standard makes it an annotation
};
FormatKind format_kind(std::string_view name);

// Strings of the format, UTF-8. Never wider than the RFC that the format names; where it is
// narrower, docs/structured-output.md says so. Requires kAsserted.
RegexId format_language(RegexSet& set, std::string_view name);

}  // namespace deepmint::grammar
