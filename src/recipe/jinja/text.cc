#include "recipe/jinja/text.h"

#include <algorithm>

namespace deepmint::recipe::jinja {

Origin Text::origin_at(size_t byte) const {
  const auto next = std::upper_bound(cuts_.begin(), cuts_.end(), byte);
  return nth(static_cast<size_t>(next - cuts_.begin()));
}

void Text::append(std::string_view bytes, Origin origin) {
  if (bytes.empty()) return;
  if (bytes_.empty()) {
    first_ = origin;
  } else if (nth(cuts_.size()) != origin) {
    cuts_.push_back(bytes_.size());
  }
  bytes_.append(bytes);
}

void Text::append(const Text& other, size_t begin, size_t count) {
  if (begin >= other.size()) return;
  const size_t end = begin + std::min(count, other.size() - begin);
  const std::string_view all = other.bytes_;
  auto cut = std::upper_bound(other.cuts_.begin(), other.cuts_.end(), begin);
  size_t run = static_cast<size_t>(cut - other.cuts_.begin());
  while (begin < end) {
    const size_t stop = cut == other.cuts_.end() ? end : std::min(*cut++, end);
    append(all.substr(begin, stop - begin), other.nth(run++));
    begin = stop;
  }
}

Text Text::substr(size_t begin, size_t count) const {
  Text out;
  out.append(*this, begin, count);
  return out;
}

}  // namespace deepmint::recipe::jinja
