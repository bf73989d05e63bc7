#include "model/dense/weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <string>
#include <unordered_map>
#include <utility>

#include "core/hash.h"
#include "format/names.h"

namespace deepmint::dense {
namespace {

using kernels::PackedMatrix;
using kernels::RowSource;

// --- names ---------------------------------------------------------------------------------------

enum class Role : uint8_t {
  kAttnNorm,
  kQ,
  kK,
  kV,
  kQBias,
  kKBias,
  kVBias,
  kQNorm,
  kKNorm,
  kOutput,
  kFfnNorm,
  kGate,
  kUp,
  kDown
};

std::string layer_tensor(Source::Naming naming, int layer, Role role) {
  if (naming == Source::Naming::kGguf) {
    constexpr std::string_view kNames[] = {
        "attn_norm.weight",   "attn_q.weight",      "attn_k.weight",   "attn_v.weight",
        "attn_q.bias",        "attn_k.bias",        "attn_v.bias",     "attn_q_norm.weight",
        "attn_k_norm.weight", "attn_output.weight", "ffn_norm.weight", "ffn_gate.weight",
        "ffn_up.weight",      "ffn_down.weight"};
    return fmt::format("blk.{}.{}", layer, kNames[static_cast<size_t>(role)]);
  }
  constexpr std::string_view kNames[] = {"input_layernorm.weight",
                                         "self_attn.q_proj.weight",
                                         "self_attn.k_proj.weight",
                                         "self_attn.v_proj.weight",
                                         "self_attn.q_proj.bias",
                                         "self_attn.k_proj.bias",
                                         "self_attn.v_proj.bias",
                                         "self_attn.q_norm.weight",
                                         "self_attn.k_norm.weight",
                                         "self_attn.o_proj.weight",
                                         "post_attention_layernorm.weight",
                                         "mlp.gate_proj.weight",
                                         "mlp.up_proj.weight",
                                         "mlp.down_proj.weight"};
  return fmt::format("model.layers.{}.{}", layer, kNames[static_cast<size_t>(role)]);
}

struct GlobalNames {
  std::string_view embedding, norm, head;
};
GlobalNames global_names(Source::Naming naming) {
  if (naming == Source::Naming::kGguf)
    return {"token_embd.weight", "output_norm.weight", "output.weight"};
  return {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"};
}

// Tables that older converters stored and that follow from the settings.
bool is_redundant(std::string_view name) {
  return name.ends_with(".attn_rot_embd") || name.ends_with(".attn_rot_embd.weight") ||
         name.ends_with("rotary_emb.inv_freq");
}

// --- checks --------------------------------------------------------------------------------------

class Tensors {
 public:
  explicit Tensors(const Source& source) {
    for (const TensorView& t : source.tensors) by_name_.emplace(t.name, Entry{&t, false});
  }

  // nullptr when absent.
  const TensorView* find(std::string_view name) {
    const auto it = by_name_.find(name);
    if (it == by_name_.end()) return nullptr;
    it->second.used = true;
    return it->second.tensor;
  }
  Result<const TensorView*> get(std::string_view name, std::vector<uint64_t> shape) {
    const TensorView* t = find(name);
    if (t == nullptr)
      return fail(ErrorCode::kInvalidFile,
                  fmt::format("expected shape [{}], found no such tensor", fmt::join(shape, ", ")),
                  place(name));
    if (t->shape != shape)
      return fail(ErrorCode::kInvalidFile,
                  fmt::format("expected shape [{}], found [{}]", fmt::join(shape, ", "),
                              fmt::join(t->shape, ", ")),
                  place(name));
    return t;
  }
  Result<const TensorView*> matrix(std::string_view name, int64_t n, int64_t k) {
    DEEPMINT_TRY(t, get(name, {static_cast<uint64_t>(n), static_cast<uint64_t>(k)}));
    if (!kernels::is_linear_type(t->dtype))
      return fail(ErrorCode::kUnsupported,
                  fmt::format("expected a float or GGUF block type, found {}", info(t->dtype).name),
                  place(name));
    if (!row_bytes(t->dtype, static_cast<uint64_t>(k)))
      return fail(ErrorCode::kInvalidFile,
                  fmt::format("expected rows of whole {} blocks of {}, found rows of {}",
                              info(t->dtype).name, info(t->dtype).block_elements, k),
                  place(name));
    return t;
  }
  Result<const TensorView*> vector(std::string_view name, int64_t n) {
    DEEPMINT_TRY(t, get(name, {static_cast<uint64_t>(n)}));
    if (t->dtype != DType::kF32 && t->dtype != DType::kF16 && t->dtype != DType::kBF16)
      return fail(ErrorCode::kUnsupported,
                  fmt::format("expected F32, F16 or BF16, found {}", info(t->dtype).name),
                  place(name));
    return t;
  }
  Status none_left(const Source& source) const {
    for (const TensorView& t : source.tensors) {
      const auto it = by_name_.find(t.name);
      if (!it->second.used && !is_redundant(t.name))
        return fail(ErrorCode::kUnsupported,
                    "this architecture has no such tensor, and leaving it out may change the "
                    "arithmetic",
                    place(t.name));
    }
    return {};
  }
  static std::string place(std::string_view name) { return "tensor " + quote_name(name); }

 private:
  struct Entry {
    const TensorView* tensor;
    bool used;
  };
  std::unordered_map<std::string_view, Entry> by_name_;
};

struct LayerTensors {
  const TensorView *attn_norm, *q, *k, *v, *q_bias = nullptr, *k_bias = nullptr, *v_bias = nullptr,
                                           *q_norm = nullptr, *k_norm = nullptr, *output, *ffn_norm,
                                           *gate, *up, *down;
};

struct AllTensors {
  const TensorView *embedding, *norm, *head, *rope_factors = nullptr;
  std::vector<LayerTensors> layers;
};

Result<AllTensors> check_tensors(const Config& c, const Source& source) {
  Tensors tensors(source);
  AllTensors all;
  const GlobalNames names = global_names(source.naming);
  DEEPMINT_TRY(embedding, tensors.matrix(names.embedding, c.vocab, c.hidden));
  DEEPMINT_TRY(norm, tensors.vector(names.norm, c.hidden));
  all.embedding = all.head = embedding;
  all.norm = norm;
  if (c.tied) {
    tensors.find(names.head);  // some tied checkpoints store the head again
  } else {
    DEEPMINT_TRY(head, tensors.matrix(names.head, c.vocab, c.hidden));
    all.head = head;
  }
  if (source.naming == Source::Naming::kGguf && tensors.find("rope_freqs.weight") != nullptr) {
    DEEPMINT_TRY(factors, tensors.vector("rope_freqs.weight", c.rope.rotary / 2));
    all.rope_factors = factors;
  }
  for (int i = 0; i < c.layers; ++i) {
    LayerTensors l{};
    Status status;
    const auto matrix = [&](const TensorView*& out, Role role, int64_t n, int64_t k) {
      if (!status) return;
      auto t = tensors.matrix(layer_tensor(source.naming, i, role), n, k);
      t ? void(out = *t) : void(status = tl::unexpected(std::move(t).error()));
    };
    const auto vector = [&](const TensorView*& out, Role role, int64_t n) {
      if (!status) return;
      auto t = tensors.vector(layer_tensor(source.naming, i, role), n);
      t ? void(out = *t) : void(status = tl::unexpected(std::move(t).error()));
    };
    vector(l.attn_norm, Role::kAttnNorm, c.hidden);
    matrix(l.q, Role::kQ, c.q_width(), c.hidden);
    matrix(l.k, Role::kK, c.kv_width(), c.hidden);
    matrix(l.v, Role::kV, c.kv_width(), c.hidden);
    if (c.qkv_bias) {
      vector(l.q_bias, Role::kQBias, c.q_width());
      vector(l.k_bias, Role::kKBias, c.kv_width());
      vector(l.v_bias, Role::kVBias, c.kv_width());
    }
    if (c.qk_norm) {
      vector(l.q_norm, Role::kQNorm, c.head_dim);
      vector(l.k_norm, Role::kKNorm, c.head_dim);
    }
    matrix(l.output, Role::kOutput, c.hidden, c.q_width());
    vector(l.ffn_norm, Role::kFfnNorm, c.hidden);
    matrix(l.gate, Role::kGate, c.ffn, c.hidden);
    matrix(l.up, Role::kUp, c.ffn, c.hidden);
    matrix(l.down, Role::kDown, c.hidden, c.ffn);
    DEEPMINT_CHECK_OK(std::move(status));
    all.layers.push_back(l);
  }
  DEEPMINT_CHECK_OK(tensors.none_left(source));
  return all;
}

// --- packing -------------------------------------------------------------------------------------

class Packer {
 public:
  Packer(const Config& config, const Source& source, ThreadPool& pool,
         const std::function<void(double)>& progress, uint64_t total)
      : config_(config), source_(source), pool_(pool), progress_(progress), total_(total) {}

  // Rows of one tensor, in stored order or reordered from interleaved pairs to halves.
  void rows_of(const TensorView& t, int64_t heads_to_reorder, std::vector<RowSource>& out) const {
    const int64_t n = static_cast<int64_t>(t.shape[0]);
    if (heads_to_reorder == 0 || !config_.rope.interleaved) {
      out.push_back({t.bytes, n});
      return;
    }
    const size_t row = t.bytes.size() / static_cast<size_t>(n);
    for (int64_t i = 0; i < n; ++i)
      out.push_back({t.bytes.subspan(static_cast<size_t>(stored_row(i)) * row, row), 1});
  }

  Result<Linear> linear(std::initializer_list<std::pair<const TensorView*, int64_t>> matrices,
                        int64_t k) {
    Linear out;
    out.k = k;
    const auto* it = matrices.begin();
    while (it != matrices.end()) {
      const DType type = it->first->dtype;
      const int64_t first = out.n;
      std::vector<RowSource> rows;
      const auto* begin = it;
      for (; it != matrices.end() && it->first->dtype == type; ++it) {
        rows_of(*it->first, it->second, rows);
        out.n += static_cast<int64_t>(it->first->shape[0]);
        hash(*it->first);
      }
      auto packed = kernels::pack_stacked(type, rows, k, pool_);
      if (!packed) return tl::unexpected(std::move(packed).error().at(begin->first->name));
      out.parts.push_back({std::move(*packed), first});
      for (; begin != it; ++begin) done(*begin->first);
    }
    return out;
  }

  AlignedBuffer<float> floats(const TensorView& t) {
    AlignedBuffer<float> out(static_cast<size_t>(t.elements()));
    read(t, out.data());
    return out;
  }

  AlignedBuffer<float> qkv_bias(const LayerTensors& l) {
    AlignedBuffer<float> out(static_cast<size_t>(config_.q_width() + 2 * config_.kv_width()));
    float* at = out.data();
    for (const TensorView* t : {l.q_bias, l.k_bias, l.v_bias}) {
      read(*t, at);
      const auto n = static_cast<int64_t>(t->elements());
      if (config_.rope.interleaved && t != l.v_bias) {
        const std::vector<float> stored(at, at + n);
        for (int64_t i = 0; i < n; ++i) at[i] = stored[static_cast<size_t>(stored_row(i))];
      }
      at += n;
    }
    return out;
  }

  // The embedding stays mapped. A tied one was hashed as the head.
  void keep_mapped(const TensorView& t) {
    if (!config_.tied) hash(t);
    drop(t);
    source_.files[static_cast<size_t>(t.file_index)]->random_access(t.file_offset, t.bytes.size());
  }

  uint64_t fingerprint() const { return hash_; }
  void hash_bytes(std::span<const std::byte> bytes) { hash_ = xxh3_64(bytes, hash_); }
  template <class T>
  void hash_value(T value) {
    hash_bytes(std::as_bytes(std::span(&value, 1)));
  }

 private:
  // Row of the checkpoint that holds output i in halves order.
  int64_t stored_row(int64_t i) const {
    const int64_t dim = config_.head_dim, half = config_.rope.rotary / 2;
    const int64_t head = i / dim, d = i % dim;
    if (d >= 2 * half) return i;
    return head * dim + (d < half ? 2 * d : 2 * (d - half) + 1);
  }
  void read(const TensorView& t, float* out) {
    hash(t);
    kernels::dequantize_row(t.dtype, t.bytes.data(), static_cast<int64_t>(t.elements()), out);
    done(t);
  }
  void hash(const TensorView& t) {
    hash_value(static_cast<uint64_t>(t.dtype));
    hash_bytes(t.bytes);
  }
  void drop(const TensorView& t) {
    source_.files[static_cast<size_t>(t.file_index)]->dont_need(t.file_offset, t.bytes.size());
  }
  void done(const TensorView& t) {
    drop(t);
    done_ += t.bytes.size();
    if (progress_)
      progress_(std::min(1.0, static_cast<double>(done_) / static_cast<double>(total_)));
  }

  const Config& config_;
  const Source& source_;
  ThreadPool& pool_;
  const std::function<void(double)>& progress_;
  uint64_t total_, done_ = 0, hash_ = 0;
};

Result<Weights> pack_weights(const Config& c, const Source& source, const AllTensors& all,
                             ThreadPool& pool, const std::function<void(double)>& progress) {
  uint64_t total = 1;
  for (const TensorView& t : source.tensors) total += t.bytes.size();
  if (!c.tied) total -= all.embedding->bytes.size();  // stays mapped
  Packer p(c, source, pool, progress, total);
  for (const int64_t v : {int64_t{c.layers}, int64_t{c.hidden}, int64_t{c.heads},
                          int64_t{c.kv_heads}, int64_t{c.head_dim}, int64_t{c.ffn}, c.vocab})
    p.hash_value(v);
  p.hash_value(c.norm_eps);
  p.hash_bytes(as_byte_span(c.architecture));

  Weights w;
  w.owner = source.owner;
  w.embedding = *all.embedding;
  std::vector<float> factors;
  if (all.rope_factors != nullptr) {
    const AlignedBuffer<float> f = p.floats(*all.rope_factors);
    factors.assign(f.span().begin(), f.span().end());
    for (const float v : factors)
      if (!(v > 0))
        return fail(ErrorCode::kInvalidFile, fmt::format("expected positive values, found {}", v),
                    Tensors::place("rope_freqs.weight"));
  }
  w.rope = make_rope(c.rope, factors);
  for (const double f : w.rope.frequencies) p.hash_value(f);
  p.hash_value(w.rope.magnitude);

  w.layers.resize(all.layers.size());
  for (size_t i = 0; i < all.layers.size(); ++i) {
    const LayerTensors& t = all.layers[i];
    Layer& l = w.layers[i];
    l.attn_norm = p.floats(*t.attn_norm);
    l.ffn_norm = p.floats(*t.ffn_norm);
    if (c.qkv_bias) l.qkv_bias = p.qkv_bias(t);
    if (c.qk_norm) {
      l.q_norm = p.floats(*t.q_norm);
      l.k_norm = p.floats(*t.k_norm);
    }
    DEEPMINT_TRY(qkv, p.linear({{t.q, c.heads}, {t.k, c.kv_heads}, {t.v, 0}}, c.hidden));
    DEEPMINT_TRY(output, p.linear({{t.output, 0}}, c.q_width()));
    DEEPMINT_TRY(gate_up, p.linear({{t.gate, 0}, {t.up, 0}}, c.hidden));
    DEEPMINT_TRY(down, p.linear({{t.down, 0}}, c.ffn));
    l.qkv = std::move(qkv);
    l.output = std::move(output);
    l.gate_up = std::move(gate_up);
    l.down = std::move(down);
    w.bytes += l.qkv.bytes() + l.output.bytes() + l.gate_up.bytes() + l.down.bytes();
  }
  w.final_norm = p.floats(*all.norm);
  DEEPMINT_TRY(head, p.linear({{all.head, 0}}, c.hidden));
  w.head = std::move(head);
  w.bytes += w.head.bytes();
  p.keep_mapped(*all.embedding);
  w.fingerprint = p.fingerprint();
  if (progress) progress(1.0);
  return w;
}

}  // namespace

Status check_weights(const Config& config, const Source& source) {
  DEEPMINT_CHECK_OK(check_tensors(config, source));
  return {};
}

Result<Weights> load_weights(const Config& config, const Source& source, ThreadPool& pool,
                             const std::function<void(double)>& progress) {
  DEEPMINT_TRY(all, check_tensors(config, source));
  try {
    return pack_weights(config, source, all, pool, progress);
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kResourceExhausted, "the weights do not fit in memory");
  }
}

}  // namespace deepmint::dense
