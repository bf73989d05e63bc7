#include "model/deepseek_v41/fast_linear.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "kernels/v41_ops.h"
#include "model/deepseek_v41/formats.h"

namespace deepmint::v41 {

using kernels::V41Format;
using kernels::V41Product;
using kernels::V41Round;

namespace {

V41Format format_of(const Matrix& m) {
  switch (m.kind) {
    case WeightKind::kBf16:
      return V41Format::kBf16;
    case WeightKind::kFp8:
      return V41Format::kFp8;
    case WeightKind::kFp4:
      return V41Format::kFp4;
  }
  return V41Format::kBf16;
}

// Work below this is done sooner by one thread than it can wake another.
constexpr size_t kSerialValues = 1 << 14;

template <class Body>
void for_rows(ThreadPool& pool, size_t rows, size_t values_per_row, Body&& body) {
  if (rows * values_per_row < kSerialValues) return body(size_t{0}, rows, 0);
  pool.run(rows, body);
}

}  // namespace

kernels::V41Weights view(const Matrix& m) {
  return {format_of(m), m.weight->bytes.data(),
          m.scale != nullptr ? m.scale->bytes.data() : nullptr, m.n, m.k};
}

Status check_values(const Matrix& m) {
  auto ok = kernels::v41_check_values(view(m));
  if (ok) return {};
  return tl::unexpected<Error>(std::move(ok).error().at("tensor \"" + m.weight->name + "\""));
}

Status check_dense(const Weights& weights, ThreadPool& pool) {
  std::vector<const Matrix*> matrices;
  for (const LayerWeights& l : weights.layers) {
    matrices.insert(matrices.end(),
                    {&l.wq_a, &l.wq_b, &l.wkv, &l.wo_b, &l.shared.w1, &l.shared.w2, &l.shared.w3});
    for (const Matrix& group : l.wo_a) matrices.push_back(&group);
    if (l.indexer) matrices.push_back(&l.indexer->wq_b);
    if (l.engram) matrices.push_back(&l.engram->wkv);
  }
  std::vector<Status> found(matrices.size());
  pool.run(
      matrices.size(),
      [&](size_t begin, size_t end, int) {
        for (size_t i = begin; i < end; ++i) found[i] = check_values(*matrices[i]);
      },
      1);
  for (Status& status : found) DEEPMINT_CHECK_OK(std::move(status));
  return {};
}

Status check_experts(const Weights& weights) {
  for (const LayerWeights& l : weights.layers)
    for (const Expert& e : l.experts)
      for (const Matrix* m : {&e.w1, &e.w2, &e.w3}) DEEPMINT_CHECK_OK(check_values(*m));
  return {};
}

// In the order of forward.cc, the mixture of experts as below.
void FastLinear::prepare(const Config& c, const Weights& weights) {
  following_.clear();
  const Matrix* before = &weights.head;  // the last step's
  // The next call reads these, some of them absent; `last` is what it is known by.
  const auto then = [&](const std::vector<const Matrix*>& read, const Matrix* last,
                        std::initializer_list<kernels::V41Lookahead::Memory> beside = {}) {
    Following& f = following_[before->weight->bytes.data()];
    for (const Matrix* m : read)
      if (m != nullptr) f.weights.push_back(view(*m));
    f.beside = beside;
    before = last;
  };
  const auto of = [](const MixWeights& w) { return std::as_bytes(std::span(w.fn)); };
  for (const LayerWeights& l : weights.layers) {
    if (l.engram) then({&l.engram->wkv}, &l.engram->wkv);
    const CompressorWeights* compressor = l.compressor ? &*l.compressor : nullptr;
    then({&l.wkv, compressor != nullptr ? &compressor->wkv : nullptr,
          compressor != nullptr && compressor->wgate ? &*compressor->wgate : nullptr, &l.wq_a,
          l.indexer ? &l.indexer->weights_proj : nullptr},
         &l.wkv, {of(l.attn_mix)});
    then({&l.wq_b, l.indexer ? &l.indexer->wq_b : nullptr}, &l.wq_b);
    if (compressor != nullptr)  // of some rows, in between
      following_[compressor->wk.weight->bytes.data()] = following_[l.wkv.weight->bytes.data()];
    std::vector<const Matrix*> groups;
    for (const Matrix& group : l.wo_a) groups.push_back(&group);
    then(groups, groups.front());
    then({&l.wo_b}, &l.wo_b);
    then({&l.shared.w1, &l.shared.w3}, &l.shared.w2, {l.gate.weight->bytes, of(l.ffn_mix)});
  }
  then({&weights.head}, &weights.head);
  announced_.reserve(static_cast<size_t>(c.experts) + 1);
}

const FastLinear::Following* FastLinear::after(const Matrix& w) const {
  const auto found = following_.find(w.weight->bytes.data());
  return found == following_.end() ? nullptr : &found->second;
}

void FastLinear::announce_after(const Matrix& w, int64_t m) {
  const Following* next = m > kFewRows ? nullptr : after(w);
  if (next == nullptr) return;
  size_t beside = 0;
  for (const auto& memory : next->beside) beside += memory.size() * static_cast<size_t>(m);
  ahead_.announce(next->weights, next->beside, beside);
}

void FastLinear::reserve(const Config& c, size_t max_rows) {
  const auto rows = static_cast<int64_t>(max_rows);
  const int64_t heads = static_cast<int64_t>(c.heads) * c.head_dim,
                engram = static_cast<int64_t>(std::max(c.engram_ngram - 1, 0)) * c.engram_heads *
                         c.engram_dim;
  const int64_t widest = std::max(
      {static_cast<int64_t>(c.hidden), heads, static_cast<int64_t>(c.o_groups) * c.o_lora, engram});
  rows_.reserve(rows * std::max(c.o_groups, 1), widest / std::max(c.o_groups, 1) + 64);
  rows_.reserve(rows, widest);
  shared_rows_.reserve(rows, c.hidden);
  router_rows_.reserve(rows, c.hidden);
  const size_t k = static_cast<size_t>(c.experts_per_token),
               experts = static_cast<size_t>(c.experts), slots = max_rows * k,
               all = slots + max_rows;
  inner_.reserve(static_cast<int64_t>(slots), c.expert_inter);
  shared_inner_.reserve(rows, c.expert_inter);
  products_.reserve(std::max(2 * experts + 2, static_cast<size_t>(c.o_groups)));
  pointers_.reserve(std::max(slots, max_rows * static_cast<size_t>(c.o_groups)));
  logits_.reserve(max_rows * experts);
  weights_.reserve(slots);
  slot_weight_.reserve(slots);
  chosen_.reserve(slots);
  ids_.reserve(experts);
  row_slot_.reserve(slots);
  slot_row_.reserve(slots);
  first_slot_.reserve(experts + 1);
  gate_.reserve(all * static_cast<size_t>(c.expert_inter));
  up_.reserve(all * static_cast<size_t>(c.expert_inter));
  part_.reserve(all * static_cast<size_t>(c.hidden));
  workspace_.reserve(widest, static_cast<int64_t>(2 * experts + 2), pool_);
}

void FastLinear::linear(const Matrix& w, const float* x, int64_t m, float* y, Output output) {
  if (m == 0) return;
  rows_.set(format_of(w), w.kind == WeightKind::kBf16 ? V41Round::kPlain : V41Round::kQ8, x, m, w.k,
            w.k, pool_);
  const V41Product p{view(w), rows_.rows(), y, w.n, output == Output::kBf16};
  announce_after(w, m);
  kernels::v41_linear({&p, 1}, workspace_, pool_);
}

void FastLinear::linears(std::span<const Arithmetic::Product> products, const float* x, int64_t m,
                         const kernels::V41Beside& beside) {
  products_.clear();
  bool set[2] = {};  // rows for FP8 weights, rows for BF16 weights
  for (const Arithmetic::Product& p : products) {
    const bool plain = p.w->kind == WeightKind::kBf16;
    kernels::V41Rows& rows = plain ? shared_rows_ : rows_;
    if (!std::exchange(set[plain ? 1 : 0], true))
      rows.set(format_of(*p.w), plain ? V41Round::kPlain : V41Round::kQ8, x, m, p.w->k, p.w->k,
               pool_);
    products_.push_back({view(*p.w), rows.rows(), p.y, p.w->n, p.output == Output::kBf16});
  }
  if (!products.empty()) announce_after(*products[0].w, m);
  kernels::v41_linear(products_, workspace_, pool_, beside);
}

void FastLinear::linear_groups(std::span<const Matrix> w, const float* x, int64_t m, float* y) {
  if (m == 0 || w.empty()) return;
  const auto groups = static_cast<int64_t>(w.size());
  const int64_t k = w[0].k, n = w[0].n;
  rows_.set(format_of(w[0]), V41Round::kPlain, x, m * groups, k, k, pool_);
  pointers_.resize(static_cast<size_t>(m * groups));
  products_.clear();
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t row = 0; row < m; ++row)
      pointers_[static_cast<size_t>(g * m + row)] =
          rows_.rows()[static_cast<size_t>(row * groups + g)];
    products_.push_back(
        {view(w[static_cast<size_t>(g)]),
         std::span(pointers_).subspan(static_cast<size_t>(g * m), static_cast<size_t>(m)),
         y + g * n, groups * n, true});
  }
  announce_after(w[0], m);
  kernels::v41_linear(products_, workspace_, pool_);
}

// Experts and their weights of rows [begin, end), from their logits.
void FastLinear::choose(size_t begin, size_t end, const Config& c, const LayerWeights& w) {
  const auto experts = static_cast<size_t>(c.experts), k = static_cast<size_t>(c.experts_per_token);
  const auto scale = static_cast<float>(c.route_scale);
  for (size_t row = begin; row < end; ++row) {
    float* score = logits_.data() + row * experts;
    int32_t* chosen = chosen_.data() + row * k;
    float* weight = weights_.data() + row * k;
    kernels::v41_router_scores(score, c.experts, c.gate_temperature, score);
    // Largest score + bias first, ties to the lower id; k is small, so one pass for each.
    double sum = 0;
    for (size_t i = 0; i < k; ++i) {
      size_t best = experts;
      float best_key = 0;
      for (size_t e = 0; e < experts; ++e) {
        const float key = score[e] + w.gate_bias[e];
        if (best < experts && !(key > best_key)) continue;
        if (std::find(chosen, chosen + i, static_cast<int32_t>(e)) != chosen + i) continue;
        best = e;
        best_key = key;
      }
      chosen[i] = static_cast<int32_t>(best);
      sum += static_cast<double>(score[best]);  // in the order of selection
    }
    const float denominator = static_cast<float>(sum) + 1e-20f;
    std::sort(chosen, chosen + k);
    for (size_t i = 0; i < k; ++i)
      weight[i] = scale * (score[static_cast<size_t>(chosen[i])] / denominator);
  }
}

// Groups what choose() found by expert.
void FastLinear::make_slots(size_t rows, const Config& c) {
  const auto experts = static_cast<size_t>(c.experts), k = static_cast<size_t>(c.experts_per_token);
  first_slot_.assign(experts + 1, 0);
  for (const int32_t e : chosen_) ++first_slot_[static_cast<size_t>(e) + 1];
  ids_.clear();
  for (size_t e = 0; e < experts; ++e) {
    if (first_slot_[e + 1] != 0) ids_.push_back(static_cast<int32_t>(e));
    first_slot_[e + 1] += first_slot_[e];
  }
  row_slot_.resize(rows * k);
  slot_row_.resize(rows * k);
  slot_weight_.resize(rows * k);
  // first_slot_[e] walks through the slots of e and is moved back afterwards.
  for (size_t i = 0; i < rows * k; ++i) {
    const auto slot = static_cast<size_t>(first_slot_[static_cast<size_t>(chosen_[i])]++);
    row_slot_[i] = static_cast<int32_t>(slot);
    slot_row_[slot] = static_cast<int32_t>(i / k);
    slot_weight_[slot] = weights_[i];
  }
  std::move_backward(first_slot_.begin(), first_slot_.end() - 1, first_slot_.end());
  first_slot_[0] = 0;
}

std::span<const int32_t> FastLinear::route(const float* u, int64_t m, const Config& c,
                                           const LayerWeights& w) {
  const auto rows = static_cast<size_t>(m), experts = static_cast<size_t>(c.experts),
             k = static_cast<size_t>(c.experts_per_token);
  shared_done_ = false;
  logits_.resize(rows * experts);
  linear(w.gate, u, m, logits_.data(), Output::kF32);
  chosen_.resize(rows * k);
  weights_.resize(rows * k);
  for_rows(pool_, rows, 16 * experts,
           [&](size_t begin, size_t end, int) { choose(begin, end, c, w); });
  make_slots(rows, c);
  return ids_;
}

struct FastLinear::Routing {
  FastLinear* to;
  const float* u;
  int64_t m;
  const Config* c;
  const LayerWeights* w;
  const kernels::V41Beside* others;

  void run() const {
    const auto rows = static_cast<size_t>(m), experts = static_cast<size_t>(c->experts);
    to->router_rows_.prepare(format_of(w->gate), V41Round::kPlain, m, c->hidden);
    for (int64_t row = 0; row < m; ++row) to->router_rows_.convert_row(row, u + row * c->hidden);
    kernels::v41_linear_here({view(w->gate), to->router_rows_.rows(), to->logits_.data(),
                              static_cast<int64_t>(experts), false});
    to->choose(0, rows, *c, *w);
    to->make_slots(rows, *c);
  }
};

std::span<const int32_t> FastLinear::route_beside_shared(const float* u, int64_t m, const Config& c,
                                                         const LayerWeights& w,
                                                         const kernels::V41Beside& beside) {
  const auto rows = static_cast<size_t>(m), experts = static_cast<size_t>(c.experts),
             k = static_cast<size_t>(c.experts_per_token);
  logits_.resize(rows * experts);
  chosen_.resize(rows * k);
  weights_.resize(rows * k);
  products_.clear();
  prepare_shared(u, m, c, w);
  Routing routing{this, u, m, &c, &w, &beside};
  // A score takes about as long as 256 bytes of a product.
  const size_t bytes = w.gate.weight->bytes.size() + 256 * rows * experts;
  const auto run = [](void* what, size_t item) {
    const Routing& r = *static_cast<Routing*>(what);
    item == 0 ? r.run() : r.others->run(r.others->what, item - 1);
  };
  kernels::v41_linear(products_, workspace_, pool_,
                      {1 + beside.count, bytes + beside.bytes, run, &routing});
  shared_done_ = true;
  return ids_;
}

// w1 and w3 of the shared expert, at the end of products_.
void FastLinear::prepare_shared(const float* u, int64_t m, const Config& c, const LayerWeights& w) {
  const auto rows = static_cast<size_t>(m), inter = static_cast<size_t>(c.expert_inter),
             slots = rows * static_cast<size_t>(c.experts_per_token), all = slots + rows;
  gate_.resize(all * inter);
  up_.resize(all * inter);
  shared_rows_.set(format_of(w.shared.w1), V41Round::kQ8, u, m, c.hidden, c.hidden, pool_);
  const auto stride = static_cast<int64_t>(inter);
  products_.push_back(
      {view(w.shared.w1), shared_rows_.rows(), gate_.data() + slots * inter, stride, true});
  products_.push_back(
      {view(w.shared.w3), shared_rows_.rows(), up_.data() + slots * inter, stride, true});
}

void FastLinear::experts(const float* u, int64_t m, const Config& c, const LayerWeights& w,
                         float* y, const kernels::V41Beside& beside) {
  const auto rows = static_cast<size_t>(m), k = static_cast<size_t>(c.experts_per_token),
             hidden = static_cast<size_t>(c.hidden), inter = static_cast<size_t>(c.expert_inter),
             slots = rows * k, all = slots + rows;
  DEEPMINT_CHECK(chosen_.size() == slots);
  if (rows == 0) return;
  const auto slot_range = [&](int32_t e) {
    const auto begin = static_cast<size_t>(first_slot_[static_cast<size_t>(e)]);
    return std::pair(begin, static_cast<size_t>(first_slot_[static_cast<size_t>(e) + 1]) - begin);
  };
  const auto expert = [&](int32_t e) -> const Expert& { return w.experts[static_cast<size_t>(e)]; };
  gate_.resize(all * inter);
  up_.resize(all * inter);
  part_.resize(all * hidden);

  // w1 and w3 of every expert that has rows, and of the shared one.
  rows_.set(format_of(w.experts[0].w1), V41Round::kQ8, u, m, c.hidden, c.hidden, pool_);
  pointers_.resize(slots);
  for (size_t slot = 0; slot < slots; ++slot)
    pointers_[slot] = rows_.rows()[static_cast<size_t>(slot_row_[slot])];
  const auto stride = static_cast<int64_t>(inter);
  products_.clear();
  for (const int32_t e : ids_) {
    const auto [begin, count] = slot_range(e);
    const auto x = std::span(pointers_).subspan(begin, count);
    products_.push_back({view(expert(e).w1), x, gate_.data() + begin * inter, stride, true});
    products_.push_back({view(expert(e).w3), x, up_.data() + begin * inter, stride, true});
  }
  if (!std::exchange(shared_done_, false)) prepare_shared(u, m, c, w);
  if (m <= kFewRows) {
    announced_.clear();
    for (const int32_t e : ids_) announced_.push_back(view(expert(e).w2));
    announced_.push_back(view(w.shared.w2));
    ahead_.announce(announced_);
  }
  kernels::v41_linear(products_, workspace_, pool_, beside);

  inner_.prepare(format_of(w.experts[0].w2), V41Round::kQ8, static_cast<int64_t>(slots),
                 c.expert_inter);
  shared_inner_.prepare(format_of(w.shared.w2), V41Round::kQ8, m, c.expert_inter);
  for_rows(pool_, all, 4 * inter, [&](size_t begin, size_t end, int) {
    for (size_t slot = begin; slot < end; ++slot) {
      float* t = gate_.data() + slot * inter;
      const float weight = slot < slots ? slot_weight_[slot] : 1.0f;
      kernels::v41_swiglu(t, up_.data() + slot * inter, c.expert_inter, c.swiglu_limit, weight, t);
      if (slot < slots)
        inner_.convert_row(static_cast<int64_t>(slot), t);
      else
        shared_inner_.convert_row(static_cast<int64_t>(slot - slots), t);
    }
  });

  products_.clear();
  for (const int32_t e : ids_) {
    const auto [begin, count] = slot_range(e);
    products_.push_back({view(expert(e).w2), inner_.rows().subspan(begin, count),
                         part_.data() + begin * hidden, c.hidden, true});
  }
  products_.push_back(
      {view(w.shared.w2), shared_inner_.rows(), part_.data() + slots * hidden, c.hidden, true});
  announce_after(w.shared.w2, m);
  kernels::v41_linear(products_, workspace_, pool_);

  for_rows(pool_, rows, (k + 1) * hidden, [&](size_t begin, size_t end, int) {
    // The experts of a row ascend; the shared one comes last.
    for (size_t row = begin; row < end; ++row)
      kernels::v41_sum_rows(part_.data(), row_slot_.data() + row * k, static_cast<int64_t>(k),
                            part_.data() + (slots + row) * hidden, c.hidden, y + row * hidden);
  });
}

}  // namespace deepmint::v41
