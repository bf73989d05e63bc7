// Byte strings to token ids: open addressing over the bytes themselves, built once, then read-only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "deepmint/types.h"

namespace deepmint {

// Mixes up to 16 bytes with two multiplications; longer strings in 16-byte steps.
inline uint64_t hash_bytes(const char* p, size_t n) {
  constexpr uint64_t k0 = 0x9E3779B97F4A7C15ull, k1 = 0xD6E8FEB86659FD93ull;
  const auto mix = [](uint64_t a, uint64_t b) {
    const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  };
  const auto load8 = [](const char* q) {
    uint64_t v;
    std::memcpy(&v, q, 8);
    return v;
  };
  const auto load4 = [](const char* q) {
    uint32_t v;
    std::memcpy(&v, q, 4);
    return uint64_t{v};
  };
  uint64_t h = k0 + n;
  for (; n > 16; p += 16, n -= 16) h = mix(load8(p) ^ k1, load8(p + 8) ^ h);
  uint64_t a = 0, b = 0;
  if (n >= 8) {
    a = load8(p);
    b = load8(p + n - 8);
  } else if (n >= 4) {
    a = load4(p);
    b = load4(p + n - 4);
  } else if (n > 0) {
    const auto* u = reinterpret_cast<const unsigned char*>(p);
    a = uint64_t{u[0]} << 16 | uint64_t{u[n >> 1]} << 8 | u[n - 1];
  }
  return mix(a ^ k1, b ^ h);
}

class TokenTable {
 public:
  explicit TokenTable(size_t expected = 0) {
    size_t capacity = 16;
    while (capacity < expected * 2) capacity *= 2;
    slots_.resize(capacity);
  }

  // The views must outlive the table. Keeps the first id of equal strings; at most `expected`
  // insertions.
  void insert(std::string_view text, TokenId id) {
    const uint64_t hash = hash_bytes(text.data(), text.size());
    for (size_t i = hash & mask();; i = (i + 1) & mask()) {
      Slot& slot = slots_[i];
      if (slot.id < 0) {
        slot = {text.data(), static_cast<uint32_t>(text.size()), id};
        return;
      }
      if (slot.view() == text) return;
    }
  }

  TokenId find(std::string_view text) const {  // -1 when absent
    const uint64_t hash = hash_bytes(text.data(), text.size());
    for (size_t i = hash & mask();; i = (i + 1) & mask()) {
      const Slot& slot = slots_[i];
      if (slot.id < 0 || slot.view() == text) return slot.id;
    }
  }

 private:
  struct Slot {
    const char* text = nullptr;
    uint32_t size = 0;
    TokenId id = -1;
    std::string_view view() const { return {text, size}; }
  };
  size_t mask() const { return slots_.size() - 1; }
  std::vector<Slot> slots_;
};

}  // namespace deepmint
