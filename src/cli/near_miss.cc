#include "cli/near_miss.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "format/names.h"

namespace deepmint::cli {

namespace {
// A mistyped name is short; a pasted paragraph is not worth a quadratic comparison.
constexpr size_t kLongestName = 128;
}  // namespace

size_t edit_distance(std::string_view a, std::string_view b) {
  // Optimal string alignment: three rows of the usual table.
  std::vector<size_t> before(b.size() + 1), previous(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) previous[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] =
          std::min({previous[j] + 1, row[j - 1] + 1, previous[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, previous);
    std::swap(previous, row);
  }
  return previous[b.size()];
}

std::string near_miss(std::string_view name, std::span<const std::string> known) {
  if (name.size() > kLongestName) return {};
  std::string best;
  size_t best_distance = 0;
  for (const std::string& candidate : known) {
    const size_t distance = edit_distance(name, candidate);
    const size_t limit = std::max<size_t>(1, std::max(name.size(), candidate.size()) / 3);
    if (distance <= limit && (best.empty() || distance < best_distance)) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

Error unknown_name(std::string_view what, std::string_view name, std::span<const std::string> known,
                   std::string where) {
  const std::string near = near_miss(name, known);
  std::string message = fmt::format("unknown {} {}", what, quote_name(name));
  if (!near.empty()) message += fmt::format("; did you mean \"{}\"?", near);
  return Error{ErrorCode::kInvalidArgument, std::move(message), std::move(where)};
}

}  // namespace deepmint::cli
