// The one file that reads the environment. Called at start, before other threads exist.
#pragma once

#include <optional>
#include <string>

namespace deepmint {
std::optional<std::string> env(const char* name);  // nullopt when unset or empty
}
