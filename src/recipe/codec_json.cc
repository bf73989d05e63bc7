#include "recipe/codec_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <type_traits>

#include "core/names.h"
#include "recipe/count_tokens.h"

namespace deepmint::recipe::codec {
namespace {

constexpr std::string_view kRoles[] = {"system", "user", "assistant", "tool", "latest_reminder"};
constexpr std::string_view kDetails[] = {"low", "high", "original", "auto"};
constexpr std::string_view kChoices[] = {"auto", "none", "required"};
constexpr std::string_view kEfforts[] = {"low", "high", "xhigh", "max"};
constexpr std::string_view kFormats[] = {"text", "json_object", "json_schema", "regex"};
constexpr std::string_view kConstraints[] = {"json", "regex", "tool_call", "tool_call_required",
                                             "custom_tool"};

template <class E, size_t N>
E read_enum(std::string_view s, const std::string_view (&names)[N], E fallback) {
  for (size_t i = 0; i < N; ++i)
    if (names[i] == s) return static_cast<E>(i);
  return fallback;
}

void write_images(json::Writer& w, const std::vector<ImageSource>& images) {
  w.begin_array();
  for (const ImageSource& image : images) {
    const bool url = image.kind == ImageSource::Kind::kUrl;
    w.begin_object()
        .key("kind")
        .value(url ? "url" : "data_url")
        .key(url ? "url" : "data_url")
        .value(image.data);
    w.key("detail").value(kDetails[static_cast<size_t>(image.detail)]).end_object();
  }
  w.end_array();
}

void write_message(json::Writer& w, const Message& m) {
  w.begin_object()
      .key("role")
      .value(kRoles[static_cast<size_t>(m.role)])
      .key("content")
      .value(m.content);
  if (m.role == Role::kUser || m.role == Role::kTool) {
    w.key("images");
    write_images(w, m.images);
  }
  if (m.role == Role::kTool) w.key("tool_call_id").value(m.tool_call_id);
  if (!m.loaded_tools.empty()) {
    w.key("tools").begin_array();
    for (const Tool& t : m.loaded_tools) w.value(t.name);
    w.end_array();
  }
  if (m.role == Role::kAssistant) {
    w.key("reasoning_content");
    if (m.reasoning) {
      w.value(*m.reasoning);
    } else {
      w.null();
    }
    w.key("tool_calls");
    if (m.tool_calls.empty()) {
      w.null();
    } else {
      w.begin_array();
      for (const ToolCall& c : m.tool_calls)
        w.begin_object()
            .key("id")
            .value(c.id)
            .key("name")
            .value(c.name)
            .key("arguments")
            .value(c.arguments)
            .end_object();
      w.end_array();
    }
    if (m.prefix) w.key("prefix").value(true);
  }
  w.end_object();
}

template <class T>
void write_optional(json::Writer& w, std::string_view key, const std::optional<T>& v) {
  w.key(key);
  if (!v) {
    w.null();
  } else if constexpr (std::is_same_v<T, uint32_t>) {
    w.value(static_cast<uint64_t>(*v));
  } else if constexpr (std::is_same_v<T, float>) {
    w.value(static_cast<double>(*v));
  } else {
    w.value(*v);
  }
}

void write_conversation(json::Writer& w, const Conversation& c) {
  w.begin_object().key("messages").begin_array();
  for (const Message& m : c.messages) write_message(w, m);
  w.end_array().key("thinking_mode").value(c.thinking).key("tools").begin_array();
  for (const Tool& t : c.tools) {
    w.begin_object().key("name").value(t.name);
    write_optional(w, "description", t.description);
    w.key("parameters").value(t.parameters);
    write_optional(w, "strict", t.strict);
    if (t.deferred) w.key("defer_loading").value(true);
    w.end_object();
  }
  w.end_array()
      .key("tool_choice")
      .value(kChoices[static_cast<size_t>(c.tool_choice)])
      .key("reasoning_effort");
  if (c.effort) {
    w.value(kEfforts[static_cast<size_t>(*c.effort)]);
  } else {
    w.null();
  }
  const bool schema = c.response_format.kind == ResponseFormat::Kind::kJsonSchema;
  const bool regex = c.response_format.kind == ResponseFormat::Kind::kRegex;
  w.key("response_format")
      .value(kFormats[static_cast<size_t>(c.response_format.kind)])
      .key("response_schema");
  w.value(schema ? c.response_format.schema : json::Value());
  w.key("response_regex")
      .value(regex ? json::Value(c.response_format.regex) : json::Value())
      .end_object();
}

void mark_images(Message& m) {
  size_t at = 0;
  for (size_t k = 0; k < m.images.size(); ++k) {
    at = m.content.find(kImageMark, at);
    if (at == std::string::npos) return;
    m.image_marks.push_back(at);
    at += kImageMark.size();
  }
}

}  // namespace

std::string_view text_of(const json::Value& v, std::string_view key, std::string_view fallback) {
  const json::Value* f = v.find(key);
  return f != nullptr && f->is_string() ? std::string_view(f->as_string()) : fallback;
}
bool flag_of(const json::Value& v, std::string_view key, bool fallback) {
  const json::Value* f = v.find(key);
  return f != nullptr && f->is_bool() ? f->as_bool() : fallback;
}
uint64_t number_of(const json::Value& v, std::string_view key, uint64_t fallback) {
  const json::Value* f = v.find(key);
  return f == nullptr ? fallback : f->to_uint64().value_or(fallback);
}
const json::Array& array_of(const json::Value& v, std::string_view key) {
  static const json::Array kEmpty;
  const json::Value* f = v.find(key);
  return f != nullptr && f->is_array() ? f->items() : kEmpty;
}

std::string_view name_of(Role role) { return kRoles[static_cast<size_t>(role)]; }

void write_request(json::Writer& w, const ConversationRequest& r) {
  w.key("conversation");
  write_conversation(w, r.conversation);
  const InferenceOptions& i = r.inference;
  w.key("options").begin_object();
  write_optional(w, "max_tokens", i.max_tokens);
  write_optional(w, "temperature", i.temperature);
  write_optional(w, "top_p", i.top_p);
  write_optional(w, "frequency_penalty", i.frequency_penalty);
  write_optional(w, "presence_penalty", i.presence_penalty);
  write_optional(w, "seed", i.seed);
  w.key("logprobs").value(i.logprobs);
  write_optional(w, "top_logprobs", i.top_logprobs);
  write_optional(w, "thinking_budget_tokens", i.thinking_budget_tokens);
  write_optional(w, "disable_parallel_tool_use", i.disable_parallel_tool_use);
  w.key("n").value(static_cast<uint64_t>(i.n)).key("constraint");
  if (i.constraint) {
    const OutputConstraint& c = *i.constraint;
    w.begin_object()
        .key("kind")
        .value(kConstraints[static_cast<size_t>(c.kind)])
        .key("schema")
        .value(c.schema);
    if (c.answer)
      w.key("answer")
          .value(kConstraints[static_cast<size_t>(*c.answer)])
          .key("answer_schema")
          .value(c.answer_schema);
    w.key("after_thinking").value(c.after_thinking).key("single_call").value(c.single_call);
    w.key("must_enforce").value(c.must_enforce).end_object();
  } else {
    w.null();
  }
  const ParsingOptions& p = r.parsing;
  w.end_object().key("parsing").begin_object().key("parse_tool_calls").value(p.parse_tool_calls);
  w.key("tool_call_initial_stage")
      .value(p.starts_in_tool_calls)
      .key("parse_json_output")
      .value(p.parse_json_output);
  if (p.single_call) w.key("single_call").value(true);
  w.key("reasoning_initial_stage");
  switch (p.stage) {
    case ThinkingStage::kOff:
      w.null();
      break;
    case ThinkingStage::kStart:
      w.value("start");
      break;
    case ThinkingStage::kReasoning:
      w.value("reasoning");
      break;
    case ThinkingStage::kContent:
      w.value("content");
      break;
  }
  w.key("stop_sequences").begin_array();
  for (const std::string& s : p.stop_sequences) w.value(s);
  w.end_array().end_object().key("stream").value(r.reply.stream).key("model").value(r.model);
  w.key("warnings").begin_array();
  for (const std::string& line : r.warnings) w.value(line);
  w.end_array();
}

void write_prompt(json::Writer& w, const Prompt& prompt, const CodecSettings& s) {
  w.key("prompt").value(prompt.text).key("controls").begin_array();
  for (const Prompt::Range& c : prompt.controls)
    w.begin_array()
        .value(static_cast<uint64_t>(c.begin))
        .value(static_cast<uint64_t>(c.end))
        .end_array();
  w.end_array().key("images");
  write_images(w, prompt.images);
  if (s.tokens == nullptr) return;
  w.key("prompt_tokens").value(count_prompt_tokens(prompt, *s.tokens).tokens);
  w.key("token_ids").begin_array();
  for (const TokenId id : s.tokens->encode(prompt.segments())) w.value(static_cast<int64_t>(id));
  w.end_array();
}
Conversation read_conversation(const json::Value& v) {
  Conversation c;
  for (const json::Value& item : array_of(v, "messages")) {
    Message m;
    m.role = read_enum(text_of(item, "role"), kRoles, Role::kUser);
    m.content = std::string(text_of(item, "content"));
    m.prefix = flag_of(item, "prefix", false);
    m.tool_call_id = std::string(text_of(item, "tool_call_id"));
    if (const json::Value* r = item.find("reasoning_content"); r != nullptr && r->is_string())
      m.reasoning = r->as_string();
    for (const json::Value& call : array_of(item, "tool_calls"))
      m.tool_calls.push_back({std::string(text_of(call, "id")), std::string(text_of(call, "name")),
                              std::string(text_of(call, "arguments"))});
    for (const json::Value& image : array_of(item, "images")) {
      ImageSource source;
      const bool url = text_of(image, "kind") == "url";
      source.kind = url ? ImageSource::Kind::kUrl : ImageSource::Kind::kDataUrl;
      source.data = std::string(text_of(image, url ? "url" : "data_url"));
      source.detail = read_enum(text_of(image, "detail"), kDetails, ImageDetail::kHigh);
      m.images.push_back(std::move(source));
    }
    mark_images(m);
    c.messages.push_back(std::move(m));
  }
  c.thinking = flag_of(v, "thinking_mode", true);
  for (const json::Value& item : array_of(v, "tools")) {
    Tool t;
    t.name = std::string(text_of(item, "name"));
    if (const json::Value* d = item.find("description"); d != nullptr && d->is_string())
      t.description = d->as_string();
    if (const json::Value* p = item.find("parameters")) t.parameters = *p;
    c.tools.push_back(std::move(t));
  }
  c.tool_choice = read_enum(text_of(v, "tool_choice"), kChoices, ToolChoice::kAuto);
  for (size_t i = 0; i < std::size(kEfforts); ++i)
    if (kEfforts[i] == text_of(v, "reasoning_effort")) c.effort = static_cast<Effort>(i);
  c.response_format.kind =
      read_enum(text_of(v, "response_format"), kFormats, ResponseFormat::Kind::kText);
  if (const json::Value* s = v.find("response_schema")) c.response_format.schema = *s;
  return c;
}

ParsingOptions read_parsing(const json::Value& v) {
  ParsingOptions p;
  p.parse_tool_calls = flag_of(v, "parse_tool_calls", true);
  p.starts_in_tool_calls = flag_of(v, "tool_call_initial_stage", false);
  p.parse_json_output = flag_of(v, "parse_json_output", false);
  const std::string_view stage = text_of(v, "reasoning_initial_stage");
  if (stage == "start") p.stage = ThinkingStage::kStart;
  if (stage == "reasoning") p.stage = ThinkingStage::kReasoning;
  if (stage == "content") p.stage = ThinkingStage::kContent;
  for (const json::Value& s : array_of(v, "stop_sequences"))
    if (s.is_string()) p.stop_sequences.push_back(s.as_string());
  return p;
}

namespace {

Result<uint64_t> count_of(const json::Value& v, std::string_view key, uint64_t fallback) {
  const json::Value* f = v.find(key);
  if (f == nullptr) return fallback;
  if (const auto n = f->to_uint64()) return *n;
  return fail(ErrorCode::kInvalidArgument, "expected a count (0 or more)", std::string(key));
}

// `top` of a token: [[id, logprob], …].
TokenLogprob read_logprob(const json::Value& v) {
  TokenLogprob one;
  if (const json::Value* p = v.find("logprob"))
    one.logprob = static_cast<float>(p->to_double().value_or(0));
  for (const json::Value& top : array_of(v, "top")) {
    if (!top.is_array() || top.items().size() != 2) continue;
    one.top.emplace_back(static_cast<TokenId>(top.items()[0].to_int64().value_or(-1)),
                         static_cast<float>(top.items()[1].to_double().value_or(0)));
  }
  return one;
}

Status push_usage(ReplyStream& reply, const json::Value& usage, const json::Value& chunk) {
  if (!usage.is_object())
    return fail(ErrorCode::kInvalidArgument, "expected an object with prompt_tokens", "usage");
  DEEPMINT_TRY(prompt, count_of(usage, "prompt_tokens", 0));
  DEEPMINT_TRY(hit, count_of(usage, "prompt_cache_hit_tokens", 0));
  DEEPMINT_TRY(cached, count_of(usage, "cached_tokens", hit));
  if (cached > prompt)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("expected at most prompt_tokens = {}, found {}", prompt, cached),
                "cached_tokens");
  const json::Value* fingerprint = chunk.find("fingerprint");
  const bool has = fingerprint != nullptr && fingerprint->is_string();
  reply.ready({.prompt_tokens = prompt, .cached_tokens = cached},
              has ? std::string_view(fingerprint->as_string()) : std::string_view());
  return {};
}

Status push_ids(ReplyStream& reply, const json::Value& ids, const json::Value& chunk,
                const TokenCodec* codec) {
  if (!ids.is_array()) return fail(ErrorCode::kInvalidArgument, "expected a list", "token_ids");
  if (codec == nullptr)
    return fail(ErrorCode::kInvalidArgument, "token ids need a tokenizer", "token_ids");
  std::vector<TokenId> tokens;
  for (const json::Value& id : ids.items()) {
    const auto n = id.to_int64();
    if (!n || *n < 0 || *n > std::numeric_limits<TokenId>::max())
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("expected token ids, found {}", json::dump(id)), "token_ids");
    tokens.push_back(static_cast<TokenId>(*n));
  }
  std::vector<TokenLogprob> logprobs;
  for (const json::Value& l : array_of(chunk, "logprobs")) logprobs.push_back(read_logprob(l));
  reply.push_tokens(tokens, logprobs);
  return {};
}

}  // namespace

Status push_chunk(ReplyStream& reply, const json::Value& chunk, const TokenCodec* tokens) {
  if (chunk.is_string()) {
    reply.push_text(chunk.as_string(), 1);
    return {};
  }
  if (!chunk.is_object())
    return fail(ErrorCode::kInvalidArgument, fmt::format("expected a text or an object, found {}",
                                                         json::to_string(chunk.kind())));
  constexpr std::string_view kKnown[] = {"ready",     "usage",    "fingerprint", "text", "tokens",
                                         "token_ids", "logprobs", "finish",      "fail"};
  for (const json::Member& m : chunk.members())
    if (std::find(std::begin(kKnown), std::end(kKnown), m.key) == std::end(kKnown))
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("expected text, tokens, token_ids, logprobs, usage, fingerprint, "
                              "finish or fail, found the member {}",
                              quote_name(m.key)));
  const json::Value* usage = chunk.find("ready");
  if (usage == nullptr) usage = chunk.find("usage");
  if (usage != nullptr) DEEPMINT_CHECK_OK(push_usage(reply, *usage, chunk));
  if (const json::Value* ids = chunk.find("token_ids"))
    DEEPMINT_CHECK_OK(push_ids(reply, *ids, chunk, tokens));
  if (const json::Value* text = chunk.find("text")) {
    if (!text->is_string()) return fail(ErrorCode::kInvalidArgument, "expected a string", "text");
    DEEPMINT_TRY(n, count_of(chunk, "tokens", 1));
    reply.push_text(text->as_string(), n);
  }
  if (const json::Value* finish = chunk.find("finish")) {
    if (!finish->is_string() && !finish->is_null())
      return fail(ErrorCode::kInvalidArgument, "expected a string or null", "finish");
    DEEPMINT_TRY(reason, finish_from_name(finish->is_null() ? "none" : finish->as_string()));
    reply.finish(reason);
  }
  if (const json::Value* error = chunk.find("fail"))
    reply.fail(text_of(*error, "type", "internal_error"), text_of(*error, "message"));
  return {};
}

}  // namespace deepmint::recipe::codec
