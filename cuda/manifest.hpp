// SPDX-License-Identifier: Apache-2.0
// What is in a region: names, types, shapes and places of tensors. It travels as bytes that the broker does not read,
// written by a publisher who may lie: what does not decode to tensors inside the region is refused whole, and nothing
// is read beyond the bytes given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.hpp"

namespace shmb::cuda {

struct TensorType {
  std::uint8_t code = 0, bits = 0;  // DLDataType
  std::uint16_t lanes = 1;
};

struct Tensor {
  std::string name;
  std::vector<std::int64_t> shape, strides;  // strides in elements; empty: rows follow each other
  std::uint64_t offset = 0;                  // in bytes, of the first element
  TensorType type;

  std::uint64_t elements() const;  // of a tensor that fits()
  std::vector<std::int64_t> strides_or_rows() const;
};

inline constexpr std::size_t kMaxTensors = 65'536;
inline constexpr std::size_t kMaxDimensions = 32;
inline constexpr std::size_t kMaxTensorName = 255;

// Every element lies in `length` bytes. The error names the tensor and what to change.
Result<void> fits(const Tensor& tensor, std::uint64_t length);

class Manifest {
 public:
  Manifest() = default;
  Manifest(Manifest&&) = default;  // no copies: by_name_ looks into tensors_
  Manifest& operator=(Manifest&&) = default;
  // Each fits, and no two have one name.
  static Result<Manifest> of(std::vector<Tensor> tensors, std::uint64_t length);
  static Result<Manifest> decode(std::span<const std::byte> bytes, std::uint64_t length);

  bool empty() const { return tensors_.empty(); }
  std::span<const Tensor> tensors() const { return tensors_; }
  const Tensor* find(std::string_view name) const;
  std::vector<std::byte> encode() const;  // empty where there are none

 private:
  std::vector<Tensor> tensors_;
  std::unordered_map<std::string_view, std::size_t> by_name_;  // into tensors_, which never changes
};

}  // namespace shmb::cuda
