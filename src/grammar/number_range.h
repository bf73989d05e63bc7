// Sets of numbers as regular languages of their JSON spellings.
//
//   NumberLanguages numbers(set);
//   DEEPMINT_TRY(limit, Decimal::parse("2.50"));
//   RegexId at_least = numbers.at_least(limit, /*strict=*/false);  // 2.5, 2.50, 3, 17.125 …
//
// Every set is exact over the plain spellings: `-?(0|[1-9][0-9]*)(\.[0-9]+)?`. Which exponents a
// number in exponent form may have is not a regular question in general, so those spellings are
// kept as five whole classes (ExponentClass), each inside a set, outside it, or split by it; only
// classes that lie wholly inside are ever written.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "deepmint/result.h"
#include "grammar/regex_ast.h"

namespace deepmint::grammar {

// An exact decimal number: (-1)^negative * 0.digits * 10^point, digits without zeros at either end.
struct Decimal {
  // The longest expansion that is read: 1e400 is 401 digits.
  static constexpr int64_t kMaxDigits = 2'000;

  bool negative = false;  // false for zero
  std::string digits;     // empty for zero
  int64_t point = 0;

  // `spelling`: a JSON number. kTooLarge when its plain spelling would be longer than kMaxDigits.
  static Result<Decimal> parse(std::string_view spelling);

  bool is_zero() const { return digits.empty(); }
  bool is_integer() const { return static_cast<int64_t>(digits.size()) <= point || is_zero(); }
  std::string integer_part() const;   // of the magnitude, "0" at least
  std::string fraction_part() const;  // of the magnitude, without zeros at its end
  friend bool operator==(const Decimal&, const Decimal&) = default;
};
int compare(const Decimal& a, const Decimal& b);  // -1, 0, 1

// Spellings with an exponent, by what their form alone says of the value.
enum ExponentClass : uint8_t {
  kPositiveIntegerForm = 1,  // 12e3, 7.0E+2: an integer >= 1
  kNegativeIntegerForm = 2,  // the same below zero: <= -1
  kPositiveForm = 4,         // any exponent form of a number > 0 (includes the integer forms)
  kNegativeForm = 8,         // any of a number < 0
  kZeroForm = 16,            // 0e5, -0.0E-3
};
inline constexpr uint8_t kAllExponents = 31;

struct NumberSet {
  RegexId plain{};      // spellings without exponent
  uint8_t inside = 0;   // classes whose every member is in the set
  uint8_t touched = 0;  // classes that may have a member in the set
};

class NumberLanguages {
 public:
  explicit NumberLanguages(RegexSet& set);

  NumberSet all() const { return {plain_, kAllExponents, kAllExponents}; }
  NumberSet none() const { return {set_.none(), 0, 0}; }
  NumberSet integers() const;
  NumberSet bare_integers() const;  // spelled without fraction and exponent: draft 4's integer
  NumberSet at_least(const Decimal& limit, bool strict) const;
  NumberSet at_most(const Decimal& limit, bool strict) const;
  NumberSet equal_to(const Decimal& value) const;
  // Multiples of `step` > 0: m * 10^k with m <= kMaxStep, |k| <= kMaxPlaces; else kTooLarge.
  static constexpr uint32_t kMaxStep = 10'000;
  static constexpr size_t kMaxPlaces = 18;
  Result<NumberSet> multiples_of(const Decimal& step) const;

  NumberSet intersect(const NumberSet& a, const NumberSet& b) const;
  NumberSet unite(const NumberSet& a, const NumberSet& b) const;
  NumberSet complement(const NumberSet& a) const;

  RegexId spellings(const NumberSet& a) const;  // plain and whole exponent classes
  bool empty(const NumberSet& a) const { return set_.empty(a.plain); }

 private:
  RegexId magnitude_at_least(const Decimal& limit, bool strict) const;
  RegexId magnitude_at_most(const Decimal& limit, bool strict) const;

  RegexSet& set_;
  RegexId digit_, digits_, nonzero_, minus_, dot_, fraction_, zero_fraction_, zero_, magnitude_,
      positive_, plain_;
};

}  // namespace deepmint::grammar
