// A read-only memory-mapped file. Move-only; unmapped on destruction. Safe to read from many
// threads. The file must stay as it is while it is mapped: whoever replaces it writes a new one and
// renames it over the old, which the mapping then keeps.
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

// Whether something has this name, whatever it is: a link to nothing too, so that opening it can
// say so instead of taking the file for one that is not there.
bool name_exists(const std::filesystem::path& path);

// A page that the file no longer has (it was cut short in place, or its disk is gone) raises SIGBUS
// when it is read. With this handler the process then ends with exit code 1 and one line on
// standard error that names the file, instead of dying of the signal; a SIGBUS elsewhere stays what
// it is. For programs, once, at their start.
void report_lost_mappings();

// The same for bytes that lie inside any mapping, and no error when they do not.
void advise_will_need(std::span<const std::byte> bytes);  // starts reading; does not wait
void advise_random(std::span<const std::byte> bytes);     // single pages, no read-ahead
void advise_done(std::span<const std::byte> bytes);  // whole pages leave the process's memory; they
                                                     // stay in the page cache

// Reads every page of these mapped bytes into memory and waits for it. False when the file cannot
// give them (it shrank, the disk failed); where the system has no call that tells, touching such a
// page ends the process.
bool read_in(std::span<const std::byte> bytes);

}  // namespace deepmint
