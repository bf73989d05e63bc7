#include "model/deepseek_v41/fast_linear.h"
#include "model/deepseek_v41/fast_ops.h"

namespace deepmint::v41 {
namespace {

// Operations on weights. The others are in FastOps.
class FastArithmetic : public FastOps {
 public:
  explicit FastArithmetic(ThreadPool* pool) : FastOps(pool), linear_(*pool) {}

  Status prepare(const Config& config, const Weights& weights) override {
    DEEPMINT_CHECK_OK(FastOps::prepare(config, weights));
    return check_dense(weights, *pool_);
  }
  Status reserve(const Config& config, size_t max_rows) override {
    DEEPMINT_CHECK_OK(FastOps::reserve(config, max_rows));
    linear_.reserve(config, max_rows);
    return {};
  }
  std::string_view roof() const override { return "bf16"; }
  void linear(const Matrix& w, const float* x, int64_t m, float* y, Output output) override {
    linear_.linear(w, x, m, y, output);
  }
  void linear_groups(std::span<const Matrix> w, const float* x, int64_t m, float* y) override {
    linear_.linear_groups(w, x, m, y);
  }
  void moe(const float* u, int64_t m, const Config& c, int layer, const LayerWeights& w,
           float* y) override {
    const auto ids = linear_.route(u, m, c, w);
    if (hints_ != nullptr) hints_->experts(layer, ids);
    linear_.experts(u, m, c, w, y);
  }

 private:
  FastLinear linear_;
};

}  // namespace

std::unique_ptr<Arithmetic> make_fast_arithmetic(ThreadPool* pool) {
  return std::make_unique<FastArithmetic>(pool);
}

}  // namespace deepmint::v41
