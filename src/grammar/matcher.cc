#include "grammar/matcher.h"

#include <algorithm>
#include <optional>

#include "core/check.h"
#include "grammar/earley.h"
#include "grammar/lexer.h"
#include "grammar/slices.h"

namespace deepmint::grammar {

namespace {
constexpr size_t kMaxForced = 4096;
}

struct Matcher::Impl {
  explicit Impl(std::shared_ptr<const Compiled> c)
      : compiled(std::move(c)), lexer(compiled->lexer()) {
    const auto held = lexer.lock();
    parser.emplace(compiled->grammar(), lexer);
    if (!lexer.exhausted()) return;
    lexer.reset();  // it was full of what others had asked for
    parser.emplace(compiled->grammar(), lexer);
  }
  Impl(const Impl&) = default;

  // Runs `work` with the lexer locked and its states current; `work` leaves the parser where it was
  // when it looks at limits only. When the automaton overflows inside, it is emptied and the work
  // is done once more from there, so that what others left in it cannot matter: work(true) says
  // that this is so, and work that takes several steps then begins each with an empty automaton.
  // What succeeds at first succeeds then, too, because the automaton may grow larger (reset()).
  template <class Work>
  void run(Work&& work) {
    if (!status) return;
    const auto held = lexer.lock();
    const Parser::Frame base = parser->here();
    for (int attempt = 0; attempt < 2; ++attempt) {
      if (parser->here().epoch != lexer.epoch()) parser->find_states_again(text);
      if (attempt == 1) lexer.forget_expressions();
      if (!lexer.exhausted()) work(attempt == 1);
      if (parser->exhausted()) {
        status = fail(ErrorCode::kTooLarge,
                      "the grammar is too ambiguous here: a parser limit was passed");
        return;
      }
      if (!lexer.exhausted()) return;
      if (attempt == 0) {
        parser->go_back(base);
        lexer.reset(/*alone=*/true);
      }
    }
    status = fail(ErrorCode::kTooLarge, "the grammar needs a larger automaton than the limit");
  }

  void add_tokens(std::span<uint32_t> bits, bool alone);
  void add_slice(const Slices::View& view, std::span<const uint32_t> without, uint32_t set,
                 std::span<uint32_t> bits);
  bool push_token(TokenId token);

  std::shared_ptr<const Compiled> compiled;
  Lexer& lexer;
  std::optional<Parser> parser;
  std::string text;  // bytes of the accepted tokens
  struct Before {
    Parser::Frame frame;
    bool stop = false;  // the token was a stop id
  };
  std::vector<Before> history;  // one per accepted token
  bool stopped = false;
  Status status;

  // Scratch of add_tokens.
  std::vector<uint32_t> below, path, up, special, taken;
  std::vector<Parser::Frame> frames;
};

Matcher::Matcher(std::shared_ptr<const Compiled> compiled)
    : impl_(std::make_unique<Impl>(std::move(compiled))) {}
Matcher::Matcher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Matcher::Matcher(Matcher&&) noexcept = default;
Matcher& Matcher::operator=(Matcher&&) noexcept = default;
Matcher::~Matcher() = default;

// The tokens of a slice, and below `below` what comes behind its exits but those of `without`, for
// a thread whose lexemes began in `set`.
void Matcher::Impl::add_slice(const Slices::View& view, std::span<const uint32_t> without,
                              uint32_t set, std::span<uint32_t> bits) {
  const Trie& trie = compiled->vocabulary().trie();
  const Slice& slice = *view.slice;
  if (slice.bits != nullptr)
    for (size_t word = 0; word < slice.bits->size(); ++word) bits[word] |= (*slice.bits)[word];
  for (const uint32_t id : slice.ids) bits[id / 32] |= 1u << (id % 32);
  for (size_t group = 0; group < slice.exits.size(); ++group) {
    const Lexer::State start = parser->start_after(set, view.accepts[group]);
    if (start == Lexer::kDead) continue;
    for (const uint32_t node : slice.exits[group].nodes) {
      if (std::binary_search(without.begin(), without.end(), node)) continue;
      const uint32_t end = node + trie.nodes[node].skip;
      for (uint32_t child = node + 1; child < end; child += trie.nodes[child].skip)
        if (lexer.next(start, trie.nodes[child].byte) != Lexer::kDead) below.push_back(child);
    }
  }
}

void Matcher::Impl::add_tokens(std::span<uint32_t> bits, bool alone) {
  const Vocabulary& vocabulary = compiled->vocabulary();
  const Trie& trie = vocabulary.trie();
  Slices& slices = compiled->slices();
  const auto empty_automaton = [&] {
    parser->end_lookahead();
    lexer.reset(/*alone=*/true);
    parser->find_states_again(text);
    lexer.forget_expressions();
    parser->begin_lookahead();
  };
  parser->begin_lookahead();
  // Tokens that a thread's state decides, and the nodes below which the next lexeme has begun.
  below.clear();
  for (size_t i = 0; i < parser->live().size() && !lexer.exhausted(); ++i) {
    if (alone) empty_automaton();
    const Parser::Thread thread = parser->live()[i];
    const Slices::View& view = slices.of(thread.state);
    if (lexer.exhausted()) break;
    if (view.base != nullptr) {
      // Other threads may allow what the base does and this one does not.
      taken.clear();
      for (const uint32_t id : view.slice->not_ids)
        if (((bits[id / 32] >> (id % 32)) & 1) == 0) taken.push_back(id);
      add_slice(*view.base, view.slice->not_nodes, thread.set, bits);
      for (const uint32_t id : taken) bits[id / 32] &= ~(1u << (id % 32));
    }
    add_slice(view, {}, thread.set, bits);
  }
  if (alone && !lexer.exhausted()) empty_automaton();
  // There the parser itself decides, with all its threads.
  std::sort(below.begin(), below.end());
  frames.resize(trie.max_depth + 1);
  frames[0] = parser->here();
  path.clear();  // nodes whose bytes are pushed
  uint32_t done = 0;
  for (const uint32_t top : below) {
    if (parser->exhausted() || lexer.exhausted()) break;
    if (top < done) continue;
    done = top + trie.nodes[top].skip;
    up.clear();
    for (uint32_t node = trie.parent[top]; node != 0xffffffffu; node = trie.parent[node])
      up.push_back(node);
    size_t shared = 0;
    while (shared < path.size() && shared < up.size() && path[shared] == up[up.size() - 1 - shared])
      ++shared;
    path.resize(shared);
    for (; shared < up.size(); ++shared) {
      const uint32_t node = up[up.size() - 1 - shared];
      parser->go_back(frames[shared]);
      parser->push(trie.nodes[node].byte);
      frames[shared + 1] = parser->here();
      path.push_back(node);
    }
    for (uint32_t at = top; at < done && !parser->exhausted() && !lexer.exhausted();) {
      const Trie::Node& node = trie.nodes[at];
      parser->go_back(frames[node.depth - 1u]);
      if (!parser->push(node.byte)) {
        at += node.skip;
        continue;
      }
      frames[node.depth] = parser->here();
      for (TokenId id = node.token; id >= 0; id = vocabulary.same(id))
        bits[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
      ++at;
    }
  }
  parser->end_lookahead();
}

bool Matcher::mask(std::span<uint32_t> bits) {
  Impl& m = *impl_;
  const Vocabulary& vocabulary = m.compiled->vocabulary();
  DEEPMINT_CHECK(bits.size() >= vocabulary.mask_words());
  if (m.stopped || !m.status) {
    std::fill(bits.begin(), bits.end(), 0);
    return false;
  }
  m.run([&](bool alone) {
    std::fill(bits.begin(), bits.end(), 0);
    m.add_tokens(bits, alone);
    m.parser->next_tokens(m.special);
    for (const uint32_t token : m.special) {
      const TokenId id = m.compiled->grammar().tokens[token];
      bits[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
    }
    if (m.parser->complete())
      for (const TokenId id : vocabulary.stop_ids())
        bits[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
  });
  uint32_t any = 0;
  for (const uint32_t word : bits) any |= word;
  if (m.status && any == 0)
    m.status = fail(ErrorCode::kInvalidArgument,
                    m.parser->complete()
                        ? "the text is complete, and the vocabulary has no stop token"
                        : "no token of the vocabulary continues the text as the grammar demands");
  if (!m.status) std::fill(bits.begin(), bits.end(), 0);
  if (!m.status) return false;
  const size_t whole = vocabulary.width() / 32, tail = vocabulary.width() % 32;
  for (size_t word = 0; word < whole; ++word)
    if (bits[word] != 0xffffffffu) return false;
  return tail == 0 || bits[whole] == (1u << tail) - 1;
}

// Moves the parser; on false it may be anywhere.
bool Matcher::Impl::push_token(TokenId token) {
  const auto& tokens = compiled->grammar().tokens;
  if (const auto it = std::find(tokens.begin(), tokens.end(), token); it != tokens.end())
    return parser->push_token(static_cast<uint32_t>(it - tokens.begin()));
  const std::string_view bytes = compiled->vocabulary().bytes(token);
  if (bytes.empty()) return false;
  for (const char byte : bytes)
    if (!parser->push(static_cast<uint8_t>(byte))) return false;
  return true;
}

bool Matcher::accept(TokenId token) {
  Impl& m = *impl_;
  if (m.stopped || !m.status) return false;
  if (m.compiled->vocabulary().is_stop(token)) {
    if (!may_stop()) return false;
    m.history.push_back({m.parser->here(), true});
    m.stopped = true;
    return true;
  }
  bool ok = false;
  Parser::Frame base;
  m.run([&](bool) {
    base = m.parser->here();
    ok = m.push_token(token);
    if (!ok) m.parser->go_back(base);
  });
  if (!ok || !m.status) return false;
  m.parser->settle(base);
  m.history.push_back({base, false});
  m.text += m.compiled->vocabulary().bytes(token);
  return true;
}

bool Matcher::allowed(TokenId token) {
  if (!accept(token)) return false;
  rollback(1);
  return true;
}

void Matcher::rollback(size_t n) {
  Impl& m = *impl_;
  DEEPMINT_CHECK(n <= m.history.size());
  if (n == 0) return;
  const Impl::Before& before = m.history[m.history.size() - n];
  m.parser->go_back(before.frame);
  m.text.resize(before.frame.position);
  m.history.resize(m.history.size() - n);
  m.stopped = false;
}

size_t Matcher::accepted() const { return impl_->history.size(); }

Matcher Matcher::fork() const { return Matcher(std::make_unique<Impl>(*impl_)); }

bool Matcher::may_stop() const { return !impl_->stopped && impl_->parser->complete(); }
bool Matcher::stopped() const { return impl_->stopped; }
bool Matcher::may_continue() const {
  return !impl_->stopped && (impl_->parser->can_take_bytes() || impl_->parser->takes_token());
}

ByteSet Matcher::next_bytes() {
  ByteSet out;
  if (impl_->stopped) return out;
  impl_->run([&](bool) {
    out = {};
    for (unsigned b = 0; b < 256; ++b)
      if (impl_->parser->takes_byte(static_cast<uint8_t>(b))) out.add(b);
  });
  return out;
}

std::string Matcher::forced() {
  Impl& m = *impl_;
  std::string out;
  if (m.stopped) return out;
  m.run([&](bool) {
    out.clear();
    Parser& parser = *m.parser;
    parser.begin_lookahead();
    while (out.size() < kMaxForced && !parser.complete() && !parser.takes_token()) {
      int only = -1;
      for (int b = 0; b < 256; ++b) {
        if (!parser.takes_byte(static_cast<uint8_t>(b))) continue;
        if (only >= 0) {
          only = -1;
          break;
        }
        only = b;
      }
      if (only < 0 || !parser.push(static_cast<uint8_t>(only))) break;
      out += static_cast<char>(only);
    }
    parser.end_lookahead();
  });
  return out;
}

Matcher::Viable Matcher::accepts_bytes(std::string_view bytes) {
  Impl& m = *impl_;
  Viable out;
  if (m.stopped) return out;
  m.run([&](bool) {
    out = {};
    Parser& parser = *m.parser;
    parser.begin_lookahead();
    for (const char byte : bytes) {
      if (!parser.push(static_cast<uint8_t>(byte))) break;
      ++out.bytes;
    }
    out.complete = out.bytes == bytes.size() && parser.complete();
    parser.end_lookahead();
  });
  return out;
}

const Status& Matcher::status() const { return impl_->status; }

}  // namespace deepmint::grammar
