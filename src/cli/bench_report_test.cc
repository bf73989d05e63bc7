#include "cli/bench_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/json.h"

namespace deepmint::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

BenchReport sample() {
  BenchReport r;
  r.model = "a<b>&\"c\"\x01.gguf";
  r.architecture = "llama";
  r.machine = "Some CPU";
  r.isa = "avx512vnni";
  r.version = "0.1.0";
  r.arithmetic = "int8";
  r.threads = 2;
  r.runs = 3;
  r.weight_bytes = 90'000'000;
  r.roofs = {.dram_read_gb_per_s = 30,
             .f32_gflop_per_s = 200,
             .bf16_gflop_per_s = 400,
             .int8_gop_per_s = 800};
  r.rows = {{BenchRow::Kind::kDecode, 1, 32, {250, 240, 260}, 24, 50, 0.8},
            {BenchRow::Kind::kDecode, 16, 32, {1200, 1100, 1250}, 9, 400, 0.3},
            {BenchRow::Kind::kContext, 1, 1024, {200, 190, 210}, 25, 0, 0.82},
            {BenchRow::Kind::kPrefill, 1, 512, {1500, 1400, 1600}, 0.3, 600, 0.01}};
  return r;
}

TEST(Spread, IsTheMedianAndTheEnds) {
  EXPECT_EQ(spread(std::vector<double>{5}).median, 5);
  const Spread odd = spread(std::vector<double>{9, 1, 5});
  EXPECT_EQ(odd.median, 5);
  EXPECT_EQ(odd.low, 1);
  EXPECT_EQ(odd.high, 9);
  EXPECT_EQ(spread(std::vector<double>{4, 1, 2, 100}).median, 3);
}

TEST(BenchReport, ArithmeticSharesAreOfTheRightRoof) {
  BenchReport r = sample();
  EXPECT_DOUBLE_EQ(r.arithmetic_share(r.rows[3]), 0.75);
  r.arithmetic = "bf16";
  EXPECT_DOUBLE_EQ(r.arithmetic_roof(), 400);
  r.arithmetic = "f32";
  EXPECT_DOUBLE_EQ(r.arithmetic_roof(), 200);
}

TEST(BenchReport, TextHasOneLinePerMeasurement) {
  const std::string text = bench_text(sample());
  EXPECT_THAT(text, HasSubstr("decode, 1 row "));
  EXPECT_THAT(text, HasSubstr("decode, 16 rows"));
  EXPECT_THAT(text, HasSubstr("decode at 1024 tokens"));
  EXPECT_THAT(text, HasSubstr("prefill of 512 tokens"));
  EXPECT_THAT(text, HasSubstr("80 %"));
  EXPECT_THAT(text, HasSubstr("Medians of 3 rounds"));
}

TEST(BenchReport, JsonAndCsvAgree) {
  const BenchReport r = sample();
  const auto doc = json::parse(bench_json(r));
  ASSERT_TRUE(doc) << doc.error().str();
  const json::Array& results = doc->find("results")->items();
  ASSERT_EQ(results.size(), r.rows.size());
  EXPECT_EQ(results[0].find("tokens_per_s")->to_double(), 250);
  EXPECT_EQ(results[0].find("dram_share")->to_double(), 0.8);
  EXPECT_EQ(results[2].find("gflop_per_s"), nullptr);
  EXPECT_EQ(doc->find("roofs")->find("int8_gop_per_s")->to_double(), 800);

  const std::string csv = bench_csv(r);
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 5);
  EXPECT_THAT(csv, StartsWith("test,rows,context,"));
  EXPECT_THAT(csv, HasSubstr("decode,1,32,250.000,240.000,260.000,24.000,0.8000,50.000,0.0625\n"));
  EXPECT_THAT(csv, HasSubstr("context,1,1024,200.000,190.000,210.000,25.000,0.8200,,\n"));
  size_t columns = 0;
  for (size_t begin = 0; begin < csv.size();) {
    const size_t end = csv.find('\n', begin);
    const auto commas =
        static_cast<size_t>(std::count(csv.begin() + static_cast<ptrdiff_t>(begin),
                                       csv.begin() + static_cast<ptrdiff_t>(end), ','));
    if (columns == 0) columns = commas;
    EXPECT_EQ(commas, columns);
    begin = end + 1;
  }
}

TEST(BenchReport, SvgIsWellFormedAndDrawsEveryBar) {
  const std::string svg = bench_svg(sample());
  EXPECT_THAT(svg, StartsWith("<svg "));
  EXPECT_THAT(svg, HasSubstr("a&lt;b&gt;&amp;&quot;c&quot; .gguf"));
  EXPECT_THAT(svg, Not(HasSubstr("\x01")));
  size_t bars = 0;
  for (size_t at = svg.find("class=\"bar\""); at != std::string::npos;
       at = svg.find("class=\"bar\"", at + 1))
    ++bars;
  EXPECT_EQ(bars, 4u);
  // Every element that opens closes, in order.
  std::vector<std::string> open;
  for (size_t at = svg.find('<'); at != std::string::npos; at = svg.find('<', at + 1)) {
    const size_t end = svg.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = svg.substr(at + 1, end - at - 1);
    if (tag.ends_with('/')) continue;
    const std::string name = tag.substr(0, tag.find(' '));
    if (name[0] != '/') {
      open.push_back(name);
      continue;
    }
    ASSERT_FALSE(open.empty());
    EXPECT_EQ("/" + open.back(), name);
    open.pop_back();
  }
  EXPECT_TRUE(open.empty());
}

TEST(BenchReport, NoMeasurementIsAnEmptyChartNotATrap) {
  BenchReport r = sample();
  r.rows.clear();
  EXPECT_THAT(bench_svg(r), StartsWith("<svg "));
  EXPECT_TRUE(json::parse(bench_json(r)));
}

}  // namespace
}  // namespace deepmint::cli
