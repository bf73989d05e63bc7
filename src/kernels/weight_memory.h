// Memory for packed weights: pieces of large mappings that may use huge pages. A model has hundreds
// of matrices of some 100 KiB; on 4 KiB pages a step that streams them all loses a seventh of the
// memory bandwidth to address translation.
//
// Pieces lie one behind the other in the order of allocation. A mapping goes back to the system
// with its last piece. Thread-safe. Untouched parts of a mapping cost no memory.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

namespace deepmint::kernels {

class WeightMemory {
 public:
  WeightMemory() = default;
  explicit WeightMemory(size_t bytes);  // zeroed, on a cache line; throws std::bad_alloc
  WeightMemory(WeightMemory&& o) noexcept
      : mapping_(std::move(o.mapping_)),
        data_(std::exchange(o.data_, nullptr)),
        size_(std::exchange(o.size_, 0)) {}
  WeightMemory& operator=(WeightMemory&& o) noexcept {
    std::swap(mapping_, o.mapping_);
    std::swap(data_, o.data_);
    std::swap(size_, o.size_);
    return *this;
  }

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::shared_ptr<void> mapping_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace deepmint::kernels
