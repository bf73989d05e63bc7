#include "support/tiny_model.h"

#include <bit>
#include <cmath>

#include "core/check.h"
#include "core/hash.h"
#include "core/json.h"
#include "core/utf8.h"
#include "support/safetensors_writer.h"

namespace deepmint::testing {

const std::string_view kChatMlTemplate =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

uint16_t to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

uint16_t to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const float magnitude = std::fabs(value);
  if (magnitude >= 65520.0f) return sign | 0x7c00;
  if (magnitude < 0x1p-14f) {  // subnormal: multiples of 2^-24; nearbyint rounds to even
    return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyint(magnitude * 0x1p24f)));
  }
  const uint32_t m = bits & 0x7fffffff;
  const uint32_t rounded = m + 0xfff + ((m >> 13) & 1);
  return static_cast<uint16_t>(sign | ((rounded - (112u << 23)) >> 13));
}

namespace {

constexpr float kSqrt3 = 1.7320508f;

uint64_t seed_of(std::string_view name, uint64_t seed) { return xxh3_64(as_byte_span(name), seed); }

void append_random_bytes(std::string& out, size_t count, Random& random) {
  for (size_t i = 0; i < count; ++i) out.push_back(static_cast<char>(random.next() >> 56));
}

// One block with uniformly random quants whose scale makes the values' standard deviation about
// `std` and their mean about 0.
void append_block(std::string& out, DType type, float std, Random& random) {
  // Uniform quants 0 … 2^b-1 have the deviation 2^b / sqrt(12); the scale varies by ±25 % from
  // block to block.
  const float vary = 0.75f + 0.5f * static_cast<float>(random.uniform());
  const float d4 = std * vary / 4.61f, d5 = std * vary / 9.23f;
  switch (type) {
    case DType::kQ8_0:
      append_le(out, to_f16(std * vary / 73.9f));
      append_random_bytes(out, 32, random);
      return;
    case DType::kQ4_0:
      append_le(out, to_f16(d4));
      append_random_bytes(out, 16, random);
      return;
    case DType::kQ4_1:
      append_le(out, to_f16(d4));
      append_le(out, to_f16(-7.5f * d4));
      append_random_bytes(out, 16, random);
      return;
    case DType::kQ5_0:
      append_le(out, to_f16(d5));
      append_random_bytes(out, 20, random);
      return;
    case DType::kQ5_1:
      append_le(out, to_f16(d5));
      append_le(out, to_f16(-15.5f * d5));
      append_random_bytes(out, 20, random);
      return;
    // Super-blocks: random 6-bit scales and minima (mean 31.5) spread the values more; the divisors
    // include that.
    case DType::kQ4_K:
      append_le(out, to_f16(d4 / 56.0f));
      append_le(out, to_f16(7.5f * d4 / 56.0f));
      append_random_bytes(out, 12 + 128, random);
      return;
    case DType::kQ5_K:
      append_le(out, to_f16(d5 / 57.0f));
      append_le(out, to_f16(15.5f * d5 / 57.0f));
      append_random_bytes(out, 12 + 32 + 128, random);
      return;
    case DType::kQ6_K:
      append_random_bytes(out, 128 + 64 + 16, random);
      append_le(out, to_f16(std * vary / (18.5f * 73.9f)));
      return;
    default:
      DEEPMINT_CHECK(false && "not a block type");
  }
}

std::vector<float> random_floats(uint64_t count, float std, uint64_t seed, float mean = 0.0f) {
  Random random(seed);
  std::vector<float> out(count);
  for (float& v : out)
    v = mean + std * kSqrt3 * (2.0f * static_cast<float>(random.uniform()) - 1.0f);
  return out;
}

// Values of one norm or bias: multiples of 1/128, so that F32, F16 and BF16 files hold the same
// numbers.
std::vector<float> random_vector(uint64_t count, float std, uint64_t seed, float mean) {
  std::vector<float> out = random_floats(count, std, seed, mean);
  for (float& v : out) v = std::nearbyint(v * 128.0f) / 128.0f;
  return out;
}

std::string encode_plain(DType type, const std::vector<float>& values) {
  std::string out;
  for (const float v : values) {
    if (type == DType::kF32)
      append_le(out, v);
    else if (type == DType::kF16)
      append_le(out, to_f16(v));
    else if (type == DType::kBF16)
      append_le(out, to_bf16(v));
    else
      DEEPMINT_CHECK(false && "not a plain float type");
  }
  return out;
}

bool is_block_type(DType type) { return info(type).block_elements > 1; }

// One tensor of a model: names in both layouts and how its values are made.
struct Item {
  std::string gguf_name, hf_name;
  std::vector<uint64_t> shape;  // outermost first
  DType type;
  float std;
  float mean = 0.0f;
  uint32_t rotary_heads = 0;  // > 0: rows are rotary pairs of this many heads
  bool is_vector() const { return shape.size() == 1; }
};

std::vector<Item> items_of(const TinyModel& m) {
  const uint64_t vocab = tiny_vocabulary(m.unused_tokens).tokens.size();
  const uint64_t q = uint64_t{m.n_heads} * m.head_dim, kv = uint64_t{m.n_kv_heads} * m.head_dim;
  const auto inverse_root = [](uint64_t k) { return 1.0f / std::sqrt(static_cast<float>(k)); };
  std::vector<Item> out;
  const auto add = [&](std::string gguf, std::string hf, std::vector<uint64_t> shape, DType type,
                       float std, float mean = 0.0f, uint32_t rotary_heads = 0) {
    out.push_back(
        {std::move(gguf), std::move(hf), std::move(shape), type, std, mean, rotary_heads});
  };
  add("token_embd.weight", "model.embed_tokens.weight", {vocab, m.hidden}, m.embedding,
      2.0f * inverse_root(m.hidden));
  for (uint32_t layer = 0; layer < m.n_layers; ++layer) {
    const std::string g = "blk." + std::to_string(layer) + ".",
                      h = "model.layers." + std::to_string(layer) + ".";
    const uint32_t q_rotary = m.architecture == "llama" ? m.n_heads : 0;
    const uint32_t k_rotary = m.architecture == "llama" ? m.n_kv_heads : 0;
    add(g + "attn_norm.weight", h + "input_layernorm.weight", {m.hidden}, DType::kF32, 0.1f, 1.0f);
    add(g + "attn_q.weight", h + "self_attn.q_proj.weight", {q, m.hidden}, m.weights,
        inverse_root(m.hidden), 0, q_rotary);
    add(g + "attn_k.weight", h + "self_attn.k_proj.weight", {kv, m.hidden}, m.weights,
        inverse_root(m.hidden), 0, k_rotary);
    add(g + "attn_v.weight", h + "self_attn.v_proj.weight", {kv, m.hidden}, m.weights,
        inverse_root(m.hidden));
    if (m.architecture == "qwen2") {
      add(g + "attn_q.bias", h + "self_attn.q_proj.bias", {q}, DType::kF32, 0.2f);
      add(g + "attn_k.bias", h + "self_attn.k_proj.bias", {kv}, DType::kF32, 0.2f);
      add(g + "attn_v.bias", h + "self_attn.v_proj.bias", {kv}, DType::kF32, 0.2f);
    }
    if (m.architecture == "qwen3") {
      add(g + "attn_q_norm.weight", h + "self_attn.q_norm.weight", {m.head_dim}, DType::kF32, 0.1f,
          1.0f);
      add(g + "attn_k_norm.weight", h + "self_attn.k_norm.weight", {m.head_dim}, DType::kF32, 0.1f,
          1.0f);
    }
    add(g + "attn_output.weight", h + "self_attn.o_proj.weight", {m.hidden, q}, m.weights,
        inverse_root(q));
    add(g + "ffn_norm.weight", h + "post_attention_layernorm.weight", {m.hidden}, DType::kF32, 0.1f,
        1.0f);
    add(g + "ffn_gate.weight", h + "mlp.gate_proj.weight", {m.ffn, m.hidden}, m.weights,
        inverse_root(m.hidden));
    add(g + "ffn_up.weight", h + "mlp.up_proj.weight", {m.ffn, m.hidden}, m.weights,
        inverse_root(m.hidden));
    add(g + "ffn_down.weight", h + "mlp.down_proj.weight", {m.hidden, m.ffn}, m.weights,
        inverse_root(m.ffn));
  }
  add("output_norm.weight", "model.norm.weight", {m.hidden}, DType::kF32, 0.1f, 1.0f);
  if (!m.tied)
    add("output.weight", "lm_head.weight", {vocab, m.hidden}, m.embedding,
        2.0f * inverse_root(m.hidden));
  return out;
}

uint64_t element_count(const std::vector<uint64_t>& shape) {
  uint64_t n = 1;
  for (const uint64_t d : shape) n *= d;
  return n;
}

// The values of an item whose type is a plain one.
std::vector<float> values_of(const Item& item, uint64_t model_seed) {
  const uint64_t n = element_count(item.shape), seed = seed_of(item.gguf_name, model_seed);
  return item.is_vector() ? random_vector(n, item.std, seed, item.mean)
                          : random_floats(n, item.std, seed);
}

std::string tokenizer_json(const TinyModel& model) {
  const TinyVocabulary v = tiny_vocabulary(model.unused_tokens);
  json::Writer w;
  w.begin_object().key("version").value("1.0").key("truncation").null().key("padding").null();
  w.key("added_tokens").begin_array();
  for (size_t id = 0; id < v.tokens.size(); ++id) {
    if (v.types[id] == 1) continue;
    w.begin_object().key("id").value(static_cast<uint64_t>(id)).key("content").value(v.tokens[id]);
    for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized"})
      w.key(flag).value(false);
    w.key("special").value(true).end_object();
  }
  w.end_array().key("normalizer").null();
  w.key("pre_tokenizer")
      .begin_object()
      .key("type")
      .value("Sequence")
      .key("pretokenizers")
      .begin_array();
  w.begin_object().key("type").value("Digits").key("individual_digits").value(true).end_object();
  w.begin_object()
      .key("type")
      .value("ByteLevel")
      .key("add_prefix_space")
      .value(false)
      .key("trim_offsets")
      .value(true);
  w.key("use_regex").value(true).end_object().end_array().end_object();
  w.key("post_processor").null();
  w.key("decoder")
      .begin_object()
      .key("type")
      .value("ByteLevel")
      .key("add_prefix_space")
      .value(true);
  w.key("trim_offsets").value(true).key("use_regex").value(true).end_object();
  w.key("model")
      .begin_object()
      .key("type")
      .value("BPE")
      .key("dropout")
      .null()
      .key("unk_token")
      .null();
  w.key("continuing_subword_prefix")
      .null()
      .key("end_of_word_suffix")
      .null()
      .key("fuse_unk")
      .value(false);
  w.key("byte_fallback").value(false).key("vocab").begin_object();
  for (size_t id = 0; id < v.tokens.size(); ++id)
    w.key(v.tokens[id]).value(static_cast<uint64_t>(id));
  w.end_object().key("merges").begin_array();
  for (const std::string& merge : v.merges) w.value(merge);
  w.end_array().end_object().end_object();
  return w.take();
}

std::string config_json(const TinyModel& m) {
  const uint64_t vocab = tiny_vocabulary(m.unused_tokens).tokens.size();
  std::string class_name = m.architecture == "llama"   ? "LlamaForCausalLM"
                           : m.architecture == "qwen2" ? "Qwen2ForCausalLM"
                                                       : "Qwen3ForCausalLM";
  json::Writer w;
  w.begin_object().key("architectures").begin_array().value(class_name).end_array();
  w.key("model_type").value(m.architecture).key("hidden_act").value("silu");
  w.key("hidden_size").value(uint64_t{m.hidden}).key("intermediate_size").value(uint64_t{m.ffn});
  w.key("num_hidden_layers")
      .value(uint64_t{m.n_layers})
      .key("num_attention_heads")
      .value(uint64_t{m.n_heads});
  w.key("num_key_value_heads")
      .value(uint64_t{m.n_kv_heads})
      .key("head_dim")
      .value(uint64_t{m.head_dim});
  w.key("max_position_embeddings").value(uint64_t{m.context}).key("rms_norm_eps").value(m.rms_eps);
  w.key("rope_theta")
      .value(m.rope_base)
      .key("rope_scaling")
      .null()
      .key("attention_bias")
      .value(m.architecture == "qwen2");
  w.key("tie_word_embeddings").value(m.tied).key("vocab_size").value(vocab);
  w.key("bos_token_id").value(kTinyImStart).key("eos_token_id").value(kTinyImEnd);
  w.key("torch_dtype")
      .value(m.weights == DType::kF32   ? "float32"
             : m.weights == DType::kF16 ? "float16"
                                        : "bfloat16");
  w.end_object();
  return w.take();
}

}  // namespace

std::string random_rows(DType type, uint64_t rows, uint64_t k, float std, uint64_t seed) {
  if (!is_block_type(type)) return encode_plain(type, random_floats(rows * k, std, seed));
  DEEPMINT_CHECK(k % info(type).block_elements == 0);
  std::string out;
  Random random(seed);
  for (uint64_t block = 0; block < rows * k / info(type).block_elements; ++block)
    append_block(out, type, std, random);
  return out;
}

TinyModel tiny_model_for(DType weights) {
  TinyModel model;
  model.weights = weights;
  if (info(weights).block_elements > 32) {
    model.hidden = model.ffn = 256;
    model.head_dim = 64;
  }
  return model;
}

TinyVocabulary tiny_vocabulary(uint32_t unused_tokens) {
  TinyVocabulary v;
  for (const char* control : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) {
    v.tokens.emplace_back(control);
    v.types.push_back(3);
  }
  // Bytes that print stand for themselves, the others for U+0100 and up, in ascending order.
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool prints =
        (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    std::string token;
    utf8::append(token, prints ? byte : next++);
    v.tokens.push_back(token);
    v.types.push_back(1);
  }
  for (const auto& [left, right] :
       std::initializer_list<std::pair<const char*, const char*>>{{"Ġ", "t"},
                                                                  {"Ġ", "a"},
                                                                  {"h", "e"},
                                                                  {"i", "n"},
                                                                  {"Ġt", "he"},
                                                                  {"r", "e"},
                                                                  {"o", "n"},
                                                                  {"e", "r"},
                                                                  {"Ġ", "Ġ"},
                                                                  {"in", "g"},
                                                                  {"Ġa", "n"},
                                                                  {"Ġan", "d"},
                                                                  {"l", "l"},
                                                                  {"e", "ll"},
                                                                  {"h", "ell"},
                                                                  {"hell", "o"},
                                                                  {"ĠĠ", "ĠĠ"}}) {
    v.merges.push_back(std::string(left) + " " + right);
    v.tokens.push_back(std::string(left) + right);
    v.types.push_back(1);
  }
  for (uint32_t i = 0; i < unused_tokens; ++i) {
    v.tokens.push_back("<|unused_" + std::to_string(i) + "|>");
    v.types.push_back(5);
  }
  return v;
}

GgufWriter tiny_gguf(const TinyModel& m) {
  const TinyVocabulary v = tiny_vocabulary(m.unused_tokens);
  GgufWriter w;
  w.set("general.architecture", m.architecture).set("general.name", "Tiny " + m.architecture);
  const auto key = [&](const char* name) { return m.architecture + "." + name; };
  w.set(key("block_count"), m.n_layers).set(key("context_length"), m.context);
  w.set(key("embedding_length"), m.hidden).set(key("feed_forward_length"), m.ffn);
  w.set(key("attention.head_count"), m.n_heads).set(key("attention.head_count_kv"), m.n_kv_heads);
  w.set(key("attention.key_length"), m.head_dim).set(key("attention.value_length"), m.head_dim);
  w.set(key("attention.layer_norm_rms_epsilon"), m.rms_eps).set(key("rope.freq_base"), m.rope_base);
  w.set(key("rope.dimension_count"), m.head_dim)
      .set(key("vocab_size"), static_cast<uint32_t>(v.tokens.size()));
  w.set("tokenizer.ggml.model", "gpt2").set("tokenizer.ggml.pre", "smollm");
  w.set_array("tokenizer.ggml.tokens", v.tokens).set_array("tokenizer.ggml.token_type", v.types);
  w.set_array("tokenizer.ggml.merges", v.merges);
  w.set("tokenizer.ggml.bos_token_id", uint32_t{kTinyImStart})
      .set("tokenizer.ggml.eos_token_id", uint32_t{kTinyImEnd});
  w.set("tokenizer.ggml.padding_token_id", uint32_t{kTinyImEnd})
      .set("tokenizer.ggml.add_bos_token", false);
  w.set("tokenizer.chat_template", kChatMlTemplate)
      .set("general.quantization_version", uint32_t{2});
  for (const Item& item : items_of(m)) {
    const uint64_t k = item.shape.back();
    std::string bytes = is_block_type(item.type)
                            ? random_rows(item.type, element_count(item.shape) / k, k, item.std,
                                          seed_of(item.gguf_name, m.seed))
                            : encode_plain(item.type, values_of(item, m.seed));
    w.tensor(item.gguf_name, item.type, item.shape, std::move(bytes));
  }
  return w;
}

void write_tiny_hf(const TinyModel& m, const std::filesystem::path& folder) {
  DEEPMINT_CHECK(!is_block_type(m.weights) && !is_block_type(m.embedding));
  std::filesystem::create_directories(folder);
  SafetensorsWriter w;
  w.metadata("format", "pt");
  for (const Item& item : items_of(m)) {
    std::vector<float> values = values_of(item, m.seed);
    if (item.rotary_heads > 0) {
      // GGUF keeps the two members of a rotary pair in neighbouring rows, Hugging Face half a head
      // apart.
      const std::vector<float> paired = values;
      const uint64_t half = m.head_dim / 2, k = item.shape.back();
      for (uint64_t head = 0; head < item.rotary_heads; ++head)
        for (uint64_t pair = 0; pair < half; ++pair)
          for (uint64_t member = 0; member < 2; ++member)
            for (uint64_t column = 0; column < k; ++column)
              values[(head * m.head_dim + member * half + pair) * k + column] =
                  paired[(head * m.head_dim + 2 * pair + member) * k + column];
    }
    const DType type = item.is_vector() ? m.weights : item.type;
    w.tensor(item.hf_name, info(type).name, item.shape, encode_plain(type, values));
  }
  w.write(folder / "model.safetensors");
  write_text(folder / "config.json", config_json(m));
  write_text(folder / "tokenizer.json", tokenizer_json(m));
  json::Writer tokenizer_config;
  tokenizer_config.begin_object()
      .key("bos_token")
      .value("<|im_start|>")
      .key("eos_token")
      .value("<|im_end|>");
  tokenizer_config.key("chat_template").value(kChatMlTemplate).end_object();
  write_text(folder / "tokenizer_config.json", tokenizer_config.str());
}

}  // namespace deepmint::testing
