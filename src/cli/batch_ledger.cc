#include "cli/batch_ledger.h"

#include <algorithm>
#include <tuple>

namespace deepmint::cli {
namespace {

Hash128 name_hash(std::string_view custom_id) { return xxh3_128(as_byte_span(custom_id)); }

bool before(const Hash128& a, const Hash128& b) {
  return std::tie(a.high, a.low) < std::tie(b.high, b.low);
}

struct ByName {
  bool operator()(const BatchLedger::Entry& a, const BatchLedger::Entry& b) const {
    return before(a.custom_id, b.custom_id);
  }
  bool operator()(const BatchLedger::Entry& a, const Hash128& b) const {
    return before(a.custom_id, b);
  }
  bool operator()(const Hash128& a, const BatchLedger::Entry& b) const {
    return before(a, b.custom_id);
  }
};

}  // namespace

void BatchLedger::add(std::string_view custom_id, const Hash128& request) {
  entries_.push_back({name_hash(custom_id), static_cast<uint32_t>(request.low)});
}

void BatchLedger::seal() {
  std::sort(entries_.begin(), entries_.end(), ByName());
  has_duplicates_ =
      std::adjacent_find(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
        return a.custom_id == b.custom_id;
      }) != entries_.end();
}

bool BatchLedger::is_duplicate(std::string_view custom_id) const {
  const auto range =
      std::equal_range(entries_.begin(), entries_.end(), name_hash(custom_id), ByName());
  return range.second - range.first > 1;
}

BatchLedger::Entry* BatchLedger::find(std::string_view custom_id) {
  const Hash128 name = name_hash(custom_id);
  const auto at = std::lower_bound(entries_.begin(), entries_.end(), name, ByName());
  return at != entries_.end() && at->custom_id == name ? &*at : nullptr;
}

}  // namespace deepmint::cli
