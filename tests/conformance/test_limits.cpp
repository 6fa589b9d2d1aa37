// SPDX-License-Identifier: Apache-2.0
// Scenarios 24 to 28: what is short, and what is wrong. Each with both strategies, and all ways to start.
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>

#include "tests/conformance/world.hpp"
#include "tests/harness/raw_client.hpp"
#include "tests/harness/skip.hpp"

using namespace conformance;
using namespace std::chrono_literals;

namespace {

constexpr int kObjects = 5000;
constexpr int kDescriptors = 1024;

std::uint64_t resident_bytes() {
  std::uint64_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

TEST_CASE("24: 5,000 live regions in two processes that may open 1,024 files each") {
  rlimit files{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &files) == 0);
  if (files.rlim_max < kObjects + kDescriptors)
    SKIP_CASE("a broker of " + std::to_string(files.rlim_max) + " files (ulimit -Hn) has no room for 5,000 regions");
  const harness::BrokerFixture broker;
  EACH_STRATEGY(strategy)
  for (const StartMethod method : kStartMethods) {
    CAPTURE(strategy);
    CAPTURE(std::string(text_of(method)));
    {
      const World world(broker);
      auto both =
          shmbroker::spawn("hold_with_limit", process_of(broker, method, 2), world.pool, kObjects, kDescriptors);
      CHECK(both.join(300s));
      for (const int rank : {0, 1}) {
        // Up to half of the limit, all that the process keeps together: queues keep what they carry for a moment.
        const int kept = both.result<int>(rank);
        if (strategy == "file_descriptor") CHECK((kept > kDescriptors / 4 && kept <= kDescriptors / 2));
        else CHECK(kept == 0);
      }
    }
    CHECK(broker.books() == "");
  }
}

TEST_CASE("24: 5,000 live slots where the service, too, may open 1,024 files") {
  const harness::BrokerFixture broker;
  const rlimit few{kDescriptors, kDescriptors};
  REQUIRE(::prlimit(broker.pid(), RLIMIT_NOFILE, &few, nullptr) == 0);
  for (const StartMethod method : kStartMethods) {
    CAPTURE(std::string(text_of(method)));
    {
      const Session session = support::connect(broker.socket());
      const Pool pool = Pool::create(session, {.classes = {{.slot_size = 64, .slots = kObjects}}});
      const Queue out = pool.open_queue("to", Role::writer, {.kind = QueueKind::mpmc});
      auto holder = shmbroker::spawn("hold_slots", process_of(broker, method), pool, kObjects, kDescriptors);
      std::vector<shmbroker::Slot> slots;
      for (int i = 0; i < kObjects; ++i) {
        slots.push_back(pool.acquire(sizeof(int)));
        slots.back().as_span<int>()[0] = i;
        out.send(slots.back(), 60s);
      }
      CHECK(holder.join(300s));
    }
    CHECK(broker.books() == "");
  }
}

TEST_CASE("25: where there is no room the allocation says so, and what was granted can be used to its last byte") {
  const harness::BrokerFixture broker;
  constexpr std::uint64_t kLimit = 4 << 20;
  EACH_STRATEGY(strategy) {
    CAPTURE(strategy);
    const Session session = support::connect(broker.socket());
    session.join(session.create_group({.limit_bytes = kLimit}).token);
    std::vector<shmbroker::Region> granted;
    shmbroker::Result<shmbroker::Region> next = session.try_create(1 << 20);
    for (; next; next = session.try_create(1 << 20)) granted.push_back(std::move(*next));
    CHECK(granted.size() == 4);
    CHECK(next.error().status() == Status::limit);
    CHECK(next.error().detail().limit == kLimit);
    for (const auto& region : granted) std::ranges::fill(region.bytes(), std::byte{25});
    session.leave();
    // More than the host has: nothing was allocated, nobody is signalled.
    const auto refused = session.try_create(std::uint64_t{1} << 46);
    REQUIRE_FALSE(refused.has_value());
    CHECK((refused.error().status() == Status::limit || refused.error().status() == Status::no_memory));
    CHECK(*refused.error().what() != '\0');
  }
}

TEST_CASE("26: a peer that sends one byte, or nothing, delays no other peer and ends nothing") {
  const harness::BrokerFixture broker;
  EACH_STRATEGY(strategy) {
    CAPTURE(strategy);
    const Session session = support::connect(broker.socket());
    auto silent = harness::RawClient::connect(broker.socket());
    int prompt = 0;  // a service that gave each message a second to come would answer none of them
    for (int i = 0; i < 20; ++i) {
      auto partial = harness::RawClient::connect(broker.socket());
      const std::byte one{1};
      REQUIRE(partial.send(std::span(&one, 1)));
      prompt += session.try_ping(500ms).has_value();
      CHECK(session.try_create(4096));
    }
    CHECK(prompt > 10);
    CHECK(session.try_ping());
  }
}

TEST_CASE("27: one element of a private buffer of 256 MiB is sent as one element") {
  const harness::BrokerFixture broker;
  constexpr std::size_t kBig = 256 << 20;
  EACH_STRATEGY(strategy)
  for (const StartMethod method : kStartMethods) {
    CAPTURE(strategy);
    CAPTURE(std::string(text_of(method)));
    const Observer observer(broker);
    const World world(broker);
    const Tensor big = Tensor::zeros(Type::float64, {kBig / 8});
    Tensor element{big.storage, Type::float64, {1}, {1}, 12'345'678};
    element.fill(7);
    const std::uint64_t before = resident_bytes();
    world.put({element});
    CHECK(resident_bytes() < before + kBig / 4);
    CHECK_FALSE(big.is_shared());
    CHECK(observer.regions(sizeof(double)) == 1);
    CHECK(observer.regions(kBig) == 0);
    auto receiver = shmbroker::spawn("receive_view", process_of(broker, method), world.pool);
    CHECK(receiver.join(100s));
    CHECK(receiver.result<std::uint64_t>(0) == sizeof(double));
  }
}

TEST_CASE("28: the sender of an impossible message gets an error, and the receiver gets the next message") {
  const harness::BrokerFixture broker;
  EACH_STRATEGY(strategy)
  for (const StartMethod method : kStartMethods) {
    CAPTURE(strategy);
    CAPTURE(std::string(text_of(method)));
    const World world(broker);
    auto receiver = shmbroker::spawn("receive_seven", process_of(broker, method), world.pool);
    CHECK(world.word() == "ready");  // it waits
    // Memory that the service does not know, and a text that is too long.
    const Session local = Session::connect({.local_only = true});
    Tensor elsewhere = Tensor::zeros(Type::float64, {8});
    elsewhere.share_memory(local);
    CHECK_THROWS_AS(world.put({elsewhere}), shmbroker::Error);
    const auto refused = world.out.try_send(std::string(1 << 20, 'x'));  // more than a slot of this pool can take
    REQUIRE_FALSE(refused.has_value());
    CHECK(*refused.error().what() != '\0');
    Tensor seven = Tensor::zeros(Type::float64, {8});
    seven.fill(7);
    world.put({seven});
    CHECK(receiver.join(100s));
    CHECK(receiver.result<bool>(0));
  }
}
