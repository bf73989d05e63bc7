#include "kvcache/block_pool.h"

#include "core/check.h"

namespace deepmint::kvcache {
namespace {
constexpr uint32_t kEnd = static_cast<uint32_t>(kNoBlock);
}

BlockPool::BlockPool(size_t n_blocks)
    : descriptors_(n_blocks), first_free_(n_blocks == 0 ? kEnd : 0), free_(n_blocks) {
  DEEPMINT_CHECK(n_blocks < kEnd);
  for (size_t i = 0; i < n_blocks; ++i)
    descriptors_[i].next_free = i + 1 == n_blocks ? kEnd : static_cast<uint32_t>(i + 1);
}

bool BlockPool::reserve(size_t count) {
  if (count > available()) return false;
  reserved_ += count;
  return true;
}

void BlockPool::unreserve(size_t count) {
  DEEPMINT_CHECK(count <= reserved_);
  reserved_ -= count;
}

BlockId BlockPool::take_reserved() {
  DEEPMINT_CHECK(reserved_ > 0 && first_free_ != kEnd);
  const uint32_t index = first_free_;
  Descriptor& block = descriptors_[index];
  DEEPMINT_CHECK(block.references == 0);
  first_free_ = block.next_free;
  block.references = 1;
  --free_;
  --reserved_;
  return BlockId{index};
}

void BlockPool::share(BlockId block) {
  const auto index = static_cast<size_t>(block);
  DEEPMINT_CHECK(index < descriptors_.size() && descriptors_[index].references > 0);
  ++descriptors_[index].references;
}

void BlockPool::release(BlockId block) {
  const auto index = static_cast<size_t>(block);
  DEEPMINT_CHECK(index < descriptors_.size() && descriptors_[index].references > 0);
  if (--descriptors_[index].references > 0) return;
  descriptors_[index].next_free = first_free_;
  first_free_ = static_cast<uint32_t>(index);
  ++free_;
}

uint32_t BlockPool::references(BlockId block) const {
  const auto index = static_cast<size_t>(block);
  DEEPMINT_CHECK(index < descriptors_.size());
  return descriptors_[index].references;
}

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
