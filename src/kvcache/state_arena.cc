#include "kvcache/state_arena.h"

#include <fmt/format.h>

#include "core/check.h"
#include "core/checked.h"

namespace deepmint::kvcache {
namespace {

constexpr size_t kMaxName = 31;
constexpr size_t kAlignment = 64;

size_t sum_of(std::span<const PartSpec> parts, PartFamily family) {
  size_t bytes = 0;
  for (const PartSpec& part : parts)
    if (part.family == family) bytes += part.bytes;
  return bytes;
}

}  // namespace

size_t bytes_per_block(std::span<const PartSpec> parts) {
  return sum_of(parts, PartFamily::kGlobal);
}
size_t bytes_per_slot(std::span<const PartSpec> parts) {
  return sum_of(parts, PartFamily::kPrivate);
}

Result<StateArena> StateArena::create(std::vector<PartSpec> parts, size_t n_blocks,
                                      size_t n_slots) {
  StateArena arena;
  uint64_t total = 0;
  for (const PartSpec& part : parts) {
    if (part.name.empty() || part.name.size() > kMaxName || part.bytes == 0 ||
        part.bytes % kAlignment != 0)
      return fail(
          ErrorCode::kInvalidArgument,
          fmt::format("expected a name of 1 to {} bytes and a multiple of {} bytes, found {} bytes",
                      kMaxName, kAlignment, part.bytes),
          "state part \"" + part.name + "\"");
    const auto bytes =
        checked_mul(part.bytes, part.family == PartFamily::kGlobal ? n_blocks : n_slots);
    const auto end = bytes ? checked_add(total, *bytes) : std::nullopt;
    if (!end)
      return fail(ErrorCode::kTooLarge, "state of all sequences does not fit 64 bits", part.name);
    arena.offsets_.push_back(total);
    total = *end;
  }
  arena.parts_ = std::move(parts);
  arena.n_blocks_ = n_blocks;
  arena.n_slots_ = n_slots;
  try {
    // Zeros, for the bytes between parts that nobody writes: saved states have them, too. Where it
    // is large the system's pages are zeros already.
    arena.memory_ = AlignedBuffer<std::byte>(total);
  } catch (const std::bad_alloc&) {
    return fail(
        ErrorCode::kResourceExhausted,
        fmt::format("expected {} bytes of memory for sequence state, the system refused", total));
  }
  return arena;
}

size_t StateArena::count(size_t part) const {
  return parts_[part].family == PartFamily::kGlobal ? n_blocks_ : n_slots_;
}

std::span<std::byte> StateArena::element(size_t part, size_t index) {
  DEEPMINT_CHECK(part < parts_.size() && index < count(part));
  return {memory_.data() + offsets_[part] + index * parts_[part].bytes, parts_[part].bytes};
}

std::span<const std::byte> StateArena::element(size_t part, size_t index) const {
  DEEPMINT_CHECK(part < parts_.size() && index < count(part));
  return {memory_.data() + offsets_[part] + index * parts_[part].bytes, parts_[part].bytes};
}

}  // namespace deepmint::kvcache
