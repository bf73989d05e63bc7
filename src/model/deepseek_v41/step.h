// The working set of one forward step. All memory is set aside by reserve(); a step only writes to
// it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/aligned.h"
#include "model/deepseek_v41/model.h"

namespace deepmint::v41 {

// Rows that are still running stand compacted: entry j of every array belongs to input row row[j].
struct V41Model::Step {
  // Shapes are for M = the number of rows reserved; hc = streams.
  Step(const Config& c, const StateLayout& layout, size_t rows) : max_rows(rows) {
    const auto size = [](auto n) { return static_cast<size_t>(n); };
    const size_t M = rows, hidden = size(c.hidden), hc = size(c.streams), d = size(c.head_dim),
                 index_dim = size(c.index_dim), index_heads = size(c.index_heads),
                 columns = size(c.engram_ngram - 1) * size(c.engram_heads);
    const bool engram = !c.engram_layers.empty();
    const auto floats = [](AlignedBuffer<float>& b, size_t n) {
      b = AlignedBuffer<float>::uninitialized(n);
    };
    floats(X, M * hc * hidden);
    for (auto* b : {&pre, &attn_pre, &ffn_pre, &post}) floats(*b, M * hc);
    floats(comb, M * hc * hc);
    floats(u, M * hidden);
    floats(y, M * hidden);
    floats(k, M * d);
    floats(qr, M * size(c.q_lora));
    // The widest values of a row: queries and attention output, or the Engram projection.
    floats(q, M * std::max(size(c.heads) * d, engram ? (hc + 1) * hidden : 0));
    floats(z, M * size(c.o_groups) * size(c.o_lora));
    floats(kv, M * d);
    floats(gate, M * d);
    floats(latents, M * d);
    floats(index_keys, M * index_dim);
    floats(index_q, M * index_heads * index_dim);
    floats(index_w, M * index_heads);
    floats(engram_values, engram ? M * columns * size(c.engram_dim) : 0);
    for (auto* b : {&plain_table, &table, &pair_table}) floats(*b, M * size(c.rope_dim));
    window = AlignedBuffer<std::byte>(M * layout.window_row_bytes());
    selected.resize(M * size(c.index_topk));
    candidates.resize(M * size(c.candidate_layer >= 0 ? c.candidate_blocks : 0));
    for (auto* b : {&n_selected, &n_candidates, &position, &pair_position}) b->resize(M);
    for (auto* b : {&row, &layer_row, &keep}) b->resize(M);
    attention.resize(M);
    select.resize(M);
    pairs.resize(M);
    packed.resize(M);
    packed_index.resize(M);
    engram_ids.resize(M * columns * c.engram_layers.size());
    first_row.reserve(M);
    first_position.reserve(M);
  }

  const StepInput* input = nullptr;
  size_t max_rows = 0, m = 0;
  std::vector<uint32_t> row;
  std::vector<int32_t> position;
  // Per sequence: the first row of `layer_row` that belongs to it, or -1, and its position.
  std::vector<int32_t> first_row, first_position;
  // Rows of the layer before it narrowed: whose window rows are new.
  std::vector<uint32_t> layer_row, keep;
  size_t layer_m = 0;

  AlignedBuffer<float> X;                             // [M, hc, hidden]
  AlignedBuffer<float> pre, attn_pre, ffn_pre, post;  // [M, hc]
  AlignedBuffer<float> comb;                          // [M, hc, hc]
  AlignedBuffer<float> u, y;                          // [M, hidden]
  AlignedBuffer<float> k, kv, gate, latents;          // [M, head_dim]
  AlignedBuffer<float> qr, q, z;                      // [M, q_lora], [M, heads * head_dim], …
  AlignedBuffer<float> index_keys, index_q, index_w;  // [M, index_dim], [M, heads, dim], [M, heads]
  AlignedBuffer<float> engram_values;                 // [M, columns * dim]
  AlignedBuffer<float> plain_table, table, pair_table;  // [M, rope_dim] cosines, sines
  AlignedBuffer<std::byte> window;                      // this layer's new window rows
  std::vector<int32_t> pair_position;                   // of the first token of a row's pair
  std::vector<int32_t> selected, n_selected;            // by input row: the current selection
  std::vector<int32_t> candidates, n_candidates;
  std::vector<AttentionRow> attention;
  std::vector<SelectRow> select;
  std::vector<Arithmetic::Pair> pairs;
  std::vector<std::byte*> packed, packed_index;
  std::vector<int64_t> engram_ids;  // [Engram layers, M, columns]

  const Row& in(size_t j) const { return input->rows[row[j]]; }
  const SequenceRef& sequence(size_t j) const { return input->sequences[in(j).sequence]; }

  // Remembers the rows that a layer begins with.
  void begin_layer() {
    layer_m = m;
    std::copy_n(row.begin(), m, layer_row.begin());
    first_row.assign(input->sequences.size(), -1);
    first_position.assign(input->sequences.size(), 0);
    for (size_t j = 0; j < m; ++j)
      if (int32_t& first = first_row[in(j).sequence]; first < 0) {
        first = static_cast<int32_t>(j);
        first_position[in(j).sequence] = in(j).position;
      }
  }
};

}  // namespace deepmint::v41
