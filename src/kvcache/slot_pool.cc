#include "kvcache/slot_pool.h"

#include "core/check.h"

namespace deepmint::kvcache {

SlotPool::SlotPool(size_t n_slots) : used_(n_slots) {
  DEEPMINT_CHECK(n_slots < static_cast<size_t>(kNoSlot));
  free_.reserve(n_slots);
  for (size_t i = n_slots; i > 0; --i) free_.push_back(SlotId{static_cast<uint32_t>(i - 1)});
}

SlotId SlotPool::take() {
  if (free_.empty()) return kNoSlot;
  const SlotId slot = free_.back();
  free_.pop_back();
  used_[static_cast<size_t>(slot)] = true;
  return slot;
}

void SlotPool::release(SlotId slot) {
  const auto index = static_cast<size_t>(slot);
  DEEPMINT_CHECK(index < used_.size() && used_[index]);
  used_[index] = false;
  free_.push_back(slot);
}

}  // namespace deepmint::kvcache
