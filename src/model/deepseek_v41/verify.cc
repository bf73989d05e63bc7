#include "model/deepseek_v41/verify.h"

#include <algorithm>

#include "core/json.h"
#include "core/mapped_file.h"
#include "core/thread_pool.h"
#include "format/safetensors.h"
#include "model/deepseek_v41/fast_linear.h"
#include "model/deepseek_v41/not_a_number.h"
#include "model/deepseek_v41/weights.h"

namespace deepmint::v41 {

bool is_v41_checkpoint(const std::filesystem::path& folder) {
  const auto file = MappedFile::open(folder / "config.json");
  if (!file) return false;
  const auto document =
      json::parse({reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size()},
                  {.max_bytes = size_t{1} << 24});
  return document && is_v41_config(*document);
}

Status verify_checkpoint(const std::filesystem::path& folder, const VerifyOptions& options) {
  DEEPMINT_TRY(config, read_config(folder));
  DEEPMINT_TRY(files, SafetensorsModel::open(folder));
  const auto at_folder = [&](Error error) {
    return tl::unexpected<Error>(std::move(error).at(folder.string()));
  };
  auto weights = bind_weights(files, config);
  if (!weights) return at_folder(std::move(weights).error());
  if (!options.numbers) return {};
  uint64_t total = 0, done = 0;
  for (const TensorView& t : files.tensors()) total += t.bytes.size();
  for (const TensorView& t : files.tensors()) {
    if (auto ok = check_numbers(t); !ok) return at_folder(std::move(ok).error());
    done += t.bytes.size();
    if (options.progress && total > 0)
      options.progress(static_cast<double>(done) / static_cast<double>(total));
  }
  if (auto ok = check_experts(*weights); !ok) return at_folder(std::move(ok).error());
  ThreadPool pool(1);
  if (auto ok = check_dense(*weights, pool); !ok) return at_folder(std::move(ok).error());
  return {};
}

}  // namespace deepmint::v41
