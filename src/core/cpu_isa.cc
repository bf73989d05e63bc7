#include "core/cpu_isa.h"

#include <cpuid.h>
#include <fmt/format.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "core/env.h"

namespace deepmint {
namespace {

constexpr std::array<std::string_view, 5> kNames = {"x86-64", "avx2", "avx512", "avx512vnni",
                                                    "avx512bf16"};

// What not every compiler's __builtin_cpu_supports knows. F16C uses the registers of AVX.
bool f16c_and_lzcnt() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
  return f16c && __get_cpuid(0x80000001, &a, &b, &c, &d) != 0 && (c & bit_LZCNT) != 0;
}

Isa detect() {
  // libgcc's probes also ask the operating system (XGETBV) whether it saves the wide registers.
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
                    __builtin_cpu_supports("popcnt") && f16c_and_lzcnt();
  if (!avx2) return Isa::kX86_64;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512cd");
  if (!avx512) return Isa::kAvx2;
  if (!__builtin_cpu_supports("avx512vnni")) return Isa::kAvx512;
  // Every CPU with BF16 dots but the first (Cooper Lake) also permutes bytes; kernels use both.
  const bool bf16 = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi");
  return bf16 ? Isa::kAvx512Bf16 : Isa::kAvx512Vnni;
}

std::atomic<int> g_active{-1};

bool amd() {
  __builtin_cpu_init();
  return __builtin_cpu_is("amd") != 0;
}

std::atomic<bool>& fast_subnormals_flag() {
  static std::atomic<bool> fast{amd()};
  return fast;
}

}  // namespace

std::string_view to_string(Isa isa) { return kNames[static_cast<size_t>(isa)]; }

std::string_view isa_class(Isa isa) {
  switch (isa) {
    case Isa::kX86_64:
      return "x86-64";
    case Isa::kAvx512Bf16:
      return "avx512bf16";
    default:
      return "fma";
  }
}

Isa detected_isa() {
  static const Isa isa = detect();
  return isa;
}

std::vector<Isa> available_isas() {
  std::vector<Isa> isas;
  for (int i = 0; i <= static_cast<int>(detected_isa()); ++i) isas.push_back(static_cast<Isa>(i));
  return isas;
}

Result<Isa> resolve_isa(std::optional<std::string_view> forced) {
  if (!forced || *forced == "auto") return detected_isa();
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] != *forced) continue;
    const Isa isa = static_cast<Isa>(i);
    if (isa > detected_isa())
      return fail(
          ErrorCode::kInvalidArgument,
          fmt::format("expected an instruction set of this machine ({} or lower), found \"{}\"",
                      to_string(detected_isa()), *forced),
          "DEEPMINT_CPU_ISA");
    return isa;
  }
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("expected one of {}, found \"{}\"", fmt::join(kNames, ", "), *forced),
              "DEEPMINT_CPU_ISA");
}

Status init_active_isa() {
  const auto forced = env("DEEPMINT_CPU_ISA");
  DEEPMINT_TRY(isa, resolve_isa(forced ? std::optional<std::string_view>(*forced) : std::nullopt));
  g_active = static_cast<int>(isa);
  return {};
}

Isa active_isa() {
  if (const int isa = g_active.load(std::memory_order_relaxed); isa >= 0)
    return static_cast<Isa>(isa);
  if (auto ok = init_active_isa(); !ok) {
    std::fprintf(stderr, "deepmint: %s\n", ok.error().str().c_str());
    std::exit(2);
  }
  return static_cast<Isa>(g_active.load(std::memory_order_relaxed));
}

void set_active_isa(Isa isa) { g_active = static_cast<int>(isa); }

bool fast_subnormals() { return fast_subnormals_flag().load(std::memory_order_relaxed); }
void set_fast_subnormals(bool fast) { fast_subnormals_flag() = fast; }

}  // namespace deepmint
