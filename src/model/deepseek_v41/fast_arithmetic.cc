#include "model/deepseek_v41/fast_ops.h"

namespace deepmint::v41 {
namespace {

// Operations on weights. The others are in FastOps. What has no float32 kernel runs in reference
// arithmetic.
class FastArithmetic : public FastOps {
 public:
  using FastOps::FastOps;

  void linear(const Matrix& w, const float* x, int64_t m, float* y, Output output) override {
    reference_->linear(w, x, m, y, output);
  }
  void linear_groups(std::span<const Matrix> w, const float* x, int64_t m, float* y) override {
    reference_->linear_groups(w, x, m, y);
  }
  void moe(const float* u, int64_t m, const Config& c, int layer, const LayerWeights& w,
           float* y) override {
    reference_->moe(u, m, c, layer, w, y);
  }
  void set_hints(WeightHints* hints) override {
    FastOps::set_hints(hints);
    reference_->set_hints(hints);
  }

 private:
  std::unique_ptr<Arithmetic> reference_ = make_reference_arithmetic();
};

}  // namespace

std::unique_ptr<Arithmetic> make_fast_arithmetic(ThreadPool* pool) {
  return std::make_unique<FastArithmetic>(pool);
}

}  // namespace deepmint::v41
