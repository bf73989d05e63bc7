#include "core/utf8.h"

#include <cstring>

namespace deepmint::utf8 {
namespace {

struct Lead {
  int length;               // bytes of the whole sequence, 0 when not a lead byte
  unsigned char low, high;  // allowed range of the second byte
};

Lead lead_of(unsigned char b) {
  if (b < 0x80) return {1, 0, 0};
  if (b >= 0xC2 && b <= 0xDF) return {2, 0x80, 0xBF};
  if (b == 0xE0) return {3, 0xA0, 0xBF};
  if (b == 0xED) return {3, 0x80, 0x9F};
  if (b >= 0xE1 && b <= 0xEF) return {3, 0x80, 0xBF};
  if (b == 0xF0) return {4, 0x90, 0xBF};
  if (b >= 0xF1 && b <= 0xF3) return {4, 0x80, 0xBF};
  if (b == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

// Bytes of s[at..] that form the longest prefix of a valid sequence; `complete` when that is a
// whole sequence.
size_t scan(std::string_view s, size_t at, bool& complete) {
  const Lead lead = lead_of(static_cast<unsigned char>(s[at]));
  complete = false;
  if (lead.length == 0) return 0;
  size_t n = 1;
  for (; n < static_cast<size_t>(lead.length) && at + n < s.size(); ++n) {
    const auto b = static_cast<unsigned char>(s[at + n]);
    if (n == 1 ? (b < lead.low || b > lead.high) : (b < 0x80 || b > 0xBF)) return n;
  }
  complete = n == static_cast<size_t>(lead.length);
  return n;
}

}  // namespace

size_t find_invalid(std::string_view s) {
  size_t i = 0;
  while (i < s.size()) {
    if (i + 8 <= s.size()) {  // ASCII eight bytes at a time
      uint64_t word = 0;
      std::memcpy(&word, s.data() + i, 8);
      if ((word & 0x8080808080808080ull) == 0) {
        i += 8;
        continue;
      }
    }
    bool complete = false;
    const size_t n = scan(s, i, complete);
    if (!complete) return i;
    i += n;
  }
  return npos;
}

size_t incomplete_tail(std::string_view s) {
  for (size_t back = 1; back <= 3 && back <= s.size(); ++back) {
    const auto b = static_cast<unsigned char>(s[s.size() - back]);
    if ((b & 0xC0) == 0x80) continue;
    bool complete = false;
    const size_t n = scan(s, s.size() - back, complete);
    return !complete && n == back ? back : 0;
  }
  return 0;
}

std::string sanitize(std::string_view s) {
  std::string out;
  out.reserve(s.size());
  size_t i = 0;
  while (i < s.size()) {
    bool complete = false;
    const size_t n = scan(s, i, complete);
    if (complete) {
      out.append(s, i, n);
      i += n;
    } else {
      out.append("\xEF\xBF\xBD");
      i += n == 0 ? 1 : n;
    }
  }
  return out;
}

void append(std::string& out, uint32_t c) {
  if (c < 0x80) {
    out.push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out.push_back(static_cast<char>(0xC0 | c >> 6));
    out.push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else if (c < 0x10000) {
    out.push_back(static_cast<char>(0xE0 | c >> 12));
    out.push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else {
    out.push_back(static_cast<char>(0xF0 | c >> 18));
    out.push_back(static_cast<char>(0x80 | (c >> 12 & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (c & 0x3F)));
  }
}

uint32_t next(std::string_view s, size_t& at) {
  const auto lead = static_cast<unsigned char>(s[at++]);
  if (lead < 0x80) return lead;
  const int more = lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
  uint32_t out = lead & (0x3Fu >> more);
  for (int i = 0; i < more; ++i) out = out << 6 | (static_cast<unsigned char>(s[at++]) & 0x3Fu);
  return out;
}

}  // namespace deepmint::utf8
