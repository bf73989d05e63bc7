#include "grammar/idna.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "core/utf8.h"
#include "grammar/regex_ast.h"
#include "grammar/unicode_sets.h"

namespace deepmint::grammar {

namespace {

using Label = std::u32string;

// --- Punycode, RFC 3492 ---

constexpr uint32_t kBase = 36, kTMin = 1, kTMax = 26, kSkew = 38, kDamp = 700, kFirstBias = 72,
                   kFirstCodePoint = 128;

uint32_t adapt(uint64_t delta, uint64_t n_points, bool first) {
  delta = first ? delta / kDamp : delta / 2;
  delta += delta / n_points;
  uint32_t k = 0;
  for (; delta > (kBase - kTMin) * kTMax / 2; k += kBase) delta /= kBase - kTMin;
  return k + static_cast<uint32_t>((kBase - kTMin + 1) * delta / (delta + kSkew));
}
uint32_t threshold(uint32_t k, uint32_t bias) {
  return k <= bias ? kTMin : std::min(k - bias, kTMax);
}
int digit_value(char c) {
  if (c >= 'a' && c <= 'z') return c - 'a';
  return c >= '0' && c <= '9' ? c - '0' + 26 : -1;
}
bool is_ldh(char32_t c) { return c == '-' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z'); }

std::optional<Label> decode(std::string_view encoded) {
  Label out;
  size_t at = encoded.rfind('-');
  if (at == std::string_view::npos) {
    at = 0;
  } else {
    for (const char c : encoded.substr(0, at)) {
      if (!is_ldh(static_cast<unsigned char>(c))) return std::nullopt;
      out.push_back(static_cast<unsigned char>(c));
    }
    ++at;
  }
  uint64_t n = kFirstCodePoint, i = 0;
  uint32_t bias = kFirstBias;
  while (at < encoded.size()) {
    const uint64_t before = i;
    uint64_t weight = 1;
    for (uint32_t k = kBase;; k += kBase) {
      if (at == encoded.size()) return std::nullopt;
      const int digit = digit_value(encoded[at++]);
      if (digit < 0) return std::nullopt;
      i += static_cast<uint64_t>(digit) * weight;
      if (i > 0x110000u * 64u) return std::nullopt;  // beyond every code point of a label
      const uint32_t t = threshold(k, bias);
      if (static_cast<uint32_t>(digit) < t) break;
      weight *= kBase - t;
    }
    const uint64_t size = out.size() + 1;
    bias = adapt(i - before, size, before == 0);
    n += i / size;
    i %= size;
    if (n > 0x10ffff || (n >= 0xd800 && n <= 0xdfff)) return std::nullopt;
    out.insert(out.begin() + static_cast<std::ptrdiff_t>(i), static_cast<char32_t>(n));
    ++i;
  }
  return out;
}

std::string encode(const Label& label) {
  std::string out;
  for (const char32_t c : label)
    if (c < kFirstCodePoint) out.push_back(static_cast<char>(c));
  uint64_t done = out.size(), delta = 0;
  const uint64_t basic = done;
  if (basic > 0) out.push_back('-');
  uint32_t bias = kFirstBias;
  for (char32_t n = kFirstCodePoint; done < label.size(); ++n, ++delta) {
    char32_t next = 0x110000;
    for (const char32_t c : label)
      if (c >= n) next = std::min(next, c);
    delta += uint64_t{next - n} * (done + 1);
    n = next;
    for (const char32_t c : label) {
      if (c < n) ++delta;
      if (c != n) continue;
      uint64_t q = delta;
      for (uint32_t k = kBase;; k += kBase) {
        const uint32_t t = threshold(k, bias);
        const uint64_t digit = q < t ? q : t + (q - t) % (kBase - t);
        out.push_back(static_cast<char>(digit < 26 ? 'a' + digit : '0' + (digit - 26)));
        if (q < t) break;
        q = (q - t) / (kBase - t);
      }
      bias = adapt(delta, done + 1, done == basic);
      delta = 0;
      ++done;
    }
  }
  return out;
}

// --- which characters, RFC 5892 ---

enum class Joining : uint8_t { kNone, kLeft, kRight, kDual, kTransparent };

// Joining_Type of Unicode's ArabicShaping.txt: L, R, D. T is the marks and format characters.
constexpr CodePointRange kLeftJoining[] = {{0xa872, 0xa872},
                                           {0x10acd, 0x10acd},
                                           {0x10ad7, 0x10ad7},
                                           {0x10d00, 0x10d00},
                                           {0x10fcb, 0x10fcb}};
constexpr CodePointRange kRightJoining[] = {
    {0x622, 0x625},     {0x627, 0x627},     {0x629, 0x629},     {0x62f, 0x632},
    {0x648, 0x648},     {0x671, 0x673},     {0x675, 0x677},     {0x688, 0x699},
    {0x6c0, 0x6c0},     {0x6c3, 0x6cb},     {0x6cd, 0x6cd},     {0x6cf, 0x6cf},
    {0x6d2, 0x6d3},     {0x6d5, 0x6d5},     {0x6ee, 0x6ef},     {0x710, 0x710},
    {0x715, 0x719},     {0x71e, 0x71e},     {0x728, 0x728},     {0x72a, 0x72a},
    {0x72c, 0x72c},     {0x72f, 0x72f},     {0x74d, 0x74d},     {0x759, 0x75b},
    {0x76b, 0x76c},     {0x771, 0x771},     {0x773, 0x774},     {0x778, 0x779},
    {0x840, 0x840},     {0x846, 0x847},     {0x849, 0x849},     {0x854, 0x854},
    {0x856, 0x858},     {0x867, 0x867},     {0x869, 0x86a},     {0x870, 0x882},
    {0x88e, 0x88e},     {0x8aa, 0x8ac},     {0x8ae, 0x8ae},     {0x8b1, 0x8b2},
    {0x8b9, 0x8b9},     {0x10ac5, 0x10ac5}, {0x10ac7, 0x10ac7}, {0x10ac9, 0x10aca},
    {0x10ace, 0x10ad2}, {0x10add, 0x10add}, {0x10ae1, 0x10ae1}, {0x10ae4, 0x10ae4},
    {0x10aef, 0x10aef}, {0x10b81, 0x10b81}, {0x10b83, 0x10b85}, {0x10b89, 0x10b89},
    {0x10b8c, 0x10b8c}, {0x10b8e, 0x10b8f}, {0x10b91, 0x10b91}, {0x10ba9, 0x10bac},
    {0x10d22, 0x10d22}, {0x10ec2, 0x10ec2}, {0x10f33, 0x10f33}, {0x10f54, 0x10f54},
    {0x10f74, 0x10f75}, {0x10fb4, 0x10fb6}, {0x10fb9, 0x10fba}, {0x10fbd, 0x10fbd},
    {0x10fc2, 0x10fc3}, {0x10fc9, 0x10fc9}};
constexpr CodePointRange kDualJoining[] = {
    {0x620, 0x620},     {0x626, 0x626},     {0x628, 0x628},     {0x62a, 0x62e},
    {0x633, 0x63f},     {0x641, 0x647},     {0x649, 0x64a},     {0x66e, 0x66f},
    {0x678, 0x687},     {0x69a, 0x6bf},     {0x6c1, 0x6c2},     {0x6cc, 0x6cc},
    {0x6ce, 0x6ce},     {0x6d0, 0x6d1},     {0x6fa, 0x6fc},     {0x6ff, 0x6ff},
    {0x712, 0x714},     {0x71a, 0x71d},     {0x71f, 0x727},     {0x729, 0x729},
    {0x72b, 0x72b},     {0x72d, 0x72e},     {0x74e, 0x758},     {0x75c, 0x76a},
    {0x76d, 0x770},     {0x772, 0x772},     {0x775, 0x777},     {0x77a, 0x77f},
    {0x7ca, 0x7ea},     {0x841, 0x845},     {0x848, 0x848},     {0x84a, 0x853},
    {0x855, 0x855},     {0x860, 0x860},     {0x862, 0x865},     {0x868, 0x868},
    {0x886, 0x886},     {0x889, 0x88d},     {0x88f, 0x88f},     {0x8a0, 0x8a9},
    {0x8af, 0x8b0},     {0x8b3, 0x8b8},     {0x8ba, 0x8c8},     {0x1807, 0x1807},
    {0x1820, 0x1878},   {0x1887, 0x18a8},   {0x18aa, 0x18aa},   {0xa840, 0xa871},
    {0x10ac0, 0x10ac4}, {0x10ad3, 0x10ad6}, {0x10ad8, 0x10adc}, {0x10ade, 0x10ae0},
    {0x10aeb, 0x10aee}, {0x10b80, 0x10b80}, {0x10b82, 0x10b82}, {0x10b86, 0x10b88},
    {0x10b8a, 0x10b8b}, {0x10b8d, 0x10b8d}, {0x10b90, 0x10b90}, {0x10bad, 0x10bae},
    {0x10d01, 0x10d21}, {0x10d23, 0x10d23}, {0x10ec3, 0x10ec4}, {0x10ec6, 0x10ec7},
    {0x10f30, 0x10f32}, {0x10f34, 0x10f44}, {0x10f51, 0x10f53}, {0x10f70, 0x10f73},
    {0x10f76, 0x10f81}, {0x10fb0, 0x10fb0}, {0x10fb2, 0x10fb3}, {0x10fb8, 0x10fb8},
    {0x10fbb, 0x10fbc}, {0x10fbe, 0x10fbf}, {0x10fc1, 0x10fc1}, {0x10fc4, 0x10fc4},
    {0x10fca, 0x10fca}, {0x1e900, 0x1e943}};

bool in(std::span<const CodePointRange> sorted, char32_t c) {
  const auto it = std::upper_bound(sorted.begin(), sorted.end(), c,
                                   [](char32_t x, const CodePointRange& r) { return x < r.first; });
  return it != sorted.begin() && c <= std::prev(it)->last;
}
bool in_script(std::string_view script, char32_t c) {
  const auto set = unicode_property(script);
  return set != nullptr && in(*set, c);
}

const utf8proc_property_t& property(char32_t c) {
  return *utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
}

Joining joining(char32_t c) {
  if (in(kDualJoining, c)) return Joining::kDual;
  if (in(kRightJoining, c)) return Joining::kRight;
  if (in(kLeftJoining, c)) return Joining::kLeft;
  switch (property(c).category) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
      return c == 0x200c || c == 0x200d ? Joining::kNone : Joining::kTransparent;
    default:
      return Joining::kNone;
  }
}

// The text in a normal form; nullopt when it has none.
std::optional<Label> normal_form(const Label& text, int options) {
  std::vector<utf8proc_int32_t> buffer(text.size() * 18 + 18);
  std::string bytes;
  for (const char32_t c : text) utf8::append(bytes, c);
  const auto flags = static_cast<utf8proc_option_t>(options);
  const utf8proc_ssize_t n =
      utf8proc_decompose(reinterpret_cast<const utf8proc_uint8_t*>(bytes.data()),
                         static_cast<utf8proc_ssize_t>(bytes.size()), buffer.data(),
                         static_cast<utf8proc_ssize_t>(buffer.size()), flags);
  if (n < 0 || n > static_cast<utf8proc_ssize_t>(buffer.size())) return std::nullopt;
  const utf8proc_ssize_t composed = utf8proc_normalize_utf32(buffer.data(), n, flags);
  if (composed < 0) return std::nullopt;
  return Label(buffer.begin(), buffer.begin() + composed);
}

bool is_stable(char32_t c) {  // under NFKC(casefold(NFKC))
  constexpr int kNfkc = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT;
  const Label one(1, c);
  std::optional<Label> text = normal_form(one, kNfkc);
  if (text) text = normal_form(*text, kNfkc | UTF8PROC_CASEFOLD);
  if (text) text = normal_form(*text, kNfkc);
  return text && *text == one;
}

enum class Use : uint8_t { kValid, kContext, kDisallowed };

Use derived_use(char32_t c) {
  switch (c) {
    case 0x00df:
    case 0x03c2:
    case 0x06fd:
    case 0x06fe:
    case 0x0f0b:
    case 0x3007:
      return Use::kValid;
    case 0x00b7:
    case 0x0375:
    case 0x05f3:
    case 0x05f4:
    case 0x30fb:
    case 0x200c:
    case 0x200d:
      return Use::kContext;
    case 0x0640:
    case 0x07fa:
    case 0x302e:
    case 0x302f:
    case 0x303b:
      return Use::kDisallowed;
    default:
      break;
  }
  if ((c >= 0x660 && c <= 0x669) || (c >= 0x6f0 && c <= 0x6f9)) return Use::kContext;
  if (c >= 0x3031 && c <= 0x3035) return Use::kDisallowed;
  if (c < kFirstCodePoint) return is_ldh(c) ? Use::kValid : Use::kDisallowed;
  const bool blocks = (c >= 0x20d0 && c <= 0x20ff) || (c >= 0x1d100 && c <= 0x1d24f);
  const bool jamo =
      (c >= 0x1100 && c <= 0x11ff) || (c >= 0xa960 && c <= 0xa97c) || (c >= 0xd7b0 && c <= 0xd7fb);
  const utf8proc_property_t& p = property(c);
  if (blocks || jamo || p.ignorable) return Use::kDisallowed;
  switch (p.category) {
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
      return is_stable(c) ? Use::kValid : Use::kDisallowed;
    default:
      return Use::kDisallowed;
  }
}

bool joins(const Label& label, size_t at) {  // around a zero width non-joiner
  size_t before = at, after = at + 1;
  while (before > 0 && joining(label[before - 1]) == Joining::kTransparent) --before;
  while (after < label.size() && joining(label[after]) == Joining::kTransparent) ++after;
  if (before == 0 || after == label.size()) return false;
  const Joining left = joining(label[before - 1]), right = joining(label[after]);
  return (left == Joining::kLeft || left == Joining::kDual) &&
         (right == Joining::kRight || right == Joining::kDual);
}

bool context_allows(const Label& label, size_t at) {
  const char32_t c = label[at];
  const auto any = [&](auto&& test) { return std::any_of(label.begin(), label.end(), test); };
  constexpr uint8_t kVirama = 9;
  switch (c) {
    case 0x200c:
    case 0x200d:
      if (at > 0 && property(label[at - 1]).combining_class == kVirama) return true;
      return c == 0x200c && joins(label, at);
    case 0x00b7:
      return at > 0 && at + 1 < label.size() && label[at - 1] == 'l' && label[at + 1] == 'l';
    case 0x0375:
      return at + 1 < label.size() && in_script("sc:Greek", label[at + 1]);
    case 0x05f3:
    case 0x05f4:
      return at > 0 && in_script("sc:Hebrew", label[at - 1]);
    case 0x30fb:
      return any([](char32_t x) {
        return in_script("sc:Hiragana", x) || in_script("sc:Katakana", x) || in_script("sc:Han", x);
      });
    default: {  // digits of two Arabic kinds do not mix
      const char32_t other = c < 0x6f0 ? 0x6f0 : 0x660;
      return !any([&](char32_t x) { return x >= other && x <= other + 9; });
    }
  }
}

// --- the rule for right-to-left scripts, RFC 5893 section 2 ---

bool directions_allow(const Label& label) {
  const auto of = [](char32_t c) { return property(c).bidi_class; };
  const auto right = [](auto c) {
    return c == UTF8PROC_BIDI_CLASS_R || c == UTF8PROC_BIDI_CLASS_AL;
  };
  bool any = false, en = false, an = false, left_only = true, right_only = true;
  for (const char32_t c : label) {
    const auto one = of(c);
    any = any || right(one) || one == UTF8PROC_BIDI_CLASS_AN;
    en = en || one == UTF8PROC_BIDI_CLASS_EN;
    an = an || one == UTF8PROC_BIDI_CLASS_AN;
    switch (one) {
      case UTF8PROC_BIDI_CLASS_EN:
      case UTF8PROC_BIDI_CLASS_ES:
      case UTF8PROC_BIDI_CLASS_CS:
      case UTF8PROC_BIDI_CLASS_ET:
      case UTF8PROC_BIDI_CLASS_ON:
      case UTF8PROC_BIDI_CLASS_BN:
      case UTF8PROC_BIDI_CLASS_NSM:
        break;
      case UTF8PROC_BIDI_CLASS_L:
        right_only = false;
        break;
      case UTF8PROC_BIDI_CLASS_R:
      case UTF8PROC_BIDI_CLASS_AL:
      case UTF8PROC_BIDI_CLASS_AN:
        left_only = false;
        break;
      default:
        left_only = right_only = false;
    }
  }
  if (!any) return true;
  size_t end = label.size();
  while (end > 0 && of(label[end - 1]) == UTF8PROC_BIDI_CLASS_NSM) --end;
  if (end == 0) return false;
  const auto first = of(label[0]), last = of(label[end - 1]);
  if (right(first))
    return right_only && !(en && an) &&
           (right(last) || last == UTF8PROC_BIDI_CLASS_EN || last == UTF8PROC_BIDI_CLASS_AN);
  return first == UTF8PROC_BIDI_CLASS_L && left_only &&
         (last == UTF8PROC_BIDI_CLASS_L || last == UTF8PROC_BIDI_CLASS_EN);
}

bool is_u_label(const Label& label) {
  if (label.empty() || label.front() == '-' || label.back() == '-') return false;
  if (label.size() > 3 && label[2] == '-' && label[3] == '-') return false;
  if (std::all_of(label.begin(), label.end(), [](char32_t c) { return c < kFirstCodePoint; }))
    return false;
  const auto category = property(label.front()).category;
  if (category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ||
      category == UTF8PROC_CATEGORY_ME)
    return false;
  for (size_t i = 0; i < label.size(); ++i) {
    const Use use = derived_use(label[i]);
    if (use == Use::kDisallowed || (use == Use::kContext && !context_allows(label, i)))
      return false;
  }
  const auto nfc = normal_form(label, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  return nfc && *nfc == label && directions_allow(label);
}

// Plain letters around what stands already make a label of nearly everything.
bool completed_by_letters(std::string_view basic, std::string_view prefix, size_t most) {
  Label inside(basic.begin(), basic.end());
  for (size_t front = 0; front <= 3; ++front)
    for (size_t back = 0; back <= 1; ++back) {
      if (front + back == 0) continue;
      const Label label = Label(front, 0xe0) + inside + Label(back, 0xe0);
      const std::string encoded = encode(label);
      if (encoded.size() <= most && encoded.starts_with(prefix) && is_u_label(label)) return true;
    }
  return false;
}

}  // namespace

bool is_a_label(std::string_view encoded) {
  if (encoded.empty() || encoded.size() > kMaxEncodedLabel || encoded.back() == '-') return false;
  const auto label = decode(encoded);
  return label && is_u_label(*label) && encode(*label) == encoded;
}

bool can_become_a_label(std::string_view prefix, size_t room) {
  constexpr size_t kAlways = 9;  // idna_test.cc: so many always suffice
  room = std::min(room, kMaxEncodedLabel - std::min(prefix.size(), kMaxEncodedLabel));
  return room >= kAlways || is_a_label(prefix) || letters_complete(prefix, room);
}

bool letters_complete(std::string_view prefix, size_t room) {
  const size_t most = prefix.size() + room;
  if (completed_by_letters(prefix, prefix, most)) return true;
  // What stands in front of the last hyphen is plain letters, what stands behind it encodes others.
  const size_t hyphen = prefix.rfind('-');
  return completed_by_letters(
      hyphen == std::string_view::npos ? std::string_view() : prefix.substr(0, hyphen), prefix,
      most);
}

}  // namespace deepmint::grammar
