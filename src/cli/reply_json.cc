#include "cli/reply_json.h"

#include <fmt/format.h>

#include <cmath>

#include "cli/command_line.h"
#include "core/cpu_isa.h"
#include "core/json.h"
#include "core/utf8.h"

namespace deepmint::cli {
namespace {

// Microseconds are more than a clock of this kind is good for; they keep the line short.
double rounded(double seconds) { return std::round(seconds * 1e6) / 1e6; }

void write_logprobs(json::Writer& w, const Reply& reply, const Tokenizer* tokenizer) {
  const auto entry = [&](TokenId id, float logprob) {
    w.key("id").value(id);
    if (tokenizer != nullptr) w.key("token").value(utf8::sanitize(tokenizer->token_bytes(id)));
    w.key("logprob").value(logprob);
  };
  w.key("logprobs").begin_array();
  for (size_t i = 0; i < reply.logprobs.size(); ++i) {
    w.begin_object();
    entry(reply.ids[i], reply.logprobs[i].logprob);
    w.key("top").begin_array();
    for (const TopLogprob& top : reply.logprobs[i].top) {
      w.begin_object();
      entry(top.id, top.logprob);
      w.end_object();
    }
    w.end_array().end_object();
  }
  w.end_array();
}

}  // namespace

std::string reply_json(const Reply& reply, const OpenModel& open) {
  const EngineInfo& info = open.engine->info();
  const Usage& usage = reply.finish.usage;
  const Tokenizer* tokenizer = open.loaded.tokenizer.get();
  json::Writer w;
  w.begin_object();
  w.key("model").value(utf8::sanitize(info.model_name));
  w.key("text");
  if (tokenizer != nullptr) {
    w.value(reply.text);
  } else {
    w.null();
  }
  w.key("ids").begin_array();
  for (const TokenId id : reply.ids) w.value(id);
  w.end_array();
  w.key("finish_reason").value(reply.finish_reason);
  if (!reply.matched_stop.empty()) w.key("stop").value(utf8::sanitize(reply.matched_stop));
  w.key("usage").begin_object();
  w.key("prompt_tokens").value(usage.prompt_tokens);
  w.key("cached_tokens").value(usage.cached_tokens);
  w.key("output_tokens").value(usage.output_tokens);
  if (usage.tail_skipped_tokens > 0)
    w.key("prefill_tail_skipped_tokens").value(usage.tail_skipped_tokens);
  w.end_object();
  w.key("seed").value(reply.finish.seed);
  if (!reply.logprobs.empty()) write_logprobs(w, reply, tokenizer);
  w.key("timings").begin_object();
  w.key("load_s").value(rounded(open.load_s));
  w.key("first_token_s").value(rounded(reply.first_token_s));
  w.key("decode_s").value(rounded(reply.decode_s));
  w.key("decode_tokens_per_s").value(std::round(reply.decode_tokens_per_s() * 100) / 100);
  w.end_object();
  w.key("isa").value(info.isa);
  w.key("threads").value(info.threads);
  w.key("version").value(program_version());
  w.end_object();
  return w.take();
}

std::string reply_statistics(const Reply& reply, const OpenModel& open) {
  const Usage& usage = reply.finish.usage;
  std::string out = fmt::format("[{} + {} tokens", usage.prompt_tokens, usage.output_tokens);
  if (usage.tail_skipped_tokens > 0) out += " · bounded tail";
  if (usage.bounded_replay) out += " · bounded replay";
  if (reply.decode_tokens_per_s() > 0)
    out += fmt::format(" · {:.1f} tok/s", reply.decode_tokens_per_s());
  if (!reply.ids.empty()) out += fmt::format(" · first after {:.2f} s", reply.first_token_s);
  if (open.load_s > 0) out += fmt::format(" · loaded in {:.2f} s", open.load_s);
  out += fmt::format(" · {} · seed {}]", reply.finish_reason, reply.finish.seed);
  return out;
}

}  // namespace deepmint::cli
