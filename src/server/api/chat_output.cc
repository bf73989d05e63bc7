#include "server/api/chat_output.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>

#include "core/json.h"
#include "core/utf8.h"
#include "tokenizer/tokenizer.h"

namespace deepmint {
namespace {

constexpr double kNoProbability = -9999.0;  // JSON has no -inf; this is what OpenAI sends

std::string head(const ChatIdentity& identity, std::string_view object) {
  json::Writer w;
  w.begin_object();
  w.key("id").value(identity.id);
  w.key("object").value(object);
  w.key("created").value(identity.created);
  w.key("model").value(identity.model);
  w.key("system_fingerprint").value(identity.fingerprint);
  return w.take();  // left open: the caller goes on with a comma
}

void append_usage(std::string& out, const ChatUsage& usage) {
  fmt::format_to(
      std::back_inserter(out),
      FMT_STRING("\"usage\":{{\"prompt_tokens\":{},\"completion_tokens\":{},\"total_tokens\":{},"
                 "\"prompt_tokens_details\":{{\"cached_tokens\":{}{}}}}}"),
      usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens + usage.completion_tokens,
      usage.cached_tokens, usage.details);
}

void append_logprobs(std::string& out, std::string_view entries) {
  out += ",\"logprobs\":";
  if (entries.data() == nullptr) {
    out += "null";
    return;
  }
  out += "{\"content\":[";
  out += entries;
  out += "],\"refusal\":null}";
}

void append_token(std::string& out, const Tokenizer& tokenizer, TokenId id, float logprob) {
  const std::string_view bytes = tokenizer.token_bytes(id);
  out += "{\"token\":";
  json::append_escaped(out, utf8::is_valid(bytes) ? std::string(bytes) : utf8::sanitize(bytes));
  json::Writer number;
  number.value(std::isfinite(logprob) ? static_cast<double>(logprob) : kNoProbability);
  out += ",\"logprob\":";
  out += number.str();
  out += ",\"bytes\":[";
  for (size_t i = 0; i < bytes.size(); ++i)
    fmt::format_to(std::back_inserter(out), FMT_STRING("{}{}"), i > 0 ? "," : "",
                   static_cast<unsigned char>(bytes[i]));
  out += ']';
}

}  // namespace

std::string prompt_details(const Usage& usage) {
  std::string out = fmt::format(FMT_STRING(",\"replayed_tokens\":{},\"cache_miss\":\"{}\""),
                                usage.replayed_tokens, to_string(usage.cache_miss));
  if (usage.tail_skipped_tokens > 0)
    fmt::format_to(std::back_inserter(out), FMT_STRING(",\"prefill_tail_skipped_tokens\":{}"),
                   usage.tail_skipped_tokens);
  if (usage.bounded_replay) out += ",\"prefix_replay\":\"bounded\"";
  return out;
}

ChatOutput::ChatOutput(const ChatIdentity& identity)
    : chunk_head_("data: " + head(identity, "chat.completion.chunk")),
      whole_head_(head(identity, "chat.completion")),
      chunk_tail_(identity.include_usage ? ",\"usage\":null" : ""),
      seed_(fmt::format(",\"seed\":{}", identity.seed)) {}

void ChatOutput::open_chunk(std::string& out, int32_t choice) const {
  out += chunk_head_;
  fmt::format_to(std::back_inserter(out), FMT_STRING(",\"choices\":[{{\"index\":{},\"delta\":{{"),
                 choice);
}

void ChatOutput::close_chunk(std::string& out) const {
  out += "}]";
  out += chunk_tail_;
}

void ChatOutput::role_chunk(std::string& out, int32_t choice) const {
  open_chunk(out, choice);
  out += "\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null";
  close_chunk(out);
  out += seed_;
  out += "}\n\n";
}

void ChatOutput::text_chunk(std::string& out, int32_t choice, std::string_view text,
                            std::string_view logprobs) const {
  open_chunk(out, choice);
  out += "\"content\":";
  json::append_escaped(out, text);
  out += '}';
  append_logprobs(out, logprobs);
  out += ",\"finish_reason\":null";
  close_chunk(out);
  out += "}\n\n";
}

void ChatOutput::close_delta(std::string& out) const {
  out += "},\"logprobs\":null,\"finish_reason\":null";
  close_chunk(out);
  out += "}\n\n";
}

void ChatOutput::reasoning_chunk(std::string& out, int32_t choice, std::string_view text) const {
  open_chunk(out, choice);
  out += "\"reasoning_content\":";
  json::append_escaped(out, text);
  close_delta(out);
}

void ChatOutput::tool_entry(std::string& out, const CalledTool& call, bool with_index) {
  out += '{';
  if (with_index) fmt::format_to(std::back_inserter(out), FMT_STRING("\"index\":{},"), call.index);
  out += "\"id\":";
  json::append_escaped(out, call.id);
  out += ",\"type\":\"function\",\"function\":{\"name\":";
  json::append_escaped(out, call.name);
  out += ",\"arguments\":";
  json::append_escaped(out, call.arguments);
  out += "}}";
}

void ChatOutput::tool_chunk(std::string& out, int32_t choice, const CalledTool& call) const {
  open_chunk(out, choice);
  out += "\"tool_calls\":[";
  tool_entry(out, call, /*with_index=*/true);
  out += ']';
  close_delta(out);
}

void ChatOutput::finish_chunk(std::string& out, int32_t choice,
                              std::string_view finish_reason) const {
  open_chunk(out, choice);
  out += "},\"logprobs\":null,\"finish_reason\":";
  json::append_escaped(out, finish_reason);
  close_chunk(out);
  out += seed_;
  out += "}\n\n";
}

void ChatOutput::usage_chunk(std::string& out, const ChatUsage& usage) const {
  out += chunk_head_;
  out += ",\"choices\":[],";
  append_usage(out, usage);
  out += seed_;
  out += "}\n\n";
}

void ChatOutput::error_event(std::string& out, const ApiError& error) {
  out += "data: ";
  out += error_body(error);
  out += "\n\n";
}

std::string ChatOutput::completion(std::span<const FinishedChoice> choices,
                                   const ChatUsage& usage) const {
  std::string out = whole_head_;
  out += ",\"choices\":[";
  for (size_t i = 0; i < choices.size(); ++i) {
    fmt::format_to(std::back_inserter(out),
                   FMT_STRING("{}{{\"index\":{},\"message\":{{\"role\":\"assistant\",\"content\":"),
                   i > 0 ? "," : "", i);
    if (choices[i].content.empty() && !choices[i].tool_calls.empty())
      out += "null";
    else
      json::append_escaped(out, choices[i].content);
    if (!choices[i].reasoning.empty()) {
      out += ",\"reasoning_content\":";
      json::append_escaped(out, choices[i].reasoning);
    }
    if (!choices[i].tool_calls.empty()) {
      out += ",\"tool_calls\":[";
      out += choices[i].tool_calls;
      out += ']';
    }
    out += ",\"refusal\":null}";
    append_logprobs(out, choices[i].logprobs);
    out += ",\"finish_reason\":";
    json::append_escaped(out, choices[i].finish_reason);
    out += '}';
  }
  out += "],";
  append_usage(out, usage);
  out += seed_;
  out += "}";
  return out;
}

void ChatOutput::logprob_entry(std::string& out, const Tokenizer& tokenizer, TokenId id,
                               float logprob, std::span<const TopLogprob> top) {
  if (!out.empty()) out += ',';
  append_token(out, tokenizer, id, logprob);
  out += ",\"top_logprobs\":[";
  for (size_t i = 0; i < top.size(); ++i) {
    if (i > 0) out += ',';
    append_token(out, tokenizer, top[i].id, top[i].logprob);
    out += '}';
  }
  out += "]}";
}

}  // namespace deepmint
