// From a specification to what the engine samples with: grammars of one model as TokenMasks.
//
//   auto grammars = std::make_shared<GrammarMasks>(tokenizer, vocab_size, end_ids);
//   DEEPMINT_TRY(mask, grammars->mask({grammar::SpecKind::kRegex, "[0-9]+"}));
//   request.mask = std::move(mask);          // one per request and choice
//
// Compiling happens on the caller's thread, never on the engine's; what was compiled is kept
// (grammar/cache.h). Any thread.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "deepmint/engine.h"
#include "deepmint/result.h"
#include "grammar/cache.h"
#include "tokenizer/tokenizer.h"

namespace deepmint {

// The bytes of every token that text can be made of; added tokens have none. Errors:
// kInvalidArgument without an id that ends a reply.
Result<std::shared_ptr<const grammar::Vocabulary>> make_vocabulary(const Tokenizer& tokenizer,
                                                                   size_t width,
                                                                   std::vector<TokenId> end_ids);

class GrammarMasks {
 public:
  // The vocabulary is made when it is first needed (0.2 s for 129,280 tokens).
  GrammarMasks(std::shared_ptr<const Tokenizer> tokenizer, size_t vocab_size,
               std::vector<TokenId> end_ids);

  // A mask at the beginning of its grammar. With `begins_after` everything but the end of the reply
  // is allowed up to and including that token (the end of the thinking block), and the grammar
  // begins behind it.
  Result<std::shared_ptr<TokenMask>> mask(const grammar::Spec& spec,
                                          std::optional<TokenId> begins_after = {});
  Result<std::shared_ptr<TokenMask>> mask(std::string key,
                                          const std::function<Result<grammar::Grammar>()>& build,
                                          std::optional<TokenId> begins_after = {});

 private:
  Result<grammar::CompiledCache*> cache();

  const std::shared_ptr<const Tokenizer> tokenizer_;
  const size_t vocab_size_;
  const std::vector<TokenId> end_ids_;
  std::mutex mutex_;
  std::unique_ptr<grammar::CompiledCache> cache_;
};

}  // namespace deepmint
