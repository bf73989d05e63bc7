// Fixed strings of the V4 and V4.1 prompts. U+FF5C is the full-width bar, U+2581 the low block.
#pragma once

#include <string_view>

#include "recipe/compat.h"

namespace deepmint::recipe {

// Control tokens: each is one added token of the tokenizer.
inline constexpr std::string_view kBos = "<｜begin▁of▁sentence｜>";
inline constexpr std::string_view kEos = "<｜end▁of▁sentence｜>";
inline constexpr std::string_view kSystemToken = "<｜System｜>";  // V4.1 only
inline constexpr std::string_view kUserToken = "<｜User｜>";
inline constexpr std::string_view kAssistantToken = "<｜Assistant｜>";
inline constexpr std::string_view kReminderToken = "<｜latest_reminder｜>";
inline constexpr std::string_view kThinkOpen = "<think>";
inline constexpr std::string_view kThinkClose = "</think>";
inline constexpr std::string_view kDsml =
    "｜DSML｜";  // the brackets and the tag name around it are text

inline constexpr std::string_view kToolResultOpen = "<tool_result>";
inline constexpr std::string_view kToolResultClose = "</tool_result>";
inline constexpr std::string_view kUnsupportedImage = "[Unsupported Image]";  // V4 since 0.2
inline constexpr std::string_view kUnsupportedDocument = "[Unsupported Document]";
inline constexpr std::string_view kReminderOpen =
    "<system-reminder>\n";  // 0.1: system messages inside a Messages conversation
inline constexpr std::string_view kReminderClose = "\n</system-reminder>";

// Asks for an answer in a format. The schema form is followed by the schema.
inline constexpr std::string_view kSchemaPrompt =
    "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";
inline constexpr std::string_view kJsonObjectSchema = "{\"type\": \"json_object\"}";
inline constexpr std::string_view kV4JsonPrompt =  // V4 since 0.2
    "You are a helpful assistant designed to output JSON.\n## Response Format:\n\nReply with JSON "
    "object ONLY.";

// Before the schemas of tools that a later message makes known.
inline constexpr std::string_view kUpdatedTools = "\n\n### Updated Tool Schemas\n\n";

struct VersionText {
  std::string_view block, invoke, parameter;  // tag names behind ｜DSML｜
  std::string_view tools_head,
      tools_tail;  // around the schema lines; the head has control tokens in it
  std::string_view effort_low, effort_high, effort_max;
};
const VersionText& version_text(ModelVersion version);

std::string_view apply_patch_description();
std::string_view apply_patch_parameters();  // JSON

}  // namespace deepmint::recipe
