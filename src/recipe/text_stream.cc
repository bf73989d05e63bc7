#include "recipe/text_stream.h"

#include <algorithm>
#include <utility>

namespace deepmint::recipe {

TextStream::TextStream(const Tokenizer& tokenizer, std::vector<std::string> stop_strings,
                       std::vector<TokenId> shown)
    : tokenizer_(&tokenizer),
      shown_(std::move(shown)),
      detokenizer_(tokenizer),
      filter_(std::move(stop_strings)) {}

TextStream::Piece TextStream::push(TokenId id) {
  if (filter_.stopped()) return {{}, true};
  std::string_view text;
  if (std::find(shown_.begin(), shown_.end(), id) != shown_.end()) {
    tail_ = detokenizer_.finish();
    tail_ += tokenizer_->token_bytes(id);
    text = tail_;
  } else {
    text = detokenizer_.push(id);
  }
  decoded_ += text.size();
  const std::string_view passed = filter_.push(text);
  return {passed, filter_.stopped()};
}

TextStream::Piece TextStream::finish() {
  if (filter_.stopped()) return {{}, true};
  // The last bytes of a cut-off character come out as U+FFFD, which may itself complete a stop
  // string.
  const std::string_view text = detokenizer_.finish();
  decoded_ += text.size();
  tail_ = filter_.push(text);
  if (!filter_.stopped()) tail_ += filter_.finish();
  return {tail_, filter_.stopped()};
}

}  // namespace deepmint::recipe
