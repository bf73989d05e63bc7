#include "sampling/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/aligned.h"
#include "core/check.h"
#include "sampling/row_kernels.h"
#include "sampling/select.h"

namespace deepmint {

using sampling::GumbelBest;
using sampling::key_id;
using sampling::kTileIds;
using sampling::mass_units;
using sampling::NoiseKey;
using sampling::order_key;
using sampling::OrderKey;
using sampling::row_kernels;
using sampling::RowKernels;
using sampling::RowScan;

namespace {

constexpr float kNegInf = -std::numeric_limits<float>::infinity();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kLowest = std::numeric_limits<float>::lowest();  // "at least this" = not dropped
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr size_t kMaxTop = 20;
// Up to here survivors are a list; beyond, one vectorised pass over the whole row is cheaper than a
// Philox block for each (bench/sampling_bench, 49,152 ids).
constexpr size_t kListLimit = 2048;
constexpr size_t kWalkLimit = 512;  // candidates that bisecting the nucleus leaves to be walked

tl::unexpected<Error> not_finite(std::string_view what) {
  return fail(ErrorCode::kInternal,
              fmt::format("expected finite logits, found NaN or +inf {}", what), "sampling");
}

NoiseKey noise_key(const DrawAddress& a) {
  return {{static_cast<uint32_t>(a.seed), static_cast<uint32_t>(a.seed >> 32)},
          a.position,
          a.stream,
          a.choice};
}

// One row with what later steps need to know about it.
struct RowView {
  const float* x;
  std::span<const float> columns;
  float max;
};

// Step 4. Dividing by less could overflow; what it divides is decided but for exact ties.
bool is_greedy(const SamplingParams& params) {
  return params.temperature < static_cast<float>(kMinTemperature);
}

size_t count_kept(const float* x, size_t n) {
  return static_cast<size_t>(std::count_if(x, x + n, [](float v) { return v != kNegInf; }));
}

// No entry below this passes min-p: e >= min_p means l − max >= ln(min_p), but for the rounding of
// e and a few of this line.
float min_p_floor(float max, float min_p) {
  const double floor = static_cast<double>(max) + row_kernels().ln(static_cast<double>(min_p));
  return static_cast<float>(floor - std::abs(floor) * 0x1p-20 - 1e-3);
}

// A row's softmax denominator, ready for log-probabilities.
struct Normalizer {
  double max, ln_sum;
  float logprob(float x) const {
    return static_cast<float>((static_cast<double>(x) - max) - ln_sum);
  }
};

struct Rows {
  RowView
      raw;  // the model's logits; columns and max are there when log-probabilities of it are wanted
  RowView scaled;  // after bias, penalties, masks and the division by T
};

// What the filters leave: a few keys, or a whole row with everything else at −inf.
struct Survivors {
  std::span<const OrderKey> list;
  const RowView* dense = nullptr;
};

template <class T>
AlignedBuffer<T> scratch(size_t count) {
  return AlignedBuffer<T>::uninitialized(count);
}

}  // namespace

struct Sampler::Impl {
  explicit Impl(size_t vocab)
      : n(vocab),
        work(scratch<float>(vocab)),
        exps(scratch<float>((vocab + kTileIds - 1) / kTileIds * kTileIds)),
        raw_columns(scratch<float>(sampling::columns_of(vocab))),
        columns(scratch<float>(sampling::columns_of(vocab))),
        kept_columns(scratch<float>(sampling::columns_of(vocab))),
        column_scratch(scratch<float>(sampling::columns_of(vocab))),
        units(scratch<double>(vocab)),
        ids(scratch<uint32_t>(vocab)),
        keys(scratch<OrderKey>(vocab)),
        seen(vocab),
        words((vocab + 31) / 32),
        tile_used(exps.size() / kTileIds) {}

  const size_t n;
  AlignedBuffer<float> work;  // the row under the pipeline, when it differs from the input
  AlignedBuffer<float> exps;  // e of the row, by id; or the row of survivors
  AlignedBuffer<float> raw_columns, columns, kept_columns, column_scratch;
  AlignedBuffer<double> units;  // probabilities in units of 2^-48, for a large nucleus
  AlignedBuffer<uint32_t> ids;
  AlignedBuffer<OrderKey> keys;  // candidates; survivors are at the front
  // Zero between calls: times in the output; top bit = repetition penalty applied.
  AlignedBuffer<uint32_t> seen;
  AlignedBuffer<uint32_t> words;      // zero between calls: allowed_ids as bits
  AlignedBuffer<uint8_t> tile_used;   // zero between calls
  const float* summed_row = nullptr;  // the row whose sum of e is known in this call
  float row_sum = 0;
  RowView kept{};  // the row of survivors, when there are many
  std::array<TopLogprob, kMaxTop> top;
  SampleTrace* trace = nullptr;

  Result<SampleResult> sample(std::span<const float> logits, const SamplingParams& params,
                              const SampleHistory& history, const DrawAddress& address,
                              const MaskView& mask, std::span<const TokenId> end_ids,
                              std::span<const TokenId> always_banned);
  Result<Rows> prepare(std::span<const float> logits, const SamplingParams& params,
                       const SampleHistory& history, const MaskView& mask,
                       std::span<const TokenId> end_ids, std::span<const TokenId> always_banned);
  void fill_trace(const RowView& row, const Survivors& survivors, const GumbelBest& chosen,
                  bool greedy, const DrawAddress& address);
  void penalise(float* x, const SamplingParams& params, const SampleHistory& history);
  void apply_masks(float* x, const SamplingParams& params, size_t output, const MaskView& mask,
                   std::span<const TokenId> end_ids, std::span<const TokenId> always_banned);
  std::span<OrderKey> collect(const RowView& row, float at_least, float below = kInf,
                              size_t limit = std::numeric_limits<size_t>::max());
  Survivors filter(const RowView& row, const SamplingParams& params);
  Survivors top_p(const RowView& row, uint64_t limit);
  const RowView* large_top_p(const RowView& row, double limit, float sum);
  const RowView* spread(const RowView& row, std::span<const OrderKey> survivors);
  float exp_of(const RowView& row, uint32_t id) const;
  float sum_of(const RowView& row, std::span<const OrderKey> survivors);
  GumbelBest draw(const RowView& row, const Survivors& survivors, const DrawAddress& address);
  uint32_t argmax(const RowView& row) const;
  Normalizer normalizer(const RowView& row) const;
  std::span<const TopLogprob> best(const RowView& row, const Normalizer& norm, size_t count);
  std::span<const TopLogprob> best_of(const RowView& row, const Normalizer& norm,
                                      std::span<const OrderKey> survivors, size_t count);
  std::span<const TopLogprob> take_best(std::span<OrderKey> by_logprob, const RowView& row,
                                        const Normalizer& norm, size_t count);
};

PhiloxBlock philox4x32_10(const uint32_t counter[4], const uint32_t key[2]) {
  uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]};
  uint32_t k[2] = {key[0], key[1]};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * c[0], b = uint64_t{0xCD9E8D57} * c[2];
    const uint32_t next[4] = {
        static_cast<uint32_t>(b >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(b),
        static_cast<uint32_t>(a >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(a)};
    std::copy(next, next + 4, c);
    k[0] += 0x9E3779B9;
    k[1] += 0xBB67AE85;
  }
  return {{c[0], c[1], c[2], c[3]}};
}

Sampler::Sampler(int64_t vocab_size)
    : impl_(std::make_unique<Impl>(static_cast<size_t>(vocab_size))) {
  DEEPMINT_CHECK(vocab_size > 0 && vocab_size <= std::numeric_limits<int32_t>::max());
}
Sampler::~Sampler() = default;
Sampler::Sampler(Sampler&&) noexcept = default;
Sampler& Sampler::operator=(Sampler&&) noexcept = default;

void Sampler::set_trace(SampleTrace* trace) { impl_->trace = trace; }

Result<SampleResult> Sampler::sample(std::span<const float> logits, const SamplingParams& params,
                                     const SampleHistory& history, const DrawAddress& address,
                                     const MaskView& mask, std::span<const TokenId> end_ids,
                                     std::span<const TokenId> always_banned) {
  DEEPMINT_CHECK(logits.size() == impl_->n);
  DEEPMINT_CHECK(mask.words.empty() || mask.words.size() >= impl_->words.size());
  return impl_->sample(logits, params, history, address, mask, end_ids, always_banned);
}

// Steps 1..5, and the checks of the input.
Result<Rows> Sampler::Impl::prepare(std::span<const float> logits, const SamplingParams& params,
                                    const SampleHistory& history, const MaskView& mask,
                                    std::span<const TokenId> end_ids,
                                    std::span<const TokenId> always_banned) {
  const RowKernels& k = row_kernels();
  const bool masked =
      !mask.words.empty() || !params.allowed_ids.empty() || !params.banned_ids.empty() ||
      !always_banned.empty() ||
      (history.output.size() < static_cast<size_t>(params.min_tokens) && !end_ids.empty());
  const bool penalised =
      params.repetition_penalty != 1 ||
      ((params.frequency_penalty != 0 || params.presence_penalty != 0) && !history.output.empty());
  const bool edited = masked || penalised || !params.logit_bias.empty();
  const bool divided = !is_greedy(params) && params.temperature != 1;

  // The input is looked at first where a mask could hide a NaN. Divisions and penalties do not.
  Rows rows{{logits.data(), {}, 0}, {logits.data(), {}, 0}};
  if (masked || (params.top_logprobs >= 0 && params.raw_logprobs) || (!edited && !divided)) {
    const RowScan scan = k.scan(logits.data(), n, raw_columns.data());
    if (scan.bad != 0) return not_finite("in the model's output");
    rows.raw.columns = raw_columns.span();
    rows.raw.max = scan.max;
  }
  rows.scaled = rows.raw;
  if (edited) {
    std::memcpy(work.data(), logits.data(), n * sizeof(float));
    for (const auto& [id, bias] : params.logit_bias) work[static_cast<size_t>(id)] += bias;
    if (penalised) penalise(work.data(), params, history);
    if (masked)
      apply_masks(work.data(), params, history.output.size(), mask, end_ids, always_banned);
    rows.scaled.x = work.data();
  }
  if (trace != nullptr) trace->after_masks.assign(rows.scaled.x, rows.scaled.x + n);
  if (divided) {
    k.divide(rows.scaled.x, n, params.temperature, work.data());
    rows.scaled.x = work.data();
  }
  if (rows.scaled.x == work.data()) {
    const RowScan scan = k.scan(work.data(), n, columns.data());
    if (scan.bad != 0) return not_finite("after bias, penalties and temperature");
    rows.scaled.columns = columns.span();
    rows.scaled.max = scan.max;
  }
  if (rows.scaled.max == kNegInf)
    return fail(ErrorCode::kInternal, "expected a token to choose from, found every one masked",
                "sampling");
  return rows;
}

Result<SampleResult> Sampler::Impl::sample(std::span<const float> logits,
                                           const SamplingParams& params,
                                           const SampleHistory& history, const DrawAddress& address,
                                           const MaskView& mask, std::span<const TokenId> end_ids,
                                           std::span<const TokenId> always_banned) {
  DEEPMINT_TRY(rows, prepare(logits, params, history, mask, end_ids, always_banned));
  const RowView& row = rows.scaled;
  summed_row = nullptr;
  const bool greedy = is_greedy(params);
  const bool filtered = !greedy && ((params.top_k > 0 && static_cast<size_t>(params.top_k) < n) ||
                                    params.top_p < 1 || params.min_p > 0);
  if (trace != nullptr)
    trace->finite = trace->after_top_k = trace->after_top_p = count_kept(row.x, n);
  const Survivors survivors = filtered ? filter(row, params) : Survivors{{}, &row};
  const GumbelBest chosen = greedy ? GumbelBest{0, argmax(row)} : draw(row, survivors, address);
  if (trace != nullptr) fill_trace(row, survivors, chosen, greedy, address);

  SampleResult result;
  result.token = static_cast<TokenId>(chosen.id);
  result.logprob = kNaN;
  if (params.top_logprobs < 0) return result;
  const auto count = static_cast<size_t>(params.top_logprobs);
  if (const RowView* shown = params.raw_logprobs ? &rows.raw : survivors.dense) {
    const Normalizer norm = normalizer(*shown);
    result.logprob = norm.logprob(shown->x[chosen.id]);
    result.top = best(*shown, norm, count);
  } else {
    const Normalizer norm{static_cast<double>(row.max),
                          row_kernels().ln(static_cast<double>(sum_of(row, survivors.list)))};
    result.logprob = norm.logprob(row.x[chosen.id]);
    result.top = best_of(row, norm, survivors.list, count);
  }
  return result;
}

void Sampler::Impl::fill_trace(const RowView& row, const Survivors& survivors,
                               const GumbelBest& chosen, bool greedy, const DrawAddress& address) {
  const NoiseKey noise = noise_key(address);
  trace->scaled_logit = row.x[chosen.id];
  trace->score = chosen.score;
  trace->gumbel = greedy ? 0 : row_kernels().gumbel(row_kernels().noise_word(&noise, chosen.id));
  trace->kept.clear();
  for (const OrderKey key : survivors.list)
    trace->kept.push_back(static_cast<TokenId>(key_id(key)));
  std::sort(trace->kept.begin(), trace->kept.end());
  for (size_t id = 0; survivors.dense != nullptr && id < n; ++id)
    if (survivors.dense->x[id] != kNegInf) trace->kept.push_back(static_cast<TokenId>(id));
}

// Step 2: float, one rounding per operation; each distinct id once.
void Sampler::Impl::penalise(float* x, const SamplingParams& params, const SampleHistory& history) {
  constexpr uint32_t kRepeated = 0x80000000u;
  size_t n_touched = 0;
  const auto touch = [&](TokenId id) -> uint32_t& {
    DEEPMINT_DCHECK(id >= 0 && static_cast<size_t>(id) < n);
    uint32_t& mark = seen[static_cast<size_t>(id)];
    if (mark == 0) ids[n_touched++] = static_cast<uint32_t>(id);
    return mark;
  };
  if (const float penalty = params.repetition_penalty; penalty != 1) {
    for (const auto& part : {history.prompt, history.output})
      for (const TokenId id : part) {
        uint32_t& mark = touch(id);
        if (mark != 0) continue;
        mark = kRepeated;
        float& logit = x[id];
        logit = logit > 0 ? logit / penalty : logit * penalty;
      }
  }
  if (params.frequency_penalty != 0 || params.presence_penalty != 0) {
    for (const TokenId id : history.output) ++touch(id);
    for (size_t i = 0; i < n_touched; ++i) {
      const uint32_t count = seen[ids[i]] & ~kRepeated;
      if (count == 0) continue;
      float& logit = x[ids[i]];
      if (params.frequency_penalty != 0)
        logit = logit - static_cast<float>(count) * params.frequency_penalty;
      if (params.presence_penalty != 0) logit = logit - params.presence_penalty;
    }
  }
  for (size_t i = 0; i < n_touched; ++i) seen[ids[i]] = 0;
}

// Step 3.
void Sampler::Impl::apply_masks(float* x, const SamplingParams& params, size_t output,
                                const MaskView& mask, std::span<const TokenId> end_ids,
                                std::span<const TokenId> always_banned) {
  if (!mask.words.empty()) row_kernels().apply_mask(x, n, mask.words.data());
  if (!params.allowed_ids.empty()) {
    for (const TokenId id : params.allowed_ids)
      words[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
    row_kernels().apply_mask(x, n, words.data());
    for (const TokenId id : params.allowed_ids) words[static_cast<size_t>(id) / 32] = 0;
  }
  for (const TokenId id : params.banned_ids) x[id] = kNegInf;
  for (const TokenId id : always_banned) x[id] = kNegInf;
  if (output < static_cast<size_t>(params.min_tokens))
    for (const TokenId id : end_ids) x[id] = kNegInf;
}

// Every candidate with a logit in [at_least, below), as keys; when there are more than `limit`,
// only more than that many.
std::span<OrderKey> Sampler::Impl::collect(const RowView& row, float at_least, float below,
                                           size_t limit) {
  const size_t count = row_kernels().collect(row.x, n, row.columns.data(),
                                             std::max(at_least, kLowest), below, limit, ids.data());
  for (size_t i = 0; i < count; ++i) keys[i] = order_key(row.x[ids[i]], ids[i]);
  return {keys.data(), count};
}

float Sampler::Impl::exp_of(const RowView& row, uint32_t id) const {
  return static_cast<float>(
      row_kernels().exp(static_cast<double>(row.x[id]) - static_cast<double>(row.max)));
}

// Canonical sum of e over a few survivors: only their tiles are summed, every other tile would add
// +0. Leaves e in `exps` for them.
float Sampler::Impl::sum_of(const RowView& row, std::span<const OrderKey> survivors) {
  for (const OrderKey key : survivors) {
    const uint32_t id = key_id(key);
    const size_t tile = id / kTileIds;
    if (tile_used[tile] == 0) {
      tile_used[tile] = 1;
      std::memset(exps.data() + tile * kTileIds, 0, kTileIds * sizeof(float));
    }
    exps[id] = exp_of(row, id);
  }
  float sum = 0;
  for (size_t tile = 0; tile < tile_used.size(); ++tile) {
    if (tile_used[tile] == 0) continue;
    tile_used[tile] = 0;
    sum = sum + row_kernels().tile_sum(exps.data() + tile * kTileIds);
  }
  return sum;
}

// Steps 6..8. Every filter keeps a prefix of the walk order, so each works on the few candidates
// that can be inside it.
Survivors Sampler::Impl::filter(const RowView& row, const SamplingParams& params) {
  const bool by_k = params.top_k > 0 && static_cast<size_t>(params.top_k) < n;
  const bool by_p = params.top_p < 1;
  const uint64_t limit = by_p ? sampling::top_p_limit(params.top_p) : 0;
  std::span<OrderKey> survivors;
  if (by_k) {
    const auto count = static_cast<size_t>(params.top_k);
    survivors =
        collect(row, sampling::kth_largest_bound(row.columns, count, column_scratch.span()));
    sampling::keep_first(survivors, count);
    survivors = survivors.first(std::min(count, survivors.size()));
    if (trace != nullptr) trace->after_top_k = survivors.size();
    if (by_p) {
      const float sum = sum_of(row, survivors);
      survivors = survivors.first(sampling::keep_mass(
          survivors, limit, [&](uint32_t id) { return mass_units(exps[id] / sum); }));
    }
    if (trace != nullptr) trace->after_top_p = survivors.size();
  } else if (by_p) {
    const Survivors nucleus = top_p(row, limit);
    if (trace != nullptr)
      trace->after_top_p =
          nucleus.dense != nullptr ? count_kept(nucleus.dense->x, n) : nucleus.list.size();
    if (nucleus.dense != nullptr && params.min_p == 0) return nucleus;
    survivors = nucleus.dense != nullptr
                    ? collect(*nucleus.dense, min_p_floor(row.max, params.min_p))
                    : std::span<OrderKey>(keys.data(), nucleus.list.size());
  } else {
    survivors = collect(row, min_p_floor(row.max, params.min_p));
  }
  if (params.min_p > 0) {
    const auto end = std::partition(survivors.begin(), survivors.end(), [&](OrderKey key) {
      return exp_of(row, key_id(key)) >= params.min_p;
    });
    survivors = survivors.first(static_cast<size_t>(end - survivors.begin()));
  }
  if (survivors.size() > kListLimit) return {{}, spread(row, survivors)};
  return {survivors, nullptr};
}

// Step 7 over a whole row. Masses are integers, so any order of adding them gives the same cut. The
// cut is nearly always close to the top: the candidates within a few nats of it are a prefix of the
// walk, and when their mass reaches the limit the cut lies inside.
Survivors Sampler::Impl::top_p(const RowView& row, uint64_t limit) {
  const float sum = row_kernels().exp_sum(row.x, n, row.max, exps.data());
  summed_row = row.x;
  row_sum = sum;
  const auto mass_of = [&](uint32_t id) { return mass_units(exps[id] / sum); };
  for (const float depth : {3.0f, 6.0f}) {
    const std::span<OrderKey> near = collect(row, row.max - depth, kInf, kListLimit);
    if (near.size() > kListLimit) break;
    uint64_t mass = 0;
    for (const OrderKey key : near) mass += mass_of(key_id(key));
    if (mass >= limit) return {near.first(sampling::keep_mass(near, limit, mass_of)), nullptr};
  }
  return {{}, large_top_p(row, std::max(1.0, static_cast<double>(limit)), sum)};
}

// The same for a nucleus of thousands: bisects the logit at which the mass reaches the limit, then
// walks the few in between.
const RowView* Sampler::Impl::large_top_p(const RowView& row, double limit, float sum) {
  const RowKernels& k = row_kernels();
  k.mass_units(exps.data(), n, sum, units.data());
  // mass(low) >= limit > mass(high), where mass(x) is that of all logits of at least x.
  float low = kLowest, high = std::nextafter(row.max, kInf);
  size_t count_low = 0, count_high = 0;
  double mass_high = 0;
  if (k.mass_at_least(row.x, units.data(), n, low, &count_low) < limit)
    return &row;  // everything is inside
  const auto probe = [&](float at) {
    if (!(at > low && at < high)) return false;
    size_t count = 0;
    const double mass = k.mass_at_least(row.x, units.data(), n, at, &count);
    if (mass >= limit) {
      low = at;
      count_low = count;
    } else {
      high = at;
      mass_high = mass;
      count_high = count;
    }
    return true;
  };
  // 40 nats below the largest a probability is less than one unit: `low` is above that from here
  // on.
  for (const float depth : {3.0f, 6.0f, 10.0f, 20.0f, 40.0f}) probe(row.max - depth);
  while (count_low - count_high > kWalkLimit && probe(low + (high - low) / 2)) {
  }
  const std::span<OrderKey> between = collect(row, low, high);
  const size_t inside =
      sampling::keep_mass(between, static_cast<uint64_t>(limit - mass_high),
                          [&](uint32_t id) { return static_cast<uint64_t>(units[id]); });
  const OrderKey cut =
      *std::max_element(between.begin(), between.begin() + static_cast<ptrdiff_t>(inside));
  // Kept: a larger logit than the cut's, or the same one and an id up to the cut's.
  const float cut_logit = row.x[key_id(cut)];
  const size_t ties_end = size_t{key_id(cut)} + 1;
  k.keep_at_least(row.x, ties_end, cut_logit, exps.data());
  k.keep_at_least(row.x + ties_end, n - ties_end, std::nextafter(cut_logit, kInf),
                  exps.data() + ties_end);
  kept = {exps.data(), kept_columns.span(), row.max};
  k.scan(kept.x, n, kept_columns.data());
  return &kept;
}

// A long list as a row.
const RowView* Sampler::Impl::spread(const RowView& row, std::span<const OrderKey> survivors) {
  std::fill(exps.data(), exps.data() + n, kNegInf);
  for (const OrderKey key : survivors) exps[key_id(key)] = row.x[key_id(key)];
  kept = {exps.data(), kept_columns.span(), row.max};
  row_kernels().scan(kept.x, n, kept_columns.data());
  return &kept;
}

uint32_t Sampler::Impl::argmax(const RowView& row) const {
  size_t group = 0;
  for (const auto in_group =
           [&](size_t g) {
             const auto columns_of_group =
                 row.columns.subspan(g * sampling::kGroupColumns, sampling::kGroupColumns);
             return std::find(columns_of_group.begin(), columns_of_group.end(), row.max) !=
                    columns_of_group.end();
           };
       !in_group(group);)
    ++group;
  size_t id = group * sampling::kGroupIds;
  while (row.x[id] != row.max) ++id;
  return static_cast<uint32_t>(id);
}

// Step 9.
GumbelBest Sampler::Impl::draw(const RowView& row, const Survivors& survivors,
                               const DrawAddress& address) {
  const RowKernels& k = row_kernels();
  const NoiseKey key = noise_key(address);
  // The most likely token always survives; its score is a good first bar for the others.
  const uint32_t likely = argmax(row);
  GumbelBest winner{static_cast<double>(row.max) + k.gumbel(k.noise_word(&key, likely)), likely};
  if (survivors.dense != nullptr) {
    k.gumbel_max(survivors.dense->x, n, survivors.dense->columns.data(), &key, &winner);
  } else {
    for (size_t i = 0; i < survivors.list.size(); ++i) ids[i] = key_id(survivors.list[i]);
    k.gumbel_max_of(row.x, ids.data(), survivors.list.size(), &key, &winner);
  }
  return winner;
}

Normalizer Sampler::Impl::normalizer(const RowView& row) const {
  const float sum =
      row.x == summed_row ? row_sum : row_kernels().exp_sum(row.x, n, row.max, nullptr);
  return {static_cast<double>(row.max), row_kernels().ln(static_cast<double>(sum))};
}

// The `count` largest log-probabilities of a whole row. Different logits may round to one
// log-probability, which then goes by id: all that may tie with the last one are looked at.
std::span<const TopLogprob> Sampler::Impl::best(const RowView& row, const Normalizer& norm,
                                                size_t count) {
  if (count == 0) return {};
  float threshold = sampling::kth_largest_bound(row.columns, count, column_scratch.span());
  if (threshold != kNegInf) threshold -= (std::abs(norm.logprob(threshold)) + 1) * 0x1p-22f;
  const std::span<OrderKey> candidates = collect(row, threshold);
  for (OrderKey& key : candidates) key = order_key(norm.logprob(row.x[key_id(key)]), key_id(key));
  return take_best(candidates, row, norm, count);
}

std::span<const TopLogprob> Sampler::Impl::best_of(const RowView& row, const Normalizer& norm,
                                                   std::span<const OrderKey> survivors,
                                                   size_t count) {
  if (count == 0) return {};
  // `survivors` lie in `keys` and are not needed any more.
  const std::span<OrderKey> by_logprob(keys.data(), survivors.size());
  for (size_t i = 0; i < survivors.size(); ++i) {
    const uint32_t id = key_id(survivors[i]);
    by_logprob[i] = order_key(norm.logprob(row.x[id]), id);
  }
  return take_best(by_logprob, row, norm, count);
}

std::span<const TopLogprob> Sampler::Impl::take_best(std::span<OrderKey> by_logprob,
                                                     const RowView& row, const Normalizer& norm,
                                                     size_t count) {
  sampling::keep_first(by_logprob, count);
  by_logprob = by_logprob.first(std::min(count, by_logprob.size()));
  std::sort(by_logprob.begin(), by_logprob.end());
  for (size_t i = 0; i < by_logprob.size(); ++i) {
    const uint32_t id = key_id(by_logprob[i]);
    top[i] = {static_cast<TokenId>(id), norm.logprob(row.x[id])};
  }
  return {top.data(), by_logprob.size()};
}

float log_prob(std::span<const float> logits, TokenId id) {
  const RowKernels& k = row_kernels();
  DEEPMINT_CHECK(id >= 0 && static_cast<size_t>(id) < logits.size());
  const RowScan scan = k.scan(logits.data(), logits.size(), nullptr);
  if (scan.bad != 0 || scan.max == kNegInf) return kNaN;
  const float sum = k.exp_sum(logits.data(), logits.size(), scan.max, nullptr);
  const Normalizer norm{static_cast<double>(scan.max), k.ln(static_cast<double>(sum))};
  return norm.logprob(logits[static_cast<size_t>(id)]);
}

}  // namespace deepmint
