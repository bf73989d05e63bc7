#include "memory_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace deepmint::fuzz {

const std::filesystem::path& memory_file(std::span<const uint8_t> contents) {
  static const int fd = memfd_create("fuzz_input", MFD_CLOEXEC);
  static const std::filesystem::path path = "/proc/self/fd/" + std::to_string(fd);
  if (fd < 0 || ftruncate(fd, 0) != 0 ||
      pwrite(fd, contents.data(), contents.size(), 0) != static_cast<ssize_t>(contents.size()))
    std::abort();
  return path;
}

}  // namespace deepmint::fuzz
