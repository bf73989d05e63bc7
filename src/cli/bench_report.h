// The figures of `deepmint bench` and their forms: a table for people, JSON and CSV for machines,
// SVG for a page. Pure functions; bench_measure.h fills the report.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/roofs.h"

namespace deepmint::cli {

// Middle, lowest and highest of repeated measurements.
struct Spread {
  double median = 0, low = 0, high = 0;
};
Spread spread(std::span<const double> values);  // at least one value; the median of an even count
                                                // is the mean of the middle two

struct BenchRow {
  enum class Kind { kDecode, kContext, kPrefill };
  Kind kind = Kind::kDecode;
  int32_t rows = 1;  // sequences decoding together
  int32_t context =
      0;  // tokens before the measured ones (decode), or tokens of the prompt (prefill)
  Spread tokens_per_s = {};
  double gb_per_s = 0;     // weights and K/V that a step has to read, over its time
  double gflop_per_s = 0;  // 0: the model does not state its multiply-adds
  double dram_share = 0;  // of the memory bandwidth measured right before and after, round by round
};
std::string_view to_string(BenchRow::Kind kind);  // "decode", "context", "prefill"

struct BenchReport {
  std::string model, architecture, machine, isa, version,
      arithmetic;  // arithmetic: "int8", "bf16" or "f32"
  int32_t threads = 0, runs = 0;
  uint64_t weight_bytes = 0;
  kernels::Roofs roofs;
  std::vector<BenchRow> rows;

  double arithmetic_roof() const;  // GFLOP/s (GOP/s) of `arithmetic`
  double arithmetic_share(const BenchRow& row) const { return row.gflop_per_s / arithmetic_roof(); }
};

std::string bench_text(const BenchReport& report);
std::string bench_json(const BenchReport& report);  // one line, no newline
std::string bench_csv(const BenchReport& report);
std::string bench_svg(const BenchReport& report);

}  // namespace deepmint::cli
