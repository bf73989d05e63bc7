#include <fmt/format.h>

#include <algorithm>

#include "recipe/custom_input.h"
#include "recipe/generator.h"

namespace deepmint::recipe {

void put_string(std::string& out, std::string_view key, std::string_view value) {
  out.append("\"").append(key).append("\":");
  json::append_escaped(out, value);
}

namespace {

std::string_view finish_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength:
    case FinishReason::kMalformedToolCall:
      return "length";
    case FinishReason::kToolCalls:
      return "tool_calls";
    case FinishReason::kContentFilter:
      return "content_filter";
    default:
      return "stop";
  }
}

std::string usage_json(const ReplyUsage& u) {
  const uint64_t miss =
      u.prompt.prompt_tokens - std::min(u.prompt.prompt_tokens, u.prompt.cached_tokens);
  std::string details;
  if (u.has_reasoning)
    details = fmt::format(",\"completion_tokens_details\":{{\"reasoning_tokens\":{}}}",
                          u.reasoning_tokens);
  return fmt::format(
      "{{\"prompt_tokens\":{},\"completion_tokens\":{},\"total_tokens\":{},\"prompt_tokens_"
      "details\":{{\"cached_tokens\":{}{}}}{},"
      "\"prompt_cache_hit_tokens\":{},\"prompt_cache_miss_tokens\":{}}}",
      u.prompt.prompt_tokens, u.completion_tokens, u.prompt.prompt_tokens + u.completion_tokens,
      u.prompt.cached_tokens, u.prompt.details, details, u.prompt.cached_tokens, miss);
}

class ChatGenerator final : public Generator {
 public:
  ChatGenerator(const ConversationRequest& request, const ReplyMeta& meta, EventBuffer& events)
      : meta_(meta),
        events_(events),
        custom_tools_(request.reply.custom_tools),
        thinking_(request.conversation.thinking),
        include_usage_(request.reply.include_usage),
        accumulate_(!request.reply.stream),
        ours_(meta.compat == Compat::kOurs),
        indexed_calls_(meta.compat == Compat::kRecipe02) {}

  void start(const PromptUsage& usage, const std::string* fingerprint) override {
    usage_.prompt = usage;
    fingerprint_ = fingerprint == nullptr ? "null" : quoted_json(*fingerprint);
    envelope_ = fmt::format(
        "{{\"id\":{},\"object\":\"chat.completion.chunk\",\"created\":{},\"model\":{},\"system_"
        "fingerprint\":{},",
        quoted_json(meta_.id), meta_.created, quoted_json(meta_.model), fingerprint_);
    head_ = envelope_ + fmt::format("\"choices\":[{{\"index\":{},\"delta\":{{", meta_.choice);
    tail_ = "},\"logprobs\":null,\"finish_reason\":null}]";
    tail_end_ = include_usage_ ? ",\"usage\":null}" : "}";
    tail_.append(tail_end_);
    if (meta_.seed) seed_ = fmt::format(",\"seed\":{}", *meta_.seed);
    std::string& out = events_.open({});
    out.append(head_).append(
        thinking_ ? "\"role\":\"assistant\",\"content\":null,\"reasoning_content\":\"\""
                  : "\"role\":\"assistant\",\"content\":\"\"");
    out.append(tail_);
    out.insert(out.size() - 1, seed_);
    events_.close();
  }

  void reasoning(std::string_view text, std::string_view logprobs) override {
    std::string& out = events_.open({});
    out.append(head_).append("\"content\":null,\"reasoning_content\":");
    json::append_escaped(out, text);
    close(out, "reasoning_content", logprobs);
    if (!accumulate_) return;
    reasoning_.append(text);
    append_list(reasoning_logprobs_, logprobs);
  }

  void text(std::string_view text, std::string_view logprobs) override {
    std::string& out = events_.open({});
    out.append(head_).append("\"content\":");
    json::append_escaped(out, text);
    if (thinking_) out.append(",\"reasoning_content\":null");
    close(out, "content", logprobs);
    if (!accumulate_) return;
    content_.append(text);
    append_list(content_logprobs_, logprobs);
  }

  void tool_begin(std::string_view call_id, std::string_view name) override {
    custom_ =
        ours_ && std::find(custom_tools_.begin(), custom_tools_.end(), name) != custom_tools_.end();
    custom_input_.reset();
    const std::string_view kind = custom_ ? "custom" : "function";
    const std::string_view text = custom_ ? "input" : "arguments";
    std::string& out = events_.open({});
    out.append(head_).append("\"tool_calls\":[{\"index\":");
    out.append(std::to_string(++call_));
    out.append(",");
    put_string(out, "id", call_id);
    out.append(",");
    put_string(out, "type", kind);
    out.append(",\"").append(kind).append("\":{");
    put_string(out, "name", name);
    out.append(",");
    put_string(out, text, "");
    out.append("}}]").append(tail_);
    events_.close();
    call_head_ =
        fmt::format("{}\"tool_calls\":[{{\"index\":{},\"{}\":{{\"{}\":", head_, call_, kind, text);
    if (accumulate_) calls_.push_back({std::string(call_id), std::string(name), {}, custom_});
  }

  void tool_arguments(std::string_view json) override {
    const std::string_view text = custom_ ? custom_input_.push(json) : json;
    if (!custom_ || !text.empty()) call_delta(text);
  }

  void tool_end(bool) override {
    if (!custom_) return;
    const std::string_view rest = custom_input_.finish();
    if (!rest.empty()) call_delta(rest);
  }

  void finish(FinishReason reason, const std::string&, const ReplyUsage& usage) override {
    usage_ = usage;
    finish_ = finish_name(reason);
    const bool separate = ours_ && include_usage_;
    std::string& out = events_.open({});
    out.append(head_).append("\"content\":\"\"");
    if (thinking_) out.append(",\"reasoning_content\":null");
    out.append("},\"logprobs\":null,\"finish_reason\":\"")
        .append(finish_)
        .append("\"}],\"usage\":");
    out.append(separate ? "null" : usage_json(usage)).append(seed_).append("}");
    events_.close();
    if (separate && meta_.last_choice) {
      std::string& last = events_.open({});
      last.append(envelope_)
          .append("\"choices\":[],\"usage\":")
          .append(usage_json(usage))
          .append(seed_)
          .append("}");
      events_.close();
    }
  }

  void fail(std::string_view type, std::string_view message) override {
    std::string& out = events_.open({});
    out.append("{\"error\":{");
    put_string(out, "message", message);
    out.append(",");
    put_string(out, "type", type);
    out.append(",\"param\":null,");
    put_string(out, "code", type);
    out.append("}}");
    events_.close();
  }

  std::string choice() const override {
    std::string out =
        fmt::format("{{\"index\":{},\"message\":{{\"role\":\"assistant\",", meta_.choice);
    put_string(out, "content", content_);
    if (thinking_) {
      out.append(",");
      put_string(out, "reasoning_content", reasoning_);
    }
    if (!calls_.empty()) {
      out.append(",\"tool_calls\":[");
      for (size_t i = 0; i < calls_.size(); ++i) {
        out.append(i > 0 ? ",{" : "{");
        if (indexed_calls_) out.append(fmt::format("\"index\":{},", i));
        put_string(out, "id", calls_[i].id);
        const std::string_view kind = calls_[i].custom ? "custom" : "function";
        out.append(",");
        put_string(out, "type", kind);
        out.append(",\"").append(kind).append("\":{");
        put_string(out, "name", calls_[i].name);
        out.append(",");
        put_string(out, calls_[i].custom ? "input" : "arguments", calls_[i].text);
        out.append("}}");
      }
      out.append("]");
    }
    out.append("},\"logprobs\":");
    if (content_logprobs_.empty() && reasoning_logprobs_.empty()) {
      out.append("null");
    } else {
      out.append("{");
      if (!content_logprobs_.empty())
        out.append("\"content\":[").append(content_logprobs_).append("]");
      if (!reasoning_logprobs_.empty()) {
        if (!content_logprobs_.empty()) out.append(",");
        out.append("\"reasoning_content\":[").append(reasoning_logprobs_).append("]");
      }
      out.append("}");
    }
    out.append(",\"finish_reason\":\"").append(finish_).append("\"}");
    return out;
  }

  std::string response() const override { return response_of(choice(), usage_); }

  std::string response_of(const std::string& choices, const ReplyUsage& usage) const override {
    return fmt::format(
        "{{\"id\":{},\"object\":\"chat.completion\",\"created\":{},\"model\":{},\"choices\":[{}],"
        "\"usage\":{},"
        "\"system_fingerprint\":{}{}}}",
        quoted_json(meta_.id), meta_.created, quoted_json(meta_.model), choices, usage_json(usage),
        fingerprint_, seed_);
  }

  std::string call_id(int n) const override {
    return fmt::format("call_{}_{}{}", meta_.id, choice_prefix(), n);
  }

 private:
  std::string choice_prefix() const {
    return meta_.choice == 0 ? std::string() : fmt::format("{}_", meta_.choice);
  }

  struct Call {
    std::string id, name, text;  // arguments, or the input of a custom tool
    bool custom = false;
  };

  void call_delta(std::string_view text) {
    std::string& out = events_.open({});
    out.append(call_head_);
    json::append_escaped(out, text);
    out.append("}}]").append(tail_);
    events_.close();
    if (accumulate_) calls_.back().text.append(text);
  }

  void close(std::string& out, std::string_view kind, std::string_view logprobs) {
    if (logprobs.empty()) {
      out.append(tail_);
    } else {
      out.append("},\"logprobs\":{\"")
          .append(kind)
          .append("\":")
          .append(logprobs)
          .append("},\"finish_reason\":null}]");
      out.append(tail_end_);
    }
    events_.close();
  }

  static void append_list(std::string& list, std::string_view array) {
    if (array.size() <= 2) return;
    if (!list.empty()) list.push_back(',');
    list.append(array.substr(1, array.size() - 2));
  }

  const ReplyMeta& meta_;
  EventBuffer& events_;
  const std::vector<std::string>& custom_tools_;
  const bool thinking_, include_usage_, accumulate_, ours_, indexed_calls_;
  std::string seed_;  // a member behind the last one
  std::string fingerprint_ = "null", envelope_, head_, tail_, tail_end_, call_head_;
  std::string content_, reasoning_, content_logprobs_, reasoning_logprobs_;
  std::string finish_ = "stop";
  std::vector<Call> calls_;
  int call_ = -1;
  bool custom_ = false;  // the open call is of a custom tool
  CustomInput custom_input_;
  ReplyUsage usage_;
};

}  // namespace

std::unique_ptr<Generator> make_chat_generator(const ConversationRequest& request,
                                               const ReplyMeta& meta, EventBuffer& events) {
  return std::make_unique<ChatGenerator>(request, meta, events);
}

}  // namespace deepmint::recipe
