#include "support/public_suite.h"
#include "support/source_dir.h"

#include <zstd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>

namespace deepmint::testing {
namespace {

std::string decompress(const std::string& packed) {
  ZSTD_DCtx* context = ZSTD_createDCtx();
  std::string out, chunk(ZSTD_DStreamOutSize(), '\0');
  ZSTD_inBuffer input{packed.data(), packed.size(), 0};
  size_t left = 1;
  while (input.pos < input.size) {
    ZSTD_outBuffer output{chunk.data(), chunk.size(), 0};
    left = ZSTD_decompressStream(context, &output, &input);
    if (ZSTD_isError(left)) break;
    out.append(chunk, 0, output.pos);
  }
  ZSTD_freeDCtx(context);
  if (left != 0) throw std::runtime_error("damaged zstd file");
  return out;
}

}  // namespace

std::optional<std::vector<std::string>> public_suite(std::string_view file_name) {
  for (const char* folder : {"tests/data", "../shared/data", "../../shared/data"}) {
    std::ifstream in(source_path(folder) / file_name, std::ios::binary);
    if (!in) continue;
    std::istringstream text(decompress({std::istreambuf_iterator<char>(in), {}}));
    std::vector<std::string> lines;
    for (std::string line; std::getline(text, line);)
      if (!line.empty()) lines.push_back(std::move(line));
    return lines;
  }
  return std::nullopt;
}

std::string from_base64(std::string_view text) {
  constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  uint32_t bits = 0;
  int n_bits = 0;
  for (const char c : text) {
    const size_t value = kAlphabet.find(c);
    if (value == std::string_view::npos) continue;
    bits = bits << 6 | static_cast<uint32_t>(value);
    n_bits += 6;
    if (n_bits < 8) continue;
    n_bits -= 8;
    out.push_back(static_cast<char>(bits >> n_bits & 0xff));
  }
  return out;
}

}  // namespace deepmint::testing
