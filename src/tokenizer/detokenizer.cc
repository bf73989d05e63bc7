#include "core/utf8.h"
#include "tokenizer/tokenizer.h"

namespace deepmint {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Length of the maximal invalid subpart at the start of `s`, which does not start with a whole
// character: a cut-off character is one subpart, any other byte is one of its own.
size_t invalid_length(std::string_view s) {
  for (size_t n = std::min<size_t>(3, s.size()); n > 1; --n)
    if (utf8::incomplete_tail(s.substr(0, n)) == n) return n;
  return 1;
}

}  // namespace

std::string_view Detokenizer::push(TokenId id) {
  ready_.clear();
  if (skip_special_ && tokenizer_->is_special(id)) return {};
  const std::string_view bytes = tokenizer_->token_bytes(id);
  if (pending_.empty() && utf8::is_valid(bytes)) return bytes;

  pending_ += bytes;
  const size_t kept = utf8::incomplete_tail(pending_);
  std::string_view body(pending_.data(), pending_.size() - kept);
  while (!body.empty()) {
    const size_t bad = utf8::find_invalid(body);
    ready_ += body.substr(0, bad);
    if (bad == utf8::npos) break;
    ready_ += kReplacement;
    body.remove_prefix(bad);
    body.remove_prefix(invalid_length(body));
  }
  pending_.erase(0, pending_.size() - kept);
  return ready_;
}

std::string_view Detokenizer::finish() {
  ready_.clear();
  if (!pending_.empty()) ready_ += kReplacement;
  pending_.clear();
  return ready_;
}

void Detokenizer::reset() {
  pending_.clear();
  ready_.clear();
}

}  // namespace deepmint
