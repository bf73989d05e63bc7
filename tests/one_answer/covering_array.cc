#include "one_answer/covering_array.h"

#include <algorithm>
#include <numeric>
#include <random>

namespace deepmint::one_answer {
namespace {

// The pairs of values that no row has yet.
class Uncovered {
 public:
  explicit Uncovered(std::span<const int> levels) : levels_(levels.begin(), levels.end()) {
    first_.resize(levels_.size());
    for (size_t d = 1; d < levels_.size(); ++d) first_[d] = first_[d - 1] + levels_[d - 1];
    n_values_ = levels_.empty() ? 0 : first_.back() + levels_.back();
    open_.assign(static_cast<size_t>(n_values_) * static_cast<size_t>(n_values_), false);
    for (size_t a = 0; a < levels_.size(); ++a)
      for (size_t b = a + 1; b < levels_.size(); ++b)
        for (int i = 0; i < levels_[a]; ++i)
          for (int j = 0; j < levels_[b]; ++j) set(a, i, b, j, true);
    left_ = static_cast<size_t>(std::count(open_.begin(), open_.end(), true)) / 2;
  }
  size_t left() const { return left_; }
  bool open(size_t a, int i, size_t b, int j) const {
    return open_[at(first_[a] + i, first_[b] + j)];
  }
  // Pairs still open that hold value i of dimension a.
  int of_value(size_t a, int i) const {
    int n = 0;
    for (int other = 0; other < n_values_; ++other) n += open_[at(first_[a] + i, other)];
    return n;
  }
  void cover(const std::vector<int>& row) {
    for (size_t a = 0; a < row.size(); ++a)
      for (size_t b = a + 1; b < row.size(); ++b)
        if (open(a, row[a], b, row[b])) {
          set(a, row[a], b, row[b], false);
          --left_;
        }
  }

 private:
  size_t at(int x, int y) const {
    return static_cast<size_t>(x) * static_cast<size_t>(n_values_) + static_cast<size_t>(y);
  }
  void set(size_t a, int i, size_t b, int j, bool value) {
    open_[at(first_[a] + i, first_[b] + j)] = value;
    open_[at(first_[b] + j, first_[a] + i)] = value;
  }
  std::vector<int> levels_, first_;
  int n_values_ = 0;
  std::vector<bool> open_;
  size_t left_ = 0;
};

}  // namespace

std::vector<std::vector<int>> covering_array(std::span<const int> levels, uint64_t seed) {
  std::mt19937_64 rng(seed);
  Uncovered uncovered(levels);
  std::vector<std::vector<int>> rows;
  std::vector<size_t> order(levels.size());
  while (uncovered.left() > 0) {
    // Begin with the value that most open pairs hold, then go on in random order, each time with
    // the value that closes most pairs with those chosen.
    std::vector<int> row(levels.size(), -1);
    size_t first = 0;
    int first_value = 0, most = -1;
    for (size_t d = 0; d < levels.size(); ++d)
      for (int v = 0; v < levels[d]; ++v)
        if (const int n = uncovered.of_value(d, v); n > most) most = n, first = d, first_value = v;
    row[first] = first_value;
    std::iota(order.begin(), order.end(), size_t{0});
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng() % i]);
    for (const size_t d : order) {
      if (row[d] >= 0) continue;
      int best = -1;
      const auto turn = static_cast<int>(rng() % static_cast<uint64_t>(levels[d]));
      for (int i = 0; i < levels[d]; ++i) {
        const int v = (i + turn) % levels[d];
        int closes = 0;
        for (size_t other = 0; other < row.size(); ++other)
          if (row[other] >= 0) closes += uncovered.open(d, v, other, row[other]);
        if (closes > best) best = closes, row[d] = v;
      }
    }
    uncovered.cover(row);
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace deepmint::one_answer
