#include "core/env.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace deepmint {
std::optional<std::string> env(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

std::vector<std::pair<std::string, std::string>> env_with_prefix(std::string_view prefix) {
  std::vector<std::pair<std::string, std::string>> out;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos || !text.starts_with(prefix) || equals + 1 == text.size())
      continue;
    out.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace deepmint
