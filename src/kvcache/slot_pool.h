// Who owns which slot of private state.
//
//   SlotPool pool(64);
//   const SlotId slot = pool.take();           // kNoSlot: none is free
//   pool.release(slot);
//
// Everything is allocated by the constructor. One thread. A slot released twice is our bug and
// aborts.
#pragma once

#include <cstddef>
#include <vector>

#include "deepmint/types.h"

namespace deepmint::kvcache {

class SlotPool {
 public:
  explicit SlotPool(size_t n_slots);
  size_t total() const { return used_.size(); }
  size_t free() const { return free_.size(); }
  SlotId take();  // kNoSlot when none is free
  void release(SlotId slot);

 private:
  std::vector<bool> used_;
  std::vector<SlotId> free_;
};

}  // namespace deepmint::kvcache
