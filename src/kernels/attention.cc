#include "kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/cpu_isa.h"
#include "kernels/scalar_math.h"

namespace deepmint::kernels {
namespace {

const AttentionTable& table() {
  switch (active_isa()) {
    case Isa::kX86_64:
      return isa_x86_64::attention_table;
    case Isa::kAvx2:
      return isa_avx2::attention_table;
    case Isa::kAvx512:
      return isa_avx512::attention_table;
    case Isa::kAvx512Vnni:
      return isa_avx512vnni::attention_table;
    case Isa::kAvx512Bf16:
      return isa_avx512bf16::attention_table;
  }
  return isa_x86_64::attention_table;
}

}  // namespace

void kv_write(std::byte* tile, int64_t head_dim, int slot, const float* k, const float* v) {
  table().kv_write(tile, head_dim, slot, k, v);
}
void kv_clear(std::byte* tile, int64_t head_dim, int slot) {
  auto* keys = reinterpret_cast<uint16_t*>(tile);
  for (int64_t d = 0; d < head_dim; ++d)
    for (int64_t s = slot; s < kBlockTokens; ++s) keys[d * kBlockTokens + pair_index(s)] = 0;
  std::fill(keys + (kBlockTokens + slot) * head_dim, keys + 2 * kBlockTokens * head_dim, 0);
}
void kv_fetch(const std::byte* tile, int64_t head_dim, int slot) {
  const auto* keys = reinterpret_cast<const uint16_t*>(tile);
  const uint16_t* values = keys + head_dim * kBlockTokens + slot * head_dim;
  for (int64_t d = 0; d < head_dim; ++d)
    __builtin_prefetch(keys + d * kBlockTokens + pair_index(slot), 1, 2);
  for (int64_t d = 0; d < head_dim; d += 32) __builtin_prefetch(values + d, 1, 2);
}
void attend(const AttentionJob& job, float* scratch) { table().attend(job, scratch); }
void attend_partials(const AttentionJob& job, int64_t tile_begin, int64_t tile_end, float* partials,
                     float* scratch, const std::byte* next) {
  table().attend_partials(job, tile_begin, tile_end, partials, scratch, next);
}
void attend_combine(const AttentionJob& job, int64_t tile_begin, int64_t tile_end,
                    const float* partials, float* state) {
  table().attend_combine(job, tile_begin, tile_end, partials, state);
}

void attend_ref(const AttentionJob& job) {
  const int64_t dim = job.head_dim, whole = dim / 32 * 32;
  const auto element = [&](int64_t position, int64_t d, bool value) {
    const auto* tile = reinterpret_cast<const uint16_t*>(
        job.pages.base +
        static_cast<size_t>(job.pages.blocks[position / kBlockTokens]) * job.pages.block_bytes);
    const int64_t slot = position % kBlockTokens;
    const int64_t at = value ? dim * kBlockTokens + slot * dim + (d < whole ? pair_index(d) : d)
                             : d * kBlockTokens + pair_index(slot);
    return static_cast<double>(from_bf16(tile[at]));
  };
  for (int64_t row = 0; row < job.rows; ++row)
    for (int64_t head = 0; head < job.group; ++head) {
      const float* q = job.q + row * job.q_stride + head * dim;
      const int64_t keys = job.position + row + 1;
      std::vector<double> scores(static_cast<size_t>(keys));
      double most = -INFINITY;
      for (int64_t key = 0; key < keys; ++key) {
        double s = 0;
        for (int64_t d = 0; d < dim; ++d) s += q[d] * element(key, d, false);
        scores[static_cast<size_t>(key)] = s;
        most = std::fmax(most, s);
      }
      double total = 0;
      for (double& s : scores) total += s = exp_double(s - most);
      float* out = job.out + row * job.out_stride + head * dim;
      for (int64_t d = 0; d < dim; ++d) {
        double o = 0;
        for (int64_t key = 0; key < keys; ++key)
          o += scores[static_cast<size_t>(key)] * element(key, d, true);
        out[d] = static_cast<float>(o / total);
      }
    }
}

}  // namespace deepmint::kernels
