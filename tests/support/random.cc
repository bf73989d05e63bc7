#include "support/random.h"

#include <cstdlib>
#include <random>

namespace deepmint::testing {

uint64_t test_seed() {
  if (const char* given = std::getenv("DEEPMINT_TEST_SEED"))
    return std::strtoull(given, nullptr, 10);
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

std::string seed_note(uint64_t seed) { return "DEEPMINT_TEST_SEED=" + std::to_string(seed); }

}  // namespace deepmint::testing
