#include "model/deepseek_v41/engram.h"

#include <array>
#include <unordered_set>

namespace deepmint::v41 {
namespace {

using U128 = unsigned __int128;

bool is_prime(int64_t n) {
  if (n < 2) return false;
  if (n % 2 == 0) return n == 2;
  for (int64_t d = 3; d * d <= n; d += 2)
    if (n % d == 0) return false;
  return true;
}

// NumPy's default_rng(seed): SeedSequence entropy mixing into PCG64 (XSL-RR), and Lemire's bounded
// integers. The checkpoint's multipliers are defined by it.
class NumpyRng {
 public:
  explicit NumpyRng(uint32_t seed) {
    std::array<uint32_t, 4> pool{};
    uint32_t hash_const = 0x43b0d7e5u;
    const auto hashmix = [&](uint32_t value) {
      value ^= hash_const;
      hash_const *= 0x931e8875u;
      value *= hash_const;
      return value ^ value >> 16;
    };
    const auto mix = [](uint32_t x, uint32_t y) {
      const uint32_t r = 0xca01f9ddu * x - 0x4973f715u * y;
      return r ^ r >> 16;
    };
    pool[0] = hashmix(seed);
    for (size_t i = 1; i < pool.size(); ++i) pool[i] = hashmix(0);
    for (size_t src = 0; src < pool.size(); ++src)
      for (size_t dst = 0; dst < pool.size(); ++dst)
        if (src != dst) pool[dst] = mix(pool[dst], hashmix(pool[src]));
    // generate_state: eight 32-bit words, read as four 64-bit words, low word first.
    std::array<uint32_t, 8> words{};
    hash_const = 0x8b51f9ddu;
    for (size_t i = 0; i < words.size(); ++i) {
      uint32_t value = pool[i % pool.size()];
      value ^= hash_const;
      hash_const *= 0x58f38dedu;
      value *= hash_const;
      words[i] = value ^ value >> 16;
    }
    const auto word64 = [&](size_t i) {
      return static_cast<uint64_t>(words[2 * i]) | static_cast<uint64_t>(words[2 * i + 1]) << 32;
    };
    const U128 init_state = static_cast<U128>(word64(0)) << 64 | word64(1);
    const U128 init_sequence = static_cast<U128>(word64(2)) << 64 | word64(3);
    increment_ = init_sequence << 1 | 1;
    step();
    state_ += init_state;
    step();
  }

  uint64_t next() {
    step();
    const uint64_t value = static_cast<uint64_t>(state_ >> 64) ^ static_cast<uint64_t>(state_);
    const unsigned rotate = static_cast<unsigned>(state_ >> 122);
    return value >> rotate | value << ((64 - rotate) & 63);
  }

  uint64_t below(uint64_t bound) {  // uniform in [0, bound), bound > 1; bounds up to 2^32 use
                                    // NumPy's buffered 32-bit path
    if (bound == 1) return 0;
    if (bound <= 0xFFFFFFFFull) return below32(static_cast<uint32_t>(bound));
    U128 m = static_cast<U128>(next()) * bound;
    uint64_t left = static_cast<uint64_t>(m);
    if (left < bound) {
      const uint64_t threshold = (0 - bound) % bound;
      while (left < threshold) {
        m = static_cast<U128>(next()) * bound;
        left = static_cast<uint64_t>(m);
      }
    }
    return static_cast<uint64_t>(m >> 64);
  }

 private:
  void step() {
    constexpr U128 kMultiplier =
        static_cast<U128>(2549297995355413924ull) << 64 | 4865540595714422341ull;
    state_ = state_ * kMultiplier + increment_;
  }
  uint32_t next32() {
    if (has_half_) {
      has_half_ = false;
      return half_;
    }
    const uint64_t word = next();
    has_half_ = true;
    half_ = static_cast<uint32_t>(word >> 32);
    return static_cast<uint32_t>(word);
  }
  uint64_t below32(uint32_t bound) {
    uint64_t m = static_cast<uint64_t>(next32()) * bound;
    uint32_t left = static_cast<uint32_t>(m);
    if (left < bound) {
      const uint32_t threshold = (0u - bound) % bound;
      while (left < threshold) {
        m = static_cast<uint64_t>(next32()) * bound;
        left = static_cast<uint32_t>(m);
      }
    }
    return m >> 32;
  }

  U128 state_ = 0, increment_ = 0;
  bool has_half_ = false;
  uint32_t half_ = 0;
};

}  // namespace

std::vector<EngramLayer> make_engram_layers(std::span<const int> layers, int max_ngram, int heads,
                                            int64_t vocab_start, int64_t compressed_vocab) {
  std::vector<EngramLayer> out;
  std::unordered_set<int64_t> used;
  for (const int layer : layers) {
    EngramLayer e;
    e.layer = layer;
    for (int gram = 2; gram <= max_ngram; ++gram) {
      int64_t candidate = vocab_start - 1;
      for (int head = 0; head < heads; ++head) {
        ++candidate;
        while (used.contains(candidate) || !is_prime(candidate)) ++candidate;
        used.insert(candidate);
        e.primes.push_back(candidate);
      }
    }
    for (const int64_t p : e.primes) {
      e.offsets.push_back(e.rows);
      e.rows += p;
    }
    const int64_t bound = std::max<int64_t>(1, INT64_MAX / compressed_vocab / 2);
    NumpyRng rng(static_cast<uint32_t>(10007 * layer));
    for (int k = 0; k < max_ngram; ++k)
      e.multipliers.push_back(
          static_cast<int64_t>(2 * rng.below(static_cast<uint64_t>(bound)) + 1));
    out.push_back(std::move(e));
  }
  return out;
}

void engram_rows(const EngramLayer& layer, int heads, std::span<const int64_t> context,
                 std::span<int64_t> rows) {
  int64_t hash = context[0] * layer.multipliers[0];
  size_t column = 0;
  for (size_t n = 1; n < layer.multipliers.size(); ++n) {
    hash ^= context[n] * layer.multipliers[n];
    for (int head = 0; head < heads; ++head, ++column)
      rows[column] = hash % layer.primes[column] + layer.offsets[column];
  }
}

}  // namespace deepmint::v41
