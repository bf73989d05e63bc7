// The one table from what went wrong to what a client sees. Nobody else writes an error's status
// code or type.
//
//   ApiError e = api_error(error);              // e.status == 400, e.type ==
//   "invalid_request_error" response.body = error_body(e);              //
//   {"error":{"message":…,"type":…,"param":…,"code":…}}
#pragma once

#include <string>
#include <string_view>

#include "deepmint/result.h"

namespace deepmint {

struct ApiError {
  int status = 500;
  std::string type;  // OpenAI error type
  std::string
      code;  // finer: "model_not_found", "context_length_exceeded"; the type when there is none
  std::string message;    // one line
  std::string param;      // request field; empty for null
  int retry_after_s = 0;  // Retry-After header when above 0
};

// A failure inside the program. `where` of kInvalidArgument and kTooLarge errors is the request
// field.
ApiError api_error(const Error& error);

// Trouble that HTTP itself names: 400, 401, 403, 404, 405, 408, 411, 413, 414, 415, 417, 431, 500,
// 501, 503, 505.
ApiError http_error(int status, std::string message);

std::string error_body(const ApiError& error);

std::string_view reason_phrase(int status);  // "Not Found"

}  // namespace deepmint
