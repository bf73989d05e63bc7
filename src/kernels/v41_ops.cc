#include "kernels/v41_ops.h"

#include "core/cpu_isa.h"

namespace deepmint::kernels {

const V41OpsTable& v41_ops() {
  switch (active_isa()) {
    case Isa::kX86_64:
      return isa_x86_64::v41_ops_table;
    case Isa::kAvx2:
      return isa_avx2::v41_ops_table;
    case Isa::kAvx512:
      return isa_avx512::v41_ops_table;
    case Isa::kAvx512Vnni:
      return isa_avx512vnni::v41_ops_table;
    case Isa::kAvx512Bf16:
      return isa_avx512bf16::v41_ops_table;
  }
  return isa_x86_64::v41_ops_table;
}

}  // namespace deepmint::kernels
