// Unicode properties as sets of code points.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "grammar/regex_ast.h"

namespace deepmint::grammar {

// Sorted, disjoint ranges of a general category ("L", "Lu"), a script ("sc:Greek", "scx:Greek") or
// a binary property ("Alphabetic"), as PCRE2's tables have them; nullptr for a name that they do
// not know. Computed once per name and process.
std::shared_ptr<const std::vector<CodePointRange>> unicode_property(std::string_view name);

std::vector<CodePointRange> invert(std::vector<CodePointRange> ranges);  // over U+0000..10FFFF
void normalize(std::vector<CodePointRange>& ranges);                     // sorts and joins

}  // namespace deepmint::grammar
