#include "tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/check.h"
#include "core/hash.h"
#include "core/names.h"
#include "core/utf8.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/fast_split.h"
#include "tokenizer/normalize.h"
#include "tokenizer/regex_splitter.h"

namespace deepmint {
namespace {

constexpr size_t kMaxVocab = (size_t{1} << 24) - 1;
constexpr size_t kMaxVocabBytes = size_t{1} << 23;  // all tokens together
constexpr size_t kMaxTokenBytes = 65'535;
constexpr size_t kMaxPatterns = 16;

// What one encode() call works in; kept per thread so that it allocates nothing once warm.
struct Scratch {
  std::string joined, rebuilt, normalized, part;
  std::vector<std::pair<size_t, size_t>> control;  // ranges of `joined`
  std::vector<AddedTokens::Match> raw, matches, found;
};

Scratch& scratch() {
  thread_local Scratch s;
  return s;
}

// Gives the memory of an unusually long text back when the call ends.
struct ScratchTrim {
  ~ScratchTrim() {
    constexpr size_t kKept = size_t{4} << 20;
    for (std::string* text :
         {&scratch().joined, &scratch().rebuilt, &scratch().normalized, &scratch().part})
      if (text->capacity() > kKept) std::string().swap(*text);
  }
};

Status check_id(TokenId id, size_t vocab, std::string_view what) {
  if (id >= 0 && static_cast<size_t>(id) < vocab) return {};
  return fail(ErrorCode::kInvalidFile,
              fmt::format("token id {} is outside the vocabulary of {}", id, vocab),
              std::string(what));
}

Status check_spec(const TokenizerSpec& spec) {
  const size_t n = spec.vocab.size();
  if (n == 0) return fail(ErrorCode::kInvalidFile, "expected a vocabulary, found none");
  if (n > kMaxVocab)
    return fail(ErrorCode::kTooLarge,
                fmt::format("vocabulary of {} tokens, at most {} are supported", n, kMaxVocab));
  size_t bytes = 0;
  for (const std::string& token : spec.vocab) bytes += token.size();
  if (bytes > kMaxVocabBytes)
    return fail(
        ErrorCode::kTooLarge,
        fmt::format("vocabulary of {} bytes, at most {} are supported", bytes, kMaxVocabBytes));
  for (size_t id = 0; id < n; ++id)
    if (spec.vocab[id].size() > kMaxTokenBytes)
      return fail(
          ErrorCode::kTooLarge,
          fmt::format("{} bytes, at most {} are supported", spec.vocab[id].size(), kMaxTokenBytes),
          fmt::format("token {}", id));
  for (size_t rank = 0; rank < spec.merges.size(); ++rank)
    for (TokenId id : {spec.merges[rank].first, spec.merges[rank].second})
      if (id < 0 || static_cast<size_t>(id) >= n)
        DEEPMINT_CHECK_OK(check_id(id, n, fmt::format("merge {}", rank)));
  if (spec.merges.size() > kMaxVocab)
    return fail(ErrorCode::kTooLarge,
                fmt::format("{} merges, at most {} are supported", spec.merges.size(), kMaxVocab));
  for (const auto& added : spec.added) {
    DEEPMINT_CHECK_OK(check_id(added.id, n, fmt::format("added token {}", quote_name(added.text))));
    if (added.text.empty())
      return fail(ErrorCode::kInvalidFile, "its text is empty",
                  fmt::format("added token {}", added.id));
    if (added.text.size() > kMaxTokenBytes)
      return fail(ErrorCode::kTooLarge,
                  fmt::format("text of {} bytes, at most {} are supported", added.text.size(),
                              kMaxTokenBytes),
                  fmt::format("added token {}", added.id));
  }
  for (const auto& [name, id] :
       {std::pair{"bos", spec.bos}, {"eos", spec.eos}, {"pad", spec.pad}, {"unk", spec.unk}})
    if (id) DEEPMINT_CHECK_OK(check_id(*id, n, name));
  for (TokenId id : spec.end_ids) DEEPMINT_CHECK_OK(check_id(id, n, "end of turn"));
  for (TokenId id : spec.decode_only) DEEPMINT_CHECK_OK(check_id(id, n, "unused token"));
  for (const auto& fallback : spec.byte_fallback)
    DEEPMINT_CHECK_OK(check_id(fallback.second, n, "byte fallback"));
  if (spec.pre && !spec.patterns.empty())
    return fail(ErrorCode::kInvalidArgument,
                "expected a known pre-tokenizer or patterns, found both");
  if (spec.patterns.size() > kMaxPatterns)
    return fail(ErrorCode::kTooLarge, fmt::format("{} patterns, at most {} are supported",
                                                  spec.patterns.size(), kMaxPatterns));
  return {};
}

uint64_t fingerprint_of(const TokenizerSpec& spec) {
  std::string bytes;
  const auto number = [&](int64_t value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  const auto text = [&](std::string_view s) {
    number(static_cast<int64_t>(s.size()));
    bytes.append(s);
  };
  const auto ids = [&](const std::vector<TokenId>& list) {
    number(static_cast<int64_t>(list.size()));
    for (TokenId id : list) number(id);
  };
  number(static_cast<int64_t>(spec.vocab.size()));
  for (const std::string& token : spec.vocab) text(token);
  number(static_cast<int64_t>(spec.merges.size()));
  const size_t merges_bytes = spec.merges.size() * sizeof spec.merges[0];
  if (merges_bytes > 0)
    bytes.append(reinterpret_cast<const char*>(spec.merges.data()), merges_bytes);
  number(static_cast<int64_t>(spec.added.size()));
  for (const auto& added : spec.added) {
    number(added.id);
    text(added.text);
    for (bool flag :
         {added.special, added.normalized, added.lstrip, added.rstrip, added.single_word})
      number(flag);
  }
  number(static_cast<int64_t>(spec.normalizer));
  number(spec.pre ? static_cast<int64_t>(*spec.pre) : -1);
  number(static_cast<int64_t>(spec.patterns.size()));
  for (const std::string& pattern : spec.patterns) text(pattern);
  number(spec.ignore_merges);
  number(static_cast<int64_t>(spec.byte_fallback.size()));
  for (const auto& [byte, id] : spec.byte_fallback) {
    number(byte);
    number(id);
  }
  for (const auto& id : {spec.unk, spec.bos, spec.eos, spec.pad}) number(id ? *id : -1);
  for (bool flag : {spec.fuse_unk, spec.add_bos, spec.add_eos}) number(flag);
  ids(spec.decode_only);
  ids(spec.end_ids);
  return xxh3_64(as_byte_span(bytes));
}

}  // namespace

struct Tokenizer::Impl {
  enum Flag : uint8_t { kAdded = 1, kSpecial = 2 };

  explicit Impl(TokenizerSpec s) : spec(std::move(s)) {}
  Status build();
  void encode(std::span<const Segment> segments, std::vector<TokenId>& out) const;
  void encode_text(std::string_view text, std::vector<TokenId>& out) const;   // any bytes
  void encode_valid(std::string_view text, std::vector<TokenId>& out) const;  // UTF-8
  void split(size_t level, std::string_view text, std::vector<TokenId>& out) const;
  std::string_view rebuild_normalized(std::string_view sentence, Scratch& s) const;

  bool has_flag(TokenId id, Flag flag) const {
    return id >= 0 && static_cast<size_t>(id) < flags.size() &&
           (flags[static_cast<size_t>(id)] & flag) != 0;
  }

  TokenizerSpec spec;
  std::vector<uint8_t> flags;
  std::optional<Bpe> bpe;
  std::vector<RegexSplitter> splitters;
  AddedTokens raw_added;         // matched in the text as it comes
  AddedTokens normalized_added;  // matched after normalisation, in what the first ones leave
  TokenTable by_text;            // added tokens
  uint64_t fingerprint = 0;
};

Status Tokenizer::Impl::build() {
  DEEPMINT_CHECK_OK(check_spec(spec));
  flags.assign(spec.vocab.size(), 0);
  by_text = TokenTable(spec.added.size());
  std::string buffer;
  for (const auto& added : spec.added) {
    flags[static_cast<size_t>(added.id)] |=
        static_cast<uint8_t>(kAdded | (added.special ? kSpecial : 0));
    by_text.insert(added.text, added.id);
    if (added.normalized) {
      const bool nfc = spec.normalizer == Normalizer::kNfc && utf8::is_valid(added.text);
      normalized_added.insert(nfc ? to_nfc(added.text, buffer) : std::string_view(added.text),
                              added);
    } else {
      raw_added.insert(added.text, added);
    }
  }
  DEEPMINT_TRY(made, Bpe::create(spec));
  bpe.emplace(std::move(made));
  if (spec.normalizer == Normalizer::kNfc) prepare_nfc();
  for (const std::string& pattern : spec.patterns) {
    auto splitter = RegexSplitter::compile(pattern);
    if (!splitter) return tl::unexpected<Error>(std::move(splitter).error().at("pre-tokenizer"));
    splitters.push_back(std::move(*splitter));
  }
  fingerprint = fingerprint_of(spec);
  return {};
}

void Tokenizer::Impl::split(size_t level, std::string_view text, std::vector<TokenId>& out) const {
  if (level == splitters.size()) {
    bpe->encode(text, out);
  } else {
    splitters[level].split(text, [&](std::string_view piece) { split(level + 1, piece, out); });
  }
}

void Tokenizer::Impl::encode_valid(std::string_view text, std::vector<TokenId>& out) const {
  if (text.empty()) return;
  if (spec.normalizer == Normalizer::kNfc) text = to_nfc(text, scratch().normalized);
  const auto encode_pieces = [&]<PreTokenizer kPre>() {
    fast_split<kPre>(text, [&, end = text.data() + text.size()](const char* p, size_t n) {
      bpe->encode(p, n, end, out);
    });
  };
  if (!spec.pre) return split(0, text, out);
  switch (*spec.pre) {
    case PreTokenizer::kGpt2:
      return encode_pieces.operator()<PreTokenizer::kGpt2>();
    case PreTokenizer::kLlama3:
      return encode_pieces.operator()<PreTokenizer::kLlama3>();
    case PreTokenizer::kQwen2:
      return encode_pieces.operator()<PreTokenizer::kQwen2>();
    case PreTokenizer::kSmolLm:
      return encode_pieces.operator()<PreTokenizer::kSmolLm>();
    case PreTokenizer::kDeepSeekV3:
      return encode_pieces.operator()<PreTokenizer::kDeepSeekV3>();
  }
}

void Tokenizer::Impl::encode_text(std::string_view text, std::vector<TokenId>& out) const {
  while (!text.empty()) {
    const size_t bad = utf8::find_invalid(text);
    encode_valid(text.substr(0, bad), out);
    if (bad == utf8::npos) return;
    bpe->encode(text.substr(bad, 1), out);
    text.remove_prefix(bad + 1);
  }
}

// The sentence with its control text normalised outside of the raw matches; both lists of ranges
// move along.
std::string_view Tokenizer::Impl::rebuild_normalized(std::string_view sentence, Scratch& s) const {
  std::vector<std::pair<size_t, size_t>> control;
  s.rebuilt.clear();
  size_t raw = 0, range = 0;
  for (size_t at = 0; at < sentence.size();) {
    while (range < s.control.size() && s.control[range].second <= at) ++range;
    const size_t new_begin = s.rebuilt.size();
    if (raw < s.raw.size() && s.raw[raw].begin <= at) {
      const size_t end = std::max(s.raw[raw].end, at);
      s.rebuilt += sentence.substr(at, end - at);
      s.raw[raw].begin = new_begin;
      s.raw[raw].end = s.rebuilt.size();
      ++raw;
      at = end;
      continue;
    }
    size_t end = raw < s.raw.size() ? s.raw[raw].begin : sentence.size();
    const bool is_control = range < s.control.size() && s.control[range].first <= at;
    if (range < s.control.size())
      end = std::min(end, is_control ? s.control[range].second : s.control[range].first);
    const std::string_view part = sentence.substr(at, end - at);
    s.rebuilt += is_control && utf8::is_valid(part) ? to_nfc(part, s.part) : part;
    if (is_control) control.emplace_back(new_begin, s.rebuilt.size());
    at = end;
  }
  s.control = std::move(control);
  return s.rebuilt;
}

void Tokenizer::Impl::encode(std::span<const Segment> segments, std::vector<TokenId>& out) const {
  const ScratchTrim trim;
  if (segments.size() == 1 && segments[0].kind == Segment::Kind::kText)
    return encode_text(segments[0].text, out);

  Scratch& s = scratch();
  s.joined.clear();
  s.control.clear();
  s.raw.clear();
  s.matches.clear();
  for (const Segment& segment : segments) {
    if (segment.kind == Segment::Kind::kControl && !segment.text.empty()) {
      if (!s.control.empty() && s.control.back().second == s.joined.size())
        s.control.back().second += segment.text.size();
      else
        s.control.emplace_back(s.joined.size(), s.joined.size() + segment.text.size());
    }
    s.joined += segment.text;
  }
  std::string_view sentence = s.joined;
  for (const auto& [begin, end] : s.control) raw_added.find_all(sentence, begin, end, s.raw);

  const std::vector<AddedTokens::Match>* matches = &s.raw;
  if (!normalized_added.empty()) {
    if (spec.normalizer != Normalizer::kNone) sentence = rebuild_normalized(sentence, s);
    // Between two raw matches the normalised ones are found as in a sentence of its own.
    size_t range = 0;
    const auto between = [&](size_t from, size_t to) {
      s.found.clear();
      while (range < s.control.size() && s.control[range].second <= from) ++range;
      for (size_t i = range; i < s.control.size() && s.control[i].first < to; ++i)
        normalized_added.find_all(sentence.substr(from, to - from),
                                  std::max(s.control[i].first, from) - from,
                                  std::min(s.control[i].second, to) - from, s.found);
      for (const auto& m : s.found) s.matches.push_back({m.begin + from, m.end + from, m.id});
    };
    size_t at = 0;
    for (const auto& m : s.raw) {
      if (at < m.begin) between(at, m.begin);
      s.matches.push_back(m);
      at = m.end;
    }
    if (at < sentence.size()) between(at, sentence.size());
    matches = &s.matches;
  }

  size_t at = 0;
  for (const auto& m : *matches) {
    if (at < m.begin) encode_text(sentence.substr(at, m.begin - at), out);
    out.push_back(m.id);
    at = m.end;
  }
  if (at < sentence.size()) encode_text(sentence.substr(at), out);
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

Result<std::shared_ptr<const Tokenizer>> Tokenizer::create(TokenizerSpec spec) {
  auto impl = std::make_unique<Impl>(std::move(spec));
  DEEPMINT_CHECK_OK(impl->build());
  return std::shared_ptr<const Tokenizer>(new Tokenizer(std::move(impl)));
}

std::vector<TokenId> Tokenizer::encode(std::span<const Segment> segments) const {
  std::vector<TokenId> out;
  impl_->encode(segments, out);
  return out;
}

void Tokenizer::encode(std::span<const Segment> segments, std::vector<TokenId>& out) const {
  impl_->encode(segments, out);
}

std::vector<TokenId> Tokenizer::encode_text(std::string_view text) const {
  const ScratchTrim trim;
  std::vector<TokenId> out;
  impl_->encode_text(text, out);
  return out;
}

std::vector<TokenId> Tokenizer::encode_control(std::string_view text) const {
  const Segment segment{Segment::Kind::kControl, std::string(text)};
  return encode({&segment, 1});
}

std::string_view Tokenizer::token_bytes(TokenId id) const {
  if (id < 0 || static_cast<size_t>(id) >= impl_->spec.vocab.size()) return {};
  return impl_->spec.vocab[static_cast<size_t>(id)];
}

bool Tokenizer::is_special(TokenId id) const { return impl_->has_flag(id, Impl::kSpecial); }
bool Tokenizer::is_added(TokenId id) const { return impl_->has_flag(id, Impl::kAdded); }

std::optional<TokenId> Tokenizer::find_added(std::string_view text) const {
  const TokenId id = impl_->by_text.find(text);
  return id < 0 ? std::nullopt : std::optional(id);
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  std::string out;
  for (TokenId id : ids)
    if (!skip_special || !is_special(id)) out += token_bytes(id);
  return out;
}

int64_t Tokenizer::vocab_size() const { return static_cast<int64_t>(impl_->spec.vocab.size()); }
const TokenizerSpec& Tokenizer::spec() const { return impl_->spec; }
uint64_t Tokenizer::fingerprint() const { return impl_->fingerprint; }

}  // namespace deepmint
