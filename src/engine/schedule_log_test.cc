// A schedule that was written down is done again: the same plans, the same bits, at the same times.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "engine/engine_core_testing.h"
#include "engine/local_engine.h"
#include "engine/schedule_replay.h"
#include "support/test_seed.h"

namespace deepmint {
namespace {

namespace fs = std::filesystem;
using testing::CollectingSink;
using testing::config;
using testing::Driver;
using testing::EvenIds;
using testing::fake;
using testing::fake_loaded;
using testing::FakeModel;
using testing::random_request;
using testing::simple;
using testing::Submitted;

// Cancels somebody now and then, at any point of a step.
struct Interrupts : StepObserver {
  std::mt19937_64 rng;
  std::vector<Submitted>* all = nullptr;
  void at(StepPoint, const StepPlan*) override {
    if (!all->empty() && rng() % 60 == 0) (*all)[rng() % all->size()].control->cancelled = true;
  }
};

// What happened to a random load, line by line.
std::vector<std::string> recorded(uint64_t seed, bool ahead) {
  std::vector<std::string> lines;
  ScheduleLog log([&](std::string_view line) { lines.emplace_back(line); });
  Interrupts interrupts;
  interrupts.rng.seed(seed);
  EngineConfig c = config(5, 40, 40, ahead);
  c.snapshot_bytes = 6 * static_cast<int64_t>(FakeModel().bytes_per_slot());
  c.kv_bytes += c.snapshot_bytes;
  c.max_queue_ms = 400;
  Driver d(fake(), c, 1, {.observer = &interrupts, .log = &log});
  std::vector<Submitted> all;
  interrupts.all = &all;
  std::mt19937_64& rng = interrupts.rng;
  for (int i = 0; i < 120 || !d.core->idle(); ++i) {
    if (i < 100 && rng() % 4 == 0) {
      GenerationRequest r = random_request(rng, 97, 200);
      if (rng() % 3 == 0) r.tokens = simple(static_cast<int32_t>(1 + rng() % 200)).tokens;
      r.request_class = static_cast<RequestClass>(rng() % 3);
      r.fair_key = std::string(1, static_cast<char>('a' + rng() % 3));
      r.fair_weight = 1 + static_cast<double>(rng() % 2);
      if (rng() % 4 == 0) r.sampling.logit_bias = {{5, 2.5f}, {6, -3.25f}};
      if (rng() % 4 == 0) r.sampling.banned_ids = {7};
      if (rng() % 5 == 0) r.cache_salt = "salt";
      if (rng() % 5 == 0) r.want_prompt_logits = true;
      if (rng() % 5 == 0) r.deadline = d.clock.now() + std::chrono::milliseconds(rng() % 300);
      if (rng() % 4 == 0) r.mask = std::make_shared<EvenIds>(4u);
      all.push_back(d.submit(std::move(r)));
    }
    if (!all.empty() && rng() % 9 == 0) d.core->preempt(all[rng() % all.size()].control->id);
    if (!all.empty() && rng() % 9 == 0) {
      const Submitted s = all[rng() % all.size()];
      auto state = d.core->export_state(s.control->id);
      if (state && s.request.mask == nullptr) {
        s.control->cancelled = true;
        auto twin = d.resume(s.request, std::move(*state));
        if (twin) all.push_back(std::move(*twin));
      }
    }
    d.clock.advance(std::chrono::microseconds(rng() % 9000));
    d.core->step();
  }
  if (seed % 2 == 0) d.core->cancel_all_at(d.clock.now());
  d.run();
  return lines;
}

TEST(ScheduleLog, WhatItWroteDownIsDoneAgain) {
  const uint64_t base = testing::test_seed();
  int64_t late = 0, cancelled = 0, aside = 0;
  for (uint64_t round = 0; round < 12; ++round)
    for (const bool ahead : {false, true}) {
      const auto lines = recorded(base + round, ahead);
      const auto count = [&](std::string_view what) {
        return std::ranges::count_if(
            lines, [&](const std::string& l) { return l.find(what) != std::string::npos; });
      };
      const auto done = replay_schedule(lines, fake_loaded(fake(), 2));
      ASSERT_TRUE(done.has_value()) << done.error().str() << "\nseed " << base + round;
      EXPECT_EQ(done->requests, count("{\"add\":"));
      EXPECT_EQ(done->steps, count("{\"step\":"));
      EXPECT_GT(done->tokens, 0);
      late += count("\"late\":"), cancelled += count("\"cancelled\":"),
          aside += count("\"aside\":");
    }
  EXPECT_GT(late, 0);
  EXPECT_GT(cancelled, 0);
  EXPECT_GT(aside, 0);
}

TEST(ScheduleLog, ADifferenceIsNamed) {
  const auto lines = recorded(3, false);
  const auto error_of = [](const std::vector<std::string>& changed,
                           FakeModel::Options options = {}) {
    const auto done = replay_schedule(changed, fake_loaded(fake(std::move(options))));
    return done ? Error{ErrorCode::kInternal, "no difference", {}} : done.error();
  };
  size_t with_tokens = 0;
  while (lines[with_tokens].find("\"tokens\":[[") == std::string::npos) ++with_tokens;
  auto changed = lines;
  const size_t at = changed[with_tokens].find("\"tokens\":[[");
  changed[with_tokens].replace(at, std::string::npos, "\"tokens\":[[1,96]]}\n");
  const Error difference = error_of(changed);
  EXPECT_EQ(difference.code, ErrorCode::kInternal);
  EXPECT_EQ(difference.where, "schedule line " + std::to_string(with_tokens + 1));
  EXPECT_NE(difference.message.find("[[1,96]]"), std::string::npos) << difference.str();
  changed = lines;
  changed.erase(changed.begin() + 2);
  EXPECT_EQ(error_of(changed).code, ErrorCode::kInternal);

  FakeModel::Options other;
  other.fingerprint = 1;
  EXPECT_EQ(error_of(lines, other).code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_of({}).code, ErrorCode::kInvalidFile);
  EXPECT_EQ(error_of({"{}"}).where, "schedule line 1");
  changed = lines;
  changed[0].replace(changed[0].find(":1,"), 3, ":2,");
  EXPECT_EQ(error_of(changed).message, "expected version 1, found 2");
  changed = lines;
  changed[0].replace(changed[0].find("\"blocks\":"), 9, "\"blocks\":1111111");
  EXPECT_EQ(error_of(changed).code, ErrorCode::kInvalidFile);

  // 2^32 + 20 is no tail of 20 tokens.
  size_t added = 0;
  while (lines[added].find("\"class\":") == std::string::npos) ++added;
  for (const std::string_view value : {"4294967316", "-2147483649", "20.5", "\"20\""}) {
    changed = lines;
    changed[added].insert(changed[added].find("\"class\":"),
                          "\"tail_keep_tokens\":" + std::string(value) + ",");
    EXPECT_EQ(error_of(changed).message, "expected a right value of tail_keep_tokens") << value;
  }
}

// A file that was damaged ends in an error, or in the same schedule where nothing depends on it.
TEST(ScheduleLog, DamageIsAnError) {
  const auto lines = recorded(4, true);
  std::mt19937_64 rng(testing::test_seed());
  int errors = 0;
  for (int round = 0; round < 60; ++round) {
    auto changed = lines;
    std::string& line = changed[rng() % std::min<size_t>(changed.size(), 40)];
    line[rng() % line.size()] = "0123456789[]{},:\"-a"[rng() % 19];
    errors += !replay_schedule(changed, fake_loaded(fake())).has_value();
  }
  EXPECT_GT(errors, 30);
}

TEST(ScheduleLog, AnEngineWritesItsFile) {
  const fs::path path =
      fs::temp_directory_path() / ("deepmint_schedule_" + std::to_string(getpid()) + ".jsonl");
  for (const bool ahead : {false, true}) {
    EngineConfig c = config(4, 40, 40, ahead);
    c.record_schedule = path.string();
    {
      auto engine = LocalEngine::create(fake_loaded(fake()), c).value();
      std::vector<std::shared_ptr<CollectingSink>> sinks;
      for (uint64_t i = 0; i < 9; ++i) {
        sinks.push_back(std::make_shared<CollectingSink>());
        auto ticket = engine->submit(simple(100, 50, i), sinks.back());
        ASSERT_TRUE(ticket.has_value());
        if (i % 3 == 2) (*ticket)->cancel();
      }
      engine->drain(std::chrono::seconds(60));
    }
    EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_read | fs::perms::owner_write);
    std::ofstream(path, std::ios::app) << "{\"step\":99999,\"no";  // killed while it wrote
    const auto lines = read_schedule(path);
    ASSERT_TRUE(lines.has_value());
    const auto done = replay_schedule(*lines, fake_loaded(fake()));
    ASSERT_TRUE(done.has_value()) << done.error().str();
    EXPECT_EQ(done->requests, 9);
    EXPECT_GE(done->tokens, 300);
    fs::remove(path);
  }
  EngineConfig c = config();
  c.record_schedule = "/nonexistent/folder/file";
  EXPECT_EQ(LocalEngine::create(fake_loaded(fake()), c).error().where, "engine.record_schedule");
  EXPECT_EQ(read_schedule("/nonexistent/file").error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace deepmint
