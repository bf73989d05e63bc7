#include "support/gguf_writer.h"

#include <algorithm>
#include <fstream>
#include <stdexcept>

#include "core/check.h"

namespace deepmint::testing {

void append_gguf_string(std::string& out, std::string_view s) {
  append_le(out, static_cast<uint64_t>(s.size()));
  out.append(s);
}

GgufWriter& GgufWriter::put(std::string_view key, GgufValueType type, std::string payload,
                            bool replace) {
  if (replace) {
    for (KeyValue& kv : metadata_) {
      if (kv.key != key) continue;
      kv.type = type;
      kv.payload = std::move(payload);
      return *this;
    }
  }
  metadata_.push_back({std::string(key), type, std::move(payload)});
  return *this;
}

GgufWriter& GgufWriter::erase(std::string_view key) {
  std::erase_if(metadata_, [&](const KeyValue& kv) { return kv.key == key; });
  return *this;
}

GgufWriter& GgufWriter::tensor(std::string_view name, DType type,
                               const std::vector<uint64_t>& shape, std::string bytes) {
  const auto number = ggml_type_of_dtype(type);
  DEEPMINT_CHECK(number);
  uint64_t rows = 1;
  for (size_t d = 0; d + 1 < shape.size(); ++d) rows *= shape[d];
  const auto row = row_bytes(type, shape.empty() ? 1 : shape.back());
  DEEPMINT_CHECK(row && *row * rows == bytes.size());
  return tensor_raw(name, *number, {shape.rbegin(), shape.rend()}, std::move(bytes));
}

GgufWriter& GgufWriter::tensor_f32(std::string_view name, const std::vector<uint64_t>& shape,
                                   std::span<const float> values) {
  return tensor(name, DType::kF32, shape,
                std::string(reinterpret_cast<const char*>(values.data()), values.size_bytes()));
}

GgufWriter& GgufWriter::tensor_raw(std::string_view name, uint32_t ggml_type,
                                   const std::vector<uint64_t>& dims, std::string bytes,
                                   int64_t skew) {
  tensors_.push_back({std::string(name), ggml_type, dims, std::move(bytes), skew});
  return *this;
}

GgufWriter& GgufWriter::erase_tensor(std::string_view name) {
  std::erase_if(tensors_, [&](const Tensor& t) { return t.name == name; });
  return *this;
}

std::string GgufWriter::bytes() {
  fields_.clear();
  std::string out;
  const auto mark = [&](std::string name, size_t size) {
    fields_.push_back({std::move(name), out.size(), size});
  };
  const auto pad = [&] { out.resize((out.size() + alignment_ - 1) / alignment_ * alignment_); };

  std::vector<KeyValue> metadata = metadata_;
  if (alignment_ != 32) {
    std::string payload;
    append_le(payload, alignment_);
    metadata.push_back({"general.alignment", GgufValueType::kUint32, payload});
  }

  mark("magic", 4);
  out += "GGUF";
  mark("version", 4);
  append_le(out, version_);
  mark("tensor_count", 8);
  append_le(out, static_cast<uint64_t>(tensors_.size()));
  mark("metadata_count", 8);
  append_le(out, static_cast<uint64_t>(metadata.size()));
  for (size_t i = 0; i < metadata.size(); ++i) {
    const KeyValue& kv = metadata[i];
    const std::string prefix = "kv[" + std::to_string(i) + "].";
    mark(prefix + "key.length", 8);
    append_le(out, static_cast<uint64_t>(kv.key.size()));
    mark(prefix + "key.bytes", kv.key.size());
    out += kv.key;
    mark(prefix + "type", 4);
    append_le(out, static_cast<uint32_t>(kv.type));
    if (kv.type == GgufValueType::kString && kv.payload.size() >= 8)
      mark(prefix + "string.length", 8);
    if (kv.type == GgufValueType::kArray && kv.payload.size() >= 12) {
      mark(prefix + "array.type", 4);
      fields_.push_back({prefix + "array.count", out.size() + 4, 8});
    }
    mark(prefix + "value", kv.payload.size());
    out += kv.payload;
  }
  uint64_t offset = 0;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const Tensor& t = tensors_[i];
    const std::string prefix = "tensor[" + std::to_string(i) + "].";
    mark(prefix + "name.length", 8);
    append_le(out, static_cast<uint64_t>(t.name.size()));
    mark(prefix + "name.bytes", t.name.size());
    out += t.name;
    mark(prefix + "n_dims", 4);
    append_le(out, static_cast<uint32_t>(t.dims.size()));
    for (size_t d = 0; d < t.dims.size(); ++d) {
      mark(prefix + "dim[" + std::to_string(d) + "]", 8);
      append_le(out, t.dims[d]);
    }
    mark(prefix + "type", 4);
    append_le(out, t.type);
    mark(prefix + "offset", 8);
    append_le(out, offset + static_cast<uint64_t>(t.skew));
    offset = (offset + t.bytes.size() + alignment_ - 1) / alignment_ * alignment_;
  }
  pad();
  mark("data", 0);
  for (const Tensor& t : tensors_) {
    out += t.bytes;
    pad();
  }
  return out;
}

void GgufWriter::write(const std::filesystem::path& path) {
  const std::string data = bytes();
  std::ofstream out(path, std::ios::binary);
  out.write(data.data(), static_cast<std::streamsize>(data.size()));
  out.close();
  if (!out) throw std::runtime_error("cannot write " + path.string());
}

}  // namespace deepmint::testing
