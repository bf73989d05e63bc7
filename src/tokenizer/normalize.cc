#include "tokenizer/normalize.h"

#include <utf8proc.h>

#include <cstdlib>
#include <memory>

#include "core/check.h"

namespace deepmint {
namespace {

// Everything below U+0300 is a starter that composes with nothing before it: such text is in form C
// as it stands.
bool is_surely_nfc(std::string_view text) {
  for (char c : text)
    if (static_cast<unsigned char>(c) >= 0xCC) return false;  // lead byte of U+0300 and up
  return true;
}

}  // namespace

std::string_view to_nfc(std::string_view text, std::string& buffer) {
  if (is_surely_nfc(text)) return text;
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t n =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &mapped,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(mapped, &std::free);
  DEEPMINT_CHECK(n >= 0);  // fails on invalid UTF-8 only
  buffer.assign(reinterpret_cast<const char*>(mapped), static_cast<size_t>(n));
  return buffer;
}

}  // namespace deepmint
