#include "model/deepseek_v41/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/check.h"
#include "core/hash.h"
#include "core/json.h"
#include "core/mapped_file.h"
#include "model/deepseek_v41/formats.h"
#include "model/deepseek_v41/ref_ops.h"

namespace deepmint::v41 {

// Rows that are still running, compacted: entry j of every array belongs to input row `row[j]`.
struct V41Model::Step {
  const StepInput* input = nullptr;
  std::vector<uint32_t> row;  // input row of each active row
  std::vector<int32_t> position;
  std::vector<int32_t>
      first_row;  // per sequence: index (in this compacted order) of its first active row, or -1
  std::vector<int32_t> first_position;  // per sequence: position of that row
  std::vector<float> X, pre;            // [m, hc, hidden], [m, hc]
  std::vector<std::byte> window;        // [m, window_row_bytes]: this layer's new window rows
  size_t m() const { return row.size(); }

  const Row& in(size_t j) const { return input->rows[row[j]]; }
  const SequenceRef& sequence(size_t j) const { return input->sequences[in(j).sequence]; }
  void index_sequences() {
    first_row.assign(input->sequences.size(), -1);
    first_position.assign(input->sequences.size(), 0);
    position.resize(m());
    for (size_t j = 0; j < m(); ++j) {
      position[j] = in(j).position;
      if (first_row[in(j).sequence] < 0) {
        first_row[in(j).sequence] = static_cast<int32_t>(j);
        first_position[in(j).sequence] = position[j];
      }
    }
  }
};

V41Model::V41Model(Config config, SafetensorsModel files, std::unique_ptr<Arithmetic> arithmetic,
                   V41Options options)
    : config_(std::move(config)),
      files_(std::move(files)),
      layout_(config_),
      arithmetic_(std::move(arithmetic)),
      options_(std::move(options)) {
  engram_ = make_engram_layers(config_.engram_layers, config_.engram_ngram, config_.engram_heads,
                               config_.engram_vocab, config_.engram_compressed_vocab);
  inv_plain_ = ref::inverse_frequencies(config_.rope_dim, config_.rope_theta, 0, 0, 0, 0);
  inv_compressed_ = ref::inverse_frequencies(config_.rope_dim, config_.compress_rope_theta,
                                             config_.yarn.factor, config_.yarn.original_positions,
                                             config_.yarn.beta_fast, config_.yarn.beta_slow);
}
V41Model::~V41Model() = default;

Result<std::unique_ptr<V41Model>> V41Model::load(const std::filesystem::path& folder,
                                                 std::unique_ptr<Arithmetic> arithmetic,
                                                 V41Options options) {
  const std::string config_path = (folder / "config.json").string();
  auto file = MappedFile::open(config_path);
  if (!file) return tl::unexpected<Error>(std::move(file).error());
  const auto bytes = file->bytes();
  auto document = json::parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                              {.max_bytes = size_t{1} << 24});
  if (!document) return tl::unexpected<Error>(std::move(document).error().at(config_path));
  auto config = parse_config(*document);
  if (!config) return tl::unexpected<Error>(std::move(config).error().at(config_path));
  if (options.engram_map.empty() && !config->engram_modulo_map && !config->engram_layers.empty())
    return fail(
        ErrorCode::kInvalidFile,
        "expected a tokenizer (the Engram map is made from it) or x_engram_map, found neither",
        config_path);
  if (!options.engram_map.empty()) {
    if (static_cast<int64_t>(options.engram_map.size()) != config->vocab)
      return fail(ErrorCode::kInvalidFile,
                  fmt::format("expected a tokenizer of {} ids, found {}", config->vocab,
                              options.engram_map.size()),
                  config_path);
    const int64_t classes =
        *std::max_element(options.engram_map.begin(), options.engram_map.end()) + 1;
    if (classes != config->engram_compressed_vocab)
      return fail(ErrorCode::kInvalidFile,
                  fmt::format("expected {} compressed ids (engram_compressed_vocab_size), found {}",
                              config->engram_compressed_vocab, classes),
                  config_path);
  }
  DEEPMINT_TRY(files, SafetensorsModel::open(folder));
  std::unique_ptr<V41Model> model(new V41Model(std::move(*config), std::move(files),
                                               std::move(arithmetic), std::move(options)));
  auto weights = bind_weights(model->files_, model->config_);
  if (!weights) return tl::unexpected<Error>(std::move(weights).error().at(folder.string()));
  model->weights_ = std::move(*weights);

  ModelInfo& info = model->info_;
  const Config& c = model->config_;
  info.architecture = "deepseek_v41";
  info.name = folder.filename().string();
  info.vocab_size = c.vocab;
  info.n_layers = c.layers;
  info.hidden = c.hidden;
  info.context_tokens = static_cast<int32_t>(std::min<int64_t>(c.max_positions, INT32_MAX));
  uint64_t fingerprint = xxh3_64(bytes);
  for (const TensorView& t : model->files_.tensors()) {
    info.weight_bytes += t.bytes.size();
    // Names, shapes and the first bytes of every tensor: cheap, and different for every checkpoint
    // that was trained or written anew.
    fingerprint = xxh3_64(as_byte_span(t.name), fingerprint);
    fingerprint = xxh3_64(t.bytes.first(std::min<size_t>(t.bytes.size(), 64)), fingerprint);
  }
  info.fingerprint = fingerprint;
  return model;
}

Status V41Model::reserve(size_t max_rows, size_t max_logit_rows) {
  max_rows_ = std::max(max_rows_, max_rows);
  max_logit_rows_ = std::max(max_logit_rows_, max_logit_rows);
  return {};
}

Status V41Model::check(const StepInput& input) const {
  const auto bad = [](size_t row, std::string message) {
    return fail(ErrorCode::kInvalidArgument, std::move(message), fmt::format("row {}", row));
  };
  if (input.rows.size() > max_rows_)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("expected at most {} rows, found {}", max_rows_, input.rows.size()),
                "step");
  if (input.state.size() != layout_.parts().size())
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("expected {} state parts, found {}", layout_.parts().size(),
                            input.state.size()),
                "step");
  const int last_source = config_.kv_sources.empty() ? -1 : config_.kv_sources.back();
  size_t logit_rows = 0;
  std::vector<bool> seen(input.sequences.size(), false);
  for (size_t i = 0; i < input.rows.size(); ++i) {
    const Row& r = input.rows[i];
    if (r.sequence >= input.sequences.size())
      return bad(i, fmt::format("expected a sequence below {}, found {}", input.sequences.size(),
                                r.sequence));
    const bool continues = i > 0 && input.rows[i - 1].sequence == r.sequence;
    if (!continues) {
      if (seen[r.sequence]) return bad(i, "expected the rows of a sequence side by side");
      seen[r.sequence] = true;
    } else if (r.position != input.rows[i - 1].position + 1) {
      return bad(i, fmt::format("expected position {}, found {}", input.rows[i - 1].position + 1,
                                r.position));
    }
    if (r.token < 0 || r.token >= config_.vocab)
      return bad(i, fmt::format("expected a token id below {}, found {}", config_.vocab, r.token));
    if (r.token == config_.image_token || r.image_row >= 0)
      return fail(ErrorCode::kUnsupported,
                  fmt::format("expected a text token, found image token {}", r.token),
                  fmt::format("row {}", i));
    if (r.position < 0 || r.position >= config_.max_positions)
      return bad(i, fmt::format("expected a position below {}, found {}", config_.max_positions,
                                r.position));
    const SequenceRef& seq = input.sequences[r.sequence];
    if (seq.blocks.size() <= static_cast<size_t>(r.position / kBlockTokens))
      return bad(i, fmt::format("expected a block for position {}, found {} blocks", r.position,
                                seq.blocks.size()));
    if (static_cast<size_t>(seq.slot) >= input.state[2].count)
      return bad(i, fmt::format("expected a slot below {}, found {}", input.state[2].count,
                                static_cast<uint32_t>(seq.slot)));
    for (const BlockId b : seq.blocks)
      if (static_cast<size_t>(b) >= input.state[0].count)
        return bad(i, fmt::format("expected a block below {}, found {}", input.state[0].count,
                                  static_cast<uint32_t>(b)));
    if (r.layer_begin != 0)
      return bad(i, fmt::format("expected layer_begin 0, found {}", r.layer_begin));
    if (r.layer_end < config_.layers && r.layer_end != last_source)
      return bad(i, fmt::format("expected layer_end {} or at least {}, found {}", last_source,
                                config_.layers, r.layer_end));
    if (continues && r.layer_end < input.rows[i - 1].layer_end && r.layer_end < config_.layers)
      return bad(i, "expected skipped rows before kept ones");
    if (r.needs_logits) {
      ++logit_rows;
      if (r.layer_end < config_.layers)
        return bad(i, "expected the whole model for a row that needs logits");
    }
  }
  if (logit_rows > max_logit_rows_)
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("expected at most {} rows with logits, found {}", max_logit_rows_, logit_rows),
        "step");
  return {};
}

void V41Model::narrow(Step& s, const std::vector<uint32_t>& keep) {
  const auto stream = static_cast<size_t>(config_.streams) * static_cast<size_t>(config_.hidden),
             hc = static_cast<size_t>(config_.streams);
  for (size_t j = 0; j < keep.size(); ++j) {
    const size_t from = keep[j];
    s.row[j] = s.row[from];
    std::copy_n(s.X.begin() + static_cast<std::ptrdiff_t>(from * stream), stream,
                s.X.begin() + static_cast<std::ptrdiff_t>(j * stream));
    std::copy_n(s.pre.begin() + static_cast<std::ptrdiff_t>(from * hc), hc,
                s.pre.begin() + static_cast<std::ptrdiff_t>(j * hc));
  }
  s.row.resize(keep.size());
  s.index_sequences();
}

void V41Model::run_engram(Step& s, size_t which, int layer) {
  const Config& c = config_;
  const EngramWeights& w = *weights_.layers[static_cast<size_t>(layer)].engram;
  const size_t columns = engram_[which].primes.size(), dim = static_cast<size_t>(c.engram_dim),
               grams = static_cast<size_t>(c.engram_ngram);
  const auto compressed = [&](int64_t id) -> int64_t {
    return options_.engram_map.empty() ? id % c.engram_compressed_vocab
                                       : options_.engram_map[static_cast<size_t>(id)];
  };
  std::vector<int64_t> context(grams), rows(columns);
  std::vector<float> v(s.m() * columns * dim), z(s.m() * static_cast<size_t>(w.wkv.n));
  for (size_t j = 0; j < s.m(); ++j) {
    const Row& r = s.in(j);
    const int32_t* history = layout_.history(*s.input, s.sequence(j));
    // Ids of this step come from its rows: the whole step's, not only those still running.
    for (size_t k = 0; k < grams; ++k) {
      const int64_t p = r.position - static_cast<int64_t>(k);
      if (p < 0) {
        context[k] = compressed(c.engram_pad);
      } else if (k <= s.row[j] && s.input->rows[s.row[j] - k].sequence == r.sequence &&
                 s.input->rows[s.row[j] - k].position == p) {
        context[k] = compressed(s.input->rows[s.row[j] - k].token);
      } else {
        context[k] = compressed(history[p % StateLayout::kHistory]);
      }
    }
    engram_rows(engram_[which], c.engram_heads, context, rows);
    for (size_t column = 0; column < columns; ++column) {
      const auto row = static_cast<size_t>(rows[column]);
      dequantize_q8(
          reinterpret_cast<const uint8_t*>(w.table->bytes.data()) + row * dim,
          reinterpret_cast<const uint8_t*>(w.table_scale->bytes.data()) + row * (dim / 32),
          c.engram_dim, v.data() + (j * columns + column) * dim);
    }
  }
  const auto m = static_cast<int64_t>(s.m());
  arithmetic_->linear(w.wkv, v.data(), m, z.data(), Output::kBf16);
  arithmetic_->engram(s.X.data(), z.data(), m, c, w);
}

// Latents, index keys and carries of a kv source. u: [m, hidden].
void V41Model::compress(Step& s, int layer, const float* u) {
  const Config& c = config_;
  const CompressorWeights& w = *weights_.layers[static_cast<size_t>(layer)].compressor;
  const size_t source = static_cast<size_t>(
      std::find(c.kv_sources.begin(), c.kv_sources.end(), layer) - c.kv_sources.begin());
  const int ratio = c.ratios[static_cast<size_t>(layer)];
  const auto d = static_cast<size_t>(c.head_dim), m = s.m();
  std::vector<float> latents, kv, gate;
  std::vector<uint32_t> owner;  // active row that closes each latent
  std::vector<int32_t> first;   // position of the group's first token
  if (ratio == 1) {
    latents.resize(m * d);
    arithmetic_->linear(w.wkv, u, static_cast<int64_t>(m), latents.data(), Output::kBf16);
    for (size_t j = 0; j < m; ++j) {
      owner.push_back(static_cast<uint32_t>(j));
      first.push_back(s.position[j]);
    }
  } else {
    kv.resize(m * d);
    gate.resize(m * d);
    arithmetic_->linear(w.wkv, u, static_cast<int64_t>(m), kv.data(), Output::kF32);
    arithmetic_->linear(*w.wgate, u, static_cast<int64_t>(m), gate.data(), Output::kF32);
    for (size_t j = 0; j < m; ++j) {
      if (s.position[j] % 2 == 0) continue;
      const bool here = j > 0 && s.in(j - 1).sequence == s.in(j).sequence;
      const float* carry =
          here ? nullptr : layout_.carry_row(*s.input, s.sequence(j), source, s.position[j] - 1);
      const float* kvs[2] = {here ? kv.data() + (j - 1) * d : carry, kv.data() + j * d};
      const float* gates[2] = {here ? gate.data() + (j - 1) * d : carry + d, gate.data() + j * d};
      latents.resize(latents.size() + d);
      arithmetic_->pool(kvs, gates, c.head_dim, latents.data() + latents.size() - d);
      owner.push_back(static_cast<uint32_t>(j));
      first.push_back(s.position[j] - 1);
    }
    // Even positions wait for their partner; a later step may also roll back to them.
    for (size_t j = 0; j < m; ++j) {
      float* carry = layout_.carry_row(*s.input, s.sequence(j), source, s.position[j]);
      std::copy_n(kv.data() + j * d, d, carry);
      std::copy_n(gate.data() + j * d, d, carry + d);
    }
  }
  const auto n = static_cast<int64_t>(owner.size());
  if (n == 0) return;
  arithmetic_->rms_norm(latents.data(), n, c.head_dim, w.norm.data(), c.norm_eps, latents.data());
  std::vector<float> keys(owner.size() * static_cast<size_t>(c.index_dim));
  arithmetic_->linear(w.wk, latents.data(), n, keys.data(), Output::kBf16);
  arithmetic_->rms_norm(keys.data(), n, c.index_dim, w.k_norm.data(), c.norm_eps, keys.data());
  arithmetic_->rope(keys.data(), n, 1, c.index_dim, inv_compressed_, first.data(), 1);
  arithmetic_->rope(latents.data(), n, 1, c.head_dim, inv_compressed_, first.data(), 1);
  for (size_t i = 0; i < owner.size(); ++i) {
    const size_t j = owner[i];
    if (s.position[j] < s.in(j).write_global_from) continue;
    const int64_t row = first[i] / ratio;
    auto* index =
        reinterpret_cast<uint8_t*>(layout_.index_row(*s.input, s.sequence(j), source, row));
    auto* global =
        reinterpret_cast<uint8_t*>(layout_.global_row(*s.input, s.sequence(j), source, row));
    quantize_q4idx(keys.data() + i * static_cast<size_t>(c.index_dim), c.index_dim, index,
                   index + c.index_dim / 2);
    quantize_q4kv(latents.data() + i * d, c.head_dim, global, global + c.head_dim / 2);
  }
}

// Top rows (and candidate blocks) of an index source. u: [m, hidden], qr: [m, q_lora].
void V41Model::select(Step& s, int layer, const float* u, const float* qr) {
  const Config& c = config_;
  const IndexerWeights& w = *weights_.layers[static_cast<size_t>(layer)].indexer;
  const int ratio = c.ratios[static_cast<size_t>(layer)];
  const size_t source =
      static_cast<size_t>(std::find(c.kv_sources.begin(), c.kv_sources.end(), c.kv_source(layer)) -
                          c.kv_sources.begin());
  const auto m = static_cast<int64_t>(s.m());
  const size_t heads = static_cast<size_t>(c.index_heads), dim = static_cast<size_t>(c.index_dim);
  std::vector<float> q(s.m() * heads * dim), weights(s.m() * heads), scores;
  arithmetic_->linear(w.wq_b, qr, m, q.data(), Output::kBf16);
  arithmetic_->rope(q.data(), m, c.index_heads, c.index_dim, inv_compressed_, s.position.data(), 1);
  std::vector<uint8_t> codes(dim / 2), scales(dim / 32);
  for (size_t i = 0; i < s.m() * heads; ++i) {
    quantize_q4idx(q.data() + i * dim, c.index_dim, codes.data(), scales.data());
    dequantize_q4idx(codes.data(), scales.data(), c.index_dim, q.data() + i * dim);
  }
  arithmetic_->linear(w.weights_proj, u, m, weights.data(), Output::kBf16);
  const auto scale =
      static_cast<float>(std::pow(c.index_dim, -0.5) * std::pow(c.index_heads, -0.5));
  for (float& v : weights) v *= scale;

  std::vector<const std::byte*> keys;
  for (size_t j = 0; j < s.m(); ++j) {
    std::vector<int32_t>& rows = selected_[s.row[j]];
    const int64_t visible = (s.position[j] + 1) / ratio;
    const bool is_candidate_source = layer == c.candidate_layer,
               restricted = c.candidate_layer >= 0 && layer > c.candidate_layer;
    if (visible <= c.index_topk && !is_candidate_source) {
      // Every visible row fits, whatever its score (candidate blocks always hold at least
      // index_topk rows).
      rows.resize(static_cast<size_t>(visible));
      for (size_t r = 0; r < rows.size(); ++r) rows[r] = static_cast<int32_t>(r);
      continue;
    }
    if (visible == 0) {
      rows.clear();
      candidates_[s.row[j]].clear();
      continue;
    }
    const auto n = static_cast<size_t>(visible);
    keys.resize(n);
    for (size_t r = 0; r < n; ++r)
      keys[r] = layout_.index_row(*s.input, s.sequence(j), source, static_cast<int64_t>(r));
    scores.resize(n);
    arithmetic_->index_scores(q.data() + j * heads * dim, weights.data() + j * heads, keys, c,
                              scores.data());
    if (is_candidate_source) {
      ref::candidate_blocks(scores, c.candidate_block_size, c.candidate_blocks,
                            candidates_[s.row[j]]);
    } else if (restricted) {
      const std::vector<int32_t>& kept = candidates_[s.row[j]];
      size_t next = 0;
      for (size_t r = 0; r < n; ++r) {
        const auto block = static_cast<int32_t>(r / static_cast<size_t>(c.candidate_block_size));
        while (next < kept.size() && kept[next] < block) ++next;
        if (next == kept.size() || kept[next] != block) scores[r] = -INFINITY;
      }
    }
    ref::top_rows(scores, c.index_topk, rows);
  }
}

// y = attention sublayer of the active rows; narrows the step to its kept rows at the last kv
// source. u: [m, hidden] before narrowing.
void V41Model::attention(Step& s, int layer, const float* u, float* y) {
  const Config& c = config_;
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const int ratio = c.ratios[static_cast<size_t>(layer)];
  const std::vector<float>& inv = ratio == 0 ? inv_plain_ : inv_compressed_;
  const size_t d = static_cast<size_t>(c.head_dim), row_bytes = layout_.window_row_bytes();
  const auto m = static_cast<int64_t>(s.m());

  std::vector<float> qr(s.m() * static_cast<size_t>(c.q_lora)),
      q(s.m() * static_cast<size_t>(c.heads) * d);
  arithmetic_->linear(w.wq_a, u, m, qr.data(), Output::kBf16);
  arithmetic_->rms_norm(qr.data(), m, c.q_lora, w.q_norm.data(), c.norm_eps, qr.data());
  arithmetic_->linear(w.wq_b, qr.data(), m, q.data(), Output::kBf16);
  arithmetic_->rope(q.data(), m, c.heads, c.head_dim, inv, s.position.data(), 1);

  const int kv = c.kv_source(layer);
  if (c.is_index_source(layer)) select(s, layer, u, qr.data());
  const size_t source = static_cast<size_t>(
      std::find(c.kv_sources.begin(), c.kv_sources.end(), kv) - c.kv_sources.begin());
  const bool decoder = !c.kv_sources.empty() && layer > c.kv_sources.back();
  std::vector<const std::byte*> window, global;
  std::vector<float> o(s.m() * static_cast<size_t>(c.heads) * d);
  for (size_t j = 0; j < s.m(); ++j) {
    const Row& r = s.in(j);
    const int32_t floor =
        std::max({r.window_floor, decoder ? r.decoder_floor : 0, r.position - c.window + 1, 0});
    const int32_t here = s.first_position[r.sequence], here_row = s.first_row[r.sequence];
    window.clear();
    for (int32_t p = floor; p <= r.position; ++p)
      window.push_back(p >= here
                           ? s.window.data() + static_cast<size_t>(here_row + p - here) * row_bytes
                           : layout_.window_row(*s.input, s.sequence(j), layer, p));
    global.clear();
    if (ratio != 0)
      for (const int32_t row : selected_[s.row[j]])
        global.push_back(layout_.global_row(*s.input, s.sequence(j), source, row));
    arithmetic_->attend(q.data() + j * static_cast<size_t>(c.heads) * d, {window, global}, c,
                        w.sink.data(), o.data() + j * static_cast<size_t>(c.heads) * d);
  }
  arithmetic_->rope(o.data(), m, c.heads, c.head_dim, inv, s.position.data(), -1);

  const size_t group_k = static_cast<size_t>(c.heads / c.o_groups) * d,
               o_lora = static_cast<size_t>(c.o_lora), groups = static_cast<size_t>(c.o_groups);
  std::vector<float> z(s.m() * groups * o_lora), part(s.m() * group_k), out(s.m() * o_lora);
  for (size_t g = 0; g < groups; ++g) {
    for (size_t j = 0; j < s.m(); ++j)
      std::copy_n(o.data() + (j * groups + g) * group_k, group_k, part.data() + j * group_k);
    // wo_a sees its activations as they are (reference form), so it goes by way of the BF16 rule.
    arithmetic_->linear_plain(w.wo_a[g], part.data(), m, out.data(), Output::kBf16);
    for (size_t j = 0; j < s.m(); ++j)
      std::copy_n(out.data() + j * o_lora, o_lora, z.data() + (j * groups + g) * o_lora);
  }
  arithmetic_->linear(w.wo_b, z.data(), m, y, Output::kBf16);
}

Status V41Model::forward(const StepInput& input, std::span<float> logits, Tap* tap) {
  DEEPMINT_CHECK_OK(check(input));
  if (input.rows.empty()) return {};
  const Config& c = config_;
  const size_t hidden = static_cast<size_t>(c.hidden), hc = static_cast<size_t>(c.streams),
               row_bytes = layout_.window_row_bytes();
  selected_.resize(std::max(selected_.size(), input.rows.size()));
  candidates_.resize(selected_.size());

  Step s;
  s.input = &input;
  s.row.resize(input.rows.size());
  for (size_t j = 0; j < s.row.size(); ++j) s.row[j] = static_cast<uint32_t>(j);
  s.index_sequences();
  s.X.resize(s.m() * hc * hidden);
  s.pre.assign(s.m() * hc, 0.0f);
  for (size_t j = 0; j < s.m(); ++j) {
    const auto* e = reinterpret_cast<const uint8_t*>(weights_.embed->bytes.data()) +
                    static_cast<size_t>(input.rows[j].token) * hidden * 2;
    float* x = s.X.data() + j * hc * hidden;
    for (size_t i = 0; i < hidden; ++i) {
      uint16_t b = 0;
      std::memcpy(&b, e + 2 * i, 2);
      x[i] = bf16_to_float(b);
    }
    for (size_t stream = 1; stream < hc; ++stream) std::copy_n(x, hidden, x + stream * hidden);
    s.pre[j * hc] = 1.0f;
  }

  const int last_source = c.kv_sources.empty() ? -1 : c.kv_sources.back();
  std::vector<float> u(s.m() * hidden), y(s.m() * hidden);
  std::vector<float> attn_pre(s.m() * hc), ffn_pre(s.m() * hc), post(s.m() * hc),
      comb(s.m() * hc * hc);
  for (int layer = 0; layer < c.layers && s.m() > 0; ++layer) {
    const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
    for (size_t e = 0; e < engram_.size(); ++e)
      if (engram_[e].layer == layer) run_engram(s, e, layer);

    auto m = static_cast<int64_t>(s.m());
    arithmetic_->collapse(s.X.data(), m, c, s.pre.data(), u.data());
    arithmetic_->rms_norm(u.data(), m, c.hidden, w.attn_norm.data(), c.norm_eps, u.data());

    // Window and global rows of every running row, also of those that go no further.
    const std::vector<float>& inv =
        c.ratios[static_cast<size_t>(layer)] == 0 ? inv_plain_ : inv_compressed_;
    std::vector<float> k(s.m() * static_cast<size_t>(c.head_dim));
    arithmetic_->linear(w.wkv, u.data(), m, k.data(), Output::kBf16);
    arithmetic_->rms_norm(k.data(), m, c.head_dim, w.kv_norm.data(), c.norm_eps, k.data());
    arithmetic_->rope(k.data(), m, 1, c.head_dim, inv, s.position.data(), 1);
    s.window.resize(s.m() * row_bytes);
    for (size_t j = 0; j < s.m(); ++j) {
      auto* codes = reinterpret_cast<uint8_t*>(s.window.data() + j * row_bytes);
      quantize_q8(k.data() + j * static_cast<size_t>(c.head_dim), c.head_dim, codes,
                  codes + c.head_dim);
    }
    if (w.compressor) compress(s, layer, u.data());

    // Rows of this layer, before narrowing: the source of window keys and of the ring update.
    Step before;
    const bool narrows = layer == last_source;
    std::vector<uint32_t> keep;
    if (narrows) {
      for (size_t j = 0; j < s.m(); ++j)
        if (s.in(j).layer_end >= c.layers) keep.push_back(static_cast<uint32_t>(j));
    }
    before.input = s.input;
    before.row = s.row;
    before.index_sequences();
    if (narrows && keep.size() < s.m()) {
      for (size_t j = 0; j < keep.size(); ++j)
        std::copy_n(u.begin() + static_cast<std::ptrdiff_t>(keep[j] * hidden), hidden,
                    u.begin() + static_cast<std::ptrdiff_t>(j * hidden));
      narrow(s, keep);
      // Window keys of this layer still come from all of its rows.
      s.first_row = before.first_row;
      s.first_position = before.first_position;
      m = static_cast<int64_t>(s.m());
    }
    if (m > 0) {
      arithmetic_->mix(s.X.data(), m, c, w.attn_mix, attn_pre.data(), post.data(), comb.data());
      attention(s, layer, u.data(), y.data());
      if (tap != nullptr) tap->sublayer(layer, "attn", {y.data(), s.m() * hidden}, hidden);
      arithmetic_->expand(y.data(), m, c, post.data(), comb.data(), s.X.data());
    }
    // The ring is written after its queries are done: a step may hold more rows than the window.
    for (size_t j = 0; j < before.m(); ++j)
      std::memcpy(layout_.window_row(input, before.sequence(j), layer, before.position[j]),
                  s.window.data() + j * row_bytes, row_bytes);
    if (narrows) s.index_sequences();
    if (m == 0) break;

    arithmetic_->mix(s.X.data(), m, c, w.ffn_mix, ffn_pre.data(), post.data(), comb.data());
    arithmetic_->collapse(s.X.data(), m, c, attn_pre.data(), u.data());
    arithmetic_->rms_norm(u.data(), m, c.hidden, w.ffn_norm.data(), c.norm_eps, u.data());
    arithmetic_->moe(u.data(), m, c, w, y.data());
    if (tap != nullptr) tap->sublayer(layer, "moe", {y.data(), s.m() * hidden}, hidden);
    arithmetic_->expand(y.data(), m, c, post.data(), comb.data(), s.X.data());
    std::copy_n(ffn_pre.begin(), s.m() * hc, s.pre.begin());
  }

  for (const Row& r : input.rows)
    layout_.history(input, input.sequences[r.sequence])[r.position % StateLayout::kHistory] =
        r.token;

  std::vector<uint32_t> wanted;
  for (size_t j = 0; j < s.m(); ++j)
    if (s.in(j).needs_logits) wanted.push_back(static_cast<uint32_t>(j));
  if (wanted.empty()) return {};
  narrow(s, wanted);
  const auto m = static_cast<int64_t>(s.m());
  DEEPMINT_CHECK(logits.size() >= s.m() * static_cast<size_t>(c.vocab));
  arithmetic_->collapse(s.X.data(), m, c, s.pre.data(), u.data());
  arithmetic_->rms_norm(u.data(), m, c.hidden, weights_.norm.data(), c.norm_eps, u.data());
  arithmetic_->linear(weights_.head, u.data(), m, logits.data(), Output::kF32);
  return {};
}

}  // namespace deepmint::v41
