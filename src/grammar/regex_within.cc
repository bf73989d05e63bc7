// What can be said of long expressions from their parts.
//
// RegexSet::within() where a pattern meets a length: `(\S+\s+){0,99}\S+` of at most 300 characters.
// Far from the length's end it says nothing: whatever has begun as the pattern demands can be
// brought to its end in a few more bytes, and there is room for them.
#include <algorithm>

#include "grammar/regex_ast.h"
#include "grammar/utf8_partial.h"

namespace deepmint::grammar {

namespace {
uint32_t index_of(RegexId id) { return static_cast<uint32_t>(id); }
}  // namespace

// Both are upper bounds, found from the parts; kFar where a part is none that has them.
RegexSet::Extent RegexSet::extent(RegexId a) {
  const auto sum = [](uint64_t x, uint64_t y) {
    return static_cast<uint32_t>(std::min<uint64_t>(x + y, kFar));
  };
  const Node n = node(a);
  if (n.hard) return {};
  if (n.kind == Kind::kEpsilon) return {0, 0};
  if (n.kind == Kind::kBytes) return {1, 1};
  if (const Extent* known = extents_.find(index_of(a))) return *known;
  Extent out;
  switch (n.kind) {
    case Kind::kConcat: {
      // A beginning that ends inside one part goes on to the end of all parts behind it.
      out = {0, 0};
      for (RegexId rest = a;;) {
        const bool last = kind(rest) != Kind::kConcat;
        const Extent part = extent(last ? rest : RegexId{node(rest).a});
        out = {sum(out.shortest, part.shortest), std::max(sum(out.tail, part.shortest), part.tail)};
        if (last) break;
        rest = RegexId{node(rest).b};
      }
      break;
    }
    case Kind::kAlternate:
      out.tail = 0;
      for (uint32_t i = 0; i < n.b; ++i) {
        const Extent part = extent(kids_[n.a + i]);
        out = {std::min(out.shortest, part.shortest), std::max(out.tail, part.tail)};
      }
      break;
    case Kind::kRepeat: {
      const Extent part = extent(RegexId{n.a});
      const uint64_t more = n.min == 0 ? 0 : n.min - 1;
      out = {sum(0, part.shortest * uint64_t{n.min}), sum(part.tail, part.shortest * more)};
      break;
    }
    default:
      break;
  }
  extents_.insert(index_of(a), out);
  return out;
}

// Where in the UTF-8 of a character texts of `a` can end that begin at `partial`, as bits, at
// least; 0 when they may not be UTF-8, or when nothing is known of them.
uint8_t RegexSet::utf8_ends(RegexId a, uint32_t partial) {
  const Node n = node(a);
  if (n.hard) return 0;
  if (n.kind == Kind::kEpsilon) return static_cast<uint8_t>(1u << partial);
  const uint64_t key = (uint64_t{index_of(a)} << 3) | partial;
  if (const uint8_t* known = utf8_ends_.find(key)) return *known;
  const auto from_all = [&](RegexId id, uint8_t starts) {
    uint8_t ends = 0;
    for (uint32_t from = 0; from < kUtf8Partials; ++from) {
      if (((starts >> from) & 1) == 0) continue;
      const uint8_t one = utf8_ends(id, from);
      if (one == 0) return uint8_t{0};
      ends |= one;
    }
    return ends;
  };
  uint8_t out = 0;
  switch (n.kind) {
    case Kind::kBytes:
      for (unsigned byte = 0; byte < 256; ++byte) {
        if (!sets_[n.a].has(byte)) continue;
        const uint8_t to = utf8_next(partial, byte);
        if (to == kNotUtf8) {
          out = 0;
          break;
        }
        out |= static_cast<uint8_t>(1u << to);
      }
      break;
    case Kind::kConcat: {
      out = static_cast<uint8_t>(1u << partial);
      RegexId rest = a;
      for (; kind(rest) == Kind::kConcat && out != 0; rest = RegexId{node(rest).b})
        out = from_all(RegexId{node(rest).a}, out);
      out = from_all(rest, out);
      break;
    }
    case Kind::kAlternate:
      for (uint32_t i = 0; i < n.b; ++i) {
        const uint8_t one = utf8_ends(kids_[n.a + i], partial);
        if (one == 0) {
          out = 0;
          break;
        }
        out |= one;
      }
      break;
    case Kind::kRepeat:
      out = static_cast<uint8_t>(1u << partial);  // as if of any count
      for (uint8_t before = 0; before != out && out != 0;) {
        before = out;
        const uint8_t more = from_all(RegexId{n.a}, out);
        out = more == 0 ? uint8_t{0} : static_cast<uint8_t>(out | more);
      }
      break;
    default:
      break;
  }
  utf8_ends_.insert(key, out);
  return out;
}

// Whether `a` is what is left of a character (`partial`) and min to max characters more.
bool RegexSet::is_length(RegexId a, uint32_t& partial, uint32_t& min, uint32_t& max) {
  RegexId last = a;
  for (int parts = 0; kind(last) == Kind::kConcat; ++parts) {
    if (parts == 4) return false;
    last = RegexId{node(last).b};
  }
  if (kind(last) != Kind::kRepeat) return false;
  if (partial_[0] == none()) {
    const RegexId whole = any_code_point();
    if (exhausted_) return false;
    for (uint32_t p = 1; p < kUtf8Partials; ++p) partial_[p] = derivative(whole, kUtf8LeadOf[p]);
    if (exhausted_) return false;
    partial_[0] = whole;
  }
  if (RegexId{node(last).a} != partial_[0]) return false;
  min = node(last).min;
  max = node(last).max;
  for (partial = 0; partial < kUtf8Partials; ++partial)
    if (a == (partial == 0 ? last : concat(partial_[partial], last))) return true;
  return false;
}

RegexId RegexSet::within_length(RegexId a, uint32_t limit) {
  const Node n = node(a);
  if (n.b != 2) return a;
  for (uint32_t i = 0; i < 2; ++i) {
    const RegexId length = kids_[n.a + i], other = kids_[n.a + 1 - i];
    uint32_t partial = 0, min = 0, max = 0;
    if (node(other).hard || !is_length(length, partial, min, max)) continue;
    // One character at least is no demand where the other part has no empty text.
    if (min > 1 || (min == 1 && (partial != 0 || nullable(other)))) return a;
    // All of its texts are characters, so that the length alone says something about them; a
    // character that an escape has begun (json_string) may take three bytes more than were read.
    if (utf8_ends(other, partial) != 1) return a;
    if (max != kUnbounded && uint64_t{max} < uint64_t{limit} + 3 + extent(other).tail) return a;
    return within(other, limit);
  }
  return a;
}

// Whether behind whatever some text of `a` begins with, a text may be as long as one likes.
bool RegexSet::endless(RegexId a) const {
  while (kind(a) == Kind::kConcat) a = RegexId{node(a).b};
  const Node& n = node(a);
  if (n.hard) return false;
  if (n.kind == Kind::kRepeat) return n.max == kUnbounded;
  if (n.kind != Kind::kAlternate) return false;
  const auto list = kids(n);
  return std::ranges::all_of(list, [&](RegexId kid) { return endless(kid); });
}

// Whether every UTF-8 text begins some text of `a`; false where that is not plain to see.
bool RegexSet::takes_all_text(RegexId a) const {
  const Node& n = node(a);
  if (a == any_text_) return true;
  if (n.kind == Kind::kConcat) return RegexId{n.a} == any_text_ && !n.hard;
  const auto at_least = [&](RegexId id) {  // .{m,}
    const Node& r = node(id);
    return r.kind == Kind::kRepeat && r.a == node(any_text_).a && r.max == kUnbounded;
  };
  if (at_least(a)) return true;
  if (n.kind == Kind::kAlternate) {
    const auto list = kids(n);
    return std::ranges::any_of(list, [&](RegexId kid) { return takes_all_text(kid); });
  }
  if (n.kind != Kind::kIntersect || n.b != 2) return false;
  const auto list = kids(n);
  for (const size_t i : {size_t{0}, size_t{1}})
    if (at_least(list[i]) && endless(list[1 - i]) && takes_all_text(list[1 - i])) return true;
  return false;
}

RegexSet::InString RegexSet::in_string(RegexId a) const {
  const Node& n = node(a);
  if (n.kind != Kind::kConcat || nodes_[n.a].kind != Kind::kJsonString || nodes_[n.a].min != 0)
    return InString::kNo;
  const ByteSet first = nullable(RegexId{n.b}) ? ByteSet::all() : first_bytes(RegexId{n.b}, 4);
  if (first.count() != 1 || !first.has('"')) return InString::kNo;
  return takes_all_text(RegexId{nodes_[n.a].a}) ? InString::kOpen : InString::kInside;
}

}  // namespace deepmint::grammar
