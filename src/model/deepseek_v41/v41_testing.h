// What tests of the V4.1 model share: a checkpoint in a temporary folder, memory for sequences, and
// rows.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "core/aligned.h"
#include "model/deepseek_v41/model.h"
#include "model/deepseek_v41/synth.h"

namespace deepmint::v41::testing {

// A checkpoint that is there as long as the object.
class Checkpoint {
 public:
  explicit Checkpoint(const Config& config, uint64_t seed = 0) {
    static int count = 0;
    folder_ = std::filesystem::temp_directory_path() /
              ("deepmint_v41_" + std::to_string(getpid()) + "_" + std::to_string(count++));
    std::filesystem::remove_all(folder_);
    const auto ok = synthesize(config, folder_, {.seed = seed});
    EXPECT_TRUE(ok) << ok.error().str();
  }
  ~Checkpoint() { std::filesystem::remove_all(folder_); }
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;
  const std::filesystem::path& folder() const { return folder_; }

  std::unique_ptr<V41Model> load(std::unique_ptr<Arithmetic> arithmetic, size_t rows = 1024,
                                 size_t logit_rows = 1024) const {
    auto model = V41Model::load(folder_, std::move(arithmetic));
    EXPECT_TRUE(model) << model.error().str();
    EXPECT_TRUE((*model)->reserve(rows, logit_rows));
    return std::move(*model);
  }

 private:
  std::filesystem::path folder_;
};

// Memory for a few sequences, filled with garbage: nothing may be read before it is written.
class Cache {
 public:
  Cache(const V41Model& model, size_t sequences, size_t blocks_each,
        std::byte fill = std::byte{0xFF})
      : blocks_each_(blocks_each) {
    for (const StatePart& part : model.state_parts()) {
      const size_t count =
          part.family == StatePart::Family::kGlobal ? sequences * blocks_each : sequences;
      buffers_.emplace_back(count * part.bytes);
      std::fill_n(buffers_.back().data(), buffers_.back().size(), fill);
      memory_.push_back({buffers_.back().data(), count});
    }
    for (size_t s = 0; s < sequences; ++s) {
      tables_.emplace_back();
      for (size_t b = 0; b < blocks_each; ++b)
        tables_.back().push_back(
            BlockId(static_cast<uint32_t>((blocks_each - 1 - b) * sequences + s)));
    }
  }
  SequenceRef ref(size_t s) const { return {tables_[s], SlotId(static_cast<uint32_t>(s))}; }
  std::span<const PartMemory> memory() const { return memory_; }
  std::span<std::byte> bytes(size_t part) { return buffers_[part].span(); }
  // The shared state of another cache of the same shape: what a prefix hit finds.
  void take_global(Cache& other) {
    for (size_t part = 0; part < 2; ++part)
      std::ranges::copy(other.bytes(part), bytes(part).begin());
  }

 private:
  size_t blocks_each_;
  std::vector<AlignedBuffer<std::byte>> buffers_;
  std::vector<PartMemory> memory_;
  std::vector<std::vector<BlockId>> tables_;
};

inline std::vector<float> run(V41Model& model, Cache& cache, std::span<const Row> rows,
                              std::vector<size_t> sequences = {0}) {
  std::vector<SequenceRef> refs;
  for (const size_t s : sequences) refs.push_back(cache.ref(s));
  size_t wanted = 0;
  for (const Row& r : rows) wanted += r.needs_logits;
  std::vector<float> logits(wanted * static_cast<size_t>(model.info().vocab_size));
  const auto ok = model.forward({rows, refs, cache.memory()}, logits, nullptr);
  EXPECT_TRUE(ok) << ok.error().str();
  return logits;
}

// Runs rows in steps of the given sizes, over and over; all logits that come.
inline std::vector<float> run_in_steps(V41Model& model, Cache& cache, std::span<const Row> rows,
                                       std::span<const size_t> sizes) {
  std::vector<float> logits;
  for (size_t at = 0, i = 0; at < rows.size(); ++i) {
    const size_t n = std::min(sizes[i % sizes.size()], rows.size() - at);
    const auto part = run(model, cache, rows.subspan(at, n));
    logits.insert(logits.end(), part.begin(), part.end());
    at += n;
  }
  return logits;
}

inline std::vector<Row> rows_of(std::span<const int> tokens, int first, bool all_logits = true) {
  std::vector<Row> rows;
  for (size_t i = 0; i < tokens.size(); ++i) {
    Row r;
    r.position = first + static_cast<int>(i);
    r.token = tokens[i];
    r.needs_logits = all_logits || i + 1 == tokens.size();
    rows.push_back(r);
  }
  return rows;
}

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// Ids that look like text to the model: spread over the vocabulary, the same on every run.
inline std::vector<int> some_tokens(int64_t vocab, size_t count, uint64_t salt = 1) {
  std::vector<int> ids;
  uint64_t state = 0x9e3779b97f4a7c15u * (salt + 1);
  for (size_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    ids.push_back(static_cast<int>((state >> 33) % static_cast<uint64_t>(vocab)));
  }
  return ids;
}

}  // namespace deepmint::v41::testing
