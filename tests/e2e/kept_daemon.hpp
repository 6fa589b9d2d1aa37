// SPDX-License-Identifier: Apache-2.0
// A daemon with keepers (--keep): its processes, found by its directory in their command lines.
#pragma once

#include <csignal>
#include <string>
#include <vector>

#include "tests/e2e/support.hpp"
#include "tests/harness/proc.hpp"
#include "tests/harness/sanitizer.hpp"

#define NEEDS_KEEPERS() \
  if (harness::kThreadSanitizer) SKIP_CASE("a broker with ThreadSanitizer has no keepers")

namespace e2e {

inline BrokerOptions with_keepers(const std::string& engine = "auto", const std::string& seam = "") {
  BrokerOptions options;
  options.engine = engine;
  options.arguments = {"--keep"};
  options.seam = seam;
  return options;
}

inline std::string word_of(pid_t pid, const char* file) {
  return harness::contents("/proc/" + std::to_string(pid) + "/" + file);
}

inline bool alive(pid_t pid) {
  const std::string text = word_of(pid, "stat");
  const std::size_t end = text.rfind(')');
  return end != text.npos && text[end + 2] != 'Z' && text[end + 2] != 'X';
}

class Processes {
 public:
  explicit Processes(const BrokerFixture& fixture) : fixture_(fixture) {}
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;
  // Those that outlive the fixture, because it knows the one that it started.
  ~Processes() {
    for (bool some = true; some;) {
      some = false;
      for (pid_t each : all())
        if (each != fixture_.pid() && fixture_.pid() <= 0) some = ::kill(each, SIGKILL) == 0 || some;
    }
  }
  std::vector<pid_t> all() const {
    std::vector<pid_t> found;
    for (int pid : harness::numbers_in("/proc"))
      if (word_of(pid, "cmdline").find(fixture_.directory() + '\0') != std::string::npos && alive(pid))
        found.push_back(pid);
    return found;
  }
  std::vector<pid_t> keepers() const { return of(true); }
  pid_t broker() const {
    const auto found = of(false);
    return found.size() == 1 ? found.front() : 0;
  }
  pid_t await_broker(pid_t other_than = 0) const {
    pid_t found = 0;
    REQUIRE(eventually([&] { return (found = broker()) != 0 && found != other_than; }));
    return found;
  }
  pid_t second() const {
    for (pid_t each : keepers())
      if (each != fixture_.pid()) return each;
    return 0;
  }
  pid_t await_second(pid_t other_than) const {
    pid_t found = 0;
    REQUIRE(eventually([&] { return (found = second()) != 0 && found != other_than; }));
    return found;
  }
  bool whole() const {
    return eventually([&] { return keepers().size() == 2 && broker() != 0; });
  }

 private:
  std::vector<pid_t> of(bool keepers) const {
    std::vector<pid_t> found;
    for (pid_t each : all())
      if ((word_of(each, "comm") == "shmb-keeper\n") == keepers) found.push_back(each);
    return found;
  }
  const BrokerFixture& fixture_;
};

}  // namespace e2e
