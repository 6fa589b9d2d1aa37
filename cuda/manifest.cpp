// SPDX-License-Identifier: Apache-2.0
// The bytes: "shmT", version, count. Version 1 has tensors alone. Version 2 is of a set: here come the number of chunks
// and the bytes of each. For each tensor its offset, type, dimensions, whether strides are given, and the name's
// length, then shape, strides and name. Little-endian, without padding.
#include "cuda/manifest.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>

namespace shmb::cuda {
namespace {

constexpr std::uint32_t kMagic = 0x546d6873;  // "shmT"
constexpr std::uint32_t kVersion = 1, kVersionOfSet = 2;
constexpr std::uint64_t kNoMore = std::numeric_limits<std::uint64_t>::max();

std::uint64_t times(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? kNoMore : product;
}
std::uint64_t plus(std::uint64_t a, std::uint64_t b) {
  std::uint64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? kNoMore : sum;
}

std::unexpected<Error> bad(const Tensor& tensor, const std::string& what) {
  return error(Status::invalid, "tensor '" + tensor.name + "' " + what);
}

// For types smaller than a byte the last element is rounded up to whole bytes.
std::uint64_t bytes_of(std::uint64_t elements, const TensorType& type) {
  const std::uint64_t bits = times(elements, std::uint64_t{type.bits} * type.lanes);
  return bits == kNoMore ? kNoMore : bits / 8 + (bits % 8 != 0);
}

class ManifestWriter {
 public:
  template <class T>
  void number(T value) {
    const auto* from = reinterpret_cast<const std::byte*>(&value);
    bytes.insert(bytes.end(), from, from + sizeof value);
  }
  void text(std::string_view value) {
    const auto* from = reinterpret_cast<const std::byte*>(value.data());
    bytes.insert(bytes.end(), from, from + value.size());
  }
  std::vector<std::byte> bytes;
};

class ManifestReader {
 public:
  explicit ManifestReader(std::span<const std::byte> bytes) : left_(bytes) {}
  template <class T>
  bool number(T& value) {
    if (left_.size() < sizeof value) return false;
    std::memcpy(&value, left_.data(), sizeof value);
    left_ = left_.subspan(sizeof value);
    return true;
  }
  bool numbers(std::vector<std::int64_t>& values, std::size_t count) {
    if (left_.size() / sizeof(std::int64_t) < count) return false;
    values.resize(count);
    if (count != 0) std::memcpy(values.data(), left_.data(), count * sizeof(std::int64_t));
    left_ = left_.subspan(count * sizeof(std::int64_t));
    return true;
  }
  bool text(std::string& value, std::size_t length) {
    if (left_.size() < length) return false;
    value.assign(reinterpret_cast<const char*>(left_.data()), length);
    left_ = left_.subspan(length);
    return true;
  }
  bool done() const { return left_.empty(); }

 private:
  std::span<const std::byte> left_;
};

std::optional<Tensor> read_tensor(ManifestReader& reader) {
  Tensor tensor;
  std::uint8_t dimensions = 0, strided = 0;
  std::uint16_t name = 0;
  if (!reader.number(tensor.offset) || !reader.number(tensor.type.code) || !reader.number(tensor.type.bits) ||
      !reader.number(tensor.type.lanes) || !reader.number(dimensions) || !reader.number(strided) ||
      !reader.number(name) || dimensions > kMaxDimensions || strided > 1)
    return std::nullopt;
  if (!reader.numbers(tensor.shape, dimensions) || (strided == 1 && !reader.numbers(tensor.strides, dimensions)) ||
      !reader.text(tensor.name, name))
    return std::nullopt;
  return tensor;
}

}  // namespace

std::uint64_t Tensor::elements() const {
  std::uint64_t count = 1;
  for (const std::int64_t extent : shape) count *= static_cast<std::uint64_t>(extent);
  return count;
}

std::vector<std::int64_t> Tensor::strides_or_rows() const {
  if (!strides.empty() || shape.empty()) return strides;
  std::vector<std::int64_t> rows(shape.size(), 1);
  for (std::size_t i = shape.size() - 1; i > 0; --i) rows[i - 1] = rows[i] * std::max<std::int64_t>(shape[i], 1);
  return rows;
}

Result<void> fits(const Tensor& tensor, std::uint64_t length) {
  if (tensor.name.empty() || tensor.name.size() > kMaxTensorName || tensor.name.find('\0') != std::string::npos)
    return error(Status::invalid, "the name of a tensor has 1 to 255 bytes and no NUL");
  if (tensor.shape.size() > kMaxDimensions) return bad(tensor, "has more than 32 dimensions");
  if (tensor.type.bits == 0 || tensor.type.lanes == 0) return bad(tensor, "has a type of no bits");
  if (!tensor.strides.empty() && tensor.strides.size() != tensor.shape.size())
    return bad(tensor, "has strides for other dimensions than its shape");
  if (tensor.offset > length)
    return bad(tensor,
               "begins at " + std::to_string(tensor.offset) + ", behind the region's end at " + std::to_string(length));
  std::uint64_t elements = 1, last = 0, rows = 1;
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    if (tensor.shape[i] < 0) return bad(tensor, "has a dimension below 0");
    if (!tensor.strides.empty() && tensor.strides[i] < 0)
      return bad(tensor, "has a stride below 0: begin at the element with the lowest address");
    elements = times(elements, static_cast<std::uint64_t>(tensor.shape[i]));
    rows = times(rows, static_cast<std::uint64_t>(std::max<std::int64_t>(tensor.shape[i], 1)));
  }
  // Also where an extent of 0 leaves no element: the strides are products of the others.
  if (rows > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    return bad(tensor, "has a shape beyond all memory");
  if (std::ranges::find(tensor.shape, 0) != tensor.shape.end()) return {};  // it has no element
  if (tensor.strides.empty()) {
    last = elements == kNoMore ? kNoMore : elements - 1;
  } else {
    for (std::size_t i = 0; i < tensor.shape.size(); ++i)
      last = plus(
          last, times(static_cast<std::uint64_t>(tensor.shape[i] - 1), static_cast<std::uint64_t>(tensor.strides[i])));
  }
  const std::uint64_t end = last == kNoMore ? kNoMore : plus(tensor.offset, bytes_of(plus(last, 1), tensor.type));
  if (elements == kNoMore || end > length)
    return bad(tensor,
               "reaches to " +
                   (end == kNoMore || elements == kNoMore ? std::string("beyond all memory") : std::to_string(end)) +
                   ", over the region's end at " + std::to_string(length));
  return {};
}

Result<Manifest> Manifest::of(std::vector<Tensor> tensors, std::uint64_t length) {
  if (tensors.size() > kMaxTensors) return error(Status::invalid, "a region has at most 65,536 tensors");
  Manifest manifest;
  manifest.tensors_ = std::move(tensors);
  for (std::size_t i = 0; i < manifest.tensors_.size(); ++i) {
    SHMB_TRY_VOID(fits(manifest.tensors_[i], length));
    if (!manifest.by_name_.emplace(manifest.tensors_[i].name, i).second)
      return bad(manifest.tensors_[i], "is there twice");
  }
  return manifest;
}

Result<Manifest> Manifest::of_set(std::vector<Tensor> tensors, std::vector<std::uint64_t> chunks) {
  std::uint64_t length = 0;
  for (const std::uint64_t bytes : chunks) length = plus(length, bytes);
  auto made = of(std::move(tensors), length);
  if (made) made->chunks_ = std::move(chunks);
  return made;
}

Result<Manifest> Manifest::decode(std::span<const std::byte> bytes, std::uint64_t length) {
  const auto malformed = [] {
    return error(Status::invalid, "the region's list of tensors is malformed: its publisher is at fault");
  };
  if (bytes.empty()) return Manifest();
  ManifestReader reader(bytes);
  std::uint32_t magic = 0, version = 0, count = 0;
  if (!reader.number(magic) || magic != kMagic || !reader.number(version) || !reader.number(count)) return malformed();
  if (version != kVersion && version != kVersionOfSet)
    return error(Status::too_new, "the region's list of tensors is of a newer library: install it here too");
  if (count > kMaxTensors) return malformed();
  std::vector<std::uint64_t> chunks;
  if (std::uint32_t many = 0; version == kVersionOfSet) {
    if (!reader.number(many) || many == 0) return malformed();
    std::uint64_t all = 0;
    for (std::uint32_t i = 0; i < many; ++i) {
      std::uint64_t chunk = 0;
      if (!reader.number(chunk) || chunk == 0) return malformed();
      all = plus(all, chunk);
      chunks.push_back(chunk);
    }
    if (all != length) return malformed();
  }
  std::vector<Tensor> tensors;
  for (std::uint32_t i = 0; i < count; ++i) {
    auto tensor = read_tensor(reader);
    if (!tensor) return malformed();
    tensors.push_back(std::move(*tensor));
  }
  if (!reader.done()) return malformed();
  auto made = of(std::move(tensors), length);
  if (made) made->chunks_ = std::move(chunks);
  return made;
}

const Tensor* Manifest::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

std::vector<std::byte> Manifest::encode() const {
  ManifestWriter writer;
  if (empty()) return {};
  writer.number(kMagic);
  writer.number(chunks_.empty() ? kVersion : kVersionOfSet);
  writer.number(static_cast<std::uint32_t>(tensors_.size()));
  if (!chunks_.empty()) writer.number(static_cast<std::uint32_t>(chunks_.size()));
  for (const std::uint64_t bytes : chunks_) writer.number(bytes);
  for (const Tensor& tensor : tensors_) {
    writer.number(tensor.offset);
    writer.number(tensor.type.code);
    writer.number(tensor.type.bits);
    writer.number(tensor.type.lanes);
    writer.number(static_cast<std::uint8_t>(tensor.shape.size()));
    writer.number(static_cast<std::uint8_t>(tensor.strides.empty() ? 0 : 1));
    writer.number(static_cast<std::uint16_t>(tensor.name.size()));
    for (const std::int64_t extent : tensor.shape) writer.number(extent);
    for (const std::int64_t stride : tensor.strides) writer.number(stride);
    writer.text(tensor.name);
  }
  return std::move(writer.bytes);
}

}  // namespace shmb::cuda
