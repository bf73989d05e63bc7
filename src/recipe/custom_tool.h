// Custom tools: the model sees a function with one string argument "input"; clients send and get
// the bare text. Chat Completions and Responses spell them differently and mean the same.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/json.h"
#include "deepmint/result.h"
#include "recipe/compat.h"
#include "recipe/conversation.h"

namespace deepmint::recipe {

// The tool as the model sees it. `apply_patch` has a description of its own, which models were
// trained with; other tools keep the client's.
Result<Tool> make_custom_tool(std::string_view name, std::optional<std::string_view> description,
                              Compat compat, ModelVersion version);

// A custom tool's `format`: nullopt for free text, else {"type":"grammar","syntax":"lark" or
// "regex","definition":…}. Chat Completions wraps the last two in "grammar".
Result<std::optional<json::Value>> custom_tool_format(const json::Value& format);

// The arguments that stand for `input`: {"input":"…"}.
std::string custom_tool_arguments(std::string_view input);

}  // namespace deepmint::recipe
