// SPDX-License-Identifier: Apache-2.0
// The identity of a region within one message: its parts have one lease and one mapping, however many there are, and
// the handles out of them end in any order, in any process.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "client/session/views.hpp"
#include "tests/harness/child.hpp"
#include "tests/harness/injected.hpp"
#include "tests/support/pools.hpp"

using namespace shmb;
using namespace support;

namespace {

constexpr std::uint32_t kRead = SHMBW_RIGHT_MAP_READ;
constexpr std::int64_t kLongWait = 30'000'000'000;

struct Shared {
  harness::BrokerFixture broker;
  std::shared_ptr<Session> session = open(broker);
  std::shared_ptr<Pool> pool = must(make_pool(session, slots_of("p", 1 << 16, 4)));
  std::shared_ptr<Session> theirs = beside(broker, pool);
  std::shared_ptr<Pool> other = must(try_pool(theirs, "p"));
  std::unique_ptr<Queue> in = reader(other, "q", Kind::spsc);
  std::unique_ptr<Queue> out = writer(pool, "q", Kind::spsc);

  Region::Handle make(std::string_view words = "words", std::uint64_t bytes = 64 << 10) {
    auto region = must(create_region(session, named("", bytes)));
    std::ranges::copy(std::as_bytes(std::span(words)), region->data());
    return region;
  }
  static OutPart part_of(Region& region, std::uint32_t rights, std::uint64_t offset = 0, std::uint64_t length = 0) {
    OutPart part = region_part(region);
    part.rights = rights;
    part.offset = offset;
    part.length = length;
    return part;
  }
  void pass(std::span<const OutPart> parts, Message& message, bool keep = true) {
    must(out->send(parts, 0, 0, kLongWait));
    must(in->receive(message, keep, kLongWait));
    REQUIRE(message.count() == parts.size());
  }
  // How often the session's leases count the region.
  std::uint32_t leases_of(Session& of, shmbw_region_ref region) {
    const std::uint64_t id = of.facts().session;
    std::uint32_t count = 0;
    for (const auto& row : must(client::list_leases(*session, {}, Deadline::after(0))).rows)
      if (row.record.session == id && row.record.region.id == region.id) count += row.record.count;
    return count;
  }
};

}  // namespace

TEST_CASE("a region that comes in several parts is one mapping, to read and to write") {
  for (const std::uint32_t rights : {kRead, kReadWrite}) {
    for (const bool keep : {false, true}) {
      CAPTURE(rights);
      CAPTURE(keep);
      Shared scene;
      const auto region = scene.make(), second = scene.make("other");
      Message message;
      const OutPart parts[] = {bytes_part("head"), Shared::part_of(*region, rights), Shared::part_of(*second, kRead),
                               Shared::part_of(*region, rights, 2, 3), Shared::part_of(*region, rights, 4096)};
      scene.pass(parts, message, keep);
      CHECK(text_of(message, 1).substr(0, 5) == "words");
      CHECK(text_of(message, 2).substr(0, 5) == "other");
      CHECK(text_of(message, 3) == "rds");
      CHECK(message.part(3).data == message.part(1).data + 2);
      CHECK(message.part(4).data == message.part(1).data + 4096);
      for (const auto& [number, first] : {std::pair{0U, 0U}, {1U, 1U}, {2U, 2U}, {3U, 1U}, {4U, 1U}})
        CHECK(message.part(number).same_as == first);
      CHECK(scene.leases_of(*scene.theirs, region->ref()) == 1);
      auto whole = must(message.take_region(1)), again = must(message.take_region(4));
      CHECK(whole->data() == again->data());
      CHECK(whole->data() == message.part(1).data);
      CHECK(status_of(message.take_region(1)) == Status::invalid);
      if (rights == kReadWrite) {
        again->data()[0] = std::byte{'W'};
        CHECK(whole->data()[0] == std::byte{'W'});
        CHECK(region->data()[0] == std::byte{'W'});
      }
    }
  }
}

TEST_CASE("the handles of one mapping end in any order, before and after their message, and the lease with the last") {
  for (int order = 0; order < 4; ++order) {
    CAPTURE(order);
    Shared scene;
    const auto region = scene.make();
    const auto leases = [&] { return scene.leases_of(*scene.theirs, region->ref()); };
    auto message = std::make_unique<Message>();
    const OutPart parts[] = {Shared::part_of(*region, kReadWrite), Shared::part_of(*region, kReadWrite),
                             Shared::part_of(*region, kReadWrite)};
    scene.pass(parts, *message);
    auto first = must(message->take_region(0)), second = must(message->take_region(1));
    if (order % 2 == 0) must(message->done());
    must(Region::release(std::move(order < 2 ? first : second), 0));
    Region::Handle& left = order < 2 ? second : first;
    CHECK(std::memcmp(left->data(), "words", 5) == 0);
    CHECK(leases() == 1);
    must(Region::release(std::move(left), 0));
    if (order % 2 != 0) {
      CHECK(std::memcmp(message->part(2).data, "words", 5) == 0);
      CHECK(leases() == 1);
      message.reset();
    }
    CHECK(eventually([&] { return leases() == 0; }));
  }
}

TEST_CASE("while a mapping has several handles publishing is pinned, and leaves it as it is") {
  Shared scene;
  auto region = scene.make();
  Message message;
  const OutPart parts[] = {Shared::part_of(*region, kReadWrite), Shared::part_of(*region, kReadWrite)};
  scene.pass(parts, message);
  region.reset();  // nobody else writes
  auto first = must(message.take_region(0));
  std::byte* const at = first->data();
  const auto refused = first->publish(Deadline::after(0));
  REQUIRE(status_of(refused) == Status::pinned);
  CHECK(refused.error().sentence.find("2 handles") != std::string::npos);
  CHECK(first->data() == at);
  first->data()[0] = std::byte{'W'};
  auto second = must(message.take_region(1));
  must(message.done());
  CHECK(status_of(second->publish(Deadline::after(0))) == Status::pinned);
  must(Region::release(std::move(first), 0));
  must(second->publish(Deadline::after(0)));
  CHECK(second->data()[0] == std::byte{'W'});
  CHECK(::mprotect(second->data(), 4096, PROT_READ | PROT_WRITE) == -1);
}

TEST_CASE("of a region that comes alone or was taken out of its only part publishing is as ever") {
  Shared scene;
  auto region = scene.make();
  Message message;
  const OutPart parts[] = {Shared::part_of(*region, kReadWrite), bytes_part("tail")};
  scene.pass(parts, message);
  region.reset();
  auto alone = must(message.take_region(0));
  must(alone->publish(Deadline::after(0)));
}

TEST_CASE("a name goes at once with whichever handle takes it away, and the others go on") {
  Shared scene;
  auto region = must(create_region(scene.session, named("kv", 4096)));
  std::memcpy(region->data(), "words", 5);
  Message message;
  const std::uint32_t rights = kReadWrite | SHMBW_RIGHT_RELEASE;
  const OutPart parts[] = {Shared::part_of(*region, rights), Shared::part_of(*region, rights)};
  scene.pass(parts, message);
  auto first = must(message.take_region(0)), second = must(message.take_region(1));
  const std::string address = "#" + std::to_string(region->facts().group) + "/kv";
  CHECK(attach_region(scene.session, at(address, kReadWrite)).has_value());
  must(Region::release(std::move(first), client::kReleaseUnname));
  CHECK(status_of(attach_region(scene.session, at(address, kReadWrite))) == Status::not_found);
  CHECK(std::memcmp(second->data(), "words", 5) == 0);
}

TEST_CASE("memory that one of its handles will not have recycled is not, whichever goes last") {
  for (const bool recycles : {true, false}) {
    CAPTURE(recycles);
    Shared scene;
    Message message;
    std::uint64_t born = 0;
    {
      auto region = must(create_region(scene.session, named("", 2 << 20)));
      born = region->ref().id;
      const OutPart parts[] = {Shared::part_of(*region, kReadWrite), Shared::part_of(*region, kReadWrite)};
      scene.pass(parts, message);
    }
    auto first = must(message.take_region(0)), second = must(message.take_region(1));
    must(message.done());
    must(scene.out->drain(kLongWait));  // its lane holds nothing either
    must(Region::release(std::move(first), recycles ? 0U : client::kReleaseNoRecycle));
    must(Region::release(std::move(second), 0));
    CHECK(eventually([&] {
      return std::ranges::none_of(must(client::list_regions(*scene.session, {}, Deadline::after(0))).rows,
                                  [&](const auto& row) { return row.record.region.id == born; });
    }));
    CHECK(must(create_region(scene.session, named("", 2 << 20)))->facts().recycled == recycles);
  }
}

TEST_CASE("parts that read and parts that write are one mapping with the rights of all of them") {
  for (const bool writes_first : {false, true}) {
    CAPTURE(writes_first);
    Shared scene;
    const auto region = scene.make();
    Message message;
    const OutPart parts[] = {Shared::part_of(*region, writes_first ? kReadWrite : 0),
                             Shared::part_of(*region, writes_first ? kRead : kReadWrite)};
    scene.pass(parts, message);
    for (const std::size_t number : {0, 1}) {
      CHECK(message.part(number).status == Status::ok);
      CHECK(message.part(number).rights == kReadWrite);
      CHECK(message.part(number).same_as == 0);
    }
    auto read = must(message.take_region(writes_first ? 1 : 0)),
         write = must(message.take_region(writes_first ? 0 : 1));
    write->data()[0] = std::byte{'W'};
    CHECK(read->data() == write->data());
    CHECK(region->data()[0] == std::byte{'W'});
  }
}

TEST_CASE("where writing is closed, the parts that read arrive together and those that write say why not") {
  Shared scene;
  const auto region = scene.make();
  const auto closes = must(attach_region(scene.theirs, [&] {
    client::AttachItem item;
    item.target = client::Target::with_id(region->ref());
    return item;
  }()));
  Message message;
  const OutPart parts[] = {Shared::part_of(*region, kReadWrite), Shared::part_of(*region, kRead),
                           Shared::part_of(*region, kReadWrite), Shared::part_of(*region, kRead, 2, 3)};
  scene.pass(parts, message);
  for (const std::size_t number : {0, 2}) {
    CHECK(message.part(number).status == Status::write_closed);
    CHECK(message.part(number).data == nullptr);
    CHECK(message.part(number).same_as == number);
    CHECK(status_of(message.take_region(number)) == Status::write_closed);
  }
  CHECK(message.part(1).status == Status::ok);
  CHECK(text_of(message, 3) == "rds");
  CHECK(message.part(3).data == message.part(1).data + 2);
  CHECK(message.part(3).same_as == 1);
}

TEST_CASE("a part beyond its region is broken alone, and is never the first of the others") {
  Shared scene;
  const auto region = scene.make();
  Message message;
  struct Lie {  // a list as it travels
    client::ListHeader header{3, 0, 0};
    client::ListEntry entries[3];
  } lie;
  for (std::size_t i = 0; i < 3; ++i) {
    lie.entries[i] = {static_cast<std::uint32_t>(PartKind::region) | kRead << 8, region->ref().generation,
                      region->ref().id, i == 0 ? std::uint64_t{1} << 30 : i, 5};
  }
  static_assert(sizeof lie == 112);
  const OutPart honest[] = {Shared::part_of(*region, kRead), Shared::part_of(*region, kRead),
                            Shared::part_of(*region, kRead)};
  must(scene.out->send(honest, 0, 0, kLongWait));
  // The list lies in a slot: the only one in use.
  bool found = false;
  for (std::uint32_t slot = 0; slot < 4 && !found; ++slot) {
    std::byte* const at = const_cast<std::byte*>(scene.pool->data_if_mapped(slot));
    client::ListHeader header{};
    if (at == nullptr) continue;
    std::memcpy(&header, at, sizeof header);
    if (header.parts != 3) continue;
    std::memcpy(at, &lie, sizeof lie);
    found = true;
  }
  REQUIRE(found);
  must(scene.in->receive(message, true, kLongWait));
  REQUIRE(message.count() == 3);
  CHECK(message.part(0).status == Status::broken);
  CHECK(message.part(0).same_as == 0);
  CHECK(message.part(1).same_as == 1);
  CHECK(message.part(2).same_as == 1);
  CHECK(text_of(message, 1) == "ords" + std::string(1, '\0'));
  CHECK(status_of(message.take_region(0)) == Status::broken);
  CHECK(message.part(2).data == must(message.take_region(1))->data() + 2);
}

TEST_CASE("a thousand parts of one region are one lease, one mapping and one request on either side") {
  Shared scene;
  const auto region = scene.make();
  Message message;
  std::vector<OutPart> parts(1000, Shared::part_of(*region, kReadWrite, 0, 5));
  parts[999].offset = 2;
  fault::clear();
  scene.pass(parts, message);
  CHECK(fault::count(fault::Call::mmap) <= 2);   // the region, and the segment that the list is in
  CHECK(fault::count(fault::Call::send) <= 12);  // not one for each 253 parts, and again on the other side
  CHECK(scene.leases_of(*scene.theirs, region->ref()) == 1);
  std::vector<Region::Handle> all;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    CHECK(message.part(i).same_as == 0);
    all.push_back(must(message.take_region(i)));
    CHECK(all[i]->data() == all[0]->data());
  }
  must(message.done());
  CHECK(scene.leases_of(*scene.theirs, region->ref()) == 1);
  for (std::size_t i = 0; i + 1 < all.size(); ++i) must(Region::release(std::move(all[i * 7 % 999]), 0));
  CHECK(std::memcmp(all[999]->data(), "words", 5) == 0);
  CHECK(scene.leases_of(*scene.theirs, region->ref()) == 1);
  must(Region::release(std::move(all[999]), 0));
  CHECK(eventually([&] { return scene.leases_of(*scene.theirs, region->ref()) == 0; }));
}

TEST_CASE("many parts of many regions arrive each with its own, in the order that they were sent in") {
  Shared scene;
  std::vector<Region::Handle> regions;
  for (int i = 0; i < 300; ++i) {  // more than one packet of attaches
    regions.push_back(scene.make({}, 4096));
    std::memcpy(regions.back()->data(), &i, sizeof i);
  }
  std::vector<OutPart> parts;
  for (std::size_t i = 0; i < 1200; ++i)
    parts.push_back(Shared::part_of(*regions[i * 7 % 300], i % 2 == 0 ? kRead : kReadWrite, 0, sizeof(int)));
  Message message;
  scene.pass(parts, message);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    int number = -1;
    REQUIRE(message.part(i).status == Status::ok);
    std::memcpy(&number, message.part(i).data, sizeof number);
    CHECK(number == static_cast<int>(i * 7 % 300));
    CHECK(message.part(i).same_as == i % 300);
  }
}

TEST_CASE("a forked child has the handles of one mapping with one lease of its own, which its parent's end leaves") {
  for (const std::uint32_t rights : {kRead, kReadWrite}) {
    CAPTURE(rights);
    Shared scene;
    auto region = scene.make();
    Message message;
    const OutPart parts[] = {Shared::part_of(*region, rights), Shared::part_of(*region, rights),
                             Shared::part_of(*region, rights)};
    scene.pass(parts, message);
    auto first = must(message.take_region(0)), second = must(message.take_region(1));
    const shmbw_region_ref ref = region->ref();
    const harness::Gate entered, released;
    auto child = harness::Child::run([&] {
      STEP(1, first->data() == second->data());
      region.reset();  // inherited as well: its mapping is to write
      STEP(2, status_of(first->descriptor(Deadline::after(0))) == Status::ok);  // its first call: it has a session now
      entered.open();
      STEP(10, released.wait());
      STEP(3, Region::release(std::move(first), 0).has_value());
      STEP(4, std::memcmp(second->data(), "words", 5) == 0);
      STEP(5, status_of(second->descriptor(Deadline::after(0))) == Status::ok);  // the lease is still there
      STEP(6, message.done().has_value());  // the parent's message: its copy of the third handle goes
      STEP(7, status_of(second->descriptor(Deadline::after(0))) == Status::ok);
      STEP(8, rights == kRead || status_of(second->publish(Deadline::after(0))) == Status::ok);
      STEP(9, Region::release(std::move(second), 0).has_value());
      return 0;
    });
    CHECK(entered.wait());
    must(message.done());
    must(Region::release(std::move(second), 0));
    must(Region::release(std::move(first), 0));
    CHECK(eventually([&] { return scene.leases_of(*scene.theirs, ref) == 0; }));
    region.reset();  // nobody else writes: the child can publish
    released.open();
    CHECK(child.wait() == 0);
  }
}

TEST_CASE("handles of one mapping are used and released by threads at once") {
  Shared scene;
  const auto region = scene.make("words", 1 << 20);
  constexpr std::size_t kThreads = 6;
  for (int round = 0; round < 20; ++round) {
    Message message;
    const std::vector<OutPart> parts(kThreads, Shared::part_of(*region, kReadWrite));
    scene.pass(parts, message);
    std::vector<std::thread> threads;
    std::atomic<int> wrong = 0;
    for (std::size_t i = 0; i < kThreads; ++i)
      threads.emplace_back([&wrong, handle = must(message.take_region(i))]() mutable {
        auto part = handle->map_part(4096, 4096, Access::read_write, Deadline::after(0));
        if (!part) ++wrong;
        else if (!handle->unmap_part(*part, 4096)) ++wrong;
        if (!handle->populate(0, 8192)) ++wrong;
        if (handle->facts().length != 1 << 20) ++wrong;
        if (!Region::release(std::move(handle), 0)) ++wrong;
      });
    must(message.done());
    for (auto& thread : threads) thread.join();
    CHECK(wrong == 0);
  }
  CHECK(eventually([&] { return scene.leases_of(*scene.theirs, region->ref()) == 0; }));
}

TEST_CASE("a mapping that is kept serves all parts of the next message, and is kept again after the last of them") {
  Shared scene;
  const auto region = scene.make();
  const std::vector<OutPart> parts(5, Shared::part_of(*region, kRead));
  Message message;
  for (int i = 0; i < 2; ++i) {
    scene.pass(parts, message);
    must(message.done());
  }
  CHECK(scene.other->kept_mappings().size() == 1);
  fault::clear();
  for (int i = 0; i < 3; ++i) {
    scene.pass(parts, message);
    CHECK(scene.other->kept_mappings().size() == 0);
    CHECK(message.part(4).same_as == 0);
    must(message.done());
    CHECK(scene.other->kept_mappings().size() == 1);
  }
  CHECK(fault::count(fault::Call::mmap) == 0);
  // One that its user still has is the user's alone, and goes with it.
  scene.pass(parts, message);
  auto taken = must(message.take_region(3));
  must(message.done());
  CHECK(scene.other->kept_mappings().size() == 0);
  CHECK(scene.leases_of(*scene.theirs, region->ref()) == 1);
  taken.reset();
  CHECK(eventually([&] { return scene.leases_of(*scene.theirs, region->ref()) == 0; }));
}

TEST_CASE("a message of an mpmc queue that is given back gives the mapping back, and comes again whole") {
  Shared scene;
  auto spec = queue_spec("once", Kind::mpmc, true, false);
  spec.flags = pool::kQueueAtLeastOnce;
  auto in = must(Queue::open(scene.other, spec));
  spec.reader = false, spec.writer = true;
  auto out = must(Queue::open(scene.pool, spec));
  const auto region = scene.make();
  const std::vector<OutPart> parts(3, Shared::part_of(*region, kReadWrite));
  must(out->send(parts, 0, 0, kLongWait));
  Message message;
  must(in->receive(message, false, kLongWait));
  auto taken = must(message.take_region(1));
  must(message.give_back());
  CHECK(std::memcmp(taken->data(), "words", 5) == 0);
  CHECK(scene.leases_of(*scene.theirs, region->ref()) == 1);
  must(in->receive(message, false, kLongWait));
  CHECK(message.part(2).same_as == 0);
  CHECK(scene.leases_of(*scene.theirs, region->ref()) == 2);  // another message, another lease
  must(message.done());
  taken.reset();
  CHECK(eventually([&] { return scene.leases_of(*scene.theirs, region->ref()) == 0; }));
}
