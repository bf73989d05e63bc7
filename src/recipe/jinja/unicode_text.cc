#include "recipe/jinja/unicode_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>

#include "core/utf8.h"

namespace deepmint::recipe::jinja {
namespace {

struct FullCase {
  uint32_t from;
  const char *upper, *title;
};
#include "recipe/jinja/case_tables.inc"

utf8proc_category_t category(uint32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

const FullCase* full_case(uint32_t c) {
  if (c < 0x80) return nullptr;
  const auto* at = std::lower_bound(std::begin(kFullCase), std::end(kFullCase), c,
                                    [](const FullCase& f, uint32_t v) { return f.from < v; });
  return at != std::end(kFullCase) && at->from == c ? at : nullptr;
}

void append_upper(std::string& out, uint32_t c) {
  if (const FullCase* full = full_case(c))
    out += full->upper;
  else
    utf8::append(out, static_cast<uint32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
}

void append_title(std::string& out, uint32_t c) {
  if (const FullCase* full = full_case(c))
    out += full->title;
  else
    utf8::append(out, static_cast<uint32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))));
}

// Σ ends a word as ς: a cased letter before it and none after it, case-ignorable marks aside.
bool is_final_sigma(std::string_view s, size_t at) {
  const auto ignorable = [](uint32_t c) {
    const auto k = category(c);
    return k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_ME || k == UTF8PROC_CATEGORY_CF ||
           k == UTF8PROC_CATEGORY_LM || k == UTF8PROC_CATEGORY_SK || c == '\'' || c == 0xAD ||
           c == 0x2019 || c == '.' || c == ':' || c == 0xB7;
  };
  size_t before = at;
  bool has_cased = false;
  while (before > 0) {
    do --before;
    while (before > 0 && (static_cast<unsigned char>(s[before]) & 0xC0) == 0x80);
    const uint32_t c = code_point_at(s, before).value;
    if (ignorable(c)) continue;
    has_cased = is_cased(c);
    break;
  }
  if (!has_cased) return false;
  for (size_t i = at + 2; i < s.size();) {
    const CodePoint c = code_point_at(s, i);
    if (!ignorable(c.value)) return !is_cased(c.value);
    i += c.length;
  }
  return true;
}

void append_lower(std::string& out, std::string_view s, size_t at, uint32_t c) {
  if (c == 0x130)
    out += "i\xcc\x87";  // the one full mapping to lower case
  else if (c == 0x3A3)
    out += is_final_sigma(s, at) ? "\xcf\x82" : "\xcf\x83";
  else
    utf8::append(out, static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
}

}  // namespace

CodePoint code_point_at(std::string_view s, size_t byte) {
  const auto at = [&](size_t i) -> uint32_t {
    return i < s.size() ? static_cast<unsigned char>(s[i]) & 0x3Fu : 0;
  };
  const auto lead = static_cast<unsigned char>(s[byte]);
  const auto left = static_cast<uint32_t>(std::min<size_t>(s.size() - byte, 4));
  if (lead < 0xC0) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1Fu) << 6 | at(byte + 1), std::min(2u, left)};
  if (lead < 0xF0)
    return {(lead & 0x0Fu) << 12 | at(byte + 1) << 6 | at(byte + 2), std::min(3u, left)};
  return {(lead & 0x07u) << 18 | at(byte + 1) << 12 | at(byte + 2) << 6 | at(byte + 3),
          std::min(4u, left)};
}

size_t count_code_points(std::string_view s) {
  return static_cast<size_t>(std::count_if(
      s.begin(), s.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

size_t byte_of(std::string_view s, size_t index) {
  size_t i = 0;
  for (; i < s.size() && index > 0; --index) i += code_point_at(s, i).length;
  return i;
}

bool is_space(uint32_t c) {
  return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_printable(uint32_t c) {
  if (c == ' ') return true;
  const auto k = category(c);
  return k != UTF8PROC_CATEGORY_CN && k != UTF8PROC_CATEGORY_ZS && k < UTF8PROC_CATEGORY_ZL;
}

bool is_alpha(uint32_t c) {
  const auto k = category(c);
  return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}
bool is_decimal(uint32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }
bool is_digit(uint32_t c) {
  return is_decimal(c) || c == 0xB2 || c == 0xB3 || c == 0xB9 || c == 0x2070 ||
         (c >= 0x2074 && c <= 0x2079) || (c >= 0x2080 && c <= 0x2089) ||
         (c >= 0x2460 && c <= 0x2468);
}
bool is_numeric(uint32_t c) {
  const auto k = category(c);
  return k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO;
}
bool is_lower(uint32_t c) { return category(c) == UTF8PROC_CATEGORY_LL || c == 0xAA || c == 0xBA; }
bool is_upper(uint32_t c) { return category(c) == UTF8PROC_CATEGORY_LU; }
bool is_cased(uint32_t c) {
  return is_lower(c) || is_upper(c) || category(c) == UTF8PROC_CATEGORY_LT;
}

size_t leading_space(std::string_view s) {
  size_t i = 0;
  while (i < s.size()) {
    const CodePoint c = code_point_at(s, i);
    if (!is_space(c.value)) break;
    i += c.length;
  }
  return i;
}

size_t trailing_space(std::string_view s) {
  size_t end = s.size();
  while (end > 0) {
    size_t begin = end - 1;
    while (begin > 0 && (static_cast<unsigned char>(s[begin]) & 0xC0) == 0x80) --begin;
    if (!is_space(code_point_at(s, begin).value)) break;
    end = begin;
  }
  return s.size() - end;
}

Text change_case(const Text& t, Case to) {
  const std::string& s = t.bytes();
  Text out;
  std::string spelled;
  bool in_word = false;  // behind a cased character
  for (size_t i = 0; i < s.size();) {
    const CodePoint c = code_point_at(s, i);
    spelled.clear();
    const bool starts = to == Case::kCapitalize ? i == 0 : !in_word;
    if (to == Case::kUpper || (to == Case::kSwap && is_lower(c.value)))
      append_upper(spelled, c.value);
    else if (to == Case::kSwap && !is_upper(c.value))
      spelled = s.substr(i, c.length);
    else if (to != Case::kLower && to != Case::kSwap && starts)
      append_title(spelled, c.value);
    else
      append_lower(spelled, s, i, c.value);
    out.append(spelled, t.origin_at(i));
    in_word = is_cased(c.value);
    i += c.length;
  }
  return out;
}

LineEnd line_end(std::string_view s, size_t begin) {
  for (size_t i = begin; i < s.size();) {
    const CodePoint c = code_point_at(s, i);
    const bool ends = (c.value >= 10 && c.value <= 13) || (c.value >= 0x1C && c.value <= 0x1E) ||
                      c.value == 0x85 || c.value == 0x2028 || c.value == 0x2029;
    if (ends)
      return {i, c.value == '\r' && i + 1 < s.size() && s[i + 1] == '\n' ? i + 2 : i + c.length};
    i += c.length;
  }
  return {s.size(), s.size()};
}

}  // namespace deepmint::recipe::jinja
