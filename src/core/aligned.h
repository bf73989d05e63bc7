// Heap arrays on 64-byte boundaries (one cache line, one AVX-512 register).
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>
#include <span>
#include <utility>

namespace deepmint {

inline constexpr size_t kCacheLine = 64;

// Zero-initialised unless made with uninitialized(). T is trivially copyable. Large buffers ask for
// huge pages.
template <class T>
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t count) : AlignedBuffer(count, true) {}
  static AlignedBuffer uninitialized(size_t count) { return AlignedBuffer(count, false); }
  AlignedBuffer(AlignedBuffer&& o) noexcept
      : data_(std::exchange(o.data_, nullptr)), size_(std::exchange(o.size_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(size_, o.size_);
    return *this;
  }
  ~AlignedBuffer();

  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return size_; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  std::span<T> span() { return {data_, size_}; }
  std::span<const T> span() const { return {data_, size_}; }

 private:
  AlignedBuffer(size_t count, bool zero);
  T* data_ = nullptr;
  size_t size_ = 0;
};

namespace internal {
void* aligned_new(size_t bytes, bool zero);  // throws std::bad_alloc
void aligned_delete(void* p, size_t bytes) noexcept;
}  // namespace internal

template <class T>
AlignedBuffer<T>::AlignedBuffer(size_t count, bool zero) : size_(count) {
  if (count > static_cast<size_t>(-1) / sizeof(T)) throw std::bad_alloc();
  data_ = static_cast<T*>(internal::aligned_new(count * sizeof(T), zero));
}
template <class T>
AlignedBuffer<T>::~AlignedBuffer() {
  internal::aligned_delete(data_, size_ * sizeof(T));
}

}  // namespace deepmint
