// The sampler against the slow reference over random rows and parameters; its statistics; its
// memory.
#include "sampling/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>

#include "core/cpu_isa.h"
#include "sampling/reference_sampler.h"
#include "sampling/select.h"
#include "support/counting_new.h"
#include "support/isa_test.h"
#include "support/test_seed.h"

namespace deepmint::sampling {
namespace {

constexpr float kNegInf = -std::numeric_limits<float>::infinity();

struct RandomCase {
  std::vector<float> logits;
  SamplingParams params;
  std::vector<TokenId> prompt, output, end_ids, always_banned;
  std::vector<uint32_t> mask;
  DrawAddress address;
};

RandomCase random_case(std::mt19937_64& rng) {
  const auto chance = [&](double p) { return std::bernoulli_distribution(p)(rng); };
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(rng);
  };
  const auto unit = [&] { return std::uniform_real_distribution<double>(0, 1)(rng); };
  RandomCase c;
  const auto n = static_cast<size_t>(chance(0.1)   ? pick(5000, 20'000)
                                     : chance(0.5) ? pick(1, 70)
                                                   : pick(60, 3000));
  const auto id = [&] { return static_cast<TokenId>(rng() % n); };
  std::normal_distribution<float> normal(0, static_cast<float>(1 + 6 * unit()));
  const bool quantised = chance(0.3);  // many ties
  const bool holes = chance(0.3);
  c.logits.resize(n);
  for (float& x : c.logits) {
    x = normal(rng);
    if (quantised) x = std::round(x * 2) / 2;
    if (holes && chance(0.2)) x = kNegInf;
  }
  SamplingParams& p = c.params;
  p.temperature = chance(0.15) ? 0.0f : chance(0.3) ? 1.0f : static_cast<float>(0.1 + 2 * unit());
  if (chance(0.4)) p.top_k = pick(1, static_cast<int>(2 * n));
  if (chance(0.5)) p.top_p = chance(0.2) ? 1e-6 : chance(0.3) ? 1 - 1e-9 : 0.01 + 0.99 * unit();
  if (chance(0.3)) p.min_p = chance(0.1) ? 1.0f : static_cast<float>(std::pow(10.0, -6 * unit()));
  if (chance(0.3)) p.repetition_penalty = static_cast<float>(0.5 + 1.5 * unit());
  if (chance(0.3)) p.frequency_penalty = static_cast<float>(2 * unit() - 1);
  if (chance(0.3)) p.presence_penalty = static_cast<float>(2 * unit() - 1);
  if (chance(0.2)) {
    std::map<TokenId, float> bias;
    for (int i = pick(1, 10); i > 0; --i) bias[id()] = normal(rng);
    p.logit_bias.assign(bias.begin(), bias.end());
  }
  if (chance(0.2))
    for (size_t i = 0; i < 1 + n / 2; ++i) p.allowed_ids.push_back(id());
  if (chance(0.2))
    for (int i = pick(1, 20); i > 0; --i) p.banned_ids.push_back(id());
  if (chance(0.2)) {
    c.mask.resize((n + 31) / 32);
    for (uint32_t& w : c.mask) w = static_cast<uint32_t>(rng());
  }
  if (chance(0.2)) c.always_banned.push_back(id());
  if (chance(0.3)) {
    p.min_tokens = pick(0, 6);
    c.end_ids = {id(), id()};
  }
  for (int i = pick(0, 12); i > 0; --i) c.prompt.push_back(id());
  for (int i = pick(0, 12); i > 0; --i)
    c.output.push_back(chance(0.4) && !c.output.empty() ? c.output.back() : id());
  c.address = {rng(), static_cast<uint32_t>(rng()), 0, static_cast<uint32_t>(rng() % 3)};
  p.top_logprobs = pick(-1, 20);
  p.raw_logprobs = chance(0.5);
  return c;
}

std::vector<std::pair<float, TokenId>> best_of(const std::vector<float>& logprobs, size_t count) {
  std::vector<std::pair<float, TokenId>> all;
  for (size_t i = 0; i < logprobs.size(); ++i)
    if (logprobs[i] != kNegInf) all.emplace_back(-logprobs[i], static_cast<TokenId>(i));
  std::sort(all.begin(), all.end());
  all.resize(std::min(count, all.size()));
  return all;
}

class SamplerTest : public deepmint::testing::IsaTest {};
INSTANTIATE_TEST_SUITE_P(Isas, SamplerTest, ::testing::ValuesIn(available_isas()),
                         deepmint::testing::isa_name);

TEST_P(SamplerTest, EqualsTheReferenceOnRandomCases) {
  std::mt19937_64 rng(deepmint::testing::test_seed());
  int refused = 0, filtered = 0;
  for (int round = 0; round < 800; ++round) {
    const RandomCase c = random_case(rng);
    Sampler sampler(static_cast<int64_t>(c.logits.size()));
    SampleTrace trace;
    sampler.set_trace(&trace);
    const SampleHistory history{c.prompt, c.output};
    const auto expected = reference_sample(c.logits, c.params, history, c.address, {c.mask},
                                           c.end_ids, c.always_banned);
    const auto found = sampler.sample(c.logits, c.params, history, c.address, {c.mask}, c.end_ids,
                                      c.always_banned);
    ASSERT_EQ(found.has_value(), expected.has_value()) << "round " << round;
    if (!expected) {
      ++refused;
      continue;
    }
    ASSERT_EQ(trace.kept, expected->kept) << "round " << round;
    ASSERT_EQ(found->token, expected->token) << "round " << round;
    filtered += expected->kept.size() < trace.finite;
    if (c.params.top_logprobs < 0) {
      ASSERT_TRUE(std::isnan(found->logprob));
      ASSERT_TRUE(found->top.empty());
      continue;
    }
    const auto logprobs =
        c.params.raw_logprobs ? reference_logprobs(c.logits) : expected->processed_logprobs;
    ASSERT_EQ(found->logprob, logprobs[static_cast<size_t>(found->token)]) << "round " << round;
    const auto best = best_of(logprobs, static_cast<size_t>(c.params.top_logprobs));
    ASSERT_EQ(found->top.size(), best.size()) << "round " << round;
    for (size_t i = 0; i < best.size(); ++i) {
      ASSERT_EQ(found->top[i].id, best[i].second) << "round " << round << " rank " << i;
      ASSERT_EQ(found->top[i].logprob, -best[i].first);
    }
  }
  EXPECT_GT(filtered, 100);
  EXPECT_LT(refused, 200);
}

// A large nucleus takes the other path through top-p and through the draw.
TEST_P(SamplerTest, LargeNucleusEqualsTheReference) {
  std::mt19937_64 rng(deepmint::testing::test_seed());
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> logits(20'000);
  struct Shape {
    double top_p;
    float spread, min_p;
    bool ties;
  };
  for (const Shape& shape : std::vector<Shape>{{0.3, 0.5f, 0, false},
                                               {0.9, 0.5f, 0, false},
                                               {0.9999, 2.0f, 0, false},
                                               {1 - 0x1p-48, 2.0f, 0, false},
                                               {1 - 0x1p-40, 12.0f, 0, false},
                                               {0.9, 0.5f, 0.2f, false},
                                               {0.95, 0.5f, 1e-9f, false},
                                               {0.7, 0.0f, 0, false},
                                               {0.7, 1.0f, 0, true},
                                               {0.25, 1.0f, 0, true},
                                               {1.0, 0.5f, 1e-4f, false}}) {
    for (float& x : logits) {
      x = normal(rng) * shape.spread;
      if (shape.ties) x = std::round(x);
      if (shape.spread > 10 && rng() % 3 == 0) x = kNegInf;
    }
    SamplingParams p;
    p.top_p = shape.top_p;
    p.min_p = shape.min_p;
    p.top_logprobs = 20;
    p.raw_logprobs = false;
    Sampler sampler(static_cast<int64_t>(logits.size()));
    SampleTrace trace;
    sampler.set_trace(&trace);
    const DrawAddress address{rng(), 3, 0, 0};
    const auto expected = reference_sample(logits, p, {}, address);
    const auto found = sampler.sample(logits, p, {}, address);
    ASSERT_TRUE(found && expected);
    EXPECT_EQ(trace.kept, expected->kept) << shape.top_p << " " << shape.spread;
    EXPECT_EQ(found->token, expected->token);
    EXPECT_EQ(found->logprob, expected->processed_logprobs[static_cast<size_t>(found->token)]);
  }
}

// Logits that differ but round to one log-probability are ranked by id.
TEST_P(SamplerTest, EqualLogprobsOfDifferentLogitsGoById) {
  std::vector<float> logits(300, 1e-6f);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] += static_cast<float>(i) * 1e-9f;
  logits[7] = 20.0f;  // pushes every other log-probability to about −20, where a float is coarse
  SamplingParams p;
  p.temperature = 0;
  p.top_logprobs = 5;
  Sampler sampler(300);
  const auto r = sampler.sample(logits, p, {}, {});
  ASSERT_TRUE(r);
  const auto best = best_of(reference_logprobs(logits), 5);
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(r->top[i].id, best[i].second);
}

// One sampler for all rows, one sampler per row, any order: the same tokens.
TEST_P(SamplerTest, SlotShuffle) {
  std::mt19937_64 rng(deepmint::testing::test_seed());
  std::vector<RandomCase> cases;
  for (int i = 0; i < 64; ++i) {
    cases.push_back(random_case(rng));
    cases.back().logits.resize(3000, -1.0f);
    cases.back().mask.clear();
  }
  Sampler shared(3000);
  const auto run = [&](Sampler& s, const RandomCase& c) {
    const auto r = s.sample(c.logits, c.params, {c.prompt, c.output}, c.address, {}, c.end_ids,
                            c.always_banned);
    return r ? std::pair(r->token, r->logprob) : std::pair(TokenId{-1}, 0.0f);
  };
  const auto same = [](std::pair<TokenId, float> a, std::pair<TokenId, float> b) {
    return a.first == b.first &&
           (a.second == b.second || (std::isnan(a.second) && std::isnan(b.second)));
  };
  std::vector<std::pair<TokenId, float>> alone;
  for (auto& c : cases) {
    for (auto* list : {&c.prompt, &c.output, &c.end_ids, &c.always_banned})
      for (TokenId& id : *list) id %= 3000;
    for (auto* list : {&c.params.allowed_ids, &c.params.banned_ids})
      for (TokenId& id : *list) id %= 3000;
    std::erase_if(c.params.logit_bias, [](const auto& b) { return b.first >= 3000; });
    Sampler own(3000);
    alone.push_back(run(own, c));
  }
  std::vector<size_t> order(cases.size());
  std::iota(order.begin(), order.end(), 0);
  for (int round = 0; round < 5; ++round) {
    std::shuffle(order.begin(), order.end(), rng);
    for (const size_t i : order) ASSERT_TRUE(same(run(shared, cases[i]), alone[i])) << i;
  }
}

TEST_P(SamplerTest, AllocatesNothing) {
  std::mt19937_64 rng(deepmint::testing::test_seed());
  std::vector<RandomCase> cases;
  while (cases.size() < 100) {
    RandomCase c = random_case(rng);
    const SampleHistory history{c.prompt, c.output};
    if (reference_sample(c.logits, c.params, history, c.address, {c.mask}, c.end_ids,
                         c.always_banned))
      cases.push_back(std::move(c));  // an error's text is allocated
  }
  for (const RandomCase& c : cases) {
    Sampler sampler(static_cast<int64_t>(c.logits.size()));
    const uint64_t before = deepmint::testing::allocations();
    for (int i = 0; i < 3; ++i)
      ASSERT_TRUE(sampler.sample(c.logits, c.params, {c.prompt, c.output}, c.address, {c.mask},
                                 c.end_ids, c.always_banned));
    EXPECT_EQ(deepmint::testing::allocations() - before, 0u);
  }
}

// ---------------------------------------------------------------- statistics (determinism.md T12)

std::vector<float> chi_row() {
  std::mt19937_64 rng(1);
  std::uniform_real_distribution<float> value(-2, 2);
  std::vector<float> row(16);
  for (float& x : row) x = value(rng);
  return row;
}

// Largest value that a right sampler stays below but once in a million runs or so (5 sigma of the
// chi-square's normal limit).
double chi_limit(double dof) { return dof + 5 * std::sqrt(2 * dof) + 5; }

TEST(SamplerStatistics, DrawsFollowTheSoftmaxOfTheKeptSet) {
  const std::vector<float> row = chi_row();
  constexpr int kDraws = 1'000'000 / 7;
  std::vector<SamplingParams> all(7);
  all[1].temperature = 0.6f;
  all[2].top_k = 6;
  all[3].top_p = 0.8;
  all[4].min_p = 0.2f;
  all[4].temperature = 1.4f;
  all[5].top_k = 9;
  all[5].top_p = 0.9;
  all[5].min_p = 0.1f;
  all[6].temperature = 5.0f;
  Sampler sampler(16);
  for (size_t which = 0; which < all.size(); ++which) {
    const auto expected = reference_sample(row, all[which], {}, {});
    std::vector<int64_t> seen(16);
    for (uint32_t position = 0; position < kDraws; ++position)
      ++seen[static_cast<size_t>(
          sampler
              .sample(row, all[which], {}, {.seed = 77 + (uint64_t{1} << 63), .position = position})
              ->token)];
    double chi = 0;
    for (size_t id = 0; id < 16; ++id) {
      const double p = std::exp(static_cast<double>(expected->processed_logprobs[id]));
      if (p == 0) {
        EXPECT_EQ(seen[id], 0);
        continue;
      }
      chi += std::pow(static_cast<double>(seen[id]) - kDraws * p, 2) / (kDraws * p);
    }
    EXPECT_LT(chi, chi_limit(static_cast<double>(expected->kept.size()) - 1))
        << "combination " << which;
  }
}

// Neighbouring positions, seeds and choices draw independently: the table of pairs looks like the
// product of its margins.
TEST(SamplerStatistics, NeighboursAreIndependent) {
  const std::vector<float> row = chi_row();
  Sampler sampler(16);
  const auto draw = [&](uint64_t seed, uint32_t position, uint32_t choice) {
    return static_cast<size_t>(
        sampler.sample(row, {}, {}, {.seed = seed, .position = position, .choice = choice})->token);
  };
  constexpr uint32_t kPairs = 60'000;
  for (int kind = 0; kind < 3; ++kind) {
    std::vector<double> table(256), left(16), right(16);
    for (uint32_t i = 0; i < kPairs; ++i) {
      const size_t a = draw(i, 100, 0);
      const size_t b = kind == 0   ? draw(i, 101, 0)
                       : kind == 1 ? draw(i + 1, 100, 0)
                                   : draw(i, 100, 1);
      ++table[a * 16 + b];
      ++left[a];
      ++right[b];
    }
    double chi = 0;
    for (size_t a = 0; a < 16; ++a)
      for (size_t b = 0; b < 16; ++b) {
        const double expected = left[a] * right[b] / kPairs;
        if (expected > 0) chi += std::pow(table[a * 16 + b] - expected, 2) / expected;
      }
    EXPECT_LT(chi, chi_limit(225)) << "kind " << kind;
  }
}

// ---------------------------------------------------------------- selection

TEST(Select, KeepMassEqualsAWalk) {
  std::mt19937_64 rng(deepmint::testing::test_seed());
  for (int round = 0; round < 500; ++round) {
    const size_t n = 1 + rng() % 400;
    std::vector<uint64_t> mass(n);
    std::vector<OrderKey> keys(n);
    uint64_t total = 0;
    for (size_t i = 0; i < n; ++i) {
      mass[i] = rng() % 4 == 0 ? 0 : rng() % 1000;
      total += mass[i];
      keys[i] = order_key(static_cast<float>(rng() % 9) - 4.0f, static_cast<uint32_t>(i));
    }
    std::shuffle(keys.begin(), keys.end(), rng);
    for (const uint64_t limit : {uint64_t{0}, uint64_t{1}, total / 2, total - (total > 0), total,
                                 total + 1, rng() % (total + 1)}) {
      std::vector<OrderKey> sorted = keys;
      std::sort(sorted.begin(), sorted.end());
      size_t expected = 0;
      for (uint64_t before = 0; expected < n && (expected == 0 || before < limit); ++expected)
        before += mass[key_id(sorted[expected])];
      std::vector<OrderKey> found = keys;
      const size_t kept = keep_mass(found, limit, [&](uint32_t id) { return mass[id]; });
      ASSERT_EQ(kept, expected);
      std::sort(found.begin(), found.begin() + static_cast<ptrdiff_t>(kept));
      ASSERT_TRUE(
          std::equal(sorted.begin(), sorted.begin() + static_cast<ptrdiff_t>(kept), found.begin()));
    }
  }
}

TEST(Select, OrderKeysWalkByLogitThenId) {
  EXPECT_LT(order_key(1.0f, 9), order_key(0.5f, 1));
  EXPECT_LT(order_key(-1.0f, 9), order_key(-2.0f, 1));
  EXPECT_LT(order_key(0.5f, 1), order_key(0.5f, 2));
  EXPECT_LT(order_key(-0.0f, 1), order_key(0.0f, 2));
  EXPECT_LT(order_key(0.0f, 1), order_key(-0.0f, 2));
  EXPECT_LT(order_key(1e-45f, 5), order_key(0.0f, 1));
  EXPECT_EQ(top_p_limit(0.0), 0u);
  EXPECT_EQ(top_p_limit(0.5), uint64_t{1} << 47);
  EXPECT_EQ(top_p_limit(0x1p-60), 1u);
}

// ---------------------------------------------------------------- parameters

TEST(SamplingParamsTest, ValidateNamesTheField) {
  const auto where = [](auto change) {
    SamplingParams p;
    change(p);
    const Status s = p.validate(100);
    if (s) return std::string("ok");
    EXPECT_EQ(s.error().code, ErrorCode::kInvalidArgument);
    return s.error().where;
  };
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(where([](auto&) {}), "ok");
  for (const float bad : {nan, inf, -inf, -0.5f, 1.1e6f})
    EXPECT_EQ(where([&](auto& p) { p.temperature = bad; }), "temperature");
  EXPECT_EQ(where([](auto& p) { p.temperature = 1e-40f; }), "ok");
  EXPECT_EQ(where([](auto& p) { p.temperature = 0; }), "ok");
  EXPECT_EQ(where([](auto& p) { p.temperature = -0.0f; }), "ok");
  for (const double bad : {0.0, -1.0, std::nan(""), HUGE_VAL})
    EXPECT_EQ(where([&](auto& p) { p.top_p = bad; }), "top_p");
  EXPECT_EQ(where([](auto& p) { p.top_p = 1.5; }), "ok");
  for (const float bad : {-0.1f, 1.1f, nan})
    EXPECT_EQ(where([&](auto& p) { p.min_p = bad; }), "min_p");
  for (const float bad : {0.0f, 1e-30f, -1.0f, 101.0f, nan, inf})
    EXPECT_EQ(where([&](auto& p) { p.repetition_penalty = bad; }), "repetition_penalty");
  for (const float bad : {nan, inf, -inf, 101.0f, -101.0f}) {
    EXPECT_EQ(where([&](auto& p) { p.frequency_penalty = bad; }), "frequency_penalty");
    EXPECT_EQ(where([&](auto& p) { p.presence_penalty = bad; }), "presence_penalty");
  }
  for (const int bad : {-2, 21})
    EXPECT_EQ(where([&](auto& p) { p.top_logprobs = bad; }), "top_logprobs");
  EXPECT_EQ(where([](auto& p) { p.min_tokens = -1; }), "min_tokens");
  for (const TokenId bad :
       {-1, 100, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()}) {
    EXPECT_EQ(where([&](auto& p) { p.allowed_ids = {3, bad}; }), "allowed_ids[1]");
    EXPECT_EQ(where([&](auto& p) { p.banned_ids = {bad}; }), "banned_ids[0]");
    EXPECT_EQ(where([&](auto& p) { p.logit_bias = {{bad, 1.0f}}; }), "logit_bias[0]");
  }
  for (const float bad : {nan, inf, 10001.0f, -3e38f})
    EXPECT_EQ(where([&](auto& p) { p.logit_bias = {{7, bad}}; }), "logit_bias[7]");
  EXPECT_EQ(where([](auto& p) { p.logit_bias = {{7, 1.0f}, {8, 1.0f}, {7, 2.0f}}; }), "logit_bias");
}

// Whatever passes validate() ends in a token: no limit lets a logit of up to 1e9 overflow.
TEST(SamplingParamsTest, NoValidValueOverflows) {
  const std::vector<float> logits = {1e9f, -1e9f, 0, 5, -1e9f, 1e9f, 1, 2};
  const std::vector<TokenId> prompt = {0, 1, 2}, output = {0, 1, 1, 4, 5, 5, 5};
  Sampler sampler(static_cast<int64_t>(logits.size()));
  const auto f = [](double v) { return static_cast<float>(v); };
  for (const float temperature : {0.0f, 1e-45f, 1e-40f, std::nextafter(f(kMinTemperature), 0.0f),
                                  f(kMinTemperature), 1e-6f, 1.0f, f(kMaxTemperature)})
    for (const float repetition : {f(kMinRepetitionPenalty), 1.0f, f(kMaxRepetitionPenalty)})
      for (const float penalty : {f(-kMaxPenalty), 0.0f, f(kMaxPenalty)})
        for (const float bias : {f(-kMaxBias), f(kMaxBias)}) {
          SamplingParams p;
          p.temperature = temperature;
          p.repetition_penalty = repetition;
          p.frequency_penalty = p.presence_penalty = penalty;
          p.logit_bias = {{0, bias}, {1, bias}, {3, bias}};
          p.top_p = 0.9;
          p.min_p = 0.01f;
          p.top_logprobs = 5;
          ASSERT_TRUE(p.validate(8));
          const auto r = sampler.sample(logits, p, {prompt, output}, {.seed = 1, .position = 10});
          EXPECT_TRUE(r) << r.error().str() << " T " << temperature << " repetition " << repetition
                         << " penalty " << penalty << " bias " << bias;
        }
}

TEST(SamplerErrors, SaysWhatIsWrong) {
  Sampler sampler(4);
  SamplingParams p;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> bad = {0, nan, 1, 2}, good = {0, 1, 2, 3}, none(4, kNegInf);
  p.banned_ids = {1};  // a mask does not hide a NaN
  EXPECT_NE(sampler.sample(bad, p, {}, {}).error().message.find("NaN"), std::string::npos);
  p.banned_ids = {0, 1, 2, 3};
  EXPECT_NE(sampler.sample(good, p, {}, {}).error().message.find("masked"), std::string::npos);
  EXPECT_NE(sampler.sample(none, {}, {}, {}).error().message.find("masked"), std::string::npos);
  p = {};
  p.temperature = 1e-20f;
  const std::vector<float> large = {0, 1, 2, 3e38f};
  EXPECT_NE(sampler.sample(large, p, {}, {}).error().message.find("temperature"),
            std::string::npos);
  // The sampler is whole afterwards.
  p.temperature = 0;
  EXPECT_EQ(sampler.sample(good, p, {}, {})->token, 3);
}

}  // namespace
}  // namespace deepmint::sampling
