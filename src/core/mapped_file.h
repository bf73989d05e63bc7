// A read-only memory-mapped file. Move-only; unmapped on destruction. Safe to read from many
// threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "deepmint/result.h"

namespace deepmint {

class MappedFile {
 public:
  // Errors: kNotFound, kInvalidFile (not a regular file), kUnavailable (mapping failed). An empty
  // file maps to an empty span.
  static Result<MappedFile> open(const std::filesystem::path& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  size_t size() const { return size_; }
  const std::filesystem::path& path() const { return path_; }

  // Advice to the kernel about a byte range; out-of-range parts are ignored.
  void will_need(size_t offset, size_t length) const;
  void dont_need(size_t offset,
                 size_t length) const;  // drops resident pages; they read back from the file
  void random_access(size_t offset, size_t length) const;

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  std::filesystem::path path_;
};

}  // namespace deepmint
