// Writes safetensors files for tests, well-formed unless the header text is given by hand.
//
//   SafetensorsWriter w;
//   w.tensor("norm.weight", "F32", {8}, bytes).metadata("format", "pt");
//   w.write(folder / "model.safetensors");
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace deepmint::testing {

class SafetensorsWriter {
 public:
  SafetensorsWriter& tensor(std::string_view name, std::string_view dtype,
                            const std::vector<uint64_t>& shape, std::string bytes);
  SafetensorsWriter& metadata(std::string_view key, std::string_view value);

  std::string header() const;                                         // the JSON text
  std::string bytes() const { return with_header(header(), data_); }  // the whole file
  static std::string with_header(std::string_view header,
                                 std::string_view data);  // length prefix + header + data
  void write(const std::filesystem::path& path) const;    // throws std::runtime_error

  const std::string& data() const { return data_; }

 private:
  struct Entry {
    std::string name, dtype;
    std::vector<uint64_t> shape;
    uint64_t begin, end;
  };
  std::vector<Entry> entries_;
  std::vector<std::pair<std::string, std::string>> metadata_;
  std::string data_;
};

// model.safetensors.index.json: (tensor, file) pairs.
std::string safetensors_index(const std::vector<std::pair<std::string, std::string>>& weight_map);

void write_text(const std::filesystem::path& path,
                std::string_view text);  // throws std::runtime_error

// A fresh empty folder that is removed with its contents at the end.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace deepmint::testing
