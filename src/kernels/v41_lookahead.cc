#include "kernels/v41_lookahead.h"

#include <algorithm>

#include "kernels/v41_shares.h"

namespace deepmint::kernels {

V41Lookahead::V41Lookahead(ThreadPool& pool)
    : pool_(pool),
      announcement_(static_cast<size_t>(pool.size())),
      parts_(static_cast<size_t>(pool.size())) {
  pool.set_meanwhile(this);
}

V41Lookahead::~V41Lookahead() { pool_.forget(this); }

void V41Lookahead::Part::add(Memory memory) {
  if (memory.empty() || bytes >= kMostBytes || count == kMostPieces) return;
  pieces[count++] = memory.first(std::min(memory.size(), kMostBytes - bytes));
  bytes += pieces[count - 1].size();
}

void V41Lookahead::announce(std::span<const V41Weights> weights, std::span<const Memory> beside,
                            size_t beside_bytes) {
  for (Part& part : announcement_) part.next = part.count = part.bytes = 0;
  for (const Memory memory : beside) announcement_.back().add(memory);
  size_t thread = 0, piece = 0;
  int64_t output = 0;
  // Everything up to an output of a matrix belongs to `thread`; its scales come first, because they
  // are read first.
  const auto up_to = [&](size_t last_piece, int64_t last_output) {
    for (; piece <= last_piece; ++piece, output = 0) {
      const V41Weights& w = weights[piece];
      const int64_t end = piece == last_piece ? last_output : w.n;
      if (output < end) {  // of none, there would still be the scales of their block
        const V41Place part = v41_place(w, output, end);
        announcement_[thread].add(part.scales);
        announcement_[thread].add(part.codes);
      }
      if (piece == last_piece) break;
    }
    output = last_output;
  };
  v41_deal(
      weights.size(), beside_bytes, announcement_.size(),
      [&](size_t i) { return static_cast<size_t>(weights[i].n) * v41_code_stride(weights[i]); },
      [&](size_t i) { return static_cast<size_t>((weights[i].n + kV41Unit - 1) / kV41Unit); },
      [&](size_t t, size_t i, size_t unit) {
        up_to(i, std::min(weights[i].n, static_cast<int64_t>(unit) * kV41Unit));
        thread = t + 1;
      });
  if (!weights.empty()) up_to(weights.size() - 1, weights.back().n);
  announced_ = true;
}

void V41Lookahead::begin(int rank) {
  const Part& from = announcement_[static_cast<size_t>(rank)];
  Part& to = parts_[static_cast<size_t>(rank)];
  to.next = 0;
  to.count = announced_ ? from.count : 0;
  std::copy_n(from.pieces.begin(), to.count, to.pieces.begin());
}

bool V41Lookahead::some(int rank) noexcept {
  Part& part = parts_[static_cast<size_t>(rank)];
  if (part.next == part.count) return false;
  Memory& piece = part.pieces[part.next];
  const size_t bytes = std::min(piece.size(), 4 * kCacheLine);
  for (size_t byte = 0; byte < bytes; byte += kCacheLine)
    __builtin_prefetch(piece.data() + byte, 0, 2);
  piece = piece.subspan(bytes);
  if (piece.empty()) ++part.next;
  return true;
}

std::span<const V41Lookahead::Memory> V41Lookahead::left(int rank) const {
  const Part& part = parts_[static_cast<size_t>(rank)];
  return std::span(part.pieces).subspan(part.next, part.count - part.next);
}

}  // namespace deepmint::kernels
