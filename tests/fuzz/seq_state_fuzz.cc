// Hostile sequence states. The last 16 bytes are replaced by a right checksum, or nothing would get
// past it.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/hash.h"
#include "kvcache/seq_state.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace deepmint;
  using namespace deepmint::kvcache;
  static StateArena arena =
      StateArena::create({{"kv", PartFamily::kGlobal, 64}, {"ring", PartFamily::kPrivate, 64}}, 4,
                         1)
          .value();
  static const std::vector<BlockId> blocks = {BlockId{0}, BlockId{1}, BlockId{2}, BlockId{3}};
  const auto* input = reinterpret_cast<const std::byte*>(data);
  std::vector<std::byte> bytes(input, input + size);
  if (size >= 16) {
    const Hash128 hash = xxh3_128(std::span(bytes).first(size - 16));
    std::memcpy(bytes.data() + size - 16, &hash.low, 8);
    std::memcpy(bytes.data() + size - 8, &hash.high, 8);
  }
  const auto view = decode_seq_state(
      bytes,
      {.model_fingerprint = 1, .vocab_size = 256, .context_tokens = 256, .parts = arena.parts()});
  if (!view) return 0;
  restore_parts(*view, arena, blocks, SlotId{0});
  // What was accepted can be written and read again.
  const auto again = encode_seq_state(view->state, arena, blocks, SlotId{0});
  if (again.size() != bytes.size()) __builtin_trap();
  return 0;
}
