// SPDX-License-Identifier: Apache-2.0
// The whole path between real processes, through the C++ face: create, fill, find in every way, publish, replace,
// batches, waiting. Each on both engines and under every pretended kernel.
#include <algorithm>
#include <vector>

#include "tests/e2e/support.hpp"

using namespace e2e;

namespace {

constexpr std::size_t kLength = 3 * MiB + 5;

struct PathFacts {
  RegionId id, second;
  Ticket ticket;
  std::uint64_t group = 0;
};

shmbroker::CreateOptions called(const std::string& name) {
  shmbroker::CreateOptions options;
  options.name = name;
  return options;
}

}  // namespace

TEST_CASE("processes in other groups read a region that one writes: by ticket, by name and by id") {
  in_every_world([](World& world) {
    Shared<PathFacts> facts;
    Gate written, done;
    Child writer = actor([&] {
      const Session session = world.connect();
      session.join(session.create_group({.name = "train"}).token);
      const Region region = session.create(kLength, called("weights"));
      fill(region.bytes(), 1);
      *facts = {region.id(), {}, region.ticket(Rights::read, 2), session.group().value};
      written.open();
      NEED(done.wait());
      NEED(holds(region.bytes(), 1));
    });
    REQUIRE(written.wait());
    const auto reads = [&](const auto& where) {
      return actor([&world, &facts, where] {
        const Session session = world.connect();
        NEED(session.group().value != facts->group);
        const auto region = session.attach(where);
        NEED(region.size() == kLength);
        NEED(holds(region.bytes(), 1));
        NEED(region.id() == facts->id);
        NEED(region.info().bytes == 4 * MiB);
      });
    };
    Child readers[] = {reads(facts->ticket), reads(std::string("train/weights")), reads(facts->id),
                       reads(facts->ticket)};
    for (Child& reader : readers) REQUIRE(reader.wait() == 0);
    Child late = actor([&] { NEED_STATUS(world.connect().try_attach(facts->ticket), not_found); });
    REQUIRE(late.wait() == 0);  // used up
    done.open();
    REQUIRE(writer.wait() == 0);
  });
}

TEST_CASE("a reader sees the writer's later stores, and nothing more once it has been published") {
  in_every_world([](World& world) {
    Shared<PathFacts> facts;
    Gate created, seen, published, done;
    Child writer = actor([&] {
      const Session session = world.connect();
      Region region = session.create(64 * KiB);
      facts->id = region.id();
      created.open();
      NEED(seen.wait());
      fill(region.bytes(), 2);  // the reader has it mapped by now
      const auto closed = std::move(region).publish();
      NEED(holds(closed.bytes(), 2));
      published.open();
      NEED(done.wait());
    });
    Child reader = actor([&] {
      NEED(created.wait());
      const Session session = world.connect();
      const auto region = session.attach(facts->id);
      const auto watch = session.watch(facts->id, SHMB_EVENT_BIT_PUBLISHED);
      NEED((watch.state & SHMB_EVENT_BIT_PUBLISHED) == 0);
      NEED(all_zero(region.bytes()));
      seen.open();
      NEED(session.next_event(std::chrono::seconds(20)).kind == shmbroker::EventKind::region_published);
      NEED(holds(region.bytes(), 2));
      NEED_STATUS(session.try_attach_writable(facts->id), write_closed);
      NEED(session.stat(facts->id).state == SHMB_REGION_PUBLISHED);
    });
    REQUIRE(reader.wait() == 0);
    REQUIRE(published.wait());
    done.open();
    REQUIRE(writer.wait() == 0);
  });
}

TEST_CASE("replacing a name starts the next generation; the old one stays with its holders") {
  in_every_world([](World& world) {
    Shared<PathFacts> facts;
    Gate first, held, second, done;
    Child writer = actor([&] {
      const Session session = world.connect();
      session.create_group({.name = "train"});
      session.join("train");
      Region old = session.create(8 * KiB, called("weights"));
      fill(old.bytes(), 1);
      facts->id = old.id();
      first.open();
      NEED(held.wait());
      NEED_STATUS(session.try_create(8 * KiB, called("weights")), exists);
      auto options = called("weights");
      options.replace = true;
      const Region young = session.create(12 * KiB, options);
      fill(young.bytes(), 2);
      facts->second = young.id();
      old.release();
      second.open();
      NEED(done.wait());
    });
    Child reader = actor([&] {
      NEED(first.wait());
      const Session session = world.connect();
      const auto old = session.attach("train/weights");
      held.open();
      NEED(second.wait());
      const auto young = session.attach("train/weights");
      NEED(young.id() == facts->second);
      NEED(young.id().generation == old.id().generation + 1);
      NEED(young.size() == 12 * KiB);
      NEED(holds(young.bytes(), 2));
      NEED(old.id() == facts->id);
      NEED(holds(old.bytes(), 1));
      RegionId wrong = facts->id;
      ++wrong.generation;
      NEED_STATUS(session.try_attach(wrong), stale);
    });
    REQUIRE(reader.wait() == 0);
    done.open();
    REQUIRE(writer.wait() == 0);
  });
}

TEST_CASE("a batch of 253 regions is created, attached by others in one packet, and no content is mixed up") {
  in_every_world([](World& world) {
    constexpr std::size_t kCount = 253;
    struct Ids {
      RegionId ids[kCount];
    };
    Shared<Ids> shared;
    Gate written, done;
    Child writer = actor([&] {
      const Session session = world.connect();
      std::vector<std::uint64_t> lengths;
      for (std::size_t i = 0; i < kCount; ++i) lengths.push_back(100 + 37 * i);
      const auto regions = session.create_many(lengths);
      NEED(regions.size() == kCount);
      for (std::size_t i = 0; i < kCount; ++i) {
        fill(regions[i].bytes(), i);
        shared->ids[i] = regions[i].id();
      }
      written.open();
      NEED(done.wait());
    });
    REQUIRE(written.wait());
    Child reader = actor([&] {
      const Session session = world.connect();
      std::vector<shmb_region_id> ids;
      std::vector<shmb_attach_item> items(kCount);
      for (const RegionId& id : shared->ids) ids.push_back(id.to_c());
      for (std::size_t i = 0; i < kCount; ++i) items[i].id = &ids[i];
      std::vector<shmb_region*> regions(kCount);
      std::vector<int> statuses(kCount);
      NEED(shmb_attach_many(session.c(), items.data(), kCount, 0, regions.data(), statuses.data(), nullptr) == SHMB_OK);
      NEED(std::ranges::count(statuses, SHMB_OK) == static_cast<long>(kCount));
      for (std::size_t i = 0; i < kCount; ++i) {
        const shmbroker::ReadOnlyRegion region(regions[i]);
        NEED(region.size() == 100 + 37 * i);
        NEED(holds(region.bytes(), i));
      }
    });
    REQUIRE(reader.wait() == 0);
    done.open();
    REQUIRE(writer.wait() == 0);
  });
}

TEST_CASE("a reader that comes first waits for the name, and for its writer, and not for ever") {
  in_every_world([](World& world) {
    Gate waiting, done;
    Child reader = actor([&] {
      const Session session = world.connect();
      NEED_STATUS(session.try_attach("train/weights"), not_found);
      shmbroker::AttachOptions brief;
      brief.wait = std::chrono::milliseconds(20);
      NEED_STATUS(session.try_attach("train/weights", brief), deadline);
      shmbroker::AttachOptions long_enough;
      long_enough.wait = std::chrono::seconds(30);
      waiting.open();
      const auto region = session.attach("train/weights", long_enough);
      NEED(region.size() == kLength);
      done.open();
    });
    REQUIRE(waiting.wait());
    {
      const Session session = world.connect();
      session.create_group({.name = "train"});
      session.join("train");
      const Region region = session.create(kLength, called("weights"));
      REQUIRE(done.wait());
      REQUIRE(reader.wait() == 0);
    }
  });
}
