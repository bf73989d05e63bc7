// Encodes texts for the tests in tests/e2e/test_tokenizer.py.
//
//   tokenize_ids MODEL text|control|segments|roundtrip < frames > frames
//   tokenize_ids PATTERN pattern < frames > frames
//   tokenize_ids MODEL engram > frame
//
// MODEL is a .gguf file or a tokenizer.json; the second form gives the lengths of the pieces that a
// pattern cuts. Frames in: length as little-endian uint32, then the bytes. Frames out: the count as
// uint32, then int32 ids; for `roundtrip`: a length and the bytes that the ids of the text decode
// to; for `engram`: the compressed id of every token.
#include <cstdio>
#include <cstring>
#include <iostream>
#include <string>
#include <string_view>

#include "engine/gguf_tokenizer.h"
#include "tokenizer/engram_map.h"
#include "tokenizer/regex_splitter.h"
#include "tokenizer/tokenizer.h"

namespace {

using deepmint::Result;
using deepmint::TokenId;
using deepmint::Tokenizer;

Result<std::shared_ptr<const Tokenizer>> load(const std::string& path) {
  if (!path.ends_with(".gguf")) return Tokenizer::from_file(path);
  DEEPMINT_TRY(file, deepmint::GgufFile::open(path));
  DEEPMINT_TRY(spec, deepmint::tokenizer_spec_from_gguf(file));
  return Tokenizer::create(std::move(spec));
}

bool read_exactly(void* to, size_t bytes) { return std::fread(to, 1, bytes, stdin) == bytes; }

void write_count(size_t count) {
  const auto n = static_cast<uint32_t>(count);
  std::fwrite(&n, sizeof n, 1, stdout);
}

// Calls respond(text) for each frame.
template <class F>
int for_each_frame(F&& respond) {
  std::string text;
  for (uint32_t length = 0; read_exactly(&length, sizeof length);) {
    text.resize(length);
    if (!read_exactly(text.data(), length)) return 1;
    respond(text);
  }
  return 0;
}

void write_ids(const std::vector<TokenId>& ids) {
  write_count(ids.size());
  std::fwrite(ids.data(), sizeof(TokenId), ids.size(), stdout);
}

// A frame of segments: for each 't' (text) or 'c' (control), the length as uint32, the bytes.
std::vector<deepmint::Segment> parse_segments(std::string_view frame) {
  std::vector<deepmint::Segment> out;
  while (frame.size() >= 5) {
    uint32_t length = 0;
    std::memcpy(&length, frame.data() + 1, sizeof length);
    out.push_back(
        {frame[0] == 'c' ? deepmint::Segment::Kind::kControl : deepmint::Segment::Kind::kText,
         std::string(frame.substr(5, length))});
    frame.remove_prefix(5 + out.back().text.size());
  }
  return out;
}

int report(const deepmint::Error& error) {
  std::cerr << error.str() << "\n";
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view mode = argc == 3 ? argv[2] : "";
  if (mode == "pattern") {
    const auto splitter = deepmint::RegexSplitter::compile(argv[1]);
    if (!splitter) return report(splitter.error());
    return for_each_frame([&](const std::string& text) {
      std::vector<TokenId> lengths;
      splitter->split(text, [&](std::string_view piece) {
        lengths.push_back(static_cast<TokenId>(piece.size()));
      });
      write_ids(lengths);
    });
  }
  if (mode != "text" && mode != "control" && mode != "segments" && mode != "roundtrip" &&
      mode != "engram") {
    std::cerr << "usage: tokenize_ids MODEL text|control|segments|roundtrip < frames > frames\n"
                 "       tokenize_ids PATTERN pattern < frames > frames\n"
                 "       tokenize_ids MODEL engram > frame\n";
    return 2;
  }
  const auto tokenizer = load(argv[1]);
  if (!tokenizer) return report(tokenizer.error());
  if (mode == "engram") {
    write_ids(deepmint::make_engram_map(**tokenizer).ids);
    return 0;
  }
  return for_each_frame([&](const std::string& text) {
    const std::vector<TokenId> ids = mode == "control" ? (*tokenizer)->encode_control(text)
                                     : mode == "segments"
                                         ? (*tokenizer)->encode(parse_segments(text))
                                         : (*tokenizer)->encode_text(text);
    if (mode != "roundtrip") return write_ids(ids);
    const std::string decoded = (*tokenizer)->decode(ids);
    write_count(decoded.size());
    std::fwrite(decoded.data(), 1, decoded.size(), stdout);
  });
}
