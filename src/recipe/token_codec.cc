#include "recipe/token_codec.h"

#include <utility>

#include "recipe/conversation.h"
#include "recipe/prompt_text.h"
#include "tokenizer/tokenizer.h"

namespace deepmint::recipe {
namespace {

class Adapter final : public TokenCodec {
 public:
  explicit Adapter(std::shared_ptr<const Tokenizer> tokenizer) : tokenizer_(std::move(tokenizer)) {}
  std::vector<TokenId> encode(std::span<const Segment> segments) const override {
    return tokenizer_->encode(segments);
  }
  std::string_view token_bytes(TokenId id) const override { return tokenizer_->token_bytes(id); }
  bool is_control(TokenId id) const override { return tokenizer_->is_added(id); }

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
};

}  // namespace

std::shared_ptr<const TokenCodec> make_token_codec(std::shared_ptr<const Tokenizer> tokenizer) {
  return std::make_shared<Adapter>(std::move(tokenizer));
}

Status check_tokenizer(const Tokenizer& tokenizer, ModelVersion version) {
  const auto need = [&](std::initializer_list<std::string_view> tokens) -> Status {
    for (const std::string_view token : tokens)
      if (!tokenizer.find_added(token))
        return fail(ErrorCode::kInvalidArgument,
                    "expected a DeepSeek tokenizer, found none of its token " + std::string(token));
    return {};
  };
  DEEPMINT_CHECK_OK(
      need({kBos, kEos, kUserToken, kAssistantToken, kThinkOpen, kThinkClose, kDsml}));
  return version == ModelVersion::kV4 ? Status() : need({kSystemToken, kReminderToken, kImageMark});
}

}  // namespace deepmint::recipe
