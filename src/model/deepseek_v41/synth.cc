#include "model/deepseek_v41/synth.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "core/json.h"
#include "model/deepseek_v41/engram.h"
#include "model/deepseek_v41/synth_tensors.h"

namespace deepmint::v41 {
namespace {

std::string config_json(const Config& c) {
  json::Writer w;
  const auto list = [&](std::string_view key, const auto& values) {
    w.key(key).begin_array();
    for (const auto v : values) w.value(static_cast<int64_t>(v));
    w.end_array();
  };
  w.begin_object().key("architectures").begin_array().value("DeepseekV41ForCausalLM").end_array();
  w.key("model_type").value("deepseek_v41").key("dtype").value("bfloat16");
  w.key("bos_token_id").value(c.bos).key("eos_token_id").value(c.eos).key("pad_token_id").value(2);
  if (c.image_token >= 0) w.key("image_token_id").value(c.image_token);
  w.key("text_config").begin_object().key("model_type").value("deepseek_v41_text");
  w.key("vocab_size")
      .value(c.vocab)
      .key("hidden_size")
      .value(c.hidden)
      .key("num_hidden_layers")
      .value(c.layers);
  w.key("num_attention_heads")
      .value(c.heads)
      .key("num_key_value_heads")
      .value(1)
      .key("head_dim")
      .value(c.head_dim);
  w.key("qk_rope_head_dim")
      .value(c.rope_dim)
      .key("q_lora_rank")
      .value(c.q_lora)
      .key("o_lora_rank")
      .value(c.o_lora);
  w.key("o_groups")
      .value(c.o_groups)
      .key("moe_intermediate_size")
      .value(c.expert_inter)
      .key("n_routed_experts")
      .value(c.experts);
  w.key("n_shared_experts")
      .value(1)
      .key("num_experts_per_tok")
      .value(c.experts_per_token)
      .key("scoring_func")
      .value("sqrtsoftplus");
  w.key("topk_method")
      .value("noaux_tc")
      .key("norm_topk_prob")
      .value(true)
      .key("routed_scaling_factor")
      .value(c.route_scale);
  w.key("hidden_act")
      .value("silu")
      .key("swiglu_limit")
      .value(c.swiglu_limit)
      .key("rms_norm_eps")
      .value(c.norm_eps);
  w.key("attention_bias")
      .value(false)
      .key("tie_word_embeddings")
      .value(false)
      .key("max_position_embeddings")
      .value(c.max_positions);
  w.key("rope_theta").value(c.rope_theta).key("compress_rope_theta").value(c.compress_rope_theta);
  w.key("rope_scaling")
      .begin_object()
      .key("type")
      .value("yarn")
      .key("factor")
      .value(c.yarn.factor)
      .key("beta_fast")
      .value(c.yarn.beta_fast);
  w.key("beta_slow")
      .value(c.yarn.beta_slow)
      .key("original_max_position_embeddings")
      .value(c.yarn.original_positions)
      .end_object();
  w.key("sliding_window").value(c.window);
  std::vector<int> ratios = c.ratios;
  ratios.resize(ratios.size() + static_cast<size_t>(c.draft_layers), 0);
  list("compress_ratios", ratios);
  list("kv_source_layer_ids", c.kv_sources);
  list("index_source_layer_ids", c.index_sources);
  w.key("index_n_heads")
      .value(c.index_heads)
      .key("index_head_dim")
      .value(c.index_dim)
      .key("index_topk")
      .value(c.index_topk);
  w.key("candidate_source_layer_id")
      .value(c.candidate_layer)
      .key("candidate_topk_blocks")
      .value(c.candidate_blocks);
  w.key("candidate_block_size").value(c.candidate_block_size).key("hc_mult").value(c.streams);
  w.key("hc_sinkhorn_iters").value(c.sinkhorn_rounds).key("hc_eps").value(c.hc_eps);
  list("engram_layer_ids", c.engram_layers);
  list("engram_num_embeddings", c.engram_rows);
  w.key("engram_max_ngram_size")
      .value(c.engram_ngram)
      .key("engram_n_heads")
      .value(c.engram_heads)
      .key("engram_head_dim")
      .value(c.engram_dim);
  w.key("engram_vocab_size").value(c.engram_vocab).key("engram_pad_token_id").value(c.engram_pad);
  w.key("engram_compressed_vocab_size")
      .value(c.engram_compressed_vocab)
      .key("num_nextn_predict_layers")
      .value(c.draft_layers);
  if (c.noise_token >= 0) w.key("dspark_noise_token_id").value(c.noise_token);
  w.end_object();
  w.key("quantization_config")
      .begin_object()
      .key("quant_method")
      .value("fp8")
      .key("activation_scheme")
      .value("dynamic");
  w.key("weight_block_size")
      .begin_array()
      .value(32)
      .value(32)
      .end_array()
      .key("scale_fmt")
      .value("ue8m0")
      .key("expert_dtype")
      .value("fp4");
  w.end_object();
  w.key("x_engram_map")
      .value(fmt::format("compressed id = token id mod {}", c.engram_compressed_vocab))
      .end_object();
  return w.take();
}

// Writes a file whole: temporary name, fsync, rename.
class FileWriter {
 public:
  explicit FileWriter(std::filesystem::path path)
      : path_(std::move(path)), temporary_(path_.string() + ".part") {
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd_ < 0) error_ = errno;
  }
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;
  bool ok() const { return error_ == 0; }
  ~FileWriter() {
    if (fd_ >= 0) ::close(fd_);
    if (!published_) ::unlink(temporary_.c_str());
  }
  void write(const void* data, size_t size) {
    const char* p = static_cast<const char*>(data);
    while (size > 0 && error_ == 0) {
      const ssize_t n = ::write(fd_, p, size);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) {
        error_ = errno;
        return;
      }
      p += n;
      size -= static_cast<size_t>(n);
    }
  }
  // Leaves a hole: reads as zeros, takes no blocks.
  void skip(uint64_t size) {
    if (error_ == 0 && ::lseek(fd_, static_cast<off_t>(size), SEEK_CUR) < 0) error_ = errno;
  }
  Status publish() {
    const off_t end = error_ == 0 ? ::lseek(fd_, 0, SEEK_CUR) : 0;  // a hole may come last
    if (error_ == 0 && (end < 0 || ::ftruncate(fd_, end) != 0)) error_ = errno;
    if (error_ == 0 && ::fsync(fd_) != 0) error_ = errno;
    if (error_ == 0 && ::rename(temporary_.c_str(), path_.c_str()) != 0) error_ = errno;
    if (error_ != 0)
      return fail(ErrorCode::kUnavailable, fmt::format("writing failed: {}", std::strerror(error_)),
                  path_.string());
    published_ = true;
    const int folder = ::open(path_.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder >= 0) {
      ::fsync(folder);
      ::close(folder);
    }
    return {};
  }

 private:
  std::filesystem::path path_;
  std::string temporary_;
  int fd_ = -1, error_ = 0;
  bool published_ = false;
};

void derive_engram_rows(Config& c) {
  c.engram_rows.clear();
  for (const EngramLayer& e : make_engram_layers(c.engram_layers, c.engram_ngram, c.engram_heads,
                                                 c.engram_vocab, c.engram_compressed_vocab))
    c.engram_rows.push_back(e.rows);
}

// What `official` and `bench` share: the roles of the 40 layers and every width that the state and
// the kernels see.
void official_roles(Config& c) {
  c.layers = 40;
  c.head_dim = 512;
  c.rope_dim = 64;
  c.experts_per_token = 6;
  c.max_positions = 1048576;
  c.window = 128;
  c.ratios.assign(40, 1);
  std::fill_n(c.ratios.begin(), 2, 0);
  std::fill_n(c.ratios.begin() + 2, 18, 2);
  c.kv_sources = {2, 8, 14, 20};
  c.index_sources = {2, 8, 14, 20, 24, 28, 32, 36};
  c.index_dim = 128;
  c.index_topk = 512;
  c.candidate_layer = 20;
  c.candidate_blocks = 2048;
  c.candidate_block_size = 8;
  c.engram_layers = {1, 14};
  c.engram_heads = 8;
  c.engram_dim = 256;
}

}  // namespace

Config synth_config(SynthPreset preset) {
  Config c;
  c.route_scale = 1.5;
  c.swiglu_limit = 10;
  c.norm_eps = 1e-20;
  c.rope_theta = 10000;
  c.compress_rope_theta = 160000;
  c.streams = 4;
  c.sinkhorn_rounds = 20;
  c.hc_eps = 1e-6f;
  c.engram_ngram = 4;
  c.engram_pad = 2;
  c.engram_modulo_map = true;
  c.bos = 0;
  c.eos = 1;
  switch (preset) {
    case SynthPreset::kTiny:
      c.vocab = 512;
      c.hidden = 128;
      c.layers = 9;
      c.heads = 8;
      c.head_dim = 64;
      c.rope_dim = 32;
      c.q_lora = 64;
      c.o_lora = 32;
      c.o_groups = 2;
      c.expert_inter = 64;
      c.experts = 16;
      c.experts_per_token = 4;
      c.max_positions = 4096;
      c.yarn.original_positions = 64;
      c.window = 16;
      c.ratios = {0, 0, 2, 2, 2, 1, 1, 1, 1};
      c.kv_sources = {2, 4, 5};
      c.index_sources = {2, 4, 5, 7};
      c.index_heads = 4;
      c.index_dim = 32;
      c.index_topk = 8;
      c.candidate_layer = 5;
      c.candidate_blocks = 4;
      c.candidate_block_size = 4;
      c.engram_layers = {1, 4};
      c.engram_heads = 2;
      c.engram_dim = 32;
      c.engram_vocab = 97;
      c.engram_compressed_vocab = 400;
      break;
    case SynthPreset::kOfficial:
      c.vocab = 129280;
      c.hidden = 5120;
      c.heads = 64;
      c.q_lora = 1280;
      c.o_lora = 1024;
      c.o_groups = 8;
      c.expert_inter = 2304;
      c.experts = 384;
      c.index_heads = 32;
      c.engram_vocab = 16000000;
      c.engram_compressed_vocab = 99092;
      c.image_token = 129264;
      c.noise_token = 128799;
      c.draft_layers = 3;
      official_roles(c);
      break;
    case SynthPreset::kBench:
      c.vocab = 16384;
      c.hidden = 1024;
      c.heads = 16;
      c.q_lora = 512;
      c.o_lora = 256;
      c.o_groups = 4;
      c.expert_inter = 512;
      c.experts = 64;
      c.index_heads = 8;
      c.engram_vocab = 20000;
      c.engram_compressed_vocab = 12000;
      official_roles(c);
      break;
  }
  derive_engram_rows(c);
  return c;
}

void set_vocab(Config& config, int64_t vocab) {
  const Config official = synth_config(SynthPreset::kOfficial);
  config.vocab = vocab;
  const bool same = vocab == official.vocab;
  config.image_token = same ? official.image_token : -1;
  config.noise_token = same ? official.noise_token : -1;
}

namespace {

std::string shard_header(std::span<const SynthTensor* const> tensors) {
  json::Writer header;
  header.begin_object();
  uint64_t offset = 0;
  for (const SynthTensor* t : tensors) {
    header.key(t->name).begin_object().key("dtype").value(t->dtype).key("shape").begin_array();
    for (const int64_t s : t->shape) header.value(s);
    header.end_array()
        .key("data_offsets")
        .begin_array()
        .value(offset)
        .value(offset + t->bytes)
        .end_array()
        .end_object();
    offset += t->bytes;
  }
  header.end_object();
  std::string text = header.take();
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

std::string index_json(std::span<const SynthTensor> tensors,
                       const std::vector<std::string>& file_names) {
  json::Writer w;
  uint64_t total = 0;
  for (const SynthTensor& t : tensors) total += t.bytes;
  w.begin_object().key("metadata").begin_object().key("total_size").value(total).end_object();
  w.key("weight_map").begin_object();
  for (const SynthTensor& t : tensors) w.key(t.name).value(file_names[static_cast<size_t>(t.file)]);
  w.end_object().end_object();
  return w.take();
}

Status write_text(const std::filesystem::path& path, const std::string& text) {
  FileWriter out(path);
  out.write(text.data(), text.size());
  return out.publish();
}

Status check_folder(const std::filesystem::path& folder) {
  std::error_code ec;
  std::filesystem::create_directories(folder, ec);
  if (ec)
    return fail(ErrorCode::kUnavailable, fmt::format("could not make the folder: {}", ec.message()),
                folder.string());
  for (const auto& entry : std::filesystem::directory_iterator(folder, ec)) {
    const std::string name = entry.path().filename().string();
    if (name == "config.json" || name == "model.safetensors.index.json" ||
        name.ends_with(".safetensors"))
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("expected a folder without a checkpoint, found {}", name),
                  folder.string());
  }
  return {};
}

// The disk must hold what is really written: a checkpoint that ends in "no space left" helps
// nobody.
Status check_space(const std::filesystem::path& folder, uint64_t real, bool could_be_sparse) {
  std::error_code ec;
  const auto space = std::filesystem::space(folder, ec);
  const uint64_t need = real + real / 100;
  if (ec || space.available >= need) return {};
  return fail(
      ErrorCode::kResourceExhausted,
      fmt::format("expected {:.1f} GB of free disk space for the checkpoint, found {:.1f} "
                  "GB{}",
                  static_cast<double>(need) / 1e9, static_cast<double>(space.available) / 1e9,
                  could_be_sparse ? "; --sparse writes the same files mostly as holes" : ""),
      folder.string());
}

}  // namespace

Status synthesize(const Config& config, const std::filesystem::path& folder,
                  const SynthOptions& options) {
  DEEPMINT_CHECK_OK(check_folder(folder));
  const std::vector<SynthTensor> tensors = synth_tensors(config, options);
  uint64_t real = 0, done = 0;
  int files = 0;
  for (const SynthTensor& t : tensors) {
    real += t.hole ? 0 : t.bytes;
    files = std::max(files, t.file + 1);
  }
  DEEPMINT_CHECK_OK(check_space(folder, real, options.official_files && !options.sparse));

  std::vector<std::string> names = {"model.safetensors"};
  if (options.official_files) {
    names.clear();
    for (int i = 1; i <= files; ++i)
      names.push_back(fmt::format("model-{:05}-of-{:05}.safetensors", i, files));
  }
  for (int file = 0; file < files; ++file) {
    std::vector<const SynthTensor*> own;
    for (const SynthTensor& t : tensors)
      if (t.file == file) own.push_back(&t);
    const std::string header = shard_header(own);
    const uint64_t size = header.size();
    FileWriter out(folder / names[static_cast<size_t>(file)]);
    out.write(&size, sizeof(size));
    out.write(header.data(), header.size());
    for (const SynthTensor* t : own) {
      if (t->hole) {
        out.skip(t->bytes);
        continue;
      }
      t->write([&](const void* data, size_t bytes) {
        out.write(data, bytes);
        done += bytes;
        if (options.progress && real > 0)
          options.progress(static_cast<double>(done) / static_cast<double>(real));
      });
      if (!out.ok()) break;  // publish() says why
    }
    DEEPMINT_CHECK_OK(out.publish());
  }
  if (options.official_files)
    DEEPMINT_CHECK_OK(
        write_text(folder / "model.safetensors.index.json", index_json(tensors, names)));
  // Last: a folder with config.json is whole.
  return write_text(folder / "config.json", config_json(config));
}

}  // namespace deepmint::v41
