// Value-or-error, used everywhere that something outside the program can be at fault.
//
//   Result<Tensor> load(const Path& p) {
//     DEEPMINT_TRY(file, MappedFile::open(p));            // returns the error to the caller
//     if (file.size() < kHeaderBytes)
//       return fail(ErrorCode::kInvalidFile, fmt::format("expected at least {} bytes, found {}",
//       ...), p.string());
//     return Tensor{...};
//   }
#pragma once

#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace deepmint {

// What kind of trouble it is. server/errors.cc is the one place that maps these to HTTP status and
// API error types; exit_code() is the one place that maps them to process exit codes.
enum class ErrorCode {
  kInvalidArgument,  // a caller's value is wrong: request field, flag, token id
  kInvalidFile,      // a file the user named is damaged, truncated or inconsistent
  kUnsupported,      // well-formed, but something that this build does not do; the message names it
  kNotFound,         // file, model or id that is not there
  kTooLarge,         // over a published limit; the message names the limit
  kResourceExhausted,  // a bounded resource is full now (queue, blocks, memory); retrying later may
                       // work
  kDeadlineExceeded,
  kCancelled,
  kUnavailable,  // shutting down, or the environment went away
  kInternal,     // our bug, reported instead of aborting where a process must stay up
};

std::string_view to_string(ErrorCode code);  // "invalid_argument", …

struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;       // what was expected and what was found, one line
  std::string where;         // file, field, tensor or position; may be empty
  double retry_after_s = 0;  // kResourceExhausted: when to come again, as far as known; 0 = unsaid

  // "where: message", or the message alone when `where` is empty.
  std::string str() const { return where.empty() ? message : where + ": " + message; }

  // Puts an outer place in front: e.at("model.gguf") turns "tensor x" into "model.gguf: tensor x".
  Error at(std::string_view outer) && {
    where = where.empty() ? std::string(outer) : std::string(outer) + ": " + where;
    return std::move(*this);
  }
};

// 2 when the command line or a file the user named is wrong, 1 for everything else
// (docs/architecture.md).
int exit_code(const Error& error);

template <class T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

[[nodiscard]] inline tl::unexpected<Error> fail(ErrorCode code, std::string message,
                                                std::string where = {}) {
  return tl::unexpected<Error>(Error{code, std::move(message), std::move(where)});
}

}  // namespace deepmint

#define DEEPMINT_CONCAT_(a, b) a##b
#define DEEPMINT_CONCAT(a, b) DEEPMINT_CONCAT_(a, b)

// DEEPMINT_TRY(name, expr): evaluates a Result; declares `auto name` with its value or returns its
// error.
#define DEEPMINT_TRY(name, ...)                                 \
  auto DEEPMINT_CONCAT(result_, __LINE__) = (__VA_ARGS__);      \
  if (!DEEPMINT_CONCAT(result_, __LINE__))                      \
    return ::tl::unexpected<::deepmint::Error>(                 \
        std::move(DEEPMINT_CONCAT(result_, __LINE__)).error()); \
  auto name = std::move(*DEEPMINT_CONCAT(result_, __LINE__))

// DEEPMINT_CHECK_OK(expr): the same for a Status.
#define DEEPMINT_CHECK_OK(...)                                                \
  do {                                                                        \
    if (auto status_ = (__VA_ARGS__); !status_)                               \
      return ::tl::unexpected<::deepmint::Error>(std::move(status_).error()); \
  } while (0)
