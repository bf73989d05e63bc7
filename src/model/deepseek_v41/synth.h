// Random checkpoints in the official V4.1 layout, for tests and benchmarks. Weights come from
// splitmix64 streams seeded by the FNV-1a hash of the tensor's name, so the same preset gives the
// same bytes everywhere; `tiny` equals what the specification's oracle writes.
#pragma once

#include <cstdint>
#include <filesystem>

#include "deepmint/result.h"
#include "model/deepseek_v41/config.h"

namespace deepmint::v41 {

enum class SynthPreset : uint8_t { kTiny, kBench };

// The configuration of a preset (also what config.json will say).
Config synth_config(SynthPreset preset);

// Writes config.json and model.safetensors into `folder` (made if needed). seed 0 = the preset's
// own weights; any other seed gives other weights of the same shapes. Errors: kInvalidArgument when
// the folder holds a checkpoint already, kUnavailable when writing fails.
Status synthesize(const Config& config, const std::filesystem::path& folder, uint64_t seed = 0);

}  // namespace deepmint::v41
