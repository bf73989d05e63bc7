// Regular languages over bytes: a hash-consed arena of expressions with intersection, complement
// and counted repetition, read by Brzozowski derivatives.
//
//   RegexSet set;
//   RegexId word = set.repeat(set.bytes(ByteSet::range('a', 'z')), 1, 8);
//   RegexId other = set.intersect(word, set.complement(set.literal("if")));
//   set.nullable(set.derivative(set.derivative(other, 'i'), 'f'));  // false: "if" is taken out
//
// Ids are stable, and equal ids mean equal languages (the converse holds only as far as the
// constructors simplify). a{0,10000} is one node. A set that would pass its limits stops growing:
// from then on exhausted() is true and every constructor returns none(), so that a caller checks
// once at the end (GrammarBuilder::build does). Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/hash.h"
#include "grammar/byte_set.h"
#include "grammar/flat_map.h"

namespace deepmint::grammar {

enum class RegexId : uint32_t {};

struct CodePointRange {  // inclusive; surrogates inside are left out
  uint32_t first = 0, last = 0;
  friend bool operator==(const CodePointRange&, const CodePointRange&) = default;
};

inline constexpr uint32_t kUnbounded = 0xffffffffu;  // "no maximum" of a repetition

class RegexSet {
 public:
  struct Limits {
    size_t max_nodes = 1'000'000;  // expressions in the arena, derivatives included
    size_t max_width = 20'000;     // alternatives of one derived expression
    // A question for emptiness: derivatives that it may look at, parts of expressions that it may
    // handle on the way, lines that it may walk, and their length and parts.
    size_t max_search = 20'000;
    uint64_t max_search_work = 8'000'000;
    size_t max_lines = 256;
    uint32_t max_line = 50'000;
    uint64_t max_line_work = 4'000'000;
  };
  enum class Kind : uint8_t {
    kNone,
    kEpsilon,
    kBytes,
    kConcat,
    kAlternate,
    kIntersect,
    kRepeat,
    kComplement,
    kJsonString,       // json_nodes.cc
    kDecimalMultiple,  // json_nodes.cc
    kHostName,         // host_nodes.cc
  };

  RegexSet() : RegexSet(Limits()) {}
  explicit RegexSet(const Limits& limits);

  RegexId none() const { return RegexId{0}; }     // the empty language
  RegexId epsilon() const { return RegexId{1}; }  // the empty string alone
  RegexId any() const { return RegexId{2}; }      // every byte string
  RegexId bytes(const ByteSet& set);              // one byte of the set
  RegexId literal(std::string_view text);
  RegexId code_points(std::span<const CodePointRange> ranges);  // one code point, UTF-8
  RegexId any_code_point();                                     // one Unicode scalar value
  RegexId concat(RegexId a, RegexId b);
  RegexId concat(std::span<const RegexId> parts);
  RegexId alternate(std::span<const RegexId> parts);
  RegexId alternate(RegexId a, RegexId b);
  RegexId star(RegexId a) { return repeat(a, 0, kUnbounded); }
  RegexId optional(RegexId a) { return repeat(a, 0, 1); }
  RegexId repeat(RegexId a, uint32_t min, uint32_t max);  // min <= max
  RegexId intersect(RegexId a, RegexId b);
  RegexId intersect(std::span<const RegexId> parts);
  RegexId complement(RegexId a);       // over all byte strings
  RegexId without_epsilon(RegexId a);  // the same language less the empty string
  // A language with the same texts, and the same beginnings of texts, of up to `limit` bytes:
  // counts above the limit are forgotten, so that many residuals of a{0,100000} become one.
  // Intersections stay as they are but those of an expression without intersections with a length
  // in code points whose maximum is too far away to matter. Limits up to 2^31.
  RegexId within(RegexId a, uint32_t limit);

  // JSON (json_nodes.cc). What stands between the quotes of a string whose decoded content, UTF-8,
  // is in `content`: every spelling, escapes and surrogate pairs included.
  RegexId json_string(RegexId content) { return json_string(content, 0, 0); }
  // Digits with or without a decimal point (`12`, `0.250`) whose value is a multiple of
  // step / 10^places. Leading zeros and an empty part around the point are let through: intersect
  // with the spellings wanted. 1 <= step, places <= 18.
  RegexId decimal_multiple(uint32_t step, uint32_t places);
  RegexId host_name();  // of the internet, valid xn-- labels included (host_nodes.cc)

  // Whether `a` is what is left of a JSON string between two characters of it, its closing quote
  // included, so that no plain text completes it; kOpen: and every plain text stays inside.
  enum class InString : uint8_t { kNo, kInside, kOpen };
  InString in_string(RegexId a) const;

  bool nullable(RegexId a) const { return node(a).nullable; }  // holds the empty string
  RegexId derivative(RegexId a, uint8_t byte);                 // { w : byte w is in a }
  bool matches(RegexId a, std::string_view text);              // whole text

  // Whether the language is empty. Exact, by looking for an accepted string along derivatives where
  // intersections or complements leave it open; exhausted() becomes true when that takes too long,
  // which is a matter of the expression alone, not of what was asked before.
  bool empty(RegexId a);

  Kind kind(RegexId a) const { return node(a).kind; }
  Hash128 hash(RegexId a) const { return node(a).hash; }  // structural: equal in every set

  // Bytes that no expression reachable from `roots` tells apart share a class. Returns the number
  // of classes; derivatives never split one.
  int byte_classes(std::span<const RegexId> roots, std::array<uint8_t, 256>& class_of) const;

  // Of every expression, by its id: whether an intersection or complement is inside, inside the
  // content of JSON strings too.
  std::vector<uint8_t> hard_inside() const;

  bool exhausted() const { return exhausted_; }
  size_t size() const { return nodes_.size(); }
  uint64_t work() const { return work_; }  // parts of expressions handled so far, for budgets
  size_t memory_bytes() const;

  // Forgets every expression made since a mark, and the exhaustion; ids from before stay good.
  struct Mark {
    size_t nodes, kids, sets;
  };
  Mark mark() const { return {nodes_.size(), kids_.size(), sets_.size()}; }
  void reset_to(const Mark& mark);
  // Forgets every expression made since a mark that none of `roots` needs, and gives the roots
  // their new ids. What an expression is stays the same, exhaustion too.
  void keep_only(const Mark& mark, std::span<RegexId> roots);
  // From now on a set may grow by so many expressions.
  void limit_growth(size_t nodes) { limits_.max_nodes = nodes_.size() + nodes; }

  // Number of expressions of the smallest set that holds `a`, at most `limit`.
  size_t weight(RegexId a, size_t limit) const;

 private:
  struct Node {
    Kind kind = Kind::kNone;
    bool nullable = false;
    bool hard = false;  // an intersection or complement inside: may be empty without being none()
    bool counted = false;   // a repetition with a count above 1 inside
    uint32_t a = 0, b = 0;  // kConcat: head, tail. kRepeat: body. kComplement: body. kBytes: set.
                            // Lists: begin, count
    uint32_t min = 0, max = 0;
    uint32_t front = 1;  // parts that a derivative handles when nothing is remembered, at most
    Hash128 hash = {};
  };
  const Node& node(RegexId a) const { return nodes_[static_cast<uint32_t>(a)]; }
  std::span<const RegexId> kids(const Node& n) const { return {kids_.data() + n.a, n.b}; }
  RegexId add(Node n, std::span<const RegexId> list = {});
  RegexId alternate_at(std::span<const RegexId> parts, int depth);
  RegexId derive(RegexId a, uint8_t byte);
  ByteSet first_bytes(RegexId a, int depth) const;  // no other byte begins a text of `a`
  RegexId json_string(RegexId content, uint32_t state, uint32_t value);
  RegexId derive_json_string(const Node& n, uint8_t byte);
  // That `byte` goes on with no text of a JSON string, where a look at its content shows it.
  bool leaves_json_string(const Node& n, uint8_t byte) const;
  RegexId decimal_state(uint32_t step, uint32_t residue, uint32_t places, uint32_t place);
  RegexId derive_decimal(const Node& n, uint8_t byte);
  RegexId host_state(uint32_t used, uint32_t label, uint32_t flags, RegexId encoded);
  RegexId derive_host(const Node& n, uint8_t byte);
  std::string literal_text(RegexId a) const;  // of a literal()
  RegexId code_points_of(std::vector<CodePointRange> ranges);

  std::vector<Node> nodes_;
  std::vector<RegexId> kids_;
  std::vector<ByteSet> sets_;
  static constexpr uint32_t kNoNode = 0xffffffffu;
  std::vector<uint32_t> index_;   // open addressing by Node::hash: nodes, kNoNode where free
  FlatMap<RegexId> derivatives_;  // (id << 8 | byte)
  FlatMap<uint8_t> empty_;        // of hard nodes
  FlatMap<RegexId> within_;
  FlatMap<RegexId> escapes_;  // what may follow inside an escape (json_nodes.cc)
  void index_all(size_t slots);
  void leave_index(size_t node);
  void forget_answers();
  // within() of intersections (regex_within.cc).
  RegexId within_length(RegexId a, uint32_t limit);
  bool is_length(RegexId a, uint32_t& partial, uint32_t& min, uint32_t& max);
  static constexpr uint32_t kFar = 1u << 30;
  struct Extent {
    uint32_t shortest = kFar;  // bytes of a text
    uint32_t tail = kFar;  // every beginning of a text goes on to one within so many bytes, or kFar
  };
  Extent extent(RegexId a);
  uint8_t utf8_ends(RegexId a, uint32_t partial);
  FlatMap<Extent> extents_;
  FlatMap<uint8_t> utf8_ends_;  // id << 3 | partial
  RegexId any_text_{0};         // all UTF-8
  // Whether every text of `a` is UTF-8; false where intersections or complements leave it open.
  bool is_text(RegexId a) { return utf8_ends(a, 0) == 1; }
  bool endless(RegexId a) const;
  bool takes_all_text(RegexId a) const;
  std::array<RegexId, 8> partial_;  // what is left of a code point; none() until asked for
  // Emptiness (hard expressions only).
  enum class Emptiness : uint8_t { kNo, kYes, kTooLong };
  enum class LineEnd : uint8_t { kText, kNowhere, kTooFar };
  struct Line {
    LineEnd end = LineEnd::kTooFar;
    uint32_t length = 0;  // expressions up to the end
    uint64_t work = 0;    // to get there
    RegexId to{0};        // of a single step
  };
  Line step_ahead(RegexId a);
  Line line(RegexId a);
  Emptiness search_empty(RegexId a);
  FlatMap<Line> lines_;
  Limits limits_;
  bool exhausted_ = false;
  uint64_t work_ = 0;
};

}  // namespace deepmint::grammar
