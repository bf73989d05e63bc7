// What the tests of FastOps share: FastOps alone, a configuration, random rows, and the fixture
// that runs on every instruction set.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "core/thread_pool.h"
#include "model/deepseek_v41/fast_ops.h"
#include "model/deepseek_v41/formats.h"
#include "model/deepseek_v41/rounding_testing.h"
#include "support/isa_test.h"
#include "support/test_seed.h"

namespace deepmint::v41::testing {

// FastOps alone: what needs weight matrices is not asked for.
class Ops : public FastOps {
 public:
  using FastOps::FastOps;
  void linear(const Matrix&, const float*, int64_t, float*, Output) override { FAIL(); }
  void linear_groups(std::span<const Matrix>, const float*, int64_t, float*) override { FAIL(); }
  void moe(const float*, int64_t, const Config&, int, const LayerWeights&, float*) override {
    FAIL();
  }
};

inline Config config(int hidden = 128, int heads = 8, int head_dim = 64) {
  Config c;
  c.hidden = hidden;
  c.streams = 4;
  c.heads = heads;
  c.head_dim = head_dim;
  c.rope_dim = 32;
  c.window = 128;
  c.index_heads = 8;
  c.index_dim = 128;
  c.index_topk = 64;
  c.candidate_layer = 5;
  c.candidate_blocks = 40;
  c.candidate_block_size = 8;
  c.sinkhorn_rounds = 20;
  c.hc_eps = 1e-6f;
  c.norm_eps = 1e-20;
  c.engram_dim = 64;
  return c;
}

struct Random {
  std::mt19937 rng;
  std::normal_distribution<float> normal;
  explicit Random(uint32_t salt) : rng(deepmint::testing::test_seed() * 977u + salt) {}
  std::vector<float> bf16(size_t n, float spread = 1) {
    std::vector<float> v(n);
    for (float& x : v) x = round_bf16(normal(rng) * spread);
    return v;
  }
  std::vector<float> f32(size_t n, float spread = 1) {
    std::vector<float> v(n);
    for (float& x : v) x = normal(rng) * spread;
    return v;
  }
};

// Whether correct rounding allows the kernel's result and the reference's.
inline ::testing::AssertionResult rounded(const Rounded& allowed, float got, float reference) {
  if (allowed.holds(got) && allowed.holds(reference)) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << got << ", the reference " << reference << ", allowed "
                                       << allowed.low << " to " << allowed.high;
}

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

class FastOpsTest : public deepmint::testing::IsaTest {
 protected:
  // Fresh operations for a configuration; 1 and 3 threads take different ways.
  std::unique_ptr<Ops> ops(const Config& c, int threads = 1) {
    pools_.push_back(std::make_unique<ThreadPool>(threads));
    auto o = std::make_unique<Ops>(pools_.back().get());
    EXPECT_TRUE(o->reserve(c, 512));
    return o;
  }
  std::unique_ptr<Arithmetic> reference_ = make_reference_arithmetic();

  std::vector<std::unique_ptr<ThreadPool>> pools_;
};

}  // namespace deepmint::v41::testing
