#include "model/deepseek_v41/state.h"

#include <algorithm>
#include <cstring>

#include "core/check.h"

namespace deepmint::v41 {
namespace {
int64_t blocks_of(int32_t positions) { return (positions + kBlockTokens - 1) / kBlockTokens; }
size_t round64(size_t bytes) { return bytes == 0 ? 64 : (bytes + 63) / 64 * 64; }
}  // namespace

StateLayout::StateLayout(const Config& c) {
  const auto d = static_cast<size_t>(c.head_dim);
  window_row_ = d + d / 32;
  global_row_ = d / 2 + d / 16;
  index_row_ = static_cast<size_t>(c.index_dim) / 2 + static_cast<size_t>(c.index_dim) / 32;
  ring_rows_ = c.window + kDraftSlack;
  layers_ = c.layers;
  window_ = c.window;
  head_dim_ = c.head_dim;
  size_t global = 0, index = 0, carry = 0;
  for (const int source : c.kv_sources) {
    const int ratio = c.ratios[static_cast<size_t>(source)];
    const size_t rows = static_cast<size_t>(kBlockTokens / ratio);
    ratios_.push_back(ratio);
    global_offsets_.push_back(global);
    index_offsets_.push_back(index);
    carry_offsets_.push_back(carry);
    global += rows * global_row_;
    index += rows * index_row_;
    if (ratio == 2) {
      carry_sources_.push_back(ratios_.size() - 1);
      carry += kCarryRows * 2 * d * sizeof(float);
    }
  }
  using Family = StatePart::Family;
  parts_ = {StatePart{"global_kv", Family::kGlobal, round64(global)},
            StatePart{"index_keys", Family::kGlobal, round64(index)},
            StatePart{"window_ring", Family::kPrivate,
                      round64(static_cast<size_t>(layers_) * static_cast<size_t>(ring_rows_) *
                              window_row_)},
            StatePart{"carry", Family::kPrivate, round64(carry)},
            StatePart{"history", Family::kPrivate, round64(kHistory * sizeof(int32_t))}};
}

std::byte* StateLayout::block_row(const StepInput& in, const SequenceRef& seq, size_t part,
                                  size_t source, int64_t row, size_t row_bytes,
                                  const std::vector<size_t>& offsets) const {
  const int64_t rows = kBlockTokens / ratios_[source];
  const auto block = static_cast<size_t>(seq.blocks[static_cast<size_t>(row / rows)]);
  DEEPMINT_DCHECK(block < in.state[part].count);
  return in.state[part].base + block * parts_[part].bytes + offsets[source] +
         static_cast<size_t>(row % rows) * row_bytes;
}
std::byte* StateLayout::global_row(const StepInput& in, const SequenceRef& seq, size_t source,
                                   int64_t row) const {
  return block_row(in, seq, 0, source, row, global_row_, global_offsets_);
}
std::byte* StateLayout::index_row(const StepInput& in, const SequenceRef& seq, size_t source,
                                  int64_t row) const {
  return block_row(in, seq, 1, source, row, index_row_, index_offsets_);
}
PagedRows StateLayout::rows_of(const StepInput& in, const SequenceRef& seq, size_t part,
                               size_t source, size_t row_bytes,
                               const std::vector<size_t>& offsets) const {
  return {in.state[part].base + offsets[source], seq.blocks.data(), parts_[part].bytes, row_bytes,
          kBlockTokens / ratios_[source]};
}
PagedRows StateLayout::global_rows(const StepInput& in, const SequenceRef& seq,
                                   size_t source) const {
  return rows_of(in, seq, 0, source, global_row_, global_offsets_);
}
PagedRows StateLayout::index_rows(const StepInput& in, const SequenceRef& seq,
                                  size_t source) const {
  return rows_of(in, seq, 1, source, index_row_, index_offsets_);
}
std::byte* StateLayout::window_row(const StepInput& in, const SequenceRef& seq, int layer,
                                   int64_t position) const {
  const auto row = static_cast<size_t>(layer) * static_cast<size_t>(ring_rows_) +
                   static_cast<size_t>(position % ring_rows_);
  return in.state[2].base + static_cast<size_t>(seq.slot) * parts_[2].bytes + row * window_row_;
}
float* StateLayout::carry_row(const StepInput& in, const SequenceRef& seq, size_t source,
                              int64_t position) const {
  const size_t offset = carry_offsets_[source] + static_cast<size_t>(position % kCarryRows) * 2 *
                                                     static_cast<size_t>(head_dim_) * sizeof(float);
  return reinterpret_cast<float*>(in.state[3].base +
                                  static_cast<size_t>(seq.slot) * parts_[3].bytes + offset);
}
int32_t* StateLayout::history(const StepInput& in, const SequenceRef& seq) const {
  return reinterpret_cast<int32_t*>(in.state[4].base +
                                    static_cast<size_t>(seq.slot) * parts_[4].bytes);
}

void StateLayout::write_history(std::span<const PartMemory> state, const SequenceRef& seq,
                                std::span<const TokenId> tokens, int32_t begin) const {
  const StepInput input{.rows = {}, .sequences = {}, .state = state};
  int32_t* ids = history(input, seq);
  for (int32_t p = std::max(0, begin - kHistory); p < begin; ++p)
    ids[p % kHistory] = tokens[static_cast<size_t>(p)];
}

void StateLayout::clear_unread(std::span<const PartMemory> state, const SequenceRef& seq,
                               int32_t length, Model::PromptTail tail) const {
  const StepInput in{.rows = {}, .sequences = {}, .state = state};
  // Rows of pairs that are not whole are not there yet.
  if (const int64_t end = blocks_of(length) * kBlockTokens; end > length)
    for (size_t source = 0; source < ratios_.size(); ++source)
      for (int64_t row = length / ratios_[source]; row < end / ratios_[source]; ++row) {
        std::memset(global_row(in, seq, source, row), 0, global_row_);
        std::memset(index_row(in, seq, source, row), 0, index_row_);
      }
  for (int layer = 0; layer < layers_; ++layer) {
    // The next row reads its own position and the window - 1 before it. Layers behind the last
    // source have not run where the tail left them out.
    const int64_t left_out = layer > tail.layer_end ? tail.first_full : 0;
    const int64_t first = std::max<int64_t>(left_out, length - window_ + 1);
    for (int64_t p = length; p < length + ring_rows_; ++p)
      if (p - ring_rows_ < first) std::memset(window_row(in, seq, layer, p), 0, window_row_);
  }
  for (const size_t source : carry_sources_)
    for (int64_t p = length; p < length + kCarryRows; ++p)
      if (p - kCarryRows != length - 1 || length % 2 == 0)
        std::memset(carry_row(in, seq, source, p), 0, carry_row_bytes());
  for (int64_t p = length; p < length + kHistory; ++p)
    if (p - kHistory < std::max(0, length - kHistoryKept)) history(in, seq)[p % kHistory] = 0;
}

double StateLayout::global_bytes_per_token() const {
  double bytes = 0;
  for (const int ratio : ratios_) bytes += static_cast<double>(global_row_ + index_row_) / ratio;
  return bytes;
}
size_t StateLayout::window_snapshot_bytes() const {
  return static_cast<size_t>(layers_) * static_cast<size_t>(window_) * window_row_;
}

}  // namespace deepmint::v41
