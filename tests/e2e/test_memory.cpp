// SPDX-License-Identifier: Apache-2.0
// Huge pages and recycling as the kernel and other processes see them, and memory that comes back.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "tests/e2e/machine.hpp"
#include "tests/e2e/support.hpp"

using namespace e2e;

TEST_CASE("the page kind that is reported is the one in smaps, in the writer and in a reader") {
  bool huge_seen = false;
  in_every_world([&](World& world) {
    constexpr std::size_t kLength = 8 * MiB;
    const Session session = world.connect();
    const Region region = session.create(kLength);
    const auto kind = region.info().page_kind;
    const Resident mine = resident(region.data());
    CHECK(mine.rss == kLength);
    if (world.kernel_is_before(6, 1)) CHECK(kind == SHMB_PAGES_SMALL);
    if (kind == SHMB_PAGES_HUGE) {
      huge_seen = true;
      CHECK(mine.huge == kLength);
    } else {
      CHECK(mine.huge < kLength);
    }
    CHECK(eventually([&] { return session.stat(region.id()).page_kind == kind; }));
    CHECK(session.stat(region.id()).touched == kLength);
    fill(region.bytes(), 3);
    const RegionId id = region.id();
    Child reader = actor([&] {
      const Session other = world.connect();
      const auto seen = other.attach(id);
      NEED(resident(seen.data()).rss == kLength);  // entered at once, no faults later
      NEED(holds(seen.bytes(), 3));
      if (kind == SHMB_PAGES_HUGE) NEED(resident(seen.data()).huge == kLength);
    });
    CHECK(reader.wait() == 0);
    shmbroker::CreateOptions small;
    small.huge_pages = false;
    const Region other = session.create(kLength, small);
    CHECK(other.info().page_kind == SHMB_PAGES_SMALL);
    CHECK(resident(other.data()).huge == 0);
  });
  if (!huge_seen) harness::skip("this kernel gave no huge page to shared memory: only 4 KiB pages were seen");
}

TEST_CASE(
    "recycled memory stays in its group: another group gets fresh zeros, its own group gets the old bytes zeroed") {
  in_every_world([](World& world) {
    constexpr std::size_t kLength = 4 * MiB;
    const Session session = world.connect();
    session.create_group({.name = "job"});
    session.join("job");
    session.create(64);  // keeps the group
    const auto leave_dirty = [&](std::uint64_t seed) {
      Region region = session.create(kLength, {.recycle = true});
      fill(region.bytes(), seed);
      region.release();
      session.ping();
    };
    leave_dirty(1);
    Child stranger = actor([&] {
      const Session other = world.connect();
      const Region region = other.create(kLength, {.uninitialised = true});
      NEED(region.info().recycled == 0);
      NEED(all_zero(region.bytes()));
    });
    REQUIRE(stranger.wait() == 0);
    Child member = actor([&] {
      const Session other = world.connect();
      other.join("job");
      const Region region = other.create(kLength);
      NEED(region.info().recycled == 1);
      NEED(all_zero(region.bytes()));
    });
    REQUIRE(member.wait() == 0);
    REQUIRE(eventually([&] { return session.create(kLength).info().recycled == 1; }));
    leave_dirty(2);
    const Region region = session.create(kLength, {.uninitialised = true});
    CHECK(region.info().recycled == 1);
    CHECK(holds(region.bytes(), 2));
  });
}

TEST_CASE("memory that another group has seen is never recycled, also when it is given back by the maker last") {
  in_every_world([](World& world) {
    constexpr std::size_t kLength = 4 * MiB;
    struct Facts {
      Ticket ticket;
    };
    Shared<Facts> facts;
    Gate made;
    Child stranger = actor([&] {  // before the region is made: a forked child would inherit its mapping
      NEED(made.wait());
      const Session other = world.connect();
      const Region mine = other.attach_writable(facts->ticket);
      fill(mine.bytes(), 5);
    });
    const Session session = world.connect();
    Region region = session.create(kLength);
    const RegionId id = region.id();
    facts->ticket = region.ticket(Rights::read | Rights::write);
    made.open();
    REQUIRE(stranger.wait() == 0);
    REQUIRE(eventually([&] { return session.stat(id).holders == 1; }));
    region.release();
    session.ping();
    const Region next = session.create(kLength, {.uninitialised = true});
    CHECK(next.info().recycled == 0);
    CHECK(all_zero(next.bytes()));
  });
}

namespace {

// 50 regions five times over on each engine; the most that was seen in use.
std::uint64_t make_and_drop() {
  std::uint64_t most = 0;
  for (const std::string& engine : harness::engines()) {
    World world({.engine = engine});
    for (int round = 0; round < 5; ++round) {
      Gate held;
      Child holder = actor([&] {
        const Session session = world.connect();
        const auto regions = session.create_many(std::vector<std::uint64_t>(50, 4 * MiB));
        held.open();
        if (round == 1) std::_Exit(0);
        if (round % 2 == 0) return;
        ::pause();
      });
      REQUIRE(held.wait());
      most = std::max(most, shmem_bytes());
      if (round % 2 == 1) holder.kill();
      holder.wait();
    }
    CHECK(world.broker().books().empty());
  }
  return most;
}

}  // namespace

TEST_CASE("2 GiB of regions made and dropped, by release, by exit and by SIGKILL, leave no shared memory behind") {
  bool back = false;
  // The host's figure counts others, too: what they take meanwhile is not there in each of three attempts.
  for (int attempt = 0; attempt < 3 && !back; ++attempt) {
    const std::uint64_t before = shmem_bytes(), most = make_and_drop();
    CHECK(most >= before + 100 * MiB);
    back = eventually([&] { return shmem_bytes() <= before + 8 * MiB; });
    MESSAGE("shared memory of the host: " << before / MiB << " MiB before, " << most / MiB << " at most, "
                                          << shmem_bytes() / MiB << " after");
  }
  CHECK(back);
}

TEST_CASE("a private /dev/shm of 4 MiB bounds POSIX shared memory and no region") {
  if (!can_mount()) SKIP_CASE("mounting is not allowed here");
  for (const std::string& engine : harness::engines()) {
    World world({.engine = engine});
    Child member = actor([&] {
      NEED(enter_mount_namespace());
      NEED(mount_tmpfs("/dev/shm", "size=4m"));
      const int posix = ::open("/dev/shm/bounded", O_CREAT | O_RDWR, 0600);
      NEED(::posix_fallocate(posix, 0, 8 * MiB) == ENOSPC);
      const Session session = world.connect();
      Region region = session.create(64 * MiB);
      fill(region.bytes(), 4);
      const auto id = region.id();
      const Session second = world.connect();
      NEED(holds(second.attach(id).bytes(), 4));
    });
    CHECK(member.wait() == 0);
  }
}
