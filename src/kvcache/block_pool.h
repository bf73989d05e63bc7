// Who owns which piece of state memory: blocks of kBlockTokens positions, shared by reference
// count, and slots of private state.
//
//   BlockPool pool(1024);
//   if (!pool.reserve(need)) ...wait...        // set aside, not yet chosen
//   BlockId b = pool.take_reserved();          // one reference
//   pool.share(b);                             // a second holder
//   pool.release(b); pool.release(b);          // the last one frees it
//   assert(pool.free() == 1024);               // the leak counter
//
// Everything is allocated by the constructor. One thread. A reference too many or too few is our
// bug and aborts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "deepmint/types.h"

namespace deepmint::kvcache {

class BlockPool {
 public:
  explicit BlockPool(size_t n_blocks);

  size_t total() const { return descriptors_.size(); }
  size_t free() const { return free_; }  // without a holder, reserved or not
  size_t in_use() const { return total() - free_; }
  size_t reserved() const { return reserved_; }
  size_t available() const { return free_ - reserved_; }

  // Sets `count` blocks aside for later take_reserved() calls. False, and nothing happens, when
  // that many are not available.
  [[nodiscard]] bool reserve(size_t count);
  void unreserve(size_t count);

  // A free block with one reference, out of what was reserved. The block that was freed last comes
  // first: its memory is warm, and an engine with little to do touches little memory.
  BlockId take_reserved();

  void share(BlockId block);    // one more holder
  void release(BlockId block);  // one less; the last frees it
  uint32_t references(BlockId block) const;

 private:
  struct Descriptor {
    uint32_t references = 0;
    uint32_t next_free = 0;
  };
  std::vector<Descriptor> descriptors_;
  uint32_t first_free_;
  size_t free_, reserved_ = 0;
};

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
