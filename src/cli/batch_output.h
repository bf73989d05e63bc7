// A batch's OUTPUT: results in the format of OpenAI's Batch API, one a line, and what an earlier
// run has left of them.
//
//   DEEPMINT_TRY(output, BatchOutput::open("out.jsonl", overwrite));
//   DEEPMINT_TRY(earlier, output.read(ledger));          // marks what is done; changes nothing
//   DEEPMINT_CHECK_OK(output.prepare());                 // now it does
//   DEEPMINT_CHECK_OK(output.write(result_line({.id = id, .custom_id = "a", .status = 200, …})));
//   DEEPMINT_CHECK_OK(output.finish());
//
// Every result is one write of a whole line, so that a process that is killed leaves at most its
// last line torn. One process at a time has a file (flock).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/batch_ledger.h"
#include "cli/batch_request.h"
#include "cli/line_file.h"
#include "core/hash.h"
#include "deepmint/result.h"

namespace deepmint::cli {

inline constexpr std::string_view kResultIdPrefix = "batch_req_";

// The hash of all that a result is the answer to: the line, its custom_id, the options that are
// defaults of requests. The id of a result is made of it, so that a later run can tell whether the
// result in OUTPUT answers the request that INPUT has now.
Hash128 request_digest(const FileLine& line, std::string_view custom_id, const Hash128& options);
std::string digest_hex(const Hash128& digest);  // 32 digits

struct BatchResult {
  Hash128 request = {};  // request_digest()
  std::string_view custom_id;
  int status = 0;                         // of an answer
  std::string_view body = {};             // of an answer: one JSON value on one line
  const BatchLineError* error = nullptr;  // instead of an answer
};
std::string result_line(const BatchResult& result);  // with its line end

class BatchOutput {
 public:
  struct Earlier {
    size_t done = 0;    // results that stay
    size_t failed = 0;  // results that are not 200: their requests are run again
    bool torn = false;  // the last line has no end: it is cut off
  };

  // "-" is standard output. What is not a regular file (a pipe, /dev/null) is written from its
  // beginning and never read. Errors: kInvalidFile (a folder), kUnavailable (cannot be opened or
  // locked: no permission, no such folder, another process has it).
  static Result<BatchOutput> open(const std::string& path, bool overwrite);
  ~BatchOutput();
  BatchOutput(BatchOutput&&) = default;
  BatchOutput& operator=(BatchOutput&&) = delete;

  const std::string& name() const { return name_; }
  bool is_resumable() const { return is_file_; }
  bool is_same_file(int fd) const;

  // What an earlier run has left. Errors: kInvalidFile with the line: no result of a batch, a
  // result of another batch, a result of another request under the same custom_id, a custom_id
  // twice.
  Result<Earlier> read(BatchLedger& ledger);
  // Takes out what read() counted as failed or torn, or everything (overwrite).
  Status prepare();

  // kUnavailable: disk full, reader gone (kCancelled for standard output). The file then ends with
  // the last whole line.
  Status write(std::string_view line);
  Status finish();  // what was written is on the disk

 private:
  BatchOutput() = default;
  Status rewrite();

  std::string name_, path_;  // path_: with links resolved
  OwnedFd fd_, before_rewrite_;
  bool is_stdout_ = false, is_file_ = false, overwrite_ = false;
  bool created_ = false;                             // by open(), and nothing has been written yet
  uint64_t size_ = 0;                                // of whole lines
  std::vector<std::pair<uint64_t, uint64_t>> kept_;  // ranges of bytes that stay
};

}  // namespace deepmint::cli
