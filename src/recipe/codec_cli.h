// The work of `deepmint encode` and `deepmint decode`, as functions of text to text, so that the
// commands stay thin and tests can drive many cases through one process.
//
// One JSONL case is an object; the answer is one object on one line. `op` selects what happens:
//
//   {"op":"encode","protocol":"chat","version":"v4.1","request":{…}}
//     →
//     {"prompt":…,"token_ids":[…],"images":[…],"conversation":{…},"inference":{…},"parsing":{…},"warnings":[…]}
//   {"op":"render","version":"v4","conversation":{…}} →
//   {"prompt":…,"controls":[[begin,end],…],"token_ids":[…]}
//   {"op":"decode","protocol":"messages","request":{…},"chunks":[…],"id":"r1","created":0}
//     → {"events":[{"event":name,"data":{…}},…],"response":{…}}
//   {"op":"parse","options":{…},"chunks":["text",…],"finish":"stop"} →
//   {"segments":[…],"finish_reason":…}
//
// Every op takes "compat": "0.1", "0.2" or "ours" (the default). A chunk is a text, or
// {"text":…,"tokens":n},
// {"token_ids":[…]}, {"ready":{"prompt_tokens":n,"cached_tokens":n},"fingerprint":…} or
// {"finish":"stop|length|content_filter"}. Errors answer
// {"error":{"message":…,"type":…,"class":"body|request|not_found|internal"}}.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "deepmint/result.h"
#include "recipe/convert.h"
#include "recipe/prompt.h"
#include "recipe/token_codec.h"

namespace deepmint::recipe {

struct CodecSettings {
  std::shared_ptr<const TokenCodec> tokens;  // may be null: no token ids then
  Compat compat = Compat::kOurs;
  ModelVersion version = ModelVersion::kV41;
};

// One JSONL case → one line of JSON without the newline. Never fails: errors are part of the
// answer.
std::string run_codec_case(std::string_view line, const CodecSettings& settings);

// `deepmint encode`: a request → the JSON of op "encode".
Result<std::string> encode_request(Protocol protocol, std::string_view request,
                                   const CodecSettings& settings);

// `deepmint encode --explain`: the prompt with control tokens in colour (ANSI) and a mark in the
// margin where each message starts.
Result<std::string> explain_request(Protocol protocol, std::string_view request,
                                    const CodecSettings& settings);

struct DecodeSettings {
  Protocol protocol = Protocol::kChat;
  bool stream = false;  // SSE lines instead of one response
  std::string id = "resp_0";
  int64_t created = 0;
  std::string finish = "stop";  // stop, length, content_filter, or "" for an engine that just ended
  size_t cut = 0;               // feed the text in pieces of this many bytes; 0: all at once
  bool chunks = false;          // the input is JSONL chunks instead of plain model text
};

// `deepmint decode`: model output → one response, or SSE text.
Result<std::string> decode_output(std::string_view request, std::string_view model_output,
                                  const DecodeSettings& decode, const CodecSettings& settings);

std::string_view error_class(const Error& error);  // "body", "request", "not_found", "internal"

}  // namespace deepmint::recipe
