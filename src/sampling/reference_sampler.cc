#include "sampling/reference_sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "sampling/row_kernels.h"

namespace deepmint::sampling {
namespace {

constexpr float kNegInf = -std::numeric_limits<float>::infinity();

std::vector<float> exps(std::span<const float> row, float max) {
  std::vector<float> e(row.size(), 0.0f);
  for (size_t i = 0; i < row.size(); ++i)
    if (row[i] != kNegInf)
      e[i] = static_cast<float>(
          row_kernels().exp(static_cast<double>(row[i]) - static_cast<double>(max)));
  return e;
}

double noise(const DrawAddress& a, TokenId id) {
  const uint32_t counter[4] = {static_cast<uint32_t>(id) / 4, a.position, a.stream, a.choice};
  const uint32_t key[2] = {static_cast<uint32_t>(a.seed), static_cast<uint32_t>(a.seed >> 32)};
  const double u = (philox4x32_10(counter, key).word[id % 4] + 0.5) / 0x1p32;
  return -row_kernels().ln(-row_kernels().ln(u));
}

}  // namespace

float reference_tile_sum(std::span<const float> x) {
  float total = 0;
  for (size_t base = 0; base < x.size(); base += 512) {
    std::vector<float> tile(512, 0.0f);
    for (size_t i = 0; i < 512 && base + i < x.size(); ++i) tile[i] = x[base + i];
    for (size_t s = 256; s >= 1; s /= 2)
      for (size_t i = 0; i < s; ++i) tile[i] = tile[i] + tile[i + s];
    total = total + tile[0];
  }
  return total;
}

std::vector<float> reference_logprobs(std::span<const float> row) {
  const float max = *std::max_element(row.begin(), row.end());
  const double ln_sum = row_kernels().ln(static_cast<double>(reference_tile_sum(exps(row, max))));
  std::vector<float> out;
  for (const float x : row)
    out.push_back(static_cast<float>((static_cast<double>(x) - static_cast<double>(max)) - ln_sum));
  return out;
}

std::optional<ReferenceResult> reference_sample(std::span<const float> logits,
                                                const SamplingParams& p,
                                                const SampleHistory& history,
                                                const DrawAddress& address, const MaskView& mask,
                                                std::span<const TokenId> end_ids,
                                                std::span<const TokenId> always_banned) {
  std::vector<float> l(logits.begin(), logits.end());
  const auto bad = [&] {
    return std::any_of(l.begin(), l.end(), [](float x) { return std::isnan(x) || x == -kNegInf; });
  };
  const auto empty = [&] {
    return std::all_of(l.begin(), l.end(), [](float x) { return x == kNegInf; });
  };
  if (bad()) return std::nullopt;
  for (const auto& [id, bias] : p.logit_bias) l[static_cast<size_t>(id)] += bias;
  std::set<TokenId> every(history.prompt.begin(), history.prompt.end());
  every.insert(history.output.begin(), history.output.end());
  std::map<TokenId, int> counts;
  for (const TokenId id : history.output) ++counts[id];
  if (p.repetition_penalty != 1)
    for (const TokenId id : every) {
      float& x = l[static_cast<size_t>(id)];
      x = x > 0 ? x / p.repetition_penalty : x * p.repetition_penalty;
    }
  for (const auto& [id, count] : counts) {
    float& x = l[static_cast<size_t>(id)];
    if (p.frequency_penalty != 0) x = x - static_cast<float>(count) * p.frequency_penalty;
    if (p.presence_penalty != 0) x = x - p.presence_penalty;
  }
  if (bad()) return std::nullopt;
  const std::set<TokenId> allowed(p.allowed_ids.begin(), p.allowed_ids.end());
  for (size_t i = 0; i < l.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    const bool in_mask = mask.words.empty() || (mask.words[i / 32] >> (i % 32) & 1) != 0;
    if (!in_mask || (!allowed.empty() && allowed.count(id) == 0)) l[i] = kNegInf;
  }
  for (const TokenId id : p.banned_ids) l[static_cast<size_t>(id)] = kNegInf;
  for (const TokenId id : always_banned) l[static_cast<size_t>(id)] = kNegInf;
  if (history.output.size() < static_cast<size_t>(p.min_tokens))
    for (const TokenId id : end_ids) l[static_cast<size_t>(id)] = kNegInf;
  if (empty()) return std::nullopt;

  ReferenceResult r;
  std::vector<TokenId> order;
  const auto sort_by_logit = [&] {
    order.clear();
    for (size_t i = 0; i < l.size(); ++i)
      if (l[i] != kNegInf) order.push_back(static_cast<TokenId>(i));
    std::stable_sort(order.begin(), order.end(), [&](TokenId a, TokenId b) {
      return l[static_cast<size_t>(a)] > l[static_cast<size_t>(b)];
    });
  };
  if (p.temperature < static_cast<float>(kMinTemperature)) {
    sort_by_logit();
    r.token = order.front();
  } else {
    for (float& x : l) x = x / p.temperature;
    if (bad() || empty()) return std::nullopt;
    sort_by_logit();
    const float max = l[static_cast<size_t>(order.front())];
    if (p.top_k > 0 && static_cast<size_t>(p.top_k) < order.size())
      order.resize(static_cast<size_t>(p.top_k));
    const auto drop_others = [&] {
      std::vector<float> kept(l.size(), kNegInf);
      for (const TokenId id : order) kept[static_cast<size_t>(id)] = l[static_cast<size_t>(id)];
      l = kept;
    };
    drop_others();
    if (p.top_p < 1) {
      const std::vector<float> e = exps(l, max);
      const float sum = reference_tile_sum(e);
      const auto limit = static_cast<uint64_t>(std::ceil(p.top_p * 0x1p48));
      uint64_t before = 0;
      size_t count = 0;
      for (; count < order.size() && (count == 0 || before < limit); ++count)
        before += static_cast<uint64_t>(
            std::floor(static_cast<double>(e[static_cast<size_t>(order[count])] / sum) * 0x1p48));
      order.resize(count);
      drop_others();
    }
    if (p.min_p > 0) {
      const std::vector<float> e = exps(l, max);
      std::erase_if(order, [&](TokenId id) { return e[static_cast<size_t>(id)] < p.min_p; });
      drop_others();
    }
    double best = -std::numeric_limits<double>::infinity(), second = best;
    for (size_t i = 0; i < l.size(); ++i) {
      if (l[i] == kNegInf) continue;
      const double score = static_cast<double>(l[i]) + noise(address, static_cast<TokenId>(i));
      if (score > best) {
        second = best;
        best = score;
        r.token = static_cast<TokenId>(i);
      } else {
        second = std::max(second, score);
      }
    }
    r.score = best;
    r.score_gap = best - second;
  }
  r.kept = order;
  std::sort(r.kept.begin(), r.kept.end());
  r.processed_logprobs = reference_logprobs(l);
  r.row = std::move(l);
  return r;
}

}  // namespace deepmint::sampling
