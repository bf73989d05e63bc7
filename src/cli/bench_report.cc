#include "cli/bench_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "core/json.h"
#include "core/utf8.h"

namespace deepmint::cli {

Spread spread(std::span<const double> values) {
  DEEPMINT_CHECK(!values.empty());
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  const size_t middle = sorted.size() / 2;
  const double median =
      sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  return {median, sorted.front(), sorted.back()};
}

std::string_view to_string(BenchRow::Kind kind) {
  switch (kind) {
    case BenchRow::Kind::kDecode:
      return "decode";
    case BenchRow::Kind::kContext:
      return "context";
    case BenchRow::Kind::kPrefill:
      return "prefill";
  }
  return "decode";
}

double BenchReport::arithmetic_roof() const {
  if (arithmetic == "int8") return roofs.int8_gop_per_s;
  return arithmetic == "bf16" ? roofs.bf16_gflop_per_s : roofs.f32_gflop_per_s;
}

std::string bench_text(const BenchReport& r) {
  std::string out =
      fmt::format("{} ({}, {:.1f} MB of weights) · {} threads, {} · {}\n", r.model, r.architecture,
                  double(r.weight_bytes) / 1e6, r.threads, r.isa, r.machine);
  out += fmt::format(
      "roofs: DRAM reads {:.1f} GB/s · f32 {:.0f} GFLOP/s · bf16 {:.0f} GFLOP/s · int8 {:.0f} "
      "GOP/s\n\n",
      r.roofs.dram_read_gb_per_s, r.roofs.f32_gflop_per_s, r.roofs.bf16_gflop_per_s,
      r.roofs.int8_gop_per_s);
  out +=
      fmt::format("{:<22}{:>10}{:>19}{:>10}{:>9}{:>12}{:>9}\n", "", "tok/s", "(low … high)", "GB/s",
                  "of DRAM", r.arithmetic == "int8" ? "GOP/s" : "GFLOP/s", "of " + r.arithmetic);
  for (const BenchRow& row : r.rows) {
    std::string name;
    switch (row.kind) {
      case BenchRow::Kind::kDecode:
        name = fmt::format("decode, {} row{}", row.rows, row.rows == 1 ? "" : "s");
        break;
      case BenchRow::Kind::kContext:
        name = fmt::format("decode at {} tokens", row.context);
        break;
      case BenchRow::Kind::kPrefill:
        name = fmt::format("prefill of {} tokens", row.context);
        break;
    }
    const std::string range =
        fmt::format("({:.1f} … {:.1f})", row.tokens_per_s.low, row.tokens_per_s.high);
    out += fmt::format("{:<22}{:>10.1f}{}{}{:>10.2f}{:>7.0f} %", name, row.tokens_per_s.median,
                       std::string(range.size() - 2 < 19 ? 19 - (range.size() - 2) : 1, ' '), range,
                       row.gb_per_s, 100 * row.dram_share);
    if (row.gflop_per_s > 0)
      out += fmt::format("{:>12.1f}{:>7.0f} %", row.gflop_per_s, 100 * r.arithmetic_share(row));
    out += '\n';
  }
  out += fmt::format(
      "\nMedians of {} rounds, roofs included. GB/s counts the weights once per step and the K/V "
      "that its rows "
      "read.\n",
      r.runs);
  return out;
}

namespace {
double rounded(double v) { return std::round(v * 1000) / 1000; }
}  // namespace

std::string bench_json(const BenchReport& r) {
  json::Writer w;
  w.begin_object();
  w.key("version")
      .value(r.version)
      .key("model")
      .value(utf8::sanitize(r.model))
      .key("architecture")
      .value(r.architecture);
  w.key("machine")
      .value(utf8::sanitize(r.machine))
      .key("isa")
      .value(r.isa)
      .key("threads")
      .value(r.threads);
  w.key("runs")
      .value(r.runs)
      .key("weight_bytes")
      .value(r.weight_bytes)
      .key("arithmetic")
      .value(r.arithmetic);
  w.key("roofs").begin_object();
  w.key("dram_read_gb_per_s").value(rounded(r.roofs.dram_read_gb_per_s));
  w.key("f32_gflop_per_s").value(rounded(r.roofs.f32_gflop_per_s));
  w.key("bf16_gflop_per_s").value(rounded(r.roofs.bf16_gflop_per_s));
  w.key("int8_gop_per_s").value(rounded(r.roofs.int8_gop_per_s));
  w.end_object();
  w.key("results").begin_array();
  for (const BenchRow& row : r.rows) {
    w.begin_object();
    w.key("test")
        .value(to_string(row.kind))
        .key("rows")
        .value(row.rows)
        .key("context")
        .value(row.context);
    w.key("tokens_per_s").value(rounded(row.tokens_per_s.median));
    w.key("tokens_per_s_low").value(rounded(row.tokens_per_s.low));
    w.key("tokens_per_s_high").value(rounded(row.tokens_per_s.high));
    w.key("gb_per_s").value(rounded(row.gb_per_s)).key("dram_share").value(rounded(row.dram_share));
    if (row.gflop_per_s > 0) {
      w.key("gflop_per_s")
          .value(rounded(row.gflop_per_s))
          .key("arithmetic_share")
          .value(rounded(r.arithmetic_share(row)));
    }
    w.end_object();
  }
  w.end_array().end_object();
  return w.take();
}

std::string bench_csv(const BenchReport& r) {
  std::string out =
      "test,rows,context,tokens_per_s,tokens_per_s_low,tokens_per_s_high,gb_per_s,dram_share,gflop_"
      "per_s,arithmetic_share\n";
  for (const BenchRow& row : r.rows) {
    out += fmt::format("{},{},{},{:.3f},{:.3f},{:.3f},{:.3f},{:.4f}", to_string(row.kind), row.rows,
                       row.context, row.tokens_per_s.median, row.tokens_per_s.low,
                       row.tokens_per_s.high, row.gb_per_s, row.dram_share);
    out += row.gflop_per_s > 0
               ? fmt::format(",{:.3f},{:.4f}\n", row.gflop_per_s, r.arithmetic_share(row))
               : ",,\n";
  }
  return out;
}

}  // namespace deepmint::cli
