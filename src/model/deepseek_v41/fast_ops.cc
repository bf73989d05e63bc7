#include "model/deepseek_v41/fast_ops.h"

namespace deepmint::v41 {

void FastOps::rms_norm(const float* x, int64_t m, int d, const float* weight, double eps,
                       float* y) {
  reference_->rms_norm(x, m, d, weight, eps, y);
}
void FastOps::rope_table(const int32_t* positions, int64_t m, std::span<const float> inv,
                         float* table) {
  reference_->rope_table(positions, m, inv, table);
}
void FastOps::rope(float* x, int64_t m, int groups, int d, int rotary, const float* table,
                   int sign) {
  reference_->rope(x, m, groups, d, rotary, table, sign);
}
void FastOps::mix(const float* X, int64_t m, const Config& c, const MixWeights& w, float* pre,
                  float* post, float* comb) {
  reference_->mix(X, m, c, w, pre, post, comb);
}
void FastOps::collapse(const float* X, int64_t m, const Config& c, const float* pre, float* y) {
  reference_->collapse(X, m, c, pre, y);
}
void FastOps::expand(const float* y, int64_t m, const Config& c, const float* post,
                     const float* comb, float* X) {
  reference_->expand(y, m, c, post, comb, X);
}
void FastOps::pack(Packing packing, const float* x, int64_t m, int d, std::byte* const* rows) {
  reference_->pack(packing, x, m, d, rows);
}
void FastOps::attend(float* q, std::span<const AttentionRow> rows, const Config& c,
                     const float* sink) {
  reference_->attend(q, rows, c, sink);
}
void FastOps::pool(std::span<const Pair> pairs, int d, float* out) {
  reference_->pool(pairs, d, out);
}
void FastOps::select(float* q, const float* w, std::span<const SelectRow> rows, const Config& c,
                     Candidates candidates) {
  reference_->select(q, w, rows, c, candidates);
}
void FastOps::engram_rows(const EngramWeights& w, std::span<const int64_t> rows, const Config& c,
                          float* out) {
  reference_->engram_rows(w, rows, c, out);
}
void FastOps::engram(float* X, const float* z, int64_t m, const Config& c, const EngramWeights& w) {
  reference_->engram(X, z, m, c, w);
}

}  // namespace deepmint::v41
