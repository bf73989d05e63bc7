#include "server/api/chat_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <utility>

#include "core/json.h"
#include "core/utf8.h"
#include "recipe/convert.h"
#include "server/api/fields.h"

namespace deepmint {
namespace {

constexpr json::ParseLimits kLimits{
    .max_bytes = size_t{1} << 30, .max_depth = 128, .max_values = 1'000'000};
constexpr size_t kMaxText = size_t{1} << 30;  // what the body's own limit leaves
constexpr int32_t kMaxInt = std::numeric_limits<int32_t>::max();

tl::unexpected<Error> unsupported(std::string where, std::string message) {
  return fail(ErrorCode::kUnsupported, std::move(message), std::move(where));
}

// A message's content: a string, or text parts, which are joined with an empty line.
Result<std::string> read_content(const json::Value& content, const std::string& where) {
  if (content.is_string()) return content.as_string();
  if (!content.is_array())
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("expected a string or an array of text parts, found {}", describe(content)),
        where);
  std::string out;
  for (size_t i = 0; i < content.items().size(); ++i) {
    const json::Value& part = content.items()[i];
    const std::string here = fmt::format("{}[{}]", where, i);
    if (!part.is_object())
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("expected an object, found {}", describe(part)), here);
    const json::Value* type = part.find("type");
    if (type == nullptr || !type->is_string())
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("expected the string \"text\", found {}",
                              type == nullptr ? "nothing" : describe(*type)),
                  here + ".type");
    if (type->as_string() != "text")
      return unsupported(
          here + ".type",
          fmt::format("this model takes \"text\" parts only, found {}", describe(*type)));
    const json::Value* text = part.find("text");
    if (text == nullptr || !text->is_string())
      return fail(
          ErrorCode::kInvalidArgument,
          fmt::format("expected a string, found {}", text == nullptr ? "nothing" : describe(*text)),
          here + ".text");
    if (i > 0) out += "\n\n";
    out += text->as_string();
  }
  return out;
}

// tool_calls of an assistant message in the history.
Status read_calls(const json::Value& message, const std::string& where, recipe::ChatMessage& out) {
  const json::Value* calls = message.find("tool_calls");
  if (calls == nullptr || calls->is_null()) return {};
  if (!calls->is_array())
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("expected an array, found {}", describe(*calls)),
                where + ".tool_calls");
  const auto text = [](const json::Value& object, std::string_view key) -> const std::string* {
    const json::Value* v = object.find(key);
    return v != nullptr && v->is_string() ? &v->as_string() : nullptr;
  };
  for (size_t i = 0; i < calls->items().size(); ++i) {
    const json::Value& call = calls->items()[i];
    const json::Value* function = call.find("function");
    const std::string* name = function != nullptr ? text(*function, "name") : nullptr;
    const std::string* arguments = function != nullptr ? text(*function, "arguments") : nullptr;
    if (name == nullptr || arguments == nullptr)
      return fail(ErrorCode::kInvalidArgument,
                  "expected {\"id\", \"type\": \"function\", \"function\": {\"name\", "
                  "\"arguments\"}} with strings",
                  fmt::format("{}.tool_calls[{}]", where, i));
    const std::string* id = text(call, "id");
    out.calls.push_back({id != nullptr ? *id : std::string(), *name, *arguments});
  }
  return {};
}

Result<recipe::ChatMessage> read_message(const json::Value& message, size_t index) {
  const std::string where = fmt::format("messages[{}]", index);
  if (!message.is_object())
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("expected an object, found {}", describe(message)), where);
  recipe::ChatMessage out;
  const json::Value* role = message.find("role");
  if (role == nullptr || !role->is_string())
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("expected a string, found {}", role == nullptr ? "nothing" : describe(*role)),
        where + ".role");
  out.role = role->as_string();
  if (out.role == "developer") out.role = "system";  // the same thing under its newer name
  if (out.role != "system" && out.role != "user" && out.role != "assistant" && out.role != "tool")
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("expected system, developer, user, assistant or tool, found {}",
                            describe(*role)),
                where + ".role");
  if (const json::Value* call = message.find("function_call"); call != nullptr && !call->is_null())
    return unsupported(where + ".function_call", "expected tool_calls in its place");
  const Fields fields(message, where);
  if (out.role == "assistant") {
    DEEPMINT_CHECK_OK(read_calls(message, where, out));
    const json::Value* reasoning = message.find("reasoning_content");
    if (reasoning != nullptr && !reasoning->is_null()) {
      out.reasoning.emplace();
      DEEPMINT_CHECK_OK(fields.text("reasoning_content", *out.reasoning, kMaxText));
    }
  }
  if (out.role == "tool") DEEPMINT_CHECK_OK(fields.text("tool_call_id", out.call_id, 256));
  DEEPMINT_CHECK_OK(fields.text("name", out.name, 256));
  const json::Value* content = message.find("content");
  if (!out.calls.empty() && (content == nullptr || content->is_null())) return out;
  if (content == nullptr)
    return fail(ErrorCode::kInvalidArgument,
                "expected a string or an array of text parts, found nothing", where + ".content");
  DEEPMINT_TRY(text, read_content(*content, where + ".content"));
  out.content = std::move(text);
  return out;
}

Status read_messages(const Fields& fields, ChatRequest& out) {
  const json::Value* messages = fields.find("messages");
  if (messages == nullptr)
    return fail(ErrorCode::kInvalidArgument, "expected an array of messages, found nothing",
                "messages");
  if (!messages->is_array() || messages->items().empty())
    return fields.wrong("messages", "an array of at least one message", *messages);
  out.messages.reserve(messages->items().size());
  for (size_t i = 0; i < messages->items().size(); ++i) {
    DEEPMINT_TRY(message, read_message(messages->items()[i], i));
    out.messages.push_back(std::move(message));
  }
  return {};
}

Status read_stop(const Fields& fields, ChatRequest& out) {
  const json::Value* stop = fields.find("stop");
  if (stop == nullptr) return {};
  const std::string expected =
      fmt::format("a string or an array of up to {} strings", kMaxStopStrings);
  const auto add = [&](const json::Value& value, const std::string& where) -> Status {
    if (!value.is_string())
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("expected a string, found {}", describe(value)), where);
    if (value.as_string().size() > kMaxStopBytes)
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("expected at most {} bytes, found {}", kMaxStopBytes,
                              value.as_string().size()),
                  where);
    if (!value.as_string().empty()) out.stop.push_back(value.as_string());
    return {};
  };
  if (stop->is_string()) return add(*stop, "stop");
  if (!stop->is_array()) return fields.wrong("stop", expected, *stop);
  if (stop->items().size() > kMaxStopStrings)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("expected {}, found {}", expected, stop->items().size()), "stop");
  for (size_t i = 0; i < stop->items().size(); ++i)
    DEEPMINT_CHECK_OK(add(stop->items()[i], fmt::format("stop[{}]", i)));
  return {};
}

Status read_logit_bias(const Fields& fields, SamplingParams& out) {
  const json::Value* bias = fields.find("logit_bias");
  if (bias == nullptr) return {};
  if (!bias->is_object())
    return fields.wrong("logit_bias", "an object of token ids and numbers", *bias);
  if (bias->members().size() > kMaxLogitBias)
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("expected at most {} entries, found {}", kMaxLogitBias, bias->members().size()),
        "logit_bias");
  std::vector<std::pair<TokenId, float>> entries;
  for (const json::Member& member : bias->members()) {
    TokenId id = 0;
    const char* end = member.key.data() + member.key.size();
    const auto parsed = std::from_chars(member.key.data(), end, id);
    if (parsed.ec != std::errc() || parsed.ptr != end || id < 0)
      return fail(
          ErrorCode::kInvalidArgument,
          fmt::format("expected a token id as key, found {}", describe(json::Value(member.key))),
          "logit_bias");
    const auto value = member.value.to_double();
    if (!value || *value < -100 || *value > 100)
      return fail(
          ErrorCode::kInvalidArgument,
          fmt::format("expected a number from -100 to 100, found {}", describe(member.value)),
          fmt::format("logit_bias.{}", id));
    entries.emplace_back(id, static_cast<float>(*value));
  }
  std::sort(entries.begin(), entries.end());
  const auto twice =
      std::adjacent_find(entries.begin(), entries.end(),
                         [](const auto& a, const auto& b) { return a.first == b.first; });
  if (twice != entries.end())
    return fail(ErrorCode::kInvalidArgument, fmt::format("token {} is there twice", twice->first),
                "logit_bias");
  out.logit_bias = std::move(entries);
  return {};
}

// Fields that would change what the answer means. Ignoring them would be a silently different
// answer.
Status refuse_what_is_not_done(const Fields& fields) {
  const json::Value* functions = fields.find("functions");
  if (functions != nullptr && !(functions->is_array() && functions->items().empty()))
    return unsupported("functions", "expected tools in its place");
  if (const json::Value* modalities = fields.find("modalities")) {
    const bool only_text =
        modalities->is_array() &&
        std::all_of(modalities->items().begin(), modalities->items().end(),
                    [](const json::Value& m) { return m.is_string() && m.as_string() == "text"; });
    if (!only_text) return unsupported("modalities", "only [\"text\"] is supported here");
  }
  if (fields.find("audio") != nullptr) return unsupported("audio", "audio is not supported here");
  return {};
}

using recipe::OutputConstraint;

// response_format of a dense model. Its template has no words for a format, so that any of them is
// a guarantee.
Status read_format(const Fields& fields, ChatRequest& out) {
  const json::Value* format = fields.find("response_format");
  if (format == nullptr) return {};
  const json::Value* type = format->find("type");
  if (type == nullptr || !type->is_string())
    return fields.wrong("response_format", "an object with a type", *format);
  const std::string& name = type->as_string();
  if (name == "text") return {};
  OutputConstraint constraint;
  constraint.must_enforce = true;
  if (name == "json_schema") {
    const json::Value* outer = format->find("json_schema");
    const json::Value* schema = outer != nullptr ? outer->find("schema") : nullptr;
    if (schema == nullptr)
      return fail(ErrorCode::kInvalidArgument, "expected an object with a schema",
                  "response_format.json_schema");
    constraint.schema = json::dump(*schema);
  } else if (name == "regex") {
    const json::Value* regex = format->find("regex");
    if (regex == nullptr || !regex->is_string())
      return fail(ErrorCode::kInvalidArgument, "expected a string", "response_format.regex");
    constraint.kind = OutputConstraint::Kind::kRegex;
    constraint.schema = regex->as_string();
  } else if (name != "json_object") {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("expected text, json_object, json_schema or regex, found {}", describe(*type)),
        "response_format.type");
  }
  out.constraint = std::move(constraint);
  return {};
}

bool is_strict(const json::Value& tool) {
  const json::Value* strict = tool.find("function")->find("strict");
  return strict != nullptr && strict->is_bool() && strict->as_bool();
}

// tool_choice of a dense model: whether a call is forced, and perhaps of which tool.
struct ToolChoice {
  bool none = false, required = false;
  std::string name = {};
};
Result<ToolChoice> read_tool_choice(const Fields& fields) {
  const json::Value* choice = fields.find("tool_choice");
  if (choice == nullptr) return ToolChoice{};
  if (choice->is_string()) {
    const std::string& s = choice->as_string();
    if (s == "none" || s == "auto" || s == "required")
      return ToolChoice{.none = s == "none", .required = s == "required"};
  }
  const json::Value* function = choice->find("function");
  const json::Value* name = function != nullptr ? function->find("name") : nullptr;
  if (name == nullptr || !name->is_string())
    return fields.wrong("tool_choice", "none, auto, required or a function with a name", *choice);
  return ToolChoice{.required = true, .name = name->as_string()};
}

Status read_tools(const Fields& fields, ChatRequest& out) {
  if (const json::Value* kwargs = fields.find("chat_template_kwargs")) {
    if (!kwargs->is_object()) return fields.wrong("chat_template_kwargs", "an object", *kwargs);
    out.variables.kwargs = *kwargs;
  }
  DEEPMINT_TRY(choice, read_tool_choice(fields));
  const json::Value* tools = fields.find("tools");
  if (tools == nullptr) {
    if (!choice.required) return {};
    return fail(ErrorCode::kInvalidArgument, "expected tools beside it", "tool_choice");
  }
  if (!tools->is_array() || tools->items().size() > kMaxTools)
    return fields.wrong("tools", fmt::format("an array of at most {} tools", kMaxTools), *tools);
  bool strict = false;
  json::Array kept;
  for (size_t i = 0; i < tools->items().size(); ++i) {
    const json::Value& tool = tools->items()[i];
    const json::Value* type = tool.find("type");
    const json::Value* function = tool.find("function");
    const json::Value* name = function != nullptr ? function->find("name") : nullptr;
    if (type == nullptr || !type->is_string() || type->as_string() != "function")
      return unsupported(fmt::format("tools[{}].type", i),
                         fmt::format("only \"function\" is supported here, found {}",
                                     type == nullptr ? "nothing" : describe(*type)));
    if (name == nullptr || !name->is_string() || name->as_string().empty())
      return fail(ErrorCode::kInvalidArgument, "expected a function with a name",
                  fmt::format("tools[{}].function", i));
    if (!choice.name.empty() && name->as_string() != choice.name) continue;
    strict = strict || is_strict(tool);
    kept.push_back(tool);
  }
  if (choice.required && kept.empty())
    return fail(ErrorCode::kInvalidArgument, "expected tools with the one that it names",
                "tool_choice");
  if (choice.none || kept.empty()) return {};
  out.variables.tools = json::Value(std::move(kept));
  bool parallel = true;
  DEEPMINT_CHECK_OK(fields.boolean("parallel_tool_calls", parallel));
  if (!strict && !choice.required && parallel) return {};
  OutputConstraint constraint;
  constraint.single_call = !parallel;
  constraint.kind = choice.required ? OutputConstraint::Kind::kToolCallsRequired
                                    : OutputConstraint::Kind::kToolCalls;
  constraint.schema = json::dump(out.variables.tools);
  constraint.must_enforce = true;
  if (out.constraint && !choice.required) {
    constraint.answer = out.constraint->kind;
    constraint.answer_schema = std::move(out.constraint->schema);
  }
  out.constraint = std::move(constraint);
  return {};
}

// The conversation of a request to DeepSeek, as the recipe reads it. `body` is used up.
Status read_conversation(json::Value& body, recipe::ModelVersion version, ChatRequest& out) {
  if (Fields(body).find("chat_template_kwargs") != nullptr)
    return unsupported("chat_template_kwargs",
                       "expected thinking and reasoning_effort in its place");
  if (Fields(body).find("model") == nullptr)  // the served one
    body.members().push_back({"model", json::Value(std::string())});
  DEEPMINT_TRY(request, recipe::convert_chat(body, {.version = version}));
  out.constraint = std::exchange(request.inference.constraint, std::nullopt);
  out.conversation = std::move(request);
  return {};
}

// Who goes first, how long, on whose account: nothing here changes an answer.
Status read_service(const Fields& fields, ChatRequest& out) {
  std::string tier;
  DEEPMINT_CHECK_OK(fields.text("service_tier", tier, 64));
  if (tier == "flex" || tier == "batch") {
    out.request_class = RequestClass::kBatch;
  } else if (tier == "agent") {
    out.request_class = RequestClass::kAgent;
  } else if (!tier.empty() && tier != "auto" && tier != "default" && tier != "priority" &&
             tier != "interactive") {
    return fields.wrong("service_tier",
                        "auto, default, priority or interactive, agent, flex or batch",
                        *fields.find("service_tier"));
  }
  constexpr int64_t kDay = 24 * 3'600'000;
  const auto duration = [&](std::string_view key, std::optional<int64_t>& ms) -> Status {
    int64_t value = 0;
    DEEPMINT_CHECK_OK(fields.integer(key, int64_t{1}, kDay, value));
    if (value > 0) ms = value;
    return {};
  };
  DEEPMINT_CHECK_OK(duration("deadline_ms", out.deadline_ms));
  DEEPMINT_CHECK_OK(duration("max_queue_ms", out.max_queue_ms));
  for (const std::string_view key : {"safety_identifier", "user"})
    if (const json::Value* user = fields.find(key);
        out.user.empty() && user != nullptr && user->is_string())
      out.user = user->as_string().substr(0, kMaxUserBytes);
  out.user.resize(out.user.size() - utf8::incomplete_tail(out.user));
  return {};
}

// Approximations that a request asks for or allows. Whether the model has a tail, and how many rows
// of it must stay, the engine says.
Status read_approximations(const Fields& fields, ChatRequest& out) {
  const auto bounded = [&](std::string_view key, bool& is_bounded) -> Status {
    const json::Value* mode = fields.find(key);
    if (mode == nullptr) return {};
    is_bounded = mode->is_string() && mode->as_string() == "bounded";
    if (is_bounded || (mode->is_string() && mode->as_string() == "exact")) return {};
    return fields.wrong(key, "exact or bounded", *mode);
  };
  bool has_bounded_tail = false;
  DEEPMINT_CHECK_OK(bounded("prefill_tail", has_bounded_tail));
  DEEPMINT_CHECK_OK(bounded("prefix_replay", out.bounded_replay));
  int32_t keep = 0;
  DEEPMINT_CHECK_OK(fields.integer("prefill_tail_keep_tokens", 1, kMaxInt, keep));
  if (keep > 0 && !has_bounded_tail)
    return fail(ErrorCode::kInvalidArgument, "expected prefill_tail: \"bounded\" beside it",
                "prefill_tail_keep_tokens");
  if (has_bounded_tail) out.tail_keep_tokens = keep > 0 ? keep : kDefaultTailKeepTokens;
  return {};
}

Status read_sampling(const Fields& fields, ChatRequest& out) {
  SamplingParams& s = out.sampling;
  DEEPMINT_CHECK_OK(fields.number("temperature", 0, 2, s.temperature));
  DEEPMINT_CHECK_OK(fields.number("top_p", 0, 1, s.top_p, /*above_min=*/true));
  DEEPMINT_CHECK_OK(fields.integer("top_k", -1, kMaxInt, s.top_k));
  DEEPMINT_CHECK_OK(fields.number("min_p", 0, 1, s.min_p));
  DEEPMINT_CHECK_OK(fields.number("presence_penalty", -2, 2, s.presence_penalty));
  DEEPMINT_CHECK_OK(fields.number("frequency_penalty", -2, 2, s.frequency_penalty));
  DEEPMINT_CHECK_OK(fields.number("repetition_penalty", 0.01, 100, s.repetition_penalty));
  DEEPMINT_CHECK_OK(fields.integer("min_tokens", 0, kMaxInt, s.min_tokens));
  DEEPMINT_CHECK_OK(read_logit_bias(fields, s));
  int64_t seed = -1;
  DEEPMINT_CHECK_OK(fields.integer("seed", int64_t{0}, std::numeric_limits<int64_t>::max(), seed));
  if (seed >= 0) s.seed = static_cast<uint64_t>(seed);

  DEEPMINT_CHECK_OK(fields.boolean("logprobs", out.logprobs));
  DEEPMINT_CHECK_OK(fields.integer("top_logprobs", 0, kMaxTopLogprobs, out.top_logprobs));
  if (out.top_logprobs > 0 && !out.logprobs)
    return fail(ErrorCode::kInvalidArgument, "expected logprobs: true beside it", "top_logprobs");
  s.top_logprobs = out.logprobs ? out.top_logprobs : -1;
  return {};
}

}  // namespace

Result<ChatRequest> parse_chat_request(std::string_view body, const SamplingParams& defaults,
                                       std::optional<recipe::ModelVersion> deepseek) {
  auto parsed = json::parse(body, kLimits);
  if (!parsed) return tl::unexpected(std::move(parsed).error().at("request body"));
  if (!parsed->is_object())
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("expected a JSON object, found {}", describe(*parsed)), "request body");
  const Fields fields(*parsed);
  ChatRequest out;
  out.sampling = defaults;
  DEEPMINT_CHECK_OK(fields.text("model", out.model, 1024));
  if (!deepseek) DEEPMINT_CHECK_OK(read_messages(fields, out));
  DEEPMINT_CHECK_OK(refuse_what_is_not_done(fields));
  out.asks_for_format = fields.find("response_format") != nullptr;
  if (!deepseek) DEEPMINT_CHECK_OK(read_format(fields, out));
  if (!deepseek) DEEPMINT_CHECK_OK(read_tools(fields, out));
  DEEPMINT_CHECK_OK(read_sampling(fields, out));
  DEEPMINT_CHECK_OK(read_stop(fields, out));
  int32_t max_tokens = -1;
  DEEPMINT_CHECK_OK(fields.integer("max_tokens", 1, kMaxInt, max_tokens));
  DEEPMINT_CHECK_OK(
      fields.integer("max_completion_tokens", 1, kMaxInt, max_tokens));  // wins when both are there
  if (max_tokens > 0) out.max_tokens = max_tokens;
  DEEPMINT_CHECK_OK(fields.integer("n", 1, kMaxChoices, out.n));
  DEEPMINT_CHECK_OK(fields.boolean("ignore_eos", out.ignore_eos));
  DEEPMINT_CHECK_OK(fields.text("cache_salt", out.cache_salt, 256));
  DEEPMINT_CHECK_OK(read_service(fields, out));
  DEEPMINT_CHECK_OK(read_approximations(fields, out));
  DEEPMINT_CHECK_OK(fields.boolean("stream", out.stream));
  if (const json::Value* options = fields.find("stream_options")) {
    if (!options->is_object()) return fields.wrong("stream_options", "an object", *options);
    if (!out.stream)
      return fail(ErrorCode::kInvalidArgument, "expected stream: true beside it", "stream_options");
    DEEPMINT_CHECK_OK(
        Fields(*options, "stream_options").boolean("include_usage", out.include_usage));
  }
  if (deepseek) DEEPMINT_CHECK_OK(read_conversation(*parsed, *deepseek, out));
  return out;
}

}  // namespace deepmint
