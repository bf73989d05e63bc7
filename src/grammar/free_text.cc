#include "grammar/free_text.h"

#include <array>
#include <utility>

namespace deepmint::grammar {

FreeText::FreeText(GrammarBuilder& builder, std::vector<std::string> marks)
    : g_(builder), marks_(std::move(marks)) {
  RegexSet& r = g_.regexes();
  text_ = r.star(r.any_code_point());
  std::vector<RegexId> all;
  all.reserve(marks_.size());
  for (const std::string& mark : marks_) all.push_back(r.literal(mark));
  const RegexId inside = r.concat(r.any(), r.alternate(all));  // ends in a mark
  without_ = r.intersect(text_, r.complement(r.concat(inside, r.any())));
  too_late_ = r.concat(std::array{inside, r.bytes(~ByteSet()), r.any()});
}

RegexId FreeText::up_to(size_t index, std::string_view rest) {
  RegexSet& r = g_.regexes();
  const RegexId first =
      r.intersect(r.concat(text_, r.literal(marks_[index])), r.complement(too_late_));
  return r.concat(first, r.literal(rest));
}

Symbol FreeText::interrupted(Symbol piece, const Pieces& pieces) {
  const Symbol end = g_.terminal(without_);
  if (pieces.at_most_one) return pieces.at_least_one ? piece : g_.choice({end, piece});
  return g_.sequence({g_.repeat(piece, pieces.at_least_one ? 1 : 0, kUnbounded), end});
}

}  // namespace deepmint::grammar
