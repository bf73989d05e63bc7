// Weights fetched before their products ask for them. Between two calls of v41_linear() one thread
// prepares the next while the others wait, and the memory is idle: they bring what they will read
// first into their second-level caches instead. Changes no result.
//
//   V41Lookahead ahead(pool);                  // the pool's waiting threads ask it from now on
//   workspace.set_lookahead(&ahead);
//   ahead.announce({{w1, w3}}, {{gate}}, 0);   // what the call after the next one reads
//   v41_linear(products, workspace, pool);
//
// One caller at a time, between calls of the pool.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/aligned.h"
#include "core/thread_pool.h"
#include "kernels/v41_linear.h"

namespace deepmint::kernels {

class V41Lookahead final : public Meanwhile {
 public:
  using Memory = std::span<const std::byte>;
  // A thread fetches no more at a time, so that it stays in a second-level cache of 1 MB.
  static constexpr size_t kMostBytes = size_t{768} << 10;

  // `pool` must outlive this; one lookahead of a pool is asked, the last.
  explicit V41Lookahead(ThreadPool& pool);
  ~V41Lookahead() override;
  V41Lookahead(const V41Lookahead&) = delete;
  V41Lookahead& operator=(const V41Lookahead&) = delete;

  // What follows the next v41_linear(): its weights, which threads share as v41_linear() has them,
  // and before them, on the last thread, the memory of what runs beside, which takes as long as
  // `beside_bytes` of the weights. Pieces beyond the first few of a thread are left out.
  void announce(std::span<const V41Weights> weights, std::span<const Memory> beside = {},
                size_t beside_bytes = 0);

  // By v41_linear(), within its call: thread `rank` goes over to what was announced, nothing if
  // nothing was; and after the call.
  void begin(int rank);
  void end() { announced_ = false; }

  // The next lines; false when a thread has fetched all of its part.
  bool some(int rank) noexcept override;
  // What a thread has not fetched yet, in order. Not while it may be fetching.
  std::span<const Memory> left(int rank) const;

 private:
  static constexpr size_t kMostPieces = 24;
  struct alignas(kCacheLine) Part {
    std::array<Memory, kMostPieces> pieces;
    size_t next = 0, count = 0, bytes = 0;
    void add(Memory memory);
  };
  ThreadPool& pool_;
  bool announced_ = false;
  std::vector<Part> announcement_, parts_;  // of each thread
};

}  // namespace deepmint::kernels
