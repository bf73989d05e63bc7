// Prefixes of DeepSeek-V4.1 through the engine: global rows from the cache, window state from a
// snapshot or by replay, and the bits of a cold run in every case.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "engine/engine_core.h"
#include "engine/load.h"
#include "kvcache/seq_state.h"
#include "model/deepseek_v41/model.h"
#include "model/deepseek_v41/synth.h"
#include "support/collecting_sink.h"

namespace deepmint {
namespace {

namespace fs = std::filesystem;

struct Reply {
  std::vector<TokenId> ids;
  std::vector<float> logprobs;
  Usage usage;
  bool operator==(const Reply& other) const {
    return ids == other.ids && logprobs == other.logprobs;
  }
};

class EngineV41 : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = fs::temp_directory_path() / ("deepmint_engine_v41_" + std::to_string(getpid()));
    fs::remove_all(folder_);
    ASSERT_TRUE(v41::synthesize(v41::synth_config(v41::SynthPreset::kTiny), folder_));
    loaded_ = std::move(*load_model(folder_, {.threads = 2}));
  }
  static void TearDownTestSuite() {
    loaded_ = {};
    fs::remove_all(folder_);
  }

  static std::unique_ptr<EngineCore> engine(bool cache, bool snapshots, bool ahead = false,
                                            int32_t step_tokens = 96) {
    EngineConfig c;
    c.max_running = 4;
    c.step_tokens = step_tokens;
    c.context_tokens = 1024;
    c.kv_bytes = 64 << 20;
    c.prefix_cache = cache;
    c.snapshot_bytes = snapshots ? 8 << 20 : 0;
    c.plan_ahead = ahead;
    return std::move(*EngineCore::create(loaded_, c, Clock::steady()));
  }

  static GenerationRequest request(int32_t prompt, int32_t output = 12, int32_t differs_from = -1) {
    GenerationRequest r;
    for (int32_t i = 0; i < prompt; ++i)
      r.tokens.push_back((i * 131 + 17 + (differs_from >= 0 && i >= differs_from ? 5 : 0)) % 512);
    r.max_tokens = output;
    r.sampling.seed = 7;
    r.sampling.top_logprobs = 0;
    return r;
  }

  static std::shared_ptr<testing::CollectingSink> submit(EngineCore& core,
                                                         const GenerationRequest& r) {
    auto sink = std::make_shared<testing::CollectingSink>();
    auto sequence = core.prepare(r, sink);
    if (!sequence) throw std::runtime_error(sequence.error().str());
    EXPECT_TRUE(core.take_place(**sequence));
    core.add(std::move(*sequence));
    return sink;
  }

  static Reply reply(const testing::CollectingSink& sink) {
    Reply out{sink.ids(), {}, sink.finish()->usage};
    for (const auto& t : sink.tokens()) out.logprobs.push_back(t.logprob);
    return out;
  }

  static Reply ask(EngineCore& core, const GenerationRequest& r) {
    const auto sink = submit(core, r);
    while (!core.idle()) core.step();
    EXPECT_TRUE(core.cache().check());
    return reply(*sink);
  }

  static std::span<const kvcache::PartSpec> model_parts(EngineCore& core) {
    return core.cache().arena().parts();
  }

  static Reply cold(const GenerationRequest& r) { return ask(*engine(false, false), r); }

  static fs::path folder_;
  static LoadedModel loaded_;
};
fs::path EngineV41::folder_;
LoadedModel EngineV41::loaded_;

TEST_F(EngineV41, AHitWithoutWindowStateIsReplayedExactly) {
  const auto core = engine(true, false);
  for (const int32_t prompt : {100, 200, 333, 512, 700}) {
    const GenerationRequest r = request(prompt);
    const Reply expected = cold(r);
    EXPECT_EQ(ask(*core, r), expected) << prompt;
    const Reply again = ask(*core, r);
    EXPECT_EQ(again, expected) << prompt;
    EXPECT_EQ(again.usage.cached_tokens, (prompt - 1) / 64 * 64);
    EXPECT_GT(again.usage.replayed_tokens, 0);
    if (prompt >= 333) {
      EXPECT_LT(again.usage.replayed_tokens, again.usage.cached_tokens);
    }
  }
}

TEST_F(EngineV41, ASnapshotCostsNothing) {
  for (const bool ahead : {false, true}) {
    const auto core = engine(true, true, ahead);
    for (const int32_t prompt : {100, 200, 333, 512}) {
      const GenerationRequest r = request(prompt, 12, prompt);
      const Reply expected = cold(r);
      EXPECT_EQ(ask(*core, r), expected) << prompt;
      const Reply again = ask(*core, r);
      EXPECT_EQ(again, expected) << prompt;
      EXPECT_EQ(again.usage.cached_tokens, (prompt - 1) / 64 * 64);
      EXPECT_EQ(again.usage.replayed_tokens, 0) << prompt;
    }
    EXPECT_GT(core->stats().snapshots_restored, 0);
  }
}

// Turn after turn, with other prompts in between that share a part, in chunks of any size.
TEST_F(EngineV41, TurnsAndBranchesGiveTheBitsOfAColdRun) {
  for (const bool snapshots : {false, true})
    for (const int32_t step_tokens : {7, 64, 500}) {
      const auto core = engine(true, snapshots, step_tokens == 64, step_tokens);
      GenerationRequest talk = request(150, 70);
      for (int turn = 0; turn < 3; ++turn) {
        const Reply expected = cold(talk);
        const Reply got = ask(*core, talk);
        EXPECT_EQ(got, expected) << "turn " << turn << ", step of " << step_tokens;
        if (turn > 0) {
          EXPECT_GE(got.usage.cached_tokens, 192);
        }
        if (turn > 0 && snapshots) {  // at the end of the reply before
          EXPECT_EQ(got.usage.replayed_tokens, 0) << "turn " << turn << ", step of " << step_tokens;
        }
        GenerationRequest branch = talk;
        branch.tokens.resize(branch.tokens.size() - 30);
        for (int32_t i = 0; i < 80; ++i) branch.tokens.push_back((i * 7 + turn) % 512);
        branch.max_tokens = 5;
        EXPECT_EQ(ask(*core, branch), cold(branch)) << "branch " << turn;
        talk.tokens.insert(talk.tokens.end(), got.ids.begin(), got.ids.end());
        for (int32_t i = 0; i < 20; ++i) talk.tokens.push_back((i * 3 + turn) % 512);
      }
    }
}

// What is replayed to reach a prompt's end is not the state of a cold run before that: a snapshot
// that such a run leaves must serve the next one exactly.
TEST_F(EngineV41, SnapshotsThatAReplayLeavesAreExact) {
  for (const int32_t more : {1, 30, 65, 130}) {
    const auto core = engine(true, true);
    GenerationRequest r = request(400 + more, 5);
    ask(*core, request(400, 5));
    core->cache().clear();  // snapshots and blocks
    GenerationRequest scored = request(400, 0);
    scored.tail_keep_tokens = 20;  // leaves blocks, and no snapshots
    ask(*core, scored);
    EXPECT_EQ(core->stats().snapshots, 0);
    const Reply replayed = ask(*core, r);
    EXPECT_EQ(replayed, cold(r)) << more;
    EXPECT_GT(replayed.usage.replayed_tokens, 0);
    r.tokens.insert(r.tokens.end(), replayed.ids.begin(), replayed.ids.end());
    for (int32_t i = 0; i < 70; ++i) r.tokens.push_back(i);
    EXPECT_EQ(ask(*core, r), cold(r)) << more;
  }
}

// A reply leaves one snapshot at its end, however long it is, and its prompt one.
TEST_F(EngineV41, AReplyLeavesASnapshotAtItsEnd) {
  for (const bool ahead : {false, true}) {
    const auto core = engine(true, true, ahead);
    GenerationRequest r = request(150, 400);
    const Reply first = ask(*core, r);
    EXPECT_EQ(core->stats().snapshots, 2);
    r.tokens.insert(r.tokens.end(), first.ids.begin(), first.ids.end());
    r.max_tokens = 3;
    const Reply next = ask(*core, r);
    EXPECT_EQ(next, cold(r));
    EXPECT_EQ(next.usage.cached_tokens, 512);  // of 549 positions that ran
    EXPECT_EQ(next.usage.replayed_tokens, 0);
  }
}

// Snapshots live for three minutes, blocks longer. Who replays leaves a snapshot at the hit: for
// the same prompt, and for others that go on elsewhere from there.
TEST_F(EngineV41, AnExactReplayLeavesASnapshotWhereItBegan) {
  for (const bool ahead : {false, true})
    for (const int32_t shared : {320, 470}) {  // within the last block boundary, and before it
      ManualClock clock;
      EngineConfig c;
      c.max_running = 4;
      c.step_tokens = 90;
      c.context_tokens = 1024;
      c.kv_bytes = 64 << 20;
      c.snapshot_bytes = 8 << 20;
      c.plan_ahead = ahead;
      const auto core = std::move(*EngineCore::create(loaded_, c, clock));
      const auto other = [&](int32_t kind) {
        GenerationRequest r = request(500, 4, shared);
        for (size_t i = static_cast<size_t>(shared); i < r.tokens.size(); ++i)
          r.tokens[i] = (r.tokens[i] + 13 * kind) % 512;
        return r;
      };
      ask(*core, other(1));
      clock.advance(std::chrono::seconds(200));
      const int32_t hit = shared / kBlockTokens * kBlockTokens;
      for (const int32_t kind : {2, 3, 4}) {
        const Reply got = ask(*core, other(kind));
        EXPECT_EQ(got, cold(other(kind))) << kind;
        EXPECT_EQ(got.usage.cached_tokens, hit);
        EXPECT_EQ(got.usage.replayed_tokens > 0, kind == 2) << kind << " behind " << shared;
      }
      clock.advance(std::chrono::seconds(200));
      for (int round = 0; round < 2; ++round) {  // the same prompt again: all of it is a hit
        const Reply got = ask(*core, other(4));
        EXPECT_EQ(got, cold(other(4))) << round;
        EXPECT_EQ(got.usage.cached_tokens, 448);
        EXPECT_EQ(got.usage.replayed_tokens > 0, round == 0) << round;
      }
    }
}

// A decoder tail ends where the snapshot is taken: what the next rows read of it, in every layer,
// is what a run of all rows leaves there.
TEST_F(EngineV41, SnapshotsUnderADecoderTailAreThoseOfAFullRun) {
  const auto& model = dynamic_cast<const v41::V41Model&>(*loaded_.model);
  const v41::StateLayout& layout = model.layout();
  // Window rows of every layer, then the rest of the private state, as a sequence finds them.
  const auto private_state = [&](EngineCore& core, const GenerationRequest& r, int32_t length) {
    kvcache::CacheManager& cache = core.cache();
    const auto now = Clock::steady().now();
    kvcache::HashChain chain({.model_fingerprint = model.info().fingerprint,
                              .layout_fingerprint = kvcache::layout_fingerprint(model_parts(core)),
                              .salt = {}});
    chain.append(r.tokens);
    const auto blocks = static_cast<size_t>(length / kBlockTokens);
    const kvcache::Match match = cache.match(chain.first_blocks(blocks), r.tokens, now);
    EXPECT_EQ(match.snapshot_blocks, blocks);
    EXPECT_EQ(match.snapshot_tag, 0u);  // said to be exact
    kvcache::Lease lease(blocks);
    EXPECT_EQ(cache.acquire(lease, match, 0, now), kvcache::Acquired::kYes);
    EXPECT_TRUE(cache.snapshot_get(lease, blocks, now));
    std::vector<PartMemory> memory;
    for (size_t p = 0; p < cache.arena().parts().size(); ++p)
      memory.push_back({cache.arena().base(p), cache.arena().count(p)});
    const StepInput input{.rows = {}, .sequences = {}, .state = memory};
    const SequenceRef sequence{lease.blocks(), lease.slot()};
    std::vector<std::vector<std::byte>> rows;
    for (int layer = 0; layer < layout.layers(); ++layer)
      for (int32_t p = length - layout.window() + 1; p < length; ++p) {
        const std::byte* row = layout.window_row(input, sequence, layer, p);
        rows.emplace_back(row, row + layout.window_row_bytes());
      }
    for (const size_t source : layout.carry_sources()) {
      const auto* row =
          reinterpret_cast<const std::byte*>(layout.carry_row(input, sequence, source, length - 1));
      rows.emplace_back(row, row + layout.carry_row_bytes());
    }
    const auto* ids = reinterpret_cast<const std::byte*>(layout.history(input, sequence));
    rows.emplace_back(ids, ids + v41::StateLayout::kHistory * sizeof(int32_t));
    cache.release(lease, now);
    return rows;
  };
  for (const bool ahead : {false, true})
    for (const int32_t prompt : {130, 200, 333, 513}) {
      const int32_t boundary = (prompt - 1) / kBlockTokens * kBlockTokens;
      const GenerationRequest r = request(prompt, 3);
      ASSERT_GT(model.exact_prompt_tail(boundary).first_full, 0);
      // Planned from the prompt's end, rows that the snapshot's window needs would be left out.
      if (prompt - boundary > 15) {
        ASSERT_GT(model.exact_prompt_tail(prompt).first_full,
                  model.exact_prompt_tail(boundary).first_full + 15);
      }
      const auto with_tail = engine(true, true, ahead), whole = engine(true, true, ahead);
      ask(*with_tail, r);
      GenerationRequest scored = r;
      scored.want_prompt_logits = true;  // every row runs every layer
      ask(*whole, scored);
      EXPECT_EQ(private_state(*with_tail, r, boundary), private_state(*whole, r, boundary))
          << "prompt of " << prompt;
    }
}

// The same tokens, the same bytes: memory that others have used, chunks, snapshots and replays
// leave no trace in a saved state, and rings nothing that the next row does not read.
TEST_F(EngineV41, SavedStatesDoNotTellTheirHistory) {
  const auto saved_after = [&](EngineCore& core, const GenerationRequest& r, uint64_t id,
                               size_t tokens) {
    const auto sink = submit(core, r);
    while (sink->tokens().size() < tokens) core.step();
    auto state = core.export_state(id);
    while (!core.idle()) core.step();
    return std::move(state).value();
  };
  for (const int32_t prompt : {5, 100, 333}) {
    const GenerationRequest r = request(prompt, 40);
    const auto used = engine(true, true, false, 37), replays = engine(true, false, false, 70);
    uint64_t id = 0;
    for (const auto& core : {used.get(), replays.get()}) {
      id = 0;
      for (int32_t i = 0; i < 6; ++i, ++id) ask(*core, request(150 + 70 * i, 30, i));
    }
    for (const size_t tokens : {1u, 2u, 31u, 32u}) {
      const auto fresh = engine(false, false, false, 1000);
      const auto expected = saved_after(*fresh, r, 1, tokens);
      ++id;
      EXPECT_EQ(saved_after(*used, r, id, tokens), expected) << prompt << " and " << tokens;
      EXPECT_EQ(saved_after(*replays, r, id, tokens), expected) << prompt << " and " << tokens;
    }
  }
}

// Whether an engine keeps snapshots is no part of a request: the same rows of its prompt run whole.
TEST_F(EngineV41, SavedInsideAPromptAndResumedWhereSnapshotsAreKept) {
  const GenerationRequest r = request(700, 6);
  const Reply expected = cold(r);
  for (const bool snapshots : {false, true})
    for (int32_t steps = 1; steps < 14; ++steps) {
      const auto from = engine(true, snapshots, false, 50),
                 to = engine(true, !snapshots, false, 50);
      submit(*from, r);
      for (int32_t i = 0; i < steps; ++i) from->step();
      auto state = from->export_state(1);
      ASSERT_TRUE(state.has_value()) << state.error().str();
      auto sink = std::make_shared<testing::CollectingSink>();
      auto sequence = to->prepare_saved(r, std::move(*state), sink);
      ASSERT_TRUE(sequence.has_value()) << sequence.error().str();
      ASSERT_TRUE(to->take_place(**sequence));
      to->add(std::move(*sequence));
      while (!to->idle()) to->step();
      EXPECT_EQ(reply(*sink), expected) << "after " << steps << " steps";
    }
}

// A bounded tail approximates for its own request: the same with and without a cache, and nobody
// finds a trace of it.
TEST_F(EngineV41, ABoundedTailIsThatOfAColdRunAndLeavesNoWindowState) {
  for (const bool ahead : {false, true})
    for (const int32_t prompt : {200, 333, 336}) {
      const GenerationRequest exact = request(prompt, 30);
      const Reply right = cold(exact);
      for (const int32_t keep : {16, 40, 46, 250}) {
        GenerationRequest bounded = exact;
        bounded.tail_keep_tokens = keep;
        const Reply expected = cold(bounded);
        // From 46 rows on, 16 + 2 * 15, a bounded tail is the exact one.
        EXPECT_EQ(expected == right, keep >= 46);
        EXPECT_EQ(expected.usage.tail_skipped_tokens, keep < 46 ? prompt - keep : 0);
        const auto first = engine(true, true, ahead);
        EXPECT_EQ(ask(*first, bounded), expected) << prompt << " keeps " << keep << ", empty cache";
        EXPECT_EQ(first->stats().snapshots, 0);
        EXPECT_EQ(ask(*first, exact), right) << prompt << " after one that keeps " << keep;
        // Where an exact run has left its window state, beside which the tail's is another.
        const auto second = engine(true, true, ahead);
        EXPECT_EQ(ask(*second, exact), right);
        EXPECT_EQ(second->stats().snapshots, 1);
        const Reply hit = ask(*second, bounded);
        EXPECT_EQ(hit, expected) << prompt << " keeps " << keep << ", a snapshot";
        EXPECT_EQ(hit.usage.tail_skipped_tokens, expected.usage.tail_skipped_tokens);
        if (keep >= 46) {
          EXPECT_EQ(hit.usage.replayed_tokens, 0) << prompt << " keeps " << keep;
        }
        EXPECT_EQ(second->stats().snapshots, 1);
        const Reply after = ask(*second, exact);
        EXPECT_EQ(after, right) << prompt << " after a hit that keeps " << keep;
        EXPECT_EQ(after.usage.tail_skipped_tokens, 0);
      }
    }
}

// Prompts shorter than, as long as and longer than the tail by one, from a single token on; in one
// chunk, in many, set aside on the way, and behind what is cached.
TEST_F(EngineV41, ATailAboutAsLongAsThePromptIsThatOfAColdRun) {
  for (const int32_t prompt : {1, 15, 16, 17, 45, 46, 47, 64, 65, 80, 128}) {
    const GenerationRequest exact = request(prompt, 4);
    const Reply right = cold(exact);
    for (const int32_t keep : {16, 17, 45, 46, 47, prompt - 1, prompt, prompt + 1}) {
      if (keep < 16) continue;
      GenerationRequest bounded = exact;
      bounded.tail_keep_tokens = keep;
      const Reply expected = cold(bounded);
      const int32_t skipped = keep < prompt && keep < 46 ? prompt - keep : 0;
      EXPECT_EQ(expected.usage.tail_skipped_tokens, skipped) << prompt << " keeps " << keep;
      if (skipped == 0) {
        EXPECT_EQ(expected, right) << prompt << " keeps " << keep;
      }
      for (const bool snapshots : {false, true})
        for (const int32_t step_tokens : {5, 96}) {
          const auto core = engine(true, snapshots, snapshots, step_tokens);
          for (int round = 0; round < 3; ++round) {
            if (round == 1) {
              EXPECT_EQ(ask(*core, exact), right) << prompt << " after one that keeps " << keep;
              continue;
            }
            const auto sink = submit(*core, bounded);
            for (int step = 0; !core->idle(); ++step) {
              core->step();
              if (step == 1 || step == 4) core->preempt(static_cast<uint64_t>(round + 1));
            }
            EXPECT_EQ(reply(*sink), expected) << prompt << " keeps " << keep << ", round " << round;
            EXPECT_EQ(reply(*sink).usage.tail_skipped_tokens, skipped);
          }
          EXPECT_TRUE(core->cache().check());
        }
    }
  }
}

// Many at once behind one prompt, some set aside on the way, some with a tail of their own.
TEST_F(EngineV41, CompanionsAndPreemptionsDoNotShow) {
  std::vector<GenerationRequest> requests;
  for (int32_t i = 0; i < 6; ++i) requests.push_back(request(240 + 30 * i, 10, 200 + 10 * i));
  requests[2].tail_keep_tokens = 20;
  requests[4].want_prompt_logits = true;
  std::vector<Reply> expected;
  for (const auto& r : requests) expected.push_back(cold(r));
  for (const bool ahead : {false, true}) {
    const auto core = engine(true, true, ahead, 50);
    for (int round = 0; round < 2; ++round) {
      std::vector<std::shared_ptr<testing::CollectingSink>> sinks;
      for (const auto& r : requests) sinks.push_back(submit(*core, r));
      for (int step = 0; !core->idle(); ++step) {
        core->step();
        if (step % 5 == 3) core->preempt(static_cast<uint64_t>(6 * round + 1 + step / 5 % 6));
      }
      for (size_t i = 0; i < sinks.size(); ++i)
        EXPECT_EQ(reply(*sinks[i]), expected[i]) << "request " << i << ", round " << round;
      EXPECT_TRUE(core->cache().check());
    }
    EXPECT_GT(core->stats().preempted, 0);
  }
}

// Set aside after every second step, inside the replay, at the hit and behind it: no row runs
// twice, the bits are those of a cold run, and so are the snapshots that it leaves, which the next
// one takes.
TEST_F(EngineV41, AReplayThatIsSetAsideGoesOnWhereItStood) {
  struct Way {
    bool ahead;
    int32_t step_tokens;
    bool pushed;
  };
  for (const int32_t prompt : {100, 333, 700}) {
    const GenerationRequest r = request(prompt, 12);
    GenerationRequest before = request(prompt, 0);
    before.tail_keep_tokens = 20;  // leaves blocks, and no snapshots
    const Reply expected = cold(r);
    int32_t replayed = 0;  // by one that is left alone
    for (const Way way : {Way{false, 200, false}, Way{false, 29, true}, Way{true, 64, true}}) {
      const std::string what = fmt::format("{} in steps of {}", prompt, way.step_tokens);
      const auto core = engine(true, true, way.ahead, way.step_tokens);
      ask(*core, before);
      const auto sink = submit(*core, r);
      const int64_t rows = core->stats().rows;
      for (int step = 0; !core->idle(); ++step) {
        core->step();
        if (way.pushed && step % 2 == 1) core->preempt(2);
      }
      const Reply got = reply(*sink);
      const Usage& usage = got.usage;
      EXPECT_EQ(got, expected) << what;
      EXPECT_EQ(core->stats().preempted > 3, way.pushed) << what;
      EXPECT_EQ(core->stats().rows - rows,
                prompt - usage.cached_tokens + usage.replayed_tokens + 11)
          << what;
      EXPECT_EQ(core->stats().replayed_tokens, usage.replayed_tokens) << what;
      if (!way.pushed) replayed = usage.replayed_tokens;
      EXPECT_GT(usage.replayed_tokens, 0) << what;
      EXPECT_EQ(usage.replayed_tokens, replayed) << what;
      const Reply next = ask(*core, r);
      EXPECT_EQ(next, expected) << what << ", the next";
      EXPECT_EQ(next.usage.replayed_tokens, 0) << what << ", the next";
    }
  }
}

// Pushed aside by requests that somebody waits for, in the midst of its replay and of its reply.
TEST_F(EngineV41, ABatchRequestThatReplaysEndsBesideInteractiveOnes) {
  GenerationRequest r = request(333, 8);
  r.request_class = RequestClass::kBatch;
  const GenerationRequest quick = request(9, 2, 0);
  const Reply expected = cold(r), answer = cold(quick);
  EngineConfig c;
  c.max_running = 1;
  c.step_tokens = 20;
  c.context_tokens = 1024;
  c.kv_bytes = 64 << 20;
  c.snapshot_bytes = 0;
  const auto core = std::move(*EngineCore::create(loaded_, c, Clock::steady()));
  ask(*core, r);
  const auto sink = submit(*core, r);
  std::vector<std::shared_ptr<testing::CollectingSink>> quicks;
  for (int step = 0; step < 150 && !sink->finished(); ++step) {
    if (step % 5 == 0) quicks.push_back(submit(*core, quick));
    core->step();
  }
  ASSERT_TRUE(sink->finished()) << "starved";
  EXPECT_EQ(reply(*sink), expected);
  EXPECT_GT(reply(*sink).usage.replayed_tokens, 20 * 5);
  while (!core->idle()) core->step();
  for (const auto& each : quicks) EXPECT_EQ(reply(*each), answer);
  EXPECT_GT(core->stats().preempted, 3);
}

TEST_F(EngineV41, BoundedReplayIsAChoiceAndNobodyElsesState) {
  const auto core = engine(true, false);
  GenerationRequest r = request(512);
  r.bounded_replay = true;
  const Reply expected = ask(*core, r);  // nothing to replay yet
  EXPECT_FALSE(expected.usage.bounded_replay);
  EXPECT_EQ(expected, cold(r));
  const Reply bounded = ask(*core, r);
  EXPECT_EQ(bounded.usage.replayed_tokens, 16);  // one window
  EXPECT_TRUE(bounded.usage.bounded_replay);
  EXPECT_NE(bounded.logprobs, expected.logprobs);
  EXPECT_EQ(ask(*core, r), bounded);
  r.bounded_replay = false;
  const Reply exact = ask(*core, r);
  EXPECT_EQ(exact, expected);
  EXPECT_FALSE(exact.usage.bounded_replay);
  GenerationRequest longer = request(600);
  longer.bounded_replay = true;
  ask(*core, longer);
  longer.bounded_replay = false;
  EXPECT_EQ(ask(*core, longer), cold(longer));
}

// Of a bounded replay the cache has a say, and nothing else: with the same blocks cached the same
// bits, with an exact tail and a bounded one, however it is cut, set aside, and in company.
TEST_F(EngineV41, ABoundedReplayDependsOnTheCacheAndTheRequestAlone) {
  for (const int32_t prompt : {100, 333, 512})
    for (const int32_t keep : {0, 16, 40, 200}) {
      GenerationRequest r = request(prompt, 20);
      r.bounded_replay = true;
      if (keep > 0) r.tail_keep_tokens = keep;
      std::optional<Reply> expected;
      for (const int32_t step_tokens : {500, 13, 5})
        for (const bool busy : {false, true}) {
          const auto core = engine(true, false, busy, step_tokens);
          if (busy) ask(*core, request(700, 90, 0));  // its slot is used again
          ask(*core, request(prompt, 0));
          const uint64_t id = busy ? 3 : 2;
          const auto sink = submit(*core, r);
          std::shared_ptr<testing::CollectingSink> exact;
          if (busy) exact = submit(*core, request(prompt, 20));
          for (int step = 0; !core->idle(); ++step) {
            core->step();
            if (busy && step % 2 == 1) core->preempt(id);
          }
          const Reply got = reply(*sink);
          EXPECT_TRUE(got.usage.bounded_replay);
          if (!expected) expected = got;
          EXPECT_EQ(got, *expected) << prompt << " keeps " << keep << ", step of " << step_tokens
                                    << (busy ? ", busy" : "");
          if (busy) {
            EXPECT_EQ(reply(*exact), cold(request(prompt, 20))) << prompt << " beside it";
          }
          EXPECT_TRUE(core->cache().check());
        }
    }
}

}  // namespace
}  // namespace deepmint
