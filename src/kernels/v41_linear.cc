#include "kernels/v41_linear.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/check.h"
#include "core/checked.h"
#include "core/cpu_isa.h"
#include "kernels/scalar_math.h"
#include "kernels/v41_linear_kernels.h"
#include "kernels/v41_lookahead.h"
#include "kernels/v41_shares.h"

namespace deepmint::kernels {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

float power_of_two(int e) { return static_cast<float>(std::ldexp(1.0, e)); }

const V41Tables& tables() {
  static const V41Tables kTables = [] {
    V41Tables t{};
    for (int c = 0; c < 256; ++c) {
      const int exponent = (c >> 3) & 15, mantissa = c & 7;
      double v = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
      if ((c & 127) == 127) v = static_cast<double>(kNaN);
      t.e4m3[c] = static_cast<float>((c & 128) != 0 ? -v : v);
      if (c >= 128) continue;
      const uint16_t word = to_bf16(t.e4m3[c]);
      t.e4m3_bf16_bytes[c] = static_cast<uint8_t>(word >> 8);
      t.e4m3_bf16_bytes[128 + c] = static_cast<uint8_t>(word);
    }
    constexpr std::array<float, 8> kMagnitudes = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    for (size_t c = 0; c < 16; ++c)
      t.e2m1[c] = (c & 8) != 0 ? -kMagnitudes[c & 7] : kMagnitudes[c & 7];
    for (int b = 0; b < 256; ++b) {
      t.e8m0[b] = b == 255 ? kNaN : power_of_two(b - 127);
      t.e8m0_half[b] = b == 255 ? kNaN : power_of_two(b - 119);
      for (size_t c = 0; c < 32; ++c) t.fp4_bf16[b][c] = to_bf16(t.e2m1[c % 16] * t.e8m0[b]);
      for (size_t c = 0; c < 16; ++c) {
        t.fp4_bf16_bytes[b][c] = static_cast<uint8_t>(t.fp4_bf16[b][c] >> 8);
        t.fp4_bf16_bytes[b][16 + c] = static_cast<uint8_t>(t.fp4_bf16[b][c]);
      }
    }
    return t;
  }();
  return kTables;
}

const V41Kernels& kernels() {
  static constexpr std::array<const V41Kernels*, 5> kAll = {
      &isa_x86_64::kV41Linear, &isa_avx2::kV41Linear, &isa_avx512::kV41Linear,
      &isa_avx512::kV41Linear, &isa_avx512bf16::kV41Linear};
  return *kAll[static_cast<size_t>(active_isa())];
}

const V41ActivationKernels& activation_kernels() {
  static constexpr std::array<const V41ActivationKernels*, 5> kAll = {
      &isa_x86_64::kV41Activations, &isa_avx2::kV41Activations, &isa_avx512::kV41Activations,
      &isa_avx512::kV41Activations, &isa_avx512bf16::kV41Activations};
  return *kAll[static_cast<size_t>(active_isa())];
}

int64_t steps_of(int64_t k) { return (k + kV41Step - 1) / kV41Step; }
// Whole groups of two steps where FP8 comes in such groups.
int64_t steps_of(const V41Kernels& kernel, const V41Weights& w) {
  const bool pairs = w.format == V41Format::kFp8 && kernel.fp8_order == V41Order::kInterleaved;
  return pairs ? (w.k + 63) / 64 * 2 : steps_of(w.k);
}

// Bytes of a row of operands, with room for an even number of steps: whole cache lines, an odd
// number of them, so that the rows of a register tile do not meet in the same sets of the
// first-level cache.
size_t operand_row_bytes(int64_t k, size_t operand_bytes) {
  const size_t lines = static_cast<size_t>((k + 63) / 64) * 64 * operand_bytes / kCacheLine;
  return (lines | 1) * kCacheLine;
}

// Half of a 1 MB second-level cache for expanded weights, more where that would be few outputs,
// past which all activations stream; fewer while memory is what limits, so that the next ones
// arrive during the products of these.
constexpr size_t kPanelBytes = size_t{384} << 10, kMostPanelBytes = size_t{640} << 10,
                 kSmallPanelBytes = size_t{128} << 10;
constexpr size_t kFewestOutputs = 18;
constexpr int64_t kFewRows = 32;
// Activations as f32 that pass all panels before the next rows do, so that they come from the last
// cache: those of 512 rows, 16 MB at k = 8192, do not stay there.
constexpr size_t kRowsBytes = size_t{8} << 20;
constexpr size_t kFirstBytes = 8192;  // kAheadBytes of the kernels

int64_t panel_outputs(const V41Kernels& kernel, const V41Weights& w, int64_t m) {
  const size_t row = operand_row_bytes(w.k, kernel.weight_bytes),
               budget = m <= kFewRows
                            ? kSmallPanelBytes
                            : std::clamp(kFewestOutputs * row, kPanelBytes, kMostPanelBytes);
  const auto fit = static_cast<int64_t>(budget / row);
  return std::max<int64_t>(fit / kernel.panel_outputs, 1) * kernel.panel_outputs;
}

// Rows that go over the weights together.
int64_t rows_at_once(const V41Kernels& kernel, const V41Product& p) {
  const size_t m = p.x.size();
  if (kernel.operand_bytes < sizeof(float)) return static_cast<int64_t>(m);
  const size_t bytes = m * operand_row_bytes(p.w.k, kernel.operand_bytes),
               parts = std::max<size_t>((bytes + kRowsBytes - 1) / kRowsBytes, 1);
  return static_cast<int64_t>((m + 8 * parts - 1) / (8 * parts) * 8);
}

// Outputs that a thread takes at a time, for m rows. Few outputs are cut so that all threads have
// about as much.
int64_t unit_outputs(const V41Kernels& kernel, const V41Product& p, int64_t m, int threads) {
  if (m <= kernel.direct_rows[static_cast<size_t>(p.w.format)]) return kV41Unit;
  const int64_t panel = panel_outputs(kernel, p.w, m);
  if (m <= kFewRows) return 4 * panel;
  // Few outputs: every thread its share at once, as whole panels as they come.
  const int64_t tile = kernel.panel_outputs, share = (p.w.n + threads - 1) / threads;
  if (share <= 8 * panel) return (share + tile - 1) / tile * tile;
  const auto longest_share = [&](int64_t unit) {
    const int64_t units = (p.w.n + unit - 1) / unit;
    return (units + threads - 1) / threads * unit;
  };
  int64_t best = panel;
  for (int64_t unit = panel; unit >= panel / 2 && unit > 0; unit -= kernel.panel_outputs)
    if (longest_share(unit) < longest_share(best)) best = unit;
  return best;
}

V41Args arguments(const V41Product& p) {
  return {.tables = &tables(),
          .codes = reinterpret_cast<const uint8_t*>(p.w.codes),
          .scales = reinterpret_cast<const uint8_t*>(p.w.scales),
          .code_stride = v41_code_stride(p.w),
          .scale_stride = static_cast<size_t>(p.w.k / kV41Step),
          .k = p.w.k,
          .x = p.x.data(),
          .m = static_cast<int64_t>(p.x.size()),
          .y = p.y,
          .y_stride = p.stride,
          .to_bf16 = p.to_bf16,
          .fast_subnormals = fast_subnormals()};
}

V41Product rows_of(const V41Product& p, int64_t row, int64_t rows) {
  V41Product part = p;
  const auto first = static_cast<size_t>(row);
  part.x = p.x.subspan(first, std::min(static_cast<size_t>(rows), p.x.size() - first));
  part.y = p.y + row * p.stride;
  return part;
}

// Outputs [begin, end) of a product on this thread.
void run(const V41Kernels& kernel, const V41Product& p, int64_t begin, int64_t end,
         std::byte* panel, const V41Place& next) {
  const auto format = static_cast<size_t>(p.w.format);
  V41Args args = arguments(p);
  args.begin = begin;
  args.end = end;
  args.next = reinterpret_cast<const uint8_t*>(next.codes.data());
  args.next_scales = reinterpret_cast<const uint8_t*>(next.scales.data());
  args.scratch = reinterpret_cast<uint8_t*>(panel);
  if (args.m <= kernel.direct_rows[static_cast<size_t>(p.w.format)])
    return kernel.direct[format](args);
  const size_t stride = operand_row_bytes(p.w.k, kernel.weight_bytes);
  // Panels of about the same size: the activations stream past each of them.
  const int64_t tile = kernel.panel_outputs, most = panel_outputs(kernel, p.w, args.m) / tile,
                tiles = (end - begin + tile - 1) / tile, panels = (tiles + most - 1) / most;
  auto* expanded = reinterpret_cast<uint8_t*>(panel);
  for (int64_t i = 0; i < panels; ++i) {
    args.begin = begin + tiles * i / panels * tile;
    args.end = std::min(end, begin + tiles * (i + 1) / panels * tile);
    const int64_t outputs =
        std::min(end, begin + tiles * std::min(i + 2, panels) / panels * tile) - args.end;
    kernel.expand[format](args, expanded, stride);
    V41PanelArgs a{.panel = expanded,
                   .panel_stride = stride,
                   .outputs = args.end - args.begin,
                   .steps = steps_of(kernel, p.w),
                   .x = args.x,
                   .m = args.m,
                   .y = p.y + args.begin,
                   .y_stride = p.stride,
                   .to_bf16 = p.to_bf16};
    if (args.m <= kFewRows) {
      a.ahead = args.codes + static_cast<size_t>(args.end) * args.code_stride;
      a.ahead_bytes = static_cast<size_t>(outputs) * args.code_stride;
    }
    kernel.panel(a);
  }
}

// Below this many values one thread converts them sooner than it can wake another.
constexpr int64_t kSerialValues = 1 << 14;

}  // namespace

Result<V41Weights> v41_weights(V41Format format, std::span<const std::byte> codes,
                               std::span<const std::byte> scales, int64_t n, int64_t k) {
  const auto bad = [](std::string message) {
    return fail(ErrorCode::kInvalidFile, std::move(message));
  };
  if (n <= 0 || k <= 0 || n > (int64_t{1} << 40) / k)
    return bad(fmt::format("expected a matrix of at least one element, found [{}, {}]", n, k));
  if (format != V41Format::kBf16 && k % kV41Step != 0)
    return bad(fmt::format("expected a multiple of {} columns, found {}", kV41Step, k));
  const V41Weights w{format, codes.data(), format == V41Format::kBf16 ? nullptr : scales.data(), n,
                     k};
  const size_t want = static_cast<size_t>(n) * v41_code_stride(w);
  if (codes.size() != want)
    return bad(fmt::format("expected {} bytes of weights, found {}", want, codes.size()));
  const auto rows = static_cast<size_t>(format == V41Format::kFp8 ? (n + 31) / 32 : n);
  const size_t want_scales =
      format == V41Format::kBf16 ? 0 : rows * static_cast<size_t>(k / kV41Step);
  if (scales.size() != want_scales)
    return bad(fmt::format("expected {} scales, found {}", want_scales, scales.size()));
  return w;
}

Status v41_check_values(const V41Weights& w) {
  if (w.format == V41Format::kBf16) return {};
  const bool fp8 = w.format == V41Format::kFp8;
  const int lowest = fp8 ? 10 : 2, highest = fp8 ? 246 : 252;
  const auto count =
      static_cast<size_t>(fp8 ? (w.n + 31) / 32 : w.n) * static_cast<size_t>(w.k / kV41Step);
  const int64_t blocks = w.k / kV41Step;
  // Whether all weights under scale i are zero: holes of a sparse file are, and any scale will do.
  const auto is_zero = [&](size_t i) {
    const auto block = static_cast<int64_t>(i) % blocks, group = static_cast<int64_t>(i) / blocks;
    const int64_t first = fp8 ? 32 * group : group,
                  last = fp8 ? std::min(w.n, first + 32) : group + 1;
    const auto bytes = static_cast<size_t>(fp8 ? kV41Step : kV41Step / 2);
    const std::byte magnitude{static_cast<uint8_t>(fp8 ? 0x7F : 0x77)};
    for (int64_t row = first; row < last; ++row) {
      const std::byte* at = w.codes + static_cast<size_t>(row) * v41_code_stride(w) +
                            static_cast<size_t>(block) * bytes;
      if (std::any_of(at, at + bytes, [&](std::byte c) { return (c & magnitude) != std::byte{0}; }))
        return false;
    }
    return true;
  };
  // Whole blocks first: finding none is the usual case, and a loop without an exit is fast.
  constexpr size_t kBlock = 4096;
  for (size_t block = 0; block < count; block += kBlock) {
    const size_t end = std::min(count, block + kBlock);
    unsigned found = 0;
    for (size_t i = block; i < end; ++i) {
      const auto above = static_cast<uint8_t>(static_cast<uint8_t>(w.scales[i]) - lowest);
      found |= static_cast<unsigned>(above > highest - lowest);
    }
    for (size_t i = block; found != 0 && i < end; ++i) {
      const int b = static_cast<int>(w.scales[i]);
      if (b == 255 || ((b < lowest || b > highest) && !is_zero(i)))
        return fail(ErrorCode::kInvalidFile,
                    fmt::format("expected scales from {} to {}, found {} in row {}, column {}",
                                lowest, highest, b, i / static_cast<size_t>(blocks),
                                i % static_cast<size_t>(blocks)));
    }
  }
  if (!fp8) return {};
  const auto codes = static_cast<size_t>(w.n) * static_cast<size_t>(w.k);
  for (size_t block = 0; block < codes; block += kBlock) {
    const size_t end = std::min(codes, block + kBlock);
    unsigned found = 0;
    for (size_t i = block; i < end; ++i)
      found |= static_cast<unsigned>((static_cast<uint8_t>(w.codes[i]) & 0x7F) == 0x7F);
    if (found == 0) continue;
    const std::byte* at = std::find_if(w.codes + block, w.codes + end, [](std::byte c) {
      return (static_cast<uint8_t>(c) & 0x7F) == 0x7F;
    });
    return fail(ErrorCode::kInvalidFile,
                fmt::format("expected numbers, found NaN at element {}", at - w.codes));
  }
  return {};
}

void V41Rows::reserve(int64_t max_rows, int64_t max_k) {
  const size_t need = static_cast<size_t>(max_rows) * operand_row_bytes(max_k, sizeof(float));
  if (need > values_.size()) values_ = AlignedBuffer<std::byte>::uninitialized(need);
  pointers_.reserve(static_cast<size_t>(max_rows));
}

void V41Rows::prepare(V41Format format, V41Round round, int64_t m, int64_t k) {
  DEEPMINT_CHECK(m >= 0 && k > 0 && (round == V41Round::kPlain || k % kV41Step == 0));
  k_ = k;
  row_bytes_ = operand_row_bytes(k, kernels().operand_bytes);
  quantise_ = round == V41Round::kQ8;
  order_ = format == V41Format::kFp4   ? V41Order::kEvenFirst
           : format == V41Format::kFp8 ? kernels().fp8_order
                                       : V41Order::kNatural;
  const size_t need = static_cast<size_t>(m) * row_bytes_;
  if (need > values_.size()) values_ = AlignedBuffer<std::byte>::uninitialized(need);
  pointers_.resize(static_cast<size_t>(m));
  for (size_t row = 0; row < pointers_.size(); ++row)
    pointers_[row] = reinterpret_cast<const uint8_t*>(values_.data()) + row * row_bytes_;
}

void V41Rows::convert_row(int64_t row, const float* x) {
  activation_kernels().prepare(
      x, k_, quantise_, order_,
      reinterpret_cast<uint8_t*>(values_.data()) + static_cast<size_t>(row) * row_bytes_);
}

void V41Rows::set(V41Format format, V41Round round, const float* x, int64_t m, int64_t k,
                  int64_t stride, ThreadPool& pool) {
  prepare(format, round, m, k);
  const auto convert = [&](size_t begin, size_t end, int) {
    for (size_t row = begin; row < end; ++row)
      convert_row(static_cast<int64_t>(row), x + static_cast<int64_t>(row) * stride);
  };
  if (m * k < kSerialValues) return convert(0, static_cast<size_t>(m), 0);
  pool.run(static_cast<size_t>(m), convert);
}

V41Workspace::Units V41Workspace::units_of(const V41Product& p, int threads) {
  Units u;
  if (p.x.empty()) return u;
  const V41Kernels& kernel = kernels();
  u.rows = rows_at_once(kernel, p);
  const auto m = static_cast<int64_t>(p.x.size());
  u.outputs = unit_outputs(kernel, p, std::min(m, u.rows), threads);
  u.across = static_cast<size_t>((p.w.n + u.outputs - 1) / u.outputs);
  u.count = u.across * static_cast<size_t>((m + u.rows - 1) / u.rows);
  return u;
}

void V41Workspace::reserve(int64_t max_k, int64_t max_products, ThreadPool& pool) {
  // The widest of all instruction sets, so that a change of them needs nothing more.
  const size_t need = std::max(kMostPanelBytes, 6 * operand_row_bytes(max_k, sizeof(float)));
  if (panels_.size() < static_cast<size_t>(pool.size()))
    panels_.resize(static_cast<size_t>(pool.size()));
  for (auto& panel : panels_)
    if (panel.size() < need) panel = AlignedBuffer<std::byte>::uninitialized(need);
  units_.reserve(static_cast<size_t>(max_products));
  first_unit_.reserve(static_cast<size_t>(max_products) + 1);
  if (shares_.size() < static_cast<size_t>(pool.size()))
    shares_ = std::vector<Share>(static_cast<size_t>(pool.size()));
}

// Every thread begins with a share of its own, one piece of memory after the other, so that what it
// fetches ahead is what it reads; then it takes from the shares of others.
void V41Workspace::make_shares(std::span<const V41Product> products, size_t threads,
                               const V41Beside& beside) {
  for (Share& share : std::span(shares_).first(threads)) share.end = first_unit_.back();
  v41_deal(
      products.size(), beside.bytes, threads,
      [&](size_t i) {
        const V41Product& p = products[i];
        return p.x.empty() ? 0 : static_cast<size_t>(p.w.n) * v41_code_stride(p.w);
      },
      [&](size_t i) { return first_unit_[i + 1] - first_unit_[i]; },
      [&](size_t t, size_t i, size_t unit) { shares_[t].end = first_unit_[i] + unit; });
  for (size_t t = 0; t < threads; ++t)
    shares_[t].next.store(t == 0 ? 0 : shares_[t - 1].end, std::memory_order_relaxed);
  beside_.next.store(0, std::memory_order_relaxed);
  beside_.end = beside.count;
}

void v41_linear(std::span<const V41Product> products, V41Workspace& workspace, ThreadPool& pool,
                const V41Beside& beside) {
  struct Told {  // also when something throws
    V41Lookahead* lookahead = nullptr;
    ~Told() {
      if (lookahead != nullptr) lookahead->end();
    }
  };
  const Told told{workspace.lookahead_};
  const V41Kernels& kernel = kernels();
  int64_t max_k = 0;
  for (const V41Product& p : products) {
    DEEPMINT_DCHECK(p.stride >= p.w.n);
    max_k = std::max(max_k, p.w.k);
  }
  workspace.reserve(max_k, static_cast<int64_t>(products.size()), pool);
  std::vector<size_t>& first = workspace.first_unit_;
  first.assign(1, 0);
  workspace.units_.clear();
  for (const V41Product& p : products) {
    workspace.units_.push_back(V41Workspace::units_of(p, pool.size()));
    first.push_back(first.back() + workspace.units_.back().count);
  }
  const auto threads = static_cast<size_t>(pool.size());
  workspace.make_shares(products, threads, beside);
  const auto product_of = [&](size_t unit) {
    return static_cast<size_t>(std::upper_bound(first.begin(), first.end(), unit) - first.begin() -
                               1);
  };
  const auto place = [&](size_t unit) {
    const size_t i = product_of(unit);
    const V41Workspace::Units& u = workspace.units_[i];
    const V41Weights& w = products[i].w;
    return v41_place(w, static_cast<int64_t>((unit - first[i]) % u.across) * u.outputs, w.n);
  };
  // What a kernel's own fetching does not reach: the first bytes of a thread's share.
  const auto fetch_first = [&](size_t own) {
    const V41Workspace::Share& share = workspace.shares_[own];
    const size_t at = share.next.load(std::memory_order_relaxed);
    if (at >= share.end) return;
    const V41Product& p = products[product_of(at)];
    if (static_cast<int64_t>(p.x.size()) > kFewRows) return;
    const auto [codes, scales] = place(at);
    for (size_t byte = 0; byte < std::min(codes.size(), kFirstBytes); byte += kCacheLine)
      __builtin_prefetch(codes.data() + byte);
    for (size_t byte = 0; byte < std::min(scales.size(), kFirstBytes / 16); byte += kCacheLine)
      __builtin_prefetch(scales.data() + byte);
  };
  pool.run(threads, [&](size_t own, size_t, int) {
    std::byte* panel = workspace.panels_[own].data();
    if (told.lookahead != nullptr) told.lookahead->begin(static_cast<int>(own));
    const auto take = [](V41Workspace::Share& from, auto&& body) {
      for (;;) {
        const size_t at = from.next.fetch_add(1, std::memory_order_relaxed);
        if (at >= from.end) return;
        body(at);
      }
    };
    const auto do_beside = [&] {
      take(workspace.beside_, [&](size_t item) { beside.run(beside.what, item); });
    };
    if (own + 1 == threads) do_beside();
    fetch_first(own);
    for (size_t k = 0; k < threads; ++k) {
      V41Workspace::Share& share = workspace.shares_[(own + k) % threads];
      take(share, [&](size_t at) {
        const size_t i = product_of(at), unit = at - first[i];
        const V41Workspace::Units& u = workspace.units_[i];
        const auto row = static_cast<int64_t>(unit / u.across) * u.rows,
                   output = static_cast<int64_t>(unit % u.across) * u.outputs;
        run(kernel, rows_of(products[i], row, u.rows), output,
            std::min(products[i].w.n, output + u.outputs), panel,
            at + 1 < share.end ? place(at + 1) : V41Place{});
      });
    }
    do_beside();
  });
}

void v41_linear_here(const V41Product& p) {
  DEEPMINT_CHECK(p.w.format == V41Format::kBf16);
  const V41Kernels& kernel = kernels();
  const int64_t most = kernel.direct_rows[0];
  for (int64_t row = 0; row < static_cast<int64_t>(p.x.size()); row += most)
    run(kernel, rows_of(p, row, most), 0, p.w.n, nullptr, {});
}

void v41_swiglu(const float* gate, const float* up, int64_t n, float limit, float weight,
                float* t) {
  DEEPMINT_DCHECK(n % 16 == 0);
  activation_kernels().swiglu(gate, up, n, limit, weight, t);
}

void v41_dequantize(const V41Weights& w, int64_t output, float* out) {
  const V41Tables& t = tables();
  const auto* codes =
      reinterpret_cast<const uint8_t*>(w.codes) + static_cast<size_t>(output) * v41_code_stride(w);
  const auto* scales = reinterpret_cast<const uint8_t*>(w.scales);
  if (w.format == V41Format::kFp8) scales += output / 32 * (w.k / kV41Step);
  if (w.format == V41Format::kFp4) scales += output * (w.k / kV41Step);
  for (int64_t i = 0; i < w.k; ++i) {
    switch (w.format) {
      case V41Format::kBf16: {
        uint16_t bits = 0;
        std::memcpy(&bits, codes + 2 * i, 2);
        out[i] = from_bf16(bits);
        break;
      }
      case V41Format::kFp8:
        out[i] = t.e4m3[codes[i]] * t.e8m0[scales[i / kV41Step]];
        break;
      case V41Format::kFp4:
        out[i] = t.e2m1[(codes[i / 2] >> (4 * (i & 1))) & 15] * t.e8m0[scales[i / kV41Step]];
        break;
    }
  }
}

void v41_linear_ref(const V41Weights& w, V41Round round, const float* x, int64_t m, double* y) {
  std::vector<float> weights(static_cast<size_t>(w.k)), row(weights.size());
  for (int64_t i = 0; i < m; ++i) {
    std::copy_n(x + i * w.k, w.k, row.begin());
    for (int64_t at = 0; round == V41Round::kQ8 && at < w.k; at += kV41Step) {
      const std::span block = std::span(row).subspan(static_cast<size_t>(at), kV41Step);
      float amax = 1e-4f;
      for (const float v : block) amax = std::max(amax, std::fabs(v));
      const double s = std::exp2(std::ceil(std::log2(static_cast<double>(amax / 448.0f))));
      for (float& v : block) {
        const double value = std::fabs(static_cast<double>(v)) / s;
        const int exponent = value < 0x1p-6 ? -6 : std::ilogb(value);
        const double unit = std::ldexp(1.0, exponent - 3);
        v = static_cast<float>(std::copysign(std::nearbyint(value / unit) * unit * s, v));
      }
    }
    for (int64_t n = 0; n < w.n; ++n) {
      v41_dequantize(w, n, weights.data());
      double sum = 0;
      for (size_t j = 0; j < row.size(); ++j)
        sum += static_cast<double>(weights[j]) * static_cast<double>(row[j]);
      y[i * w.n + n] = sum;
    }
  }
}

}  // namespace deepmint::kernels
