// Any bytes as model output for a client, as text at any cut and as token ids: no crash, no hang,
// every event is JSON, and the response is the one of the whole text.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/check.h"
#include "recipe/convert.h"
#include "recipe/reply_stream.h"

namespace {

using namespace deepmint;

// Every byte is a token; two more are the control tokens that markers are made of.
class Bytes final : public recipe::TokenCodec {
 public:
  std::vector<TokenId> encode(std::span<const Segment> /*segments*/) const override { return {}; }
  std::string_view token_bytes(TokenId id) const override {
    static const std::string kAll = [] {
      std::string s;
      for (int i = 0; i < 256; ++i) s.push_back(static_cast<char>(i));
      return s;
    }();
    if (id == 256) return "｜DSML｜";
    if (id == 257) return "</think>";
    if (id == 258) return "<｜User｜>";
    return id >= 0 && id < 256 ? std::string_view(kAll).substr(static_cast<size_t>(id), 1)
                               : std::string_view();
  }
  bool is_control(TokenId id) const override { return id >= 256; }
};

const recipe::ConversationRequest& request(size_t which) {
  static const std::vector<recipe::ConversationRequest> kAll = [] {
    const char kChat[] =
        R"({"model":"m","messages":[{"role":"user","content":"x"}],"logprobs":true,"stop":["END","\n\n"],"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{}}}}}]})";
    const char kMessages[] =
        R"({"model":"m","max_tokens":9,"messages":[{"role":"user","content":"x"}],"tools":[{"name":"f","input_schema":{"type":"object"}}]})";
    const char kResponses[] =
        R"({"model":"m","input":"x","tools":[{"type":"custom","name":"f"},{"type":"namespace","name":"n","tools":[{"type":"function","name":"g"}]}]})";
    std::vector<recipe::ConversationRequest> all;
    const recipe::ConvertOptions on, off{.default_thinking = false};
    for (const auto* options : {&on, &off}) {
      all.push_back(*recipe::convert(recipe::Protocol::kChat, *json::parse(kChat), *options));
      all.push_back(
          *recipe::convert(recipe::Protocol::kMessages, *json::parse(kMessages), *options));
      all.push_back(
          *recipe::convert(recipe::Protocol::kResponses, *json::parse(kResponses), *options));
    }
    const char kCustom[] =
        R"({"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"type":"custom","custom":{"name":"f"}},{"type":"function","function":{"name":"g"}}]})";
    for (const auto* options : {&on, &off})
      all.push_back(*recipe::convert(recipe::Protocol::kChat, *json::parse(kCustom), *options));
    return all;
  }();
  return kAll[which % kAll.size()];
}

recipe::ReplyMeta meta() {
  return {.id = "r", .model = "m", .tokens = std::make_shared<const Bytes>()};
}

void check_events(recipe::ReplyStream& reply) {
  for (size_t i = 0; i < reply.events().size(); ++i)
    DEEPMINT_CHECK(json::parse(reply.events().data(i)).has_value());
  reply.events().clear();
}

std::string by_text(const recipe::ConversationRequest& r, std::string_view text, size_t step) {
  recipe::ReplyStream reply(r, meta());
  reply.ready({}, "fp");
  for (size_t i = 0; i < text.size(); i += step) reply.push_text(text.substr(i, step), 0);
  reply.finish(recipe::BackendFinish::kStop);
  check_events(reply);
  return reply.response();
}

void by_ids(const recipe::ConversationRequest& r, std::string_view text, size_t step) {
  recipe::ReplyStream reply(r, meta());
  recipe::MemoryTurnStore store;
  std::vector<TokenId> ids;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    ids.push_back(byte >= 0xF8 ? 256 + byte - 0xF8 : byte);
  }
  for (size_t i = 0; i < ids.size(); i += step) {
    const std::vector<recipe::TokenLogprob> logprobs(step, {-0.5F, {{ids[i], -0.5F}}});
    reply.push_tokens(std::span(ids).subspan(i, std::min(step, ids.size() - i)), logprobs);
    check_events(reply);
  }
  reply.finish(recipe::BackendFinish::kStop);
  check_events(reply);
  DEEPMINT_CHECK(json::parse(reply.response()).has_value());
  DEEPMINT_CHECK(reply.reasoning_tokens() <= reply.completion_tokens());
  reply.remember_calls(store);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  const recipe::ConversationRequest& r = request(data[0]);
  const std::string whole = by_text(r, text, text.size() + 1);
  DEEPMINT_CHECK(json::parse(whole).has_value());
  DEEPMINT_CHECK(whole == by_text(r, text, 1));
  DEEPMINT_CHECK(whole == by_text(r, text, 1 + data[1] % 7));
  by_ids(r, text, 1 + data[1] % 5);
  return 0;
}
