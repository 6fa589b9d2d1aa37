// SPDX-License-Identifier: Apache-2.0
// A log line is never lost data, a forged line, a stop of the broker or a flood.
#include "daemon/log.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/harness/child.hpp"
#include "tests/harness/temp_dir.hpp"

using namespace shmb::daemon;

namespace {

// What `body` logs in a process whose stderr is a file.
std::string logged(const std::function<void()>& body) {
  harness::TempDir folder;
  auto child = harness::Child::run([&] {
    ::dup2(::open(folder.file("log").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600), 2);
    log::set_threshold(log::info);
    body();
    return 0;
  });
  CHECK(child.wait() == 0);
  std::ifstream file(folder.file("log"));
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("a line carries its priority where no person reads it directly, and lines below the level are not written") {
  CHECK(logged([] {
          log::line(log::warning, "one");
          log::line(log::debug, "two");
        }) == "<4>one\n");
}

TEST_CASE("bytes that a peer chose cannot forge lines or steer a terminal") {
  CHECK(logged([] { log::line(log::info, "a\nb\x1b[2Jc\x7f"); }) == "<6>a\\x0ab\\x1b[2Jc\\x7f\n");
}

TEST_CASE("a long line is cut, not lost") {
  std::string text = logged([] { log::line(log::info, std::string(5000, 'x')); });
  CHECK(text.size() > 900);
  CHECK(text.size() <= 1024);
  CHECK(text.back() == '\n');
}

TEST_CASE("faults of peers are limited, and the rest is counted") {
  std::string text = logged([] {
    for (int i = 0; i < 1000; ++i) log::peer_fault("fault");
    ::usleep(1'100'000);
    log::peer_fault("later");
  });
  CHECK(std::count(text.begin(), text.end(), '\n') < 500);  // five a second, however slow the machine is
  CHECK(text.find("more faults of peers were not logged") != std::string::npos);
  CHECK(text.find("later") != std::string::npos);
}

TEST_CASE("a log that nobody reads neither blocks nor ends the process") {
  auto child = harness::Child::run([] {
    int ends[2];
    if (::pipe(ends) != 0) return 1;
    ::dup2(ends[1], 2);
    for (int i = 0; i < 5000; ++i) log::line(log::error, std::string(500, 'x'));  // far over what a pipe holds
    ::signal(SIGPIPE, SIG_IGN);
    ::close(ends[0]);
    log::line(log::error, "nobody");
    ::close(2);
    log::line(log::error, "closed");
    return 0;
  });
  CHECK(child.wait() == 0);
}
