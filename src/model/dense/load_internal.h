// Shared by the two loaders.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "model/dense/load.h"
#include "model/dense/model.h"
#include "model/dense/weights.h"

namespace deepmint::dense {

inline Result<std::shared_ptr<Model>> build(Config config, const Source& source,
                                            const DenseLoadOptions& options) {
  DEEPMINT_TRY(weights, load_weights(config, source, *options.pool, options.progress));
  return std::shared_ptr<Model>(
      std::make_shared<DenseModel>(std::move(config), std::move(weights), options.pool));
}

// Puts the file in front of an error, unless the reader below named it already.
template <class T>
Result<T> at(Result<T> result, const std::filesystem::path& path) {
  if (result) return result;
  const std::string place = path.string();
  if (result.error().where.starts_with(place)) return result;
  return tl::unexpected(std::move(result).error().at(place));
}

}  // namespace deepmint::dense
