// Regular expressions as people write them, over Unicode code points, into a RegexSet (UTF-8).
//
//   parse_regex(set, "[a-z]+@\\p{L}{2,20}", {});                       // whole match
//   parse_regex(set, "^a|b$", {.dialect = RegexDialect::kEcma, .search = true});  // JSON Schema
//
// What cannot be done exactly is refused by name: look-around, back-references, word boundaries,
// unknown escapes and properties. Errors: kInvalidArgument or kUnsupported; `where` is
// "character N" (0-based code point of the pattern). docs/structured-output.md lists both dialects.
#pragma once

#include <string_view>

#include "deepmint/result.h"
#include "grammar/regex_ast.h"

namespace deepmint::grammar {

enum class RegexDialect {
  kRe2,   // RE2's syntax: flags (?i) (?s), (?P<name>), \A \z, [[:alpha:]], \Q..\E, \pL
  kEcma,  // ECMAScript with the `u` flag: \d is ASCII, \s is Unicode white space, \uXXXX \u{X}
};

struct RegexOptions {
  RegexDialect dialect = RegexDialect::kRe2;
  bool search = false;  // true: the language of all texts in which the pattern occurs somewhere
};

// A published limit of both dialects: {1,10000} is the largest count.
inline constexpr uint32_t kMaxRegexRepeat = 10'000;
inline constexpr size_t kMaxRegexBytes = 64 * 1024;

// The language of the texts (valid UTF-8) that the pattern matches.
Result<RegexId> parse_regex(RegexSet& set, std::string_view pattern, const RegexOptions& options);

}  // namespace deepmint::grammar
