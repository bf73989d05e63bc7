// Hashes behind one door: XXH3 for identity inside the process and for damage; SHA-256 where
// someone might want to collide.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace deepmint {

struct Hash128 {
  uint64_t low = 0, high = 0;
  friend bool operator==(const Hash128&, const Hash128&) = default;
};

uint64_t xxh3_64(std::span<const std::byte> bytes, uint64_t seed = 0);
Hash128 xxh3_128(std::span<const std::byte> bytes, uint64_t seed = 0);
std::array<std::byte, 32> sha256(std::span<const std::byte> bytes);
std::string hex(std::span<const std::byte> bytes);

inline std::span<const std::byte> as_byte_span(std::string_view s) {
  return {reinterpret_cast<const std::byte*>(s.data()), s.size()};
}

}  // namespace deepmint
