// Whether a V4.1 checkpoint is whole: what the loader would refuse, and every number in it.
#pragma once

#include <filesystem>
#include <functional>

#include "deepmint/result.h"

namespace deepmint::v41 {

// Whether the folder's config.json says that it is one; false too when there is none to read.
bool is_v41_checkpoint(const std::filesystem::path& folder);

struct VerifyOptions {
  bool numbers = false;  // also read every tensor and look for NaN: all of the checkpoint's bytes
  std::function<void(double fraction)> progress = {};
};

// Errors: the first thing that is wrong, as V41Model::load() would say it.
Status verify_checkpoint(const std::filesystem::path& folder, const VerifyOptions& options = {});

}  // namespace deepmint::v41
