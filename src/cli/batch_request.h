// One line of a batch's INPUT: a request in the format of OpenAI's Batch API, or the bare body of a
// chat request.
//
//   {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": […]}}
//   {"messages": […]}                                   // custom_id: the number of its line
//
// Pure; nothing of a line can fail more than that line.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cli/line_file.h"

namespace deepmint::cli {

// Why a line is no request: the codes of the published API where it has one.
struct BatchLineError {
  std::string_view code;  // "invalid_json_line"
  std::string message;    // "line 3: …"
};

struct BatchRequest {
  std::string custom_id;  // of the line, or its number when the line gives none that can be used
  std::string path = {};  // of the endpoint
  std::string body = {};  // JSON text
  std::optional<BatchLineError> error = {};  // then there is no path and no body
};

BatchRequest read_batch_request(const FileLine& line, size_t max_line_bytes);

}  // namespace deepmint::cli
