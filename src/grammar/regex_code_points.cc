// Sets of code points as expressions over the bytes of UTF-8.
#include <algorithm>
#include <array>
#include <span>
#include <utility>
#include <vector>

#include "grammar/regex_ast.h"

namespace deepmint::grammar {

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
  parts.reserve(by_tail.size());
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
  parts.reserve(by_tail.size());
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
