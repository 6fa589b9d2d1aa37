// SPDX-License-Identifier: Apache-2.0
// Last of the files, so last to run: the operations of all others together passed every step that the library names,
// and somebody was killed at each of them.
#include "tests/harness/sanitizer.hpp"
#include "tests/kill/stage.hpp"

using namespace kill_tests;

TEST_CASE("every step that the library names was reached, and died at") {
  const Reached& all = reached();
  if (only_some()) return;
  unsigned steps = 0, names = 0;
  for (unsigned step = 0; step < kSteps; ++step) {
    const std::string name = kill_tests::name_of(step);
    // In the middle of something there is one point, not two.
    if (name.starts_with("after ") && name.ends_with("_half")) continue;
    ++names;
    CAPTURE(name);
    CHECK(all.passed[step] > 0);
    if (harness::kSlowdown == 1) CHECK(all.killed[step] > 0);
    steps += all.killed[step] > 0 ? 1U : 0U;
  }
  MESSAGE("operations: " << all.operations << ", kill points in them: " << all.points << ", deaths: " << all.deaths
                         << ", steps died at: " << steps << " of " << names);
}
