// Two kinds of expression that exist for JSON: the spellings of a string whose content is in a
// language, and the decimal numbers that are a multiple of another. Both are automata whose state
// is the node; neither is ever empty, because a state that leads nowhere becomes none().
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "core/utf8.h"
#include "grammar/regex_ast.h"

namespace deepmint::grammar {

namespace {

// States of the JSON decoder (Node::min) and what Node::max holds there.
enum : uint32_t {
  kPlain = 0,
  kBackslash = 1,
  kUnicode = 2,  // + digits read (0..3); max: their value
  kHigh = 6,     // after a high surrogate; max: its low 10 bits
  kHighBackslash = 7,
  kLow = 8,  // + digits read (0..3); max: high << 16 | value
};

int hex_value(uint8_t byte) {
  if (byte >= '0' && byte <= '9') return byte - '0';
  if (byte >= 'a' && byte <= 'f') return byte - 'a' + 10;
  if (byte >= 'A' && byte <= 'F') return byte - 'A' + 10;
  return -1;
}

uint32_t supplementary(uint32_t high, uint32_t low) { return 0x10000 + (high << 10) + low; }

// Code points that an escape in this state can still become.
std::vector<CodePointRange> reachable(uint32_t state, uint32_t value) {
  const auto span_of = [](uint32_t prefix, uint32_t digits_read) {
    const uint32_t shift = 4 * (4 - digits_read);
    return CodePointRange{prefix << shift, ((prefix + 1) << shift) - 1};
  };
  if (state == kBackslash) return {{0, 0x10ffff}};
  if (state >= kUnicode && state < kHigh) {
    const CodePointRange units = span_of(value, state - kUnicode);
    std::vector<CodePointRange> out{units};  // surrogates are left out by code_points()
    const uint32_t first = std::max<uint32_t>(units.first, 0xd800);
    const uint32_t last = std::min<uint32_t>(units.last, 0xdbff);
    if (first <= last)
      out.push_back({supplementary(first - 0xd800, 0), supplementary(last - 0xd800, 0x3ff)});
    return out;
  }
  uint32_t high = value, first = 0xdc00, last = 0xdfff;
  if (state >= kLow) {
    high = value >> 16;
    const CodePointRange units = span_of(value & 0xffff, state - kLow);
    first = std::max<uint32_t>(units.first, 0xdc00);
    last = std::min<uint32_t>(units.last, 0xdfff);
  }
  if (first > last) return {};
  return {{supplementary(high, first - 0xdc00), supplementary(high, last - 0xdc00)}};
}

}  // namespace

RegexId RegexSet::json_string(RegexId content, uint32_t state, uint32_t value) {
  if (empty(content)) return none();
  if (state != kPlain) {
    const uint64_t key = (uint64_t{state} << 32) | value;
    const RegexId* known = escapes_.find(key);
    const RegexId beginning =
        known != nullptr ? *known : concat(code_points(reachable(state, value)), any());
    if (known == nullptr) escapes_.insert(key, beginning);
    if (empty(intersect(content, beginning))) return none();
  }
  Node n;
  n.kind = Kind::kJsonString;
  n.nullable = state == kPlain && nullable(content);
  n.counted = node(content).counted;
  n.front = std::min(16 + 4 * std::min(node(content).front, uint32_t{1} << 28), uint32_t{1} << 31);
  n.a = static_cast<uint32_t>(content);
  n.min = state;
  n.max = value;
  return add(n);
}

bool RegexSet::leaves_json_string(const Node& n, uint8_t byte) const {
  if (n.min != kPlain || byte == '\\') return false;
  const Node* content = &nodes_[n.a];
  if (content->kind == Kind::kConcat) content = &nodes_[content->a];
  return content->kind == Kind::kBytes && !sets_[content->a].has(byte);
}

RegexId RegexSet::derive_json_string(const Node& n, uint8_t byte) {
  const RegexId content{n.a};
  const auto take = [&](uint32_t code_point) {
    std::string text;
    utf8::append(text, code_point);
    RegexId rest = content;
    for (const char c : text) rest = derivative(rest, static_cast<uint8_t>(c));
    return json_string(rest, kPlain, 0);
  };
  const uint32_t state = n.min, value = n.max;
  if (state == kPlain) {
    if (byte == '\\') return json_string(content, kBackslash, 0);
    if (byte == '"' || byte < 0x20) return none();
    return json_string(derivative(content, byte), kPlain, 0);
  }
  if (state == kBackslash) {
    switch (byte) {
      case '"':
      case '\\':
      case '/':
        return take(byte);
      case 'b':
        return take('\b');
      case 'f':
        return take('\f');
      case 'n':
        return take('\n');
      case 'r':
        return take('\r');
      case 't':
        return take('\t');
      case 'u':
        return json_string(content, kUnicode, 0);
      default:
        return none();
    }
  }
  if (state == kHigh) return byte == '\\' ? json_string(content, kHighBackslash, value) : none();
  if (state == kHighBackslash)
    return byte == 'u' ? json_string(content, kLow, value << 16) : none();
  const int digit = hex_value(byte);
  if (digit < 0) return none();
  const bool low = state >= kLow;
  const uint32_t read = state - (low ? kLow : kUnicode) + 1;
  const uint32_t unit = ((value & 0xffff) << 4) | static_cast<uint32_t>(digit);
  if (read < 4) return json_string(content, state + 1, low ? ((value & 0xffff0000u) | unit) : unit);
  if (low) {
    if (unit < 0xdc00 || unit > 0xdfff) return none();
    return take(supplementary(value >> 16, unit - 0xdc00));
  }
  if (unit >= 0xdc00 && unit <= 0xdfff) return none();
  if (unit >= 0xd800 && unit <= 0xdbff) return json_string(content, kHigh, unit - 0xd800);
  return take(unit);
}

// Node::min: the step; max: the residue so far; a: decimal places of the step | place << 8, where
// place is 0 before the point and 1 + digits read behind it, at most places + 1.
RegexId RegexSet::decimal_multiple(uint32_t step, uint32_t places) {
  return decimal_state(step, 0, places, 0);
}

RegexId RegexSet::decimal_state(uint32_t step, uint32_t residue, uint32_t places, uint32_t place) {
  // Digits that still count, and whether some choice of them makes a multiple.
  uint64_t scale = 1;
  const uint32_t left = places - (place == 0 ? 0 : place - 1);
  for (uint32_t i = 0; i < left; ++i) scale *= 10;
  const uint64_t at_end =
      static_cast<uint64_t>(static_cast<unsigned __int128>(residue) * scale % step);
  if (place > 0 && at_end != 0 && step - at_end >= scale) return none();
  Node n;
  n.kind = Kind::kDecimalMultiple;
  n.nullable = at_end == 0;
  n.a = places | (place << 8);
  n.min = step;
  n.max = residue;
  return add(n);
}

RegexId RegexSet::derive_decimal(const Node& n, uint8_t byte) {
  const uint32_t step = n.min, places = n.a & 0xff, place = n.a >> 8;
  if (byte == '.') return place == 0 ? decimal_state(step, n.max, places, 1) : none();
  if (byte < '0' || byte > '9') return none();
  if (place == places + 1) return byte == '0' ? add(n) : none();  // beyond the step's own places
  const uint32_t residue = static_cast<uint32_t>((uint64_t{n.max} * 10 + (byte - '0')) % step);
  return decimal_state(step, residue, places, place == 0 ? 0 : place + 1);
}

}  // namespace deepmint::grammar
