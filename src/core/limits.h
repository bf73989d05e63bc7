// What values a setting takes, beyond its type, as its config struct's visit() states them. The
// command line, docs/knobs.md and the module that owns the struct all read the same list.
//
//   template <class V> void visit(V& v) { v("engine.max_running", max_running, "…", Limits{1, 64});
//   } DEEPMINT_CHECK_OK(check_limits(config));     // "engine.max_running: expected 1 to 64, found
//   0"
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <concepts>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "deepmint/result.h"

namespace deepmint {

struct Limits {
  double min = -std::numeric_limits<double>::infinity();  // of an integer: 0 when not said
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false;  // min itself is not allowed
  std::vector<std::string_view> choices =
      {};  // for text: one of these (the default is always allowed)
};

// The smallest and largest integer inside the limits and the type. Limits beyond 2^53 are the
// type's own.
template <std::integral T>
std::pair<T, T> integer_range(const Limits& limits) {
  constexpr T kMin = std::numeric_limits<T>::min(), kMax = std::numeric_limits<T>::max();
  const auto inside = [](double v) { return v > -0x1p53 && v < 0x1p53; };
  const double min = limits.min == -std::numeric_limits<double>::infinity() ? 0 : limits.min;
  const bool low = inside(min) && min > static_cast<double>(kMin);
  const bool high = inside(limits.max) && limits.max < static_cast<double>(kMax);
  return {low ? static_cast<T>(min) : kMin, high ? static_cast<T>(limits.max) : kMax};
}

namespace limits_internal {
struct FirstViolation {
  Status status = {};

  template <class T>
  void operator()(const char* key, const T& field, const char*, const Limits& limits = {}) {
    if constexpr (std::integral<T> && !std::same_as<T, bool>) {
      const auto [min, max] = integer_range<T>(limits);
      if (status && (field < min || field > max))
        status = fail(ErrorCode::kInvalidArgument,
                      fmt::format("expected {} to {}, found {}", min, max, field), key);
    }
  }
};
}  // namespace limits_internal

// Every integer of a config struct against its limits: kInvalidArgument names the first that is
// outside.
template <class Config>
Status check_limits(Config config) {
  limits_internal::FirstViolation check;
  config.visit(check);
  return check.status;
}

}  // namespace deepmint
