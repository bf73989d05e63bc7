// How many bytes a step reads and how many multiply-adds it does, for benchmarks: of what runs, not
// of what a formula expects. Norms and other vectors are left out.
#include <algorithm>

#include "model/deepseek_v41/model.h"
#include "model/deepseek_v41/step.h"

namespace deepmint::v41 {
namespace {

StepWork cost(const Matrix& m) {
  return {m.weight->bytes.size() + (m.scale != nullptr ? m.scale->bytes.size() : 0),
          static_cast<uint64_t>(m.n) * static_cast<uint64_t>(m.k)};
}
StepWork cost(const MixWeights& m) { return {m.fn.size() * sizeof(float), m.fn.size()}; }
void add(StepWork& to, const StepWork& more) {
  to.bytes += more.bytes;
  to.macs += more.macs;
}

}  // namespace

void V41Model::prepare_costs() {
  for (const LayerWeights& l : weights_.layers) {
    LayerCost c;
    add(c.projection, cost(l.wkv));
    if (l.compressor) {
      for (const Matrix* m : {&l.compressor->wkv, &l.compressor->wk}) add(c.projection, cost(*m));
      if (l.compressor->wgate) add(c.projection, cost(*l.compressor->wgate));
    }
    for (const Matrix* m :
         {&l.wq_a, &l.wq_b, &l.wo_b, &l.gate, &l.shared.w1, &l.shared.w2, &l.shared.w3})
      add(c.rest, cost(*m));
    for (const Matrix& m : l.wo_a) add(c.rest, cost(m));
    if (l.indexer)
      for (const Matrix* m : {&l.indexer->wq_b, &l.indexer->weights_proj}) add(c.rest, cost(*m));
    add(c.rest, cost(l.attn_mix));
    add(c.rest, cost(l.ffn_mix));
    if (l.engram) c.engram = cost(l.engram->wkv);
    costs_.push_back(c);
  }
  const Expert& e = weights_.layers.front().experts.front();
  for (const Matrix* m : {&e.w1, &e.w2, &e.w3}) add(expert_cost_, cost(*m));
  head_cost_ = cost(weights_.head);
}

// Window rows, selected rows and index keys that the rows of a layer read. Rows of one sequence
// share theirs: the bytes are those of its last row.
void V41Model::count_keys(const Step& s, int layer, StepWork& work) const {
  const Config& c = config_;
  const auto heads = static_cast<uint64_t>(c.heads) * static_cast<uint64_t>(c.head_dim),
             index = static_cast<uint64_t>(c.index_heads) * static_cast<uint64_t>(c.index_dim);
  const bool scans = c.is_index_source(layer);
  const bool restricted = c.candidate_layer >= 0 && layer > c.candidate_layer;
  for (size_t j = 0; j < s.m; ++j) {
    const AttentionRow& a = s.attention[j];
    const auto window = static_cast<uint64_t>(a.position) + 1 - static_cast<uint64_t>(a.floor),
               selected = static_cast<uint64_t>(a.n_selected);
    const bool last = j + 1 == s.m || s.in(j + 1).sequence != s.in(j).sequence;
    work.macs += 2 * heads * (window + selected);
    if (last) work.bytes += window * a.window.row_bytes + selected * a.global.row_bytes;
    if (!scans) continue;
    const SelectRow& r = s.select[j];
    auto keys = static_cast<uint64_t>(r.visible);
    if (restricted)
      keys = std::min(
          keys, static_cast<uint64_t>(*r.n_blocks) * static_cast<uint64_t>(c.candidate_block_size));
    work.macs += index * keys;
    if (last) work.bytes += keys * r.keys.row_bytes;
  }
}

}  // namespace deepmint::v41
