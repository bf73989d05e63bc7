// From a folder to a V41Model: configuration, files, memory, bindings.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/hash.h"
#include "core/mapped_file.h"
#include "model/deepseek_v41/fast_linear.h"
#include "model/deepseek_v41/model.h"
#include "model/deepseek_v41/not_a_number.h"
#include "model/deepseek_v41/step.h"

namespace deepmint::v41 {
namespace {

constexpr size_t kReadStep = size_t{64} << 20;  // progress and cancellation by the user's eye

}  // namespace

Status check_engram_map(const Config& config, std::span<const int32_t> map,
                        const std::string& where) {
  if (config.engram_layers.empty()) return {};
  if (map.empty()) {
    if (config.engram_modulo_map) return {};
    return fail(
        ErrorCode::kInvalidFile,
        "expected a tokenizer (the Engram map is made from it) or x_engram_map, found neither",
        where);
  }
  if (static_cast<int64_t>(map.size()) != config.vocab)
    return fail(ErrorCode::kInvalidFile,
                fmt::format("expected a tokenizer of {} ids, found {}", config.vocab, map.size()),
                where);
  const auto [low, high] = std::minmax_element(map.begin(), map.end());
  if (*low < 0 || *high + 1 != config.engram_compressed_vocab)
    return fail(ErrorCode::kInvalidFile,
                fmt::format("expected {} compressed ids (engram_compressed_vocab_size), found {}",
                            config.engram_compressed_vocab, *high + 1),
                where);
  return {};
}

Result<std::unique_ptr<V41Model>> V41Model::load(const std::filesystem::path& folder,
                                                 std::unique_ptr<Arithmetic> arithmetic,
                                                 V41Options options) {
  const std::string config_path = (folder / "config.json").string();
  DEEPMINT_TRY(config, read_config(folder));
  DEEPMINT_CHECK_OK(check_engram_map(config, options.engram_map, config_path));
  DEEPMINT_TRY(files, SafetensorsModel::open(folder));
  std::unique_ptr<V41Model> model(
      new V41Model(std::move(config), std::move(files), std::move(arithmetic), std::move(options)));
  auto plan = plan_memory(footprint_of(model->files_), model->options_.experts,
                          model->options_.available_bytes);
  if (!plan) {
    Error error = std::move(plan).error();
    return tl::unexpected<Error>(error.where.empty() ? std::move(error).at(folder.string())
                                                     : std::move(error));
  }
  model->plan_ = *plan;
  auto weights = bind_weights(model->files_, model->config_);
  if (!weights) return tl::unexpected<Error>(std::move(weights).error().at(folder.string()));
  model->weights_ = std::move(*weights);
  if (model->options_.on_plan) model->options_.on_plan(model->plan_);
  if (auto ok = model->make_resident(); !ok)
    return tl::unexpected<Error>(std::move(ok).error().at(folder.string()));
  DEEPMINT_CHECK_OK(model->arithmetic_->prepare(model->config_, model->weights_));
  std::string name = (folder.has_filename() ? folder : folder.parent_path()).filename().string();
  DEEPMINT_TRY(text, MappedFile::open(config_path));
  model->prepare_costs();
  model->describe(std::move(name), text.bytes());
  return model;
}

// Copies what the plan keeps in memory to huge pages (a step that streams matrices of some 100 KiB
// from a file's 4 KiB pages waits for address translation), and tells the kernel how the rest is
// used.
Status V41Model::make_resident() {
  uint64_t done = 0;
  const uint64_t total = std::max<uint64_t>(1, plan_.resident_bytes());
  for (size_t i = 0; i < files_.tensors().size(); ++i) {
    const TensorView& t = files_.tensors()[i];
    const TensorUse use = tensor_use(t.name);
    if (use == TensorUse::kEngramTable) advise_random(t.bytes);
    if (use != TensorUse::kDense && !(use == TensorUse::kExpert && plan_.experts_resident))
      continue;
    kernels::WeightMemory memory(t.bytes.size());
    for (size_t at = 0; at < t.bytes.size(); at += kReadStep) {
      const auto part = t.bytes.subspan(at, std::min(kReadStep, t.bytes.size() - at));
      if (!read_in(part))
        return fail(ErrorCode::kUnavailable, "the file could not be read",
                    fmt::format("tensor \"{}\"", t.name));
      std::memcpy(memory.data() + at, part.data(), part.size());
      advise_done(part);
      done += part.size();
      if (options_.progress)
        options_.progress(static_cast<double>(done) / static_cast<double>(total));
    }
    files_.use_copy(i, {memory.data(), memory.size()});
    resident_.push_back(std::move(memory));
    if (t.dtype == DType::kF8E8M0) DEEPMINT_CHECK_OK(check_numbers(t));
  }
  // Views of parts of tensors follow.
  DEEPMINT_TRY(weights, bind_weights(files_, config_));
  weights_ = std::move(weights);
  if (plan_.experts_resident) DEEPMINT_CHECK_OK(check_experts(weights_));
  reader_ = std::make_unique<DiskReader>(config_, weights_, !plan_.experts_resident);
  set_hints(reader_.get());
  return {};
}

void V41Model::describe(std::string name, std::span<const std::byte> config_bytes) {
  const Config& c = config_;
  info_.architecture = "deepseek_v41";
  info_.name = std::move(name);
  info_.vocab_size = c.vocab;
  info_.n_layers = c.layers;
  info_.hidden = c.hidden;
  info_.context_tokens = static_cast<int32_t>(std::min<int64_t>(c.max_positions, INT32_MAX));
  info_.weight_bytes = plan_.footprint.dense + plan_.footprint.experts;

  // A one-row step: all dense weights but the embedding, of which it reads one row; the chosen
  // experts; a row per Engram column.
  const uint64_t embedding = weights_.embed->bytes.size();
  info_.weight_bytes_per_token = plan_.footprint.dense - embedding +
                                 embedding / static_cast<uint64_t>(c.vocab) +
                                 plan_.footprint.experts / static_cast<uint64_t>(c.experts) *
                                     static_cast<uint64_t>(c.experts_per_token);
  for (const EngramLayer& e : engram_)
    info_.weight_bytes_per_token +=
        e.primes.size() * static_cast<uint64_t>(c.engram_dim + c.engram_dim / 32);

  info_.arithmetic = arithmetic_->roof();
  for (int i = 0; i < c.layers; ++i) {
    const LayerCost& cost = costs_[static_cast<size_t>(i)];
    const int ratio = c.ratios[static_cast<size_t>(i)];
    info_.macs_per_row += cost.projection.macs + cost.rest.macs + cost.engram.macs +
                          static_cast<uint64_t>(c.experts_per_token) * expert_cost_.macs;
    if (c.is_index_source(i))
      info_.macs_per_row_and_position += static_cast<uint64_t>(c.index_heads) *
                                         static_cast<uint64_t>(c.index_dim) /
                                         static_cast<uint64_t>(ratio);
    // Scores and values over the window and the selected rows: bounded, so counted per row.
    info_.macs_per_row += 2 * static_cast<uint64_t>(c.heads) * static_cast<uint64_t>(c.head_dim) *
                          static_cast<uint64_t>(c.window + (ratio > 0 ? c.index_topk : 0));
  }
  info_.macs_per_logit_row = head_cost_.macs;

  // Names, shapes and the first bytes of every dense tensor, and of each layer's first expert:
  // cheap on a cold disk, and different for every checkpoint that was trained or written anew.
  uint64_t fingerprint = xxh3_64(config_bytes);
  for (const TensorView& t : files_.tensors()) {
    if (tensor_use(t.name) == TensorUse::kOther) continue;
    fingerprint = xxh3_64(as_byte_span(t.name), fingerprint);
    if (tensor_use(t.name) != TensorUse::kDense && t.name.find(".experts.0.") == std::string::npos)
      continue;
    fingerprint = xxh3_64(t.bytes.first(std::min<size_t>(t.bytes.size(), 64)), fingerprint);
  }
  for (const int32_t id : options_.engram_map)
    fingerprint = (fingerprint ^ static_cast<uint32_t>(id)) * 0x100000001B3ull;
  info_.fingerprint = fingerprint;
}

}  // namespace deepmint::v41
