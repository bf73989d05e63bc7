// The codec's data as JSON, for the encode and decode commands and for tests: what a request
// became, a conversation given directly, chunks of model output. Internal to the recipe module.
#pragma once

#include <optional>
#include <string_view>

#include "core/json.h"
#include "deepmint/result.h"
#include "recipe/codec_cli.h"
#include "recipe/prompt.h"
#include "recipe/reply_stream.h"

namespace deepmint::recipe::codec {

// Members with a fallback for absent ones and ones of another kind: for cases that tests write.
std::string_view text_of(const json::Value& v, std::string_view key,
                         std::string_view fallback = {});
bool flag_of(const json::Value& v, std::string_view key, bool fallback);
uint64_t number_of(const json::Value& v, std::string_view key, uint64_t fallback = 0);
const json::Array& array_of(const json::Value& v, std::string_view key);

std::string_view name_of(Role role);

void write_prompt(json::Writer& w, const Prompt& prompt, const CodecSettings& s);  // members
void write_request(json::Writer& w, const ConversationRequest& r);                 // members

Conversation read_conversation(const json::Value& v);
ParsingOptions read_parsing(const json::Value& v);

// A chunk of JSONL (codec_cli.h). Errors name what is wrong with it.
Status push_chunk(ReplyStream& reply, const json::Value& chunk, const TokenCodec* tokens);

}  // namespace deepmint::recipe::codec
