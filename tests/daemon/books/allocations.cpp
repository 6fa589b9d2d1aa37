// SPDX-License-Identifier: Apache-2.0
// See allocations.hpp. The replacement is for this whole test program.
#include "tests/daemon/books/allocations.hpp"

#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

thread_local bool counting = false;
thread_local long count = 0;

thread_local long until_failure = 0;  // 0: none fails

// As operator new of the library: where there is no memory, the handler makes some, or throws.
void* take(std::size_t size, std::size_t alignment) {
  if (counting) ++count;
  bool fails = until_failure > 0 && --until_failure == 0;
  for (;;) {
    void* memory = nullptr;
    if (!fails && ::posix_memalign(&memory, alignment, size == 0 ? 1 : size) == 0) return memory;
    fails = false;
    const std::new_handler handler = std::get_new_handler();
    if (handler == nullptr) throw std::bad_alloc();
    handler();
  }
}
void* take(std::size_t size) { return take(size, alignof(std::max_align_t)); }
void* take_or_none(std::size_t size) noexcept {
  try {
    return take(size);
  } catch (...) {
    return nullptr;
  }
}

}  // namespace

// Not inlined: GCC would see free() of what operator new gave, and warn of it.
[[gnu::noinline]] void* operator new(std::size_t size) { return take(size); }
[[gnu::noinline]] void* operator new[](std::size_t size) { return take(size); }
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t alignment) {
  return take(size, static_cast<std::size_t>(alignment));
}
// A sanitizer has its own of these, which would not fit the operator delete below.
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return take_or_none(size); }
[[gnu::noinline]] void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return take_or_none(size); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace room {

AllocationsForbidden::AllocationsForbidden() {
  count = 0;
  counting = true;
}

AllocationsForbidden::~AllocationsForbidden() { counting = false; }

long AllocationsForbidden::seen() const { return count; }

OneAllocationFails::OneAllocationFails(long nth) { until_failure = nth; }

OneAllocationFails::~OneAllocationFails() { until_failure = 0; }

bool OneAllocationFails::failed() const { return until_failure == 0; }

}  // namespace room
