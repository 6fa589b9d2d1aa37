// SPDX-License-Identifier: Apache-2.0
// See allocations.hpp. The replacement is for this whole test program.
#include "tests/daemon/allocations.hpp"

#include <cstdlib>
#include <new>

namespace {

thread_local bool counting = false;
thread_local long count = 0;

void* take(std::size_t size) {
  if (counting) ++count;
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t size) { return take(size); }
void* operator new[](std::size_t size) { return take(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace room {

AllocationsForbidden::AllocationsForbidden() {
  count = 0;
  counting = true;
}

AllocationsForbidden::~AllocationsForbidden() { counting = false; }

long AllocationsForbidden::seen() const { return count; }

}  // namespace room
