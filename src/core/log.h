// Logging: a thin layer over spdlog, to stderr. Never log prompts, replies or secrets.
//   log().info("loaded {} tensors in {:.2f} s", n, seconds);
#pragma once

#include <spdlog/spdlog.h>

#include "deepmint/result.h"

namespace deepmint {

spdlog::logger& log();
Status set_log_level(std::string_view level);  // trace, debug, info, warn, error, off

}  // namespace deepmint
