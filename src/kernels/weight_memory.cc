#include "kernels/weight_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <new>

namespace deepmint::kernels {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kMapping = size_t{256} << 20;  // address space, not memory

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

struct Mapping {
  void* address = MAP_FAILED;
  size_t bytes = 0;
  std::byte* begin = nullptr;  // first huge page
  size_t capacity = 0, used = 0;

  explicit Mapping(size_t want) : bytes(want + kHugePage) {
    address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) throw std::bad_alloc();
    begin = reinterpret_cast<std::byte*>(round_up(reinterpret_cast<uintptr_t>(address), kHugePage));
    capacity = want;
    madvise(begin, capacity,
            MADV_HUGEPAGE);  // a wish: without it the pages are small and everything still works
  }
  ~Mapping() { munmap(address, bytes); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
};

std::mutex g_mutex;
std::weak_ptr<Mapping> g_open;  // where the next piece goes while there is room

}  // namespace

WeightMemory::WeightMemory(size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  if (bytes > SIZE_MAX / 2) throw std::bad_alloc();
  const size_t rounded = round_up(bytes, kLine);
  const std::lock_guard lock(g_mutex);
  std::shared_ptr<Mapping> open = g_open.lock();
  if (!open || open->capacity - open->used < rounded) {
    open = std::make_shared<Mapping>(round_up(std::max(rounded, kMapping), kHugePage));
    g_open = open;
  }
  data_ = open->begin + open->used;
  open->used += rounded;
  mapping_ = std::move(open);
}

}  // namespace deepmint::kernels
