#include "tokenizer/normalize.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/utf8.h"
#include "tokenizer/unicode.h"

namespace deepmint {
namespace {

constexpr auto kOptions = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
constexpr uint32_t kLimit = 0x110000;
constexpr size_t kKeptCodePoints =
    size_t{1} << 18;  // a longer stretch of marks is hostile: its memory is given back

enum Kind : uint8_t {
  kStarter,  // begins a stretch that is normalised alone: never reordered, never composed with what
             // stands before
  kJoins,    // may be reordered, composed with what stands before, or replaced
  kFixed,    // newer than Unicode 9 and touched by normalisation since: stays as it is, and nothing
             // reaches across
};

// Everything with a combining class, and all parts and results of compositions, that came after
// Unicode 9.
constexpr std::pair<uint32_t, uint32_t> kNewer[] = {
    {0x7FD, 0x7FD},     {0x897, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
    {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},
    {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},   {0x105C9, 0x105C9},
    {0x105D2, 0x105D2}, {0x105DA, 0x105DA}, {0x105E4, 0x105E4}, {0x10D24, 0x10D27},
    {0x10D69, 0x10D6D}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50},
    {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x11382, 0x11385},
    {0x1138B, 0x1138E}, {0x11390, 0x11391}, {0x113B8, 0x113C9}, {0x113CE, 0x113D0},
    {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11930}, {0x11935, 0x11935},
    {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0},
    {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42},
    {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x1611E, 0x1612F},
    {0x16D63, 0x16D6A}, {0x16FF0, 0x16FF1}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136},
    {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}, {0x1E5EE, 0x1E5EF}};

class KindTable {
 public:
  static const KindTable& get() {
    static const KindTable table;
    return table;
  }
  Kind operator[](uint32_t c) const { return static_cast<Kind>(kinds_[c >> 2] >> (c & 3) * 2 & 3); }

 private:
  KindTable() : kinds_(kLimit / 4, 0) {
    for (uint32_t c = 0; c < kLimit; ++c) {
      if (c >= 0xD800 && c < 0xE000) continue;
      const utf8proc_property_t* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
      if (property->combining_class != 0) set(c, kJoins);
      const bool hangul_syllable =
          c >= 0xAC00 && c < 0xD7A4;  // composes, but only with a jamo behind it
      if (property->decomp_seqindex == UINT16_MAX || property->decomp_type != 0 || hangul_syllable)
        continue;
      std::array<utf8proc_int32_t, 32> parts{};
      const auto n = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts.data(),
                                             parts.size(), UTF8PROC_DECOMPOSE, nullptr);
      DEEPMINT_CHECK(n > 0 && static_cast<size_t>(n) <= parts.size());
      set(static_cast<uint32_t>(parts[static_cast<size_t>(n) - 1]),
          n > 1 ? kJoins : (*this)[static_cast<uint32_t>(parts[0])]);
      const auto composed = utf8proc_normalize_utf32(parts.data(), n, kOptions);
      if (composed != 1 || parts[0] != static_cast<utf8proc_int32_t>(c)) set(c, kJoins);
    }
    for (uint32_t c = 0x1161; c <= 0x1175; ++c) set(c, kJoins);  // Hangul vowels and finals
    for (uint32_t c = 0x11A8; c <= 0x11C2; ++c) set(c, kJoins);
    for (const auto& [first, last] : kNewer)
      for (uint32_t c = first; c <= last; ++c) set(c, kFixed);
  }
  void set(uint32_t c, Kind kind) {
    uint8_t& four = kinds_[c >> 2];
    const unsigned shift = (c & 3) * 2;
    four = static_cast<uint8_t>((four & ~(3u << shift)) | static_cast<unsigned>(kind) << shift);
  }
  std::vector<uint8_t> kinds_;
};

// Offset of the first character from `at` on that is not a starter below U+0300 for certain.
size_t skip_plain(std::string_view text, size_t at) {
  while (at + 8 <= text.size()) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + at, 8);
    if ((word & 0x8080808080808080ull) != 0) break;
    at += 8;
  }
  while (at < text.size() && static_cast<unsigned char>(text[at]) < 0xCC)
    ++at;  // 0xCC leads U+0300
  return at;
}

int combining_class(utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; }

// Canonical order: stable by combining class within each run of marks. utf8proc's own ordering is
// quadratic in the run, so longer runs are counted into place.
void order_marks(std::vector<utf8proc_int32_t>& work) {
  constexpr auto kInserted = 16;
  thread_local std::vector<utf8proc_int32_t> sorted;
  const auto is_mark = [](utf8proc_int32_t c) { return combining_class(c) != 0; };
  const auto before = [](utf8proc_int32_t a, utf8proc_int32_t b) {
    return combining_class(a) < combining_class(b);
  };
  for (auto from = work.begin(); from != work.end();) {
    from = std::find_if(from, work.end(), is_mark);
    const auto to = std::find_if_not(from, work.end(), is_mark);
    if (to - from <= kInserted) {
      for (auto at = from; at != to; ++at)
        std::rotate(std::upper_bound(from, at, *at, before), at, at + 1);
    } else {
      std::array<size_t, 257> place{};  // of the next mark of each class
      for (auto at = from; at != to; ++at) ++place[static_cast<size_t>(combining_class(*at)) + 1];
      for (size_t c = 1; c < place.size(); ++c) place[c] += place[c - 1];
      sorted.resize(static_cast<size_t>(to - from));
      for (auto at = from; at != to; ++at)
        sorted[place[static_cast<size_t>(combining_class(*at))]++] = *at;
      std::copy(sorted.begin(), sorted.end(), from);
    }
    from = to;
  }
  if (sorted.capacity() > kKeptCodePoints) std::vector<utf8proc_int32_t>().swap(sorted);
}

void append_normalized(std::string_view stretch, std::string& out) {
  thread_local std::vector<utf8proc_int32_t> work;
  work.clear();
  for (size_t at = 0; at < stretch.size();) {
    const auto [code_point, length] = unicode::decode(stretch.data() + at);
    std::array<utf8proc_int32_t, 32> parts{};
    const auto n = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code_point), parts.data(),
                                           parts.size(), UTF8PROC_DECOMPOSE, nullptr);
    DEEPMINT_CHECK(n > 0 && static_cast<size_t>(n) <= parts.size());
    work.insert(work.end(), parts.begin(), parts.begin() + n);
    at += length;
  }
  order_marks(work);
  const auto composed =
      utf8proc_normalize_utf32(work.data(), static_cast<utf8proc_ssize_t>(work.size()), kOptions);
  for (utf8proc_ssize_t i = 0; i < composed; ++i)
    utf8::append(out, static_cast<uint32_t>(work[static_cast<size_t>(i)]));
  if (work.capacity() > kKeptCodePoints) std::vector<utf8proc_int32_t>().swap(work);
}

}  // namespace

void prepare_nfc() { KindTable::get(); }

std::string_view to_nfc(std::string_view text, std::string& buffer) {
  const KindTable& kinds = KindTable::get();
  size_t copied = 0;   // text before this is in the buffer
  size_t starter = 0;  // start of the character that the next one may join
  bool changed = false;
  const auto character_before = [&](size_t at) {  // one of one or two bytes, as all below U+0300
    return at < 2 || (static_cast<unsigned char>(text[at - 1]) & 0xC0) != 0x80 ? at - 1 : at - 2;
  };
  size_t at = skip_plain(text, 0);
  if (at > 0) starter = character_before(at);
  while (at < text.size()) {
    const auto [code_point, length] = unicode::decode(text.data() + at);
    const Kind kind = kinds[code_point];
    if (kind != kJoins) {
      starter = kind == kFixed ? at + length : at;
      at += length;
      if (at < text.size() && static_cast<unsigned char>(text[at]) < 0xCC) {
        at = skip_plain(text, at);
        starter = character_before(at);
      }
      continue;
    }
    if (!changed) buffer.clear();
    changed = true;
    size_t end = at + length;
    while (end < text.size()) {
      const auto [next, bytes] = unicode::decode(text.data() + end);
      if (kinds[next] != kJoins) break;
      end += bytes;
    }
    buffer.append(text, copied, starter - copied);
    append_normalized(text.substr(starter, end - starter), buffer);
    copied = starter = at = end;
  }
  if (!changed) return text;
  buffer.append(text, copied);
  return buffer;
}

}  // namespace deepmint
