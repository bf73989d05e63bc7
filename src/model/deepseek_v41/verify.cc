#include "model/deepseek_v41/verify.h"

#include <algorithm>

#include "core/json.h"
#include "core/mapped_file.h"
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
  const auto check = [&](std::initializer_list<const Matrix*> matrices) -> Status {
    for (const Matrix* m : matrices)
      if (auto ok = check_values(*m); !ok) return at_folder(std::move(ok).error());
    return {};
  };
  for (const LayerWeights& l : weights->layers) {
    for (const Expert& e : l.experts) DEEPMINT_CHECK_OK(check({&e.w1, &e.w2, &e.w3}));
    DEEPMINT_CHECK_OK(
        check({&l.shared.w1, &l.shared.w2, &l.shared.w3, &l.wq_a, &l.wq_b, &l.wkv, &l.wo_b}));
    for (const Matrix& m : l.wo_a) DEEPMINT_CHECK_OK(check({&m}));
    if (l.indexer) DEEPMINT_CHECK_OK(check({&l.indexer->wq_b}));
    if (l.engram) DEEPMINT_CHECK_OK(check({&l.engram->wkv}));
  }
  return {};
}

}  // namespace deepmint::v41
