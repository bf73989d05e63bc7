#include "recipe/codec_cli.h"

#include <fmt/format.h>

#include <optional>

#include "recipe/fields.h"
#include "recipe/generator.h"
#include "recipe/reply_stream.h"
#include "recipe/spelling.h"

namespace deepmint::recipe {
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

std::string_view text_of(const json::Value& v, std::string_view key,
                         std::string_view fallback = {}) {
  const json::Value* f = v.find(key);
  return f != nullptr && f->is_string() ? std::string_view(f->as_string()) : fallback;
}
bool flag_of(const json::Value& v, std::string_view key, bool fallback) {
  const json::Value* f = v.find(key);
  return f != nullptr && f->is_bool() ? f->as_bool() : fallback;
}
uint64_t number_of(const json::Value& v, std::string_view key, uint64_t fallback = 0) {
  const json::Value* f = v.find(key);
  return f == nullptr ? fallback : f->to_uint64().value_or(fallback);
}
const json::Array& array_of(const json::Value& v, std::string_view key) {
  static const json::Array kEmpty;
  const json::Value* f = v.find(key);
  return f != nullptr && f->is_array() ? f->items() : kEmpty;
}

CodecSettings settings_of(const json::Value& v, CodecSettings s) {
  const std::string_view compat = text_of(v, "compat");
  if (compat == "0.1") s.compat = Compat::kRecipe01;
  if (compat == "0.2") s.compat = Compat::kRecipe02;
  if (compat == "ours") s.compat = Compat::kOurs;
  const std::string_view version = text_of(v, "version");
  if (version == "v4") s.version = ModelVersion::kV4;
  if (version == "v4.1") s.version = ModelVersion::kV41;
  return s;
}

Result<Protocol> protocol_of(std::string_view name) {
  if (name == "chat") return Protocol::kChat;
  if (name == "responses") return Protocol::kResponses;
  if (name == "messages") return Protocol::kMessages;
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("protocol: expected chat, responses or messages, found \"{}\"", name));
}

// ---- writing
// ------------------------------------------------------------------------------------------------------------------

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

void write_request(json::Writer& w, const ConversationRequest& r) {
  w.key("conversation");
  write_conversation(w, r.conversation);
  const InferenceOptions& i = r.inference;
  w.key("inference").begin_object();
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
  w.key("token_ids").begin_array();
  for (const TokenId id : s.tokens->encode(prompt.segments())) w.value(static_cast<int64_t>(id));
  w.end_array();
}

// ---- reading
// ------------------------------------------------------------------------------------------------------------------

void mark_images(Message& m) {
  size_t at = 0;
  for (size_t k = 0; k < m.images.size(); ++k) {
    at = m.content.find(kImageMark, at);
    if (at == std::string::npos) return;
    m.image_marks.push_back(at);
    at += kImageMark.size();
  }
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

std::optional<BackendFinish> read_finish(std::string_view s) {
  if (s == "stop") return BackendFinish::kStop;
  if (s == "length") return BackendFinish::kLength;
  if (s == "content_filter") return BackendFinish::kContentFilter;
  return std::nullopt;
}

ConvertOptions convert_options(const json::Value& v, const CodecSettings& s) {
  ConvertOptions o;
  o.compat = s.compat;
  o.version = s.version;
  o.default_thinking = flag_of(v, "default_thinking", true);
  o.require_reasoning = flag_of(v, "require_reasoning", false);
  if (text_of(v, "web_search") == "drop") o.messages_web_search = WebSearch::kDrop;
  if (text_of(v, "web_search") == "reject") o.responses_web_search = WebSearch::kReject;
  for (const json::Value& name : array_of(v, "model_names"))
    if (name.is_string()) o.model_names.push_back(name.as_string());
  return o;
}

// ---- operations
// ---------------------------------------------------------------------------------------------------------------

void push_chunk(ReplyStream& reply, const json::Value& chunk) {
  if (chunk.is_string()) {
    reply.push_text(chunk.as_string(), 1);
    return;
  }
  if (const json::Value* ready = chunk.find("ready")) {
    const json::Value* fingerprint = chunk.find("fingerprint");
    const bool has = fingerprint != nullptr && fingerprint->is_string();
    reply.ready({.prompt_tokens = number_of(*ready, "prompt_tokens"),
                 .cached_tokens = number_of(*ready, "cached_tokens")},
                has ? std::string_view(fingerprint->as_string()) : std::string_view());
  } else if (const json::Value* ids = chunk.find("token_ids"); ids != nullptr && ids->is_array()) {
    std::vector<TokenId> tokens;
    for (const json::Value& id : ids->items())
      tokens.push_back(static_cast<TokenId>(id.to_int64().value_or(-1)));
    std::vector<TokenLogprob> logprobs;
    for (const json::Value& l : array_of(chunk, "logprobs")) {
      TokenLogprob one;
      if (const json::Value* p = l.find("logprob"))
        one.logprob = static_cast<float>(p->to_double().value_or(0));
      for (const json::Value& top : array_of(l, "top")) {
        if (!top.is_array() || top.items().size() != 2) continue;
        one.top.emplace_back(static_cast<TokenId>(top.items()[0].to_int64().value_or(-1)),
                             static_cast<float>(top.items()[1].to_double().value_or(0)));
      }
      logprobs.push_back(std::move(one));
    }
    reply.push_tokens(tokens, logprobs);
  } else if (chunk.find("finish") != nullptr) {
    reply.finish(read_finish(text_of(chunk, "finish")));
  } else {
    reply.push_text(text_of(chunk, "text"), number_of(chunk, "tokens", 1));
  }
}

void write_events(json::Writer& w, const EventBuffer& events) {
  w.begin_array();
  for (size_t i = 0; i < events.size(); ++i) {
    w.begin_object()
        .key("event")
        .value(events.name(i))
        .key("data")
        .raw(events.data(i))
        .end_object();
  }
  w.end_array();
}

Result<std::string> run_encode(const json::Value& v, const CodecSettings& s) {
  DEEPMINT_TRY(protocol, protocol_of(text_of(v, "protocol")));
  const json::Value* request = v.find("request");
  if (request == nullptr) return fail(ErrorCode::kInvalidArgument, "expected a member \"request\"");
  DEEPMINT_TRY(converted, convert(protocol, *request, convert_options(v, s)));
  const Prompt prompt =
      render_prompt(converted.conversation, {.version = s.version, .compat = s.compat});
  json::Writer w;
  w.begin_object();
  write_prompt(w, prompt, s);
  write_request(w, converted);
  w.end_object();
  return w.take();
}

std::string run_render(const json::Value& v, const CodecSettings& s) {
  static const json::Value kEmpty;
  const json::Value* c = v.find("conversation");
  PromptOptions options{.version = s.version, .compat = s.compat};
  if (const json::Value* keep = v.find("keep_reasoning"); keep != nullptr && keep->is_bool())
    options.keep_reasoning = keep->as_bool();
  json::Writer w;
  w.begin_object();
  write_prompt(w, render_prompt(read_conversation(c == nullptr ? kEmpty : *c), options), s);
  w.end_object();
  return w.take();
}

Result<std::string> run_decode(const json::Value& v, const CodecSettings& s) {
  DEEPMINT_TRY(protocol, protocol_of(text_of(v, "protocol")));
  ConversationRequest request;
  if (const json::Value* r = v.find("request"); r != nullptr && !r->is_null()) {
    DEEPMINT_TRY(converted, convert(protocol, *r, convert_options(v, s)));
    request = std::move(converted);
  }
  request.protocol = protocol;
  if (const json::Value* p = v.find("options"); p != nullptr) request.parsing = read_parsing(*p);
  if (const json::Value* t = v.find("thinking_mode"); t != nullptr && t->is_bool())
    request.conversation.thinking = t->as_bool();
  if (v.find("include_usage") != nullptr)
    request.reply.include_usage = flag_of(v, "include_usage", false);
  for (const json::Value& name : array_of(v, "custom_tools"))
    if (name.is_string()) request.reply.custom_tools.push_back(name.as_string());
  request.reply.stream = false;  // keep what the response needs
  ReplyMeta meta;
  meta.id = std::string(text_of(v, "id", "resp_0"));
  meta.model = std::string(text_of(v, "model", request.model));
  meta.created = static_cast<int64_t>(number_of(v, "created"));
  meta.compat = s.compat;
  meta.tokens = s.tokens;
  ReplyStream reply(request, std::move(meta));
  for (const json::Value& chunk : array_of(v, "chunks")) push_chunk(reply, chunk);
  reply.finish(std::nullopt);
  json::Writer w;
  w.begin_object().key("events");
  write_events(w, reply.events());
  w.key("response")
      .raw(reply.response())
      .key("finish_reason")
      .value(to_string(reply.finish_reason()))
      .end_object();
  return w.take();
}

// Joins pieces into segments.
class SegmentSink final : public OutputSink {
 public:
  void reasoning(std::string_view s) override { piece("reasoning", s); }
  void text(std::string_view s) override { piece("text", s); }
  void tool_begin(std::string_view name) override {
    segments.push_back({"tool_call", {}, std::string(name), true});
  }
  void tool_arguments(std::string_view s) override { segments.back().text.append(s); }
  void tool_end(bool complete) override { segments.back().complete = complete; }
  void discarded(Discarded kind, std::string_view s) override {
    if (!dropped.empty() && dropped.back().first == kind && kind == Discarded::kAfterFinish) {
      dropped.back().second.append(s);
    } else {
      dropped.emplace_back(kind, std::string(s));
    }
  }
  struct Segment {
    std::string_view type;
    std::string text, name;
    bool complete = true;
  };
  std::vector<Segment> segments;
  std::vector<std::pair<Discarded, std::string>> dropped;

 private:
  void piece(std::string_view type, std::string_view s) {
    if (segments.empty() || segments.back().type != type) segments.push_back({type, {}, {}, true});
    segments.back().text.append(s);
  }
};

std::string run_parse(const json::Value& v, const CodecSettings& s) {
  static const json::Value kEmpty;
  const json::Value* o = v.find("options");
  const ParsingOptions options = read_parsing(o == nullptr ? kEmpty : *o);
  const json::Value* c = v.find("conversation");
  const Conversation conversation = c == nullptr ? Conversation{} : read_conversation(*c);
  SegmentSink sink;
  const auto parser = OutputParser::create(options, conversation.tools, s.compat, sink);
  for (const json::Value& chunk : array_of(v, "chunks")) {
    if (chunk.is_string()) {
      parser->push(chunk.as_string());
    } else {
      const std::string_view text = text_of(chunk, "control");
      parser->push_control(text == "｜DSML｜"   ? ControlToken::kDsml
                           : text == "</think>" ? ControlToken::kThinkClose
                                                : ControlToken::kOther,
                           text);
    }
  }
  parser->finish();
  json::Writer w;
  w.begin_object().key("segments").begin_array();
  for (const SegmentSink::Segment& segment : sink.segments) {
    w.begin_object().key("type").value(segment.type);
    if (segment.type == "tool_call") {
      w.key("name").value(segment.name).key("arguments").value(segment.text);
      if (s.compat == Compat::kOurs) w.key("complete").value(segment.complete);
    } else {
      w.key("text").value(segment.text);
    }
    w.end_object();
  }
  w.end_array()
      .key("finish_reason")
      .value(to_string(parser->finish_reason(read_finish(text_of(v, "finish")))));
  w.key("stop_sequence");
  if (parser->matched_stop().empty()) {
    w.null();
  } else {
    w.value(parser->matched_stop());
  }
  w.key("discarded").begin_array();
  for (const auto& [kind, text] : sink.dropped) {
    w.begin_object().key("kind");
    w.value(kind == OutputSink::Discarded::kExtraEndOfThinking ? "extra_end_of_thinking"
                                                               : "content_after_finished");
    w.key("text").value(text).end_object();
  }
  w.end_array().end_object();
  return w.take();
}

Result<std::string> run_case(std::string_view line, const CodecSettings& base) {
  DEEPMINT_TRY(v, json::parse(line));
  const CodecSettings s = settings_of(v, base);
  const std::string_view op = text_of(v, "op");
  if (op == "encode") return run_encode(v, s);
  if (op == "render") return run_render(v, s);
  if (op == "decode") return run_decode(v, s);
  if (op == "parse") return run_parse(v, s);
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("op: expected encode, render, decode or parse, found \"{}\"", op));
}

}  // namespace

std::string_view error_class(const Error& error) {
  switch (error.code) {
    case ErrorCode::kNotFound:
      return "not_found";
    case ErrorCode::kInternal:
      return "internal";
    case ErrorCode::kTooLarge:
      return "too_large";
    default:
      return error.where == kBodyError ? "body" : "request";
  }
}

std::string run_codec_case(std::string_view line, const CodecSettings& settings) {
  const auto out = run_case(line, settings);
  if (out) return *out;
  json::Writer w;
  w.begin_object().key("error").begin_object().key("message").value(out.error().str());
  w.key("type")
      .value("invalid_request_error")
      .key("class")
      .value(error_class(out.error()))
      .end_object()
      .end_object();
  return w.take();
}

Result<std::string> encode_request(Protocol protocol, std::string_view request,
                                   const CodecSettings& settings) {
  DEEPMINT_TRY(body, json::parse(request));
  ConvertOptions options;
  options.compat = settings.compat;
  options.version = settings.version;
  DEEPMINT_TRY(converted, convert(protocol, body, options));
  const Prompt prompt = render_prompt(converted.conversation,
                                      {.version = settings.version, .compat = settings.compat});
  json::Writer w;
  w.begin_object();
  write_prompt(w, prompt, settings);
  write_request(w, converted);
  w.end_object();
  return w.take();
}

Result<std::string> explain_request(Protocol protocol, std::string_view request,
                                    const CodecSettings& settings) {
  DEEPMINT_TRY(body, json::parse(request));
  ConvertOptions options;
  options.compat = settings.compat;
  options.version = settings.version;
  DEEPMINT_TRY(converted, convert(protocol, body, options));
  const Prompt p = render_prompt(converted.conversation,
                                 {.version = settings.version, .compat = settings.compat});
  constexpr std::string_view kControl = "\x1b[1;35m", kOrigin = "\x1b[2;36m", kReset = "\x1b[0m";
  std::string out;
  size_t control = 0, origin = 0;
  for (size_t i = 0; i < p.text.size();) {
    if (origin < p.origins.size() && p.origins[origin].begin == i) {
      const Prompt::Range& o = p.origins[origin++];
      const Message& m = converted.conversation.messages[static_cast<size_t>(o.message)];
      out.append(fmt::format("{}⟦{} {}⟧{}", kOrigin, o.message, kRoles[static_cast<size_t>(m.role)],
                             kReset));
    }
    if (control < p.controls.size() && p.controls[control].begin == i) {
      const Prompt::Range& c = p.controls[control++];
      out.append(kControl).append(p.text, c.begin, c.end - c.begin).append(kReset);
      i = c.end;
      continue;
    }
    out.push_back(p.text[i++]);
  }
  out.push_back('\n');
  for (const std::string& line : converted.warnings)
    out.append("warning: ").append(line).append("\n");
  return out;
}

Result<std::string> decode_output(std::string_view request, std::string_view model_output,
                                  const DecodeSettings& decode, const CodecSettings& settings) {
  DEEPMINT_TRY(body, json::parse(request));
  ConvertOptions options;
  options.compat = settings.compat;
  options.version = settings.version;
  DEEPMINT_TRY(converted, convert(decode.protocol, body, options));
  converted.reply.stream = decode.stream;
  ReplyMeta meta;
  meta.id = decode.id;
  meta.model = converted.model;
  meta.created = decode.created;
  meta.compat = settings.compat;
  meta.tokens = settings.tokens;
  ReplyStream reply(converted, std::move(meta));
  std::string out;
  const auto collect = [&] {
    if (decode.stream) out.append(reply.take_sse());
    reply.events().clear();
  };
  if (decode.chunks) {
    size_t line_number = 0;
    while (!model_output.empty()) {
      const size_t end = std::min(model_output.find('\n'), model_output.size());
      const std::string_view line = model_output.substr(0, end);
      model_output.remove_prefix(std::min(end + 1, model_output.size()));
      ++line_number;
      if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      auto chunk = json::parse(line);
      if (!chunk)
        return tl::unexpected<Error>(
            std::move(chunk.error()).at(fmt::format("chunk line {}", line_number)));
      if (chunk->find("token_ids") != nullptr && settings.tokens == nullptr)
        return fail(ErrorCode::kInvalidArgument, "token ids need a tokenizer",
                    fmt::format("chunk line {}", line_number));
      push_chunk(reply, *chunk);
      collect();
    }
  } else {
    const size_t step = decode.cut == 0 ? std::max<size_t>(model_output.size(), 1) : decode.cut;
    for (size_t i = 0; i < model_output.size(); i += step) {
      reply.push_text(model_output.substr(i, step), 1);
      collect();
    }
  }
  reply.finish(read_finish(decode.finish));
  if (!decode.stream) return reply.response() + "\n";
  out.append(reply.take_sse());
  return out;
}

}  // namespace deepmint::recipe
