#include "model/dense/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <utility>

#include "core/check.h"
#include "kernels/rowwise.h"

namespace deepmint::dense {
namespace {

using kernels::Activations;
using kernels::ActivationType;

// Up to this many rows the work between two products is done by the caller: handing it to the
// threads would cost more.
constexpr size_t kSerialRows = 3;
tl::unexpected<Error> bad_row(size_t row, std::string_view field, std::string message) {
  return fail(ErrorCode::kInvalidArgument, std::move(message),
              fmt::format("row {} {}", row, field));
}

std::string_view arithmetic_of(const Linear& linear) {
  switch (kernels::activation_type(linear.parts.front().w.dtype())) {
    case ActivationType::kInt8Block32:
      return "int8";
    case ActivationType::kBF16:
      return "bf16";
    case ActivationType::kF32:
      return "f32";
  }
  return "f32";
}

}  // namespace

uint32_t DenseModel::types_of(const Linear& linear) {
  uint32_t types = 0;
  for (const Linear::Part& p : linear.parts)
    types |= 1u << static_cast<uint32_t>(kernels::activation_type(p.w.dtype()));
  return types;
}

void DenseModel::fetch(const Linear& linear, int64_t tile) {
  for (const Linear::Part& p : linear.parts) {
    if (tile < p.w.tiles()) return kernels::fetch_tile(p.w, tile);
    tile -= p.w.tiles();
  }
}

DenseModel::DenseModel(Config config, Weights weights, std::shared_ptr<ThreadPool> pool)
    : config_(std::move(config)), weights_(std::move(weights)), pool_(std::move(pool)) {
  q_scale_ = 1.0f / std::sqrt(static_cast<float>(config_.head_dim));
  tile_bytes_ = static_cast<size_t>(kernels::kv_tile_bytes(config_.head_dim));
  types_ = types_of(weights_.head);
  for (const Layer& l : weights_.layers)
    types_ |= types_of(l.qkv) | types_of(l.output) | types_of(l.gate_up) | types_of(l.down);
  part_ = {.name = "kv",
           .family = StatePart::Family::kGlobal,
           .bytes = size_of(config_.layers, config_.kv_heads) * tile_bytes_};
  const int64_t row_macs = config_.hidden * (2 * config_.q_width() + 2 * config_.kv_width()) +
                           3 * int64_t{config_.hidden} * config_.ffn;
  info_ = {.architecture = config_.architecture,
           .name = config_.name,
           .vocab_size = config_.vocab,
           .n_layers = config_.layers,
           .hidden = config_.hidden,
           .context_tokens = config_.context,
           .weight_bytes = weights_.bytes,
           .weight_bytes_per_token = weights_.bytes,
           .macs_per_row = size_of(config_.layers, row_macs),
           .macs_per_logit_row = size_of(config_.hidden, config_.vocab),
           .macs_per_row_and_position = size_of(config_.layers, 2 * config_.q_width()),
           .arithmetic = arithmetic_of(weights_.layers.front().gate_up),
           .fingerprint = weights_.fingerprint};
}

Status DenseModel::reserve(size_t max_rows, size_t max_logit_rows) {
  max_logit_rows = std::min(max_logit_rows, max_rows);
  if (max_rows <= max_rows_ && max_logit_rows <= max_logits_) return {};
  max_rows = std::max(max_rows, max_rows_);
  max_logit_rows = std::max(max_logit_rows, max_logits_);
  if (max_rows > size_t{1} << 20)
    return fail(ErrorCode::kTooLarge,
                fmt::format("expected at most {} rows in a step, found {}", 1 << 20, max_rows));
  const Config& c = config_;
  const auto rows = static_cast<int64_t>(max_rows);
  try {
    x_ = AlignedBuffer<float>(size_of(rows, c.hidden));
    kept_ = AlignedBuffer<float>(size_of(static_cast<int64_t>(max_logit_rows), c.hidden));
    normed_ = AlignedBuffer<float>(size_of(rows, c.hidden));
    qkv_ = AlignedBuffer<float>(size_of(rows, c.q_width() + 2 * c.kv_width()));
    attended_ = AlignedBuffer<float>(size_of(rows, c.q_width()));
    gate_up_ = AlignedBuffer<float>(size_of(rows, 2 * int64_t{c.ffn}));
    angles_ = AlignedBuffer<float>(size_of(rows, c.rope.rotary));
    scratch_ =
        AlignedBuffer<float>(size_of(pool_->size(), kernels::attention_scratch_floats(c.head_dim)));
    const int64_t split_units = 2 * int64_t{pool_->size()};
    const int64_t partial = kernels::partial_floats(c.group(), c.head_dim);
    partials_ = AlignedBuffer<float>(size_of(split_units * kWaveTiles, partial));
    states_ = AlignedBuffer<float>(size_of(split_units, partial));
    const int64_t widest = std::max({int64_t{c.hidden}, int64_t{c.ffn}, c.q_width()});
    for (uint32_t t = 0; t < kActivationTypes; ++t)
      if ((types_ >> t & 1) != 0) {
        activations_[t].reserve(rows, widest);
        given_[t].reserve(std::min<int64_t>(rows, kSharedRows), c.q_width());
        fed_[t].reserve(std::min<int64_t>(rows, kSharedRows), c.ffn);
      }
    const auto own = static_cast<int64_t>(std::min(max_rows, kOwnRows));
    // attend_tiles is for fewer units than split_units; a row has at least one.
    const int64_t split_rows = std::min(rows, split_units);
    desks_.resize(static_cast<size_t>(pool_->size()));
    for (Desk& d : desks_) {
      d.normed = AlignedBuffer<float>(size_of(own, c.hidden));
      d.gated = AlignedBuffer<float>(size_of(own, c.ffn));
      d.qkv = AlignedBuffer<float>(size_of(split_rows, c.q_width() + 2 * c.kv_width()));
      d.attended = AlignedBuffer<float>(size_of(split_rows, c.q_width()));
      d.states = AlignedBuffer<float>(size_of(split_units, partial));
      for (uint32_t t = 0; t < kActivationTypes; ++t)
        if ((types_ >> t & 1) != 0) d.inputs[t].reserve(own, widest);
    }
    const int64_t most_tiles = (int64_t{c.context} + kBlockTokens - 1) / kBlockTokens;
    tile_items_.reserve(size_of(split_units, most_tiles));
    tile_cuts_.reserve(
        size_of((most_tiles + kWaveTiles - 1) / kWaveTiles, int64_t{pool_->size()} + 1));
    runs_.reserve(max_rows);
    units_.reserve(max_rows * static_cast<size_t>(c.kv_heads));
    logit_rows_.reserve(max_rows);
    seen_.resize(max_rows);
  } catch (const std::bad_alloc&) {
    max_rows_ = max_logits_ = 0;
    return fail(ErrorCode::kResourceExhausted,
                fmt::format("scratch for steps of {} rows does not fit in memory", max_rows));
  }
  max_rows_ = max_rows;
  max_logits_ = max_logit_rows;
  return {};
}

// --- checks --------------------------------------------------------------------------------------

// Checks the whole step and fills runs_ and logit_rows_. Touches no state.
Status DenseModel::plan(const StepInput& in, size_t n_logits) {
  runs_.clear();
  logit_rows_.clear();
  const auto bad = [](std::string message) {
    return fail(ErrorCode::kInvalidArgument, std::move(message));
  };
  if (in.rows.size() > max_rows_)
    return bad(
        fmt::format("expected at most the {} rows set aside, found {}", max_rows_, in.rows.size()));
  if (in.sequences.size() > max_rows_)
    return bad(
        fmt::format("expected at most {} sequences, found {}", max_rows_, in.sequences.size()));
  if (in.state.size() != 1 || (in.state[0].base == nullptr && in.state[0].count > 0) ||
      reinterpret_cast<uintptr_t>(in.state[0].base) % kCacheLine != 0)
    return bad("expected one state part of 64-byte aligned memory");
  std::fill_n(seen_.begin(), in.sequences.size(), uint8_t{0});
  for (size_t i = 0; i < in.rows.size(); ++i) {
    const Row& row = in.rows[i];
    if (row.token < 0 || row.token >= config_.vocab)
      return bad_row(
          i, "token",
          fmt::format("expected an id from 0 to {}, found {}", config_.vocab - 1, row.token));
    if (row.position < 0 || row.position >= config_.context)
      return bad_row(i, "position",
                     fmt::format("expected 0 to {}, found {}", config_.context - 1, row.position));
    if (row.sequence >= in.sequences.size())
      return bad_row(i, "sequence",
                     fmt::format("expected below {}, found {}", in.sequences.size(), row.sequence));
    if (row.window_floor != 0)
      return bad_row(
          i, "window_floor",
          fmt::format("expected 0: a dense model has no window, found {}", row.window_floor));
    if (row.layer_begin != 0 || row.layer_end < config_.layers)
      return bad_row(i, "layers",
                     fmt::format("expected all {} layers, found {} to {}", config_.layers,
                                 row.layer_begin, row.layer_end));
    if (row.image_row != -1)
      return bad_row(i, "image_row",
                     fmt::format("expected -1: a dense model sees no images, "
                                 "found {}",
                                 row.image_row));
    if (row.needs_logits) logit_rows_.push_back(static_cast<uint32_t>(i));
    if (i > 0 && in.rows[i - 1].sequence == row.sequence) {
      if (row.position != in.rows[i - 1].position + 1)
        return bad_row(i, "position",
                       fmt::format("expected {} after the row before, found {}",
                                   in.rows[i - 1].position + 1, row.position));
      ++runs_.back().rows;
      continue;
    }
    if (seen_[row.sequence] != 0)
      return bad_row(i, "sequence",
                     fmt::format("expected the rows of sequence {} together", row.sequence));
    seen_[row.sequence] = 1;
    runs_.push_back({i, 1, row.position, in.sequences[row.sequence].blocks.data()});
  }
  for (const Run& run : runs_) {
    const auto& blocks = in.sequences[in.rows[run.first_row].sequence].blocks;
    const size_t needed = (static_cast<size_t>(run.position) + run.rows - 1) / kBlockTokens + 1;
    if (blocks.size() < needed)
      return bad_row(run.first_row, "blocks",
                     fmt::format("expected {} blocks for {} positions, found {}", needed,
                                 static_cast<size_t>(run.position) + run.rows, blocks.size()));
    for (size_t b = 0; b < needed; ++b)
      if (static_cast<size_t>(blocks[b]) >= in.state[0].count)
        return bad_row(run.first_row, "blocks",
                       fmt::format("expected block {} below {}, found {}", b, in.state[0].count,
                                   static_cast<size_t>(blocks[b])));
  }
  if (logit_rows_.size() > max_logits_)
    return bad(fmt::format("expected at most the {} rows with logits set aside, found {}",
                           max_logits_, logit_rows_.size()));
  if (n_logits != logit_rows_.size() * static_cast<size_t>(config_.vocab))
    return bad(fmt::format("expected room for {} rows of {} logits, found {} floats",
                           logit_rows_.size(), config_.vocab, n_logits));
  return {};
}

// --- one step ------------------------------------------------------------------------------------

template <class Body>
void DenseModel::for_rows(size_t rows, Body&& body) {
  if (rows <= kSerialRows) {
    for (size_t row = 0; row < rows; ++row) body(row, 0);
    return;
  }
  pool_->run(rows, [&](size_t begin, size_t end, int worker) {
    for (size_t row = begin; row < end; ++row) body(row, worker);
  });
}

// Gives each activation form that `next` takes the rows that body leaves in x: [rows, next.k], rows
// `stride` apart. One hand-over to the threads for both.
template <class Body>
void DenseModel::prepare(const float* x, size_t rows, int64_t stride, const Linear& next,
                         Body&& body) {
  const uint32_t types = types_of(next);
  for (uint32_t t = 0; t < kActivationTypes; ++t)
    if ((types >> t & 1) != 0)
      activations_[t].prepare(static_cast<ActivationType>(t), static_cast<int64_t>(rows), next.k);
  for_rows(rows, [&](size_t row, int) {
    body(row);
    const auto r = static_cast<int64_t>(row);
    for (uint32_t t = 0; t < kActivationTypes; ++t)
      if ((types >> t & 1) != 0) activations_[t].convert_rows(x, stride, r, r + 1);
  });
}

void DenseModel::normalize(const float* x, size_t rows, const AlignedBuffer<float>& weight,
                           const Linear& next) {
  const auto n = static_cast<size_t>(config_.hidden);
  prepare(normed_.data(), rows, config_.hidden, next, [&](size_t row) {
    kernels::rms_norm(x + row * n, weight.data(), config_.hidden, config_.norm_eps,
                      normed_.data() + row * n);
  });
}

// Tiles [begin, end) of a product, on the calling thread. y as in apply.
void DenseModel::multiply(const Linear& linear, int64_t begin, int64_t end,
                          const Activations* inputs, float* y, int64_t stride, bool add) {
  int64_t at = begin, left = end - begin;
  for (const Linear::Part& p : linear.parts) {
    const int64_t n = std::min(left, p.w.tiles() - at);
    if (n > 0) {
      kernels::linear_tiles(p.w, inputs[static_cast<size_t>(kernels::activation_type(p.w.dtype()))],
                            y + p.first_output, stride, at, at + n, add);
      left -= n;
      at = 0;
    } else {
      at -= p.w.tiles();
    }
    if (left == 0) return;
  }
}

// To be called by a thread at the end of its work: brings the start of its share of the product
// that follows on its way, so that the memory works while threads wait for each other. A hint: a
// wrong guess costs time alone.
void DenseModel::fetch_share(const Linear& next, int worker) const {
  fetch(next, next.tiles() * worker / pool_->size());
}

// y: [rows of `inputs`, linear.n], rows `stride` apart; inputs by ActivationType. after(worker) is
// called on each thread that had a share.
template <class After>
void DenseModel::apply(const Linear& linear, size_t rows, const Activations* inputs, float* y,
                       int64_t stride, bool add, After&& after) {
  const int64_t tiles = linear.tiles();
  // Few rows: the time is that of reading the weights, which likes one long stream for each thread.
  // Many rows: small shares, so that a thread that the machine slows down takes fewer of them.
  const bool shared = rows >= kSharedRows;
  const int64_t grain = shared ? std::max<int64_t>(1, tiles / (8 * int64_t{pool_->size()})) : 0;
  pool_->run(
      static_cast<size_t>(tiles),
      [&](size_t begin, size_t end, int worker) {
        multiply(linear, static_cast<int64_t>(begin), static_cast<int64_t>(end), inputs, y, stride,
                 add);
        if (!shared) after(worker);
      },
      static_cast<size_t>(grain));
}

// Gate tiles [begin, end), not none, the up tiles that belong to them, SwiGLU, and that part of the
// down product's inputs: fed_, which is prepared.
void DenseModel::gate_up(const Layer& l, const Activations* inputs, size_t rows, int64_t begin,
                         int64_t end) {
  const int64_t up = config_.ffn / kernels::kTileOutputs;
  const int64_t stride = l.gate_up.n;
  float* y = gate_up_.data();
  multiply(l.gate_up, begin, end - 1, inputs, y, stride, false);
  fetch(l.gate_up, up + begin);
  multiply(l.gate_up, end - 1, end, inputs, y, stride, false);
  multiply(l.gate_up, up + begin, up + end, inputs, y, stride, false);
  const uint32_t types = types_of(l.down);
  const int64_t at = begin * kernels::kTileOutputs, to = end * kernels::kTileOutputs;
  for (size_t row = 0; row < rows; ++row) {
    float* gate = y + static_cast<int64_t>(row) * stride;
    kernels::swiglu(gate + at, gate + config_.ffn + at, to - at, gate + at);
    for (uint32_t t = 0; t < kActivationTypes; ++t)
      if ((types >> t & 1) != 0) fed_[t].convert_part(gate, static_cast<int64_t>(row), at, to);
  }
}

// The same for all tiles in one hand-over to the threads. True when the shape allows it.
bool DenseModel::gate_up_fused(const Layer& l, size_t rows) {
  const int64_t ffn = config_.ffn;
  if (ffn % kFusedOutputs != 0 || rows >= kSharedRows) return false;
  const uint32_t types = types_of(l.down);
  for (uint32_t t = 0; t < kActivationTypes; ++t)
    if ((types >> t & 1) != 0)
      fed_[t].prepare(static_cast<ActivationType>(t), static_cast<int64_t>(rows), ffn);
  pool_->run(static_cast<size_t>(ffn / kFusedOutputs), [&](size_t first, size_t last, int worker) {
    const auto begin = static_cast<int64_t>(first) * kFusedTiles,
               end = static_cast<int64_t>(last) * kFusedTiles;
    gate_up(l, activations_, rows, begin, end);
    fetch_share(l.down, worker);
  });
  return true;
}

void DenseModel::embed(const StepInput& in, size_t row) {
  const size_t bytes = weights_.embedding.bytes.size() / static_cast<size_t>(config_.vocab);
  const auto token = static_cast<size_t>(in.rows[row].token);
  kernels::dequantize_row(weights_.embedding.dtype, weights_.embedding.bytes.data() + token * bytes,
                          config_.hidden, x_.data() + row * static_cast<size_t>(config_.hidden));
}

// The angles of a row's rotary embedding.
void DenseModel::place(const StepInput& in, size_t row) {
  weights_.rope.fill(in.rows[row].position,
                     angles_.data() + row * static_cast<size_t>(config_.rope.rotary));
}

// Where K and V of a row go.
std::byte* DenseModel::tile_of(int index, const StepInput& in, const Row& row,
                               int32_t kv_head) const {
  const BlockId block =
      in.sequences[row.sequence].blocks[static_cast<size_t>(row.position / kBlockTokens)];
  return in.state[0].base + static_cast<size_t>(block) * part_.bytes +
         (size_of(index, config_.kv_heads) + static_cast<size_t>(kv_head)) * tile_bytes_;
}

void DenseModel::clear_unread(const SequenceRef& sequence, std::span<const PartMemory> state,
                              int32_t length, PromptTail) const {
  const int32_t slot = length % kBlockTokens;
  if (slot == 0) return;
  std::byte* block =
      state[0].base +
      static_cast<size_t>(sequence.blocks[static_cast<size_t>(length) / kBlockTokens]) *
          part_.bytes;
  for (size_t tile = 0; tile < size_of(config_.layers, config_.kv_heads); ++tile)
    kernels::kv_clear(block + tile * tile_bytes_, config_.head_dim, slot);
}

// The heads that share K/V head `kv_head` of row i, qkv: bias, Q/K norm and rotation in place.
void DenseModel::finish_heads(int index, size_t i, int32_t kv_head, float* qkv) const {
  const Config& c = config_;
  const Layer& l = weights_.layers[static_cast<size_t>(index)];
  const int64_t dim = c.head_dim, q_at = int64_t{kv_head} * c.group() * dim;
  const int64_t k_at = c.q_width() + kv_head * dim, v_at = k_at + c.kv_width();
  const float* angles = angles_.data() + i * static_cast<size_t>(c.rope.rotary);
  if (l.qkv_bias.size() != 0) {
    kernels::add(l.qkv_bias.data() + q_at, c.group() * dim, qkv + q_at);
    kernels::add(l.qkv_bias.data() + k_at, dim, qkv + k_at);
    kernels::add(l.qkv_bias.data() + v_at, dim, qkv + v_at);
  }
  const auto turn = [&](float* x, const AlignedBuffer<float>& norm) {
    if (norm.size() != 0) kernels::rms_norm(x, norm.data(), dim, c.norm_eps, x);
    kernels::rope(x, angles, c.rope.rotary, kernels::RopePairing::kHalves);
  };
  for (int32_t head = 0; head < c.group(); ++head) turn(qkv + q_at + head * dim, l.q_norm);
  kernels::scale(q_scale_, c.group() * dim, qkv + q_at);
  turn(qkv + k_at, l.k_norm);
}

// K and V of such a head to their page.
void DenseModel::store_heads(int index, const StepInput& in, size_t i, int32_t kv_head,
                             const float* qkv) const {
  const Row& row = in.rows[i];
  if (row.position < row.write_global_from) return;
  const int64_t dim = config_.head_dim, k_at = config_.q_width() + kv_head * dim;
  kernels::kv_write(tile_of(index, in, row, kv_head), dim, row.position % kBlockTokens, qkv + k_at,
                    qkv + k_at + config_.kv_width());
}

kernels::AttentionJob DenseModel::job_of(const AttentionUnit& u, const std::byte* layer_base) {
  const int64_t width = config_.q_width() + 2 * config_.kv_width();
  const int64_t head = int64_t{u.kv_head} * config_.group() * config_.head_dim;
  return {
      .q = qkv_.data() + u.q_row * width + head,
      .q_stride = width,
      .out = attended_.data() + u.out_row * config_.q_width() + head,
      .out_stride = config_.q_width(),
      .rows = u.rows,
      .group = config_.group(),
      .head_dim = config_.head_dim,
      .position = u.position,
      .pages = {layer_base + static_cast<size_t>(u.kv_head) * tile_bytes_, part_.bytes, u.blocks}};
}

// Lists the attention work of a layer: for every row of the step, or for the rows with logits only.
void DenseModel::list_units(bool keep_all) {
  // About 48 queries fill the register blocks and keep scores and results in the first-level cache.
  const auto most = static_cast<size_t>(std::max(1, 48 / config_.group()));
  units_.clear();
  const auto add_rows = [&](const Run& run, size_t first, size_t count, size_t out_row) {
    for (size_t done = 0; done < count; done += most)
      for (int32_t head = 0; head < config_.kv_heads; ++head)
        units_.push_back(
            {static_cast<uint32_t>(first + done), static_cast<uint32_t>(out_row + done),
             static_cast<uint32_t>(std::min(most, count - done)),
             run.position + static_cast<int32_t>(first + done - run.first_row), head, run.blocks});
  };
  size_t out_row = 0;
  for (const Run& run : runs_) {
    if (keep_all) {
      add_rows(run, run.first_row, run.rows, run.first_row);
      continue;
    }
    for (; out_row < logit_rows_.size() && logit_rows_[out_row] < run.first_row + run.rows;
         ++out_row)
      add_rows(run, logit_rows_[out_row], 1, out_row);
  }
}

// From qkv_ to attended_, by way of the state.
void DenseModel::attention(int index, const StepInput& in, bool keep_all) {
  const size_t rows = in.rows.size();
  const bool all_single = runs_.size() == rows;
  const auto finish = [&](size_t row, int32_t head) {
    float* qkv =
        qkv_.data() + row * static_cast<size_t>(config_.q_width() + 2 * config_.kv_width());
    finish_heads(index, row, head, qkv);
    store_heads(index, in, row, head, qkv);
  };
  list_units(keep_all);
  const bool few = units_.size() < 2 * static_cast<size_t>(pool_->size());
  // One row per sequence: a unit reads no K/V that another unit of this step writes.
  const bool fused = all_single && keep_all && !few;
  if (!fused)
    for_rows(rows, [&](size_t row, int) {
      for (int32_t head = 0; head < config_.kv_heads; ++head) finish(row, head);
    });
  if (units_.empty()) return;
  if (few && (all_single || !keep_all)) {
    attention_in_tiles(index, in);
    return;
  }
  const std::byte* layer_base = in.state[0].base + size_of(index, config_.kv_heads) * tile_bytes_;
  const auto scratch = static_cast<size_t>(kernels::attention_scratch_floats(config_.head_dim));
  pool_->run(
      units_.size(),
      [&](size_t begin, size_t end, int worker) {
        for (size_t u = begin; u < end; ++u) {
          if (fused) finish(units_[u].q_row, units_[u].kv_head);
          kernels::attend(job_of(units_[u], layer_base),
                          scratch_.data() + static_cast<size_t>(worker) * scratch);
        }
      },
      1);
}

// Few rows: threads share the tiles of each, in waves that bound the memory for partial results.
void DenseModel::attention_in_tiles(int index, const StepInput& in) {
  const std::byte* layer_base = in.state[0].base + size_of(index, config_.kv_heads) * tile_bytes_;
  const auto scratch = static_cast<size_t>(kernels::attention_scratch_floats(config_.head_dim));
  const int64_t partial = kernels::partial_floats(config_.group(), config_.head_dim);
  int64_t longest = 0;
  for (const AttentionUnit& u : units_) longest = std::max(longest, u.tiles());
  for (int64_t wave = 0; wave < longest; wave += kWaveTiles) {
    const int64_t tiles = std::min(kWaveTiles, longest - wave);
    // The latest tiles first: they hold what the caller, worker 0, has just written. Of one tile
    // all heads in turn: they lie one behind the other.
    const size_t units = units_.size();
    const auto tile_of = [&](size_t item) {
      return wave + tiles - 1 - static_cast<int64_t>(item / units);
    };
    pool_->run(units * static_cast<size_t>(tiles), [&](size_t begin, size_t end, int worker) {
      for (size_t item = begin; item < end; ++item) {
        const int64_t tile = tile_of(item);
        const size_t u = item % units;
        if (tile >= units_[u].tiles()) continue;
        const std::byte* next = nullptr;
        if (item + 1 < end && tile_of(item + 1) < units_[(item + 1) % units].tiles()) {
          const kernels::KvPages pages = job_of(units_[(item + 1) % units], layer_base).pages;
          next =
              pages.base + static_cast<size_t>(pages.blocks[tile_of(item + 1)]) * pages.block_bytes;
        }
        kernels::attend_partials(
            job_of(units_[u], layer_base), tile, tile + 1,
            partials_.data() + (static_cast<int64_t>(u) * kWaveTiles + tile - wave) * partial,
            scratch_.data() + static_cast<size_t>(worker) * scratch, next);
      }
      fetch_share(weights_.layers[static_cast<size_t>(index)].output, worker);
    });
    const auto combine = [&](size_t u) {
      const int64_t end = std::min(wave + tiles, units_[u].tiles());
      if (wave < end)
        kernels::attend_combine(job_of(units_[u], layer_base), wave, end,
                                partials_.data() + static_cast<int64_t>(u) * kWaveTiles * partial,
                                states_.data() + static_cast<int64_t>(u) * partial);
    };
    if (tiles < kSerialTiles) {
      for (size_t u = 0; u < units_.size(); ++u) combine(u);
    } else {
      pool_->run(units_.size(), [&](size_t begin, size_t, int) { combine(begin); }, 1);
    }
  }
}

Status DenseModel::forward(const StepInput& in, std::span<float> logits, Tap* tap) {
  DEEPMINT_CHECK_OK(plan(in, logits.size()));
  const Config& c = config_;
  const size_t rows = in.rows.size();
  if (rows == 0) return {};
  const auto hidden = static_cast<size_t>(c.hidden);
  if (decodes(in)) return decode(in, logits, tap), Status{};
  for_rows(rows, [&](size_t row, int) {
    embed(in, row);
    place(in, row);
  });
  if (tap != nullptr) tap->sublayer(-1, "embed", {x_.data(), rows * hidden}, hidden);
  for (int index = 0; index < c.layers; ++index) {
    const Layer& l = weights_.layers[static_cast<size_t>(index)];
    normalize(x_.data(), rows, l.attn_norm, l.qkv);
    // The caller stores K and V of few rows alone: their lines come while the product is on.
    if (rows <= kSerialRows)
      for (const Row& row : in.rows)
        for (int32_t head = 0; head < c.kv_heads; ++head)
          kernels::kv_fetch(tile_of(index, in, row, head), c.head_dim, row.position % kBlockTokens);
    apply(l.qkv, rows, activations_, qkv_.data(), l.qkv.n, false, [](int) {});
    // After the last K/V only rows with logits go on. A tap sees every row: nothing is skipped.
    const bool keep_all = index + 1 < c.layers || tap != nullptr || logit_rows_.size() == rows;
    const size_t kept = keep_all ? rows : logit_rows_.size();
    attention(index, in, keep_all);
    if (kept == 0) return {};
    float* x = x_.data();
    if (!keep_all) {
      x = kept_.data();
      for (size_t i = 0; i < kept; ++i)
        std::memcpy(x + i * hidden, x_.data() + logit_rows_[i] * hidden, hidden * sizeof(float));
    }
    prepare(attended_.data(), kept, c.q_width(), l.output, [](size_t) {});
    apply(l.output, kept, activations_, x, c.hidden, true, [&](int worker) {
      // As gate_up_fused shares it out: the gate half of the tiles.
      const int64_t units = c.ffn / kFusedOutputs;
      fetch(l.gate_up, units * worker / pool_->size() * kFusedTiles);
    });
    if (tap != nullptr) tap->sublayer(index, "attn", {x, kept * hidden}, hidden);

    normalize(x, kept, l.ffn_norm, l.gate_up);
    const bool fused = gate_up_fused(l, kept);
    if (!fused) {
      apply(l.gate_up, kept, activations_, gate_up_.data(), l.gate_up.n, false, [](int) {});
      prepare(gate_up_.data(), kept, l.gate_up.n, l.down, [&](size_t row) {
        float* gate = gate_up_.data() + row * static_cast<size_t>(l.gate_up.n);
        kernels::swiglu(gate, gate + c.ffn, c.ffn, gate);
      });
    }
    const bool last = index + 1 == c.layers;
    const Linear& next = last ? weights_.head : weights_.layers[static_cast<size_t>(index) + 1].qkv;
    apply(l.down, kept, fused ? fed_ : activations_, x, c.hidden, true,
          [&](int worker) { fetch_share(next, worker); });
    if (tap != nullptr) tap->sublayer(index, "mlp", {x, kept * hidden}, hidden);
  }
  if (logit_rows_.empty()) return {};
  // Rows with logits stand in kept_ by now, or all rows are in x_.
  const bool in_kept = tap == nullptr && logit_rows_.size() != rows;
  if (!in_kept)
    for (size_t i = 0; i < logit_rows_.size(); ++i)
      std::memcpy(kept_.data() + i * hidden, x_.data() + logit_rows_[i] * hidden,
                  hidden * sizeof(float));
  normalize(kept_.data(), logit_rows_.size(), weights_.final_norm, weights_.head);
  if (tap != nullptr)
    tap->sublayer(c.layers, "norm", {normed_.data(), logit_rows_.size() * hidden}, hidden);
  apply(weights_.head, logit_rows_.size(), activations_, logits.data(), c.vocab, false, [](int) {});
  return {};
}

}  // namespace deepmint::dense
