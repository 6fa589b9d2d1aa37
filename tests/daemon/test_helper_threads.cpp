// SPDX-License-Identifier: Apache-2.0
// Helper threads: the owner's bounded end, also where a thread never comes back from its system call.
#include <doctest/doctest.h>

#include <chrono>

#include "daemon/kit/helper_threads.hpp"

using namespace shmb::daemon;

namespace {

struct Stuck : HelperState {
  void run(std::unique_lock<std::mutex>& lock) {
    ready.wait(lock, [&] { return released; });
  }
  bool released = false;
};

}  // namespace

TEST_CASE("threads that hang are left at the end, and are not waited for a second time") {
  HelperThreads<Stuck> threads;
  {
    const std::lock_guard lock(threads->mutex);
    REQUIRE(threads.start());
  }
  threads.end({});
  // This would outlast the test.
  threads.end(std::chrono::hours(1));
  // The thread uses the state as long as it lives, whatever became of its owner.
  std::unique_lock lock(threads->mutex);
  CHECK(threads->threads == 1);
  threads->released = true;
  threads->ready.notify_all();
  threads->gone.wait(lock, [&] { return threads->threads == 0; });
}

TEST_CASE("threads that end in time are joined, and an owner without threads has nothing to wait for") {
  struct Obedient : HelperState {
    void run(std::unique_lock<std::mutex>& lock) {
      ready.wait(lock, [&] { return stop; });
    }
  };
  HelperThreads<Obedient> threads;
  threads.end(std::chrono::hours(1));
  HelperThreads<Obedient> started;
  {
    const std::lock_guard lock(started->mutex);
    REQUIRE(started.start());
    REQUIRE(started.start());
    CHECK(started->threads == 2);
  }
  started.end(std::chrono::hours(1));
  const std::lock_guard lock(started->mutex);
  CHECK(started->threads == 0);
}
