// Random numbers for tests, and the seed that makes a failure repeatable.
//
//   const uint64_t seed = test_seed();
//   SCOPED_TRACE(seed_note(seed));            // a failure then prints how to run it again
//   Random random(seed);
#pragma once

#include <cstdint>
#include <string>

namespace deepmint::testing {

// SplitMix64: small, seedable, the same everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  uint64_t below(uint64_t n) { return next() % n; }  // n > 0; slightly uneven for huge n
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }  // [0, 1)

 private:
  uint64_t state_;
};

uint64_t test_seed();                  // DEEPMINT_TEST_SEED, else a new one each run
std::string seed_note(uint64_t seed);  // "DEEPMINT_TEST_SEED=7"

}  // namespace deepmint::testing
