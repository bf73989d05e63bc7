// The memory behind every block and slot: one allocation at start, divided into one array per state
// part.
//
//   DEEPMINT_TRY(arena, StateArena::create(parts, n_blocks, n_slots));
//   std::span<std::byte> bytes = arena.element(part, index);   // of a block or a slot
//
// Pages that nobody wrote cost no memory. The bytes are opaque here: the model that declared a part
// is the only one who reads them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/aligned.h"
#include "deepmint/result.h"

namespace deepmint::kvcache {

enum class PartFamily : uint8_t { kGlobal = 0, kPrivate = 1 };  // one element per block / per slot

struct PartSpec {
  std::string name;  // at most 31 bytes
  PartFamily family = PartFamily::kGlobal;
  size_t bytes = 0;  // of one element; a multiple of 64
  friend bool operator==(const PartSpec&, const PartSpec&) = default;
};

size_t bytes_per_block(std::span<const PartSpec> parts);  // of all global parts together
size_t bytes_per_slot(std::span<const PartSpec> parts);   // of all private parts together

class StateArena {
 public:
  // kResourceExhausted when the system does not give that much; kInvalidArgument for a part that is
  // misdeclared.
  static Result<StateArena> create(std::vector<PartSpec> parts, size_t n_blocks, size_t n_slots);

  std::span<const PartSpec> parts() const { return parts_; }
  size_t count(size_t part) const;  // blocks or slots
  std::byte* base(size_t part) { return memory_.data() + offsets_[part]; }
  std::span<std::byte> element(size_t part, size_t index);
  std::span<const std::byte> element(size_t part, size_t index) const;
  size_t bytes() const { return memory_.size(); }

 private:
  StateArena() = default;
  std::vector<PartSpec> parts_;
  std::vector<size_t> offsets_;
  size_t n_blocks_ = 0, n_slots_ = 0;
  AlignedBuffer<std::byte> memory_;
};

}  // namespace deepmint::kvcache
