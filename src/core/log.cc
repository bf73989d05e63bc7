#include "core/log.h"

#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <array>
#include <memory>

namespace deepmint {

spdlog::logger& log() {
  static const std::shared_ptr<spdlog::logger> logger = [] {
    auto l = std::make_shared<spdlog::logger>("deepmint",
                                              std::make_shared<spdlog::sinks::stderr_sink_mt>());
    l->set_pattern("%Y-%m-%dT%H:%M:%S.%e %l %v");
    l->set_level(spdlog::level::warn);
    l->flush_on(spdlog::level::info);
    return l;
  }();
  return *logger;
}

Status set_log_level(std::string_view level) {
  constexpr std::array<std::pair<std::string_view, spdlog::level::level_enum>, 6> kLevels = {
      {{"trace", spdlog::level::trace},
       {"debug", spdlog::level::debug},
       {"info", spdlog::level::info},
       {"warn", spdlog::level::warn},
       {"error", spdlog::level::err},
       {"off", spdlog::level::off}}};
  for (const auto& [name, value] : kLevels) {
    if (name == level) {
      log().set_level(value);
      return {};
    }
  }
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("expected trace, debug, info, warn, error or off, found \"{}\"", level),
              "log level");
}

}  // namespace deepmint
