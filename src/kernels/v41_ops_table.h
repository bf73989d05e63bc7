// The V4.1 row operations of one instruction set (v41_ops.h). Plain structs only: included by files
// that are compiled per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deepmint::kernels {

struct V41OpsTable {
  void (*rms_norm)(const float* x, const float* weight, int64_t n, float eps, float* y);
  void (*rope)(float* x, int64_t groups, int64_t width, int64_t rotary, const float* cos_sin,
               int sign);
  double (*sum_squares)(const float* x, int64_t n);
  void (*mix_dots)(const float* x, int64_t rows, int64_t n, const float* fn, int64_t begin,
                   int64_t end, float* out, int64_t out_stride);
  void (*mix_finish)(const float* dots, int64_t rows, int64_t dots_stride, int64_t streams,
                     const float* base, const float* scale, int rounds, float hc_eps, float* pre,
                     float* post, float* comb);
  void (*collapse)(const float* x, int64_t streams, int64_t n, const float* pre, float* y);
  void (*expand)(const float* y, int64_t streams, int64_t n, const float* post, const float* comb,
                 float* x);
  void (*pool_pair)(const float* kv0, const float* kv1, const float* gate0, const float* gate1,
                    int64_t n, float* y);
  void (*pack_q8)(const float* x, int64_t n, uint8_t* codes, uint8_t* scales);
  void (*pack_q4idx)(const float* x, int64_t n, uint8_t* codes, uint8_t* scales);
  void (*pack_q4kv)(const float* x, int64_t n, uint8_t* codes, uint8_t* scales);
  void (*unpack_q8)(const uint8_t* codes, const uint8_t* scales, int64_t n, float* y);
  void (*engram_gate)(float* x, const float* key, const float* value, const float* q_weight,
                      const float* k_weight, int64_t n, float eps);
  void (*sum_rows)(const float* rows, const int32_t* which, int64_t count, const float* last,
                   int64_t n, float* y);
  void (*router_scores)(const float* logits, int64_t n, double temperature, float* scores);
};

namespace isa_x86_64 {
extern const V41OpsTable v41_ops_table;
}
namespace isa_avx2 {
extern const V41OpsTable v41_ops_table;
}
namespace isa_avx512 {
extern const V41OpsTable v41_ops_table;
}
namespace isa_avx512vnni {
extern const V41OpsTable v41_ops_table;
}
namespace isa_avx512bf16 {
extern const V41OpsTable v41_ops_table;
}

}  // namespace deepmint::kernels
