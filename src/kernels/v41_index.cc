#include "kernels/v41_index.h"

#include <limits>

#include "core/cpu_isa.h"

namespace deepmint::kernels {

const V41IndexTable& v41_index() {
  switch (active_isa()) {
    case Isa::kX86_64:
      return isa_x86_64::v41_index_table;
    case Isa::kAvx2:
      return isa_avx2::v41_index_table;
    case Isa::kAvx512:
      return isa_avx512::v41_index_table;
    case Isa::kAvx512Vnni:
      return isa_avx512vnni::v41_index_table;
    case Isa::kAvx512Bf16:
      return isa_avx512bf16::v41_index_table;
  }
  return isa_x86_64::v41_index_table;
}

void V41TopK::reset(int64_t k, float* scores, int32_t* index, int32_t* scratch) {
  k_ = k;
  n_ = 0;
  threshold_ = -std::numeric_limits<float>::infinity();
  scores_ = scores;
  index_ = index;
  scratch_ = scratch;
}

void V41TopK::make_room() {
  if (n_ + kChunk + 16 > capacity(k_)) prune();
}

void V41TopK::add(const float* scores, int64_t n, int32_t base) {
  make_room();
  n_ += v41_index().above(scores, n, base, threshold_, scores_ + n_, index_ + n_);
}

void V41TopK::push(float score, int32_t index) {
  if (!(score > threshold_)) return;
  make_room();
  scores_[n_] = score;
  index_[n_++] = index;
}

void V41TopK::remap(int64_t from, const int32_t* map) {
  for (int64_t i = from; i < n_; ++i) index_[i] = map[index_[i]];
}

// Indices ascend, so among equal scores the first ones win.
float V41TopK::keep_best(float* scores, int32_t* index, int64_t n, int64_t k, int32_t* scratch) {
  if (n < k || k == 0) return -std::numeric_limits<float>::infinity();
  const float last = v41_index().kth_largest(scores, n, k, scratch);
  v41_index().keep(scores, index, n, k, last);
  return last;
}

// A later entry that only equals the k-th best has a higher index and can never get in.
void V41TopK::prune() {
  if (n_ <= k_) return;
  threshold_ = keep_best(scores_, index_, n_, k_, scratch_);
  n_ = k_;
}

void V41TopK::finish() { prune(); }

}  // namespace deepmint::kernels
