// What EngineCore takes from the prefix cache, and what it says about it.
#include <gtest/gtest.h>

#include "engine/engine_core_testing.h"

namespace deepmint {
namespace {

using testing::answer_alone;
using testing::config;
using testing::Driver;
using testing::fake;
using testing::FakeModel;
using testing::kContext;
using testing::simple;
using testing::Submitted;

// Without private state a hit is taken whole; with it, from the last snapshot on.
EngineConfig cached(bool snapshots, bool ahead = false) {
  EngineConfig c = config(8, 64, 100, ahead);
  if (snapshots) c.snapshot_bytes = 20 * 64, c.kv_bytes += c.snapshot_bytes;
  return c;
}

TEST(EngineCore, ARepeatedPromptRunsItsEndOnly) {
  for (const bool private_part : {false, true})
    for (const bool ahead : {false, true}) {
      FakeModel::Options o;
      o.private_part = private_part;
      Driver d(fake(o), cached(private_part, ahead));
      const Submitted first = d.submit(simple(300, 10));
      d.run();
      const int64_t rows = d.model->rows();
      const Submitted second = d.submit(simple(300, 10));
      d.run();
      EXPECT_EQ(d.model->rows() - rows, 300 - 256 + 9) << private_part;
      for (const auto& s : {first, second})
        expect_answer(s, answer_alone(*d.model, s.request, kContext), "repeated");
      EXPECT_EQ(first.sink->finish()->usage.cached_tokens, 0);
      EXPECT_EQ(first.sink->finish()->usage.cache_miss, CacheMiss::kNeverSeen);
      EXPECT_EQ(second.sink->finish()->usage.cached_tokens, 256);
      EXPECT_EQ(second.sink->finish()->usage.replayed_tokens, 0);
      EXPECT_EQ(second.sink->finish()->usage.cache_miss, CacheMiss::kNone);
      EXPECT_EQ(d.core->stats().cached_tokens, 256);
      d.expect_clean();
    }
}

TEST(EngineCore, TheNextTurnGoesOnWhereThisOneEnded) {
  for (const bool private_part : {false, true}) {
    FakeModel::Options o;
    o.private_part = private_part;
    Driver d(fake(o), cached(private_part));
    GenerationRequest r = simple(150, 60);
    for (int turn = 0; turn < 4; ++turn) {
      const Submitted s = d.submit(r);
      d.run();
      expect_answer(s, answer_alone(*d.model, s.request, kContext), "turn");
      const auto usage = s.sink->finish()->usage;
      if (turn > 0) {
        // What the last turn ran, whole blocks: its last token was never run.
        const auto known = static_cast<int32_t>(r.tokens.size()) - 8 - 1;
        EXPECT_EQ(usage.cached_tokens, known / 64 * 64) << turn;
        EXPECT_EQ(usage.cache_miss, usage.cached_tokens + 64 < usage.prompt_tokens
                                        ? CacheMiss::kFirstDivergent
                                        : CacheMiss::kNone);
        if (private_part) {
          EXPECT_LT(usage.replayed_tokens, usage.cached_tokens);
        }
      }
      const auto ids = s.sink->ids();
      r.tokens.insert(r.tokens.end(), ids.begin(), ids.end());
      for (TokenId id = 1; id <= 8; ++id) r.tokens.push_back(id);
    }
    d.expect_clean();
  }
}

TEST(EngineCore, SaltsDoNotMeet) {
  Driver d(fake(), cached(true));
  GenerationRequest r = simple(300, 3);
  r.cache_salt = "a";
  d.submit(r);
  d.run();
  r.cache_salt = "b";
  const Submitted other = d.submit(r);
  d.run();
  EXPECT_EQ(other.sink->finish()->usage.cached_tokens, 0);
  EXPECT_EQ(other.sink->finish()->usage.cache_miss, CacheMiss::kSalt);
  r.cache_salt = "a";
  const Submitted same = d.submit(r);
  d.run();
  EXPECT_EQ(same.sink->finish()->usage.cached_tokens, 256);
  d.expect_clean();
}

TEST(EngineCore, ChoicesShareTheirPrompt) {
  for (const bool private_part : {false, true}) {
    FakeModel::Options o;
    o.private_part = private_part;
    Driver d(fake(o), cached(private_part));
    std::vector<Submitted> all;
    for (int32_t choice = 0; choice < 4; ++choice) {
      GenerationRequest r = simple(300, 12);
      r.choice = choice;
      all.push_back(d.submit(r));
    }
    d.run();
    for (const Submitted& s : all)
      expect_answer(s, answer_alone(*d.model, s.request, kContext), "choice");
    EXPECT_EQ(d.model->rows(), 300 + 3 * (300 - 256) + 4 * 11);
    d.expect_clean();
  }
}

TEST(EngineCore, PromptLogitsNeedTheirRowsButShareThem) {
  FakeModel::Options o;
  o.private_part = false;
  Driver d(fake(o), cached(false));
  GenerationRequest r = simple(200, 3);
  const Submitted plain = d.submit(r);
  d.run();
  r.want_prompt_logits = true;
  const Submitted scored = d.submit(r);
  d.run();
  EXPECT_EQ(scored.sink->prompt_logits().size(), 200u);
  EXPECT_EQ(scored.sink->finish()->usage.cached_tokens, 0);
  EXPECT_EQ(scored.sink->ids(), plain.sink->ids());
  r.cache_salt = "where the scored one comes first";
  d.submit(r);
  d.run();
  r.want_prompt_logits = false;
  const Submitted later = d.submit(r);
  d.run();
  EXPECT_EQ(later.sink->finish()->usage.cached_tokens, 192);
  EXPECT_EQ(later.sink->ids(), plain.sink->ids());
  d.expect_clean();
}

TEST(EngineCore, WithoutTheCacheNothingIsKept) {
  EngineConfig c = cached(false);
  c.prefix_cache = false;
  Driver d(fake(), c);
  for (int i = 0; i < 2; ++i) {
    const Submitted s = d.submit(simple(300, 3));
    d.run();
    EXPECT_EQ(s.sink->finish()->usage.cached_tokens, 0);
  }
  EXPECT_EQ(d.core->stats().blocks_cached, 0);
}

TEST(EngineCore, MemoryIsReportedByUse) {
  Driver d(fake(), cached(true));
  const EngineStats idle = d.core->stats();
  EXPECT_EQ(idle.bytes_free + idle.bytes_running + idle.bytes_cached + idle.bytes_snapshots,
            d.core->info().kv_bytes);
  EXPECT_EQ(idle.bytes_books, static_cast<int64_t>(d.core->cache().report().bookkeeping_bytes));
  d.submit(simple(300, 100));
  for (int i = 0; i < 10; ++i) d.core->step();
  const EngineStats busy = d.core->stats();
  EXPECT_GT(busy.bytes_running, 4 * static_cast<int64_t>(d.model->bytes_per_block()));
  EXPECT_GT(busy.bytes_snapshots, 0);
  d.run();
  const EngineStats after = d.core->stats();
  EXPECT_EQ(after.bytes_running, 0);
  EXPECT_EQ(after.bytes_cached, 6 * static_cast<int64_t>(d.model->bytes_per_block()));
}

}  // namespace
}  // namespace deepmint
