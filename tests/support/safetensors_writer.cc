#include "support/safetensors_writer.h"

#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <system_error>

#include "core/json.h"
#include "support/gguf_writer.h"

namespace deepmint::testing {

SafetensorsWriter& SafetensorsWriter::tensor(std::string_view name, std::string_view dtype,
                                             const std::vector<uint64_t>& shape,
                                             std::string bytes) {
  entries_.push_back(
      {std::string(name), std::string(dtype), shape, data_.size(), data_.size() + bytes.size()});
  data_ += bytes;
  return *this;
}

SafetensorsWriter& SafetensorsWriter::metadata(std::string_view key, std::string_view value) {
  metadata_.emplace_back(key, value);
  return *this;
}

std::string SafetensorsWriter::header() const {
  json::Writer w;
  w.begin_object();
  if (!metadata_.empty()) {
    w.key("__metadata__").begin_object();
    for (const auto& [key, value] : metadata_) w.key(key).value(value);
    w.end_object();
  }
  for (const Entry& entry : entries_) {
    w.key(entry.name).begin_object().key("dtype").value(entry.dtype).key("shape").begin_array();
    for (const uint64_t d : entry.shape) w.value(d);
    w.end_array()
        .key("data_offsets")
        .begin_array()
        .value(entry.begin)
        .value(entry.end)
        .end_array()
        .end_object();
  }
  w.end_object();
  std::string text = w.take();
  text.resize((text.size() + 7) / 8 * 8,
              ' ');  // as the published writer does, so that the data is aligned
  return text;
}

std::string SafetensorsWriter::with_header(std::string_view header, std::string_view data) {
  std::string out;
  append_le(out, static_cast<uint64_t>(header.size()));
  out.append(header).append(data);
  return out;
}

void SafetensorsWriter::write(const std::filesystem::path& path) const {
  write_text(path, bytes());
}

std::string safetensors_index(const std::vector<std::pair<std::string, std::string>>& weight_map) {
  json::Writer w;
  w.begin_object()
      .key("metadata")
      .begin_object()
      .key("total_size")
      .value(0)
      .end_object()
      .key("weight_map")
      .begin_object();
  for (const auto& [tensor, file] : weight_map) w.key(tensor).value(file);
  w.end_object().end_object();
  return w.take();
}

void write_text(const std::filesystem::path& path, std::string_view text) {
  std::ofstream out(path, std::ios::binary);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  out.close();
  if (!out) throw std::runtime_error("cannot write " + path.string());
}

TempFolder::TempFolder() {
  // In memory where possible: tests write thousands of small files, and disks flush each one that
  // is truncated.
  const bool in_memory = std::getenv("TMPDIR") == nullptr && access("/dev/shm", W_OK) == 0;
  const std::filesystem::path base =
      in_memory ? "/dev/shm" : std::filesystem::temp_directory_path();
  std::string pattern = (base / "deepmint_test_XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr)
    throw std::system_error(errno, std::generic_category(), pattern);
  path_ = pattern;
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace deepmint::testing
