// SPDX-License-Identifier: Apache-2.0
// The contents of a region: names, types, shapes and places of tensors. The broker does not read these bytes, and their
// publisher may lie. So bytes that do not decode to tensors inside the region are refused whole, and nothing is read
// beyond the given bytes.
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

  std::uint64_t elements() const;  // for a tensor that fits()
  std::vector<std::int64_t> strides_or_rows() const;
};

inline constexpr std::size_t kMaxTensors = 65'536;
inline constexpr std::size_t kMaxDimensions = 32;
inline constexpr std::size_t kMaxTensorName = 255;

// Checks that every element lies in `length` bytes. The error names the tensor and the remedy.
Result<void> fits(const Tensor& tensor, std::uint64_t length);

class Manifest {
 public:
  Manifest() = default;
  Manifest(Manifest&&) = default;  // no copies: by_name_ points into tensors_
  Manifest& operator=(Manifest&&) = default;
  // Each must fit, and no two may have one name.
  static Result<Manifest> of(std::vector<Tensor> tensors, std::uint64_t length);
  // Of a set, which has chunks of any sizes.
  static Result<Manifest> of_set(std::vector<Tensor> tensors, std::vector<std::uint64_t> chunks);
  static Result<Manifest> decode(std::span<const std::byte> bytes, std::uint64_t length);

  bool empty() const { return tensors_.empty() && chunks_.empty(); }
  std::span<const std::uint64_t> chunks() const { return chunks_; }  // bytes of each, of a set
  std::span<const Tensor> tensors() const { return tensors_; }
  const Tensor* find(std::string_view name) const;
  std::vector<std::byte> encode() const;  // empty if there is nothing to say

 private:
  std::vector<std::uint64_t> chunks_;
  std::vector<Tensor> tensors_;
  std::unordered_map<std::string_view, std::size_t> by_name_;  // points into tensors_, which never changes
};

}  // namespace shmb::cuda
