// Where the resumable state of a V4.1 sequence lies in the cache's memory (spec model.md 10.1,
// dspark.md 7).
//
//   part 0  global_kv    per block of 64 positions: for each kv source of ratio r, 64 / r packed
//   latent rows part 1  index_keys   the same rows' index keys part 2  window_ring  per slot:
//   layers × ring_rows packed window rows, position p at row p mod ring_rows part 3  carry per
//   slot: for each ratio-2 source, kCarryRows rows of (kv, gate) floats, position p at row p mod
//   kCarryRows part 4  history      per slot: the last kHistory token ids, position p at entry p
//   mod kHistory
//
// Rings hold more than the window so that rolling back rejected draft rows is a pointer move.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "model/deepseek_v41/config.h"
#include "model/deepseek_v41/key_rows.h"
#include "model/model.h"

namespace deepmint::v41 {

class StateLayout {
 public:
  explicit StateLayout(const Config& config);

  static constexpr int kDraftSlack = 8;  // ring rows beyond the window; drafts are at most 5
  static constexpr int kCarryRows = 8;
  static constexpr int kHistory = 32;                          // ids; n-grams look back at most 15
  static constexpr int kHistoryKept = kHistory - kDraftSlack;  // those that no draft overwrites

  std::span<const StatePart> parts() const { return parts_; }
  int layers() const { return layers_; }
  int window() const { return window_; }
  int ring_rows() const { return ring_rows_; }
  std::span<const size_t> carry_sources() const { return carry_sources_; }  // of ratio 2
  size_t carry_row_bytes() const { return 2 * static_cast<size_t>(head_dim_) * sizeof(float); }
  size_t window_row_bytes() const { return window_row_; }
  size_t global_row_bytes() const { return global_row_; }
  size_t index_row_bytes() const { return index_row_; }

  // Row `row` (position / ratio) of the source at `source` (index into Config::kv_sources).
  std::byte* global_row(const StepInput& in, const SequenceRef& seq, size_t source,
                        int64_t row) const;
  std::byte* index_row(const StepInput& in, const SequenceRef& seq, size_t source,
                       int64_t row) const;
  // The same rows as views: what queries of one sequence read.
  PagedRows global_rows(const StepInput& in, const SequenceRef& seq, size_t source) const;
  PagedRows index_rows(const StepInput& in, const SequenceRef& seq, size_t source) const;
  std::byte* window_row(const StepInput& in, const SequenceRef& seq, int layer,
                        int64_t position) const;
  float* carry_row(const StepInput& in, const SequenceRef& seq, size_t source,
                   int64_t position) const;                             // [2, head_dim]
  int32_t* history(const StepInput& in, const SequenceRef& seq) const;  // [kHistory]
  // Makes the history of a sequence that will run on at position `begin` without having run what
  // comes before: Engram looks back at those ids. tokens: at least positions [0, begin).
  void write_history(std::span<const PartMemory> state, const SequenceRef& seq,
                     std::span<const TokenId> tokens, int32_t begin) const;

  // Model::clear_unread.
  void clear_unread(std::span<const PartMemory> state, const SequenceRef& seq, int32_t length,
                    Model::PromptTail tail) const;

  // Bytes that one token adds to global state, and bytes of one packed window snapshot (window rows
  // only).
  double global_bytes_per_token() const;
  size_t window_snapshot_bytes() const;

 private:
  std::byte* block_row(const StepInput& in, const SequenceRef& seq, size_t part, size_t source,
                       int64_t row, size_t row_bytes, const std::vector<size_t>& offsets) const;
  PagedRows rows_of(const StepInput& in, const SequenceRef& seq, size_t part, size_t source,
                    size_t row_bytes, const std::vector<size_t>& offsets) const;
  std::array<StatePart, 5> parts_;
  std::vector<int> ratios_;  // of each kv source
  std::vector<size_t> global_offsets_, index_offsets_, carry_offsets_, carry_sources_;
  size_t window_row_, global_row_, index_row_;
  int ring_rows_, layers_, window_;
  int head_dim_;
};

}  // namespace deepmint::v41
