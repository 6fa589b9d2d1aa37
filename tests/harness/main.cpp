// SPDX-License-Identifier: Apache-2.0
// The main of every test program. doctest is implemented here, once for all of them.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

#include "tests/harness/leak_guard.hpp"
#include "tests/harness/sanitizer.hpp"

int main(int argc, char** argv) {
  // A user's usual 1,024 descriptors are fewer than some cases need; those that want few say so themselves.
  rlimit descriptors{};
  if (::getrlimit(RLIMIT_NOFILE, &descriptors) == 0) {
    descriptors.rlim_cur = descriptors.rlim_max;
    (void)::setrlimit(RLIMIT_NOFILE, &descriptors);
  }
  // Private brokers of the tests are none of the user's, whose settings they would read.
  (void)::setenv("XDG_CONFIG_HOME", "/nonexistent", 1);
  // TSan starts a thread of its own at the program's first: no case is to be blamed for it.
  if (harness::kThreadSanitizer) std::thread([] {}).join();
  doctest::Context context(argc, argv);
  const int failed = context.run();
  if (context.shouldExit()) return failed;
  if (!harness::any_case_ran()) {
    std::printf("no case ran: the filters match none\n");
    return 1;
  }
  if (harness::leaks_found() > 0) {
    std::printf("%d leaks: the cases named above left something behind\n", harness::leaks_found());
    return 1;
  }
  return failed;
}
