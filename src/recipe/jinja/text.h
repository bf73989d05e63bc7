// A string that knows, byte for byte, whether it came from the template or from a caller. Control
// tokens are only ever recognised in template bytes (docs/jinja.md, "Provenance").
//
//   Text t("<|im_start|>", Origin::kTemplate);
//   t.append(content, Origin::kCaller);
//   t.append(other, 2, 5);                    // bytes 2..6 of another text, each with its origin
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace deepmint::recipe::jinja {

enum class Origin : uint8_t { kTemplate, kCaller };

class Text {
 public:
  Text() = default;
  Text(std::string_view bytes, Origin origin) : bytes_(bytes), first_(origin) {}

  const std::string& bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }

  Origin origin_at(size_t byte) const;  // byte < size()
  bool has_caller_bytes() const { return !bytes_.empty() && (!cuts_.empty() || first_ == kCaller); }

  void append(std::string_view bytes, Origin origin);
  void append(const Text& other) { append(other, 0, other.size()); }
  void append(const Text& other, size_t begin, size_t count);  // clipped to what is there
  Text substr(size_t begin, size_t count = std::string::npos) const;

  // Calls f(bytes, origin) for each stretch of one origin, in order.
  template <class F>
  void for_each_run(F f) const {
    Origin origin = first_;
    size_t begin = 0;
    const std::string_view all = bytes_;
    for (const size_t cut : cuts_) {
      f(all.substr(begin, cut - begin), origin);
      begin = cut;
      origin = flipped(origin);
    }
    if (begin < all.size()) f(all.substr(begin), origin);
  }

 private:
  static constexpr Origin kCaller = Origin::kCaller;
  static Origin flipped(Origin o) { return o == kCaller ? Origin::kTemplate : kCaller; }
  Origin nth(size_t run) const { return run % 2 == 0 ? first_ : flipped(first_); }

  std::string bytes_;
  Origin first_ = Origin::kTemplate;
  std::vector<size_t> cuts_;  // ascending offsets, inside bytes_, at which the origin changes
};

}  // namespace deepmint::recipe::jinja
