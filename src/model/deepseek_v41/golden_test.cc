// The model against DeepSeek-V4.1 as others wrote it: what the published `transformers` model gave
// for a random checkpoint with every role of a layer (tests/golden/v41_transformers.md). The
// checkpoint comes from its seed; the fixture holds prompts and results.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "core/cpu_isa.h"
#include "core/hash.h"
#include "core/json.h"
#include "core/mapped_file.h"
#include "core/thread_pool.h"
#include "format/safetensors.h"
#include "model/deepseek_v41/formats.h"
#include "model/deepseek_v41/v41_testing.h"
#include "support/source_dir.h"

namespace deepmint::v41 {
namespace {

using namespace testing;  // NOLINT: the fixtures of v41_testing.h

constexpr size_t kPrompts = 3;

class Fixture {
 public:
  Fixture() : file_(open()) {
    auto document = json::parse(file_.metadata().at("config"));
    EXPECT_TRUE(document);
    auto config = parse_config(*document);
    EXPECT_TRUE(config) << config.error().str();
    config_ = *config;
  }
  const Config& config() const { return config_; }
  const std::string& sha256_of_weights() const { return file_.metadata().at("sha256"); }

  // A tensor's values; floats also from BF16.
  template <class T>
  std::vector<T> values(const std::string& name) const {
    const TensorView* t = file_.tensor(name);
    EXPECT_NE(t, nullptr) << name;
    if (t == nullptr) return {};
    std::vector<T> out(t->elements());
    if (t->dtype == DType::kBF16) {
      std::vector<uint16_t> bits(out.size());
      std::memcpy(bits.data(), t->bytes.data(), t->bytes.size());
      for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<T>(bf16_to_float(bits[i]));
    } else {
      EXPECT_EQ(t->bytes.size(), out.size() * sizeof(T)) << name;
      std::memcpy(out.data(), t->bytes.data(), t->bytes.size());
    }
    return out;
  }
  std::vector<std::string> names(const std::string& prefix) const {
    std::vector<std::string> out;
    for (const TensorView& t : file_.tensors())
      if (t.name.starts_with(prefix)) out.push_back(t.name.substr(prefix.size()));
    return out;
  }

 private:
  static SafetensorsModel open() {
    auto file = SafetensorsModel::open(
        deepmint::testing::source_path("tests/golden/v41_transformers.safetensors"));
    EXPECT_TRUE(file) << file.error().str();
    return std::move(*file);
  }
  SafetensorsModel file_;
  Config config_;
};

const Fixture& fixture() {
  static const Fixture f;
  return f;
}
std::string of(const char* run, size_t prompt, const std::string& what) {
  return std::string(run) + "." + std::to_string(prompt) + "." + what;
}

class Taps : public Tap {
 public:
  std::map<std::string, std::vector<float>> values;  // "3.attn" -> [rows, width]
  void sublayer(int layer, std::string_view name, std::span<const float> v, size_t) override {
    values.emplace(std::to_string(layer) + "." + std::string(name),
                   std::vector<float>(v.begin(), v.end()));
  }
};

// All logits of a prompt, run as one step.
std::vector<float> run_prompt(V41Model& model, const std::vector<int>& prompt, Tap* tap = nullptr) {
  Cache cache(model, 1, 4);
  const auto rows = rows_of(prompt, 0);
  const SequenceRef ref = cache.ref(0);
  std::vector<float> logits(rows.size() * static_cast<size_t>(model.info().vocab_size));
  const auto ok = model.forward({rows, {&ref, 1}, cache.memory()}, logits, tap);
  EXPECT_TRUE(ok) << ok.error().str();
  return logits;
}

double rms(std::span<const float> x) {
  double sum = 0;
  for (const float v : x) sum += static_cast<double>(v) * static_cast<double>(v);
  return std::sqrt(sum / static_cast<double>(x.size()));
}
double rms_difference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  std::vector<float> d(a.size());
  for (size_t i = 0; i < a.size(); ++i) d[i] = a[i] - b[i];
  return rms(d);
}
std::vector<float> pick(std::span<const float> all, std::span<const int> rows, size_t width) {
  std::vector<float> out;
  for (const int r : rows) {
    const auto row = all.subspan(static_cast<size_t>(r) * width, width);
    out.insert(out.end(), row.begin(), row.end());
  }
  return out;
}

const Checkpoint& checkpoint() {
  static const Checkpoint c(fixture().config());
  return c;
}

TEST(V41Golden, TheirCheckpointIsOurs) {
  auto file = MappedFile::open(checkpoint().folder() / "model.safetensors");
  ASSERT_TRUE(file);
  uint64_t header = 0;
  std::memcpy(&header, file->bytes().data(), 8);
  EXPECT_EQ(hex(sha256(file->bytes().subspan(8 + header))), fixture().sha256_of_weights());
}

// `forced`: their layers, given our residual stream in front of each sublayer, with roundings where
// the checkpoint's arithmetic has them. What is left is which float32 operations they round where,
// and that is seen only where it moves a value over the edge between two codes: one FP8 code of a
// linear's 64 or more inputs, which changes its output by at most 2^-4 of it.
TEST(V41Golden, EverySublayerEqualsTheirs) {
  auto model = checkpoint().load(make_reference_arithmetic());
  const auto vocab = static_cast<size_t>(model->info().vocab_size);
  size_t elements = 0, unequal = 0, tapped = 0;
  for (size_t k = 0; k < kPrompts; ++k) {
    SCOPED_TRACE(k);
    const auto prompt = fixture().values<int>(std::to_string(k) + ".prompt");
    const auto rows = fixture().values<int>(std::to_string(k) + ".tapped_rows");
    Taps taps;
    const auto logits = run_prompt(*model, prompt, &taps);
    for (const std::string& name : fixture().names(of("forced", k, "tap."))) {
      const auto theirs = fixture().values<float>(of("forced", k, "tap." + name));
      const size_t width = theirs.size() / rows.size();
      ASSERT_TRUE(taps.values.contains(name)) << name;
      const auto ours = pick(taps.values[name], rows, width);
      for (size_t r = 0; r < rows.size(); ++r) {
        const auto a = std::span(ours).subspan(r * width, width),
                   b = std::span(theirs).subspan(r * width, width);
        EXPECT_LE(rms_difference(a, b), rms(b) / 16) << name << " of position " << rows[r];
        for (size_t i = 0; i < width; ++i) unequal += a[i] != b[i];
      }
      elements += theirs.size();
      ++tapped;
    }
    // Which rows and blocks the last index source chose, ties by the lower index.
    const auto chosen = [&](const char* what, size_t r) {
      const auto all = fixture().values<int>(of("forced", k, what));
      const size_t width = all.size() / rows.size();
      std::vector<int> row(all.begin() + static_cast<std::ptrdiff_t>(r * width),
                           all.begin() + static_cast<std::ptrdiff_t>((r + 1) * width));
      std::erase(row, -1);
      return row;
    };
    for (size_t r = 0; r < rows.size(); ++r) {
      EXPECT_EQ(model->selected_rows(static_cast<size_t>(rows[r])), chosen("selected", r));
      EXPECT_EQ(model->candidate_blocks(static_cast<size_t>(rows[r])), chosen("blocks", r));
    }
    const auto logit_rows = fixture().values<int>(std::to_string(k) + ".logit_rows");
    const auto theirs = fixture().values<float>(of("forced", k, "logits"));
    const auto ours = pick(logits, logit_rows, vocab);
    for (size_t i = 0; i < ours.size(); ++i)
      ASSERT_LE(std::abs(std::bit_cast<int32_t>(ours[i]) - std::bit_cast<int32_t>(theirs[i])), 1);
  }
  // 12 layers of two sublayers, two Engram layers and the last norm, of every prompt.
  EXPECT_EQ(tapped, kPrompts * 27);
  EXPECT_LE(static_cast<double>(unequal), 0.01 * static_cast<double>(elements));
  std::printf("%zu of %zu values of sublayers are not theirs to the bit\n", unequal, elements);
}

struct Distance {
  double relative = 0;  // rms of the difference over the rms of the logits
  double agree = 0;     // share of positions with their greedy choice
  size_t sure = 0;      // positions whose margin is above the bound
  size_t sure_and_other = 0;
};

// `published`: their model as it is. It rounds no activation, so their logits differ from ours by
// what FP8 activations cost: each rounding is within 2^-4 of the value, thus a relative rms of at
// most 2^-4 / sqrt(3), and no more than three of them stand one behind the other in a sublayer:
// 0.0625. Sublayers add up in the residual stream, independent errors in quadrature, so the stream
// and the logits have the same relative error. Codes of 4 bits that flip in global rows, and rows
// that are selected instead of others, come on top: 0.1 in all. A margin between two logits is safe
// from six times that, times the square root of 2.
constexpr double kRelative = 0.1;

Distance distance_to_published(V41Model& model) {
  const auto vocab = static_cast<size_t>(model.info().vocab_size);
  Distance d;
  double difference = 0, size = 0, positions = 0;
  for (size_t k = 0; k < kPrompts; ++k) {
    const auto prompt = fixture().values<int>(std::to_string(k) + ".prompt");
    const auto logits = run_prompt(model, prompt);
    const auto rows = fixture().values<int>(std::to_string(k) + ".logit_rows");
    const auto theirs = fixture().values<float>(of("published", k, "logits"));
    const auto n = static_cast<double>(theirs.size());
    difference += n * std::pow(rms_difference(pick(logits, rows, vocab), theirs), 2);
    size += n * std::pow(rms(theirs), 2);
    const auto argmax = fixture().values<int>(of("published", k, "argmax"));
    const auto margin = fixture().values<float>(of("published", k, "margin"));
    for (size_t i = 0; i < prompt.size(); ++i) {
      const auto row = std::span(logits).subspan(i * vocab, vocab);
      const bool same = std::ranges::max_element(row) - row.begin() == argmax[i];
      const bool sure = static_cast<double>(margin[i]) > 6 * std::sqrt(2.0) * kRelative * rms(row);
      d.agree += same;
      d.sure += sure;
      d.sure_and_other += sure && !same;
      ++positions;
    }
  }
  d.relative = std::sqrt(difference / size);
  d.agree /= positions;
  return d;
}

void expect_near(const Distance& d, const char* name) {
  SCOPED_TRACE(name);
  std::printf("%s: relative distance %.4f, greedy choice equal at %.1f %%, %zu sure positions\n",
              name, d.relative, 100 * d.agree, d.sure);
  EXPECT_LE(d.relative, kRelative);
  EXPECT_GE(d.agree, 0.85);
  EXPECT_GE(d.sure, 5u);
  EXPECT_EQ(d.sure_and_other, 0u);
}

TEST(V41Golden, LogitsAreWithinTheCostOfRoundingActivations) {
  expect_near(distance_to_published(*checkpoint().load(make_reference_arithmetic())), "reference");
  const Isa before = active_isa();
  for (const Isa isa : available_isas()) {
    set_active_isa(isa);
    ThreadPool pool(2);
    expect_near(distance_to_published(*checkpoint().load(make_fast_arithmetic(&pool))),
                std::string(to_string(isa)).c_str());
  }
  set_active_isa(before);
  // Their own model is as far from itself: unrounded against rounded.
  double difference = 0, size = 0;
  for (size_t k = 0; k < kPrompts; ++k) {
    const auto a = fixture().values<float>(of("published", k, "logits")),
               b = fixture().values<float>(of("rounded", k, "logits"));
    difference += static_cast<double>(a.size()) * std::pow(rms_difference(a, b), 2);
    size += static_cast<double>(a.size()) * std::pow(rms(a), 2);
  }
  std::printf("theirs, rounded: relative distance %.4f\n", std::sqrt(difference / size));
  EXPECT_LE(std::sqrt(difference / size), kRelative);
}

// The bound tells models apart: one wrong constant that no shape gives away is beyond it.
TEST(V41Golden, AnotherModelIsBeyondTheBound) {
  const auto changed = [](auto change) {
    Config c = fixture().config();
    change(c);
    const Checkpoint other(c);
    return distance_to_published(*other.load(make_reference_arithmetic())).relative;
  };
  EXPECT_GT(changed([](Config& c) { c.compress_rope_theta = c.rope_theta; }), 2 * kRelative);
  EXPECT_GT(changed([](Config& c) { c.yarn.factor = 1; }), 2 * kRelative);
}

}  // namespace
}  // namespace deepmint::v41
