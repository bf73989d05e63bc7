#include "support/official_layout.h"

#include <fmt/format.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "core/json.h"
#include "support/gguf_writer.h"
#include "support/safetensors_writer.h"

namespace deepmint::testing {
namespace {

// Header of one file whose data is a hole.
class SparseFile {
 public:
  explicit SparseFile(std::string name) : name_(std::move(name)) { header_.begin_object(); }

  void tensor(std::string name, const char* dtype, uint64_t element_bytes, uint64_t rows,
              uint64_t columns) {
    const uint64_t bytes = rows * columns * element_bytes;
    header_.key(name)
        .begin_object()
        .key("dtype")
        .value(dtype)
        .key("shape")
        .begin_array()
        .value(rows)
        .value(columns);
    header_.end_array()
        .key("data_offsets")
        .begin_array()
        .value(data_bytes_)
        .value(data_bytes_ + bytes)
        .end_array();
    header_.end_object();
    data_bytes_ += bytes;
    names_.push_back(std::move(name));
  }
  // X.weight in FP8 with the scale of each 32 × 32 tile.
  void fp8(const std::string& name, uint64_t rows, uint64_t columns) {
    tensor(name + ".weight", "F8_E4M3", 1, rows, columns);
    tensor(name + ".scale", "F8_E8M0", 1, rows / 32, columns / 32);
  }

  void write(const std::filesystem::path& folder,
             std::vector<std::pair<std::string, std::string>>& index) {
    header_.end_object();
    write_text(folder / name_, SafetensorsWriter::with_header(header_.str(), ""));
    std::filesystem::resize_file(folder / name_, 8 + header_.str().size() + data_bytes_);
    for (std::string& tensor : names_) index.emplace_back(std::move(tensor), name_);
  }
  size_t tensors() const { return names_.size(); }

 private:
  std::string name_;
  json::Writer header_;
  std::vector<std::string> names_;
  uint64_t data_bytes_ = 0;
};

void layer_tensors(SparseFile& file, const std::string& prefix) {
  for (int expert = 0; expert < 384; ++expert) {
    const std::string e = fmt::format("{}ffn.experts.{}.", prefix, expert);
    for (const char* w : {"w1", "w3"}) {
      file.tensor(e + w + ".weight", "I8", 1, 2304, 2560);
      file.tensor(e + w + ".scale", "F8_E8M0", 1, 2304, 160);
    }
    file.tensor(e + "w2.weight", "I8", 1, 5120, 1152);
    file.tensor(e + "w2.scale", "F8_E8M0", 1, 5120, 72);
  }
  file.fp8(prefix + "attn.wq_a", 1280, 5120);
  file.fp8(prefix + "attn.wq_b", 32768, 1280);
  file.fp8(prefix + "attn.wo_a", 8192, 4096);
  file.fp8(prefix + "attn.wo_b", 5120, 8192);
  for (const char* norm : {"attn_norm", "ffn_norm"})
    file.tensor(prefix + norm + ".weight", "BF16", 2, 1, 5120);
}

}  // namespace

void write_official_layout(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  std::vector<std::pair<std::string, std::string>> index;
  for (size_t number = 1; number <= kOfficialFiles; ++number) {
    SparseFile file(fmt::format("model-{:05}-of-{:05}.safetensors", number, kOfficialFiles));
    if (number >= 3 && number <= 42) layer_tensors(file, fmt::format("layers.{}.", number - 3));
    if (number == 2) file.tensor("embed.weight", "BF16", 2, 129'280, 5'120);
    if (number == 43) file.tensor("head.weight", "BF16", 2, 129'280, 5'120);
    if (number >= 44 && number <= 46)
      file.tensor(fmt::format("mtp.{}.norm.weight", number - 44), "BF16", 2, 1, 5'120);
    if (number >= 47) {
      const std::string prefix = number == 47 ? "layers.1.engram.embed" : "layers.14.engram.embed";
      const uint64_t rows = number == 47 ? 384'006'168 : 384'016'682;
      file.tensor(prefix + ".weight", "F8_E4M3", 1, rows, 256);
      file.tensor(prefix + ".scale", "F8_E8M0", 1, rows, 8);
    }
    // The rest of the count: small tensors, as the vision tower has them, in the first file.
    if (number == 1) {
      SparseFile layer("unused");
      layer_tensors(layer, "");
      const size_t others = 40 * layer.tensors() + 2 + 3 + 4;
      for (size_t i = others; i < kOfficialTensors; ++i)
        file.tensor(fmt::format("vision.blocks.{}.weight", i), "BF16", 2, 32, 32);
    }
    file.write(folder, index);
  }
  write_text(folder / "model.safetensors.index.json", safetensors_index(index));
  json::Writer config;
  config.begin_object()
      .key("architectures")
      .begin_array()
      .value("DeepseekV41ForCausalLM")
      .end_array();
  config.key("model_type").value("deepseek_v41").key("text_config").begin_object();
  config.key("hidden_size")
      .value(5120)
      .key("num_hidden_layers")
      .value(40)
      .key("vocab_size")
      .value(129'280);
  config.key("num_attention_heads")
      .value(64)
      .key("num_key_value_heads")
      .value(1)
      .key("head_dim")
      .value(512);
  config.end_object().end_object();
  write_text(folder / "config.json", config.str());
}

}  // namespace deepmint::testing
