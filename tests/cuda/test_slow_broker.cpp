// SPDX-License-Identifier: Apache-2.0
// A broker that is slower than the caller's deadline, and threads that meet in a call: what was only perhaps done is
// not taken for undone, nobody waits for another one's broker, and what is lent or freed at this very moment is found.
#include <atomic>
#include <csignal>

#include "tests/cuda/stage.hpp"
#include "tests/harness/broker_fixture.hpp"
#include "tests/harness/stopped.hpp"

namespace cuda_tests {
namespace {

constexpr shmbroker::Timeout kShortPatience = std::chrono::milliseconds(100), kLongPatience = std::chrono::minutes(1);

unsigned long long rights_at(const Device& device, gpu::Pointer at) {
  unsigned long long flags = 99;
  const shmb::cuda::Location here{shmb::cuda::kDeviceLocation, 0};
  CHECK((*device.driver)->mem_get_access(&flags, &here, at) == 0);
  return flags;
}

}  // namespace

TEST_CASE("a publication whose answer was too late says so, and can be made again") {
  const harness::BrokerFixture broker(gpu_broker());
  auto session = connect(broker.socket()), peer = connect(broker.socket());
  const auto group = session.create_group();
  session.join(group.token);
  peer.join(group.token);
  Device device;
  auto known = gpu::Region::allocate(session, kMiB), region = gpu::Region::allocate(session, kMiB);
  known.publish();  // so that the broker has been told of the device
  REQUIRE(device.fill(region.pointer(), kMiB, 0x33) == 0);
  gpu::PublishOptions options;
  options.name = "late";
  options.timeout = kShortPatience;
  {
    const harness::Stopped stopped(broker.pid());
    const auto late = region.try_publish(options);
    CHECK(status_of(late) == Status::deadline);
    CHECK(sentence_of(late).contains("the broker may have it all the same"));
  }
  gpu::ImportOptions patient;
  patient.wait = kLongPatience;
  auto read = gpu::Region::try_import(peer, std::string("late"), patient);
  REQUIRE(read);
  CHECK(device.all(read->pointer(), kMiB) == 0x33);
  const bool again = eventually([&] { return status_of(region.try_publish({.name = "late"})) == Status::ok; });
  CHECK(again);
  region.release(true);
}

TEST_CASE("`written` whose answer was too late can be said again") {
  const harness::BrokerFixture broker(gpu_broker());
  auto session = connect(broker.socket());
  Device device;
  auto region = gpu::Region::allocate(session, kMiB);
  region.publish({.name = "w", .writing = true, .close_own = true});
  {
    const harness::Stopped stopped(broker.pid());
    const auto late = region.try_written({}, kShortPatience);
    CHECK(status_of(late) == Status::deadline);
    CHECK(sentence_of(late).contains("say so again"));
    CHECK(rights_at(device, region.pointer()) == shmb::cuda::kReadWriteAccess);
  }
  CHECK(status_of(region.try_written()) == Status::ok);
  CHECK(rights_at(device, region.pointer()) == shmb::cuda::kReadAccess);
  CHECK(status_of(region.try_written()) == Status::denied);  // once is enough
  region.release(true);
}

TEST_CASE("a pin whose answer came too late does not delay a later publish") {
  const harness::BrokerFixture broker(gpu_broker());
  auto session = connect(broker.socket());
  auto region = session.create(kMiB);
  {
    const harness::Stopped stopped(broker.pid());
    CHECK(status_of(gpu::PinnedHost::try_pin(region, kShortPatience)) == Status::deadline);
  }
  shmb_error error;
  CHECK(shmb_publish(region.c(), 0, &error) == SHMB_OK);
}

TEST_CASE("a pin waits for no other thread's pin of another region, and for one of the same until its deadline") {
  const harness::BrokerFixture broker(gpu_broker());
  auto session = connect(broker.socket());
  auto first = session.create(kMiB), second = session.create(kMiB);
  const harness::Stopped stopped(broker.pid());
  std::atomic<bool> waits = false, pinned = false;
  std::thread other([&] {
    waits = true;
    const auto pin = gpu::PinnedHost::try_pin(first, kLongPatience);
    CHECK(status_of(pin) == Status::ok);
    pinned = true;
  });
  CHECK(eventually([&] { return waits.load(); }));
  CHECK(status_of(gpu::PinnedHost::try_pin(second, kShortPatience)) == Status::deadline);
  const auto same = gpu::PinnedHost::try_pin(first, kShortPatience);
  CHECK((status_of(same) == Status::busy || status_of(same) == Status::deadline));  // who came first
  CHECK(!pinned);
  stopped.resume();
  other.join();
  CHECK(pinned);
  auto once = gpu::PinnedHost::try_pin(first), twice = gpu::PinnedHost::try_pin(first);
  CHECK((once && twice && once->pointer() == twice->pointer()));
}

TEST_CASE("memory that this process is just lending is found by its own imports") {
  const harness::BrokerFixture broker(gpu_broker());
  auto session = connect(broker.socket());
  Device device;
  auto scope = device.hold->enter();
  REQUIRE(scope);
  shmb::cuda::Address plain = 0;
  REQUIRE((*device.driver)->mem_alloc(&plain, kMiB) == 0);
  std::atomic<bool> over = false;
  std::atomic<int> found = 0;
  Status refused = Status::ok;
  std::thread importer([&] {
    while (!over) {
      auto own = gpu::Region::try_import(session, std::string("lent"));
      if (own) ++found;
      else if (own.error().status() != Status::not_found || found != 0) refused = own.error().status();
    }
  });
  std::vector<gpu::Lease> leases;  // none is taken back while others look for it
  for (int i = 0; i < 100; ++i) {
    gpu::LendOptions options;
    options.name = "lent";
    options.replace = true;
    auto lease = gpu::Lease::try_lend(session, plain, kMiB, nullptr, options);
    REQUIRE(lease);
    leases.push_back(std::move(*lease));
    if (i % 10 != 9) continue;
    const int before = found;
    CHECK(eventually([&] { return found > before; }));
  }
  over = true;
  importer.join();
  CHECK(refused == Status::ok);
  leases.clear();
  const bool freed = eventually([&] { return gpu::dispatch(session).waiting == 0; });
  CHECK(freed);
  CHECK((*device.driver)->mem_free(plain) == 0);
}

TEST_CASE("a free that finds no memory itself can free what is to be freed behind it") {
  const harness::BrokerFixture broker(gpu_broker());
  auto session = connect(broker.socket());
  Device device;
  auto scope = device.hold->enter();
  REQUIRE(scope);
  shmb::cuda::Address plain[2] = {};
  for (auto& one : plain) REQUIRE((*device.driver)->mem_alloc(&one, kMiB) == 0);
  std::atomic<int> freed = 0;
  int behind = 0;
  std::optional<gpu::Lease> first = gpu::Lease::lend(session, plain[0], kMiB, [&](gpu::Pointer) {
    ++freed;
    (void)gpu::dispatch(session);  // as an allocation does that finds no memory
    behind = freed - 1;
  });
  std::optional<gpu::Lease> second = gpu::Lease::lend(session, plain[1], kMiB, [&](gpu::Pointer) { ++freed; });
  {
    const harness::Stopped stopped(broker.pid());  // so that one dispatch hears that nobody has them
    first.reset();
    second.reset();
  }
  CHECK(eventually([&] {
    (void)gpu::dispatch(session);
    return freed == 2;
  }));
  CHECK(behind == 1);
  for (const auto one : plain) CHECK((*device.driver)->mem_free(one) == 0);
}

}  // namespace cuda_tests
