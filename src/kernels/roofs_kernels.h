// The loops that measure_roofs times, one table per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deepmint::kernels {

struct RoofKernels {
  // Each touches every byte, in a different way; the result only keeps the loop alive.
  static constexpr int kReads = 3;
  uint64_t (*reads[kReads])(const std::byte* data, size_t bytes);
  // Each runs `rounds` rounds of independent register operations and returns how many operations
  // one round is.
  double (*f32)(int64_t rounds);
  double (*bf16)(int64_t rounds);
  double (*int8)(int64_t rounds);
};

namespace isa_x86_64 {
extern const RoofKernels kRoofs;
}
namespace isa_avx2 {
extern const RoofKernels kRoofs;
}
namespace isa_avx512 {
extern const RoofKernels kRoofs;
}
namespace isa_avx512vnni {
extern const RoofKernels kRoofs;
}
namespace isa_avx512bf16 {
extern const RoofKernels kRoofs;
}

}  // namespace deepmint::kernels
