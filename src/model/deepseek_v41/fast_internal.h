// Scratch of one thread of FastOps. Sizes depend on the configuration only.
#pragma once

#include <cstdint>
#include <vector>

#include "core/aligned.h"
#include "kernels/v41_attention.h"
#include "kernels/v41_index.h"
#include "kernels/weight_memory.h"
#include "model/deepseek_v41/fast_ops.h"

namespace deepmint::v41 {

struct FastOps::AttentionScratch {
  explicit AttentionScratch(const Config& c);
  void hold(const AttentionRow& row, int64_t before);
  void begin_list(int64_t dim);
  // Row t of the list stands at `out`, once dimensions [begin, end) of `packed` are unpacked there.
  void add(int64_t t, const std::byte* packed, bool of_window, int64_t begin, int64_t end,
           uint16_t* out);
  // It is there already.
  void add(int64_t t, const uint16_t* out);

  int64_t max_window, max_global;
  // Distance of unpacked rows: not a power of two, or a column of rows would fall into a few cache
  // sets.
  int64_t stride;
  // All that follows lies together on huge pages: on small ones, half a megabyte falls into few
  // sets of the second-level cache as luck has it.
  kernels::WeightMemory pages;
  uint16_t *window = nullptr, *global = nullptr;  // unpacked rows
  float* scratch = nullptr;
  bool fetched = false;               // what is read after attention, in this call
  std::vector<const uint16_t*> rows;  // of the current query
  kernels::V41Unpack unpack;          // those that are still packed
  std::vector<kernels::V41Unpack::Row> packed;
  std::vector<int32_t> due;
  // Global rows that the last query of a block had: held[i] stands at slots[i]; together they fill
  // the places 0 .. n_held - 1.
  std::vector<int32_t> held, slots, next_slots, free_slots;
  size_t n_held = 0;
  kernels::V41QueryMemory memory;
};

struct FastOps::SelectScratch {
  static constexpr int64_t kRows = 8;  // queries of one sequence that read a tile of keys together

  SelectScratch(const Config& c, int threads);

  // Lists of one query's part of the keys.
  struct Lists {
    AlignedBuffer<float> row_scores, block_scores;
    AlignedBuffer<int32_t> row_index, block_index;
    kernels::V41TopK rows, blocks;
    // Candidate block whose keys are passing by.
    int64_t block = -1;
    float block_best = 0;
  };
  void start(Lists& lists, const Config& c);
  void pass_blocks(Lists& lists, const float* scores, int64_t n, int64_t base, int64_t block_size);
  void flush_block(Lists& lists);
  void pack_query(const float* q, int64_t slot, const Config& c);
  void load_keys(const SelectRow& row, const Config& c, bool restricted, int64_t begin,
                 int64_t end);
  void score_tile(const SelectScratch& q, int64_t slot, const float* w, const Config& c, int64_t n);
  static bool scans_in_place(const Config& c);
  void scan_keys(const SelectRow& row, const SelectScratch& q, int64_t slot, const float* w,
                 const Config& c, bool restricted, int64_t begin, int64_t end, int64_t total);
  void pass(const Config& c, bool restricted, bool make_blocks, int64_t base, int64_t n,
            Lists& lists);

  AlignedBuffer<int32_t> prune_scratch;
  std::vector<Lists> lists;           // kRows
  AlignedBuffer<float> merge_scores;  // threads * most chosen
  AlignedBuffer<int32_t> merge_index, merge_scratch;
  AlignedBuffer<uint8_t> packed;               // one head as stored
  AlignedBuffer<int8_t> queries;               // [kRows, heads, dim]
  std::vector<kernels::V41IndexBlock> blocks;  // [kRows, heads, dim / 32]
  AlignedBuffer<uint8_t> tile;                 // kChunk keys
  AlignedBuffer<float> key_scales, scores;
  std::vector<const uint8_t*> key_rows;  // kChunk
  std::vector<int32_t> key_index;        // kChunk
  std::vector<const uint8_t*> eights;    // kChunk / 8
};

}  // namespace deepmint::v41
