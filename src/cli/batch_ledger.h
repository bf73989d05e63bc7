// Which requests a batch has and which of them are done, in 24 bytes each: of names and requests
// only hashes are kept, so a million lines take 24 MB (up to three times that while they are read).
//
//   BatchLedger ledger;
//   for (each line) ledger.add(custom_id, request_digest);
//   ledger.seal();                                       // now it can be asked
//   if (auto* entry = ledger.find("a")) entry->done = true;
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "core/hash.h"

namespace deepmint::cli {

class BatchLedger {
 public:
  struct Entry {
    Hash128 custom_id;
    uint32_t request = 0;  // of the request's digest: it is another one when this differs
    bool done = false;
  };
  static_assert(sizeof(Entry) == 24);

  void add(std::string_view custom_id, const Hash128& request);
  void seal();  // after the last add()

  bool has_duplicates() const { return has_duplicates_; }
  bool is_duplicate(std::string_view custom_id) const;  // it was added more than once
  Entry* find(std::string_view custom_id);              // null: no such request
  static bool is_same(const Entry& entry, const Hash128& request) {
    return entry.request == static_cast<uint32_t>(request.low);
  }
  size_t size() const { return entries_.size(); }

 private:
  std::vector<Entry> entries_;  // by custom_id once sealed
  bool has_duplicates_ = false;
};

}  // namespace deepmint::cli
