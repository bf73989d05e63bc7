// A checkpoint with the file and tensor counts of DeepSeek-V4.1-Flash and no weights: 48 sparse
// files, 96,085 tensors, the real shapes of the experts and of the Engram tables. Takes about 12 MB
// on disk. For tests and benchmarks of loaders.
#pragma once

#include <cstddef>
#include <filesystem>

namespace deepmint::testing {

inline constexpr size_t kOfficialFiles = 48, kOfficialTensors = 96'085;

// model-000NN-of-00048.safetensors, model.safetensors.index.json and config.json. The folder is
// made when absent.
void write_official_layout(const std::filesystem::path& folder);

}  // namespace deepmint::testing
