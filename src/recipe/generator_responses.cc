#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "recipe/custom_input.h"
#include "recipe/generator.h"

namespace deepmint::recipe {
namespace {

constexpr std::string_view kToolSearch = "tool_search";

class ResponsesGenerator final : public Generator {
 public:
  ResponsesGenerator(const ConversationRequest& request, const ReplyMeta& meta, EventBuffer& events)
      : meta_(meta),
        events_(events),
        reply_(request.reply),
        seals_(meta.sealer != nullptr && request.reply.include_encrypted_reasoning) {}

  void start(const PromptUsage& usage, const std::string*) override {
    prompt_ = usage;
    const std::string body = object("in_progress", "null", "null", "null", "", "null");
    emit_response("response.created", body);
    emit_response("response.in_progress", body);
  }

  void reasoning(std::string_view text, std::string_view) override {
    content(Kind::kReasoning, text, {});
  }
  void text(std::string_view text, std::string_view logprobs) override {
    content(Kind::kMessage, text, logprobs);
  }

  void tool_begin(std::string_view call_id, std::string_view name) override {
    close_item("completed", true);
    const bool custom = std::find(reply_.custom_tools.begin(), reply_.custom_tools.end(), name) !=
                        reply_.custom_tools.end();
    kind_ = custom                                      ? Kind::kCustomCall
            : reply_.tool_search && name == kToolSearch ? Kind::kSearchCall
                                                        : Kind::kFunctionCall;
    call_id_ = quoted_json(call_id);
    name_ = name_members(name);
    const std::string_view prefix = custom ? "ctc" : kind_ == Kind::kSearchCall ? "tsc" : "fc";
    item_id_ = quoted_json(fmt::format("{}_{}_{}", prefix, meta_.id, index_));
    emit("response.output_item.added",
         fmt::format("\"item\":{},\"output_index\":{}", call_item("in_progress", ""), index_));
    custom_input_.reset();
    begin_delta(custom ? "response.custom_tool_call_input.delta"
                       : "response.function_call_arguments.delta");
  }

  void tool_arguments(std::string_view json) override {
    if (kind_ == Kind::kSearchCall) {  // its arguments are an object, sent whole
      raw_.append(json);
    } else if (kind_ == Kind::kCustomCall) {
      const std::string_view decoded = custom_input_.push(json);
      if (!decoded.empty()) call_delta(decoded);
    } else {
      call_delta(json);
    }
  }

  void tool_end(bool complete) override {
    if (kind_ == Kind::kCustomCall) {
      const std::string_view rest = custom_input_.finish();
      if (!rest.empty()) call_delta(rest);
    }
    // An incomplete call stays open until the reason is known; the finish closes it. The original
    // leaves every call open until something follows, so that a limit reached right behind a whole
    // call marks it incomplete.
    if (complete && meta_.compat == Compat::kOurs) close_item("completed", false);
  }

  void finish(FinishReason reason, const std::string&, const ReplyUsage& usage) override {
    const bool limit =
        reason == FinishReason::kLength || reason == FinishReason::kMalformedToolCall;
    const bool incomplete = limit || reason == FinishReason::kContentFilter;
    const std::string_view status = incomplete ? "incomplete" : "completed";
    close_item(status, false);
    const std::string details =
        !incomplete
            ? "null"
            : fmt::format("{{\"reason\":\"{}\"}}", limit ? "max_output_tokens" : "content_filter");
    const std::string usage_text = fmt::format(
        "{{\"input_tokens\":{},\"input_tokens_details\":{{\"cached_tokens\":{}}},\"output_tokens\":"
        "{},"
        "\"output_tokens_details\":{{\"reasoning_tokens\":{}}},\"total_tokens\":{}}}",
        prompt_.prompt_tokens, prompt_.cached_tokens, usage.completion_tokens,
        usage.reasoning_tokens, prompt_.prompt_tokens + usage.completion_tokens);
    final_ = object(status, std::to_string(meta_.completed == 0 ? meta_.created : meta_.completed),
                    "null", details, output_, usage_text);
    emit_response(incomplete ? "response.incomplete" : "response.completed", final_);
  }

  void fail(std::string_view type, std::string_view message) override {
    close_item("incomplete", false);
    const std::string error =
        fmt::format("{{\"code\":{},\"message\":{}}}", quoted_json(type), quoted_json(message));
    final_ = object("failed", "null", error, "null", output_, "null");
    emit_response("response.failed", final_);
  }

  std::string response() const override { return final_; }
  std::string call_id(int n) const override { return fmt::format("call_{}_{}", meta_.id, n); }

 private:
  enum class Kind : uint8_t {
    kNone,
    kReasoning,
    kMessage,
    kFunctionCall,
    kCustomCall,
    kSearchCall
  };

  std::string object(std::string_view status, std::string_view completed_at, std::string_view error,
                     std::string_view details, std::string_view output,
                     std::string_view usage) const {
    const std::string id = quoted_json(meta_.id), model = quoted_json(meta_.model);
    std::string out;
    out.reserve(output.size() + reply_.echo_head.size() + reply_.echo_settings.size() + 2048);
    const auto to = std::back_inserter(out);
    if (reply_.echo_settings.empty()) {
      fmt::format_to(
          to,
          "{{\"id\":{},\"object\":\"response\",\"created_at\":{},\"model\":{},\"status\":"
          "\"{}\",\"completed_at\":{},\"error\":{},\"incomplete_details\":{},\"output\":[",
          id, meta_.created, model, status, completed_at, error, details);
      out.append(output);
      fmt::format_to(to, "],\"usage\":{}}}", usage);
      return out;
    }
    fmt::format_to(
        to,
        "{{\"id\":{},\"object\":\"response\",\"created_at\":{},\"status\":\"{}\",\"background\":"
        "false,\"completed_at\":{},\"content_filters\":null,\"error\":{},\"frequency_penalty\":0.0,"
        "\"incomplete_details\":{},{}\"model\":{},\"moderation\":null,\"output\":[",
        id, meta_.created, status, completed_at, error, details, reply_.echo_head, model);
    out.append(output).append("],").append(reply_.echo_settings);
    fmt::format_to(to, "\"usage\":{}{}}}", usage, reply_.echo_tail);
    return out;
  }

  void emit_response(std::string_view type, std::string_view object) {
    std::string& out = events_.open(type);
    out.append("{\"type\":\"").append(type).append("\",\"response\":").append(object);
    out.append(",\"sequence_number\":");
    finish_delta(out);
  }

  void emit(std::string_view type, std::string_view members) {
    std::string& out = events_.open(type);
    out.append("{\"type\":\"").append(type).append("\",").append(members);
    out.append(",\"sequence_number\":");
    fmt::format_to(std::back_inserter(out), "{}", sequence_++);
    out.push_back('}');
    events_.close();
  }

  // ---- reasoning and messages
  // -----------------------------------------------------------------------------------------------

  // `body` is what stands between the quotes of the JSON string.
  void append_part(std::string& out, std::string_view body) const {
    if (kind_ == Kind::kReasoning) {
      out.append("{\"type\":\"reasoning_text\",\"text\":\"");
    } else {
      out.append("{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[")
          .append(logprobs_)
          .append("],\"text\":\"");
    }
    out.append(body).append("\"}");
  }

  // An item with one part, or without any while it opens.
  void append_content_item(std::string& out, std::string_view status, std::string_view phase,
                           bool opening) const {
    if (kind_ == Kind::kReasoning) {
      fmt::format_to(std::back_inserter(out),
                     "{{\"type\":\"reasoning\",\"id\":{},\"status\":\"{}\",\"content\":[", item_id_,
                     status);
    } else {
      fmt::format_to(std::back_inserter(out),
                     "{{\"type\":\"message\",\"id\":{},\"status\":\"{}\",\"role\":\"assistant\","
                     "\"phase\":\"{}\",\"content\":[",
                     item_id_, status, phase);
    }
    if (!opening) append_part(out, escaped_);
    if (kind_ == Kind::kReasoning) {
      out.append("],\"summary\":[]").append(encrypted(opening)).append("}");
    } else {
      out.append("]}");
    }
  }

  std::string encrypted(bool opening) const {
    if (meta_.compat == Compat::kRecipe01) return {};
    if (meta_.compat == Compat::kRecipe02)
      return fmt::format(",\"encrypted_content\":{}",
                         quoted_json(fmt::format("{}-{}", meta_.id, index_)));
    if (!reply_.include_encrypted_reasoning || meta_.sealer == nullptr || opening)
      return ",\"encrypted_content\":null";
    return fmt::format(",\"encrypted_content\":{}",
                       quoted_json(meta_.sealer->seal(meta_.tenant, raw_)));
  }

  void content(Kind kind, std::string_view text, std::string_view logprobs) {
    if (kind_ != kind) {
      close_item("completed", false);
      kind_ = kind;
      item_id_ = quoted_json(
          fmt::format("{}_{}_{}", kind == Kind::kReasoning ? "rs" : "msg", meta_.id, index_));
      std::string item, empty;
      append_content_item(item, "in_progress", "final_answer", true);
      append_part(empty, {});
      emit("response.output_item.added",
           fmt::format("\"item\":{},\"output_index\":{}", item, index_));
      emit("response.content_part.added",
           fmt::format("\"content_index\":0,\"item_id\":{},\"output_index\":{},\"part\":{}",
                       item_id_, index_, empty));
      begin_delta(kind == Kind::kReasoning ? "response.reasoning_text.delta"
                                           : "response.output_text.delta");
    }
    if (seals_ && kind == Kind::kReasoning) raw_.append(text);
    std::string& out = events_.open(delta_type_);
    out.append(delta_head_);
    append_delta(out, text);
    out.append(delta_middle_);
    if (kind == Kind::kMessage) {
      out.append(",\"logprobs\":").append(logprobs.empty() ? "[]" : logprobs);
      if (logprobs.size() > 2) {
        if (!logprobs_.empty()) logprobs_.push_back(',');
        logprobs_.append(logprobs.substr(1, logprobs.size() - 2));
      }
    }
    out.append(delta_index_);
    finish_delta(out);
  }

  void begin_delta(std::string_view type) {
    delta_type_ = type;
    const bool is_content = kind_ == Kind::kReasoning || kind_ == Kind::kMessage;
    delta_head_ = fmt::format("{{\"type\":\"{}\",{}\"delta\":", type,
                              is_content ? "\"content_index\":0," : "");
    delta_middle_ = fmt::format(",\"item_id\":{}", item_id_);
    delta_index_ = fmt::format(",\"output_index\":{},\"sequence_number\":", index_);
  }

  // The text of a delta as a JSON string; the end of the item repeats it without escaping again.
  void append_delta(std::string& out, std::string_view text) {
    const size_t begin = out.size() + 1;
    json::append_escaped(out, text);
    escaped_.append(out, begin, out.size() - 1 - begin);
  }

  void finish_delta(std::string& out) {
    fmt::format_to(std::back_inserter(out), "{}", sequence_++);
    out.push_back('}');
    events_.close();
  }

  // ---- calls
  // ----------------------------------------------------------------------------------------------------------------

  std::string name_members(std::string_view name) const {
    std::string_view space, local = name;
    const auto it = reply_.namespaces.find(std::string(name));
    if (it != reply_.namespaces.end()) {
      space = it->second.first;
      local = it->second.second;
    } else if (meta_.compat == Compat::kRecipe01) {
      const size_t at = name.find("::");
      if (at != std::string_view::npos) {
        space = name.substr(0, at);
        local = name.substr(at + 2);
      }
    }
    std::string out = fmt::format("\"name\":{}", quoted_json(local));
    if (!space.empty()) out.append(fmt::format(",\"namespace\":{}", quoted_json(space)));
    return out;
  }

  // An object, compact; nothing while it is not whole, or where 0.2 wrote broken JSON.
  static std::optional<std::string> search_arguments(std::string_view text) {
    const auto arguments = json::parse(text);
    if (!arguments || !arguments->is_object() || !numbers_are_finite(*arguments))
      return std::nullopt;
    return compact_json(*arguments);
  }

  std::string call_item(std::string_view status, std::string_view text) const {
    if (kind_ == Kind::kSearchCall) {
      const auto arguments = status == "completed" ? search_arguments(text) : std::nullopt;
      return fmt::format(
          "{{\"type\":\"tool_search_call\",\"id\":{},\"status\":\"{}\",\"call_id\":{},"
          "\"execution\":"
          "\"client\",\"arguments\":{}}}",
          item_id_, status, call_id_, arguments.value_or("{}"));
    }
    const bool custom = kind_ == Kind::kCustomCall;
    return fmt::format(
        "{{\"type\":\"{}\",\"id\":{},\"status\":\"{}\",\"call_id\":{},{},\"{}\":\"{}\"}}",
        custom ? "custom_tool_call" : "function_call", item_id_, status, call_id_, name_,
        custom ? "input" : "arguments", text);
  }

  void call_delta(std::string_view text) {
    std::string& out = events_.open(delta_type_);
    out.append(delta_head_);
    append_delta(out, text);
    out.append(delta_middle_).append(delta_index_);
    finish_delta(out);
  }

  // ---- the end of an item
  // ---------------------------------------------------------------------------------------------------

  void close_item(std::string_view status, bool call_follows) {
    if (kind_ == Kind::kNone) return;
    const size_t item_begin = output_.empty() ? 0 : output_.size() + 1;
    if (item_begin > 0) output_.push_back(',');
    if (kind_ == Kind::kReasoning || kind_ == Kind::kMessage) {
      close_content(status, call_follows);
    } else if (kind_ == Kind::kSearchCall) {
      output_.append(call_item(search_arguments(raw_) ? status : "incomplete", raw_));
    } else {
      const bool custom = kind_ == Kind::kCustomCall;
      emit(
          custom ? "response.custom_tool_call_input.done" : "response.function_call_arguments.done",
          fmt::format("\"{}\":\"{}\",\"item_id\":{},\"output_index\":{}",
                      custom ? "input" : "arguments", escaped_, item_id_, index_));
      output_.append(call_item(status, escaped_));
    }
    std::string& out = events_.open("response.output_item.done");
    out.append("{\"type\":\"response.output_item.done\",\"item\":");
    out.append(output_, item_begin);
    fmt::format_to(std::back_inserter(out), ",\"output_index\":{},\"sequence_number\":", index_);
    finish_delta(out);
    escaped_.clear();
    raw_.clear();
    logprobs_.clear();
    kind_ = Kind::kNone;
    ++index_;
  }

  // The done events of a text; the item goes to the end of output_.
  void close_content(std::string_view status, bool call_follows) {
    const bool message = kind_ == Kind::kMessage;
    const std::string_view type =
        message ? "response.output_text.done" : "response.reasoning_text.done";
    std::string& done = events_.open(type);
    // Four events repeat the text; the buffer grows once for all of them.
    done.reserve(done.size() + 4 * (escaped_.size() + logprobs_.size()) + output_.size() + 4096);
    done.append("{\"type\":\"").append(type).append("\",\"content_index\":0,\"item_id\":");
    done.append(item_id_);
    if (message) done.append(",\"logprobs\":[").append(logprobs_).append("]");
    fmt::format_to(std::back_inserter(done),
                   ",\"output_index\":{},\"sequence_number\":{},\"text\":\"", index_, sequence_++);
    done.append(escaped_).append("\"}");
    events_.close();
    std::string& part = events_.open("response.content_part.done");
    fmt::format_to(std::back_inserter(part),
                   "{{\"type\":\"response.content_part.done\",\"content_index\":0,\"item_id\":{},"
                   "\"output_index\":{},\"part\":",
                   item_id_, index_);
    append_part(part, escaped_);
    part.append(",\"sequence_number\":");
    finish_delta(part);
    append_content_item(output_, status, message && call_follows ? "commentary" : "final_answer",
                        false);
  }

  const ReplyMeta& meta_;
  EventBuffer& events_;
  const ReplyContext& reply_;
  PromptUsage prompt_;
  Kind kind_ = Kind::kNone;
  int index_ = 0;
  uint64_t sequence_ = 0;
  std::string_view delta_type_;
  std::string item_id_, call_id_, name_, logprobs_, output_, final_;
  std::string escaped_;  // text, input or arguments of the open item, escaped for JSON
  std::string raw_;      // the same as it is, where it must be read again
  const bool seals_;
  std::string delta_head_, delta_middle_, delta_index_;
  CustomInput custom_input_;
};

}  // namespace

std::unique_ptr<Generator> make_responses_generator(const ConversationRequest& request,
                                                    const ReplyMeta& meta, EventBuffer& events) {
  return std::make_unique<ResponsesGenerator>(request, meta, events);
}

}  // namespace deepmint::recipe
