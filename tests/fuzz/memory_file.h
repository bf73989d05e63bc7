// One file in memory that a fuzzer fills again for every input, for readers that take a path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace deepmint::fuzz {

// Replaces the contents and returns the path. Aborts when the system refuses. One per process.
const std::filesystem::path& memory_file(std::span<const uint8_t> contents);

}  // namespace deepmint::fuzz
