// Host names as an expression of their own (RFC 1123, A-labels of RFC 5890): labels of letters,
// digits and hyphens, at most 63 characters each and 253 together. A label whose third and fourth
// character are hyphens is `xn--` and the Punycode of a valid label, or none. As an automaton whose
// state is the node it knows by itself whether a beginning can be completed, so that it is never
// empty.
//
// Node::min: characters so far << 8 | characters of this label; max: flags; a: the literal of what
// stands behind xn--.
#include <string>

#include "grammar/idna.h"
#include "grammar/regex_ast.h"

namespace deepmint::grammar {

namespace {

constexpr uint32_t kMaxName = 253, kMaxLabel = 63;
enum : uint32_t {
  kHyphen = 1,       // the last character is a hyphen
  kThirdHyphen = 2,  // the third one is
  kEncoded = 4,      // behind xn--
  kX = 8,            // the label is "x"
  kXn = 16,          // "xn" or "xn-"
};

bool is_alphanumeric(uint8_t b) {
  return (b >= '0' && b <= '9') || (b >= 'a' && b <= 'z') || (b >= 'A' && b <= 'Z');
}

}  // namespace

std::string RegexSet::literal_text(RegexId a) const {
  std::string out;
  const auto add_byte = [&](const Node& n) {
    unsigned b = 0;
    while (!sets_[n.a].has(b)) ++b;
    out.push_back(static_cast<char>(b));
  };
  for (;; a = RegexId{node(a).b}) {
    const Node& n = node(a);
    if (n.kind == Kind::kBytes) add_byte(n);
    if (n.kind != Kind::kConcat) return out;
    add_byte(nodes_[n.a]);
  }
}

RegexId RegexSet::host_name() { return host_state(0, 0, 0, epsilon()); }

RegexId RegexSet::host_state(uint32_t used, uint32_t label, uint32_t flags, RegexId encoded) {
  if (used > kMaxName || label > kMaxLabel) return none();
  const uint32_t room = kMaxName - used;
  bool complete = label > 0 && (flags & kHyphen) == 0;
  if ((flags & kEncoded) != 0) {
    const std::string text = literal_text(encoded);
    if (!can_become_a_label(text, room)) return none();
    complete = is_a_label(text);
  } else if (!complete && (room == 0 || label == kMaxLabel)) {
    return none();
  }
  Node n;
  n.kind = Kind::kHostName;
  n.nullable = complete;
  n.a = static_cast<uint32_t>(encoded);
  n.min = (used << 8) | label;
  n.max = flags;
  return add(n);
}

RegexId RegexSet::derive_host(const Node& n, uint8_t byte) {
  const uint32_t used = (n.min >> 8) + 1, label = (n.min & 0xff) + 1, flags = n.max;
  if (byte == '.') return n.nullable ? host_state(used, 0, 0, epsilon()) : none();
  if (byte != '-' && !is_alphanumeric(byte)) return none();
  if ((flags & kEncoded) != 0) {
    if (byte >= 'A' && byte <= 'Z') return none();
    const RegexId before{n.a};
    return host_state(used, label, flags, literal(literal_text(before) + static_cast<char>(byte)));
  }
  if (byte == '-' && label == 1) return none();
  if (byte == '-' && label == 4 && (flags & kThirdHyphen) != 0)
    return (flags & kXn) != 0 ? host_state(used, label, kEncoded, epsilon()) : none();
  uint32_t next = flags & kThirdHyphen;
  if (byte == '-') next |= kHyphen;
  if (byte == '-' && label == 3) next |= kThirdHyphen;
  if (label == 1 && byte == 'x') next |= kX;
  if (label == 2 && byte == 'n' && (flags & kX) != 0) next |= kXn;
  if (label == 3 && byte == '-' && (flags & kXn) != 0) next |= kXn;
  if (label >= 4) next &= ~kThirdHyphen;
  return host_state(used, label, next, epsilon());
}

}  // namespace deepmint::grammar
