// The configuration of a DeepSeek-V4.1 checkpoint: Hugging Face's nested config.json, or the flat
// form of the official inference code. Every field that would change the math is read and checked;
// one that has an unknown value is refused by name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "deepmint/result.h"

namespace deepmint::v41 {

struct YarnConfig {
  double factor = 16, beta_fast = 32, beta_slow = 1, original_positions = 65536;
};

struct Config {
  int64_t vocab = 0;
  int hidden = 0, layers = 0, heads = 0, head_dim = 0, rope_dim = 0, q_lora = 0;
  int o_lora = 0, o_groups = 0;
  int expert_inter = 0, experts = 0, experts_per_token = 0;
  double route_scale = 1, gate_temperature = 1;
  float swiglu_limit = 0;
  double norm_eps = 0;
  int64_t max_positions = 0;
  double rope_theta = 0, compress_rope_theta = 0;
  YarnConfig yarn;
  int window = 0;
  std::vector<int> ratios;  // per backbone layer: 0 window only, 1 or 2 tokens per global row
  std::vector<int> kv_sources, index_sources;
  int index_heads = 0, index_dim = 0, index_topk = 0;
  int candidate_layer = -1, candidate_blocks = 0, candidate_block_size = 1;  // layer < 0: off
  int streams = 0, sinkhorn_rounds = 0;
  float hc_eps = 0;
  std::vector<int> engram_layers;
  std::vector<int64_t> engram_rows;  // table rows, per Engram layer
  int engram_ngram = 0, engram_heads = 0, engram_dim = 0;
  int64_t engram_vocab = 0, engram_pad = 0, engram_compressed_vocab = 0;
  bool engram_modulo_map = false;  // x_engram_map: compressed id = id mod engram_compressed_vocab
  int64_t bos = -1, eos = -1, image_token = -1;
  int64_t noise_token = -1;  // what the draft layers see at positions yet unknown
  int draft_layers = 0;      // mtp.* blocks in the checkpoint; not part of the text model

  // Greatest source id <= layer, or -1 when the layer has no global rows.
  int kv_source(int layer) const;
  int index_source(int layer) const;
  bool is_kv_source(int layer) const { return kv_source(layer) == layer; }
  bool is_index_source(int layer) const { return index_source(layer) == layer; }
};

// Errors: kInvalidFile naming the field, what was expected and found; kUnsupported for values that
// this model does not have.
Result<Config> parse_config(const json::Value& document);

// The config.json of a checkpoint folder. Errors also name the file.
Result<Config> read_config(const std::filesystem::path& folder);

// Whether a config.json is for this family at all (its model_type or architectures say so).
bool is_v41_config(const json::Value& document);

}  // namespace deepmint::v41
