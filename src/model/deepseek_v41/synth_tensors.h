// The tensors of a random checkpoint, as a list: names, shapes, bytes, and how to make the bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "model/deepseek_v41/config.h"
#include "model/deepseek_v41/synth.h"

namespace deepmint::v41 {

struct SynthTensor {
  using Out = std::function<void(const void*, size_t)>;
  std::string name, dtype;
  std::vector<int64_t> shape;
  uint64_t bytes = 0;
  int file = 0;                           // 0-based shard
  bool hole = false;                      // not written: reads as zeros
  std::function<void(const Out&)> write;  // calls back with the bytes in order
};

// `config` must outlive the result.
std::vector<SynthTensor> synth_tensors(const Config& config, const SynthOptions& options);

}  // namespace deepmint::v41
