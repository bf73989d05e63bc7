#include "kernels/v41_attention.h"

#include <algorithm>

#include "core/cpu_isa.h"

namespace deepmint::kernels {

const V41AttentionTable& v41_attention() {
  switch (active_isa()) {
    case Isa::kX86_64:
      return isa_x86_64::v41_attention_table;
    case Isa::kAvx2:
      return isa_avx2::v41_attention_table;
    case Isa::kAvx512:
      return isa_avx512::v41_attention_table;
    case Isa::kAvx512Vnni:
      return isa_avx512vnni::v41_attention_table;
    case Isa::kAvx512Bf16:
      return isa_avx512bf16::v41_attention_table;
  }
  return isa_x86_64::v41_attention_table;
}

void v41_attend(const float* q, const uint16_t* const* rows, int64_t n, int64_t heads, int64_t dim,
                float scale, const float* sink, const V41QueryMemory& memory, float* out,
                V41Fetch* fetch, V41Unpack* unpack) {
  if (n == 0) {
    std::fill_n(out, heads * dim, 0.0f);
    return;
  }
  v41_pack_queries(q, heads, dim, memory);
  v41_scores(rows, 0, n, heads, dim, scale, memory, memory.scratch, fetch, unpack);
  v41_weights(n, 0, n, heads, memory);
  v41_values(rows, n, heads, dim, 0, dim, sink, memory, out, fetch);
}

}  // namespace deepmint::kernels
