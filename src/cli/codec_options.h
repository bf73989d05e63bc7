// The options that encode and decode share: which protocol, which prompt format, which tokenizer.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cli/options.h"
#include "recipe/codec_cli.h"

namespace deepmint::cli {

// Requests and JSONL lines; the same order as the server's limit.
inline constexpr size_t kMaxCodecBytes = size_t{64} << 20;

struct CodecOptions {
  std::optional<std::string> protocol, tokenizer;
  std::string version = "v4.1", compat = "ours";
  bool jsonl = false;

  void add(Options& o);
  // Reads the tokenizer when one is named. `op`: what a JSONL line without "op" means.
  Result<recipe::CodecSettings> settings(std::string_view op) const;
  Result<recipe::Protocol> need_protocol() const;
};

// One answer a line for each line of standard input.
Status run_codec_lines(const recipe::CodecSettings& settings);

}  // namespace deepmint::cli
