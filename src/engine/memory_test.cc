#include "engine/memory.h"

#include <gtest/gtest.h>

#include "kvcache/cache_manager.h"

namespace deepmint {
namespace {

using kvcache::PartFamily;
using kvcache::PartSpec;

const std::vector<PartSpec> kDense = {{"kv", PartFamily::kGlobal, 1000 * 64}};
const std::vector<PartSpec> kRings = {{"kv", PartFamily::kGlobal, 64},
                                      {"ring", PartFamily::kPrivate, 6400}};
constexpr uint64_t kLots = uint64_t{1} << 40;

TEST(PlanState, WholeContextForEveryoneWhenMemoryIsThere) {
  EngineConfig c;
  c.max_running = 4;
  c.prefix_cache = false;
  const StatePlan p = plan_state(c, kDense, 1000, kLots).value();
  EXPECT_EQ(p.context_tokens, 1000);
  EXPECT_EQ(p.n_blocks, 4u * 16);
  EXPECT_EQ(p.n_slots, 0u);
  EXPECT_EQ(p.max_running, 4);
  EXPECT_EQ(p.bytes, 64u * 64000);
  // With a prefix cache there is room for four times as much: prefixes that may come again.
  c.prefix_cache = true;
  EXPECT_EQ(plan_state(c, kDense, 1000, kLots).value().n_blocks, 4u * 4 * 16);
}

TEST(PlanState, DefaultBudgetIsHalfOfTheFreeMemory) {
  const StatePlan p = plan_state({}, kDense, 8192, 64000 * 200).value();
  EXPECT_EQ(p.n_blocks, 100u);
  EXPECT_EQ(p.context_tokens, 6400);  // capped: one sequence must fit
}

TEST(PlanState, BudgetIsHonoured) {
  for (const int64_t budget : {64000, 64001, 127999, 128000, 10'000'000}) {
    EngineConfig c;
    c.kv_bytes = budget;
    const StatePlan p = plan_state(c, kDense, 8192, kLots).value();
    EXPECT_LE(p.bytes + p.park_bytes, static_cast<uint64_t>(budget));
    EXPECT_GT(p.bytes + p.park_bytes + 64000,
              static_cast<uint64_t>(std::min<int64_t>(budget, 64 * 128 * 64000)));
  }
}

TEST(PlanState, PrivateStateIsCountedPerSequence) {
  EngineConfig c;
  c.kv_bytes = 64 * 6400;
  const StatePlan p = plan_state(c, kRings, 1000, kLots).value();
  EXPECT_EQ(p.n_slots, 32u);  // at most half of the budget
  EXPECT_EQ(p.max_running, 32);
  EXPECT_LE(p.bytes, 64u * 6400);
}

TEST(PlanState, WhatIsSetAsideIsPartOfTheBudget) {
  EngineConfig c;
  c.kv_bytes = 64 << 20;
  const StatePlan p = plan_state(c, kRings, 1000, kLots).value();
  EXPECT_EQ(p.park_bytes, (64u << 20) / 8);
  EXPECT_EQ(p.n_snapshots, (64u << 20) / 8 / 6400);
  EXPECT_LE(p.bytes + p.park_bytes, 64u << 20);
  c.park_bytes = 0;
  c.snapshot_bytes = 6400 * 10;
  const StatePlan q = plan_state(c, kRings, 1000, kLots).value();
  EXPECT_EQ(q.park_bytes, 0u);
  EXPECT_EQ(q.n_snapshots, 10u);
  c.prefix_cache = false;
  EXPECT_EQ(plan_state(c, kRings, 1000, kLots).value().n_snapshots, 0u);
  c.park_bytes = 64 << 20;
  EXPECT_EQ(plan_state(c, kRings, 1000, kLots).error().where, "engine.kv_bytes");
}

// Blocks, slots, snapshots, parking and books together, for the layouts of real models.
TEST(PlanState, TheBudgetIsHonouredWithinTwoPercent) {
  const std::vector<PartSpec> small_dense = {{"kv", PartFamily::kGlobal, 64 * 23'040}};
  const std::vector<PartSpec> v41 = {{"latents", PartFamily::kGlobal, 64 * 720},
                                     {"index", PartFamily::kGlobal, 64 * 170},
                                     {"rings", PartFamily::kPrivate, 40 * 128 * 528},
                                     {"carry", PartFamily::kPrivate, 12 << 10}};
  for (const auto* parts : {&small_dense, &v41})
    for (const int64_t mib : {256, 512, 1024, 8192}) {
      EngineConfig c;
      c.kv_bytes = mib << 20;
      const StatePlan p = plan_state(c, *parts, 1 << 20, kLots).value();
      const auto budget = static_cast<double>(c.kv_bytes);
      const size_t books = kvcache::CacheManager::bookkeeping_bytes({.parts = *parts,
                                                                     .n_blocks = p.n_blocks,
                                                                     .n_slots = p.n_slots,
                                                                     .n_snapshots = p.n_snapshots});
      EXPECT_LE(static_cast<double>(p.bytes + p.park_bytes), budget);
      EXPECT_GE(static_cast<double>(p.bytes + p.park_bytes), 0.98 * budget) << mib;
      EXPECT_LE(static_cast<double>(p.bytes + p.park_bytes + books), 1.02 * budget) << mib;
    }
}

TEST(PlanState, SaysWhichSettingDoesNotFit) {
  const auto refusal = [](auto change, uint64_t available = kLots) {
    EngineConfig c;
    change(c);
    const auto p = plan_state(c, kDense, 8192, available);
    if (p) return std::string("accepted");
    EXPECT_EQ(p.error().code, ErrorCode::kInvalidArgument);
    return p.error().where;
  };
  EXPECT_EQ(refusal([](auto&) {}), "accepted");
  EXPECT_EQ(refusal([](auto& c) { c.max_running = 0; }), "engine.max_running");
  EXPECT_EQ(refusal([](auto& c) { c.max_running = 1 << 20; }), "engine.max_running");
  EXPECT_EQ(refusal([](auto& c) { c.max_waiting = 0; }), "engine.max_waiting");
  EXPECT_EQ(refusal([](auto& c) { c.step_tokens = 63; }), "engine.step_tokens");
  EXPECT_EQ(refusal([](auto& c) { c.context_tokens = 8193; }), "engine.context_tokens");
  EXPECT_EQ(refusal([](auto& c) { c.context_tokens = -1; }), "engine.context_tokens");
  EXPECT_EQ(refusal([](auto& c) { c.kv_bytes = -1; }), "engine.kv_bytes");
  EXPECT_EQ(refusal([](auto& c) { c.kv_bytes = 63999; }), "engine.kv_bytes");
  EXPECT_EQ(refusal([](auto& c) { c.kv_bytes = 64000, c.context_tokens = 65; }), "engine.kv_bytes");
  EXPECT_EQ(refusal([](auto& c) { c.kv_bytes = 128000, c.context_tokens = 65; }), "accepted");
  EXPECT_EQ(refusal([](auto& c) { c.kv_bytes = 1 << 30; }, 1 << 29), "engine.kv_bytes");
}

TEST(AvailableMemory, IsPlausible) {
  EXPECT_GT(available_memory(), uint64_t{1} << 20);
  EXPECT_LT(available_memory(), uint64_t{1} << 50);
}

}  // namespace
}  // namespace deepmint
