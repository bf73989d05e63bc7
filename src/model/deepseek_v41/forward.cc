// One forward step, to spec model.md sections 4 to 10. What is computed, in which order, and where
// state is read and written; the operations themselves are in an Arithmetic.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/check.h"
#include "model/deepseek_v41/formats.h"
#include "model/deepseek_v41/model.h"
#include "model/deepseek_v41/step.h"

namespace deepmint::v41 {
namespace {

constexpr size_t kMaxGrams = 16;  // of an Engram n-gram; config.cc refuses more
constexpr size_t kMostGroups = 12;

size_t source_index(const Config& c, int kv_source) {
  return static_cast<size_t>(std::find(c.kv_sources.begin(), c.kv_sources.end(), kv_source) -
                             c.kv_sources.begin());
}

}  // namespace

Status V41Model::reserve(size_t max_rows, size_t max_logit_rows) {
  max_logit_rows_ = std::max(max_logit_rows_, max_logit_rows);
  if (max_rows <= max_rows_) return {};
  DEEPMINT_CHECK_OK(arithmetic_->reserve(config_, max_rows));
  step_ = std::make_unique<Step>(config_, layout_, max_rows);
  seen_.reserve(max_rows);
  max_rows_ = max_rows;
  return {};
}

void V41Model::set_hints(WeightHints* hints) {
  hints_ = hints;
  arithmetic_->set_hints(hints);
}

int64_t V41Model::compressed_id(int64_t id) const {
  return options_.engram_map.empty() ? id % config_.engram_compressed_vocab
                                     : options_.engram_map[static_cast<size_t>(id)];
}

void V41Model::prefetch(std::span<const TokenId> ids) {
  constexpr size_t kMaxColumns = 256;
  const auto grams = static_cast<size_t>(config_.engram_ngram);
  if (hints_ == nullptr) return;
  int64_t context[kMaxGrams], rows[kMaxColumns];
  for (size_t which = 0; which < engram_.size(); ++which) {
    const size_t columns = engram_[which].primes.size();
    if (columns > kMaxColumns) return;
    for (size_t i = grams - 1; i < ids.size(); ++i) {
      for (size_t k = 0; k < grams; ++k) {
        if (ids[i - k] < 0 || ids[i - k] >= config_.vocab) return;
        context[k] = compressed_id(ids[i - k]);
      }
      engram_rows(engram_[which], config_.engram_heads, {context, grams}, {rows, columns});
      hints_->engram_rows(which, {rows, columns});
    }
  }
}

std::vector<int32_t> V41Model::selected_rows(size_t row) const {
  const auto first = step_->selected.begin() +
                     static_cast<std::ptrdiff_t>(row * static_cast<size_t>(config_.index_topk));
  return {first, first + step_->n_selected[row]};
}

std::vector<int32_t> V41Model::candidate_blocks(size_t row) const {
  const auto first =
      step_->candidates.begin() +
      static_cast<std::ptrdiff_t>(row * static_cast<size_t>(config_.candidate_blocks));
  return {first, first + step_->n_candidates[row]};
}

// Keeps the first n_keep entries of s.keep, which ascend.
void V41Model::narrow(Step& s, size_t n_keep) {
  const auto hc = static_cast<size_t>(config_.streams),
             hidden = static_cast<size_t>(config_.hidden),
             rotary = static_cast<size_t>(config_.rope_dim);
  const auto move = [&](AlignedBuffer<float>& rows, size_t width, size_t from, size_t to) {
    if (from != to) std::copy_n(rows.data() + from * width, width, rows.data() + to * width);
  };
  for (size_t j = 0; j < n_keep; ++j) {
    const size_t from = s.keep[j];
    s.row[j] = s.row[from];
    s.position[j] = s.position[from];
    move(s.X, hc * hidden, from, j);
    move(s.pre, hc, from, j);
    move(s.u, hidden, from, j);
    move(s.plain_table, rotary, from, j);
    move(s.table, rotary, from, j);
  }
  s.m = n_keep;
}

void V41Model::embed(Step& s) {
  const auto hc = static_cast<size_t>(config_.streams),
             hidden = static_cast<size_t>(config_.hidden);
  const auto* table = reinterpret_cast<const uint8_t*>(weights_.embed->bytes.data());
  for (size_t j = 0; j < s.m; ++j) {
    const uint8_t* e = table + static_cast<size_t>(s.in(j).token) * hidden * 2;
    float* x = s.X.data() + j * hc * hidden;
    for (size_t i = 0; i < hidden; ++i) {
      uint16_t b = 0;
      std::memcpy(&b, e + 2 * i, 2);
      x[i] = bf16_to_float(b);
    }
    for (size_t stream = 1; stream < hc; ++stream) std::copy_n(x, hidden, x + stream * hidden);
    std::fill_n(s.pre.data() + j * hc, hc, 0.0f);
    s.pre[j * hc] = 1.0f;
  }
}

// Which table rows a step reads is known from its ids alone, so they are asked for before the first
// layer runs: the layers in front of each table hide its wait.
void V41Model::announce_engram(Step& s) {
  const Config& c = config_;
  const size_t grams = static_cast<size_t>(c.engram_ngram);
  for (size_t j = 0; j < s.m; ++j) {
    const Row& r = s.in(j);
    const int32_t* history = layout_.history(*s.input, s.sequence(j));
    int64_t context[kMaxGrams];
    for (size_t k = 0; k < grams; ++k) {
      const int64_t p = r.position - static_cast<int64_t>(k);
      if (p < 0) {
        context[k] = compressed_id(c.engram_pad);
      } else if (k <= j && s.in(j - k).sequence == r.sequence && s.in(j - k).position == p) {
        context[k] = compressed_id(s.in(j - k).token);
      } else {
        context[k] = compressed_id(history[p % StateLayout::kHistory]);
      }
    }
    for (size_t which = 0; which < engram_.size(); ++which) {
      const size_t columns = engram_[which].primes.size();
      engram_rows(engram_[which], c.engram_heads, {context, grams},
                  std::span(s.engram_ids).subspan((which * s.max_rows + j) * columns, columns));
    }
  }
  for (size_t which = 0; which < engram_.size() && hints_ != nullptr; ++which) {
    const size_t columns = engram_[which].primes.size();
    hints_->engram_rows(
        which, std::span(s.engram_ids).subspan(which * s.max_rows * columns, s.m * columns));
  }
}

Status V41Model::run_engram(Step& s, size_t which, int layer) {
  const Config& c = config_;
  const EngramWeights& w = *weights_.layers[static_cast<size_t>(layer)].engram;
  const size_t columns = engram_[which].primes.size();
  int64_t* first = s.engram_ids.data() + which * s.max_rows * columns;
  for (size_t j = 0; j < s.m; ++j)  // rows that ended before this table leave gaps
    if (s.row[j] != j) std::copy_n(first + s.row[j] * columns, columns, first + j * columns);
  const std::span<const int64_t> ids(first, s.m * columns);
  const auto m = static_cast<int64_t>(s.m);
  float* z = s.q.data();  // [m, (hc + 1) * hidden]
  arithmetic_->engram_rows(w, ids, c, s.engram_values.data());
  DEEPMINT_CHECK_OK(check_engram(w, ids, s.engram_values.data()));
  arithmetic_->linear(w.wkv, s.engram_values.data(), m, z, Output::kBf16);
  arithmetic_->engram(s.X.data(), z, m, c, w);
  return {};
}

// Rows of a mapped table are checked when they are read. values: [ids.size(), engram_dim].
Status V41Model::check_engram(const EngramWeights& w, std::span<const int64_t> ids,
                              const float* values) const {
  const auto dim = static_cast<size_t>(config_.engram_dim);
  for (size_t i = 0; i < ids.size(); ++i) {
    float sum = 0;  // of zeros, or of a NaN or an infinity times zero
    for (size_t d = 0; d < dim; ++d) sum += values[i * dim + d] * 0.0f;
    if (sum == 0) continue;
    return fail(ErrorCode::kInvalidFile,
                fmt::format("expected numbers, found a NaN in row {}", ids[i]),
                fmt::format("tensor \"{}\" or its scales", w.table->name));
  }
  return {};
}

// Latents, index keys and carries of a kv source, from s.latents or s.kv and s.gate.
void V41Model::compress(Step& s, int layer) {
  const Config& c = config_;
  const CompressorWeights& w = *weights_.layers[static_cast<size_t>(layer)].compressor;
  const size_t source = source_index(c, layer), d = static_cast<size_t>(c.head_dim), m = s.m;
  const int ratio = c.ratios[static_cast<size_t>(layer)];
  const float* table = s.table.data();
  size_t n = 0;  // latents; latent i is closed by active row keep[i]
  if (ratio == 1) {
    for (; n < m; ++n) s.keep[n] = static_cast<uint32_t>(n);
  } else {
    for (size_t j = 0; j < m; ++j) {
      if (s.position[j] % 2 == 0) continue;
      const bool here = j > 0 && s.in(j - 1).sequence == s.in(j).sequence;
      const float* carry =
          here ? nullptr : layout_.carry_row(*s.input, s.sequence(j), source, s.position[j] - 1);
      s.pairs[n] = {{here ? s.kv.data() + (j - 1) * d : carry, s.kv.data() + j * d},
                    {here ? s.gate.data() + (j - 1) * d : carry + d, s.gate.data() + j * d}};
      s.pair_position[n] = s.position[j] - 1;
      s.keep[n++] = static_cast<uint32_t>(j);
    }
    if (n > 0) {
      arithmetic_->pool({s.pairs.data(), n}, c.head_dim, s.latents.data());
      arithmetic_->rope_table(s.pair_position.data(), static_cast<int64_t>(n), inv_compressed_,
                              s.pair_table.data());
      table = s.pair_table.data();
    }
    // Even positions wait for their partner; a later step may also roll back to them.
    for (size_t j = 0; j < m; ++j) {
      float* carry = layout_.carry_row(*s.input, s.sequence(j), source, s.position[j]);
      std::copy_n(s.kv.data() + j * d, d, carry);
      std::copy_n(s.gate.data() + j * d, d, carry + d);
    }
  }
  if (n == 0) return;
  const auto count = static_cast<int64_t>(n);
  float *latents = s.latents.data(), *keys = s.index_keys.data();
  arithmetic_->rms_norm(latents, count, c.head_dim, w.norm.data(), c.norm_eps, latents);
  arithmetic_->linear(w.wk, latents, count, keys, Output::kBf16);
  arithmetic_->rms_norm(keys, count, c.index_dim, w.k_norm.data(), c.norm_eps, keys);
  arithmetic_->rope(keys, count, 1, c.index_dim, c.rope_dim, table, 1);
  arithmetic_->rope(latents, count, 1, c.head_dim, c.rope_dim, table, 1);
  for (size_t i = 0; i < n; ++i) {
    const size_t j = s.keep[i];
    const bool there = s.position[j] < s.in(j).write_global_from;
    const int64_t row = s.position[j] / ratio;
    s.packed[i] = there ? nullptr : layout_.global_row(*s.input, s.sequence(j), source, row);
    s.packed_index[i] = there ? nullptr : layout_.index_row(*s.input, s.sequence(j), source, row);
  }
  arithmetic_->pack(Packing::kIndex, keys, count, c.index_dim, s.packed_index.data());
  arithmetic_->pack(Packing::kGlobal, latents, count, c.head_dim, s.packed.data());
}

// Top rows (and candidate blocks) of an index source, from s.index_q and s.index_w.
void V41Model::select(Step& s, int layer) {
  const Config& c = config_;
  const size_t source = source_index(c, c.kv_source(layer));
  const auto m = static_cast<int64_t>(s.m);
  float *q = s.index_q.data(), *weights = s.index_w.data();
  arithmetic_->rope(q, m, c.index_heads, c.index_dim, c.rope_dim, s.table.data(), 1);
  const auto scale =
      static_cast<float>(std::pow(c.index_dim, -0.5) * std::pow(c.index_heads, -0.5));
  for (size_t i = 0; i < s.m * static_cast<size_t>(c.index_heads); ++i) weights[i] *= scale;

  const Candidates candidates = c.candidate_layer < 0 || layer < c.candidate_layer
                                    ? Candidates::kNone
                                : layer == c.candidate_layer ? Candidates::kMake
                                                             : Candidates::kUse;
  for (size_t j = 0; j < s.m; ++j) {
    const size_t row = s.row[j];
    SelectRow& to = s.select[j];
    to.keys = layout_.index_rows(*s.input, s.sequence(j), source);
    to.visible = (s.position[j] + 1) / c.ratios[static_cast<size_t>(layer)];
    to.rows = s.selected.data() + row * static_cast<size_t>(c.index_topk);
    to.n_rows = &s.n_selected[row];
    to.blocks = s.candidates.data() + row * static_cast<size_t>(c.candidate_blocks);
    to.n_blocks = &s.n_candidates[row];
  }
  arithmetic_->select(q, weights, {s.select.data(), s.m}, c, candidates);
}

// What the attention sublayer begins with, of all running rows: s.qr, and s.index_w of an index
// source, from s.u; the mix of s.X beside it.
void V41Model::project_queries(Step& s, int layer, std::span<const Arithmetic::Product> others) {
  const Config& c = config_;
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const auto m = static_cast<int64_t>(s.m);
  Arithmetic::Product products[6];
  auto end = std::copy(others.begin(), others.end(), products);
  *end++ = {&w.wq_a, s.qr.data(), Output::kBf16};
  if (w.indexer) *end++ = {&w.indexer->weights_proj, s.index_w.data(), Output::kBf16};
  arithmetic_->mix_beside(s.X.data(), m, c, w.attn_mix, s.attn_pre.data(), s.post.data(),
                          s.comb.data());
  arithmetic_->linears({products, end}, s.u.data(), m);
}

// s.y = attention sublayer of the active rows, after project_queries.
void V41Model::attention(Step& s, int layer) {
  const Config& c = config_;
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const int ratio = c.ratios[static_cast<size_t>(layer)];
  const float* table = ratio == 0 ? s.plain_table.data() : s.table.data();
  const auto m = static_cast<int64_t>(s.m);
  float* q = s.q.data();
  arithmetic_->rms_norm(s.qr.data(), m, c.q_lora, w.q_norm.data(), c.norm_eps, s.qr.data());
  const Arithmetic::Product queries[2] = {
      {&w.wq_b, q, Output::kBf16},
      {w.indexer ? &w.indexer->wq_b : nullptr, s.index_q.data(), Output::kBf16}};
  arithmetic_->linears({queries, w.indexer ? size_t{2} : size_t{1}}, s.qr.data(), m);
  arithmetic_->rope(q, m, c.heads, c.head_dim, c.rope_dim, table, 1);
  if (c.is_index_source(layer)) select(s, layer);

  const size_t source = source_index(c, c.kv_source(layer)), row_bytes = layout_.window_row_bytes();
  const bool decoder = !c.kv_sources.empty() && layer > c.kv_sources.back();
  for (size_t j = 0; j < s.m; ++j) {
    const Row& r = s.in(j);
    AttentionRow& to = s.attention[j];
    const int32_t first = s.first_position[r.sequence];
    to.window = {layout_.window_row(*s.input, s.sequence(j), layer, 0),
                 s.window.data() + static_cast<size_t>(s.first_row[r.sequence]) * row_bytes,
                 layout_.ring_rows(), first, row_bytes};
    to.floor = std::min(
        std::max({r.window_floor, decoder ? r.decoder_floor : 0, r.position - c.window + 1, 0}),
        r.position + 1);
    to.position = r.position;
    to.n_selected = 0;
    if (ratio == 0) continue;
    to.global = layout_.global_rows(*s.input, s.sequence(j), source);
    to.selected = s.selected.data() + s.row[j] * static_cast<size_t>(c.index_topk);
    to.n_selected = s.n_selected[s.row[j]];
  }
  if (m <= kFewRows) {
    const Matrix* next[kMostGroups + 4];
    auto end = next;
    for (const Matrix& group : w.wo_a)
      if (end < next + kMostGroups) *end++ = &group;
    for (const Matrix* matrix : {&w.wo_b, &w.gate, &w.shared.w1, &w.shared.w3}) *end++ = matrix;
    arithmetic_->soon({next, end});
  }
  arithmetic_->attend(q, {s.attention.data(), s.m}, c, w.sink.data());
  arithmetic_->rope(q, m, c.heads, c.head_dim, c.rope_dim, table, -1);
  arithmetic_->linear_groups(w.wo_a, q, m, s.z.data());
  arithmetic_->linear(w.wo_b, s.z.data(), m, s.y.data(), Output::kBf16);
}

Status V41Model::forward(const StepInput& input, std::span<float> logits, Tap* tap) {
  DEEPMINT_CHECK_OK(check(input, logits.size()));
  if (input.rows.empty()) return {};
  const Config& c = config_;
  const auto hidden = static_cast<size_t>(c.hidden), hc = static_cast<size_t>(c.streams);
  const size_t row_bytes = layout_.window_row_bytes();
  Arithmetic& a = *arithmetic_;
  Step& s = *step_;
  s.input = &input;
  s.m = input.rows.size();
  for (size_t j = 0; j < s.m; ++j) {
    s.row[j] = static_cast<uint32_t>(j);
    s.position[j] = input.rows[j].position;
  }
  StepWork work;
  const auto did = [&](const StepWork& part, size_t rows) {
    work.bytes += part.bytes;
    work.macs += part.macs * rows;
  };
  const uint64_t experts_before = reader_ != nullptr ? reader_->experts_read() : 0;
  const auto report = [&](int layer, std::string_view name, const AlignedBuffer<float>& values,
                          size_t width) {
    if (tap != nullptr && s.m > 0) tap->sublayer(layer, name, {values.data(), s.m * width}, width);
  };
  if (!engram_.empty()) announce_engram(s);
  embed(s);
  report(-1, "embed", s.X, hc * hidden);
  auto m = static_cast<int64_t>(s.m);
  a.rope_table(s.position.data(), m, inv_plain_, s.plain_table.data());
  a.rope_table(s.position.data(), m, inv_compressed_, s.table.data());

  const int last_source = c.kv_sources.empty() ? -1 : c.kv_sources.back();
  for (int layer = 0; layer < c.layers && s.m > 0; ++layer) {
    const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
    for (size_t e = 0; e < engram_.size(); ++e)
      if (engram_[e].layer == layer) {
        DEEPMINT_CHECK_OK(run_engram(s, e, layer));
        did(costs_[static_cast<size_t>(layer)].engram, s.m);
        report(layer, "engram", s.X, hc * hidden);
      }
    m = static_cast<int64_t>(s.m);
    a.collapse(s.X.data(), m, c, s.pre.data(), s.u.data());
    a.rms_norm(s.u.data(), m, c.hidden, w.attn_norm.data(), c.norm_eps, s.u.data());

    // Window and global rows of every running row, also of those that go no further.
    s.begin_layer();
    bool all_go_on = true;
    for (size_t j = 0; j < s.m && layer == last_source; ++j)
      all_go_on = all_go_on && s.in(j).layer_end >= c.layers;
    Arithmetic::Product projections[3] = {{&w.wkv, s.k.data(), Output::kBf16}};
    size_t n_projections = 1;
    if (w.compressor && !w.compressor->wgate) {
      projections[n_projections++] = {&w.compressor->wkv, s.latents.data(), Output::kBf16};
    } else if (w.compressor) {
      projections[n_projections++] = {&w.compressor->wkv, s.kv.data(), Output::kF32};
      projections[n_projections++] = {&*w.compressor->wgate, s.gate.data(), Output::kF32};
    }
    if (all_go_on)
      project_queries(s, layer, {projections, n_projections});
    else
      a.linears({projections, n_projections}, s.u.data(), m);
    a.rms_norm(s.k.data(), m, c.head_dim, w.kv_norm.data(), c.norm_eps, s.k.data());
    a.rope(s.k.data(), m, 1, c.head_dim, c.rope_dim,
           c.ratios[static_cast<size_t>(layer)] == 0 ? s.plain_table.data() : s.table.data(), 1);
    for (size_t j = 0; j < s.m; ++j) s.packed[j] = s.window.data() + j * row_bytes;
    a.pack(Packing::kWindow, s.k.data(), m, c.head_dim, s.packed.data());
    if (w.compressor) compress(s, layer);
    did(costs_[static_cast<size_t>(layer)].projection, s.m);

    if (!all_go_on) {
      size_t kept = 0;
      for (size_t j = 0; j < s.m; ++j)
        if (s.in(j).layer_end >= c.layers) s.keep[kept++] = static_cast<uint32_t>(j);
      narrow(s, kept);
      m = static_cast<int64_t>(s.m);
      if (m > 0) project_queries(s, layer, {});
    }
    if (m > 0) {
      attention(s, layer);
      count_keys(s, layer, work);
      report(layer, "attn", s.y, hidden);
      a.expand(s.y.data(), m, c, s.post.data(), s.comb.data(), s.X.data());
    }
    // The ring is written after its queries are done: a step may hold more rows than the window.
    for (size_t j = 0; j < s.layer_m; ++j) {
      const Row& r = input.rows[s.layer_row[j]];
      std::memcpy(layout_.window_row(input, input.sequences[r.sequence], layer, r.position),
                  s.window.data() + j * row_bytes, row_bytes);
    }
    if (m == 0) break;

    a.mix_beside(s.X.data(), m, c, w.ffn_mix, s.ffn_pre.data(), s.post.data(), s.comb.data());
    a.collapse(s.X.data(), m, c, s.attn_pre.data(), s.u.data());
    a.rms_norm(s.u.data(), m, c.hidden, w.ffn_norm.data(), c.norm_eps, s.u.data());
    a.moe(s.u.data(), m, c, layer, w, s.y.data());
    did(costs_[static_cast<size_t>(layer)].rest, s.m);
    work.macs += s.m * static_cast<uint64_t>(c.experts_per_token) * expert_cost_.macs;
    if (reader_ != nullptr) DEEPMINT_CHECK_OK(reader_->status());
    report(layer, "moe", s.y, hidden);
    a.expand(s.y.data(), m, c, s.post.data(), s.comb.data(), s.X.data());
    std::swap(s.pre, s.ffn_pre);
  }

  for (const Row& r : input.rows)
    layout_.history(input, input.sequences[r.sequence])[r.position % StateLayout::kHistory] =
        r.token;

  size_t wanted = 0;
  for (size_t j = 0; j < s.m; ++j)
    if (s.in(j).needs_logits) s.keep[wanted++] = static_cast<uint32_t>(j);
  if (reader_ != nullptr)
    work.bytes += (reader_->experts_read() - experts_before) * expert_cost_.bytes;
  if (wanted > 0) did(head_cost_, wanted);
  bytes_.fetch_add(work.bytes, std::memory_order_relaxed);
  macs_.fetch_add(work.macs, std::memory_order_relaxed);
  if (wanted == 0) return {};
  narrow(s, wanted);
  m = static_cast<int64_t>(s.m);
  a.collapse(s.X.data(), m, c, s.pre.data(), s.u.data());
  a.rms_norm(s.u.data(), m, c.hidden, weights_.norm.data(), c.norm_eps, s.u.data());
  report(c.layers, "norm", s.u, hidden);
  a.linear(weights_.head, s.u.data(), m, logits.data(), Output::kF32);
  return {};
}

}  // namespace deepmint::v41
