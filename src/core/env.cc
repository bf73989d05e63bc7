#include "core/env.h"

#include <cstdlib>

namespace deepmint {
std::optional<std::string> env(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}
}  // namespace deepmint
