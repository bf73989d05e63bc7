// Measures one open model through its engine, as a user's requests would run: scheduling and
// sampling are part of the time.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "cli/bench_report.h"
#include "cli/open_model.h"

namespace deepmint::cli {

struct BenchPlan {
  std::vector<int32_t> rows = {1, 2, 4, 8, 16};
  std::vector<int32_t> contexts = {256, 1024, 4096};
  int32_t prefill = 512;
  int32_t tokens = 64;  // decoded per row and run
  int32_t prompt = 32;  // tokens in front of the decode runs
  int32_t runs = 3;
  SamplingParams sampling;
};

// Measures the roofs and each row of the plan in `runs` rounds after a warm-up, and takes medians.
// The bandwidth of the memory (`dram`, GB/s) is measured again after each row: a share is that of
// the mean of the figures before and after it, since neighbours of a shared machine can halve and
// double it within a second. What does not fit the context is left out. progress: fraction of the
// whole, 0 … 1. Errors: of the engine.
Result<BenchReport> measure(const OpenModel& open, const BenchPlan& plan,
                            const std::function<kernels::Roofs()>& roofs,
                            const std::function<double()>& dram,
                            const std::function<void(double)>& progress);

kernels::Roofs median_roofs(std::span<const kernels::Roofs> all);  // field by field; at least one

// "AMD EPYC 9B14" from /proc/cpuinfo, or "unknown CPU".
std::string machine_name();

}  // namespace deepmint::cli
