#include "core/thread_pool.h"
#include "model/deepseek_v41/arithmetic.h"

namespace deepmint::v41 {
namespace {

// Operations that have no float32 kernel run in reference arithmetic.
class FastArithmetic : public Arithmetic {
 public:
  explicit FastArithmetic(ThreadPool* pool) : pool_(pool) {}

  void linear(const Matrix& w, const float* x, int64_t m, float* y, Output output) override {
    reference_->linear(w, x, m, y, output);
  }
  void linear_plain(const Matrix& w, const float* x, int64_t m, float* y, Output output) override {
    reference_->linear_plain(w, x, m, y, output);
  }
  void rms_norm(const float* x, int64_t m, int d, const float* weight, double eps,
                float* y) override {
    reference_->rms_norm(x, m, d, weight, eps, y);
  }
  void rope(float* x, int64_t m, int groups, int d, std::span<const float> inv,
            const int32_t* positions, int sign) override {
    reference_->rope(x, m, groups, d, inv, positions, sign);
  }
  void mix(const float* X, int64_t m, const Config& c, const MixWeights& w, float* pre, float* post,
           float* comb) override {
    reference_->mix(X, m, c, w, pre, post, comb);
  }
  void collapse(const float* X, int64_t m, const Config& c, const float* pre, float* y) override {
    reference_->collapse(X, m, c, pre, y);
  }
  void expand(const float* y, int64_t m, const Config& c, const float* post, const float* comb,
              float* X) override {
    reference_->expand(y, m, c, post, comb, X);
  }
  void attend(const float* q, const KeyRows& keys, const Config& c, const float* sink,
              float* out) override {
    reference_->attend(q, keys, c, sink, out);
  }
  void pool(const float* const kv[2], const float* const gate[2], int d, float* out) override {
    reference_->pool(kv, gate, d, out);
  }
  void index_scores(const float* q, const float* w, std::span<const std::byte* const> keys,
                    const Config& c, float* scores) override {
    reference_->index_scores(q, w, keys, c, scores);
  }
  void moe(const float* u, int64_t m, const Config& c, const LayerWeights& w, float* y) override {
    reference_->moe(u, m, c, w, y);
  }
  void engram(float* X, const float* z, int64_t m, const Config& c,
              const EngramWeights& w) override {
    reference_->engram(X, z, m, c, w);
  }

 private:
  [[maybe_unused]] ThreadPool* pool_;
  std::unique_ptr<Arithmetic> reference_ = make_reference_arithmetic();
};

}  // namespace

std::unique_ptr<Arithmetic> make_fast_arithmetic(ThreadPool* pool) {
  return std::make_unique<FastArithmetic>(pool);
}

}  // namespace deepmint::v41
