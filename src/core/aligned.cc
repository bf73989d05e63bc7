#include "core/aligned.h"

#include <sys/mman.h>

#include <cstring>

namespace deepmint::internal {
namespace {
// From here on anonymous mappings: they start zeroed, may use huge pages, and go back to the system
// when freed.
constexpr size_t kMapBytes = size_t{1} << 21;
}  // namespace

void* aligned_new(size_t bytes, bool zero) {
  if (bytes == 0) return nullptr;
  if (bytes >= kMapBytes) {
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    madvise(p, bytes, MADV_HUGEPAGE);
    return p;
  }
  const size_t rounded = (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
  void* p = std::aligned_alloc(kCacheLine, rounded);
  if (p == nullptr) throw std::bad_alloc();
  if (zero) std::memset(p, 0, rounded);
  return p;
}

void aligned_delete(void* p, size_t bytes) noexcept {
  if (p == nullptr) return;
  if (bytes >= kMapBytes) {
    munmap(p, bytes);
  } else {
    std::free(p);
  }
}

}  // namespace deepmint::internal
