// SPDX-License-Identifier: Apache-2.0
// The handlers are installed once, at the first session; glibc removes them when the library is unloaded.
#include "client/session/forked.hpp"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "base/sys_memory.hpp"

namespace shmb::client {
namespace {

struct Enrolled {
  std::mutex mutex;
  std::vector<ForkGuarded*> objects;
  std::atomic<std::uint64_t> forks{0};
};

// Never destroyed: a thread of the host program may still disconnect while its static objects are destroyed.
Enrolled& enrolled() {
  static Enrolled* const all = new Enrolled;
  return *all;
}

void before_fork() {
  Enrolled& all = enrolled();
  all.mutex.lock();
  all.forks.fetch_add(1, std::memory_order_relaxed);
  for (ForkGuarded* object : all.objects) object->lock_for_fork();
}

void after_fork() {
  Enrolled& all = enrolled();
  for (auto object = all.objects.rbegin(); object != all.objects.rend(); ++object) (*object)->unlock_after_fork();
  all.mutex.unlock();
}

}  // namespace

Sys<ForkMark> ForkMark::make() {
  SHMB_TRY(page, Mapping::anonymous(kSmallPage));
  SHMB_TRY_VOID(sys::madvise(page.data(), kSmallPage, MADV_WIPEONFORK));
  ForkMark mark;
  mark.page_ = std::move(page);
  mark.set();
  return mark;
}

void enrol(ForkGuarded& object, bool before_others) {
  static const int installed = ::pthread_atfork(before_fork, after_fork, after_fork);
  (void)installed;  // ENOMEM only: fork detection by the page still works
  Enrolled& all = enrolled();
  std::lock_guard lock(all.mutex);
  all.objects.insert(before_others ? all.objects.begin() : all.objects.end(), &object);
}

void withdraw(ForkGuarded& object) {
  Enrolled& all = enrolled();
  std::lock_guard lock(all.mutex);
  std::erase(all.objects, &object);
}

std::uint64_t forks_seen() { return enrolled().forks.load(std::memory_order_relaxed); }

}  // namespace shmb::client
