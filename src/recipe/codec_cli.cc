#include "recipe/codec_cli.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "core/names.h"
#include "recipe/codec_json.h"
#include "recipe/count_tokens.h"
#include "recipe/fields.h"
#include "recipe/reply_stream.h"

namespace deepmint::recipe {
namespace {

using namespace codec;  // NOLINT: the other half of this file

template <class T>
struct Name {
  std::string_view name;
  T value;
};

template <class T, size_t N>
Result<T> from_name(std::string_view what, std::string_view name, const Name<T> (&names)[N]) {
  std::string known;
  for (size_t i = 0; i < N; ++i) {
    if (names[i].name == name) return names[i].value;
    known.append(i == 0 ? "" : i + 1 == N ? " or " : ", ").append(names[i].name);
  }
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("expected {}, found {}", known, quote_name(name)), std::string(what));
}

Result<CodecSettings> settings_of(const json::Value& v, CodecSettings s) {
  if (const json::Value* compat = v.find("compat")) {
    DEEPMINT_TRY(value, compat_from_name(compat->is_string() ? compat->as_string() : ""));
    s.compat = value;
  }
  if (const json::Value* version = v.find("version")) {
    DEEPMINT_TRY(value, version_from_name(version->is_string() ? version->as_string() : ""));
    s.version = value;
  }
  return s;
}

Result<Protocol> protocol_of(const json::Value& v, const CodecSettings& s) {
  const std::string_view name = text_of(v, "protocol");
  if (name.empty() && s.protocol) return *s.protocol;
  return protocol_from_name(name);
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

Result<ConversationRequest> convert_text(Protocol protocol, std::string_view request,
                                         const CodecSettings& s) {
  DEEPMINT_TRY(body, json::parse(request));
  ConvertOptions options;
  options.compat = s.compat;
  options.version = s.version;
  return convert(protocol, body, options);
}

Prompt prompt_of(const ConversationRequest& request, const CodecSettings& s) {
  return render_prompt(request.conversation, {.version = s.version, .compat = s.compat});
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
  DEEPMINT_TRY(protocol, protocol_of(v, s));
  const json::Value* request = v.find("request");
  ConvertOptions options = convert_options(v, s);
  MemoryTurnStore turns;
  const json::Value* stored = request != nullptr ? v.find("turns") : nullptr;
  if (stored != nullptr && stored->is_object()) {
    for (const json::Member& m : stored->members())
      if (m.value.is_array()) turns.put_turn(options.tenant, m.key, {.items = m.value.items()});
    options.turns = &turns;
  }
  DEEPMINT_TRY(converted, convert(protocol, request == nullptr ? v : *request, options));
  const Prompt prompt =
      render_prompt(converted.conversation, {.version = s.version, .compat = s.compat});
  json::Writer w;
  w.begin_object();
  write_prompt(w, prompt, s);
  write_request(w, converted);
  if (const json::Value* room = v.find("room"); request != nullptr && room != nullptr) {
    DEEPMINT_TRY(n, resolve_max_tokens(converted, number_of(*room, "prompt_tokens"),
                                       number_of(*room, "context")));
    w.key("resolved_max_tokens").value(static_cast<uint64_t>(n));
  }
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
  DEEPMINT_TRY(protocol, protocol_of(v, s));
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
  size_t n = 0;
  for (const json::Value& chunk : array_of(v, "chunks")) {
    ++n;
    if (auto ok = push_chunk(reply, chunk, s.tokens.get()); !ok)
      return tl::unexpected<Error>(std::move(ok.error()).at(fmt::format("chunk {}", n)));
  }
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

Result<std::string> run_parse(const json::Value& v, const CodecSettings& s) {
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
  DEEPMINT_TRY(finish, finish_from_name(text_of(v, "finish", "none")));
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
  w.end_array().key("finish_reason").value(to_string(parser->finish_reason(finish)));
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
  if (!v.is_object())
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("expected an object, found {}", json::to_string(v.kind())));
  DEEPMINT_TRY(s, settings_of(v, base));
  const std::string_view op = text_of(v, "op", base.op);
  if (op == "encode") return run_encode(v, s);
  if (op == "render") return run_render(v, s);
  if (op == "decode") return run_decode(v, s);
  if (op == "parse") return run_parse(v, s);
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("op: expected encode, render, decode or parse, found \"{}\"", op));
}

// Text of a caller with everything that a terminal would act on written as an escape.
void append_visible(std::string& out, std::string_view s) {
  for (size_t i = 0; i < s.size(); ++i) {
    const auto c = static_cast<unsigned char>(s[i]);
    const bool c1 = c == 0xC2 && i + 1 < s.size() && static_cast<unsigned char>(s[i + 1]) < 0xA0;
    if (c1) {
      out.append(fmt::format("\\u{:04x}", static_cast<unsigned char>(s[++i])));
    } else if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7F) {
      out.append(fmt::format("\\x{:02x}", c));
    } else {
      out.push_back(s[i]);
    }
  }
}

class Decoder final : public OutputDecoder {
 public:
  Decoder(ConversationRequest request, ReplyMeta meta, const DecodeSettings& decode,
          const CodecSettings& settings)
      : decode_(decode),
        settings_(settings),
        request_(std::move(request)),
        reply_(request_, std::move(meta)) {}

  Result<std::string> push_chunk(std::string_view line) override {
    DEEPMINT_TRY(chunk, json::parse(line));
    DEEPMINT_CHECK_OK(codec::push_chunk(reply_, chunk, settings_.tokens.get()));
    return take();
  }
  std::string push_output(std::string_view text) override {
    uint64_t left = 1;  // completion tokens, counted with the first piece
    if (settings_.tokens != nullptr) {
      const std::vector<Segment> all = {{Segment::Kind::kControl, std::string(text)}};
      left = settings_.tokens->encode(all).size();
      const Prompt prompt = prompt_of(request_, settings_);
      reply_.ready({.prompt_tokens = count_prompt_tokens(prompt, *settings_.tokens).tokens}, {});
    }
    std::string out;
    const size_t step = decode_.cut == 0 ? std::max<size_t>(text.size(), 1) : decode_.cut;
    for (size_t i = 0; i < text.size(); i += step) {
      reply_.push_text(text.substr(i, step), std::exchange(left, 0));
      out.append(take());
    }
    return out;
  }
  std::string finish() override {
    reply_.finish(decode_.finish);
    return decode_.stream ? take() : reply_.response() + "\n";
  }

 private:
  std::string take() {
    if (decode_.stream) return reply_.take_sse();
    reply_.events().clear();
    return {};
  }
  const DecodeSettings decode_;
  const CodecSettings settings_;
  const ConversationRequest request_;
  ReplyStream reply_;
};

}  // namespace

Result<Protocol> protocol_from_name(std::string_view name) {
  constexpr Name<Protocol> kNames[] = {{"chat", Protocol::kChat},
                                       {"messages", Protocol::kMessages},
                                       {"responses", Protocol::kResponses}};
  return from_name("protocol", name, kNames);
}

Result<ModelVersion> version_from_name(std::string_view name) {
  constexpr Name<ModelVersion> kNames[] = {{"v4", ModelVersion::kV4}, {"v4.1", ModelVersion::kV41}};
  return from_name("version", name, kNames);
}

Result<Compat> compat_from_name(std::string_view name) {
  constexpr Name<Compat> kNames[] = {
      {"ours", Compat::kOurs}, {"0.2", Compat::kRecipe02}, {"0.1", Compat::kRecipe01}};
  return from_name("compat", name, kNames);
}

Result<std::optional<BackendFinish>> finish_from_name(std::string_view name) {
  constexpr Name<std::optional<BackendFinish>> kNames[] = {
      {"stop", BackendFinish::kStop},
      {"length", BackendFinish::kLength},
      {"content_filter", BackendFinish::kContentFilter},
      {"none", std::nullopt}};
  return from_name("finish", name, kNames);
}

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
  DEEPMINT_TRY(converted, convert_text(protocol, request, settings));
  json::Writer w;
  w.begin_object();
  write_prompt(w, prompt_of(converted, settings), settings);
  write_request(w, converted);
  w.end_object();
  return w.take();
}

Result<std::string> explain_request(Protocol protocol, std::string_view request,
                                    const CodecSettings& settings, bool colour) {
  DEEPMINT_TRY(converted, convert_text(protocol, request, settings));
  const Prompt p = prompt_of(converted, settings);
  const std::string_view reset = colour ? "\x1b[0m" : "";
  const std::string_view control_on = colour ? "\x1b[1;35m" : "⟪";
  const std::string_view control_off = colour ? reset : "⟫";
  const std::string_view mark_on = colour ? "\x1b[36m" : "", template_on = colour ? "\x1b[2m" : "";
  std::string out;
  size_t control = 0, origin = 0, at = 0;
  int last = -1;
  const auto plain = [&](size_t end) {  // template text up to `end`
    if (at < end) {
      out.append(template_on);
      append_visible(out, std::string_view(p.text).substr(at, end - at));
      out.append(reset);
    }
    at = end;
  };
  while (control < p.controls.size() || origin < p.origins.size()) {
    const bool is_control =
        origin == p.origins.size() ||
        (control < p.controls.size() && p.controls[control].begin < p.origins[origin].begin);
    const Prompt::Range& r = is_control ? p.controls[control++] : p.origins[origin++];
    plain(r.begin);
    const std::string_view text = std::string_view(p.text).substr(r.begin, r.end - r.begin);
    at = r.end;
    if (is_control) {
      out.append(control_on).append(text).append(control_off);
      continue;
    }
    if (std::exchange(last, r.message) != r.message) {
      const Role role = converted.conversation.messages[static_cast<size_t>(r.message)].role;
      out.append(fmt::format("{}⟦{} {}⟧{}", mark_on, r.message, name_of(role), reset));
    }
    append_visible(out, text);
  }
  plain(p.text.size());
  out.push_back('\n');
  for (const std::string& line : converted.warnings) {
    out.append("warning: ");
    append_visible(out, line);
    out.push_back('\n');
  }
  return out;
}

Result<std::unique_ptr<OutputDecoder>> OutputDecoder::open(std::string_view request,
                                                           const DecodeSettings& decode,
                                                           const CodecSettings& settings) {
  DEEPMINT_TRY(converted, convert_text(decode.protocol, request, settings));
  converted.reply.stream = decode.stream;
  ReplyMeta meta;
  meta.id = decode.id;
  meta.model = converted.model;
  meta.created = decode.created;
  meta.compat = settings.compat;
  meta.tokens = settings.tokens;
  return std::make_unique<Decoder>(std::move(converted), std::move(meta), decode, settings);
}

}  // namespace deepmint::recipe
