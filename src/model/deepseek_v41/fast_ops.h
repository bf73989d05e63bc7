// The operations of the fast arithmetic that read no weight matrix: norms, rotary embedding,
// hyper-connections, packing, attention, the indexer, pooling and the Engram gate. float32 in a
// fixed order; a row's bits depend on that row alone. Kernels: kernels/v41_ops.h, v41_attention.h,
// v41_index.h; docs/kernels/v41_ops.md has orders, bounds and speed.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "core/aligned.h"
#include "core/thread_pool.h"
#include "kernels/v41_attention.h"
#include "kernels/v41_index.h"
#include "model/deepseek_v41/arithmetic.h"

namespace deepmint::v41 {

class FastOps : public Arithmetic {
 public:
  explicit FastOps(ThreadPool* pool);
  ~FastOps() override;

  // Overriders call it first.
  Status reserve(const Config& config, size_t max_rows) override;

  void rms_norm(const float* x, int64_t m, int d, const float* weight, double eps,
                float* y) override;
  void rope_table(const int32_t* positions, int64_t m, std::span<const float> inv,
                  float* table) override;
  void rope(float* x, int64_t m, int groups, int d, int rotary, const float* table,
            int sign) override;
  void mix(const float* X, int64_t m, const Config& c, const MixWeights& w, float* pre, float* post,
           float* comb) override;
  void collapse(const float* X, int64_t m, const Config& c, const float* pre, float* y) override;
  void expand(const float* y, int64_t m, const Config& c, const float* post, const float* comb,
              float* X) override;
  void pack(Packing packing, const float* x, int64_t m, int d, std::byte* const* rows) override;
  void soon(std::span<const Matrix* const> weights) override;
  void attend(float* q, std::span<const AttentionRow> rows, const Config& c,
              const float* sink) override;
  void pool(std::span<const Pair> pairs, int d, float* out) override;
  void select(float* q, const float* w, std::span<const SelectRow> rows, const Config& c,
              Candidates candidates) override;
  void engram_rows(const EngramWeights& w, std::span<const int64_t> rows, const Config& c,
                   float* out) override;
  void engram(float* X, const float* z, int64_t m, const Config& c,
              const EngramWeights& w) override;

 protected:
  static constexpr int64_t kMixRows = 8;
  // mix() of at most kMixRows rows on the calling thread.
  void mix_rows(const float* X, int64_t m, const Config& c, const MixWeights& w, float* pre,
                float* post, float* comb);
  ThreadPool* const pool_;

 private:
  struct AttentionScratch;  // of one thread: fast_attention.cc
  struct SelectScratch;     // of one thread: fast_select.cc
  void attend_blocks(float* q, std::span<const AttentionRow> rows, const Config& c,
                     const float* sink);
  void attend_block(float* q, std::span<const AttentionRow> rows, const Config& c,
                    const float* sink, AttentionScratch& s, kernels::V41Fetch* fetch);
  kernels::V41Fetch fetch_of(int rank, std::span<kernels::V41Fetch::Piece> pieces) const;
  void attend_shared(float* q, const AttentionRow& row, const Config& c, const float* sink);
  void select_block(const float* q, const float* w, std::span<const SelectRow> rows,
                    const Config& c, Candidates candidates, SelectScratch& s);
  void select_shared(const float* q, const float* w, std::span<const SelectRow> rows,
                     const Config& c, Candidates candidates);

  // Splits rows among the threads when the work is worth waking them. `cost` of a row: values that
  // an operation reads and writes, several times where it does much with each.
  template <class Body>
  void for_rows(size_t rows, int64_t cost, Body&& body) {
    constexpr int64_t kWorthWaking = 1 << 14;
    if (rows <= 1 || static_cast<int64_t>(rows) * cost < kWorthWaking)
      body(size_t{0}, rows, 0);
    else
      pool_->run(rows, body);
  }

  static constexpr size_t kMostSoon = 16;
  std::array<std::span<const std::byte>, kMostSoon> soon_;
  size_t n_soon_ = 0;
  std::vector<std::unique_ptr<AttentionScratch>> attention_;
  std::vector<std::unique_ptr<SelectScratch>> select_;
  AlignedBuffer<float> dots_;  // [rows, outputs + 1] of mix
};

}  // namespace deepmint::v41
