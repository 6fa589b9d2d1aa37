// SPDX-License-Identifier: Apache-2.0
// Regions that come again in messages. Their receiver keeps its mapping until no other process needs the region. The
// kept mappings are bounded and in the books.
#include <algorithm>
#include <cstring>
#include <set>
#include <thread>

#include "client/session/views.hpp"
#include "tests/harness/injected.hpp"
#include "tests/support/pools.hpp"

using namespace shmb;
using namespace support;

namespace {

constexpr std::int64_t kEnough = 30'000'000'000;

struct Resent {
  explicit Resent(const harness::BrokerOptions& options = {}) : broker(options) {}
  harness::BrokerFixture broker;
  std::shared_ptr<Session> session = open(broker);
  std::shared_ptr<Pool> pool = must(make_pool(session, PoolSpec{.name = "p"}));
  std::shared_ptr<Session> theirs = beside(broker, pool);
  std::shared_ptr<Pool> other = must(try_pool(theirs, "p"));
  std::unique_ptr<Queue> in = reader(other, "q", Kind::spsc);
  std::unique_ptr<Queue> out = writer(pool, "q", Kind::spsc);

  Region::Handle make(std::uint64_t bytes = 64 << 10) {
    auto region = must(create_region(session, named("", bytes)));
    std::memcpy(region->data(), "words", 5);
    return region;
  }
  void pass(Region& region, Message& message, std::uint32_t rights = 0) {
    OutPart part = region_part(region);
    part.rights = rights;
    must(out->send(std::span(&part, 1), 0, 0, kEnough));
    must(in->receive(message, false, kEnough));
    REQUIRE(message.part(0).status == Status::ok);
    CHECK(std::memcmp(message.part(0).data, "words", 5) == 0);
  }
  // The receiver is done with each message before the next one is sent.
  void pass_often(Region& region, int times, std::uint32_t rights = 0) {
    Message message;
    for (int i = 0; i < times; ++i) {
      pass(region, message, rights);
      must(message.done());
    }
  }
  std::size_t leases_of(Session& of) {
    const std::uint64_t id = of.facts().session;
    return static_cast<std::size_t>(
        std::ranges::count_if(must(client::list_leases(*session, {}, Deadline::after(0))).rows,
                              [&](const auto& row) { return row.record.session == id; }));
  }
  std::size_t regions() { return must(client::list_regions(*session, {}, Deadline::after(0))).rows.size(); }
};

}  // namespace

TEST_CASE("a region that comes again is mapped twice and no more, and its lease is in the books") {
  Resent scene;
  const auto region = scene.make();
  scene.pass_often(*region, 2);
  CHECK(scene.other->kept_mappings().size() == 1);
  CHECK(scene.leases_of(*scene.theirs) == 1);
  fault::clear();
  scene.pass_often(*region, 5);
  CHECK(fault::count(fault::Call::mmap) == 0);
  CHECK(fault::count(fault::Call::send) <= 2);  // wakes may need none
}

TEST_CASE("one that comes once is not kept, nor one that may be written") {
  Resent scene;
  const auto region = scene.make();
  scene.pass_often(*region, 4, SHMBW_RIGHT_MAP_READ | SHMBW_RIGHT_MAP_WRITE);
  const auto once = scene.make();
  scene.pass_often(*once, 1);
  CHECK(scene.other->kept_mappings().size() == 0);
  CHECK(eventually([&] { return scene.leases_of(*scene.theirs) == 0; }));
}

TEST_CASE("a kept mapping goes when no other process needs the region, while its process waits") {
  Resent scene;
  auto region = scene.make();
  scene.pass_often(*region, 3);
  REQUIRE(scene.other->kept_mappings().size() == 1);
  bool by_descriptor = false;
  SUBCASE("for a message") {}
  SUBCASE("in an event loop") { by_descriptor = true; }
  const int fd = by_descriptor ? must(scene.in->descriptor()) : -1;
  std::thread waits([&] {
    Message last;
    if (!by_descriptor) (void)scene.in->receive(last, false, kEnough);
    for (bool more = by_descriptor; more;) {
      const auto got = scene.in->receive(last, false, kNoWait);
      more = !got && got.error().status == Status::empty;
      if (more) (void)sys::poll_readable(fd, 1'000'000'000);
    }
  });
  region.reset();
  must(scene.out->drain(kEnough));  // and its lane lets go of it
  CHECK(eventually([&] { return scene.regions() == 0; }));
  must(scene.out->send(bytes_of("end"), kEnough));
  waits.join();
  CHECK(scene.other->kept_mappings().size() == 0);
}

TEST_CASE("a region that was taken out of a message belongs to its user, and the broker does not ask for it") {
  Resent scene;
  auto region = scene.make();
  scene.pass_often(*region, 3);
  Message message;
  scene.pass(*region, message);
  const auto mine = must(message.take_region(0));
  must(message.done());
  must(scene.theirs->ping(Deadline::after(0)));  // the broker knows of it
  region.reset();
  must(scene.out->drain(kEnough));
  ::usleep(100'000);
  (void)scene.theirs->ping(Deadline::after(0));
  CHECK(scene.theirs->asked_back() == 0);
  CHECK(scene.regions() == 1);
  CHECK(std::memcmp(mine->data(), "words", 5) == 0);
}

TEST_CASE("kept mappings are bounded in number and in bytes") {
  Resent scene;
  std::vector<Region::Handle> regions;
  for (std::size_t i = 0; i < client::KeptMappings::kMost + 10; ++i) regions.push_back(scene.make(4096));
  for (int round = 0; round < 3; ++round)
    for (const auto& region : regions) scene.pass_often(*region, 1);
  CHECK(scene.other->kept_mappings().size() == client::KeptMappings::kMost);
  CHECK(eventually([&] { return scene.leases_of(*scene.theirs) == client::KeptMappings::kMost; }));
}

TEST_CASE("where leases run short, those of kept mappings go first") {
  harness::BrokerOptions options;
  options.config = "[limits]\nuid_leases = 12\n";
  Resent scene(options);
  // Each costs its maker a lease, the lane one, and its receiver one.
  std::vector<Region::Handle> regions;
  for (int i = 0; i < 4; ++i) {
    regions.push_back(scene.make(4096));
    scene.pass_often(*regions.back(), 3);
  }
  REQUIRE(scene.other->kept_mappings().size() == 4);
  const auto refused = create_region(scene.session, named("", 4096));
  CHECK(status_of(refused) == Status::limit);
  Message none;
  CHECK(status_of(scene.in->receive(none, false, kNoWait)) == Status::empty);
  CHECK(eventually([&] {
    (void)scene.theirs->ping(Deadline::after(0));
    scene.other->kept_mappings().give_up_asked(*scene.theirs);
    return scene.other->kept_mappings().size() == 0;
  }));
  CHECK(eventually([&] { return create_region(scene.session, named("", 4096)).has_value(); }));
}
