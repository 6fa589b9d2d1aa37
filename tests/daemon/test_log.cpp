// SPDX-License-Identifier: Apache-2.0
// A log line is never lost data, a forged line, a stop of the broker or a flood.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "daemon/kit/log.hpp"
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

TEST_CASE("a line of a log file begins with the time in UTC, the program, its pid and the level") {
  const std::string text = logged([] {
    log::set_form(log::Form::file);
    ::setenv("TZ", "Asia/Kathmandu", 1);
    log::line(log::warning, "one");
    log::failure("two");
    for (int i = 0; i < 7; ++i) log::peer_fault("three");
  });
  const std::regex head(R"((\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.\d{3}Z shmbrokerd\[(\d+)\] (\w+): (.*))");
  std::istringstream lines(text);
  std::vector<std::string> said;
  for (std::string line; std::getline(lines, line);) {
    std::smatch part;
    REQUIRE_MESSAGE(std::regex_match(line, part, head), line);
    said.push_back(part.str(3) + " " + part.str(4));
    std::tm utc{};
    REQUIRE(::strptime(part.str(1).c_str(), "%Y-%m-%dT%H:%M:%S", &utc) != nullptr);
    CHECK(std::abs(std::difftime(::timegm(&utc), ::time(nullptr))) < 600);
    CHECK(std::stoi(part.str(2)) > 1);
  }
  REQUIRE(said.size() == 7);
  CHECK(said[0] == "warning one");
  CHECK(said[1] == "error two");
  CHECK(said[2] == "notice three");
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

TEST_CASE("an unread log neither blocks nor ends the process") {
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
