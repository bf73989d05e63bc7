// Structural tags: free text until a trigger, then what the tag of that trigger demands, then free
// text again.
//
//   {"triggers": ["<function="],
//    "structures": [{"begin": "<function=add>", "schema": {…}, "end": "</function>"},
//                   {"begin": "<function=say>", "regex": "[a-z]+", "end": "</function>"}],
//    "at_least_one": false, "stop_after_first": false}
//
// Each `begin` starts with a trigger. Where a trigger is complete in the text, one of its tags must
// go on: the rest of its `begin`, its content, its `end`. A content is a schema, a regex or a
// grammar ("grammar", GBNF).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "deepmint/result.h"
#include "grammar/compiled.h"
#include "grammar/grammar.h"

namespace deepmint::grammar {

struct StructuralTag {
  std::string begin, end;
  Spec content;
};

struct StructuralTags {
  std::vector<std::string> triggers;
  std::vector<StructuralTag> tags;
  bool at_least_one = false;      // the reply must hold a tag
  bool stop_after_first = false;  // the reply ends behind its first tag
};

// Errors: kInvalidArgument with the JSON pointer of what is missing, unknown or of another type.
Result<StructuralTags> parse_structural_tags(std::string_view text);

// Errors: those of the contents, behind "#/structures/N"; kInvalidArgument for a tag that no text
// satisfies, a `begin` without a trigger and a trigger without a tag.
Result<Symbol> add_structural_tags(GrammarBuilder& builder, const StructuralTags& tags);

}  // namespace deepmint::grammar
