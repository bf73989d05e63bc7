// The DeepSeek-V4.1 branch of load_model().
#pragma once

#include <filesystem>

#include "engine/load.h"

namespace deepmint {

// Fills model, tokenizer, end_ids and never_ids.
Status load_v41_folder(const std::filesystem::path& folder, const LoadOptions& options,
                       const LoadProgress& progress, LoadedModel& loaded);

// What it would refuse, found without reading weights.
Status check_v41_folder(const std::filesystem::path& folder);

}  // namespace deepmint
