// What values a setting takes, beyond its type. Part of the setting list in config.h.
#pragma once

#include <limits>
#include <string_view>
#include <vector>

namespace deepmint::cli {

struct Limits {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false;  // min itself is not allowed
  std::vector<std::string_view> choices =
      {};  // for text: one of these (the default is always allowed)
};

}  // namespace deepmint::cli
