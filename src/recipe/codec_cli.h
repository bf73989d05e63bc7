// The work of `deepmint encode` and `deepmint decode`, as functions of text to text, so that the
// commands stay thin and tests can drive many cases through one process.
//
// One JSONL case is an object; the answer is one object on one line. `op` selects what happens:
//
//   {"op":"encode","protocol":"chat","version":"v4.1","request":{…}}
//     → {"prompt":…,"controls":[[begin,end],…],"images":[…],"token_ids":[…],"conversation":{…},
//        "options":{…},"parsing":{…},"stream":…,"model":…,"warnings":[…]}
//     With "turns":{response id:[items],…} a previous_response_id is continued; with
//     "room":{"prompt_tokens":n,"context":n} the answer has "resolved_max_tokens".
//   {"op":"render","version":"v4","conversation":{…}}
//     → {"prompt":…,"controls":[[begin,end],…],"images":[…],"token_ids":[…]}
//   {"op":"decode","protocol":"messages","request":{…},"chunks":[…],"id":"r1","created":0}
//     → {"events":[{"event":name,"data":{…}},…],"response":{…},"finish_reason":…}
//   {"op":"parse","options":{…},"chunks":["text",…],"finish":"stop"}
//     → {"segments":[…],"finish_reason":…,"stop_sequence":…,"discarded":[…]}
//
// token_ids and prompt_tokens (with what images take) are there when a tokenizer is. Every op takes
// "compat": "0.1", "0.2" or "ours" (the default). What a case leaves out comes from CodecSettings;
// an encode line without "request" is the request itself. Errors answer
// {"error":{"message":…,"type":…,"class": "body|request|not_found|too_large|internal"}}.
//
// A chunk is a text, or an object with these members, taken in this order:
//   "usage":{"prompt_tokens":n,"cached_tokens":n} with an optional "fingerprint" (also "ready";
//           prompt_cache_hit_tokens is another name of cached_tokens),
//   "token_ids":[…] with optional "logprobs":[{"logprob":x,"top":[[id,x],…]},…],
//   "text":… with an optional "tokens":n (completion tokens it counts as; 1 when absent),
//   "finish":"stop"|"length"|"content_filter"|"none"|null, or
//   "fail":{"type":…,"message":…}: the stream ends in an error.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "deepmint/result.h"
#include "recipe/convert.h"
#include "recipe/output_parser.h"
#include "recipe/prompt.h"
#include "recipe/token_codec.h"

namespace deepmint::recipe {

struct CodecSettings {
  std::shared_ptr<const TokenCodec> tokens = {};  // may be null: no token ids then
  Compat compat = Compat::kOurs;
  ModelVersion version = ModelVersion::kV41;
  // For cases that do not say.
  std::optional<Protocol> protocol = {};
  std::string_view op = {};
};

// "chat", "responses", "messages" / "v4", "v4.1" / "ours", "0.2", "0.1" / "stop", "length",
// "content_filter", "none" (nullopt: the engine just ended).
Result<Protocol> protocol_from_name(std::string_view name);
Result<ModelVersion> version_from_name(std::string_view name);
Result<Compat> compat_from_name(std::string_view name);
Result<std::optional<BackendFinish>> finish_from_name(std::string_view name);

// One JSONL case → one line of JSON without the newline. Never fails: errors are part of the
// answer.
std::string run_codec_case(std::string_view line, const CodecSettings& settings);

// `deepmint encode`: a request → the JSON of op "encode".
Result<std::string> encode_request(Protocol protocol, std::string_view request,
                                   const CodecSettings& settings);

// `deepmint encode --explain`: the prompt for a reader. Control tokens stand out (magenta, or
// between ⟪ and ⟫ without colour), template text is dim, and ⟦2 user⟧ stands before the text of
// message 2. Control characters of callers are shown as escapes, so that a terminal ignores them.
Result<std::string> explain_request(Protocol protocol, std::string_view request,
                                    const CodecSettings& settings, bool colour);

struct DecodeSettings {
  Protocol protocol = Protocol::kChat;
  bool stream = false;  // SSE lines instead of one response
  std::string id = "resp_0";
  int64_t created = 0;
  std::optional<BackendFinish> finish = BackendFinish::kStop;  // when no chunk says
  size_t cut = 0;  // feed text in pieces of this many bytes; 0: as it is pushed
};

// `deepmint decode`: model output → one response, or SSE text as it comes.
class OutputDecoder {
 public:
  static Result<std::unique_ptr<OutputDecoder>> open(std::string_view request,
                                                     const DecodeSettings& decode,
                                                     const CodecSettings& settings);
  virtual ~OutputDecoder() = default;
  // Each gives the SSE text that is ready, or nothing without `stream`. Whole output as text
  // counts the prompt's and its own tokens when there is a tokenizer.
  virtual Result<std::string> push_chunk(std::string_view json) = 0;  // one chunk
  virtual std::string push_output(std::string_view text) = 0;         // all there is
  virtual std::string finish() = 0;  // the rest of the stream, or the response
};

std::string_view error_class(const Error& error);  // "body", "request", "not_found", …

}  // namespace deepmint::recipe
