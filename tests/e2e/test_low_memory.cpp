// SPDX-License-Identifier: Apache-2.0
// A broker whose own memory is used up: it refuses in words, takes things back, and serves again.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <charconv>
#include <string>
#include <vector>

#include "base/sys_process.hpp"
#include "client/face/shmbroker.hpp"
#include "tests/harness/broker_fixture.hpp"
#include "tests/harness/skip.hpp"

namespace {

constexpr std::size_t kMiB = 1 << 20;

// Bytes of address space that the process has, 0: unknown.
std::size_t address_space(pid_t pid) {
  const std::string text = shmb::sys::read_file(("/proc/" + std::to_string(pid) + "/statm").c_str()).value_or("");
  std::size_t pages = 0;
  std::from_chars(text.data(), text.data() + text.size(), pages);
  return pages * 4096;
}

}  // namespace

TEST_CASE("a broker without memory refuses what needs some, takes back what is released, and then serves again") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  SKIP_CASE("a sanitizer needs more address space than any limit leaves");
#endif
  for (const std::string& engine : harness::engines()) {
    CAPTURE(engine);
    harness::BrokerOptions options;
    options.engine = engine;
    harness::BrokerFixture broker(options);
    REQUIRE_MESSAGE(broker.running(), broker.log());
    const auto session = shmbroker::Session::connect({.socket = broker.socket()});
    const std::size_t before = address_space(broker.pid());
    REQUIRE(before != 0);
    const rlimit tight{before + kMiB, RLIM_INFINITY};
    if (::prlimit(broker.pid(), RLIMIT_AS, &tight, nullptr) != 0) SKIP_CASE("prlimit is not permitted here");
    std::vector<shmbroker::Region> regions;
    std::string refusal;
    for (int i = 0; i < 15'000 && refusal.empty(); ++i) {
      auto made = session.try_create(4096, {.name = "a-name-that-takes-memory-of-its-own-" + std::to_string(i)});
      if (made) regions.push_back(std::move(*made));
      else refusal = made.error().what();
    }
    CHECK_MESSAGE(refusal.find("the broker's own memory is used up") != std::string::npos, refusal);
    CHECK(regions.size() > 100);
    CHECK(session.try_ping());
    regions.clear();
    // The heap gives address space back when it has whole pages free, so this takes some more requests.
    const rlimit wide{RLIM_INFINITY, RLIM_INFINITY};
    REQUIRE(::prlimit(broker.pid(), RLIMIT_AS, &wide, nullptr) == 0);
    CHECK(session.try_create(4096));
    CHECK(shmbroker::Session::try_connect({.socket = broker.socket()}));
    CHECK(broker.log().find("own memory was used up") != std::string::npos);
  }
}
