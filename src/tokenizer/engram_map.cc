#include "tokenizer/engram_map.h"

#include <utf8proc.h>

#include <cstdlib>
#include <memory>
#include <span>
#include <unordered_map>

#include "core/check.h"
#include "core/hash.h"
#include "core/utf8.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/unicode.h"

namespace deepmint {
namespace {

struct Free {
  void operator()(utf8proc_uint8_t* p) const { std::free(p); }
};

std::string normal_form(std::string_view text, int options) {
  utf8proc_uint8_t* out = nullptr;
  const utf8proc_ssize_t n =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &out,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | options));
  const std::unique_ptr<utf8proc_uint8_t, Free> owned(out);
  DEEPMINT_CHECK(n >= 0);  // `text` is valid UTF-8
  return std::string(reinterpret_cast<const char*>(out), static_cast<size_t>(n));
}

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

bool is_space(uint32_t code_point) {
  return (unicode::ClassTable::get()[code_point] & unicode::kSpace) != 0;
}

std::string_view trim(std::string_view s) {
  while (!s.empty()) {
    const unicode::Decoded d = unicode::decode(s.data());
    if (!is_space(d.code_point)) break;
    s.remove_prefix(d.length);
  }
  while (!s.empty()) {
    size_t last = s.size() - 1;
    while ((static_cast<unsigned char>(s[last]) & 0xC0) == 0x80) --last;
    if (!is_space(unicode::decode(s.data() + last).code_point)) break;
    s.remove_suffix(s.size() - last);
  }
  return s;
}

bool is_ascii(std::string_view s) {
  for (const char c : s)
    if (static_cast<unsigned char>(c) >= 0x80) return false;
  return true;
}

}  // namespace

std::string engram_key(std::string_view text) {
  // Two passes as the published encoder makes them: what NFKC composes, NFD takes apart again, and
  // marks that compatibility mappings bring in are dropped too.
  std::string plain(text);
  if (!is_ascii(text))
    plain = normal_form(normal_form(text, UTF8PROC_COMPOSE | UTF8PROC_COMPAT), UTF8PROC_DECOMPOSE);
  std::string key;
  for (size_t i = 0; i < plain.size();) {
    const unicode::Decoded d = unicode::decode(plain.data() + i);
    const size_t begin = i;
    i += d.length;
    if (d.code_point < 0x80) {
      const char c = plain[begin];
      if (!is_blank(c)) {
        key.push_back(c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c);
      } else if (key.empty() || key.back() != ' ') {
        key.push_back(' ');
      }
      continue;
    }
    if ((unicode::ClassTable::get()[d.code_point] & unicode::kMark) != 0) continue;
    utf8::append(
        key, static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(d.code_point))));
  }
  if (key == " ") return key;
  const std::string_view trimmed = trim(key);
  return std::string(trimmed.empty() ? text : trimmed);
}

EngramMap make_engram_map(const Tokenizer& tokenizer) {
  const auto n = static_cast<TokenId>(tokenizer.vocab_size());
  EngramMap map;
  map.ids.reserve(static_cast<size_t>(n));
  std::unordered_map<std::string, int32_t> classes;
  classes.reserve(static_cast<size_t>(n));
  for (TokenId id = 0; id < n; ++id) {
    const std::string_view bytes = tokenizer.token_bytes(id);
    // A part of a character has no text: its name in the byte-level alphabet stands for it. So does
    // U+FFFD itself, which the published encoder cannot tell from such a part.
    const bool has_text =
        utf8::is_valid(bytes) && bytes.find("\xEF\xBF\xBD") == std::string_view::npos;
    std::string key = has_text                 ? engram_key(bytes)
                      : tokenizer.is_added(id) ? std::string(bytes)
                                               : byte_level::encode(bytes);
    const auto [entry, added] = classes.try_emplace(std::move(key), map.n_classes);
    if (added) ++map.n_classes;
    map.ids.push_back(entry->second);
  }
  return map;
}

std::string engram_map_sha256(const EngramMap& map) {
  return hex(sha256(std::as_bytes(std::span(map.ids))));
}

}  // namespace deepmint
