// The seed of this run's random tests: DEEPMINT_TEST_SEED, else drawn. Printed once per program, so
// that a failure can be repeated.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace deepmint::testing {

inline uint64_t test_seed() {
  static const uint64_t seed = [] {
    const char* given = std::getenv("DEEPMINT_TEST_SEED");
    const uint64_t s =
        given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
    std::printf("DEEPMINT_TEST_SEED=%llu\n", static_cast<unsigned long long>(s));
    return s;
  }();
  return seed;
}

}  // namespace deepmint::testing
