// Whether a caller's JSON Schema compiles, and the closed form that strict tools take.
#pragma once

#include <optional>
#include <string>

#include "core/json.h"
#include "deepmint/result.h"

namespace deepmint::recipe {

// Checks a schema against the draft 2020-12 meta-schema (types of the keywords, patterns, local
// references). Remote references are refused: nothing is ever fetched. Returns the reason, or
// nullopt when the schema is fine.
std::optional<std::string> schema_trouble(const json::Value& schema);

enum class StrictUse : uint8_t { kToolParameters, kResponseFormat };

// The strict form that deepseek-recipe 0.2 gives the parameters of a strict tool and a strict
// response schema: only the keywords a grammar can guarantee stay, every property is required,
// nothing else is allowed. Errors: kInvalidArgument with the original's text.
Result<json::Value> strict_schema(const json::Value& schema, StrictUse use);

}  // namespace deepmint::recipe
