// The request body's conversion on arbitrary bytes: it ends, and what it lets through keeps every
// published limit.
#include "server/api/chat_request.h"

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "core/utf8.h"

using namespace deepmint;

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void check(const Error& error) {
  require(error.code == ErrorCode::kInvalidArgument || error.code == ErrorCode::kUnsupported ||
          error.code == ErrorCode::kTooLarge);
  const std::string line = error.str();
  require(!line.empty() && line.size() < 600);
  require(line.find('\n') == std::string::npos);
}

void check(const ChatRequest& r) {
  require(r.conversation.has_value() == r.messages.empty());
  for (const auto& message : r.messages) {
    require(message.role == "system" || message.role == "user" || message.role == "assistant" ||
            message.role == "tool");
    require(utf8::is_valid(message.content));
  }
  require(r.n >= 1 && r.n <= kMaxChoices);
  require(!r.max_tokens || *r.max_tokens >= 1);
  require(r.stop.size() <= kMaxStopStrings);
  for (const std::string& stop : r.stop)
    require(!stop.empty() && stop.size() <= kMaxStopBytes && utf8::is_valid(stop));
  require(!r.include_usage || r.stream);
  require(r.sampling.top_logprobs == (r.logprobs ? r.top_logprobs : -1));
  require(r.top_logprobs >= 0 && r.top_logprobs <= kMaxTopLogprobs);
  const SamplingParams& s = r.sampling;
  require(s.temperature == 0 || (s.temperature >= 1e-6f && s.temperature <= 2));
  require(s.top_p > 0 && s.top_p <= 1);
  require(s.min_p >= 0 && s.min_p <= 1);
  require(s.repetition_penalty >= 0.01f && s.repetition_penalty <= 100);
  require(std::fabs(s.frequency_penalty) <= 2 && std::fabs(s.presence_penalty) <= 2);
  require(s.logit_bias.size() <= kMaxLogitBias);
  for (size_t i = 0; i < s.logit_bias.size(); ++i) {
    require(s.logit_bias[i].first >= 0 && std::fabs(s.logit_bias[i].second) <= 100);
    require(i == 0 || s.logit_bias[i - 1].first < s.logit_bias[i].first);
  }
  require(s.min_tokens >= 0);
  require(!r.tail_keep_tokens || *r.tail_keep_tokens >= 1);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // As a dense model reads it, and as DeepSeek does.
  for (const auto deepseek : {std::optional<recipe::ModelVersion>(),
                              std::optional<recipe::ModelVersion>(recipe::ModelVersion::kV41)}) {
    const auto request =
        parse_chat_request({reinterpret_cast<const char*>(data), size}, {}, deepseek);
    if (request)
      check(*request);
    else
      check(request.error());
  }
  return 0;
}
