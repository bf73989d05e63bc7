#include "core/names.h"

#include <fmt/format.h>

#include "core/utf8.h"

namespace deepmint {

std::string printable(std::string_view text) {
  const std::string valid = utf8::sanitize(text);
  std::string out;
  out.reserve(valid.size());
  for (size_t i = 0; i < valid.size(); ++i) {
    const auto byte = static_cast<unsigned char>(valid[i]);
    // U+0080 … U+009F (C2 80 … C2 9F) are control characters too: some terminals act on them.
    const bool c1 =
        byte == 0xC2 && i + 1 < valid.size() && static_cast<unsigned char>(valid[i + 1]) < 0xA0;
    if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else if (c1) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(valid[++i]));
    } else {
      out.push_back(valid[i]);
    }
  }
  return out;
}

std::string quote_name(std::string_view name, size_t max_bytes) {
  const bool cut = name.size() > max_bytes;
  if (cut) {
    name = name.substr(0, max_bytes);
    name.remove_suffix(utf8::incomplete_tail(name));
  }
  return "\"" + printable(name) + (cut ? "…\"" : "\"");
}

}  // namespace deepmint
