#include "recipe/token_codec.h"

#include <utility>

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

}  // namespace deepmint::recipe
