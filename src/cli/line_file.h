// Lines of a file of any size, one at a time, in the memory of the longest one that is taken.
//
//   DEEPMINT_TRY(file, LineFile::open("requests.jsonl", 32 << 20));
//   for (;;) {
//     DEEPMINT_TRY(line, file.next());
//     if (!line) break;
//     use(line->number, line->text);
//   }
//   file.rewind();
//
// A pipe or standard input is copied into a temporary file first, so that it can be read twice.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/hash.h"
#include "deepmint/result.h"

namespace deepmint::cli {

// A file descriptor that is closed with its owner.
class OwnedFd {
 public:
  OwnedFd() = default;
  explicit OwnedFd(int fd) : fd_(fd) {}
  OwnedFd(OwnedFd&& other) noexcept;
  OwnedFd& operator=(OwnedFd&& other) noexcept;
  ~OwnedFd();
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

struct FileLine {
  size_t number = 0;            // from 1, empty lines included
  uint64_t begin = 0, end = 0;  // bytes of the file, the line end included
  std::string_view text = {};   // without "\n" or "\r\n"; valid until the next call
  bool is_too_long = false;     // then `text` is its beginning
  bool is_ended = true;         // false: the last line, without a line end
  Hash128 digest = {};          // of the text, all of it or its beginning and its length
};

class LineFile {
 public:
  // "-" is standard input. Errors: kNotFound, kInvalidFile (a folder), kUnavailable (cannot be
  // read, or copied).
  static Result<LineFile> open(const std::string& path, size_t max_line_bytes);
  // Borrows an open regular file, whose offset is not used.
  LineFile(int fd, std::string name, size_t max_line_bytes);

  // The next line that is not empty (spaces and tabs count as nothing); nullopt at the end.
  Result<std::optional<FileLine>> next();
  void rewind();  // what was added behind the end since it was reached is not read
  // The text of a line that next() has given before. kUnavailable when it is another one by now.
  Result<FileLine> again(const FileLine& before);

  const std::string& name() const { return name_; }  // the path, or "standard input"
  int fd() const { return fd_; }

 private:
  Result<bool> fill();
  FileLine line(std::string_view text, uint64_t begin, uint64_t end) const;

  OwnedFd owned_;
  int fd_ = -1;
  std::string name_;
  size_t max_ = 0;
  uint64_t start_ = 0;             // where the first line begins
  uint64_t limit_ = ~uint64_t{0};  // where the file ended when it was first read to its end
  std::string buffer_, scratch_;
  uint64_t offset_ = 0;  // of buffer_[0] in the file
  size_t begin_ = 0;     // of what is not given out yet
  size_t searched_ = 0;  // no line end in [begin_, searched_)
  size_t number_ = 0;
  bool ended_ = false;
};

}  // namespace deepmint::cli
