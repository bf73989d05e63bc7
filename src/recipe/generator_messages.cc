#include <fmt/format.h>

#include "recipe/generator.h"
#include "recipe/spelling.h"

namespace deepmint::recipe {
namespace {

std::string_view stop_reason(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength:
    case FinishReason::kMalformedToolCall:
      return "max_tokens";
    case FinishReason::kToolCalls:
      return "tool_use";
    case FinishReason::kStopSequence:
      return "stop_sequence";
    case FinishReason::kContentFilter:
      return "refusal";
    default:
      return "end_turn";
  }
}

std::string usage_json(const PromptUsage& p, uint64_t output) {
  const uint64_t known = p.cached_tokens + p.cache_created_tokens;
  const uint64_t fresh = p.prompt_tokens - std::min(p.prompt_tokens, known);
  return fmt::format(
      "{{\"input_tokens\":{},\"cache_creation_input_tokens\":{},\"cache_read_input_tokens\":{},"
      "\"output_tokens\":{},"
      "\"service_tier\":\"standard\"}}",
      fresh, p.cache_created_tokens, p.cached_tokens, output);
}

class MessagesGenerator final : public Generator {
 public:
  MessagesGenerator(const ConversationRequest& request, const ReplyMeta& meta, EventBuffer& events)
      : meta_(meta),
        events_(events),
        thinking_(request.conversation.thinking),
        accumulate_(!request.reply.stream) {}

  void start(const PromptUsage& usage, const std::string*) override {
    prompt_ = usage;
    head_ = fmt::format(
        "{{\"id\":{},\"type\":\"message\",\"role\":\"assistant\",\"model\":{},\"content\":[",
        quoted_json(meta_.id), quoted_json(meta_.model));
    event("message_start", fmt::format("{{\"type\":\"message_start\",\"message\":{}],\"stop_"
                                       "reason\":null,\"stop_sequence\":null,"
                                       "\"usage\":{}}}}}",
                                       head_, usage_json(usage, 0)));
    if (thinking_)
      open(Block::kThinking, "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}");
  }

  void reasoning(std::string_view text, std::string_view) override {
    if (block_ != Block::kThinking) {
      close_block();
      open(Block::kThinking, "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}");
    }
    delta("thinking_delta", "thinking", text);
  }

  void text(std::string_view text, std::string_view) override {
    if (block_ != Block::kText) {
      close_block();
      open(Block::kText, "{\"type\":\"text\",\"text\":\"\"}");
    }
    delta("text_delta", "text", text);
  }

  void tool_begin(std::string_view call_id, std::string_view name) override {
    close_block();
    tool_id_ = std::string(call_id);
    tool_name_ = std::string(name);
    open(Block::kTool, fmt::format("{{\"type\":\"tool_use\",\"id\":{},\"name\":{},\"input\":{{}}}}",
                                   quoted_json(call_id), quoted_json(name)));
  }

  void tool_arguments(std::string_view json) override {
    delta("input_json_delta", "partial_json", json);
  }
  void tool_end(bool) override { close_block(); }

  void finish(FinishReason reason, const std::string& stop, const ReplyUsage& usage) override {
    close_block();
    stop_ = fmt::format("\"stop_reason\":\"{}\",\"stop_sequence\":{}", stop_reason(reason),
                        reason == FinishReason::kStopSequence ? quoted_json(stop) : "null");
    output_tokens_ = usage.completion_tokens;
    event("message_delta",
          fmt::format("{{\"type\":\"message_delta\",\"delta\":{{{}}},\"usage\":{}}}", stop_,
                      usage_json(prompt_, output_tokens_)));
    event("message_stop", "{\"type\":\"message_stop\"}");
  }

  void fail(std::string_view type, std::string_view message) override {
    close_block();
    event("error", fmt::format("{{\"type\":\"error\",\"error\":{{\"type\":{},\"message\":{}}}}}",
                               quoted_json(type), quoted_json(message)));
  }

  std::string response() const override {
    return fmt::format("{}{}],{},\"usage\":{}}}", head_, content_, stop_,
                       usage_json(prompt_, output_tokens_));
  }

  std::string call_id(int n) const override { return fmt::format("toolu_{}_{}", meta_.id, n); }

 private:
  enum class Block : uint8_t { kNone, kThinking, kText, kTool };

  void event(std::string_view name, std::string_view data) {
    events_.open(name).append(data);
    events_.close();
  }

  void open(Block block, std::string_view content_block) {
    block_ = block;
    current_.clear();
    event("content_block_start",
          fmt::format("{{\"type\":\"content_block_start\",\"index\":{},\"content_block\":{}}}",
                      index_, content_block));
    if (index_ == 0) event("ping", "{\"type\":\"ping\"}");
    delta_head_ = fmt::format(
        "{{\"type\":\"content_block_delta\",\"index\":{},\"delta\":{{\"type\":\"", index_);
  }

  void delta(std::string_view type, std::string_view key, std::string_view text) {
    std::string& out = events_.open("content_block_delta");
    out.append(delta_head_).append(type).append("\",");
    put_string(out, key, text);
    out.append("}}");
    events_.close();
    if (accumulate_) current_.append(text);
  }

  void close_block() {
    if (block_ == Block::kNone) return;
    if (block_ == Block::kThinking) {
      const std::string thinking = std::move(current_);
      delta("signature_delta", "signature", meta_.id);
      current_ = thinking;
    }
    event("content_block_stop",
          fmt::format("{{\"type\":\"content_block_stop\",\"index\":{}}}", index_));
    if (accumulate_) add_content();
    block_ = Block::kNone;
    ++index_;
  }

  void add_content() {
    if (!content_.empty()) content_.push_back(',');
    if (block_ == Block::kThinking) {
      content_.append(fmt::format("{{\"type\":\"thinking\",\"thinking\":{},\"signature\":{}}}",
                                  quoted_json(current_), quoted_json(meta_.id)));
    } else if (block_ == Block::kText) {
      content_.append(fmt::format("{{\"type\":\"text\",\"text\":{}}}", quoted_json(current_)));
    } else {
      const auto input = json::parse(current_);
      const bool usable = input && numbers_are_finite(*input);
      content_.append(fmt::format("{{\"type\":\"tool_use\",\"id\":{},\"name\":{},\"input\":{}}}",
                                  quoted_json(tool_id_), quoted_json(tool_name_),
                                  usable ? compact_json(*input) : std::string("{}")));
    }
  }

  const ReplyMeta& meta_;
  EventBuffer& events_;
  const bool thinking_, accumulate_;
  PromptUsage prompt_;
  Block block_ = Block::kNone;
  int index_ = 0;
  std::string head_, delta_head_, current_, content_, tool_id_, tool_name_;
  std::string stop_ = "\"stop_reason\":null,\"stop_sequence\":null";
  uint64_t output_tokens_ = 0;
};

}  // namespace

std::unique_ptr<Generator> make_messages_generator(const ConversationRequest& request,
                                                   const ReplyMeta& meta, EventBuffer& events) {
  return std::make_unique<MessagesGenerator>(request, meta, events);
}

}  // namespace deepmint::recipe
