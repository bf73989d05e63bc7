#include "recipe/text_stream.h"

#include <utility>

namespace deepmint::recipe {

TextStream::TextStream(const Tokenizer& tokenizer, std::vector<std::string> stop_strings)
    : detokenizer_(tokenizer), filter_(std::move(stop_strings)) {}

TextStream::Piece TextStream::push(TokenId id) {
  if (filter_.stopped()) return {{}, true};
  const std::string_view text = detokenizer_.push(id);
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
