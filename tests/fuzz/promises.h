// What must hold whatever the input was. A broken promise traps, so that the fuzzer keeps the
// input.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "core/utf8.h"
#include "format/inspect.h"
#include "format/tensor.h"

namespace deepmint::fuzz {

inline void require(bool condition) {
  if (!condition) __builtin_trap();
}

// An error is one line of printable text.
inline void check_error(const Error& error) {
  const std::string line = error.str();
  require(!line.empty() && line.size() < 4'000);
  require(utf8::is_valid(line));
  for (const char c : line) require(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f);
}

// Every view lies inside its file and has exactly the bytes of its shape; reading it is safe.
inline void check_tensor(const TensorView& t, std::span<const std::byte> file) {
  require(t.bytes.data() >= file.data() &&
          t.bytes.data() + t.bytes.size() <= file.data() + file.size());
  require(t.bytes.data() == file.data() + t.file_offset);
  require(row_bytes(t.dtype, t.elements()) == t.bytes.size());
  uint8_t sum = 0;
  for (const std::byte b : t.bytes) sum = static_cast<uint8_t>(sum + static_cast<uint8_t>(b));
  volatile uint8_t sink = sum;
  (void)sink;
}

// Both outputs of a report are well-formed, and say the same.
inline void check_report(const InspectReport& report) {
  const std::string text = to_text(report);
  require(utf8::is_valid(text) && text.ends_with('\n'));
  for (const char c : text)
    require(c == '\n' || (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f));
  const auto document = json::parse(to_json(report));
  require(document.has_value());
  require(document->find("whole")->as_bool() == report.whole());
  require(document->find("tensors")->items().size() == report.tensors.size());
  if (report.problem) check_error(*report.problem);
}

}  // namespace deepmint::fuzz
