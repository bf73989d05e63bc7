#include "grammar/regex_ast.h"

#include <algorithm>
#include <array>
#include <bit>
#include <random>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "core/check.h"

namespace deepmint::grammar {

namespace {

// Common prefixes of alternatives are shared down to this many bytes; past it they are kept side by
// side, which is only slower.
constexpr int kMaxFactorDepth = 256;
// A caller must not be able to build two expressions with one hash.
uint64_t hash_seed() {
  static const uint64_t seed = (uint64_t{std::random_device{}()} << 32) | std::random_device{}();
  return seed;
}

uint32_t index_of(RegexId id) { return static_cast<uint32_t>(id); }
RegexId id_of(size_t index) { return RegexId{static_cast<uint32_t>(index)}; }

uint32_t saturated(uint64_t parts) {
  return static_cast<uint32_t>(std::min<uint64_t>(parts, uint64_t{1} << 31));
}

uint32_t less_one(uint32_t count) { return count == kUnbounded || count == 0 ? count : count - 1; }

}  // namespace

RegexSet::RegexSet(const Limits& limits) : limits_(limits) {
  partial_.fill(none());
  nodes_.reserve(64);
  add({.kind = Kind::kNone});
  add({.kind = Kind::kEpsilon, .nullable = true});
  nodes_.emplace_back();  // any(): refers to the node after it
  const RegexId all = bytes(ByteSet::all());
  Node any;
  any.kind = Kind::kRepeat;
  any.nullable = true;
  any.a = index_of(all);
  any.max = kUnbounded;
  nodes_[2] = any;
  const RegexId placed = add(any);  // appended once to compute its hash, then moved to id 2
  nodes_[2] = nodes_[index_of(placed)];
  nodes_.pop_back();
  index_all(64);
  any_text_ = star(any_code_point());
}

// Makes the index anew, with so many slots.
void RegexSet::index_all(size_t slots) {
  index_.assign(slots, kNoNode);
  for (size_t i = 0; i < nodes_.size(); ++i) {
    size_t at = nodes_[i].hash.low & (slots - 1);
    while (index_[at] != kNoNode) at = (at + 1) & (slots - 1);
    index_[at] = static_cast<uint32_t>(i);
  }
}

// Takes a node out of the index; those behind it that were pushed on move up.
void RegexSet::leave_index(size_t node) {
  const size_t slots = index_.size() - 1;
  size_t gap = nodes_[node].hash.low & slots;
  while (index_[gap] != node) gap = (gap + 1) & slots;
  for (size_t at = (gap + 1) & slots; index_[at] != kNoNode; at = (at + 1) & slots) {
    const size_t wanted = nodes_[index_[at]].hash.low & slots;
    if (((at - wanted) & slots) < ((at - gap) & slots)) continue;  // wants a place behind the gap
    index_[gap] = index_[at];
    gap = at;
  }
  index_[gap] = kNoNode;
}

RegexId RegexSet::add(Node n, std::span<const RegexId> list) {
  if (exhausted_) return none();
  std::array<uint64_t, 8> words{static_cast<uint64_t>(n.kind), n.min, n.max};
  size_t used = 3;
  std::vector<Hash128> hashes;
  std::span<const std::byte> input;
  if (n.kind == Kind::kAlternate || n.kind == Kind::kIntersect) {
    hashes.reserve(list.size() + 1);
    hashes.push_back({words[0], list.size()});
    for (const RegexId kid : list) hashes.push_back(hash(kid));
    std::sort(hashes.begin() + 1, hashes.end(), [](const Hash128& x, const Hash128& y) {
      return std::tie(x.low, x.high) < std::tie(y.low, y.high);
    });
    input = std::as_bytes(std::span(hashes));
  } else {
    if (n.kind == Kind::kBytes) {
      for (const uint64_t word : sets_[n.a].words()) words[used++] = word;
    } else if (n.kind == Kind::kDecimalMultiple) {
      words[used++] = n.a;
    } else if (n.kind >= Kind::kConcat) {
      const Hash128 a = nodes_[n.a].hash;
      words[used++] = a.low;
      words[used++] = a.high;
      if (n.kind == Kind::kConcat) {
        const Hash128 b = nodes_[n.b].hash;
        words[used++] = b.low;
        words[used++] = b.high;
      }
    }
    input = std::as_bytes(std::span(words.data(), used));
  }
  n.hash = xxh3_128(input, hash_seed());
  if (nodes_.size() * 3 >= index_.size() * 2)
    index_all(std::max<size_t>(64, std::bit_ceil(nodes_.size() * 2)));
  size_t slot = n.hash.low & (index_.size() - 1);
  for (; index_[slot] != kNoNode; slot = (slot + 1) & (index_.size() - 1))
    if (nodes_[index_[slot]].hash == n.hash) return RegexId{index_[slot]};
  if (nodes_.size() >= limits_.max_nodes) {
    exhausted_ = true;
    return none();
  }
  index_[slot] = static_cast<uint32_t>(nodes_.size());
  if (!list.empty()) {
    n.a = static_cast<uint32_t>(kids_.size());
    n.b = static_cast<uint32_t>(list.size());
    kids_.insert(kids_.end(), list.begin(), list.end());
  }
  nodes_.push_back(n);
  return id_of(nodes_.size() - 1);
}

RegexId RegexSet::bytes(const ByteSet& set) {
  if (set.empty()) return none();
  sets_.push_back(set);
  const size_t before = nodes_.size();
  const RegexId id = add({.kind = Kind::kBytes, .a = static_cast<uint32_t>(sets_.size() - 1)});
  if (nodes_.size() == before) sets_.pop_back();  // known already
  return id;
}

RegexId RegexSet::literal(std::string_view text) {
  RegexId out = epsilon();
  for (size_t pos = text.size(); pos-- > 0;)
    out = concat(bytes(ByteSet::one(static_cast<uint8_t>(text[pos]))), out);
  return out;
}

RegexId RegexSet::concat(RegexId a, RegexId b) {
  if (a == none() || b == none()) return none();
  if (a == epsilon()) return b;
  if (b == epsilon()) return a;
  if (kind(a) == Kind::kConcat) {  // right-nested: one form per language of this shape
    std::vector<RegexId> heads;
    RegexId rest = a;
    while (kind(rest) == Kind::kConcat) {
      heads.push_back(RegexId{node(rest).a});
      rest = RegexId{node(rest).b};
    }
    RegexId out = concat(rest, b);
    for (size_t pos = heads.size(); pos-- > 0;) out = concat(heads[pos], out);
    return out;
  }
  if (a == any() && (b == any() || (kind(b) == Kind::kConcat && RegexId{node(b).a} == any())))
    return b;
  Node n;
  n.kind = Kind::kConcat;
  n.nullable = nullable(a) && nullable(b);
  n.hard = node(a).hard || node(b).hard;
  n.counted = node(a).counted || node(b).counted;
  n.front = saturated(uint64_t{1} + node(a).front + (nullable(a) ? node(b).front : 0));
  n.a = index_of(a);
  n.b = index_of(b);
  return add(n);
}

RegexId RegexSet::concat(std::span<const RegexId> parts) {
  RegexId out = epsilon();
  for (size_t pos = parts.size(); pos-- > 0;) out = concat(parts[pos], out);
  return out;
}

RegexId RegexSet::alternate(RegexId a, RegexId b) {
  if (a == b || b == none()) return a;
  if (a == none()) return b;
  return alternate_at(std::array{a, b}, 0);
}

RegexId RegexSet::alternate(std::span<const RegexId> parts) { return alternate_at(parts, 0); }

RegexId RegexSet::alternate_at(std::span<const RegexId> parts, int depth) {
  work_ += parts.size();
  // Flatten; take single bytes, the empty string and the empty language apart.
  std::vector<RegexId> rest;
  ByteSet singles;
  bool has_epsilon = false, has_complement = false;
  const auto take = [&](RegexId id) {
    const Node& n = node(id);
    if (n.kind == Kind::kNone) return;
    if (n.kind == Kind::kEpsilon)
      has_epsilon = true;
    else if (n.kind == Kind::kBytes)
      singles = singles | sets_[n.a];
    else
      rest.push_back(id);
    has_complement |= n.kind == Kind::kComplement;
  };
  for (const RegexId id : parts) {
    if (id == any()) return any();
    if (kind(id) == Kind::kAlternate)
      for (const RegexId kid : kids(node(id))) take(kid);
    else
      take(id);
  }
  std::sort(rest.begin(), rest.end());
  rest.erase(std::unique(rest.begin(), rest.end()), rest.end());
  // What is text is in all text.
  if (rest.size() > 1 && std::binary_search(rest.begin(), rest.end(), any_text_))
    std::erase_if(rest, [&](RegexId id) { return id != any_text_ && is_text(id); });
  if (has_complement)
    for (const RegexId id : rest)
      if (kind(id) == Kind::kComplement &&
          std::binary_search(rest.begin(), rest.end(), RegexId{node(id).a}))
        return any();

  // X t | X u = X (t | u) for a byte set X; then X t | Y t = (X | Y) t.
  struct Headed {
    uint32_t set;  // index in sets_, or of a body
    RegexId tail;
    uint32_t min = 1, max = 1;
  };
  std::vector<Headed> headed, repeats;
  std::vector<RegexId> out;
  for (const RegexId id : rest) {
    const Node& n = node(id);
    const Node* head = n.kind == Kind::kConcat ? &nodes_[n.a] : &n;
    const RegexId tail = n.kind == Kind::kConcat ? RegexId{n.b} : epsilon();
    if (head->kind == Kind::kBytes)
      headed.push_back({head->a, tail});
    else if (head->kind == Kind::kRepeat)
      repeats.push_back({head->a, tail, head->min, head->max});
    else
      out.push_back(id);
  }
  if (headed.size() > 1) {
    std::sort(headed.begin(), headed.end(), [](const Headed& x, const Headed& y) {
      return std::tie(x.set, x.tail) < std::tie(y.set, y.tail);
    });
    if (depth < kMaxFactorDepth) {
      size_t kept = 0;
      for (size_t begin = 0; begin < headed.size();) {
        size_t end = begin + 1;
        while (end < headed.size() && headed[end].set == headed[begin].set) ++end;
        RegexId tail = headed[begin].tail;
        if (end - begin > 1) {
          std::vector<RegexId> tails;
          for (size_t i = begin; i < end; ++i) tails.push_back(headed[i].tail);
          tail = alternate_at(tails, depth + 1);
        }
        headed[kept++] = {headed[begin].set, tail};
        begin = end;
      }
      headed.resize(kept);
    }
    std::sort(headed.begin(), headed.end(), [](const Headed& x, const Headed& y) {
      return std::tie(x.tail, x.set) < std::tie(y.tail, y.set);
    });
  }
  for (size_t begin = 0; begin < headed.size();) {
    ByteSet set = sets_[headed[begin].set];
    size_t end = begin + 1;
    for (; end < headed.size() && headed[end].tail == headed[begin].tail; ++end)
      set = set | sets_[headed[end].set];
    const RegexId tail = headed[begin].tail;
    if (tail == epsilon())
      singles = singles | set;
    else
      out.push_back(concat(bytes(set), tail));
    begin = end;
  }
  // a{1,3} t | a{2,7} t = a{1,7} t.
  if (repeats.size() > 1)
    std::sort(repeats.begin(), repeats.end(), [](const Headed& x, const Headed& y) {
      return std::tie(x.set, x.tail, x.min, x.max) < std::tie(y.set, y.tail, y.min, y.max);
    });
  for (size_t begin = 0; begin < repeats.size();) {
    Headed merged = repeats[begin];
    size_t end = begin + 1;
    for (; end < repeats.size() && repeats[end].set == merged.set &&
           repeats[end].tail == merged.tail &&
           (merged.max == kUnbounded || repeats[end].min <= merged.max + 1);
         ++end)
      merged.max = std::max(merged.max, repeats[end].max);
    if (has_epsilon && merged.min == 1 && merged.tail == epsilon()) merged.min = 0;
    out.push_back(concat(repeat(RegexId{merged.set}, merged.min, merged.max), merged.tail));
    begin = end;
  }
  if (!singles.empty()) out.push_back(bytes(singles));
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  if (has_epsilon && std::none_of(out.begin(), out.end(), [&](RegexId id) { return nullable(id); }))
    out.insert(out.begin(), epsilon());
  if (out.empty()) return none();
  if (out.size() == 1) return out[0];
  if (out.size() > limits_.max_width) {
    exhausted_ = true;
    return none();
  }
  Node n;
  n.kind = Kind::kAlternate;
  for (const RegexId id : out) {
    n.nullable |= nullable(id);
    n.hard |= node(id).hard;
    n.counted |= node(id).counted;
    n.front = saturated(uint64_t{n.front} + node(id).front);
  }
  return add(n, out);
}

RegexId RegexSet::repeat(RegexId a, uint32_t min, uint32_t max) {
  if (a == none()) return min == 0 ? epsilon() : none();
  if (max == 0 || a == epsilon()) return epsilon();
  if (nullable(a)) min = 0;
  if (min == 1 && max == 1) return a;
  if (kind(a) == Kind::kRepeat) {
    const Node body = node(a);
    // (x*){m,n} = x*; (x{0,k} or x{1,k})* = x*; (x{1,k})+ = x+.
    if (body.max == kUnbounded && body.min == 0) return a;
    if (body.min <= 1 && max == kUnbounded && min <= 1)
      return repeat(RegexId{body.a}, std::min(min, body.min), kUnbounded);
  }
  Node n;
  n.kind = Kind::kRepeat;
  n.nullable = min == 0;
  n.hard = node(a).hard;
  n.front = saturated(uint64_t{1} + node(a).front);
  n.counted = node(a).counted || min > 1 || (max > 1 && max != kUnbounded);
  n.a = index_of(a);
  n.min = min;
  n.max = max;
  return add(n);
}

RegexId RegexSet::intersect(RegexId a, RegexId b) {
  const RegexId parts[] = {a, b};
  return intersect(parts);
}

RegexId RegexSet::intersect(std::span<const RegexId> parts) {
  std::vector<RegexId> out;
  ByteSet singles = ByteSet::all();
  bool has_singles = false, has_epsilon = false;
  const auto take = [&](RegexId id) {
    if (id == any()) return;
    if (kind(id) == Kind::kBytes) {
      singles = singles & sets_[node(id).a];
      has_singles = true;
    } else if (id == epsilon()) {
      has_epsilon = true;
    } else {
      out.push_back(id);
    }
  };
  for (const RegexId id : parts) {
    if (id == none()) return none();
    if (kind(id) == Kind::kIntersect)
      for (const RegexId kid : kids(node(id))) take(kid);
    else
      take(id);
  }
  if (has_epsilon) {
    const bool held = !has_singles &&
                      std::all_of(out.begin(), out.end(), [&](RegexId id) { return nullable(id); });
    return held ? epsilon() : none();
  }
  if (has_singles) {
    if (singles.empty()) return none();
    out.push_back(bytes(singles));
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  if (out.size() > 1 && std::binary_search(out.begin(), out.end(), any_text_) &&
      std::any_of(out.begin(), out.end(),
                  [&](RegexId id) { return id != any_text_ && is_text(id); }))
    std::erase(out, any_text_);
  if (out.empty()) return any();
  if (out.size() == 1) return out[0];
  for (const RegexId id : out)
    if (kind(id) == Kind::kComplement &&
        std::binary_search(out.begin(), out.end(), RegexId{node(id).a}))
      return none();
  if (out.size() > limits_.max_width) {
    exhausted_ = true;
    return none();
  }
  Node n;
  n.kind = Kind::kIntersect;
  n.nullable = true;
  n.hard = true;
  for (const RegexId id : out) {
    n.nullable &= nullable(id);
    n.counted |= node(id).counted;
    n.front = saturated(uint64_t{n.front} + node(id).front);
  }
  return add(n, out);
}

RegexId RegexSet::complement(RegexId a) {
  if (a == none()) return any();
  if (a == any()) return none();
  if (kind(a) == Kind::kComplement) return RegexId{node(a).a};
  Node n;
  n.kind = Kind::kComplement;
  n.nullable = !nullable(a);
  n.hard = true;
  n.front = saturated(uint64_t{1} + node(a).front);
  n.a = index_of(a);
  return add(n);
}

RegexId RegexSet::without_epsilon(RegexId a) {
  if (!nullable(a)) return a;
  const Node n = node(a);
  switch (n.kind) {
    case Kind::kConcat: {  // both parts hold the empty string
      std::vector<RegexId> heads;
      RegexId rest = a;
      while (kind(rest) == Kind::kConcat) {
        heads.push_back(RegexId{node(rest).a});
        rest = RegexId{node(rest).b};
      }
      RegexId out = without_epsilon(rest);
      for (size_t pos = heads.size(); pos-- > 0;) {
        out = alternate(concat(without_epsilon(heads[pos]), rest), out);
        rest = concat(heads[pos], rest);
      }
      return out;
    }
    case Kind::kAlternate: {
      const auto list = kids(n);
      std::vector<RegexId> parts(list.begin(), list.end());
      for (RegexId& part : parts) part = without_epsilon(part);
      return alternate(parts);
    }
    case Kind::kRepeat:
      return repeat(without_epsilon(RegexId{n.a}), 1, n.max);
    case Kind::kIntersect: {
      const auto list = kids(n);
      std::vector<RegexId> parts(list.begin(), list.end());
      parts[0] = without_epsilon(parts[0]);
      return intersect(parts);
    }
    case Kind::kComplement:
      return complement(alternate(RegexId{n.a}, epsilon()));
    default:
      return none();  // the empty string itself
  }
}

// A text of up to `limit` bytes goes through a repetition's body at most `limit` times (passes that
// take no byte do not count), so it cannot tell larger counts apart. What holds for the parts, an
// empty language included (its empty beginning is one that is missing), holds for what is made of
// them; an intersection alone is not the same with other parts, see within_length().
RegexId RegexSet::within(RegexId a, uint32_t limit) {
  const Node n = node(a);
  if (!n.counted) return a;
  const uint64_t key = (uint64_t{limit} << 32) | index_of(a);
  if (const RegexId* known = within_.find(key)) return *known;
  RegexId out = a;
  switch (n.kind) {
    case Kind::kConcat: {
      std::vector<RegexId> parts;
      RegexId rest = a;
      for (; kind(rest) == Kind::kConcat && node(rest).counted; rest = RegexId{node(rest).b})
        parts.push_back(RegexId{node(rest).a});
      parts.push_back(rest);
      for (RegexId& part : parts) part = within(part, limit);
      out = concat(parts);
      break;
    }
    case Kind::kAlternate: {
      const auto list = kids(n);
      std::vector<RegexId> parts(list.begin(), list.end());
      for (RegexId& part : parts) part = within(part, limit);
      out = alternate(parts);
      break;
    }
    case Kind::kRepeat:
      out = repeat(within(RegexId{n.a}, limit), std::min(n.min, limit + 1),
                   n.max > limit ? kUnbounded : n.max);
      break;
    case Kind::kJsonString:
      out = json_string(within(RegexId{n.a}, limit), n.min, n.max);
      break;
    case Kind::kIntersect:
      out = within_length(a, limit);
      break;
    default:
      break;
  }
  if (!exhausted_) within_.insert(key, out);
  return out;
}

RegexId RegexSet::derivative(RegexId a, uint8_t byte) {
  if (exhausted_) return none();
  return derive(a, byte);
}

RegexId RegexSet::derive(RegexId a, uint8_t byte) {
  ++work_;
  const Node n = node(a);
  switch (n.kind) {
    case Kind::kNone:
    case Kind::kEpsilon:
      return none();
    case Kind::kBytes:
      return sets_[n.a].has(byte) ? epsilon() : none();
    case Kind::kConcat: {
      const Node& head = nodes_[n.a];
      if (head.kind == Kind::kBytes) return sets_[head.a].has(byte) ? RegexId{n.b} : none();
      // Of many keys that may follow, most are told apart by one byte: nothing to remember.
      if (head.kind == Kind::kJsonString && leaves_json_string(head, byte)) return none();
      break;
    }
    case Kind::kJsonString:
      if (leaves_json_string(n, byte)) return none();
      break;
    default:
      break;
  }
  const uint64_t key = (uint64_t{index_of(a)} << 8) | byte;
  if (const RegexId* known = derivatives_.find(key)) return *known;
  RegexId out = none();
  switch (n.kind) {
    case Kind::kConcat: {
      std::vector<RegexId> parts;
      for (RegexId rest = a;;) {
        if (kind(rest) != Kind::kConcat) {
          parts.push_back(derive(rest, byte));
          break;
        }
        const RegexId head{node(rest).a}, tail{node(rest).b};
        parts.push_back(concat(derive(head, byte), tail));
        if (!nullable(head)) break;
        rest = tail;
      }
      out = parts.size() == 1 ? parts[0] : alternate(parts);
      break;
    }
    case Kind::kAlternate:
    case Kind::kIntersect: {
      const auto list = kids(n);
      std::vector<RegexId> parts(list.begin(), list.end());
      for (RegexId& part : parts) {
        part = derive(part, byte);
        if (part == none() && n.kind == Kind::kIntersect) break;
      }
      out = n.kind == Kind::kAlternate                                     ? alternate(parts)
            : std::find(parts.begin(), parts.end(), none()) != parts.end() ? none()
                                                                           : intersect(parts);
      break;
    }
    case Kind::kRepeat: {
      const RegexId body{n.a};
      out = concat(derive(body, byte), repeat(body, less_one(n.min), less_one(n.max)));
      break;
    }
    case Kind::kComplement:
      out = complement(derive(RegexId{n.a}, byte));
      break;
    case Kind::kJsonString:
      out = derive_json_string(n, byte);
      break;
    case Kind::kDecimalMultiple:
      out = derive_decimal(n, byte);
      break;
    case Kind::kHostName:
      out = derive_host(n, byte);
      break;
    default:
      break;
  }
  if (exhausted_) return none();
  derivatives_.insert(key, out);
  return out;
}

bool RegexSet::matches(RegexId a, std::string_view text) {
  for (const char c : text) {
    a = derivative(a, static_cast<uint8_t>(c));
    if (a == none()) return false;
  }
  return nullable(a);
}

ByteSet RegexSet::first_bytes(RegexId a, int depth) const {
  const Node& n = node(a);
  if (n.kind == Kind::kBytes) return sets_[n.a];
  if (n.kind == Kind::kNone || n.kind == Kind::kEpsilon) return {};
  if (depth > 0) {
    if (n.kind == Kind::kRepeat) return first_bytes(RegexId{n.a}, depth - 1);
    if (n.kind == Kind::kConcat && !nullable(RegexId{n.a}))
      return first_bytes(RegexId{n.a}, depth - 1);
    if (n.kind == Kind::kIntersect) {
      ByteSet out = ByteSet::all();
      for (const RegexId kid : kids(n)) out = out & first_bytes(kid, depth - 1);
      return out;
    }
    if (n.kind == Kind::kAlternate && n.b <= 64) {
      ByteSet out;
      for (const RegexId kid : kids(n)) out = out | first_bytes(kid, depth - 1);
      return out;
    }
  }
  return ByteSet::all();
}

int RegexSet::byte_classes(std::span<const RegexId> roots,
                           std::array<uint8_t, 256>& class_of) const {
  std::vector<uint8_t> seen(nodes_.size(), 0);
  std::vector<RegexId> stack(roots.begin(), roots.end());
  class_of.fill(0);
  int n_classes = 1;
  const auto push = [&](uint32_t index) {
    if (!seen[index]) {
      seen[index] = 1;
      stack.push_back(RegexId{index});
    }
  };
  const auto split = [&](const ByteSet& set) {  // every class that the set cuts
    if (n_classes == 256) return;
    std::array<int, 256> inside, outside;
    inside.fill(-1);
    outside.fill(-1);
    std::array<uint8_t, 256> next{};
    int count = 0;
    for (unsigned b = 0; b < 256; ++b) {
      auto& slot = (set.has(b) ? inside : outside)[class_of[b]];
      if (slot < 0) slot = count++;
      next[b] = static_cast<uint8_t>(slot);
    }
    class_of = next;
    n_classes = count;
  };
  bool has_json = false, has_decimal = false, has_host = false;
  while (!stack.empty()) {
    const Node& n = node(stack.back());
    stack.pop_back();
    switch (n.kind) {
      case Kind::kBytes:
        split(sets_[n.a]);
        break;
      case Kind::kConcat:
        push(n.a);
        push(n.b);
        break;
      case Kind::kAlternate:
      case Kind::kIntersect:
        for (const RegexId kid : kids(n)) push(index_of(kid));
        break;
      case Kind::kJsonString:
        has_json = true;
        push(n.a);
        break;
      case Kind::kDecimalMultiple:
        has_decimal = true;
        break;
      case Kind::kHostName:
        has_host = true;
        break;
      case Kind::kRepeat:
      case Kind::kComplement:
        push(n.a);
        break;
      default:
        break;
    }
  }
  if (has_json) {
    split(ByteSet::range(0, 0x1f));
    for (const char c : std::string_view("\"\\/nrtu0123456789abcdef"))
      split(ByteSet::one(static_cast<uint8_t>(c)));
    for (const char c : std::string_view("ABCDEF")) split(ByteSet::one(static_cast<uint8_t>(c)));
  }
  if (has_host) {
    split(ByteSet::one('-'));
    split(ByteSet::one('.'));
    split(ByteSet::range('A', 'Z'));
    for (unsigned byte = '0'; byte <= '9'; ++byte) split(ByteSet::one(byte));
    for (unsigned byte = 'a'; byte <= 'z'; ++byte) split(ByteSet::one(byte));
  }
  if (has_decimal) {
    split(ByteSet::one('.'));
    for (unsigned digit = '0'; digit <= '9'; ++digit) split(ByteSet::one(digit));
  }
  return n_classes;
}

std::vector<uint8_t> RegexSet::hard_inside() const {
  std::vector<uint8_t> out(nodes_.size());  // parts come before what is made of them
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& n = nodes_[i];
    uint8_t hard = n.hard;
    if (n.kind == Kind::kConcat) hard |= out[n.a] | out[n.b];
    if (n.kind == Kind::kRepeat || n.kind == Kind::kJsonString) hard |= out[n.a];
    if (n.kind == Kind::kAlternate)
      for (const RegexId kid : kids(n)) hard |= out[index_of(kid)];
    out[i] = hard;
  }
  return out;
}

size_t RegexSet::weight(RegexId a, size_t limit) const {
  std::unordered_map<uint32_t, bool> seen{{index_of(a), true}};
  std::vector<RegexId> stack{a};
  const auto push = [&](uint32_t index) {
    if (seen.emplace(index, true).second) stack.push_back(RegexId{index});
  };
  while (!stack.empty() && seen.size() < limit) {
    const Node& n = node(stack.back());
    stack.pop_back();
    if (n.kind == Kind::kConcat) push(n.b);
    if (n.kind == Kind::kConcat || n.kind == Kind::kRepeat || n.kind == Kind::kComplement ||
        n.kind == Kind::kJsonString)
      push(n.a);
    if (n.kind == Kind::kAlternate || n.kind == Kind::kIntersect)
      for (const RegexId kid : kids(n)) push(index_of(kid));
  }
  return std::min(seen.size(), limit);
}

void RegexSet::reset_to(const Mark& mark) {
  for (size_t i = mark.nodes; i < nodes_.size(); ++i) leave_index(i);
  nodes_.resize(mark.nodes);
  kids_.resize(mark.kids);
  sets_.resize(mark.sets);
  forget_answers();
  exhausted_ = false;
}

void RegexSet::forget_answers() {
  derivatives_.clear();
  empty_.clear();
  within_.clear();
  escapes_.clear();
  lines_.clear();
  extents_.clear();
  utf8_ends_.clear();
  partial_.fill(none());
}

// Parts come before what is made of them, so ids keep their order and lists stay sorted.
void RegexSet::keep_only(const Mark& mark, std::span<RegexId> roots) {
  const auto first = static_cast<uint32_t>(mark.nodes);
  const auto size = static_cast<uint32_t>(nodes_.size());
  std::vector<uint32_t> place(size - first, 0);  // first: 1 where needed; then the new index
  const auto need = [&](uint32_t index) {
    if (index >= first) place[index - first] = 1;
  };
  const auto has_parts = [](Kind kind) {
    return kind == Kind::kConcat || kind == Kind::kRepeat || kind == Kind::kComplement ||
           kind == Kind::kJsonString || kind == Kind::kHostName;
  };
  for (const RegexId root : roots) need(index_of(root));
  for (uint32_t i = size; i-- > first;) {
    if (place[i - first] == 0) continue;
    const Node& n = nodes_[i];
    if (has_parts(n.kind)) need(n.a);
    if (n.kind == Kind::kConcat) need(n.b);
    if (n.kind == Kind::kAlternate || n.kind == Kind::kIntersect)
      for (const RegexId kid : kids(n)) need(index_of(kid));
  }
  const auto moved = [&](uint32_t index) { return index < first ? index : place[index - first]; };
  uint32_t next = first, next_kid = static_cast<uint32_t>(mark.kids),
           next_set = static_cast<uint32_t>(mark.sets);
  for (uint32_t i = first; i < size; ++i) {
    if (place[i - first] == 0) continue;
    Node n = nodes_[i];
    if (has_parts(n.kind)) n.a = moved(n.a);
    if (n.kind == Kind::kConcat) n.b = moved(n.b);
    if (n.kind == Kind::kAlternate || n.kind == Kind::kIntersect) {
      for (uint32_t kid = 0; kid < n.b; ++kid)
        kids_[next_kid + kid] = id_of(moved(index_of(kids_[n.a + kid])));
      n.a = next_kid;
      next_kid += n.b;
    }
    if (n.kind == Kind::kBytes) {
      sets_[next_set] = sets_[n.a];
      n.a = next_set++;
    }
    place[i - first] = next;
    nodes_[next++] = n;
  }
  nodes_.resize(next);
  nodes_.shrink_to_fit();
  kids_.resize(next_kid);
  sets_.resize(next_set);
  for (RegexId& root : roots) root = id_of(moved(index_of(root)));
  forget_answers();
  index_all(std::max<size_t>(64, std::bit_ceil(nodes_.size() * 2)));
}

size_t RegexSet::memory_bytes() const {
  return nodes_.size() * sizeof(Node) + kids_.size() * sizeof(RegexId) +
         sets_.size() * sizeof(ByteSet) + index_.size() * 4 + derivatives_.memory_bytes() +
         empty_.memory_bytes() + within_.memory_bytes() + lines_.memory_bytes() +
         extents_.memory_bytes() + utf8_ends_.memory_bytes() + escapes_.memory_bytes();
}

}  // namespace deepmint::grammar
