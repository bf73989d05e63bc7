#include "support/source_dir.h"

namespace deepmint::testing {

std::filesystem::path source_path(const std::filesystem::path& relative) {
  return (std::filesystem::path(DEEPMINT_SOURCE_DIR) / relative).lexically_normal();
}

}  // namespace deepmint::testing
