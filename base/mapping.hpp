// SPDX-License-Identifier: Apache-2.0
// `Mapping` owns one mmap(2). Its address may be aligned beyond a page, because huge pages need address and file offset
// congruent modulo 2 MiB. An unaligned map of 1 GiB costs 45 ms instead of 0.6.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.hpp"

namespace shmb {

enum class Access : std::uint8_t { read, read_write };

inline constexpr std::size_t kSmallPage = 4096;
inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping() { reset(); }

  // MAP_SHARED. Lengths from 2 MiB are placed so that address and offset agree modulo 2 MiB.
  static Sys<Mapping> map(int fd, std::uint64_t offset, std::size_t length, Access access);
  static Sys<Mapping> anonymous(std::size_t length);  // private memory of this process

  // To more of the same file. Its address may change; on failure nothing does.
  Sys<void> grow(std::size_t length);

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  explicit operator bool() const { return data_ != nullptr; }
  void reset();     // munmap
  void* release();  // gives up ownership

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace shmb
