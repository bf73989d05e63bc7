// For tests of the dense model: a loaded tiny model with pages and block tables, and a scalar
// double forward to hold it against.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/aligned.h"
#include "core/thread_pool.h"
#include "format/gguf.h"
#include "model/dense/load.h"
#include "support/safetensors_writer.h"
#include "support/tiny_model.h"

namespace deepmint::dense {

// Logits [ids, vocab] of every position in double, one position and one head at a time. K and V are
// rounded to BF16 as the state keeps them; nothing else is rounded but the weights' own values.
// Reads the tensors by their GGUF names.
std::vector<double> reference_logits(const GgufFile& file, const std::vector<TokenId>& ids);

std::shared_ptr<const GgufFile> write_and_open(testing::GgufWriter& writer);

// A model with state memory. Pages start as NaN in every byte; block tables are shuffled.
class Harness {
 public:
  Harness(std::shared_ptr<Model> model, size_t n_blocks, uint64_t seed = 1);

  Model& model() { return *model_; }
  size_t vocab() const { return static_cast<size_t>(model_->info().vocab_size); }
  PartMemory part() { return {memory_.data(), n_blocks_}; }
  // Takes blocks for `positions` from the free ones.
  std::vector<BlockId> table(int64_t positions);
  // Runs ids[0, n) of a fresh sequence in chunks of at most `chunk` rows; every row gives logits:
  // [n, vocab].
  std::vector<float> run(const std::vector<TokenId>& ids, size_t chunk,
                         std::vector<BlockId>* blocks = nullptr);
  // One step; logits of the rows that need them.
  std::vector<float> step(const std::vector<Row>& rows, const std::vector<SequenceRef>& sequences,
                          Tap* tap = nullptr);
  // Contents of the blocks of a table, one after another.
  std::string state(const std::vector<BlockId>& blocks) const;
  void poison();  // every byte 0xff, and every block is free again

 private:
  std::shared_ptr<Model> model_;
  size_t n_blocks_;
  AlignedBuffer<std::byte> memory_;
  std::vector<BlockId> free_;
  testing::Random random_;
};

Harness tiny_harness(const testing::TinyModel& tiny, int threads = 2, size_t n_blocks = 24);
std::vector<TokenId> random_ids(size_t n, size_t vocab, uint64_t seed);

// Bits of two rows of floats; reports the first difference.
void expect_same(const std::vector<float>& a, const std::vector<float>& b, const std::string& what);
std::vector<float> row_of(const std::vector<float>& rows, size_t row, size_t width);

}  // namespace deepmint::dense
