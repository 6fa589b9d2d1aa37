// SPDX-License-Identifier: Apache-2.0
// Regions of 0 bytes: one page of memory, an address, a length of 0, and all that can be done with any other region.
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "client/face/shmbroker_pool.hpp"
#include "client/session/views.hpp"
#include "tests/harness/child.hpp"
#include "tests/support/pools.hpp"

using namespace shmb;
using namespace support;

namespace {

std::string address_of(const Region& region, const std::string& name) {
  return "#" + std::to_string(region.facts().group) + "/" + name;
}

// The facts that every handle of a region of 0 bytes gives.
void check_empty(Region& region) {
  CHECK(region.length() == 0);
  CHECK(region.facts().length == 0);
  CHECK(region.facts().bytes == 4096);
  CHECK(region.data() != nullptr);
  CHECK(region.bytes().empty());
  CHECK(region.data()[0] == std::byte{0});  // there is a page behind it
}

}  // namespace

TEST_CASE("a region of 0 bytes is created, named, found, attached, listed and released like any other") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  for (const std::uint32_t flags :
       {0U, client::kCreateNoPopulate, client::kCreateSmallPages, unsigned{SHMBW_CREATE_MANY_WRITERS},
        unsigned{SHMBW_CREATE_NO_RECYCLE}, unsigned{SHMBW_CREATE_UNINITIALISED}}) {
    CAPTURE(flags);
    auto item = named("none", 0);
    item.flags = flags;
    auto region = must(create_region(session, item));
    check_empty(*region);
    const std::string address = address_of(*region, "none");
    auto other = open(broker);
    auto writer = must(attach_region(other, at(address, kReadWrite)));
    check_empty(*writer);
    auto reader = must(attach_region(other, at(address)));
    check_empty(*reader);
    client::AttachItem by_id;
    by_id.target = client::Target::with_id(region->ref());
    check_empty(*must(attach_region(session, by_id)));
    const auto row = must(client::find_region(*session, region->ref(), Deadline::after(0)));
    CHECK(row.record.length == 0);
    CHECK(row.record.bytes == 4096);
    CHECK(must(broker_status(*session, Deadline::after(0))).record.bytes == 4096);  // what it is charged
    must(region->release(client::kReleaseUnname));
    writer.reset();
    reader.reset();
    CHECK(eventually([&] { return must(client::list_regions(*session, {}, Deadline::after(0))).rows.empty(); }));
  }
}

TEST_CASE("an unmapped region of 0 bytes maps as a part of 0 bytes, and one beyond it is refused") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto item = named("", 0);
  item.flags = client::kCreateUnmapped;
  auto region = must(create_region(session, item));
  CHECK(region->data() == nullptr);
  void* const address = must(region->map_part(0, 0, Access::read_write, Deadline::after(0)));
  REQUIRE(address != nullptr);
  std::memset(address, 1, 4096);
  must(region->unmap_part(address, 0));
  CHECK(status_of(region->map_part(4096, 0, Access::read, Deadline::after(0))) == Status::invalid);
  CHECK(status_of(region->map_part(0, 4097, Access::read, Deadline::after(0))) == Status::invalid);
  auto full = must(create_region(session, named("", 10)));
  CHECK(status_of(full->map_part(0, 0, Access::read, Deadline::after(0))) == Status::invalid);
  auto populated = must(create_region(session, named("", 0)));
  must(populated->populate(0, 0));
  CHECK(status_of(full->populate(0, 0)) == Status::invalid);
}

TEST_CASE("a region of 0 bytes is published, and readers of it come by name, by ticket and by descriptor") {
  const harness::BrokerFixture broker;
  auto session = open(broker), other = open(broker);
  for (const bool at_publish : {false, true}) {
    CAPTURE(at_publish);
    auto item = named("none", 0);
    if (at_publish) item.flags = SHMBW_CREATE_NAME_AT_PUBLISH;
    auto region = must(create_region(session, item));
    must(region->publish(Deadline::after(0)));
    check_empty(*region);
    CHECK(::mprotect(region->data(), 4096, PROT_READ | PROT_WRITE) == -1);
    check_empty(*must(attach_region(other, at(address_of(*region, "none")))));
    for (const std::uint32_t flags : {0U, unsigned{SHMBW_TICKET_CREATE_WITH_SESSION}}) {
      const auto ticket = must(region->make_ticket(0, 1, 0, Deadline::after(0), flags));
      client::AttachItem by_ticket;
      by_ticket.target = client::Target::with_ticket(ticket.token);
      check_empty(*must(attach_region(other, by_ticket)));
    }
    const Fd fd = must(region->descriptor(Deadline::after(0)));
    void* const mapped = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd.get(), 0);
    CHECK(mapped != MAP_FAILED);
    ::munmap(mapped, 4096);
    must(region->release(client::kReleaseUnname));
  }
}

TEST_CASE("regions of 0 bytes count against the limits by their page, and in one batch with others") {
  harness::BrokerOptions options;
  options.config = "[limits]\ngroup_bytes = 16384\n";
  const harness::BrokerFixture broker(options);
  auto session = open(broker);
  std::vector<client::CreateItem> items;
  for (const std::uint64_t length : {0, 4096, 0, 1, 0}) items.push_back(named("", length));
  auto made = create_regions(session, items, 0);
  for (const std::size_t i : {0, 2}) check_empty(*must(std::move(made[i])));
  CHECK(must(std::move(made[1]))->length() == 4096);
  CHECK(status_of(made[4]) == Status::limit);
}

TEST_CASE("a forked child has the regions of 0 bytes of its parent") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto region = must(create_region(session, named("none", 0)));
  auto child = harness::Child::run([&] {
    STEP(1, region->data() != nullptr && region->length() == 0);
    auto fd = region->descriptor(Deadline::after(0));
    STEP(2, fd.has_value());
    auto again = attach_region(session, at(address_of(*region, "none"), kReadWrite));
    STEP(3, again && (*again)->length() == 0);
    return 0;
  });
  CHECK(child.wait() == 0);
}

TEST_CASE("messages carry regions of 0 bytes: alone, in lists, twice, beside others, to read and to write") {
  for (const Kind kind : {Kind::spsc, Kind::mpmc, Kind::broadcast}) {
    CAPTURE(static_cast<int>(kind));
    const harness::BrokerFixture broker;
    auto session = open(broker);
    auto pool = must(make_pool(session, slots_of("p", 1 << 16, 4)));
    auto theirs = beside(broker, pool);
    auto other = must(try_pool(theirs, "p"));
    auto in = reader(other, "q", kind);
    auto out = writer(pool, "q", kind);
    auto empty = must(create_region(session, named("", 0)));
    auto full = must(create_region(session, named("", 10)));
    std::memcpy(full->data(), "0123456789", 10);
    Message message;
    for (int round = 0; round < 3; ++round) {  // the third time the mapping is one that was kept
      const OutPart alone[] = {region_part(*empty)};
      must(out->send(alone, 5, 0, kForever));
      must(in->receive(message, false, kForever));
      REQUIRE(message.count() == 1);
      CHECK(message.type() == 5);
      CHECK(message.part(0).status == Status::ok);
      CHECK(message.part(0).length == 0);
      CHECK(message.part(0).data != nullptr);
      must(message.done());
    }
    OutPart written = region_part(*empty);
    written.rights = kReadWrite;
    auto fresh = must(create_region(session, named("", 0)));
    written.region = fresh.get();
    const OutPart list[] = {bytes_part(""), region_part(*empty), region_part(*full),
                            written,        region_part(*empty), written};
    must(out->send(list, 0, 0, kForever));
    must(in->receive(message, true, kForever));
    REQUIRE(message.count() == 6);
    for (const std::size_t number : {1, 3, 4, 5}) {
      CHECK(message.part(number).status == Status::ok);
      CHECK(message.part(number).length == 0);
      CHECK(message.part(number).data != nullptr);
    }
    CHECK(text_of(message, 2) == "0123456789");
    CHECK(message.part(4).same_as == 1);
    CHECK(message.part(5).same_as == 3);
    CHECK(message.part(1).data != message.part(3).data);
    auto taken = must(message.take_region(5));
    check_empty(*taken);
    must(message.done());
    must(fresh->release(0));
    must(taken->publish(Deadline::after(0)));
    OutPart beyond = region_part(*empty);
    beyond.length = 1;
    CHECK(status_of(out->send(std::span(&beyond, 1), 0, 0, kNoWait)) == Status::invalid);
    beyond.length = 0, beyond.offset = 1;
    CHECK(status_of(out->send(std::span(&beyond, 1), 0, 0, kNoWait)) == Status::invalid);
  }
}

TEST_CASE("a local session has regions of 0 bytes, too") {
  auto session = must(Session::local("test"));
  auto region = must(create_region(session, named("", 0)));
  check_empty(*region);
  const Fd fd = must(region->descriptor(Deadline::after(0)));
  auto adopted = must(client::adopt_local(session, fd.get(), kReadWrite));
  CHECK(adopted->data() != nullptr);
  adopted.reset();
  must(region->publish(Deadline::after(0)));
  check_empty(*region);
}

TEST_CASE("both faces make, send and take regions of 0 bytes and parts of one mapping") {
  const harness::BrokerFixture broker;
  shmbroker::ConnectOptions connect;
  connect.socket = broker.socket();
  auto session = shmbroker::Session::connect(connect);
  auto queue = shmbroker::open_queue(session, "mail", shmbroker::Role::both, {.kind = shmbroker::QueueKind::mpmc});
  auto empty = session.create(0, {.name = "none"});
  CHECK(empty.size() == 0);
  CHECK(empty.mapped());
  CHECK(empty.bytes().empty());
  CHECK(empty.data() != nullptr);
  CHECK(empty.as_span<double>().empty());
  CHECK_FALSE(empty.try_as<int>());
  CHECK(session.attach_writable("none").size() == 0);
  auto filled = session.create(16);
  filled.as_span<int>()[1] = 42;
  using shmbroker::Part, shmbroker::Rights;
  const Rights write = Rights::read | Rights::write;
  queue.send_parts(
      {Part("head"), Part(empty, write), Part(filled, write), Part(empty, write), Part(filled, write).within(4, 4)});
  auto message = queue.receive();
  REQUIRE(message.count() == 5);
  const std::size_t same[] = {0, 1, 2, 1, 2};
  for (std::size_t i = 0; i < 5; ++i) {
    CHECK(message.part(i).same_as == same[i]);
    CHECK(message.part(i).status == shmbroker::Status::ok);
  }
  CHECK(message.part(1).bytes.empty());
  CHECK(message.part(1).bytes.data() != nullptr);
  auto one = message.take_writable_region(2), two = message.take_writable_region(4);
  CHECK(one.data() == two.data());
  CHECK(one.as_span<int>()[1] == 42);
  message.done();
  auto refused = std::move(one).try_publish();
  REQUIRE_FALSE(refused);
  CHECK(refused.error().status() == shmbroker::Status::pinned);
  two.release();
  filled.release();
  auto published = std::move(one).publish();
  CHECK(published.as_span<const int>()[1] == 42);
  // The fields of a received part are ignored when it is sent on.
  queue.send_parts({Part("head"), Part(empty), Part(empty)});
  message = queue.receive();
  shmb_part part{};
  REQUIRE(shmb_message_part(message.c(), 2, &part, nullptr) == SHMB_OK);
  CHECK(part.same_as == 1);
  CHECK(part.length == 0);
  part.region = empty.c();
  const shmb_outgoing again{&part, 1, 0, 0};
  CHECK(shmb_queue_send_message(queue.c(), &again, SHMB_NO_WAIT, nullptr) == SHMB_OK);
  auto last = queue.receive();
  CHECK(last.part(0).same_as == 0);
  CHECK(last.take_region(0).size() == 0);
}
