#include "format/expected_tensors.h"

#include <fmt/format.h>

#include <unordered_map>
#include <unordered_set>

#include "format/names.h"

namespace deepmint {
namespace {

// Names of the same tensor in the two layouts; prefix is that of a layer.
struct Names {
  std::string_view embedding, final_norm, head;
  std::string_view layer_prefix;
  std::string_view attn_norm, q, k, v, output, q_norm, k_norm, ffn_norm, gate, up, down;
};
constexpr Names kGguf = {"token_embd",  "output_norm", "output",   "blk.",        "attn_norm",
                         "attn_q",      "attn_k",      "attn_v",   "attn_output", "attn_q_norm",
                         "attn_k_norm", "ffn_norm",    "ffn_gate", "ffn_up",      "ffn_down"};
constexpr Names kHuggingFace = {
    "model.embed_tokens", "model.norm",       "lm_head",          "model.layers.",
    "input_layernorm",    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
    "self_attn.o_proj",   "self_attn.q_norm", "self_attn.k_norm", "post_attention_layernorm",
    "mlp.gate_proj",      "mlp.up_proj",      "mlp.down_proj"};

std::vector<ExpectedTensor> expected(const DenseShape& s, const Names& names) {
  const auto u = [](int64_t n) { return static_cast<uint64_t>(n); };
  const uint64_t hidden = u(s.hidden), vocab = u(s.vocab), ffn = u(s.ffn);
  const uint64_t q = u(s.heads) * u(s.key_dim), k = u(s.kv_heads) * u(s.key_dim),
                 v = u(s.kv_heads) * u(s.value_dim);
  const uint64_t o = u(s.heads) * u(s.value_dim);

  std::vector<ExpectedTensor> out;
  const auto matrix = [&](std::string name, uint64_t rows, uint64_t columns, bool required = true) {
    out.push_back({std::move(name) + ".weight", {rows, columns}, required});
  };
  const auto vector = [&](std::string name, uint64_t n, bool required = true) {
    out.push_back({std::move(name), {n}, required});
  };
  matrix(std::string(names.embedding), vocab, hidden);
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    const std::string prefix = fmt::format("{}{}.", names.layer_prefix, layer);
    const auto at = [&](std::string_view name) { return prefix + std::string(name); };
    vector(at(names.attn_norm) + ".weight", hidden);
    matrix(at(names.q), q, hidden);
    matrix(at(names.k), k, hidden);
    matrix(at(names.v), v, hidden);
    matrix(at(names.output), hidden, o);
    if (s.qkv_bias) {
      vector(at(names.q) + ".bias", q);
      vector(at(names.k) + ".bias", k);
      vector(at(names.v) + ".bias", v);
    }
    if (s.qk_norm) {
      vector(at(names.q_norm) + ".weight", u(s.key_dim));
      vector(at(names.k_norm) + ".weight", u(s.key_dim));
    }
    vector(at(names.ffn_norm) + ".weight", hidden);
    matrix(at(names.gate), ffn, hidden);
    matrix(at(names.up), ffn, hidden);
    matrix(at(names.down), hidden, ffn);
  }
  vector(std::string(names.final_norm) + ".weight", hidden);
  matrix(std::string(names.head), vocab, hidden, s.head_required);
  return out;
}

// Rotary tables that old converters stored, although they follow from the settings.
bool is_redundant(std::string_view name) {
  return name.ends_with(".attn_rot_embd") || name.ends_with(".attn_rot_embd.weight") ||
         name.ends_with(".rotary_emb.inv_freq");
}

}  // namespace

std::string shape_text(const std::vector<uint64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::vector<ExpectedTensor> expected_gguf_tensors(const DenseShape& shape) {
  std::vector<ExpectedTensor> out = expected(shape, kGguf);
  // Per-dimension rotary factors (Llama 3.1 and later).
  out.push_back({"rope_freqs.weight", {static_cast<uint64_t>(shape.rope_dims / 2)}, false});
  return out;
}

std::vector<ExpectedTensor> expected_hf_tensors(const DenseShape& shape) {
  return expected(shape, kHuggingFace);
}

TensorDifferences compare_tensors(const std::vector<ExpectedTensor>& expected,
                                  const std::vector<TensorView>& tensors,
                                  std::string_view architecture) {
  std::unordered_map<std::string_view, const TensorView*> by_name;
  by_name.reserve(tensors.size());
  for (const TensorView& tensor : tensors) by_name.emplace(tensor.name, &tensor);
  std::unordered_set<std::string_view> known;
  known.reserve(expected.size());

  TensorDifferences out;
  const auto differs = [&](std::string_view name, const std::string& what,
                           const std::string& found) {
    if (++out.count <= TensorDifferences::kMaxLines)
      out.lines.push_back(
          fmt::format("tensor {}: expected {}, found {}", quote_name(name), what, found));
  };
  for (const ExpectedTensor& e : expected) {
    known.insert(e.name);
    const auto it = by_name.find(e.name);
    if (it == by_name.end()) {
      if (e.required) differs(e.name, shape_text(e.shape), "nothing");
    } else if (it->second->shape != e.shape) {
      differs(e.name, shape_text(e.shape), shape_text(it->second->shape));
    }
  }
  for (const TensorView& tensor : tensors)
    if (!known.contains(tensor.name) && !is_redundant(tensor.name))
      differs(tensor.name, fmt::format("only the tensors of {}", architecture),
              "another of " + shape_text(tensor.shape));
  return out;
}

}  // namespace deepmint
