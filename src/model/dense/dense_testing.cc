#include "model/dense/dense_testing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>

#include "kernels/linear.h"
#include "kernels/scalar_math.h"

namespace deepmint::dense {
namespace {

using Vector = std::vector<double>;

// The reference keeps its own small view of the file on purpose: it shares neither the loader nor
// the names table.
class Reference {
 public:
  explicit Reference(const GgufFile& file) : file_(file) {
    arch_ = std::string(*file.string("general.architecture"));
    const auto integer = [&](const std::string& key) { return *file.integer(arch_ + "." + key); };
    layers_ = integer("block_count");
    hidden_ = integer("embedding_length");
    heads_ = integer("attention.head_count");
    kv_heads_ = integer("attention.head_count_kv");
    dim_ = *file.integer_or(arch_ + ".attention.key_length", hidden_ / heads_);
    ffn_ = integer("feed_forward_length");
    eps_ = static_cast<float>(*file.number(arch_ + ".attention.layer_norm_rms_epsilon"));
    base_ = *file.number_or(arch_ + ".rope.freq_base", 10000.0);
  }

  Vector logits(const std::vector<TokenId>& ids) {
    std::vector<std::vector<Vector>> keys(static_cast<size_t>(layers_)), values(keys.size());
    Vector out;
    const Matrix embedding = matrix("token_embd.weight");
    const Matrix head = file_.tensor("output.weight") ? matrix("output.weight") : embedding;
    for (size_t position = 0; position < ids.size(); ++position) {
      const auto* row = embedding.values.data() +
                        static_cast<size_t>(ids[position]) * static_cast<size_t>(hidden_);
      Vector x(row, row + hidden_);
      for (int64_t layer = 0; layer < layers_; ++layer) {
        const std::string p = "blk." + std::to_string(layer) + ".";
        attention(p, static_cast<double>(position), x, keys[static_cast<size_t>(layer)],
                  values[static_cast<size_t>(layer)]);
        const Vector h = norm(x, vector(p + "ffn_norm.weight"));
        Vector gate = product(matrix(p + "ffn_gate.weight"), h);
        const Vector up = product(matrix(p + "ffn_up.weight"), h);
        for (size_t i = 0; i < gate.size(); ++i)
          gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
        accumulate(product(matrix(p + "ffn_down.weight"), gate), x);
      }
      const Vector y = product(head, norm(x, vector("output_norm.weight")));
      out.insert(out.end(), y.begin(), y.end());
    }
    return out;
  }

 private:
  struct Matrix {
    int64_t n = 0, k = 0;
    Vector values;
  };

  Vector vector(const std::string& name) {
    Matrix& m = cache(name);
    return m.values;
  }
  const Matrix& matrix(const std::string& name) { return cache(name); }
  Matrix& cache(const std::string& name) {
    const auto it = cache_.find(name);
    if (it != cache_.end()) return it->second;
    const TensorView* t = file_.tensor(name);
    const auto n = static_cast<int64_t>(t->shape.size() == 1 ? 1 : t->shape[0]),
               k = static_cast<int64_t>(t->shape.back());
    Matrix m{n, k, {}};
    std::vector<float> row(static_cast<size_t>(k));
    const size_t bytes = t->bytes.size() / static_cast<size_t>(n);
    for (int64_t i = 0; i < n; ++i) {
      kernels::dequantize_row(t->dtype, t->bytes.data() + static_cast<size_t>(i) * bytes, k,
                              row.data());
      m.values.insert(m.values.end(), row.begin(), row.end());
    }
    return cache_.emplace(name, std::move(m)).first->second;
  }
  static Vector product(const Matrix& w, const Vector& x) {
    Vector y(static_cast<size_t>(w.n));
    for (int64_t i = 0; i < w.n; ++i)
      for (int64_t j = 0; j < w.k; ++j)
        y[static_cast<size_t>(i)] +=
            w.values[static_cast<size_t>(i * w.k + j)] * x[static_cast<size_t>(j)];
    return y;
  }
  static void accumulate(const Vector& from, Vector& to) {
    for (size_t i = 0; i < to.size(); ++i) to[i] += from[i];
  }
  Vector norm(const Vector& x, const Vector& w) const {
    double sum = 0;
    for (const double v : x) sum += v * v;
    const double scale = 1 / std::sqrt(sum / static_cast<double>(x.size()) + eps_);
    Vector y(x.size());
    for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] * scale * w[i];
    return y;
  }
  Vector head_of(const Vector& all, int64_t head) const {
    return {all.begin() + head * dim_, all.begin() + (head + 1) * dim_};
  }
  Vector turned(Vector x, double position) const {
    for (int64_t i = 0; i < dim_ / 2; ++i) {
      const double angle =
          position * std::pow(base_, -2.0 * static_cast<double>(i) / static_cast<double>(dim_));
      const size_t first = static_cast<size_t>(arch_ == "llama" ? 2 * i : i);
      const size_t second = static_cast<size_t>(arch_ == "llama" ? 2 * i + 1 : i + dim_ / 2);
      const double a = x[first], b = x[second];
      x[first] = a * std::cos(angle) - b * std::sin(angle);
      x[second] = a * std::sin(angle) + b * std::cos(angle);
    }
    return x;
  }
  static Vector rounded(Vector x) {
    for (double& v : x) v = kernels::from_bf16(kernels::to_bf16(static_cast<float>(v)));
    return x;
  }
  void attention(const std::string& p, double position, Vector& x, std::vector<Vector>& keys,
                 std::vector<Vector>& values) {
    const Vector h = norm(x, vector(p + "attn_norm.weight"));
    Vector q = product(matrix(p + "attn_q.weight"), h), k = product(matrix(p + "attn_k.weight"), h);
    Vector v = product(matrix(p + "attn_v.weight"), h);
    if (file_.tensor(p + "attn_q.bias") != nullptr) {
      accumulate(vector(p + "attn_q.bias"), q);
      accumulate(vector(p + "attn_k.bias"), k);
      accumulate(vector(p + "attn_v.bias"), v);
    }
    const bool normed = file_.tensor(p + "attn_q_norm.weight") != nullptr;
    Vector all_k;
    for (int64_t head = 0; head < kv_heads_; ++head) {
      Vector one = head_of(k, head);
      if (normed) one = norm(one, vector(p + "attn_k_norm.weight"));
      one = rounded(turned(one, position));
      all_k.insert(all_k.end(), one.begin(), one.end());
    }
    keys.push_back(all_k);
    values.push_back(rounded(v));
    Vector mixed;
    for (int64_t head = 0; head < heads_; ++head) {
      Vector one = head_of(q, head);
      if (normed) one = norm(one, vector(p + "attn_q_norm.weight"));
      one = turned(one, position);
      const int64_t kv = head / (heads_ / kv_heads_);
      Vector scores;
      for (const Vector& key : keys)
        scores.push_back(std::inner_product(one.begin(), one.end(), key.begin() + kv * dim_, 0.0) /
                         std::sqrt(static_cast<double>(dim_)));
      const double most = *std::max_element(scores.begin(), scores.end());
      double total = 0;
      for (double& s : scores) total += s = std::exp(s - most);
      Vector out(static_cast<size_t>(dim_));
      for (size_t t = 0; t < values.size(); ++t)
        for (int64_t d = 0; d < dim_; ++d)
          out[static_cast<size_t>(d)] +=
              scores[t] / total * values[t][static_cast<size_t>(kv * dim_ + d)];
      mixed.insert(mixed.end(), out.begin(), out.end());
    }
    accumulate(product(matrix(p + "attn_output.weight"), mixed), x);
  }

  const GgufFile& file_;
  std::string arch_;
  int64_t layers_ = 0, hidden_ = 0, heads_ = 0, kv_heads_ = 0, dim_ = 0, ffn_ = 0;
  double eps_ = 0, base_ = 0;
  std::map<std::string, Matrix> cache_;
};

}  // namespace

std::vector<double> reference_logits(const GgufFile& file, const std::vector<TokenId>& ids) {
  return Reference(file).logits(ids);
}

std::shared_ptr<const GgufFile> write_and_open(testing::GgufWriter& writer) {
  const testing::TempFolder folder;  // the mapping outlives the name
  writer.write(folder / "tiny.gguf");
  auto file = GgufFile::open(folder / "tiny.gguf");
  if (!file) {
    ADD_FAILURE() << file.error().str();
    return nullptr;
  }
  return std::make_shared<const GgufFile>(std::move(*file));
}

Harness::Harness(std::shared_ptr<Model> model, size_t n_blocks, uint64_t seed)
    : model_(std::move(model)),
      n_blocks_(n_blocks),
      memory_(n_blocks * model_->state_parts()[0].bytes),
      random_(seed) {
  poison();
}

void Harness::poison() {
  std::memset(memory_.data(), 0xff, memory_.size());
  free_.clear();
  for (size_t i = 0; i < n_blocks_; ++i) free_.push_back(static_cast<BlockId>(i));
}

std::vector<BlockId> Harness::table(int64_t positions) {
  std::vector<BlockId> out;
  for (int64_t p = 0; p < positions; p += kBlockTokens) {
    if (free_.empty()) {
      ADD_FAILURE() << "the test needs more blocks";
      return out;
    }
    const size_t pick = random_.below(free_.size());
    out.push_back(free_[pick]);
    free_.erase(free_.begin() + static_cast<ptrdiff_t>(pick));
  }
  return out;
}

std::vector<float> Harness::step(const std::vector<Row>& rows,
                                 const std::vector<SequenceRef>& sequences, Tap* tap) {
  const auto wanted = static_cast<size_t>(
      std::count_if(rows.begin(), rows.end(), [](const Row& r) { return r.needs_logits; }));
  EXPECT_TRUE(model_->reserve(rows.size(), wanted));
  std::vector<float> logits(wanted * vocab());
  const PartMemory memory = part();
  const Status status = model_->forward({rows, sequences, {&memory, 1}}, logits, tap);
  EXPECT_TRUE(status) << status.error().str();
  return logits;
}

std::vector<float> Harness::run(const std::vector<TokenId>& ids, size_t chunk,
                                std::vector<BlockId>* blocks) {
  const std::vector<BlockId> own = table(static_cast<int64_t>(ids.size()));
  std::vector<float> out;
  for (size_t begin = 0; begin < ids.size(); begin += chunk) {
    std::vector<Row> rows;
    for (size_t i = begin; i < std::min(ids.size(), begin + chunk); ++i)
      rows.push_back({.position = static_cast<int32_t>(i), .token = ids[i], .needs_logits = true});
    const auto logits = step(rows, {{.blocks = own}});
    out.insert(out.end(), logits.begin(), logits.end());
  }
  if (blocks != nullptr) *blocks = own;
  return out;
}

std::string Harness::state(const std::vector<BlockId>& blocks) const {
  const size_t bytes = model_->state_parts()[0].bytes;
  std::string out;
  for (const BlockId b : blocks)
    out.append(reinterpret_cast<const char*>(memory_.data()) + static_cast<size_t>(b) * bytes,
               bytes);
  return out;
}

Harness tiny_harness(const testing::TinyModel& tiny, int threads, size_t n_blocks) {
  testing::GgufWriter writer = testing::tiny_gguf(tiny);
  auto model =
      load_dense_gguf(write_and_open(writer), {.pool = std::make_shared<ThreadPool>(threads)});
  EXPECT_TRUE(model) << model.error().str();
  return Harness(std::move(*model), n_blocks);
}

std::vector<TokenId> random_ids(size_t n, size_t vocab, uint64_t seed) {
  testing::Random random(seed);
  std::vector<TokenId> ids(n);
  for (TokenId& id : ids) id = static_cast<TokenId>(random.below(vocab));
  return ids;
}

void expect_same(const std::vector<float>& a, const std::vector<float>& b,
                 const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (size_t i = 0; i < a.size(); ++i)
    ASSERT_EQ(std::bit_cast<uint32_t>(a[i]), std::bit_cast<uint32_t>(b[i]))
        << what << ": first difference at " << i << ": " << a[i] << " and " << b[i];
}

std::vector<float> row_of(const std::vector<float>& rows, size_t row, size_t width) {
  return {rows.begin() + static_cast<ptrdiff_t>(row * width),
          rows.begin() + static_cast<ptrdiff_t>((row + 1) * width)};
}

}  // namespace deepmint::dense
