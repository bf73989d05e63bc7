// A dense model from arbitrary GGUF bytes: loading refuses it in one line, or a step runs without
// touching memory that is not its own.
#include <memory>
#include <utility>

#include "core/aligned.h"
#include "memory_file.h"
#include "model/dense/load.h"
#include "promises.h"

using namespace deepmint;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto pool = std::make_shared<ThreadPool>(1);
  auto file = GgufFile::open(fuzz::memory_file({data, size}));
  if (!file) return 0;  // gguf_fuzz looks at the reader
  auto model = load_dense_gguf(std::make_shared<const GgufFile>(std::move(*file)), {.pool = pool});
  if (!model) {
    fuzz::check_error(model.error());
    return 0;
  }
  Model& m = **model;
  const size_t block = m.state_parts()[0].bytes;
  if (block > size_t{1} << 26) return 0;  // layers x heads of a legal but large shape
  fuzz::require(m.reserve(3, 3).has_value());
  const AlignedBuffer<std::byte> memory(block);
  const PartMemory part{const_cast<std::byte*>(memory.data()), 1};
  const BlockId blocks[] = {BlockId{0}};
  const SequenceRef sequence{.blocks = blocks};
  std::vector<Row> rows;
  const ModelInfo& info = m.info();
  for (int i = 0; i < 3 && i < info.context_tokens; ++i)
    rows.push_back({.position = i,
                    .token = static_cast<TokenId>((i * 7919) % info.vocab_size),
                    .needs_logits = true});
  std::vector<float> logits(rows.size() * static_cast<size_t>(info.vocab_size));
  fuzz::require(m.forward({rows, {&sequence, 1}, {&part, 1}}, logits).has_value());
  return 0;
}
