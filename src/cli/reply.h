// One request from submission to its last token, for the commands that show text: events come from
// the engine's thread through a queue and are handled on the caller's thread, which sleeps in
// between.
//
//   DEEPMINT_TRY(reply, generate(engine, tokenizer, request, {.stop = {"\n"}, .on_text =
//   write_stdout}));
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/signals.h"
#include "deepmint/engine.h"
#include "deepmint/result.h"
#include "tokenizer/tokenizer.h"

namespace deepmint::cli {

struct ReplyOptions {
  std::vector<std::string> stop;  // stop strings; needs a tokenizer
  std::function<Status(std::string_view)>
      on_text;                           // new text as it is final; an error cancels the request
  std::function<Status(TokenId)> on_id;  // each id as it comes
  std::function<void(int32_t done, int32_t total)> on_prefill;  // on the caller's thread
  SignalPipe* signals = nullptr;                                // a signal cancels the request
};

struct TokenLogprobs {
  float logprob = 0;
  std::vector<TopLogprob> top;
};

struct Reply {
  std::string
      text;  // without end tokens, stop string and what follows it; empty without a tokenizer
  std::vector<TokenId> ids;             // sampled ids in order, the end token included
  std::vector<TokenLogprobs> logprobs;  // as many as ids, when asked for
  std::string_view finish_reason;       // "stop", "length", "cancelled", …; a stop string is "stop"
  std::string matched_stop;
  FinishEvent finish;        // usage.output_tokens counts `ids`
  int signal = 0;            // what interrupted it, or 0
  double first_token_s = 0;  // from submission; 0 without a token
  double decode_s = 0;       // from the first token to the last

  double decode_tokens_per_s() const {
    return ids.size() > 1 && decode_s > 0 ? double(ids.size() - 1) / decode_s : 0;
  }
};

// tokenizer may be null: then there is no text. Errors: of submission, of the engine, of the
// callbacks.
Result<Reply> generate(Engine& engine, const Tokenizer* tokenizer, GenerationRequest request,
                       const ReplyOptions& options);

}  // namespace deepmint::cli
