// SPDX-License-Identifier: Apache-2.0
// See reserve.hpp.
#include "daemon/kit/reserve.hpp"

#include <atomic>
#include <cstdlib>
#include <new>

namespace shmb::daemon::reserve {
namespace {

std::atomic<void*> held = nullptr;  // helper threads allocate, too
bool kept = false;

// operator new calls this when it finds no memory, and tries again when it returns.
void give_up() {
  void* const given = held.exchange(nullptr);
  if (given == nullptr) throw std::bad_alloc();  // used up: there is nothing left to go on with
  std::free(given);
}

}  // namespace

void keep() {
  kept = true;
  std::set_new_handler(give_up);
  refill();
}

bool low() { return kept && held.load(std::memory_order_relaxed) == nullptr; }

void refill() {
  if (!low()) return;
  void *fresh = std::malloc(kBytes), *none = nullptr;
  if (fresh != nullptr && !held.compare_exchange_strong(none, fresh)) std::free(fresh);
}

}  // namespace shmb::daemon::reserve
