#include "core/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>
#include <utility>

#include "core/names.h"

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

// Where the mappings lie and what to say about them, for a signal handler: atomics alone. A process
// maps a few files, the largest checkpoints some hundred; what finds no place is merely not named.
struct Mapping {
  std::atomic<uintptr_t> begin{0}, end{0};  // end is 0 while the place is free
  std::array<char, 512> line{};
  size_t line_bytes = 0;
};
std::array<Mapping, 1024> mappings;  // zero pages until they are used
std::mutex mappings_mutex;

void remember(const std::byte* data, size_t size, const std::filesystem::path& path) {
  const std::lock_guard lock(mappings_mutex);
  for (Mapping& m : mappings) {
    if (m.end.load(std::memory_order_relaxed) != 0) continue;
    const std::string line = fmt::format(
        "deepmint: {}: expected the file to stay as it was when it was opened, found it cut short "
        "or unreadable\n",
        printable(path.string()).substr(0, 300));
    m.line_bytes = std::min(line.size(), m.line.size());
    std::copy_n(line.data(), m.line_bytes, m.line.data());
    m.begin.store(reinterpret_cast<uintptr_t>(data), std::memory_order_relaxed);
    m.end.store(reinterpret_cast<uintptr_t>(data) + size, std::memory_order_release);
    return;
  }
}

void forget(const std::byte* data) {
  const std::lock_guard lock(mappings_mutex);
  for (Mapping& m : mappings)
    if (m.end.load(std::memory_order_relaxed) != 0 &&
        m.begin.load(std::memory_order_relaxed) == reinterpret_cast<uintptr_t>(data))
      return m.end.store(0, std::memory_order_release);
}

void on_bus_error(int signal, siginfo_t* info, void*) {
  const auto at = reinterpret_cast<uintptr_t>(info->si_addr);
  for (const Mapping& m : mappings) {
    const uintptr_t end = m.end.load(std::memory_order_acquire);
    // The last page belongs to the mapping as a whole.
    if (end == 0 || at < m.begin.load(std::memory_order_relaxed) || at >= end + kPage) continue;
    // Threads of one step may meet the hole together: the first one speaks and ends the process.
    static std::atomic_flag spoken = ATOMIC_FLAG_INIT;
    if (spoken.test_and_set())
      for (;;) ::pause();
    (void)!::write(STDERR_FILENO, m.line.data(), m.line_bytes);
    ::_exit(1);
  }
  ::signal(signal, SIG_DFL);  // returning repeats the access, which now ends as it would have
}

}  // namespace

bool name_exists(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::symlink_status(path, ignored).type() !=
         std::filesystem::file_type::not_found;
}

void report_lost_mappings() {
  struct sigaction action = {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer. Regular files do not know the flag.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const int e = errno;
    return fail(e == ENOENT || e == ENOTDIR ? ErrorCode::kNotFound : ErrorCode::kInvalidFile,
                e == ENOENT && name_exists(path)
                    ? "expected a readable file, found a symbolic link to nothing"
                    : fmt::format("expected a readable file, found: {}", std::strerror(e)),
                path.string());
  }
  struct stat st{};
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    ::close(fd);
    return fail(
        ErrorCode::kInvalidFile,
        fmt::format("expected a regular file, found {}", S_ISDIR(st.st_mode)    ? "a directory"
                                                         : S_ISFIFO(st.st_mode) ? "a pipe"
                                                                                : "a device"),
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
    remember(file.data_, file.size_, path);
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
  if (data_ == nullptr) return;
  forget(data_);
  munmap(const_cast<std::byte*>(data_), size_);
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

namespace {
// The whole pages that hold these bytes.
std::span<std::byte> pages_of(std::span<const std::byte> bytes) {
  const size_t before = reinterpret_cast<uintptr_t>(bytes.data()) % kPage;
  return {const_cast<std::byte*>(bytes.data()) - before, bytes.empty() ? 0 : before + bytes.size()};
}
}  // namespace

void advise_will_need(std::span<const std::byte> bytes) {
  const auto pages = pages_of(bytes);
  if (!pages.empty()) madvise(pages.data(), pages.size(), MADV_WILLNEED);
}
void advise_random(std::span<const std::byte> bytes) {
  const auto pages = pages_of(bytes);
  if (!pages.empty()) madvise(pages.data(), pages.size(), MADV_RANDOM);
}

void advise_done(std::span<const std::byte> bytes) {
  const auto address = reinterpret_cast<uintptr_t>(bytes.data());
  const size_t before = (kPage - address % kPage) % kPage, after = (address + bytes.size()) % kPage;
  if (bytes.size() <= before + after) return;  // no whole page
  madvise(const_cast<std::byte*>(bytes.data()) + before, bytes.size() - before - after,
          MADV_DONTNEED);
}

bool read_in(std::span<const std::byte> bytes) {
  const auto pages = pages_of(bytes);
  if (pages.empty()) return true;
  madvise(pages.data(), pages.size(), MADV_WILLNEED);
#ifdef MADV_POPULATE_READ
  while (madvise(pages.data(), pages.size(), MADV_POPULATE_READ) != 0) {
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno != EINVAL) return false;
    break;  // a kernel before 5.14 does not know the call
  }
#endif
  std::byte sum{};
  for (size_t at = 0; at < bytes.size(); at += kPage) sum ^= bytes[at];
  [[maybe_unused]] volatile std::byte used = sum;
  return true;
}

}  // namespace deepmint
