#include "cli/line_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "cli/terminal.h"

namespace deepmint::cli {
namespace {

constexpr size_t kPiece = 256 << 10;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr size_t kLineEnds = 8;  // more than a byte order mark and "\r\n"

tl::unexpected<Error> system_error(std::string_view what, const std::string& name) {
  return fail(ErrorCode::kUnavailable, fmt::format("{}: {}", what, std::strerror(errno)), name);
}

// A file without a name, for what cannot be read twice.
Result<OwnedFd> temporary_file() {
  std::error_code failed;
  const std::filesystem::path folder = std::filesystem::temp_directory_path(failed);
  if (failed)
    return fail(ErrorCode::kUnavailable,
                "expected a folder for temporary files: " + failed.message(), "TMPDIR");
  std::string name = (folder / "deepmint-batch-XXXXXX").string();
  OwnedFd fd(::mkostemp(name.data(), O_CLOEXEC));
  if (!fd) return system_error("cannot make a temporary file", folder.string());
  ::unlink(name.c_str());
  return fd;
}

Status copy(int from, int to, const std::string& name) {
  std::array<char, kPiece> piece;
  for (;;) {
    const ssize_t n = ::read(from, piece.data(), piece.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return system_error("cannot read", name);
    if (n == 0) return {};
    if (!write_all(to, {piece.data(), static_cast<size_t>(n)}))
      return system_error("cannot write its copy into a temporary file", name);
  }
}

}  // namespace

OwnedFd::OwnedFd(OwnedFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
OwnedFd& OwnedFd::operator=(OwnedFd&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}
OwnedFd::~OwnedFd() {
  if (fd_ >= 0) ::close(fd_);
}

LineFile::LineFile(int fd, std::string name, size_t max_line_bytes)
    : fd_(fd), name_(std::move(name)), max_(max_line_bytes) {}

Result<LineFile> LineFile::open(const std::string& path, size_t max_line_bytes) {
  const bool is_stdin = path == "-";
  const std::string name = is_stdin ? "standard input" : path;
  OwnedFd opened;
  if (!is_stdin) {
    opened = OwnedFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!opened && (errno == ENOENT || errno == ENOTDIR))
      return fail(ErrorCode::kNotFound, "expected a file of requests, found nothing", name);
    if (!opened)
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("expected a file that can be read, found: {}", std::strerror(errno)),
                  name);
  }
  const int fd = is_stdin ? STDIN_FILENO : opened.get();
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return system_error("cannot read", name);
  if (S_ISDIR(info.st_mode))
    return fail(ErrorCode::kInvalidFile, "expected a file of requests, found a folder", name);
  LineFile file(fd, name, max_line_bytes);
  if (S_ISREG(info.st_mode)) {
    if (is_stdin) file.start_ = static_cast<uint64_t>(std::max<off_t>(0, ::lseek(fd, 0, SEEK_CUR)));
  } else {
    DEEPMINT_TRY(spool, temporary_file());
    DEEPMINT_CHECK_OK(copy(fd, spool.get(), name));
    opened = std::move(spool);
    file.fd_ = opened.get();
  }
  file.owned_ = std::move(opened);
  file.rewind();
  return file;
}

void LineFile::rewind() {
  if (ended_) limit_ = offset_ + buffer_.size();
  buffer_.clear();
  offset_ = start_;
  begin_ = searched_ = number_ = 0;
  ended_ = false;
}

// More of the file into the buffer; false at its end.
Result<bool> LineFile::fill() {
  buffer_.erase(0, begin_);
  offset_ += begin_;
  begin_ = 0;
  searched_ = buffer_.size();
  const size_t have = buffer_.size();
  buffer_.resize(have + kPiece);
  for (;;) {
    const uint64_t left = limit_ - std::min(limit_, offset_ + have);
    const ssize_t n = ::pread(fd_, buffer_.data() + have, std::min<uint64_t>(kPiece, left),
                              static_cast<off_t>(offset_ + have));
    if (n < 0 && errno == EINTR) continue;
    buffer_.resize(have + static_cast<size_t>(std::max<ssize_t>(n, 0)));
    if (n < 0) return system_error("cannot read", name_);
    return n > 0;
  }
}

FileLine LineFile::line(std::string_view text, uint64_t begin, uint64_t end) const {
  FileLine out{.number = number_, .begin = begin, .end = end, .text = text};
  if (out.text.ends_with('\r')) out.text.remove_suffix(1);
  if (begin == start_ && out.text.starts_with(kByteOrderMark))
    out.text.remove_prefix(kByteOrderMark.size());
  out.is_too_long = out.text.size() > max_;
  if (out.is_too_long) out.text = out.text.substr(0, max_);
  out.digest = xxh3_128(as_byte_span(out.text), out.is_too_long ? end - begin : 0);
  return out;
}

Result<std::optional<FileLine>> LineFile::next() {
  scratch_.clear();
  uint64_t begins = 0;  // of a line that is too long, whose beginning is in scratch_
  for (;;) {
    const bool in_long = !scratch_.empty();
    const size_t found = buffer_.find('\n', searched_);
    const bool is_last = found == std::string::npos && ended_;
    if (is_last && !in_long && begin_ == buffer_.size()) return std::nullopt;
    if (found != std::string::npos || is_last) {
      const size_t end = std::min(found, buffer_.size());
      const size_t next = std::min(end + 1, buffer_.size());
      const auto text = std::string_view(buffer_).substr(begin_, end - begin_);
      if (!in_long) begins = offset_ + begin_;
      begin_ = searched_ = next;
      ++number_;
      if (!in_long && text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      FileLine out = line(in_long ? scratch_ : text, begins, offset_ + next);
      out.is_ended = !is_last;
      return out;
    }
    // Of a line that is too long all but the beginning is dropped as it comes.
    if (!in_long && buffer_.size() - begin_ > max_ + kLineEnds) {
      begins = offset_ + begin_;
      scratch_ = buffer_.substr(begin_, max_ + kLineEnds);
      begin_ = buffer_.size();
    } else if (in_long) {
      begin_ = buffer_.size();
    }
    DEEPMINT_TRY(more, fill());
    ended_ = !more;
  }
}

Result<FileLine> LineFile::again(const FileLine& before) {
  scratch_.resize(std::min<uint64_t>(before.end - before.begin, max_ + kLineEnds));
  size_t have = 0;
  while (have < scratch_.size()) {
    const ssize_t n = ::pread(fd_, scratch_.data() + have, scratch_.size() - have,
                              static_cast<off_t>(before.begin + have));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return system_error("cannot read", name_);
    if (n == 0) break;
    have += static_cast<size_t>(n);
  }
  scratch_.resize(have);
  std::string_view text = scratch_;
  if (text.ends_with('\n')) text.remove_suffix(1);
  FileLine out = line(text, before.begin, before.end);
  out.number = before.number;
  out.is_ended = before.is_ended;
  if (out.digest != before.digest)
    return fail(
        ErrorCode::kUnavailable,
        fmt::format("expected the file to stay as it was, found another line {}", before.number),
        name_);
  return out;
}

}  // namespace deepmint::cli
