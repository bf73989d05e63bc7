#include "grammar/regex_ast.h"

#include <algorithm>
#include <array>
#include <random>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "core/check.h"

namespace deepmint::grammar {

namespace {

// Common prefixes of alternatives are shared down to this many bytes; past it they are kept side by
// side, which is only slower.
constexpr int kMaxFactorDepth = 256;
// Derivatives that a question for emptiness may look at.
constexpr size_t kMaxEmptySearch = 50'000;
// … and parts of expressions that it may handle on the way: a quarter of a second or so.
constexpr uint64_t kMaxEmptyWork = 2'000'000;

// A caller must not be able to build two expressions with one hash.
uint64_t hash_seed() {
  static const uint64_t seed = (uint64_t{std::random_device{}()} << 32) | std::random_device{}();
  return seed;
}

uint32_t index_of(RegexId id) { return static_cast<uint32_t>(id); }
RegexId id_of(size_t index) { return RegexId{static_cast<uint32_t>(index)}; }

uint32_t less_one(uint32_t count) { return count == kUnbounded || count == 0 ? count : count - 1; }

}  // namespace

RegexSet::RegexSet(const Limits& limits) : limits_(limits) {
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
  index_[nodes_[2].hash] = 2;
  nodes_.pop_back();
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
  const auto [it, is_new] = index_.try_emplace(n.hash, static_cast<uint32_t>(nodes_.size()));
  if (!is_new) return RegexId{it->second};
  if (nodes_.size() >= limits_.max_nodes) {
    exhausted_ = true;
    index_.erase(it);
    return none();
  }
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
  return alternate_at({a, b}, 0);
}

RegexId RegexSet::alternate(std::span<const RegexId> parts) {
  return alternate_at({parts.begin(), parts.end()}, 0);
}

RegexId RegexSet::alternate_at(std::vector<RegexId> parts, int depth) {
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
          tail = alternate_at(std::move(tails), depth + 1);
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
  for (const RegexId id : out) n.nullable &= nullable(id);
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
    case Kind::kConcat:
      if (nodes_[n.a].kind == Kind::kBytes)
        return sets_[nodes_[n.a].a].has(byte) ? RegexId{n.b} : none();
      break;
    default:
      break;
  }
  const uint64_t key = (uint64_t{index_of(a)} << 8) | byte;
  if (const auto it = derivatives_.find(key); it != derivatives_.end()) return it->second;
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
  derivatives_.emplace(key, out);
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

bool RegexSet::empty(RegexId a) {
  if (!node(a).hard) return a == none();
  if (nullable(a)) return false;
  if (const auto it = empty_.find(index_of(a)); it != empty_.end()) return it->second;
  // Any accepted string ends the search. Steps alternate between the oldest expression found
  // (near ones first) and the newest (straight ahead, for languages whose texts are long). Where
  // only few bytes can come first (one side is a word), they are tried themselves; else one byte
  // of every class.
  constexpr int kFewBytes = 8;
  const uint64_t work_before = work_;
  std::vector<uint8_t> byte_of_class, bytes_here;
  const auto bytes_to_try = [&](RegexId id) -> const std::vector<uint8_t>& {
    const ByteSet first = first_bytes(id, 4);
    if (first.count() <= kFewBytes) {
      bytes_here.clear();
      for (unsigned b = 0; b < 256; ++b)
        if (first.has(b)) bytes_here.push_back(static_cast<uint8_t>(b));
      return bytes_here;
    }
    if (byte_of_class.empty()) {
      std::array<uint8_t, 256> class_of;
      byte_of_class.resize(static_cast<size_t>(byte_classes({&a, 1}, class_of)));
      for (unsigned b = 0; b < 256; ++b) byte_of_class[class_of[b]] = static_cast<uint8_t>(b);
      // Straight ahead goes by plain characters, which complete a code point at once.
      for (const char plain : {'0', 'a'}) {
        const auto at = std::find_if(byte_of_class.begin(), byte_of_class.end(), [&](uint8_t b) {
          return class_of[b] == class_of[static_cast<uint8_t>(plain)];
        });
        std::rotate(at, at + 1, byte_of_class.end());
      }
    }
    return byte_of_class;
  };
  std::vector<std::pair<RegexId, size_t>> found{{a, 0}};  // expression, index of its parent
  std::vector<bool> done;
  std::unordered_set<uint32_t> seen{index_of(a)};
  size_t oldest = 0;
  std::vector<size_t> newest{0};
  for (bool ahead = false;; ahead = !ahead) {
    done.resize(found.size());
    while (oldest < found.size() && done[oldest]) ++oldest;
    while (!newest.empty() && done[newest.back()]) newest.pop_back();
    if (oldest == found.size()) break;
    const size_t at = ahead ? newest.back() : oldest;
    done[at] = true;
    for (const uint8_t byte : bytes_to_try(found[at].first)) {
      const RegexId next = derivative(found[at].first, byte);
      if (work_ - work_before > kMaxEmptyWork) exhausted_ = true;
      if (exhausted_) return true;
      if (next == none()) continue;
      const auto known = empty_.find(index_of(next));
      if (!node(next).hard || nullable(next) || (known != empty_.end() && !known->second)) {
        for (size_t up = at;; up = found[up].second) {
          empty_[index_of(found[up].first)] = false;
          if (up == 0) return false;
        }
      }
      if (known != empty_.end() || !seen.insert(index_of(next)).second) continue;
      if (found.size() >= kMaxEmptySearch) {
        exhausted_ = true;
        return true;
      }
      newest.push_back(found.size());
      found.emplace_back(next, at);
    }
  }
  for (const auto& [id, parent] : found) empty_[index_of(id)] = true;
  return true;
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
  for (size_t i = mark.nodes; i < nodes_.size(); ++i) index_.erase(nodes_[i].hash);
  nodes_.resize(mark.nodes);
  kids_.resize(mark.kids);
  sets_.resize(mark.sets);
  derivatives_.clear();
  empty_.clear();
  exhausted_ = false;
}

size_t RegexSet::memory_bytes() const {
  return nodes_.size() * sizeof(Node) + kids_.size() * sizeof(RegexId) +
         sets_.size() * sizeof(ByteSet) + (index_.size() + derivatives_.size()) * 48 +
         empty_.size() * 32;
}

// --- code points ---------------------------------------------------------------------------------

namespace {

// Sorted, disjoint, without surrogates.
std::vector<CodePointRange> normalized(std::span<const CodePointRange> ranges) {
  std::vector<CodePointRange> in;
  for (CodePointRange r : ranges) {
    r.last = std::min<uint32_t>(r.last, 0x10ffff);
    if (r.first > r.last) continue;
    if (r.first < 0xd800) in.push_back({r.first, std::min<uint32_t>(r.last, 0xd7ff)});
    if (r.last > 0xdfff) in.push_back({std::max<uint32_t>(r.first, 0xe000), r.last});
  }
  std::sort(in.begin(), in.end(),
            [](const CodePointRange& x, const CodePointRange& y) { return x.first < y.first; });
  std::vector<CodePointRange> out;
  for (const CodePointRange& r : in) {
    if (!out.empty() && r.first <= out.back().last + 1)
      out.back().last = std::max(out.back().last, r.last);
    else
      out.push_back(r);
  }
  return out;
}

std::vector<CodePointRange> clip(std::span<const CodePointRange> ranges, uint32_t first,
                                 uint32_t last) {
  std::vector<CodePointRange> out;
  auto it = std::lower_bound(ranges.begin(), ranges.end(), first,
                             [](const CodePointRange& r, uint32_t cp) { return r.last < cp; });
  for (; it != ranges.end() && it->first <= last; ++it)
    out.push_back({std::max(it->first, first) - first, std::min(it->last, last) - first});
  return out;
}

// `rest` continuation bytes for the code points (relative to the prefix) in `ranges`.
RegexId continuation(RegexSet& set, std::span<const CodePointRange> ranges, int rest,
                     const std::array<RegexId, 4>& full) {
  if (ranges.empty()) return set.none();
  if (rest == 0) return set.epsilon();
  const uint32_t span = 1u << (6 * rest), step = span / 64;
  if (ranges.size() == 1 && ranges[0].first == 0 && ranges[0].last == span - 1)
    return full[static_cast<size_t>(rest)];
  std::vector<std::pair<RegexId, ByteSet>> by_tail;
  for (uint32_t value = 0; value < 64; ++value) {
    const auto part = clip(ranges, value * step, value * step + step - 1);
    if (part.empty()) continue;
    const RegexId tail = continuation(set, part, rest - 1, full);
    auto it = std::find_if(by_tail.begin(), by_tail.end(),
                           [&](const auto& entry) { return entry.first == tail; });
    if (it == by_tail.end()) it = by_tail.insert(by_tail.end(), {tail, ByteSet()});
    it->second.add(0x80 + value);
  }
  std::vector<RegexId> parts;
  for (const auto& [tail, bytes] : by_tail) parts.push_back(set.concat(set.bytes(bytes), tail));
  return set.alternate(parts);
}

}  // namespace

RegexId RegexSet::code_points_of(std::vector<CodePointRange> ranges) {
  std::array<RegexId, 4> full{};
  full[0] = epsilon();
  for (size_t rest = 1; rest < 4; ++rest)
    full[rest] = concat(bytes(ByteSet::range(0x80, 0xbf)), full[rest - 1]);
  std::vector<std::pair<RegexId, ByteSet>> by_tail;
  const auto lead = [&](RegexId tail, unsigned byte) {
    auto it = std::find_if(by_tail.begin(), by_tail.end(),
                           [&](const auto& entry) { return entry.first == tail; });
    if (it == by_tail.end()) it = by_tail.insert(by_tail.end(), {tail, ByteSet()});
    it->second.add(byte);
  };
  for (const CodePointRange& r : clip(ranges, 0, 0x7f))
    for (uint32_t cp = r.first; cp <= r.last; ++cp) lead(epsilon(), cp);
  struct Length {
    uint32_t first, last, lead;
    int rest;
  };
  constexpr Length kLengths[] = {
      {0x80, 0x7ff, 0xc0, 1}, {0x800, 0xffff, 0xe0, 2}, {0x10000, 0x10ffff, 0xf0, 3}};
  for (const Length& length : kLengths) {
    const uint32_t step = 1u << (6 * length.rest);
    for (uint32_t base = length.first / step * step; base <= length.last; base += step) {
      const uint32_t first = std::max(base, length.first);
      auto part = clip(ranges, first, std::min(base + step - 1, length.last));
      if (part.empty()) continue;
      for (CodePointRange& r : part) {
        r.first += first - base;
        r.last += first - base;
      }
      lead(continuation(*this, part, length.rest, full), length.lead + base / step);
    }
  }
  std::vector<RegexId> parts;
  for (const auto& [tail, set] : by_tail) parts.push_back(concat(bytes(set), tail));
  return alternate(parts);
}

RegexId RegexSet::code_points(std::span<const CodePointRange> ranges) {
  return code_points_of(normalized(ranges));
}

RegexId RegexSet::any_code_point() {
  const CodePointRange all{0, 0x10ffff};
  return code_points({&all, 1});
}

}  // namespace deepmint::grammar
