// SPDX-License-Identifier: Apache-2.0
// Every allocation of create, attach and connect fails once: a status comes back, nothing is thrown across the C ABI,
// no lease is left, and the session either goes on or is lost with a reason. And the path of a message has none.
#include <cstdlib>
#include <new>

#include "client/face/shmbroker.h"
#include "client/session/views.hpp"
#include "tests/support/pools.hpp"

namespace {

thread_local long allocations_left = -1;  // -1: all succeed

void* allocate(std::size_t size) {
  if (allocations_left == 0) {
    allocations_left = -1;
    throw std::bad_alloc();
  }
  if (allocations_left > 0) --allocations_left;
  if (void* memory = std::malloc(size != 0 ? size : 1)) return memory;
  throw std::bad_alloc();
}

// Calls `attempt` with its 1st, 2nd, ... allocation failing until one run needs no more; gives how many there were.
template <class Attempt>
long fail_each(Attempt attempt) {
  for (long k = 0;; ++k) {
    allocations_left = k;
    const int status = attempt();
    const bool reached = allocations_left == -1;
    allocations_left = -1;
    if (!reached) {
      CHECK(status == SHMB_OK);
      return k;
    }
    REQUIRE(k < 10'000);
  }
}

}  // namespace

// Not inlined: GCC would see free() of what operator new gave, and warn of it.
[[gnu::noinline]] void* operator new(std::size_t size) { return allocate(size); }
[[gnu::noinline]] void* operator new[](std::size_t size) { return allocate(size); }
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return std::malloc(size + 1); }
[[gnu::noinline]] void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return std::malloc(size + 1);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

TEST_CASE("create, attach and connect survive the failure of each of their allocations") {
  const harness::BrokerFixture broker;
  shmb_connect_options connect{};
  connect.size = sizeof connect;
  connect.socket = broker.socket().c_str();
  connect.flags = SHMB_CONNECT_NO_GROUP;
  shmb_session* session = nullptr;
  auto watcher = support::open(broker);
  const auto regions_left = [&] {
    std::uint64_t left = 0;
    for (const auto& row : support::must(shmb::client::list_regions(*watcher, {}, support::Deadline::after(0))).rows)
      left += row.record.state != SHMBW_REGION_STATE_CACHED && row.record.state != SHMBW_REGION_STATE_FREEING ? 1 : 0;
    return left;
  };
  const long connects = fail_each([&] {
    shmb_session* made = nullptr;
    const int status = shmb_connect(&connect, &made, nullptr);
    CHECK((status == SHMB_OK) == (made != nullptr));
    shmb_disconnect(made);
    return status;
  });
  const auto alive = [&] {
    if (session != nullptr && shmb_ping(session, 0, nullptr) == SHMB_OK) return;
    shmb_disconnect(session);
    session = nullptr;
    REQUIRE(shmb_connect(&connect, &session, nullptr) == SHMB_OK);
  };
  shmb_create_options create{};
  create.size = sizeof create;
  create.name = "a-name-that-is-too-long-for-the-small-string-optimisation";
  const long creates = fail_each([&] {
    const long left = std::exchange(allocations_left, -1);
    alive();
    allocations_left = left;
    shmb_region* made = nullptr;
    const int status = shmb_create(session, 8192, &create, &made, nullptr);
    const bool reached = std::exchange(allocations_left, -1) == -1;
    if (status == SHMB_OK) CHECK(shmb_release(made, SHMB_RELEASE_UNNAME, nullptr) == SHMB_OK);
    alive();
    CHECK(regions_left() == 0);
    allocations_left = reached ? -1 : 0;
    return status;
  });
  alive();
  shmb_region* region = nullptr;
  REQUIRE(shmb_create(session, 8192, &create, &region, nullptr) == SHMB_OK);
  const shmb_region_id id = shmb_region_get_id(region);
  const long attaches = fail_each([&] {
    const long left = std::exchange(allocations_left, -1);
    shmb_session* other = nullptr;
    REQUIRE(shmb_connect(&connect, &other, nullptr) == SHMB_OK);
    REQUIRE(shmb_group_join(other, "#1", 0, 0, nullptr, nullptr) != SHMB_E_INVALID);
    allocations_left = left;
    shmb_attach_options attach{};
    attach.size = sizeof attach;
    attach.rights = SHMB_RIGHT_READ | SHMB_RIGHT_WRITE;
    shmb_region* made = nullptr;
    const int status = shmb_attach_id(other, &id, &attach, &made, nullptr);
    const bool reached = std::exchange(allocations_left, -1) == -1;
    shmb_release(made, 0, nullptr);
    if (shmb_ping(other, 0, nullptr) == SHMB_OK) {
      shmb_region_stat stat{};
      stat.size = sizeof stat;
      REQUIRE(shmb_stat_id(session, &id, 0, &stat, nullptr) == SHMB_OK);
      CHECK(stat.holders == 1);
    }
    shmb_disconnect(other);
    allocations_left = reached ? -1 : 0;
    return status;
  });
  CHECK(shmb_release(region, SHMB_RELEASE_UNNAME, nullptr) == SHMB_OK);
  shmb_disconnect(session);
  MESSAGE("allocations failed: connect ", connects, ", create ", creates, ", attach ", attaches);
  CHECK(connects > 5);
  CHECK(creates > 5);
  CHECK(attaches > 5);
}

TEST_CASE("messages of bytes and of slots allocate nothing, borrowed and kept") {
  using namespace support;
  for (const Kind kind : {Kind::spsc, Kind::mpmc, Kind::broadcast}) {
    CAPTURE(static_cast<int>(kind));
    const harness::BrokerFixture broker;
    auto session = support::open(broker);
    auto pool = must(make_pool(session, slots_of("p", 4096, 32)));
    auto other = must(try_pool(beside(broker, pool), "p"));
    auto in = support::reader(other, "q", kind, 8);
    auto out = support::writer(pool, "q", kind, 8);
    Message message;
    std::byte bytes[16] = {};
    constexpr long kPlenty = 1'000'000;
    int failures = 0;
    for (int round = 0; round < 100; ++round) {
      // Made once: the message's memory.
      if (round == 1) allocations_left = kPlenty;
      for (const bool keep : {false, true}) {
        auto slot = pool->acquire(4096, kNoWait);
        failures += !slot || !out->send(*slot, kNoWait) || !pool->release(*slot);
        failures += !in->receive(message, keep, kNoWait) || !message.done();
        failures += !out->send(bytes, kNoWait) || !in->receive(message, keep, kNoWait) || !message.done();
      }
    }
    const long left = std::exchange(allocations_left, -1);
    CHECK(failures == 0);
    CHECK(left == kPlenty);
  }
}
