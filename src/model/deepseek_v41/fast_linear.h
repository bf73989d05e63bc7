// The matrix products and the mixture of experts of `fast` arithmetic (arithmetic.h), in float32 in
// a fixed order over weights in place (kernels/v41_linear.h). One caller at a time.
//
//   FastLinear linear(pool);
//   linear.prepare(config, weights);
//   linear.reserve(config, 512);                             // nothing below allocates
//   linear.linear(w.wq_a, u, m, qr, Output::kBf16);
//   const auto experts = linear.route(u, m, config, layer);    // ids to prefetch
//   linear.experts(u, m, config, layer, y);                    // of the same u
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/thread_pool.h"
#include "kernels/v41_linear.h"
#include "kernels/v41_lookahead.h"
#include "model/deepseek_v41/arithmetic.h"

namespace deepmint::v41 {

// The view that kernels take; `m` must have been bound (weights.h).
kernels::V41Weights view(const Matrix& m);

// Whether a quantised matrix holds values that are exact in BF16 (kernels/v41_linear.h). Errors:
// kInvalidFile naming the tensor, what was expected and what was found.
Status check_values(const Matrix& m);

// The same for every matrix outside the routed experts. Experts that stay on disk are looked at
// when they are read (DiskReader).
Status check_dense(const Weights& weights, ThreadPool& pool);
Status check_experts(const Weights& weights);

class FastLinear {
 public:
  explicit FastLinear(ThreadPool& pool) : pool_(pool), ahead_(pool) {
    workspace_.set_lookahead(&ahead_);
  }
  // Learns in which order a step reads the weights, so that waiting threads fetch ahead. Without it
  // they just wait.
  void prepare(const Config& c, const Weights& weights);
  // What the call after the one that begins with `w` reads (after the mixture of experts: `w` is w2
  // of the shared one), and what runs beside it; null where that is not known beforehand.
  struct Following {
    std::vector<kernels::V41Weights> weights;
    std::vector<kernels::V41Lookahead::Memory> beside;
  };
  const Following* after(const Matrix& w) const;
  void reserve(const Config& c, size_t max_rows);

  // As in Arithmetic.
  void linear(const Matrix& w, const float* x, int64_t m, float* y, Output output);
  void linears(std::span<const Arithmetic::Product> products, const float* x, int64_t m,
               const kernels::V41Beside& beside);
  // x: [m, w.size(), k] → y: [m, w.size(), n], bf16; x as it is.
  void linear_groups(std::span<const Matrix> w, const float* x, int64_t m, float* y);

  // Chooses the experts of each row; returns the ids that any row chose, ascending.
  std::span<const int32_t> route(const float* u, int64_t m, const Config& c, const LayerWeights& w);
  // What the last route() chose: experts of each row, ascending, and their weights: [m, experts per
  // token].
  std::span<const int32_t> chosen() const { return chosen_; }
  std::span<const float> expert_weights() const { return weights_; }
  // route() on one thread, beside the first products of the shared expert on the others, which the
  // next experts() finds done. For few rows: choosing is short, but all would wait for it.
  std::span<const int32_t> route_beside_shared(const float* u, int64_t m, const Config& c,
                                               const LayerWeights& w,
                                               const kernels::V41Beside& beside);
  // y: [m, hidden] = the routed experts by ascending id, then the shared one, after route() of the
  // same rows.
  void experts(const float* u, int64_t m, const Config& c, const LayerWeights& w, float* y,
               const kernels::V41Beside& beside = {});

 private:
  // Before the call that begins with `w`, for m rows.
  void announce_after(const Matrix& w, int64_t m);

  struct Routing;  // what route_beside_shared() hands to the thread that routes
  void choose(size_t begin, size_t end, const Config& c, const LayerWeights& w);
  void make_slots(size_t rows, const Config& c);
  void prepare_shared(const float* u, int64_t m, const Config& c, const LayerWeights& w);

  ThreadPool& pool_;
  std::unordered_map<const std::byte*, Following> following_;  // by the weights of a product
  kernels::V41Lookahead ahead_;
  kernels::V41Workspace workspace_;
  std::vector<kernels::V41Weights> announced_;
  kernels::V41Rows rows_, shared_rows_, router_rows_, inner_, shared_inner_;
  std::vector<kernels::V41Product> products_;
  std::vector<const uint8_t*> pointers_;
  // Routing: a slot is one (row, expert); slots of an expert stand together, by ascending row.
  std::vector<float> logits_, weights_, slot_weight_;
  std::vector<int32_t> chosen_, ids_, row_slot_, slot_row_;
  std::vector<int32_t> first_slot_;  // [experts + 1]
  // Of each slot, then of each row for the shared expert.
  std::vector<float> gate_, up_, part_;
  bool shared_done_ = false;  // w1 and w3 of the shared expert, by route_beside_shared()
};

}  // namespace deepmint::v41
