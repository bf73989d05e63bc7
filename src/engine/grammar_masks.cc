#include "engine/grammar_masks.h"

#include <utility>

#include "core/log.h"
#include "grammar/matcher.h"

namespace deepmint {

namespace {

class GrammarMask final : public TokenMask {
 public:
  GrammarMask(const std::shared_ptr<const grammar::Compiled>& compiled,
              std::optional<TokenId> begins_after)
      : matcher_(compiled),
        begins_after_(begins_after),
        bits_(compiled->vocabulary().mask_words()) {
    if (!begins_after_) return;
    // A reply must not end before its grammar has begun.
    const grammar::Vocabulary& vocabulary = compiled->vocabulary();
    bits_.assign(bits_.size(), 0xffffffffu);
    for (const TokenId id : vocabulary.stop_ids())
      bits_[static_cast<size_t>(id) / 32] &= ~(1u << (id % 32));
  }

  std::span<const uint32_t> allowed() override {
    if (!begins_after_) {
      matcher_.mask(bits_);
      if (!matcher_.status() && !std::exchange(told_, true))
        log().warn("a constrained reply ends: {}", matcher_.status().error().str());
    }
    return bits_;
  }

  void accept(TokenId id) override {
    if (begins_after_) {
      if (id == *begins_after_) begins_after_.reset();
      return;
    }
    matcher_.accept(id);
  }

 private:
  grammar::Matcher matcher_;
  std::optional<TokenId> begins_after_;
  std::vector<uint32_t> bits_;
  bool told_ = false;
};

}  // namespace

Result<std::shared_ptr<const grammar::Vocabulary>> make_vocabulary(const Tokenizer& tokenizer,
                                                                   size_t width,
                                                                   std::vector<TokenId> end_ids) {
  if (end_ids.empty())
    return fail(ErrorCode::kInvalidArgument, "expected a model with a token that ends a reply");
  std::vector<std::string> bytes;
  bytes.reserve(static_cast<size_t>(tokenizer.vocab_size()));
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    const bool control = tokenizer.is_added(id) || tokenizer.is_special(id);
    bytes.emplace_back(control ? std::string_view() : tokenizer.token_bytes(id));
  }
  return grammar::Vocabulary::make(std::move(bytes), width, std::move(end_ids));
}

GrammarMasks::GrammarMasks(std::shared_ptr<const Tokenizer> tokenizer, size_t vocab_size,
                           std::vector<TokenId> end_ids)
    : tokenizer_(std::move(tokenizer)), vocab_size_(vocab_size), end_ids_(std::move(end_ids)) {}

Result<grammar::CompiledCache*> GrammarMasks::cache() {
  const std::lock_guard held(mutex_);
  if (cache_ == nullptr) {
    if (tokenizer_ == nullptr)
      return fail(ErrorCode::kUnsupported, "a constrained reply needs a model with a tokenizer");
    DEEPMINT_TRY(vocabulary, make_vocabulary(*tokenizer_, vocab_size_, end_ids_));
    cache_ = std::make_unique<grammar::CompiledCache>(std::move(vocabulary));
  }
  return cache_.get();
}

Result<std::shared_ptr<TokenMask>> GrammarMasks::mask(const grammar::Spec& spec,
                                                      std::optional<TokenId> begins_after) {
  DEEPMINT_TRY(known, cache());
  DEEPMINT_TRY(compiled, known->get(spec));
  return std::make_shared<GrammarMask>(std::move(compiled), begins_after);
}

Result<std::shared_ptr<TokenMask>> GrammarMasks::mask(
    std::string key, const std::function<Result<grammar::Grammar>()>& build,
    std::optional<TokenId> begins_after) {
  DEEPMINT_TRY(known, cache());
  DEEPMINT_TRY(compiled, known->get(std::move(key), build));
  return std::make_shared<GrammarMask>(std::move(compiled), begins_after);
}

}  // namespace deepmint
