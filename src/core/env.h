// The one file that reads the environment. Called at start, before other threads exist.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace deepmint {
std::optional<std::string> env(const char* name);  // nullopt when unset or empty

// Every variable whose name begins with `prefix` and whose value is not empty, in the order of
// their names.
std::vector<std::pair<std::string, std::string>> env_with_prefix(std::string_view prefix);
}  // namespace deepmint
