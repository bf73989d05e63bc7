#include "sampling/row_kernels.h"

#include "core/cpu_isa.h"

namespace deepmint::sampling {

namespace isa_x86_64 {
extern const RowKernels kRowKernels;
}
namespace isa_avx2 {
extern const RowKernels kRowKernels;
}
namespace isa_avx512 {
extern const RowKernels kRowKernels;
}
namespace isa_avx512vnni {
extern const RowKernels kRowKernels;
}
namespace isa_avx512bf16 {
extern const RowKernels kRowKernels;
}

const RowKernels& row_kernels() {
  switch (active_isa()) {
    case Isa::kX86_64:
      return isa_x86_64::kRowKernels;
    case Isa::kAvx2:
      return isa_avx2::kRowKernels;
    case Isa::kAvx512:
      return isa_avx512::kRowKernels;
    case Isa::kAvx512Vnni:
      return isa_avx512vnni::kRowKernels;
    case Isa::kAvx512Bf16:
      return isa_avx512bf16::kRowKernels;
  }
  return isa_x86_64::kRowKernels;
}

}  // namespace deepmint::sampling
