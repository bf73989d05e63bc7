// The bench report as an SVG bar chart: one panel per kind of measurement, each with its own scale
// from zero.
#include <fmt/format.h>

#include <algorithm>

#include "cli/bench_report.h"
#include "core/utf8.h"

namespace deepmint::cli {
namespace {

constexpr int kWidth = 760, kLeft = 170, kRight = 180, kBar = 20, kGap = 9, kPanelHead = 44,
              kTop = 74;

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : utf8::sanitize(text)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;  // control characters are not XML
    }
  }
  return out;
}

std::string label(const BenchRow& row) {
  if (row.kind == BenchRow::Kind::kDecode)
    return fmt::format("{} row{}", row.rows, row.rows == 1 ? "" : "s");
  return fmt::format("{} tokens", row.context);
}

std::string_view panel_title(BenchRow::Kind kind) {
  switch (kind) {
    case BenchRow::Kind::kDecode:
      return "Decode, tokens/s of all rows together";
    case BenchRow::Kind::kContext:
      return "Decode of one row after a context of";
    case BenchRow::Kind::kPrefill:
      return "Prefill, tokens/s";
  }
  return "";
}

// What limits the measurement most: memory or arithmetic.
std::string share(const BenchReport& r, const BenchRow& row) {
  const double memory = row.dram_share, arithmetic = r.arithmetic_share(row);
  if (row.gflop_per_s > 0 && arithmetic > memory)
    return fmt::format("{:.0f} % of {}", 100 * arithmetic, r.arithmetic);
  return fmt::format("{:.0f} % of DRAM", 100 * memory);
}

}  // namespace

std::string bench_svg(const BenchReport& r) {
  std::string body;
  int y = kTop;
  for (const BenchRow::Kind kind :
       {BenchRow::Kind::kDecode, BenchRow::Kind::kContext, BenchRow::Kind::kPrefill}) {
    double most = 0;
    for (const BenchRow& row : r.rows)
      if (row.kind == kind) most = std::max(most, row.tokens_per_s.high);
    if (most <= 0) continue;
    body += fmt::format("<text x=\"20\" y=\"{}\" class=\"panel\">{}</text>\n", y + 22,
                        panel_title(kind));
    y += kPanelHead - kGap;
    const auto scale = [&](double v) { return v / most * (kWidth - kLeft - kRight); };
    for (const BenchRow& row : r.rows) {
      if (row.kind != kind) continue;
      const double length = std::max(1.0, scale(row.tokens_per_s.median));
      const double low = kLeft + scale(row.tokens_per_s.low),
                   high = kLeft + scale(row.tokens_per_s.high);
      const double middle = y + kBar / 2.0;
      body += fmt::format("<text x=\"{}\" y=\"{}\" class=\"name\">{}</text>\n", kLeft - 10, y + 15,
                          label(row));
      body +=
          fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\" class=\"bar\"/>\n",
                      kLeft, y, length, kBar);
      body += fmt::format(
          "<path d=\"M{:.1f} {:.1f}H{:.1f}M{:.1f} {:.1f}v8M{:.1f} {:.1f}v8\" class=\"range\"/>\n",
          low, middle, high, low, middle - 4, high, middle - 4);
      body += fmt::format(
          "<text x=\"{:.1f}\" y=\"{}\" class=\"value\">{:.1f}<tspan class=\"share\" "
          "dx=\"8\">{}</tspan></text>\n",
          std::max(high, kLeft + length) + 8, y + 15, row.tokens_per_s.median, share(r, row));
      y += kBar + kGap;
    }
    y += 12;
  }
  const int height = y + 34;
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} "
      "{1}\" role=\"img\">\n"
      "<title>deepmint bench: {2}</title>\n"
      "<style>text{{font:13px "
      "system-ui,sans-serif;fill:#1c2733}}.title{{font-size:18px;font-weight:600}}.sub,.share,."
      "foot{{fill:#5c6b7a}}"
      ".foot{{font-size:11px}}.panel{{font-weight:600}}.name{{text-anchor:end}}.value{{font-weight:"
      "600}}.share{{font-weight:400}}"
      ".bar{{fill:#2a9d8f}}.range{{stroke:#1c2733;stroke-opacity:.55;fill:none}}</style>\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n",
      kWidth, height, escaped(r.model));
  out += fmt::format("<text x=\"20\" y=\"34\" class=\"title\">{}</text>\n", escaped(r.model));
  out += fmt::format(
      "<text x=\"20\" y=\"56\" class=\"sub\">{} · {} threads · {} · {:.1f} MB of weights</text>\n",
      escaped(r.machine), r.threads, escaped(r.isa), double(r.weight_bytes) / 1e6);
  out += body;
  out += fmt::format(
      "<text x=\"20\" y=\"{}\" class=\"foot\">deepmint {} · medians of {} rounds, whiskers from "
      "lowest to highest · DRAM reads {:.1f} "
      "GB/s, {} {:.0f} G/s on this machine</text>\n</svg>\n",
      height - 14, escaped(r.version), r.runs, r.roofs.dram_read_gb_per_s, escaped(r.arithmetic),
      r.arithmetic_roof());
  return out;
}

}  // namespace deepmint::cli
