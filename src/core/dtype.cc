#include "core/dtype.h"

#include <array>

#include "core/checked.h"

namespace deepmint {

const DTypeInfo& info(DType type) {
  static constexpr std::array<DTypeInfo, 17> kInfo = {{
      {"F32", 1, 4},
      {"F16", 1, 2},
      {"BF16", 1, 2},
      {"F8_E4M3", 1, 1},
      {"F8_E8M0", 1, 1},
      {"I8", 1, 1},
      {"U8", 1, 1},
      {"I32", 1, 4},
      {"I64", 1, 8},
      {"Q8_0", 32, 34},
      {"Q4_0", 32, 18},
      {"Q4_1", 32, 20},
      {"Q5_0", 32, 22},
      {"Q5_1", 32, 24},
      {"Q4_K", 256, 144},
      {"Q5_K", 256, 176},
      {"Q6_K", 256, 210},
  }};
  return kInfo[static_cast<size_t>(type)];
}

std::optional<uint64_t> row_bytes(DType type, uint64_t elements) {
  const DTypeInfo& d = info(type);
  if (elements % d.block_elements != 0) return std::nullopt;
  return checked_mul(elements / d.block_elements, d.block_bytes);
}

}  // namespace deepmint
