// SPDX-License-Identifier: Apache-2.0
// One object in memory that this process shares with those that it forks later: flags, counters and facts.
#pragma once

#include <sys/mman.h>

#include <cstdlib>
#include <new>

namespace support {

// Of a large object that is whole as zeros: its pages come when they are used.
struct Zeros {};

template <class T>
class Shared {
 public:
  Shared() : value_(::new(map()) T()) {}
  explicit Shared(Zeros) : value_(static_cast<T*>(map())) {}
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  ~Shared() { ::munmap(value_, sizeof(T)); }
  T* operator->() const { return value_; }
  T& operator*() const { return *value_; }

 private:
  static void* map() {
    void* const at =
        ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) std::abort();
    return at;
  }
  T* value_;
};

}  // namespace support
