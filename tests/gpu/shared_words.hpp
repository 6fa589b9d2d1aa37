// SPDX-License-Identifier: Apache-2.0
// A memfd of 64-bit words, one per 64-byte line, that processes map and register with the GPU: the timeline of the
// design, made by the holder.
#pragma once

#include <atomic>
#include <cstdint>

#include "tests/gpu/driver.hpp"

namespace shmb::facts {

int make_words_fd();

class Words {
 public:
  explicit Words(int fd);
  // Registers the page with this process' GPU context; device addresses are valid afterwards.
  void pin();
  std::uint64_t load(int word) const { return at(word).load(std::memory_order_acquire); }
  void store(int word, std::uint64_t value) const { at(word).store(value, std::memory_order_release); }
  Address device(int word) const { return device_ + static_cast<Address>(word) * 64; }

 private:
  std::atomic_ref<std::uint64_t> at(int word) const { return std::atomic_ref(page_[word * 8]); }
  std::uint64_t* page_ = nullptr;
  Address device_ = 0;
};

}  // namespace shmb::facts
