#include "kvcache/chain_hash.h"

#include <algorithm>
#include <cstring>

#include "core/check.h"

namespace deepmint::kvcache {
namespace {

constexpr std::string_view kMagic = "DMKV";
constexpr uint32_t kVersion = 1;
constexpr size_t kImageBytes = 16 + 4 + 8;  // content, preprocessing, offset

// Bytes of one hashed message, in little-endian order.
class Frame {
 public:
  explicit Frame(std::vector<std::byte>& bytes) : bytes_(bytes) { bytes_.clear(); }
  void raw(const void* data, size_t size) {
    const auto* p = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), p, p + size);
  }
  template <class T>
  void number(T value) {
    raw(&value, sizeof value);
  }
  void section(std::string_view text) {
    number<uint64_t>(text.size());
    raw(text.data(), text.size());
  }

 private:
  std::vector<std::byte>& bytes_;
};

}  // namespace

uint64_t layout_fingerprint(std::span<const PartSpec> parts) {
  std::vector<std::byte> bytes;
  Frame frame(bytes);
  frame.number(kVersion);
  frame.number<uint32_t>(kBlockTokens);
  frame.number<uint64_t>(parts.size());
  for (const PartSpec& part : parts) {
    frame.section(part.name);
    frame.number(static_cast<uint8_t>(part.family));
    frame.number<uint64_t>(part.bytes);
  }
  return xxh3_64(bytes);
}

HashChain::HashChain(const CacheIdentity& identity) {
  std::vector<std::byte> bytes;
  Frame frame(bytes);
  frame.section(kMagic);
  frame.number(kVersion);
  frame.number(identity.model_fingerprint);
  frame.number(identity.layout_fingerprint);
  frame.section(identity.salt);
  head_ = sha256(bytes);
  context_ = xxh3_64(bytes, kVersion);
}

void HashChain::reserve(size_t tokens) { blocks_.reserve(tokens / kBlockTokens); }

void HashChain::add_image(const ImageKey& image) {
  DEEPMINT_CHECK(image.begin >= 0 && image.begin < image.end);
  DEEPMINT_CHECK(image.end > static_cast<int64_t>(blocks_.size() * kBlockTokens));
  DEEPMINT_CHECK(images_.empty() || images_.back().end <= image.begin);
  images_.push_back(image);
}

void HashChain::append(std::span<const TokenId> tokens) {
  while (!tokens.empty()) {
    const size_t n = std::min(tokens.size(), kBlockTokens - n_pending_);
    std::copy_n(tokens.begin(), n, pending_.begin() + static_cast<ptrdiff_t>(n_pending_));
    n_pending_ += n;
    tokens = tokens.subspan(n);
    if (n_pending_ == kBlockTokens) close_block();
  }
}

void HashChain::close_block() {
  const auto begin = static_cast<int64_t>(blocks_.size() * kBlockTokens);
  const int64_t end = begin + kBlockTokens;
  const auto overlaps = [&](const ImageKey& image) { return image.begin < end; };
  const auto n_images =
      static_cast<uint64_t>(std::count_if(images_.begin(), images_.end(), overlaps));

  thread_local std::vector<std::byte> bytes;
  Frame frame(bytes);
  frame.raw(head_.data(), head_.size());
  frame.number<uint64_t>(blocks_.size());
  frame.number<uint64_t>(kBlockTokens);
  frame.raw(pending_.data(), sizeof pending_);
  const size_t images_at = bytes.size();
  frame.number(n_images);
  for (const ImageKey& image : images_) {
    if (!overlaps(image)) break;
    frame.number<uint64_t>(kImageBytes);
    frame.number(image.content.low);
    frame.number(image.content.high);
    frame.number(image.preprocessing);
    frame.number<int64_t>(image.begin - begin);
  }
  head_ = sha256(bytes);
  if (n_images > 0) context_ = xxh3_64(std::span(bytes).subspan(images_at), context_);

  BlockHash hash;
  std::memcpy(&hash.id, head_.data(), sizeof hash.id);
  hash.context = context_;
  blocks_.push_back(hash);
  n_pending_ = 0;
  // An image that ends with this block overlaps no later one.
  std::erase_if(images_, [&](const ImageKey& image) { return image.end <= end; });
}

}  // namespace deepmint::kvcache
