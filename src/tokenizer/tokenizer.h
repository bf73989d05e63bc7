// Text to token ids and back: byte-level BPE from GGUF metadata or a Hugging Face tokenizer.json.
//
//   DEEPMINT_TRY(tok, Tokenizer::from_file("model/tokenizer.json"));
//   const std::array prompt = {Segment{Segment::Kind::kControl, "<|im_start|>"}, ...};
//   std::vector<TokenId> ids = tok->encode(prompt);
//   Detokenizer d(*tok);
//   for (TokenId id : ids) out += d.push(id);     // only complete UTF-8
//   out += d.finish();
//
// Immutable after construction; all const methods may be called from many threads.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "deepmint/result.h"
#include "deepmint/types.h"
#include "tokenizer/segment.h"

namespace deepmint {

enum class Normalizer : uint8_t { kNone, kNfc };

// Pre-tokenizers that we know by name. Each has a PCRE2 pattern list (the definition) and a
// hand-written splitter (the speed).
enum class PreTokenizer : uint8_t { kGpt2, kLlama3, kQwen2, kSmolLm, kDeepSeekV3 };

// Everything a tokenizer is made of; the GGUF and tokenizer.json front ends fill it,
// Tokenizer::create checks it.
struct TokenizerSpec {
  struct Added {
    TokenId id = 0;
    std::string text;
    bool special = false;  // not shown by decode(skip_special)
    bool normalized = false;
    bool lstrip = false, rstrip = false, single_word = false;
  };
  std::vector<std::string> vocab;  // raw bytes of each token (byte-level mapping undone), index =
                                   // id; added tokens as text
  std::vector<std::pair<TokenId, TokenId>>
      merges;  // in rank order; merged token is the concatenation
  std::vector<Added> added;
  Normalizer normalizer = Normalizer::kNone;
  std::optional<PreTokenizer> pre;  // one of the known ones, or
  std::vector<std::string>
      patterns;  // in the dialect of tokenizer.json (pattern.h), applied one after another as
                 // isolating splits; neither this nor `pre`: a stretch of text is one piece
  bool ignore_merges = false;  // a whole piece that is a token is taken at once (Llama 3)
  // For a byte without a token of its own: its fallback token, else `unk`, else the byte is left
  // out, as the published implementation does.
  std::vector<std::pair<unsigned char, TokenId>> byte_fallback;
  std::optional<TokenId> unk;
  bool fuse_unk = false;             // neighbouring unknown bytes give one `unk`
  std::vector<TokenId> decode_only;  // ids that text never gives: unused ones, and texts outside
                                     // the byte-level alphabet
  std::optional<TokenId> bos, eos, pad;
  bool add_bos = false, add_eos = false;
  std::vector<TokenId> end_ids;  // every id that ends a turn (eos, <|im_end|>, <|eot_id|>, …)
};

class Tokenizer {
 public:
  static Result<std::shared_ptr<const Tokenizer>> create(TokenizerSpec spec);
  // A Hugging Face tokenizer.json (tokenizer_config.json beside it is read for bos/eos when there).
  static Result<std::shared_ptr<const Tokenizer>> from_file(const std::filesystem::path& path);
  ~Tokenizer();

  // Ids of the joined segments. Stretches of text between control tokens are encoded as one piece,
  // whatever segments they come from. Text that is not valid UTF-8 is encoded byte for byte (see
  // docs/tokenizer.md). Adds no bos/eos.
  std::vector<TokenId> encode(std::span<const Segment> segments) const;
  void encode(std::span<const Segment> segments, std::vector<TokenId>& out) const;  // appends
  std::vector<TokenId> encode_text(std::string_view text) const;     // one text segment
  std::vector<TokenId> encode_control(std::string_view text) const;  // one control segment

  // Bytes of one token: empty for ids that are not in the vocabulary. Control tokens give their
  // text.
  std::string_view token_bytes(TokenId id) const;
  bool is_special(TokenId id) const;  // flagged special: hidden from a reader
  bool is_added(TokenId id) const;    // any added token
  std::optional<TokenId> find_added(std::string_view text) const;
  std::string decode(std::span<const TokenId> ids,
                     bool skip_special = false) const;  // raw bytes joined

  int64_t vocab_size() const;  // ids are 0 … vocab_size-1
  const TokenizerSpec& spec() const;
  uint64_t fingerprint() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Turns a stream of ids into text that is always complete UTF-8: bytes of a character that is not
// finished are kept back, and bytes that can never become one are replaced by U+FFFD. push()es and
// finish() joined equal utf8::sanitize(decode(all ids)).
class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special = true)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}
  std::string_view push(TokenId id);  // valid until the next call; no allocation once warm
  std::string_view finish();          // what is still held back, as U+FFFD
  void reset();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::string pending_;  // 0..3 bytes
  std::string ready_;
};

}  // namespace deepmint
