#include "format/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <system_error>
#include <utility>

#include "core/checked.h"
#include "core/json.h"
#include "format/names.h"

namespace deepmint {
namespace {

// docs/formats/safetensors.md lists these.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the published reader's limit
constexpr uint64_t kMaxIndexBytes = 100'000'000;
constexpr size_t kMaxHeaderValues = size_t{1}
                                    << 22;  // JSON values; a tensor takes 6 and one per dimension
constexpr size_t kMaxDims = 8;
constexpr size_t kMaxFiles = 4'096;
constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";

constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E8M0,
                             DType::kI8,  DType::kU8,  DType::kI32,  DType::kI64};

std::optional<DType> dtype_of_name(std::string_view name) {
  for (const DType type : kDTypes)
    if (info(type).name == name) return type;
  return std::nullopt;
}

std::string kind_of(const json::Value* value) {
  return value == nullptr ? "nothing" : fmt::format("a JSON {}", json::to_string(value->kind()));
}

tl::unexpected<Error> invalid(std::string message, std::string where = {}) {
  return fail(ErrorCode::kInvalidFile, std::move(message), std::move(where));
}

// A document in a file is the file's fault, not the caller's.
Result<json::Value> parse_document(std::string_view text, const json::ParseLimits& limits) {
  auto parsed = json::parse(text, limits);
  if (!parsed && parsed.error().code == ErrorCode::kInvalidArgument)
    parsed.error().code = ErrorCode::kInvalidFile;
  return parsed;
}

// One entry of the header: "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}.
// `data` is all that follows the header; file_offset of the result is relative to it.
Result<TensorView> tensor_of(const json::Member& entry, std::span<const std::byte> data) {
  TensorView out;
  out.name = entry.key;
  if (!entry.value.is_object())
    return invalid("expected a JSON object, found " + kind_of(&entry.value));
  const json::Value *dtype = nullptr, *shape = nullptr, *offsets = nullptr;
  for (const json::Member& member : entry.value.members()) {
    const json::Value** slot = member.key == "dtype"          ? &dtype
                               : member.key == "shape"        ? &shape
                               : member.key == "data_offsets" ? &offsets
                                                              : nullptr;
    if (slot == nullptr || *slot != nullptr)
      return invalid(fmt::format("expected dtype, shape and data_offsets once each, found {}{}",
                                 quote_name(member.key), slot == nullptr ? "" : " twice"));
    *slot = &member.value;
  }

  if (dtype == nullptr || !dtype->is_string())
    return invalid("expected a string, found " + kind_of(dtype), "dtype");
  const auto type = dtype_of_name(dtype->as_string());
  if (!type)
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("expected F32, F16, BF16, F8_E4M3, F8_E8M0, I8, U8, I32 or I64, found {}",
                    quote_name(dtype->as_string())),
        "dtype");
  out.dtype = *type;

  if (shape == nullptr || !shape->is_array())
    return invalid("expected an array, found " + kind_of(shape), "shape");
  if (shape->items().size() > kMaxDims)
    return invalid(
        fmt::format("expected at most {} dimensions, found {}", kMaxDims, shape->items().size()),
        "shape");
  uint64_t elements = 1;
  for (const json::Value& item : shape->items()) {
    const auto dim = item.to_uint64();
    const auto product = dim ? checked_mul(elements, *dim) : std::nullopt;
    if (!product || *product > std::numeric_limits<int64_t>::max())
      return invalid(dim ? "expected fewer than 2^63 elements"
                         : "expected integers from 0, found " +
                               (item.is_number() ? item.number_text() : kind_of(&item)),
                     "shape");
    elements = *product;
    out.shape.push_back(*dim);
  }

  if (offsets == nullptr || !offsets->is_array() || offsets->items().size() != 2)
    return invalid("expected an array of two integers, found " +
                       (offsets != nullptr && offsets->is_array()
                            ? fmt::format("{} items", offsets->items().size())
                            : kind_of(offsets)),
                   "data_offsets");
  const auto begin = offsets->items()[0].to_uint64(), end = offsets->items()[1].to_uint64();
  if (!begin || !end) return invalid("expected two integers from 0", "data_offsets");
  if (*begin > *end || *end > data.size())
    return invalid(fmt::format("expected a range inside the {} bytes of data, found {} to {}",
                               data.size(), *begin, *end),
                   "data_offsets");
  const auto bytes = row_bytes(out.dtype, elements);
  if (!bytes || *bytes != *end - *begin)
    return invalid(fmt::format("expected {} bytes for {} elements of {}, found {}",
                               bytes ? std::to_string(*bytes) : "fewer than 2^64", elements,
                               info(out.dtype).name, *end - *begin),
                   "data_offsets");
  out.file_offset = *begin;
  out.bytes = data.subspan(*begin, *bytes);
  return out;
}

// The data section must be covered exactly: nothing twice, nothing left out.
Status check_coverage(const std::vector<TensorView>& tensors, uint64_t data_bytes) {
  std::vector<uint32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0u);
  const auto end_of = [&](uint32_t i) { return tensors[i].file_offset + tensors[i].bytes.size(); };
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return std::pair(tensors[a].file_offset, end_of(a)) <
           std::pair(tensors[b].file_offset, end_of(b));
  });
  uint64_t covered = 0;
  std::string_view before = "the header";
  for (const uint32_t i : order) {
    if (tensors[i].file_offset != covered)
      return invalid(
          fmt::format("expected to start at data byte {}, where {} ends, found {}", covered,
                      i == order.front() ? std::string(before) : quote_name(before),
                      tensors[i].file_offset),
          "tensor " + quote_name(tensors[i].name));
    covered = end_of(i);
    before = tensors[i].name;
  }
  if (covered != data_bytes)
    return invalid(
        fmt::format("expected {} bytes of data after the header, found {}", covered, data_bytes));
  return {};
}

Status check_unique(std::vector<std::string_view> names, std::string_view what) {
  std::sort(names.begin(), names.end());
  if (const auto it = std::adjacent_find(names.begin(), names.end()); it != names.end())
    return invalid("expected it once, found it twice", fmt::format("{} {}", what, quote_name(*it)));
  return {};
}

// Appends the tensors of one file.
Status read_file(const MappedFile& file, int file_index, std::vector<TensorView>& tensors,
                 std::map<std::string, std::string>& metadata) {
  const std::span<const std::byte> bytes = file.bytes();
  uint64_t header_bytes = 0;
  if (bytes.size() < sizeof(header_bytes))
    return invalid(fmt::format("expected a header length of {} bytes, found a file of {}",
                               sizeof(header_bytes), bytes.size()));
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  const uint64_t left = bytes.size() - sizeof(header_bytes);
  if (header_bytes > kMaxHeaderBytes)
    return fail(ErrorCode::kTooLarge,
                fmt::format("expected a header of at most {} bytes, found {}", kMaxHeaderBytes,
                            header_bytes),
                "byte 0");
  if (header_bytes < 2 || header_bytes > left)
    return invalid(fmt::format("expected a header of 2 to {} bytes, found {}", left, header_bytes),
                   "byte 0");
  const auto data = bytes.subspan(sizeof(header_bytes) + header_bytes);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + sizeof(header_bytes),
                              header_bytes);
  if (text.front() != '{') return invalid("expected a JSON object", "header");
  auto header = parse_document(
      text, {.max_bytes = kMaxHeaderBytes, .max_depth = 4, .max_values = kMaxHeaderValues});
  if (!header) return tl::unexpected<Error>(std::move(header).error().at("header"));

  std::vector<std::string_view> names;
  names.reserve(header->members().size());
  for (const json::Member& entry : header->members()) names.push_back(entry.key);
  DEEPMINT_CHECK_OK(check_unique(std::move(names), "tensor"));

  std::vector<TensorView> found;
  found.reserve(header->members().size());
  for (const json::Member& entry : header->members()) {
    if (entry.key == "__metadata__") {
      if (!entry.value.is_object())
        return invalid("expected a JSON object, found " + kind_of(&entry.value), "__metadata__");
      for (const json::Member& member : entry.value.members()) {
        if (!member.value.is_string())
          return invalid("expected a string, found " + kind_of(&member.value),
                         "__metadata__ " + quote_name(member.key));
        metadata.emplace(member.key,
                         member.value.as_string());  // the first file that has a key wins
      }
      continue;
    }
    auto tensor = tensor_of(entry, data);
    if (!tensor)
      return tl::unexpected<Error>(std::move(tensor).error().at("tensor " + quote_name(entry.key)));
    found.push_back(std::move(*tensor));
  }
  DEEPMINT_CHECK_OK(check_coverage(found, data.size()));
  for (TensorView& tensor : found) {
    tensor.file_index = file_index;
    tensor.file_offset += sizeof(header_bytes) + header_bytes;
    tensors.push_back(std::move(tensor));
  }
  return {};
}

struct Index {
  std::vector<std::pair<std::string, uint32_t>>
      tensors;                     // name, index into `files`; sorted by name
  std::vector<std::string> files;  // sorted
};

// A file name from an index must stay in the folder of that index, and in the line of an error that
// names it.
bool is_plain_file_name(std::string_view name) {
  return name.size() <= 255 && printable(name) == name && name.ends_with(".safetensors") &&
         name.front() != '.' &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

Result<Index> read_index(const MappedFile& file) {
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.size());
  DEEPMINT_TRY(document, parse_document(text, {.max_bytes = kMaxIndexBytes,
                                               .max_depth = 8,
                                               .max_values = kMaxHeaderValues}));
  const json::Value* weight_map = document.find("weight_map");
  if (weight_map == nullptr || !weight_map->is_object())
    return invalid("expected a JSON object, found " + kind_of(weight_map), "weight_map");

  std::map<std::string_view, uint32_t> file_ids;
  for (const json::Member& entry : weight_map->members()) {
    const std::string where = "weight_map " + quote_name(entry.key);
    if (!entry.value.is_string())
      return invalid("expected a file name, found " + kind_of(&entry.value), where);
    if (!is_plain_file_name(entry.value.as_string()))
      return invalid(
          fmt::format("expected the name of a .safetensors file in the same folder, found {}",
                      quote_name(entry.value.as_string())),
          where);
    file_ids.emplace(entry.value.as_string(), 0);
  }
  if (file_ids.empty()) return invalid("expected at least one tensor, found none", "weight_map");
  if (file_ids.size() > kMaxFiles)
    return fail(ErrorCode::kTooLarge,
                fmt::format("expected at most {} files, found {}", kMaxFiles, file_ids.size()),
                "weight_map");
  Index out;
  for (auto& [name, id] : file_ids) {
    id = static_cast<uint32_t>(out.files.size());
    out.files.emplace_back(name);
  }
  out.tensors.reserve(weight_map->members().size());
  for (const json::Member& entry : weight_map->members())
    out.tensors.emplace_back(entry.key, file_ids.find(entry.value.as_string())->second);
  std::sort(out.tensors.begin(), out.tensors.end());
  for (size_t i = 1; i < out.tensors.size(); ++i)
    if (out.tensors[i - 1].first == out.tensors[i].first)
      return invalid("expected it once, found it twice",
                     "weight_map " + quote_name(out.tensors[i].first));
  return out;
}

// Both sorted by name; file indices mean the same in both.
Status check_agreement(const Index& index, const std::vector<TensorView>& tensors) {
  size_t i = 0, t = 0;
  while (i < index.tensors.size() || t < tensors.size()) {
    const int order = i == index.tensors.size() ? 1
                      : t == tensors.size()     ? -1
                                                : index.tensors[i].first.compare(tensors[t].name);
    if (order < 0)
      return invalid(fmt::format("expected it in {} by the index, found nothing",
                                 quote_name(index.files[index.tensors[i].second])),
                     "tensor " + quote_name(index.tensors[i].first));
    const std::string& file = index.files[static_cast<size_t>(tensors[t].file_index)];
    if (order > 0)
      return invalid(fmt::format("expected it in the index, found it only in {}", quote_name(file)),
                     "tensor " + quote_name(tensors[t].name));
    if (index.files[index.tensors[i].second] != file)
      return invalid(
          fmt::format("expected it in {} by the index, found it in {}",
                      quote_name(index.files[index.tensors[i].second]), quote_name(file)),
          "tensor " + quote_name(tensors[t].name));
    ++i, ++t;
  }
  return {};
}

}  // namespace

Result<SafetensorsModel> SafetensorsModel::open(const std::filesystem::path& file_or_folder) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  fs::path file = file_or_folder;
  if (fs::is_directory(file_or_folder, ignored)) {
    file = file_or_folder / kIndexFile;
    if (!name_exists(file)) file = file_or_folder / kSingleFile;
    if (!name_exists(file))
      return fail(ErrorCode::kNotFound,
                  fmt::format("expected {} or {}, found neither", kSingleFile, kIndexFile),
                  file_or_folder.string());
  }

  SafetensorsModel out;
  std::optional<Index> index;
  std::vector<fs::path> paths = {file};
  if (file.extension() == ".json") {
    DEEPMINT_TRY(mapped, MappedFile::open(file));
    auto read = read_index(mapped);
    if (!read) return tl::unexpected<Error>(std::move(read).error().at(file.string()));
    index = std::move(*read);
    paths.clear();
    for (const std::string& name : index->files) paths.push_back(file.parent_path() / name);
  }
  for (const fs::path& path : paths) {
    DEEPMINT_TRY(mapped, MappedFile::open(path));
    if (auto status =
            read_file(mapped, static_cast<int>(out.files_.size()), out.tensors_, out.metadata_);
        !status)
      return tl::unexpected<Error>(std::move(status).error().at(path.string()));
    out.files_.push_back(std::move(mapped));
  }
  std::sort(out.tensors_.begin(), out.tensors_.end(),
            [](const TensorView& a, const TensorView& b) { return a.name < b.name; });
  for (size_t i = 1; i < out.tensors_.size(); ++i) {
    const TensorView &a = out.tensors_[i - 1], &b = out.tensors_[i];
    if (a.name == b.name)
      return invalid(
          fmt::format(
              "expected it once, found it in {} and {}",
              quote_name(out.files_[static_cast<size_t>(a.file_index)].path().filename().string()),
              quote_name(out.files_[static_cast<size_t>(b.file_index)].path().filename().string())),
          fmt::format("{}: tensor {}", file_or_folder.string(), quote_name(a.name)));
  }
  if (index)
    if (auto status = check_agreement(*index, out.tensors_); !status)
      return tl::unexpected<Error>(std::move(status).error().at(file_or_folder.string()));
  return out;
}

const TensorView* SafetensorsModel::tensor(std::string_view name) const {
  const auto it =
      std::lower_bound(tensors_.begin(), tensors_.end(), name,
                       [](const TensorView& t, std::string_view n) { return t.name < n; });
  return it != tensors_.end() && it->name == name ? &*it : nullptr;
}

}  // namespace deepmint
