// SPDX-License-Identifier: Apache-2.0
// Law 3: the broker never touches data pages: no write, no fault, no fallocate. Populating runs in the client that
// asked, and its cgroup pays.
//
// To see it fail: in daemon/ledger/region.cpp, make_memory, after
//   if (auto sized = sys::truncate(fd->get(), birth.bytes); !sized)
// add (void)sys::allocate(fd->get(), 0, birth.bytes); and an untouched region has memory that the broker pays for.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "tests/laws/cgroup.hpp"
#include "tests/laws/law.hpp"

using namespace laws;

namespace {

std::string file_of(const BrokerFixture& broker, const std::string& name) {
  return sys::read_file(("/proc/" + std::to_string(broker.pid()) + "/" + name).c_str()).value_or("");
}

// "RssShmem:  12 kB" of /proc/PID/status.
std::uint64_t kilobytes(const std::string& status, const std::string& key) {
  const auto found = status.find("\n" + key + ":");
  return found == std::string::npos ? UINT64_MAX : std::stoull(status.substr(found + key.size() + 2));
}

CreateItem untouched(const std::string& name, std::uint64_t length) {
  CreateItem item = named(name, length);
  item.flags = kCreateUnmapped;
  return item;
}

}  // namespace

TEST_CASE("law 3: the broker never maps a region and never gives it a page") {
  on_each_engine([](BrokerFixture& broker) {
    auto session = open(broker);
    auto other = open(broker);
    constexpr std::uint64_t kLength = 64 << 20;
    auto region = must(create_region(session, untouched("hollow", kLength)));
    const auto touched = [&] { return regions(session)[0].record.touched; };
    CHECK(touched() == 0);
    const std::string address = "#" + std::to_string(region->facts().group) + "/hollow";
    auto writer = must(attach_region(other, at(address, kReadWrite)));
    CHECK(touched() == 0);
    auto ticket = must(region->make_ticket(SHMBW_RIGHT_MAP_READ, 1, 0, soon()));
    CHECK(touched() == 0);
    writer.reset();
    must(region->publish(soon()));
    CHECK(regions(session)[0].record.state == SHMBW_REGION_STATE_PUBLISHED);
    CHECK(touched() == 0);
    AttachItem by_ticket;
    by_ticket.target = Target::with_ticket(ticket.token);
    by_ticket.flags = kAttachNoPopulate;
    auto reader = must(attach_region(other, by_ticket));
    CHECK(touched() == 0);
    CHECK(file_of(broker, "maps").find("shmb:") == std::string::npos);
    CHECK(file_of(broker, "maps").find(broker.directory()) == std::string::npos);
    must(region->release(kReleaseUnname));
  });
}

TEST_CASE("law 3: pages that a client populates count as the client's memory, and the broker's does not grow") {
  on_each_engine([](BrokerFixture& broker) {
    auto session = open(broker);
    must(must(create_region(session, named("warm-up", 4 << 20)))->release(kReleaseUnname | kReleaseNoRecycle));
    const std::string before = file_of(broker, "status");
    REQUIRE(kilobytes(before, "RssShmem") != UINT64_MAX);
    constexpr std::uint64_t kLength = 64 << 20;
    for (int round = 0; round < 3; ++round) {  // fresh, then recycled
      auto region = must(create_region(session, named("", kLength)));
      CHECK(region->facts().populated == kLength);
      CHECK(regions(session)[0].record.touched == kLength);
      CHECK(file_of(broker, "maps").find("shmb:") == std::string::npos);
    }
    const std::string after = file_of(broker, "status");
    CHECK(kilobytes(after, "RssShmem") == kilobytes(before, "RssShmem"));
    CHECK(kilobytes(after, "VmRSS") < kilobytes(before, "VmRSS") + 4096);
  });
}

TEST_CASE("law 3: the first toucher's cgroup pays, not the broker's") {
  on_each_engine([](BrokerFixture& broker) {
    CgroupForTest cgroup("law3", 256 << 20);
    if (!cgroup.usable()) SKIP_CASE(cgroup.why_not());
    constexpr std::uint64_t kLength = 32 << 20;
    Line told;
    Gate finish;
    auto client = Child::run([&] {
      if (!cgroup.enter()) return 1;
      auto session = must(try_open(broker.socket()));
      auto region = must(create_region(session, named("charged", kLength)));
      told.say('m');
      finish.wait();
      return 0;
    });
    REQUIRE(told.hear() == 'm');
    CHECK(cgroup.usage() >= kLength);
    finish.open();
    CHECK(client.wait() == 0);
    CHECK(broker.books().empty());
    CHECK(eventually([&] { return cgroup.usage() < kLength; }));
  });
}

TEST_CASE("law 3: the daemon's code calls nothing that could touch or map region memory") {
  const std::string symbols = output_of("nm -uC '" SHMB_TEST_DAEMON_CODE "' 2>/dev/null");
  if (output_of("nm --version").empty()) SKIP_CASE("nm is not installed");
  REQUIRE(symbols.find("shmb::sys::memfd_create") != std::string::npos);
  for (const char* name : {"shmb::sys::allocate(", "shmb::sys::mmap(", " madvise", " fallocate", " posix_fallocate",
                           " pread", " pwrite", " sendfile", " splice", " mmap"}) {
    CAPTURE(name);
    CHECK(symbols.find(name) == std::string::npos);
  }
  // The exceptions: what the broker lays out itself. These are its books, those of the last broker, the
  // directory and the control area of pools, and the words of timelines.
  const auto files_with = [](const std::string& call) {
    return output_of("cd '" SHMB_TEST_SOURCE "/daemon' && grep -rl '" + call + "' . | sort");
  };
  CHECK(files_with("Mapping::map") ==
        "./books/last_books.cpp\n./books/store.cpp\n./gpu/make_timeline.cpp\n./pools/pool.cpp\n");
  CHECK(files_with("sys::madvise") == "./books/store.cpp\n");
}
