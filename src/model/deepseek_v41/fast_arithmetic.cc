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
    linear_.prepare(config, weights);
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
    const bool few = m <= kMixRows && pool_->size() > 1 && w.gate.kind == WeightKind::kBf16;
    const auto ids =
        few ? linear_.route_beside_shared(u, m, c, w, take_beside()) : linear_.route(u, m, c, w);
    if (hints_ != nullptr) hints_->experts(layer, ids);
    linear_.experts(u, m, c, w, y, take_beside());
  }
  void linears(std::span<const Product> products, const float* x, int64_t m) override {
    linear_.linears(products, x, m, take_beside());
  }
  // Few rows: one thread's work, which the products of the others hide.
  void mix_beside(const float* X, int64_t m, const Config& c, const MixWeights& w, float* pre,
                  float* post, float* comb) override {
    if (m > kMixRows || pool_->size() == 1) return mix(X, m, c, w, pre, post, comb);
    mix_ = {this, X, m, &c, &w, pre, post, comb};
  }

 private:
  struct Mix {
    FastArithmetic* to = nullptr;
    const float* X = nullptr;
    int64_t m = 0;
    const Config* c = nullptr;
    const MixWeights* w = nullptr;
    float *pre = nullptr, *post = nullptr, *comb = nullptr;
  };
  kernels::V41Beside take_beside() {
    if (mix_.m == 0) return {};
    const auto run = [](void* what, size_t) {
      Mix& x = *static_cast<Mix*>(what);
      x.to->mix_rows(x.X, x.m, *x.c, *x.w, x.pre, x.post, x.comb);
      x.m = 0;
    };
    return {1, mix_.w->fn.size() * sizeof(float) * static_cast<size_t>(mix_.m), run, &mix_};
  }
  Mix mix_;
  FastLinear linear_;
};

}  // namespace

std::unique_ptr<Arithmetic> make_fast_arithmetic(ThreadPool* pool) {
  return std::make_unique<FastArithmetic>(pool);
}

}  // namespace deepmint::v41
