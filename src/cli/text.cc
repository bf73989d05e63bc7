#include "cli/text.h"

#include <fmt/format.h>

#include "core/utf8.h"

namespace deepmint::cli {

std::string one_line(std::string_view text) {
  std::string out;
  for (const char c : utf8::sanitize(text)) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out;
}

std::string shown(std::string_view text) {
  constexpr size_t kShownBytes = 60;
  if (text.size() <= kShownBytes) return "\"" + one_line(text) + "\"";
  std::string_view head = text.substr(0, kShownBytes);
  head.remove_suffix(utf8::incomplete_tail(head));
  return "\"" + one_line(head) + "…\"";
}

}  // namespace deepmint::cli
