// For the tests of EngineCore: a small engine, and a mask.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/engine_testing.h"

namespace deepmint::testing {

inline constexpr int32_t kContext = 512;

inline EngineConfig config(int32_t max_running = 8, int32_t step_tokens = 32, int64_t n_blocks = 64,
                           bool plan_ahead = false) {
  EngineConfig c;
  c.plan_ahead = plan_ahead;
  c.park_bytes = 1 << 20;
  c.snapshot_bytes = 0;
  c.max_running = max_running;
  c.step_tokens = step_tokens;
  c.context_tokens = kContext;
  c.kv_bytes = n_blocks * static_cast<int64_t>(FakeModel().bytes_per_block()) +
               max_running * static_cast<int64_t>(FakeModel().bytes_per_slot()) + c.park_bytes;
  return c;
}

inline std::shared_ptr<FakeModel> fake(FakeModel::Options options = {}) {
  return std::make_shared<FakeModel>(std::move(options));
}

// Even ids only, for the first four tokens.
class EvenIds : public TokenMask {
 public:
  explicit EvenIds(size_t words) : words_(words, 0x55555555u) {}
  std::span<const uint32_t> allowed() override {
    return open_ ? std::span<const uint32_t>() : words_;
  }
  void accept(TokenId id) override { accepted.push_back(id), open_ = accepted.size() >= 4; }
  std::vector<TokenId> accepted;
  std::vector<uint32_t> words_;
  bool open_ = false;
};

}  // namespace deepmint::testing
