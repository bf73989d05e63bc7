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
  // Of the line; the number of a line that has none and is a request; and of a line that is no
  // request and has none a name that no custom_id can be (is_line_name()).
  std::string custom_id;
  bool is_numbered = false;
  std::string path = {};                     // of the endpoint
  std::string body = {};                     // JSON text
  std::optional<BatchLineError> error = {};  // then there is no path and no body
};

// A text that is no UTF-8, so that no JSON string has it.
inline bool is_line_name(std::string_view custom_id) { return custom_id.starts_with('\xff'); }

BatchRequest read_batch_request(const FileLine& line, size_t max_line_bytes);

}  // namespace deepmint::cli
