#include "cli/batch_output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "cli/terminal.h"
#include "core/json.h"
#include "core/names.h"

namespace deepmint::cli {
namespace {

constexpr size_t kMaxResultBytes = size_t{1} << 30;  // of one earlier result
constexpr std::string_view kFirstBytes = "{\"id\":\"batch_req_";
constexpr std::string_view kAnew = "; --overwrite begins anew";

tl::unexpected<Error> system_error(std::string_view what, const std::string& name) {
  return fail(ErrorCode::kUnavailable, fmt::format("{}: {}", what, std::strerror(errno)), name);
}

tl::unexpected<Error> cannot_open(const std::string& path) {
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("expected a file that can be written, found: {}", std::strerror(errno)),
              path);
}

// The file that a path names, links followed, whether or not it is there.
std::string resolved(const std::string& path) {
  std::error_code failed;
  const auto out = std::filesystem::weakly_canonical(path, failed);
  return failed ? path : out.string();
}

// Whether these bytes can be the beginning of a result, or what a disk leaves of one when the power
// fails.
bool may_be_torn_result(std::string_view text) {
  const size_t n = std::min(text.size(), kFirstBytes.size());
  return text.substr(0, n) == kFirstBytes.substr(0, n) ||
         text.find_first_not_of('\0') == std::string_view::npos;
}

struct EarlierResult {
  std::string id, custom_id;
  bool is_good = false;
};

std::optional<EarlierResult> parse_result(std::string_view text) {
  const auto parsed = json::parse(text);
  if (!parsed) return std::nullopt;
  const json::Value* id = parsed->find("id");
  const json::Value* custom_id = parsed->find("custom_id");
  if (id == nullptr || !id->is_string() || !id->as_string().starts_with(kResultIdPrefix) ||
      custom_id == nullptr || !(custom_id->is_string() || custom_id->is_null()))
    return std::nullopt;
  EarlierResult out{id->as_string(), custom_id->is_null() ? "" : custom_id->as_string()};
  if (const json::Value* response = parsed->find("response"))
    if (const json::Value* status = response->find("status_code"))
      out.is_good = status->to_int64() == 200;
  return out;
}

Status write_to(int fd, std::string_view text, const std::string& name) {
  if (Status done = write_all(fd, text); !done)
    return tl::unexpected(std::move(done).error().at(name));
  return {};
}

Status copy_range(int from, int to, uint64_t begin, uint64_t end, const std::string& name) {
  std::array<char, 256 << 10> piece;
  while (begin < end) {
    const size_t want = std::min<uint64_t>(piece.size(), end - begin);
    const ssize_t n = ::pread(from, piece.data(), want, static_cast<off_t>(begin));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return system_error("cannot read", name);
    if (n == 0) return fail(ErrorCode::kUnavailable, "expected the file to stay as it was", name);
    DEEPMINT_CHECK_OK(write_to(to, {piece.data(), static_cast<size_t>(n)}, name));
    begin += static_cast<uint64_t>(n);
  }
  return {};
}

Status lock(int fd, const std::string& name) {
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno == EWOULDBLOCK)
      return fail(ErrorCode::kUnavailable, "expected to be alone, found another process writing it",
                  name);
    return system_error("cannot lock", name);
  }
  return {};
}

}  // namespace

std::string digest_hex(const Hash128& digest) {
  return fmt::format("{:016x}{:016x}", digest.high, digest.low);
}

Hash128 request_digest(const FileLine& line, std::string_view custom_id, const Hash128& options) {
  const std::array<uint64_t, 4> words = {line.digest.low, line.digest.high, options.low,
                                         options.high};
  return xxh3_128(as_byte_span(custom_id), xxh3_64(std::as_bytes(std::span(words))));
}

std::string result_line(const BatchResult& result) {
  const std::string digits = digest_hex(result.request);
  json::Writer w;
  w.begin_object();
  w.key("id").value(std::string(kResultIdPrefix) + digits);
  w.key("custom_id");
  if (is_line_name(result.custom_id))
    w.null();
  else
    w.value(result.custom_id);
  w.key("response");
  if (result.error == nullptr) {
    w.begin_object();
    w.key("status_code").value(result.status);
    w.key("request_id").value("req_" + digits);
    w.key("body").raw(result.body);
    w.end_object();
  } else {
    w.null();
  }
  w.key("error");
  if (result.error != nullptr) {
    w.begin_object();
    w.key("code").value(result.error->code);
    w.key("message").value(result.error->message);
    w.end_object();
  } else {
    w.null();
  }
  w.end_object();
  return w.take() + "\n";
}

Result<BatchOutput> BatchOutput::open(const std::string& path, bool overwrite) {
  BatchOutput out;
  out.overwrite_ = overwrite;
  out.is_stdout_ = path == "-";
  out.name_ = out.is_stdout_ ? "standard output" : path;
  if (out.is_stdout_) return out;
  out.path_ = resolved(path);
  struct stat info = {};
  const bool exists = ::stat(out.path_.c_str(), &info) == 0;
  if (exists && S_ISDIR(info.st_mode))
    return fail(ErrorCode::kInvalidFile, "expected a file for results, found a folder", path);
  if (exists && !S_ISREG(info.st_mode)) {
    out.fd_ = OwnedFd(::open(out.path_.c_str(), O_WRONLY | O_CLOEXEC));
    if (!out.fd_) return cannot_open(path);
    return out;
  }
  out.is_file_ = true;
  // A file that another process has put under this name since is not the one that was locked.
  for (int attempt = 0; attempt < 10; ++attempt) {
    out.fd_ = OwnedFd(::open(out.path_.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0666));
    if (!out.fd_) return cannot_open(path);
    DEEPMINT_CHECK_OK(lock(out.fd_.get(), path));
    if (out.is_same_file(-1)) break;
  }
  if (::fstat(out.fd_.get(), &info) != 0) return system_error("cannot read", path);
  out.created_ = !exists && info.st_size == 0;
  return out;
}

BatchOutput::~BatchOutput() {
  // A run that could not begin leaves no empty file behind.
  if (fd_ && created_) ::unlink(path_.c_str());
}

// fd -1: of the path, as it is now.
bool BatchOutput::is_same_file(int fd) const {
  struct stat mine = {}, other = {};
  if (!fd_ && !is_stdout_) return false;
  if (::fstat(is_stdout_ ? STDOUT_FILENO : fd_.get(), &mine) != 0) return false;
  if ((fd < 0 ? ::stat(path_.c_str(), &other) : ::fstat(fd, &other)) != 0) return false;
  return mine.st_dev == other.st_dev && mine.st_ino == other.st_ino;
}

Result<BatchOutput::Earlier> BatchOutput::read(BatchLedger& ledger) {
  Earlier out;
  if (!is_file_) return out;
  LineFile file(fd_.get(), name_, kMaxResultBytes);
  bool is_first = true;
  for (;;) {
    DEEPMINT_TRY(line, file.next());
    if (!line) break;
    const std::string where = fmt::format("{}, line {}", name_, line->number);
    // Nobody's notes are taken for a torn result, not even to be overwritten.
    const bool is_torn = !line->is_ended && may_be_torn_result(line->text);
    std::optional<EarlierResult> result;
    if (!is_torn) {
      if (!line->is_too_long) result = parse_result(line->text);
      if (!result && (!overwrite_ || is_first))
        return fail(ErrorCode::kInvalidFile,
                    fmt::format("expected a result of deepmint batch, found {}",
                                quote_name(line->text, 40)),
                    where);
    }
    is_first = false;
    if (overwrite_) return out;
    if (is_torn) {
      out.torn = true;
      break;
    }
    if (!result->is_good) {
      ++out.failed;
      continue;
    }
    BatchLedger::Entry* entry = ledger.find(result->custom_id);
    if (entry == nullptr)
      return fail(ErrorCode::kInvalidFile,
                  fmt::format("expected results of this batch, found custom_id {}, which it does "
                              "not have{}",
                              quote_name(result->custom_id, 64), kAnew),
                  where);
    if (entry->done)
      return fail(ErrorCode::kInvalidFile,
                  fmt::format("expected one result for each request, found a second one of "
                              "custom_id {}{}",
                              quote_name(result->custom_id, 64), kAnew),
                  where);
    if (!result->id.ends_with(fmt::format("{:08x}", entry->request)))
      return fail(ErrorCode::kInvalidFile,
                  fmt::format("expected the answer to custom_id {} as it is now, found one from "
                              "before its line or an option changed{}",
                              quote_name(result->custom_id, 64), kAnew),
                  where);
    entry->done = true;
    ++out.done;
    if (!kept_.empty() && kept_.back().second == line->begin) {
      kept_.back().second = line->end;
    } else {
      kept_.emplace_back(line->begin, line->end);
    }
  }
  return out;
}

// Without the results whose requests are run again: a new file in the place of the old one.
Status BatchOutput::rewrite() {
  std::string temporary = path_ + ".XXXXXX";  // nobody's file has the name that comes of it
  struct stat info = {};
  if (::fstat(fd_.get(), &info) != 0) return system_error("cannot read", name_);
  OwnedFd fd(::mkostemp(temporary.data(), O_APPEND | O_CLOEXEC));
  if (!fd) return system_error("cannot make it", temporary);
  const auto fill = [&]() -> Status {
    if (::fchmod(fd.get(), info.st_mode & 07777) != 0)
      return system_error("cannot set its mode", temporary);
    (void)!::fchown(fd.get(), info.st_uid, info.st_gid);  // another's file stays theirs, if it can
    DEEPMINT_CHECK_OK(lock(fd.get(), temporary));
    for (const auto& [begin, end] : kept_)
      DEEPMINT_CHECK_OK(copy_range(fd_.get(), fd.get(), begin, end, temporary));
    if (::fsync(fd.get()) != 0) return system_error("cannot write", temporary);
    if (::rename(temporary.c_str(), path_.c_str()) != 0)
      return system_error("cannot replace", name_);
    return {};
  };
  if (Status done = fill(); !done) {
    ::unlink(temporary.c_str());
    return done;
  }
  const std::string folder = std::filesystem::path(path_).parent_path().string();
  if (const OwnedFd dir(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)); dir)
    (void)::fsync(dir.get());
  // Stays open and locked: who waits to open the old file must not get it.
  before_rewrite_ = std::move(fd_);
  fd_ = std::move(fd);
  return {};
}

Status BatchOutput::prepare() {
  if (!is_file_) return {};
  struct stat info = {};
  if (::fstat(fd_.get(), &info) != 0) return system_error("cannot read", name_);
  for (const auto& [begin, end] : kept_) size_ += end - begin;
  const bool is_prefix = kept_.empty() || (kept_.size() == 1 && kept_.front().first == 0);
  if (!is_prefix) return rewrite();
  if (static_cast<uint64_t>(info.st_size) != size_ &&
      ::ftruncate(fd_.get(), static_cast<off_t>(size_)) != 0)
    return system_error("cannot write", name_);
  return {};
}

Status BatchOutput::write(std::string_view line) {
  if (is_stdout_) return write_stdout(line);
  Status done = write_to(fd_.get(), line, name_);
  if (done) {
    created_ = false;
    size_ += line.size();
  } else if (is_file_) {
    (void)!::ftruncate(fd_.get(), static_cast<off_t>(size_));
  }
  return done;
}

Status BatchOutput::finish() {
  created_ = false;
  if (is_file_ && ::fdatasync(fd_.get()) != 0) return system_error("cannot write", name_);
  return {};
}

}  // namespace deepmint::cli
