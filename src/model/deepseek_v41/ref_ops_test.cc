// Every operation against the specification's golden vectors, exactly.
#include "model/deepseek_v41/ref_ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "model/deepseek_v41/engram.h"
#include "model/deepseek_v41/formats.h"
#include "support/source_dir.h"

namespace deepmint::v41 {
namespace {

using nlohmann::json;

const json& vectors() {
  static const json v =
      json::parse(std::ifstream(deepmint::testing::source_path("tests/spec/model/vectors.json")));
  return v;
}

std::vector<float> floats(const json& j) {
  std::vector<float> out;
  for (const json& v : j) {
    if (v.is_array()) {
      const std::vector<float> row = floats(v);
      out.insert(out.end(), row.begin(), row.end());
    } else {
      out.push_back(static_cast<float>(v.get<double>()));
    }
  }
  return out;
}

void expect_equal(const std::vector<float>& got, const std::vector<float>& want, const char* what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], want[i]) << what << " at " << i;
}

std::vector<const float*> rows_of(const std::vector<float>& x, size_t d) {
  std::vector<const float*> rows;
  for (size_t i = 0; i < x.size(); i += d) rows.push_back(x.data() + i);
  return rows;
}

TEST(V41Vectors, Formats) {
  const json& v = vectors();
  for (int c = 0; c < 127; ++c)
    EXPECT_EQ(decode_e4m3(static_cast<uint8_t>(c)),
              v["e4m3_all"][static_cast<size_t>(c)].get<float>());
  for (size_t i = 0; i < v["e2m1_rne"]["x"].size(); ++i)
    EXPECT_EQ(encode_e2m1(v["e2m1_rne"]["x"][i].get<float>()), v["e2m1_rne"]["code"][i].get<int>())
        << i;
  for (size_t i = 0; i < v["e4m3_rne"]["x"].size(); ++i)
    EXPECT_EQ(encode_e4m3(v["e4m3_rne"]["x"][i].get<float>()), v["e4m3_rne"]["code"][i].get<int>())
        << i;
  EXPECT_TRUE(std::isnan(decode_e4m3(0x7F)) && std::isnan(decode_e4m3(0xFF)) &&
              std::isnan(decode_e8m0(255)));
  EXPECT_EQ(decode_e8m0(127), 1.0f);
  EXPECT_EQ(decode_e8m0(0), 0x1p-127f);
}

TEST(V41Vectors, EncodersInvertDecodersAndRoundToNearest) {
  for (int c = 0; c < 256; ++c) {
    if ((c & 127) != 127) {
      EXPECT_EQ(encode_e4m3(decode_e4m3(static_cast<uint8_t>(c))), c);
    }
    if (c < 16) {
      EXPECT_EQ(encode_e2m1(decode_e2m1(static_cast<uint8_t>(c))), c);
    }
  }
  for (uint32_t u = 0; u < 0x44000000u; u += 4093) {  // positive floats up to 512
    const float x = std::bit_cast<float>(u);
    const float back = decode_e4m3(encode_e4m3(x));
    for (int c = 0; c < 127; ++c)
      ASSERT_LE(std::fabs(back - x), std::fabs(decode_e4m3(static_cast<uint8_t>(c)) - x)) << x;
  }
}

TEST(V41Vectors, CheckpointBytes) {
  const json& v = vectors();
  const auto bytes = [](const std::string& text) {
    std::vector<uint8_t> out;
    for (size_t i = 0; i < text.size(); i += 3)
      out.push_back(static_cast<uint8_t>(std::stoi(text.substr(i, 2), nullptr, 16)));
    return out;
  };
  const auto dense = bytes(v["fp8_dense_decode"]["codes"]);
  for (size_t i = 0; i < dense.size(); ++i)
    EXPECT_EQ(decode_e4m3(dense[i]) * decode_e8m0(0x73),
              v["fp8_dense_decode"]["values"][i].get<float>());
  const auto expert = bytes(v["fp4_expert_decode"]["bytes"]);
  for (size_t i = 0; i < 2 * expert.size(); ++i)
    EXPECT_EQ(
        decode_e2m1(static_cast<uint8_t>(expert[i / 2] >> (4 * (i % 2)) & 15)) * decode_e8m0(0x78),
        v["fp4_expert_decode"]["values"][i].get<float>());
}

TEST(V41Vectors, Quantisers) {
  const auto check = [](const char* name, int block, bool nibbles, auto quantize, auto dequantize) {
    for (const json& c : vectors()[name]) {
      const std::vector<float> x = floats(c["x"]);
      const int n = static_cast<int>(x.size());
      std::vector<uint8_t> codes(x.size()), scales(x.size() / static_cast<size_t>(block));
      std::vector<float> value(x.size());
      quantize(x.data(), n, codes.data(), scales.data());
      dequantize(codes.data(), scales.data(), n, value.data());
      expect_equal(value, floats(c["value"]), name);
      for (size_t i = 0; i < x.size(); ++i) {
        const int code = nibbles ? codes[i / 2] >> (4 * (i % 2)) & 15 : codes[i];
        ASSERT_EQ(code, c["code"][i].get<int>()) << name << " " << i;
      }
      for (size_t i = 0; i < scales.size(); ++i)
        ASSERT_EQ(scales[i], c["scale_byte"][i].get<int>()) << name << " " << i;
    }
  };
  check("q8", 32, false, quantize_q8, dequantize_q8);
  check("q4idx", 32, true, quantize_q4idx, dequantize_q4idx);
  check("q4kv", 16, true, quantize_q4kv, dequantize_q4kv);
}

TEST(V41Vectors, RmsNorm) {
  const json& v = vectors()["rmsnorm"];
  const auto x = floats(v["x"]), w = floats(v["w"]);
  std::vector<float> y(x.size());
  ref::rms_norm(x.data(), w.data(), static_cast<int>(x.size()), v["eps"].get<double>(), y.data());
  expect_equal(y, floats(v["y"]), "rmsnorm");
}

TEST(V41Vectors, Rope) {
  const json constants =
      json::parse(std::ifstream(deepmint::testing::source_path("tests/spec/model/constants.json")));
  const auto plain = ref::inverse_frequencies(64, 10000.0, 0, 0, 0, 0);
  const auto yarn = ref::inverse_frequencies(64, 160000.0, 16, 65536, 32, 1);
  expect_equal(plain, floats(constants["rope_inv_freq_theta10000"]), "theta 10000");
  expect_equal(yarn, floats(constants["rope_inv_freq_theta160000_yarn16"]), "theta 160000");
  for (const json& c : vectors()["rope"]) {
    const auto& inv = c["table"] == "theta10000" ? plain : yarn;
    for (const int sign : {1, -1}) {
      auto x = floats(c["x"]);
      ref::rope(x.data(), static_cast<int>(x.size()), inv, c["pos"].get<int64_t>(), sign);
      expect_equal(x, floats(c[sign > 0 ? "y" : "y_inverse"]), "rope");
    }
  }
}

TEST(V41Vectors, HyperConnections) {
  const json& v = vectors()["mhc"];
  const auto X = floats(v["X"]), fn = floats(v["fn"]), base = floats(v["base"]),
             scale = floats(v["scale"]), y = floats(v["y"]);
  const int d = static_cast<int>(y.size());
  std::vector<float> pre(4), post(4), comb(16), u(y.size()), out(X.size());
  ref::mix(X.data(), 4, d, fn.data(), base.data(), scale.data(), 20, 1e-6f, 1e-20, pre.data(),
           post.data(), comb.data());
  expect_equal(pre, floats(v["pre"]), "pre");
  expect_equal(post, floats(v["post"]), "post");
  expect_equal(comb, floats(v["comb"]), "comb");
  ref::collapse(X.data(), 4, d, pre.data(), u.data());
  expect_equal(u, floats(v["collapse"]), "collapse");
  ref::expand(y.data(), X.data(), 4, d, post.data(), comb.data(), out.data());
  expect_equal(out, floats(v["expand"]), "expand");
}

TEST(V41Vectors, Attention) {
  const json& v = vectors()["attend"];
  const auto q = floats(v["q"]), K = floats(v["K"]), sink = floats(v["sink"]);
  std::vector<float> out(q.size());
  for (size_t h = 0; h < sink.size(); ++h)
    ref::attend(q.data() + 64 * h, rows_of(K, 64), 64, sink[h], v["scale"].get<float>(),
                out.data() + 64 * h);
  expect_equal(out, floats(v["out"]), "attend");
  ref::attend(q.data(), {}, 64, 0.0f, 1.0f, out.data());
  EXPECT_EQ(out[0], 0.0f);
}

TEST(V41Vectors, CompressPair) {
  const json& v = vectors()["compress_pair"];
  const auto kv = floats(v["kv"]), gate = floats(v["gate"]), w = floats(v["norm_w"]);
  std::vector<float> pooled(w.size()), latent(w.size());
  ref::pool(rows_of(kv, w.size()), rows_of(gate, w.size()), static_cast<int>(w.size()),
            pooled.data());
  expect_equal(pooled, floats(v["pooled"]), "pooled");
  ref::rms_norm(pooled.data(), w.data(), static_cast<int>(w.size()), 1e-20, latent.data());
  expect_equal(latent, floats(v["latent"]), "latent");
}

TEST(V41Vectors, Indexer) {
  const json& v = vectors()["indexer"];
  const auto q = floats(v["q"]), k = floats(v["k"]), w = floats(v["w_scaled"]);
  std::vector<float> score;
  for (const float* row : rows_of(k, 32))
    score.push_back(ref::index_score(q.data(), w.data(), 4, 32, row));
  expect_equal(score, floats(v["score"]), "score");
  std::vector<int32_t> rows, kept;
  ref::top_rows(score, 8, rows);
  EXPECT_EQ(rows, v["top8"].get<std::vector<int32_t>>());
  ref::candidate_blocks(score, v["block_size"], v["keep_blocks"], kept);
  EXPECT_EQ(kept, v["kept_blocks"].get<std::vector<int32_t>>());
  for (size_t j = 0; j < score.size(); ++j)
    if (!std::binary_search(kept.begin(), kept.end(), static_cast<int32_t>(j / 4)))
      score[j] = -INFINITY;
  ref::top_rows(score, 8, rows);
  EXPECT_EQ(rows, v["top8_within_blocks"].get<std::vector<int32_t>>());
  const json& ties = vectors()["top_rows_ties"];
  ref::top_rows(floats(ties["score"]), ties["k"], rows);
  EXPECT_EQ(rows, ties["rows"].get<std::vector<int32_t>>());
}

TEST(V41Vectors, Router) {
  const json& v = vectors()["router"];
  const auto u = floats(v["u"]), w = floats(v["weight"]), bias = floats(v["bias"]);
  std::vector<float> logits(bias.size()), weights(6);
  std::vector<int32_t> experts(6);
  ref::matmul(u.data(), 1, static_cast<int64_t>(u.size()), w.data(),
              static_cast<int64_t>(bias.size()), logits.data(), false);
  ref::route(logits, bias, 6, v["scale"].get<float>(), 1.0, experts, weights);
  // The vector lists experts in selection order; ours come in ascending id.
  std::vector<std::pair<int32_t, float>> want;
  for (size_t i = 0; i < 6; ++i)
    want.emplace_back(v["experts"][i].get<int32_t>(), v["weights"][i].get<float>());
  std::sort(want.begin(), want.end());
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(experts[i], want[i].first);
    EXPECT_EQ(weights[i], want[i].second);
  }
}

TEST(V41Vectors, Expert) {
  const json& v = vectors()["expert"];
  auto u = floats(v["u"]);
  const auto w1 = floats(v["w1"]), w2 = floats(v["w2"]), w3 = floats(v["w3"]);
  std::vector<float> g(64), p(64), t(64), y(32);
  ref::fake_q8(u.data(), 32);
  ref::matmul(u.data(), 1, 32, w1.data(), 64, g.data(), true);
  ref::matmul(u.data(), 1, 32, w3.data(), 64, p.data(), true);
  ref::swiglu(g.data(), p.data(), 64, v["limit"].get<float>(), true, v["a"].get<float>(), t.data());
  ref::fake_q8(t.data(), 64);
  ref::matmul(t.data(), 1, 64, w2.data(), 32, y.data(), true);
  expect_equal(y, floats(v["y"]), "expert");
}

TEST(V41Vectors, Engram) {
  const json& v = vectors()["engram_gate"];
  auto X = floats(v["X"]);
  const auto z = floats(v["z"]), qw = floats(v["q_weight"]), kw = floats(v["k_weight"]);
  ref::engram_gate(X.data(), z.data(), 4, 32, qw.data(), kw.data(), 1e-20);
  expect_equal(X, floats(v["Y"]), "engram");

  const json constants =
      json::parse(std::ifstream(deepmint::testing::source_path("tests/spec/model/constants.json")));
  const std::vector<int> layers = {1, 14};
  const auto engram = make_engram_layers(layers, 4, 8, 16000000, 99092);
  for (const EngramLayer& e : engram) {
    const json& c = constants["engram"][std::to_string(e.layer)];
    EXPECT_EQ(e.primes, c["primes"].get<std::vector<int64_t>>());
    EXPECT_EQ(e.offsets, c["offsets"].get<std::vector<int64_t>>());
    EXPECT_EQ(e.multipliers, c["multipliers"].get<std::vector<int64_t>>());
    EXPECT_EQ(e.rows, c["rows"].get<int64_t>());
  }
  for (const json& c : vectors()["engram_rows"]) {
    std::vector<int64_t> rows(24);
    engram_rows(engram[c["layer"] == 1 ? 0 : 1], 8, c["c"].get<std::vector<int64_t>>(), rows);
    EXPECT_EQ(rows, c["rows"].get<std::vector<int64_t>>());
  }
}

TEST(V41Engram, MultipliersOfOtherVocabularies) {
  // From NumPy: default_rng(10007 * layer).integers(0, bound, 4), doubled plus one. The second
  // bound needs the 32-bit path.
  const std::vector<int> layers = {1, 4}, official = {1, 14};
  EXPECT_EQ(make_engram_layers(layers, 4, 2, 97, 400)[1].multipliers,
            (std::vector<int64_t>{20378323963399201, 1248012217874625, 18246170261325197,
                                  4695688200551669}));
  EXPECT_EQ(make_engram_layers(official, 4, 2, 97, 0x7fffffffff)[1].multipliers,
            (std::vector<int64_t>{13567937, 12205773, 1073419, 9284683}));
}

}  // namespace
}  // namespace deepmint::v41
