// The golden vectors of tests/spec/sampling: every case, on every instruction set of this machine.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>

#include "core/cpu_isa.h"
#include "core/json.h"
#include "sampling/row_kernels.h"
#include "sampling/sampler.h"
#include "support/isa_test.h"
#include "support/source_dir.h"

namespace deepmint::sampling {
namespace {

constexpr float kNegInf = -std::numeric_limits<float>::infinity();

const json::Value& vectors() {
  static const json::Value doc = [] {
    std::ifstream file(deepmint::testing::source_path("tests/spec/sampling/vectors.json"));
    std::stringstream text;
    text << file.rdbuf();
    return json::parse(text.str()).value();
  }();
  return doc;
}

const json::Value& at(const json::Value& v, std::string_view key) {
  const json::Value* found = v.find(key);
  if (found == nullptr) throw std::runtime_error("no member " + std::string(key));
  return *found;
}
double number(const json::Value& v) {
  if (v.is_string())
    return v.as_string() == "-inf" ? -HUGE_VAL : v.as_string() == "inf" ? HUGE_VAL : std::nan("");
  return *v.to_double();
}
int64_t integer(const json::Value& v) { return v.to_int64().value(); }
uint64_t decimal(const json::Value& v) { return std::stoull(v.as_string()); }
std::vector<TokenId> ids(const json::Value& v) {
  std::vector<TokenId> out;
  if (v.is_array())
    for (const auto& x : v.items()) out.push_back(static_cast<TokenId>(integer(x)));
  return out;
}

// Rows by formula, as the README beside the vectors says: splitmix64 seeded by FNV-1a of the name.
std::vector<double> rnd(std::string_view name, size_t n) {
  uint64_t h = 0xCBF29CE484222325u;
  for (const char c : name) h = (h ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
  std::vector<double> out;
  for (size_t i = 1; i <= n; ++i) {
    uint64_t z = h + i * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    out.push_back(static_cast<double>(z >> 40) / 0x1p24);
  }
  return out;
}
std::vector<float> formula_row(const json::Value& g) {
  const std::string& kind = at(g, "kind").as_string();
  const double amp = number(at(g, "amp"));
  std::vector<float> row;
  for (const double u : rnd(at(g, "name").as_string(), static_cast<size_t>(integer(at(g, "n"))))) {
    const double v = kind == "const" ? 1.0 : 2 * u - 1;
    row.push_back(static_cast<float>(amp * (kind == "cubic" ? v * v * v : v)));
  }
  if (const json::Value* set = g.find("set"))
    for (const auto& pair : set->items())
      row[static_cast<size_t>(integer(pair.items()[0]))] =
          static_cast<float>(number(pair.items()[1]));
  return row;
}
const std::vector<float>& row(const std::string& name) {
  static const std::map<std::string, std::vector<float>> rows = [] {
    std::map<std::string, std::vector<float>> all;
    for (const auto& [key, values] : at(vectors(), "rows").members())
      for (const auto& v : values.items()) all[key].push_back(static_cast<float>(number(v)));
    for (const auto& [key, formula] : at(vectors(), "formula_rows").members()) {
      std::vector<float> x = formula_row(formula);
      for (size_t i = 0; i < 4; ++i)
        EXPECT_EQ(x[i], static_cast<float>(number(at(formula, "first4").items()[i]))) << key;
      EXPECT_EQ(x.back(), static_cast<float>(number(at(formula, "last")))) << key;
      all[key] = std::move(x);
    }
    return all;
  }();
  return rows.at(name);
}

struct Params {
  SamplingParams sampling;
  std::vector<uint32_t> grammar_words;
  std::vector<TokenId> end_ids, always_banned;
};
Params params(const json::Value& v) {
  Params p;
  SamplingParams& s = p.sampling;
  for (const auto& [key, value] : v.members()) {
    if (key == "temperature")
      s.temperature = static_cast<float>(number(value));
    else if (key == "top_k")
      s.top_k = static_cast<int32_t>(integer(value));
    else if (key == "top_p")
      s.top_p = number(value);
    else if (key == "min_p")
      s.min_p = static_cast<float>(number(value));
    else if (key == "repetition_penalty")
      s.repetition_penalty = static_cast<float>(number(value));
    else if (key == "frequency_penalty")
      s.frequency_penalty = static_cast<float>(number(value));
    else if (key == "presence_penalty")
      s.presence_penalty = static_cast<float>(number(value));
    else if (key == "allowed_ids")
      s.allowed_ids = ids(value);
    else if (key == "banned_ids")
      s.banned_ids = ids(value);
    else if (key == "min_tokens")
      s.min_tokens = static_cast<int32_t>(integer(value));
    else if (key == "eos_ids")
      p.end_ids = ids(value);
    else if (key == "always_banned")
      p.always_banned = ids(value);
    else if (key == "grammar_words")
      for (const auto& w : value.items())
        p.grammar_words.push_back(static_cast<uint32_t>(integer(w)));
    else if (key == "logit_bias")
      for (const auto& [id, bias] : value.members())
        s.logit_bias.emplace_back(std::stoi(id), static_cast<float>(number(bias)));
    else
      ADD_FAILURE() << "parameter without a field: " << key;
  }
  return p;
}

std::string fnv(const std::vector<TokenId>& kept) {
  uint64_t h = 0xCBF29CE484222325u;
  for (const TokenId id : kept)
    for (int byte = 0; byte < 4; ++byte)
      h = (h ^ (static_cast<uint32_t>(id) >> (8 * byte) & 255)) * 0x100000001B3u;
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(h));
  return text;
}

class SamplingVectors : public deepmint::testing::IsaTest {};
INSTANTIATE_TEST_SUITE_P(Isas, SamplingVectors, ::testing::ValuesIn(available_isas()),
                         deepmint::testing::isa_name);

TEST_P(SamplingVectors, Philox) {
  for (const auto& v : at(vectors(), "philox_known_answers").items()) {
    uint32_t counter[4], key[2];
    for (size_t i = 0; i < 4; ++i)
      counter[i] = static_cast<uint32_t>(integer(at(v, "counter").items()[i]));
    for (size_t i = 0; i < 2; ++i) key[i] = static_cast<uint32_t>(integer(at(v, "key").items()[i]));
    const PhiloxBlock block = philox4x32_10(counter, key);
    for (size_t i = 0; i < 4; ++i)
      EXPECT_EQ(block.word[i], std::stoul(at(v, "out").items()[i].as_string(), nullptr, 16));
  }
}

TEST_P(SamplingVectors, Addressing) {
  for (const auto& v : at(vectors(), "addressing").items()) {
    const uint64_t seed = decimal(at(v, "seed"));
    const auto position = static_cast<uint32_t>(integer(at(v, "position")));
    const auto stream = static_cast<uint32_t>(integer(at(v, "stream")));
    const auto choice = static_cast<uint32_t>(integer(at(v, "choice")));
    const auto id = static_cast<uint32_t>(integer(at(v, "token_id")));
    const NoiseKey key{
        {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)}, position, stream, choice};
    const uint32_t word = row_kernels().noise_word(&key, id);
    EXPECT_EQ(word, integer(at(v, "word")));
    EXPECT_EQ((word + 0.5) / 0x1p32, number(at(v, "u")));
    EXPECT_NEAR(-row_kernels().ln((word + 0.5) / 0x1p32), number(at(v, "E")), 1e-12);
    EXPECT_NEAR(row_kernels().gumbel(word), number(at(v, "gumbel")), 1e-12);
  }
}

TEST_P(SamplingVectors, GumbelExtremes) {
  for (const auto& v : at(vectors(), "gumbel_extremes").items()) {
    const auto word = static_cast<uint32_t>(integer(at(v, "word")));
    EXPECT_NEAR(row_kernels().gumbel(word), number(at(v, "gumbel")), 1e-12) << word;
  }
}

TEST_P(SamplingVectors, TileSum) {
  const json::Value& v = at(vectors(), "tile_sum");
  std::vector<float> x = formula_row(at(v, "row"));
  for (float& value : x) value = std::abs(value);
  EXPECT_EQ(row_kernels().tile_sum(x.data()), static_cast<float>(number(at(v, "first_tile"))));
  float sum = 0;
  for (size_t base = 0; base < x.size(); base += kTileIds) {
    std::vector<float> tile(kTileIds, 0.0f);
    std::copy(x.begin() + static_cast<ptrdiff_t>(base),
              x.begin() + static_cast<ptrdiff_t>(std::min(x.size(), base + kTileIds)),
              tile.begin());
    sum = sum + row_kernels().tile_sum(tile.data());
  }
  EXPECT_EQ(sum, static_cast<float>(number(at(v, "sum"))));
}

void expect_top(std::span<const TopLogprob> top, const json::Value& expected) {
  ASSERT_EQ(top.size(), expected.items().size());
  for (size_t i = 0; i < top.size(); ++i) {
    EXPECT_EQ(top[i].id, integer(expected.items()[i].items()[0])) << "rank " << i;
    EXPECT_NEAR(top[i].logprob, number(expected.items()[i].items()[1]), 1e-5) << "rank " << i;
  }
}

TEST_P(SamplingVectors, EveryCase) {
  size_t cases = 0;
  for (const auto& c : at(vectors(), "cases").items()) {
    SCOPED_TRACE(at(c, "name").as_string());
    ++cases;
    const std::vector<float>& logits = row(at(c, "row").as_string());
    Params p = params(at(c, "params"));
    const auto prompt = ids(at(c, "prompt")), output = ids(at(c, "output"));
    const DrawAddress address{decimal(at(c, "seed")),
                              static_cast<uint32_t>(integer(at(c, "position"))),
                              static_cast<uint32_t>(integer(at(c, "stream"))),
                              static_cast<uint32_t>(integer(at(c, "choice")))};
    Sampler sampler(static_cast<int64_t>(logits.size()));
    SampleTrace trace;
    sampler.set_trace(&trace);
    const json::Value& expect = at(c, "expect");
    for (const bool raw : {true, false}) {
      p.sampling.raw_logprobs = raw;
      p.sampling.top_logprobs = 5;
      const auto r = sampler.sample(logits, p.sampling, {prompt, output}, address,
                                    {p.grammar_words}, p.end_ids, p.always_banned);
      if (expect.find("refused") != nullptr) {
        ASSERT_FALSE(r.has_value());
        EXPECT_EQ(r.error().code, ErrorCode::kInternal);
        continue;
      }
      ASSERT_TRUE(r.has_value()) << r.error().str();
      EXPECT_EQ(r->token, integer(at(expect, "token")));
      EXPECT_EQ(trace.kept.size(), static_cast<size_t>(integer(at(expect, "kept_count"))));
      EXPECT_EQ(fnv(trace.kept), at(expect, "kept_fnv").as_string());
      const auto with = [&](const char* key, const auto& check) {
        if (const json::Value* value = expect.find(key)) check(*value);
      };
      const auto count_is = [](size_t found) {
        return [found](const json::Value& v) { EXPECT_EQ(found, static_cast<size_t>(integer(v))); };
      };
      with("finite", count_is(trace.finite));
      with("after_top_k", count_is(trace.after_top_k));
      with("after_top_p", count_is(trace.after_top_p));
      with("kept_ids", [&](const json::Value& v) { EXPECT_EQ(trace.kept, ids(v)); });
      with("after_step3", [&](const json::Value& v) {
        for (const auto& probe : v.items())
          EXPECT_EQ(trace.after_masks[static_cast<size_t>(integer(probe.items()[0]))],
                    static_cast<float>(number(probe.items()[1])));
      });
      with("scaled_logit", [&](const json::Value& v) {
        EXPECT_EQ(trace.scaled_logit, static_cast<float>(number(v)));
      });
      with("gumbel", [&](const json::Value& v) { EXPECT_NEAR(trace.gumbel, number(v), 1e-12); });
      with("score", [&](const json::Value& v) {
        EXPECT_NEAR(trace.score, number(v), 1e-12 * std::max(1.0, std::abs(number(v))));
      });
      EXPECT_NEAR(r->logprob, number(at(expect, raw ? "raw_logprob" : "processed_logprob")), 1e-5);
      expect_top(r->top, at(expect, raw ? "raw_top5" : "processed_top5"));
    }
  }
  EXPECT_EQ(cases, 99u);
}

TEST_P(SamplingVectors, Walks) {
  for (const auto& w : at(vectors(), "walks").items()) {
    SCOPED_TRACE(at(w, "name").as_string());
    const std::vector<float>& logits = row(at(w, "row").as_string());
    const Params p = params(at(w, "params"));
    const auto prompt = ids(at(w, "prompt")), expected = ids(at(w, "tokens"));
    Sampler sampler(static_cast<int64_t>(logits.size()));
    std::vector<TokenId> output;
    while (output.size() < expected.size()) {
      const DrawAddress address{decimal(at(w, "seed")),
                                static_cast<uint32_t>(prompt.size() + output.size()), 0,
                                static_cast<uint32_t>(integer(at(w, "choice")))};
      const auto r = sampler.sample(logits, p.sampling, {prompt, output}, address, {}, p.end_ids,
                                    p.always_banned);
      ASSERT_TRUE(r.has_value());
      output.push_back(r->token);
    }
    EXPECT_EQ(output, expected);
  }
}

// The free function and the sampler give one number.
TEST_P(SamplingVectors, LogProbFunction) {
  for (const char* name : {"a64", "c257", "peak1000", "big1"}) {
    const std::vector<float>& logits = row(name);
    Sampler sampler(static_cast<int64_t>(logits.size()));
    SamplingParams p;
    p.top_logprobs = 3;
    p.temperature = 0.5f;
    p.top_k = 7;
    const auto r = sampler.sample(logits, p, {}, {.seed = 9, .position = 1});
    ASSERT_TRUE(r.has_value());
    EXPECT_EQ(r->logprob, log_prob(logits, r->token));
    for (const TopLogprob& t : r->top) EXPECT_EQ(t.logprob, log_prob(logits, t.id));
  }
  EXPECT_TRUE(std::isnan(log_prob(row("nan64"), 0)));
  EXPECT_TRUE(std::isnan(log_prob(row("pinf64"), 0)));
  EXPECT_EQ(log_prob(row("inf64"), 0), kNegInf);
}

}  // namespace
}  // namespace deepmint::sampling
