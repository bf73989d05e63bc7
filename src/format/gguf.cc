#include "format/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "core/checked.h"
#include "core/utf8.h"
#include "format/gguf_types.h"
#include "format/names.h"

namespace deepmint {
namespace {

static_assert(std::endian::native == std::endian::little,
              "values are read as they lie in the file");

// Limits above what the format itself demands: several times what the largest published files use,
// and small enough that no header makes the reader allocate more than about 1 GiB.
// docs/formats/gguf.md lists them.
constexpr uint64_t kMaxMetadata = 100'000;
constexpr uint64_t kMaxTensors = 1'000'000;
constexpr uint64_t kMaxArrayElements = uint64_t{1} << 24;  // of all arrays together
constexpr int kMaxArrayDepth = 8;
constexpr uint64_t kMaxKeyBytes = 65'535;
constexpr uint64_t kMaxTensorNameBytes = 1'024;
constexpr uint32_t kMaxDims = 4;
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMinAlignment = 8, kMaxAlignment = uint64_t{1} << 20;

// Least bytes that one entry can take, to bound a count by what is left of the file.
constexpr uint64_t kMinMetadataBytes = 8 + 4 + 1;        // key length, type, a one-byte value
constexpr uint64_t kMinTensorInfoBytes = 8 + 4 + 4 + 8;  // name length, n_dims, type, offset

std::string_view kind_of(const GgufFile::Value& value) {
  struct Name {
    std::string_view operator()(int64_t) const { return "an integer"; }
    std::string_view operator()(uint64_t) const { return "an integer"; }
    std::string_view operator()(double) const { return "a float"; }
    std::string_view operator()(bool) const { return "a boolean"; }
    std::string_view operator()(std::string_view) const { return "a string"; }
    std::string_view operator()(const GgufFile::Array& array) const {
      constexpr std::string_view kNames[] = {"an array of integers", "an array of integers",
                                             "an array of floats",   "an array of booleans",
                                             "an array of strings",  "an array of arrays"};
      return kNames[array.index()];
    }
  };
  return std::visit(Name{}, value.data);
}

// Walks the header from front to back. After an error the position is where the offending field
// starts.
class Parser {
 public:
  explicit Parser(std::span<const std::byte> file) : file_(file) {}

  Result<uint32_t> header() {
    constexpr size_t kHeaderBytes = 24;
    if (file_.size() < kHeaderBytes)
      return fail(ErrorCode::kInvalidFile,
                  fmt::format("expected a GGUF file of at least {} bytes, found {} bytes",
                              kHeaderBytes, file_.size()));
    if (std::memcmp(file_.data(), "GGUF", 4) != 0)
      return fail(ErrorCode::kInvalidFile,
                  fmt::format("expected the magic bytes \"GGUF\", found {}",
                              quote_name({reinterpret_cast<const char*>(file_.data()), 4})),
                  "byte 0");
    at_ = 4;
    const auto version = take<uint32_t>();
    if (version != 2 && version != 3) {
      at_ = 4;
      const uint32_t swapped = __builtin_bswap32(version);
      if (swapped == 2 || swapped == 3)
        return unsupported(
            "version",
            fmt::format("expected a little-endian file, found big-endian GGUF v{}", swapped));
      return unsupported("version", fmt::format("expected GGUF version 2 or 3, found {}", version));
    }
    n_tensors_ = take<uint64_t>();
    if (const uint64_t limit = std::min(kMaxTensors, left() / kMinTensorInfoBytes);
        n_tensors_ > limit) {
      at_ -= 8;
      return bad_count("tensor count", n_tensors_, limit, kMaxTensors);
    }
    n_metadata_ = take<uint64_t>();
    if (const uint64_t limit = std::min(kMaxMetadata, left() / kMinMetadataBytes);
        n_metadata_ > limit) {
      at_ -= 8;
      return bad_count("metadata count", n_metadata_, limit, kMaxMetadata);
    }
    return version;
  }

  Result<std::vector<std::pair<std::string_view, GgufFile::Value>>> metadata() {
    std::vector<std::pair<std::string_view, GgufFile::Value>> out;
    out.reserve(n_metadata_);
    for (uint64_t i = 0; i < n_metadata_; ++i) {
      const size_t start = at_;
      std::string_view key;
      if (!take_string(key))
        return truncated(fmt::format("metadata key {} of {}", i + 1, n_metadata_));
      if (key.empty() || key.size() > kMaxKeyBytes || !utf8::is_valid(key)) {
        at_ = start;
        return invalid(fmt::format("metadata key {} of {}", i + 1, n_metadata_),
                       fmt::format("expected 1 to {} bytes of UTF-8, found {} bytes: {}",
                                   kMaxKeyBytes, key.size(), quote_name(key)));
      }
      const std::string field = "metadata " + quote_name(key);
      uint32_t type = 0;
      if (!take(type)) return truncated(field + " type");
      DEEPMINT_TRY(value, this->value(type, field, 0));
      out.emplace_back(key, std::move(value));
    }
    return out;
  }

  Result<std::vector<TensorView>> tensors(uint64_t alignment) {
    std::vector<TensorView> out;
    out.reserve(n_tensors_);
    for (uint64_t i = 0; i < n_tensors_; ++i) {
      DEEPMINT_TRY(tensor, tensor_info(i, alignment));
      out.push_back(std::move(tensor));
    }
    // Offsets count from here. A file without tensors may end before the padding.
    const uint64_t data_start = (at_ + alignment - 1) / alignment * alignment;
    for (TensorView& tensor : out) {
      const uint64_t relative = tensor.file_offset;
      const auto begin = checked_add(data_start, relative);
      const auto end = begin
                           ? checked_add(*begin, sizes_[static_cast<size_t>(&tensor - out.data())])
                           : std::nullopt;
      if (!end || *end > file_.size())
        return fail(ErrorCode::kInvalidFile,
                    fmt::format("expected its {} bytes at offset {} + {} to lie inside the file, "
                                "found a file of {} bytes",
                                sizes_[static_cast<size_t>(&tensor - out.data())], data_start,
                                relative, file_.size()),
                    "tensor " + quote_name(tensor.name));
      tensor.file_offset = *begin;
      tensor.bytes = file_.subspan(*begin, *end - *begin);
    }
    DEEPMINT_CHECK_OK(check_overlaps(out));
    return out;
  }

 private:
  uint64_t left() const { return file_.size() - at_; }

  // Requires that left() >= sizeof(T).
  template <class T>
  T take() {
    T value;
    std::memcpy(&value, file_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }
  template <class T>
  [[nodiscard]] bool take(T& value) {
    if (left() < sizeof(T)) return false;
    value = take<T>();
    return true;
  }
  [[nodiscard]] bool take_string(std::string_view& s) {
    const size_t start = at_;
    uint64_t size = 0;
    if (!take(size)) return false;
    if (size > left()) {
      at_ = start;
      return false;
    }
    s = {reinterpret_cast<const char*>(file_.data() + at_), size};
    at_ += size;
    return true;
  }

  std::string place(std::string_view field) const { return fmt::format("byte {}: {}", at_, field); }
  tl::unexpected<Error> invalid(std::string_view field, std::string message) const {
    return fail(ErrorCode::kInvalidFile, std::move(message), place(field));
  }
  tl::unexpected<Error> unsupported(std::string_view field, std::string message) const {
    return fail(ErrorCode::kUnsupported, std::move(message), place(field));
  }
  tl::unexpected<Error> truncated(std::string_view field) const {
    return invalid(field, fmt::format("expected more data, found the end of the file (size {})",
                                      file_.size()));
  }
  tl::unexpected<Error> bad_count(std::string_view field, uint64_t found, uint64_t limit,
                                  uint64_t absolute) const {
    return limit == absolute
               ? fail(ErrorCode::kTooLarge,
                      fmt::format("expected at most {}, found {}", limit, found), place(field))
               : invalid(field, fmt::format("expected at most {} (more do not fit into the {} "
                                            "bytes that follow), found {}",
                                            limit, left() - sizeof(uint64_t), found));
  }

  Result<GgufFile::Value> value(uint32_t type_number, const std::string& field, int depth) {
    using Value = GgufFile::Value;
    if (type_number >= kGgufValueTypes) {
      at_ -= sizeof(type_number);
      return invalid(field + " type",
                     fmt::format("expected 0 to {}, found {}", kGgufValueTypes - 1, type_number));
    }
    const auto type = static_cast<GgufValueType>(type_number);
    if (const uint32_t bytes = gguf_value_bytes(type); left() < bytes) return truncated(field);
    switch (type) {
      case GgufValueType::kUint8:
        return Value{widened<uint64_t, uint8_t>()};
      case GgufValueType::kUint16:
        return Value{widened<uint64_t, uint16_t>()};
      case GgufValueType::kUint32:
        return Value{widened<uint64_t, uint32_t>()};
      case GgufValueType::kUint64:
        return Value{take<uint64_t>()};
      case GgufValueType::kInt8:
        return Value{widened<int64_t, int8_t>()};
      case GgufValueType::kInt16:
        return Value{widened<int64_t, int16_t>()};
      case GgufValueType::kInt32:
        return Value{widened<int64_t, int32_t>()};
      case GgufValueType::kInt64:
        return Value{take<int64_t>()};
      case GgufValueType::kFloat32:
        return Value{widened<double, float>()};
      case GgufValueType::kFloat64:
        return Value{take<double>()};
      case GgufValueType::kBool: {
        const auto byte = take<uint8_t>();
        if (byte > 1) {
          --at_;
          return invalid(field, fmt::format("expected a boolean of 0 or 1, found {}", byte));
        }
        return Value{byte == 1};
      }
      case GgufValueType::kString: {
        std::string_view s;
        if (!take_string(s)) return truncated(field);
        return Value{s};
      }
      case GgufValueType::kArray: {
        DEEPMINT_TRY(array, this->array(field, depth));
        return Value{std::move(array)};
      }
    }
    return fail(ErrorCode::kInternal, "metadata type without a reader", field);
  }

  template <class Wide, class T>
  Wide widened() {
    return static_cast<Wide>(take<T>());
  }
  // Widens `count` numbers of stored type T, which the caller has found to lie inside the file.
  template <class Wide, class T>
  std::vector<Wide> numbers(uint64_t count) {
    std::vector<Wide> out(count);
    for (Wide& v : out) v = widened<Wide, T>();
    return out;
  }

  Result<GgufFile::Array> array(const std::string& field, int depth) {
    if (depth >= kMaxArrayDepth)
      return fail(ErrorCode::kTooLarge,
                  fmt::format("arrays nested more than {} deep", kMaxArrayDepth), place(field));
    uint32_t type_number = 0;
    uint64_t count = 0;
    if (!take(type_number)) return truncated(field + " element type");
    if (type_number >= kGgufValueTypes) {
      at_ -= sizeof(type_number);
      return invalid(field + " element type",
                     fmt::format("expected 0 to {}, found {}", kGgufValueTypes - 1, type_number));
    }
    const auto type = static_cast<GgufValueType>(type_number);
    if (!take(count)) return truncated(field + " count");
    const uint64_t least = type == GgufValueType::kString  ? 8
                           : type == GgufValueType::kArray ? 12
                                                           : gguf_value_bytes(type);
    const uint64_t allowed = kMaxArrayElements - n_elements_;
    if (const uint64_t limit = std::min(allowed, left() / least); count > limit) {
      at_ -= sizeof(count);
      return bad_count(field + " count", count, limit, allowed);
    }
    n_elements_ += count;
    switch (type) {
      case GgufValueType::kUint8:
        return numbers<uint64_t, uint8_t>(count);
      case GgufValueType::kUint16:
        return numbers<uint64_t, uint16_t>(count);
      case GgufValueType::kUint32:
        return numbers<uint64_t, uint32_t>(count);
      case GgufValueType::kUint64:
        return numbers<uint64_t, uint64_t>(count);
      case GgufValueType::kInt8:
        return numbers<int64_t, int8_t>(count);
      case GgufValueType::kInt16:
        return numbers<int64_t, int16_t>(count);
      case GgufValueType::kInt32:
        return numbers<int64_t, int32_t>(count);
      case GgufValueType::kInt64:
        return numbers<int64_t, int64_t>(count);
      case GgufValueType::kFloat32:
        return numbers<double, float>(count);
      case GgufValueType::kFloat64:
        return numbers<double, double>(count);
      case GgufValueType::kBool: {
        std::vector<bool> out(count);
        for (uint64_t i = 0; i < count; ++i) {
          const auto byte = take<uint8_t>();
          if (byte > 1) {
            --at_;
            return invalid(fmt::format("{} item {}", field, i),
                           fmt::format("expected a boolean of 0 or 1, found {}", byte));
          }
          out[i] = byte == 1;
        }
        return out;
      }
      case GgufValueType::kString: {
        std::vector<std::string_view> out(count);
        for (uint64_t i = 0; i < count; ++i)
          if (!take_string(out[i])) return truncated(fmt::format("{} item {}", field, i));
        return out;
      }
      case GgufValueType::kArray: {
        std::vector<GgufFile::Value> out;
        out.reserve(count);
        for (uint64_t i = 0; i < count; ++i) {
          DEEPMINT_TRY(inner, array(field, depth + 1));
          out.push_back({std::move(inner)});
        }
        return out;
      }
    }
    return fail(ErrorCode::kInternal, "metadata type without a reader", field);
  }

  // file_offset of the result is still relative to the data section; sizes_ gets the tensor's
  // bytes.
  Result<TensorView> tensor_info(uint64_t index, uint64_t alignment) {
    TensorView out;
    const size_t start = at_;
    std::string_view name;
    const std::string ordinal = fmt::format("tensor {} of {}", index + 1, n_tensors_);
    if (!take_string(name)) return truncated(ordinal + " name");
    if (name.empty() || name.size() > kMaxTensorNameBytes || !utf8::is_valid(name)) {
      at_ = start;
      return invalid(ordinal + " name",
                     fmt::format("expected 1 to {} bytes of UTF-8, found {} bytes: {}",
                                 kMaxTensorNameBytes, name.size(), quote_name(name)));
    }
    out.name = name;
    const std::string field = "tensor " + quote_name(name);

    uint32_t n_dims = 0;
    if (!take(n_dims)) return truncated(field + " dimension count");
    if (n_dims > kMaxDims) {
      at_ -= sizeof(n_dims);
      return invalid(field + " dimension count",
                     fmt::format("expected at most {}, found {}", kMaxDims, n_dims));
    }
    uint64_t elements = 1;
    for (uint32_t d = 0; d < n_dims; ++d) {
      uint64_t dim = 0;
      if (!take(dim)) return truncated(field + " dimensions");
      const auto product = checked_mul(elements, dim);
      if (dim == 0 || !product || *product > std::numeric_limits<int64_t>::max()) {
        at_ -= sizeof(dim);
        return invalid(fmt::format("{} dimension {}", field, d),
                       dim == 0 ? "expected at least 1, found 0"
                                : fmt::format("expected fewer than 2^63 elements, found {} × {}",
                                              elements, dim));
      }
      elements = *product;
      out.shape.push_back(dim);
    }
    // The file has the innermost dimension first.
    std::reverse(out.shape.begin(), out.shape.end());

    uint32_t type = 0;
    if (!take(type)) return truncated(field + " type");
    const auto dtype = dtype_of_ggml_type(type);
    if (!dtype) {
      at_ -= sizeof(type);
      const std::string_view known = ggml_type_name(type);
      constexpr std::string_view kRead =
          "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K or Q6_K";
      if (known.empty())
        return invalid(field + " type",
                       fmt::format("expected {}, found type number {}", kRead, type));
      return unsupported(field + " type", fmt::format("expected {}, found {}", kRead, known));
    }
    out.dtype = *dtype;
    const uint64_t row = out.shape.empty() ? 1 : out.shape.back();
    const auto one_row = row_bytes(out.dtype, row);
    const auto bytes = one_row ? checked_mul(*one_row, elements / row) : std::nullopt;
    if (!bytes) {
      return invalid(field,
                     fmt::format("expected rows of a multiple of {} elements for {}, found {}",
                                 info(out.dtype).block_elements, info(out.dtype).name, row));
    }
    sizes_.push_back(*bytes);

    if (!take(out.file_offset)) return truncated(field + " offset");
    if (out.file_offset % alignment != 0) {
      at_ -= sizeof(out.file_offset);
      return invalid(field + " offset",
                     fmt::format("expected a multiple of the alignment {}, found {}", alignment,
                                 out.file_offset));
    }
    return out;
  }

  static Status check_overlaps(const std::vector<TensorView>& tensors) {
    std::vector<uint32_t> order(tensors.size());
    std::iota(order.begin(), order.end(), 0u);
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
      return std::pair(tensors[a].file_offset, a) < std::pair(tensors[b].file_offset, b);
    });
    for (size_t i = 1; i < order.size(); ++i) {
      const TensorView& before = tensors[order[i - 1]];
      const TensorView& after = tensors[order[i]];
      if (before.file_offset + before.bytes.size() > after.file_offset)
        return fail(
            ErrorCode::kInvalidFile,
            fmt::format("expected it to start at or after byte {}, where {} ends, found byte {}",
                        before.file_offset + before.bytes.size(), quote_name(before.name),
                        after.file_offset),
            "tensor " + quote_name(after.name));
    }
    return {};
  }

  std::span<const std::byte> file_;
  size_t at_ = 0;
  uint64_t n_tensors_ = 0, n_metadata_ = 0;
  uint64_t n_elements_ = 0;      // of all arrays so far
  std::vector<uint64_t> sizes_;  // bytes of each tensor
};

// Indices of `names` in ascending order of name, or an error when two are equal.
template <class NameOf>
Result<std::vector<uint32_t>> sorted_unique(size_t count, std::string_view what,
                                            const NameOf& name_of) {
  std::vector<uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return name_of(a) < name_of(b); });
  for (size_t i = 1; i < count; ++i)
    if (name_of(order[i - 1]) == name_of(order[i]))
      return fail(ErrorCode::kInvalidFile, "expected it once, found it twice",
                  fmt::format("{} {}", what, quote_name(name_of(order[i]))));
  return order;
}

}  // namespace

Result<GgufFile> GgufFile::open(const std::filesystem::path& path) {
  GgufFile out;
  DEEPMINT_TRY(mapped, MappedFile::open(path));
  out.file_ = std::move(mapped);
  if (Status status = out.parse(); !status)
    return tl::unexpected<Error>(std::move(status).error().at(path.string()));
  return out;
}

Status GgufFile::parse() {
  Parser parser(file_.bytes());
  DEEPMINT_TRY(version, parser.header());
  version_ = version;
  DEEPMINT_TRY(metadata, parser.metadata());
  metadata_ = std::move(metadata);
  DEEPMINT_TRY(metadata_order, sorted_unique(metadata_.size(), "metadata",
                                             [&](uint32_t i) { return metadata_[i].first; }));
  metadata_order_ = std::move(metadata_order);

  uint64_t alignment = kDefaultAlignment;
  if (const Value* value = find("general.alignment")) {
    const auto* number = std::get_if<uint64_t>(&value->data);
    if (number == nullptr || !std::has_single_bit(*number) || *number < kMinAlignment ||
        *number > kMaxAlignment)
      return fail(
          ErrorCode::kInvalidFile,
          fmt::format("expected a power of two from {} to {}, found {}", kMinAlignment,
                      kMaxAlignment,
                      number == nullptr ? std::string(kind_of(*value)) : std::to_string(*number)),
          "metadata \"general.alignment\"");
    alignment = *number;
  }
  // The parts of a split file name each other; only tools that join them know what is missing.
  if (const Value* value = find("split.count")) {
    const auto* count = std::get_if<uint64_t>(&value->data);
    if (count == nullptr || *count > 1)
      return fail(
          ErrorCode::kUnsupported,
          fmt::format("expected a file that is whole, found one part of a split checkpoint{}; join "
                      "the parts first",
                      count == nullptr ? std::string() : fmt::format(" of {} files", *count)),
          "metadata \"split.count\"");
  }
  DEEPMINT_TRY(tensors, parser.tensors(alignment));
  tensors_ = std::move(tensors);
  DEEPMINT_TRY(tensor_order, sorted_unique(tensors_.size(), "tensor", [&](uint32_t i) {
                 return std::string_view(tensors_[i].name);
               }));
  tensor_order_ = std::move(tensor_order);
  return {};
}

const GgufFile::Value* GgufFile::find(std::string_view key) const {
  const auto it =
      std::lower_bound(metadata_order_.begin(), metadata_order_.end(), key,
                       [&](uint32_t i, std::string_view k) { return metadata_[i].first < k; });
  return it != metadata_order_.end() && metadata_[*it].first == key ? &metadata_[*it].second
                                                                    : nullptr;
}

const TensorView* GgufFile::tensor(std::string_view name) const {
  const auto it =
      std::lower_bound(tensor_order_.begin(), tensor_order_.end(), name,
                       [&](uint32_t i, std::string_view n) { return tensors_[i].name < n; });
  return it != tensor_order_.end() && tensors_[*it].name == name ? &tensors_[*it] : nullptr;
}

tl::unexpected<Error> GgufFile::wrong(std::string_view key, std::string_view expected,
                                      std::string_view found) const {
  return fail(ErrorCode::kInvalidFile, fmt::format("expected {}, found {}", expected, found),
              fmt::format("{}: metadata {}", file_.path().string(), quote_name(key)));
}
tl::unexpected<Error> GgufFile::wrong(std::string_view key, std::string_view expected,
                                      const Value* found) const {
  return wrong(key, expected, found == nullptr ? std::string_view("nothing") : kind_of(*found));
}

Result<std::string_view> GgufFile::string(std::string_view key) const {
  const Value* value = find(key);
  if (const auto* s = value ? std::get_if<std::string_view>(&value->data) : nullptr) return *s;
  return wrong(key, "a string", value);
}

Result<int64_t> GgufFile::integer(std::string_view key) const {
  const Value* value = find(key);
  if (value != nullptr) {
    if (const auto* i = std::get_if<int64_t>(&value->data)) return *i;
    if (const auto* u = std::get_if<uint64_t>(&value->data)) {
      if (std::in_range<int64_t>(*u)) return static_cast<int64_t>(*u);
      return wrong(key, "an integer below 2^63", std::to_string(*u));
    }
  }
  return wrong(key, "an integer", value);
}

Result<double> GgufFile::number(std::string_view key) const {
  const Value* value = find(key);
  if (value != nullptr) {
    if (const auto* d = std::get_if<double>(&value->data)) return *d;
    if (const auto* i = std::get_if<int64_t>(&value->data)) return static_cast<double>(*i);
    if (const auto* u = std::get_if<uint64_t>(&value->data)) return static_cast<double>(*u);
  }
  return wrong(key, "a number", value);
}

Result<bool> GgufFile::boolean(std::string_view key) const {
  const Value* value = find(key);
  if (const auto* b = value ? std::get_if<bool>(&value->data) : nullptr) return *b;
  return wrong(key, "a boolean", value);
}

Result<std::string_view> GgufFile::string_or(std::string_view key,
                                             std::string_view fallback) const {
  return find(key) ? string(key) : fallback;
}
Result<int64_t> GgufFile::integer_or(std::string_view key, int64_t fallback) const {
  return find(key) ? integer(key) : fallback;
}
Result<double> GgufFile::number_or(std::string_view key, double fallback) const {
  return find(key) ? number(key) : fallback;
}
Result<bool> GgufFile::boolean_or(std::string_view key, bool fallback) const {
  return find(key) ? boolean(key) : fallback;
}

Result<std::vector<std::string_view>> GgufFile::strings(std::string_view key) const {
  const Value* value = find(key);
  if (const auto* array = value ? std::get_if<Array>(&value->data) : nullptr)
    if (const auto* items = std::get_if<std::vector<std::string_view>>(array)) return *items;
  return wrong(key, "an array of strings", value);
}

Result<std::vector<int64_t>> GgufFile::integers(std::string_view key) const {
  const Value* value = find(key);
  if (const auto* array = value ? std::get_if<Array>(&value->data) : nullptr) {
    if (const auto* items = std::get_if<std::vector<int64_t>>(array)) return *items;
    if (const auto* items = std::get_if<std::vector<uint64_t>>(array)) {
      for (const uint64_t u : *items)
        if (!std::in_range<int64_t>(u)) return wrong(key, "integers below 2^63", std::to_string(u));
      return std::vector<int64_t>(items->begin(), items->end());
    }
  }
  return wrong(key, "an array of integers", value);
}

Result<std::vector<double>> GgufFile::numbers(std::string_view key) const {
  const Value* value = find(key);
  if (const auto* array = value ? std::get_if<Array>(&value->data) : nullptr) {
    if (const auto* items = std::get_if<std::vector<double>>(array)) return *items;
    if (const auto* items = std::get_if<std::vector<int64_t>>(array))
      return std::vector<double>(items->begin(), items->end());
    if (const auto* items = std::get_if<std::vector<uint64_t>>(array))
      return std::vector<double>(items->begin(), items->end());
  }
  return wrong(key, "an array of numbers", value);
}

}  // namespace deepmint
