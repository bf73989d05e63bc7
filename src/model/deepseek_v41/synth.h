// Random checkpoints in the official V4.1 layout, for tests and benchmarks. Weights come from
// splitmix64 streams seeded by the FNV-1a hash of the tensor's name, so the same preset gives the
// same bytes everywhere; `tiny` equals what the specification's oracle writes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "deepmint/result.h"
#include "model/deepseek_v41/config.h"

namespace deepmint::v41 {

// tiny      the specification's test model: every feature, 4.5 MB
// bench     the official roles of all 40 layers at a tenth of the widths: 2.9 GB
// official  the official shapes: 48 files, 96,085 tensors, 510 GB (mostly holes with `sparse`)
enum class SynthPreset : uint8_t { kTiny, kBench, kOfficial };

// The configuration of a preset (also what config.json will say).
Config synth_config(SynthPreset preset);

// Another vocabulary for the same model. With the official one, 129,280, the image and noise tokens
// are the official ones too, so that a tokenizer.json put beside the weights fits.
void set_vocab(Config& config, int64_t vocab);

struct SynthOptions {
  uint64_t seed = 0;            // 0 = the preset's own weights; any other seed gives other weights
  bool official_files = false;  // the official 48 shards, with vision and draft tensors
  // Only embeddings, norms, gates and one set of experts are written; the rest are holes in the
  // files, which read as zeros and take no blocks.
  bool sparse = false;
  std::function<void(double fraction)> progress = {};
};

// Writes config.json and the weights into `folder` (made if needed): model.safetensors, or the
// official shards with their index. Errors: kInvalidArgument when the folder holds a checkpoint
// already, kResourceExhausted when the disk has no room for the real blocks, kUnavailable when
// writing fails.
Status synthesize(const Config& config, const std::filesystem::path& folder,
                  const SynthOptions& options = {});

}  // namespace deepmint::v41
