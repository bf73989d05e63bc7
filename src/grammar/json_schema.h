// JSON Schema to a grammar of the JSON texts that validate. Exact or refused: a keyword is either
// carried out to the letter or the schema does not compile; docs/structured-output.md lists both.
//
//   DEEPMINT_TRY(schema, json::parse(text));
//   DEEPMINT_TRY(grammar, compile_json_schema(schema));
//
// The grammar generates texts whose members come in the order in which the schema first names
// them, then free ones; numbers, strings and keys in any spelling that number_range.h and JSON
// allow; white space in runs of at most max_whitespace. It never generates a text that the schema
// refuses. Errors: `where` is the JSON pointer of the construct. kInvalidArgument: not a schema, or
// one that no value satisfies. kUnsupported: not done exactly. kTooLarge: a limit below.
#pragma once

#include <cstdint>

#include "core/json.h"
#include "deepmint/result.h"
#include "grammar/grammar.h"

namespace deepmint::grammar {

struct JsonSchemaOptions {
  uint32_t max_whitespace = 8;  // length of a run of white space, 0 for compact text
  bool assert_formats = true;   // false: `format` is an annotation only
};

struct JsonSchemaLimits {
  static constexpr size_t kExpressions = 60'000;     // subschemas and combinations of them
  static constexpr size_t kAlternatives = 512;       // of one combination, after multiplying out
  static constexpr size_t kWork = 400'000;           // steps of combination for one schema
  static constexpr uint64_t kRegexWork = 6'000'000;  // RegexSet::work(), about half a second
  static constexpr int kDepth = 128;                 // references that lead to each other
  static constexpr size_t kStates = 20'000;          // of one counted object or array
  static constexpr uint64_t kCount = 1'000'000'000;  // a larger maximum is no maximum
  static constexpr size_t kUniqueValues = 10;        // different values of unique items
};

// The texts of one value, without white space around it: a nonterminal.
Result<Symbol> add_json_schema(GrammarBuilder& builder, const json::Value& schema,
                               const JsonSchemaOptions& options = {});
Result<Symbol> add_json_object(GrammarBuilder& builder, const JsonSchemaOptions& options = {});

// A whole document, from the first byte of the value to its last: a reply neither begins nor ends
// with white space.
Result<Grammar> compile_json_schema(const json::Value& schema,
                                    const JsonSchemaOptions& options = {});
Result<Grammar> compile_json_object(const JsonSchemaOptions& options = {});  // any object

}  // namespace deepmint::grammar
