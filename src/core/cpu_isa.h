// Which instruction set the kernels use. Decided once per process from CPUID, lowered by
// DEEPMINT_CPU_ISA.
//
//   avx2, avx512 and avx512vnni give the same bits; x86-64 (no FMA) and avx512bf16 (hardware BF16
//   dot) may each differ.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "deepmint/result.h"

namespace deepmint {

enum class Isa : int { kX86_64 = 0, kAvx2 = 1, kAvx512 = 2, kAvx512Vnni = 3, kAvx512Bf16 = 4 };

std::string_view to_string(Isa isa);  // "x86-64", "avx2", "avx512", "avx512vnni", "avx512bf16"
std::string_view isa_class(
    Isa isa);                       // bits are equal inside a class: "x86-64", "fma", "avx512bf16"
Isa detected_isa();                 // best that this machine (CPU and operating system) supports
std::vector<Isa> available_isas();  // ascending, always starts with kX86_64

// The set to use: `forced` when given, which must be "auto" or a known name that this machine
// supports.
Result<Isa> resolve_isa(std::optional<std::string_view> forced);

// The set in force: DEEPMINT_CPU_ISA or the best one. main() calls init_active_isa() first and
// reports its error; without that call the first use resolves it and aborts on a bad value. Tests
// switch with set_active_isa.
Status init_active_isa();
Isa active_isa();
void set_active_isa(Isa isa);

// Whether the CPU multiplies subnormal floats as fast as others. Those of AMD do; others may take
// a hundred times as long. Tests switch with set_fast_subnormals.
bool fast_subnormals();
void set_fast_subnormals(bool fast);

}  // namespace deepmint
