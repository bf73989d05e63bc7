#include "core/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace deepmint {
namespace {

constexpr size_t kPage = 4096;

void advise(const std::byte* data, size_t size, size_t offset, size_t length, int advice,
            bool shrink) {
  if (data == nullptr || offset >= size) return;
  length = std::min(length, size - offset);
  size_t begin = offset, end = offset + length;
  if (shrink) {  // only pages that lie wholly inside
    begin = (begin + kPage - 1) / kPage * kPage;
    end = end == size ? end : end / kPage * kPage;
  } else {
    begin = begin / kPage * kPage;
  }
  if (begin >= end) return;
  madvise(const_cast<std::byte*>(data) + begin, end - begin, advice);
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer. Regular files do not know the flag.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const int e = errno;
    return fail(e == ENOENT || e == ENOTDIR ? ErrorCode::kNotFound : ErrorCode::kInvalidFile,
                fmt::format("expected a readable file, found: {}", std::strerror(e)),
                path.string());
  }
  struct stat st{};
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    ::close(fd);
    return fail(ErrorCode::kInvalidFile, "expected a regular file, found something else",
                path.string());
  }
  MappedFile file;
  file.path_ = path;
  file.size_ = static_cast<size_t>(st.st_size);
  if (file.size_ > 0) {
    void* p = mmap(nullptr, file.size_, PROT_READ, MAP_SHARED, fd, 0);
    const int e = errno;
    ::close(fd);
    if (p == MAP_FAILED)
      return fail(ErrorCode::kUnavailable,
                  fmt::format("mapping {} bytes failed: {}", file.size_, std::strerror(e)),
                  path.string());
    file.data_ = static_cast<const std::byte*>(p);
  } else {
    ::close(fd);
  }
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      path_(std::move(other.path_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(path_, other.path_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::will_need(size_t offset, size_t length) const {
  advise(data_, size_, offset, length, MADV_WILLNEED, false);
}
void MappedFile::dont_need(size_t offset, size_t length) const {
  advise(data_, size_, offset, length, MADV_DONTNEED, true);
}
void MappedFile::random_access(size_t offset, size_t length) const {
  advise(data_, size_, offset, length, MADV_RANDOM, true);
}

}  // namespace deepmint
