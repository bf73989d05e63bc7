#include "recipe/turn_store.h"

namespace deepmint::recipe {
namespace {

// Tenant and id cannot run into each other: the length of the tenant comes first.
std::string key_of(std::string_view tenant, std::string_view id) {
  std::string key = std::to_string(tenant.size());
  key.append(":").append(tenant).append(id);
  return key;
}

}  // namespace

template <class T>
void MemoryTurnStore::put(Table<T>& table, std::string key, T value) {
  const std::lock_guard lock(mutex_);
  const auto [it, is_new] = table.entries.insert_or_assign(key, std::move(value));
  if (!is_new) return;
  table.order.push_back(std::move(key));
  if (table.order.size() > max_entries_) {
    table.entries.erase(table.order.front());
    table.order.pop_front();
  }
}

std::optional<StoredTurn> MemoryTurnStore::find_turn(std::string_view tenant,
                                                     std::string_view response_id) const {
  const std::lock_guard lock(mutex_);
  const auto it = turns_.entries.find(key_of(tenant, response_id));
  if (it == turns_.entries.end()) return std::nullopt;
  return it->second;
}

std::optional<StoredCall> MemoryTurnStore::find_call(std::string_view tenant,
                                                     std::string_view call_id) const {
  const std::lock_guard lock(mutex_);
  const auto it = calls_.entries.find(key_of(tenant, call_id));
  if (it == calls_.entries.end()) return std::nullopt;
  return it->second;
}

void MemoryTurnStore::put_turn(std::string_view tenant, std::string_view response_id,
                               StoredTurn turn) {
  put(turns_, key_of(tenant, response_id), std::move(turn));
}

void MemoryTurnStore::put_call(std::string_view tenant, std::string_view call_id, StoredCall call) {
  put(calls_, key_of(tenant, call_id), std::move(call));
}

}  // namespace deepmint::recipe
