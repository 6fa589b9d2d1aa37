// SPDX-License-Identifier: Apache-2.0
// Law 6 as the books keep it: who closes writing, who must wait, what publish asks for.
#include <fcntl.h>
#include <sys/mman.h>

#include "base/compat.hpp"
#include "base/fault.hpp"
#include "base/mapping.hpp"
#include "base/sys_memory.hpp"
#include "tests/daemon/books/books_fixture.hpp"
#include "tests/harness/injected.hpp"

using namespace shmb;
using namespace shmb::daemon::test;

namespace {

bool opened_read_only(const Fd& fd) { return (fcntl(fd.get(), F_GETFL) & O_ACCMODE) == O_RDONLY; }

bool event_is(const Packet& packet, std::uint16_t op) { return packet.op() == (op | SHMBW_EVENT); }

}  // namespace

TEST_CASE("private mode: a read-only grant waits until every writer has mapped, then closes writing for ever") {
  World world(private_config());
  Client writer = world.client(1000), second = world.client(1000), reader = world.client(1000);
  Created created = writer.create();
  CHECK(second.attach_id(created.ref(), kWrite).status == Status::ok);
  CHECK(reader.attach_id(created.ref()).status == Status::not_ready);
  auto watch = reader.watch_region(created.ref(), SHMBW_WATCH_EVENT_KNOWN).fixed<shmbw_watch_reply>();
  CHECK(watch.state == 0);
  writer.ready(created.ref());
  CHECK(reader.attach_id(created.ref()).status == Status::not_ready);
  CHECK(reader.link().events.empty());
  second.ready(created.ref());
  REQUIRE(reader.link().events.size() == 1);
  CHECK(event_is(reader.link().events[0], SHMBW_EVENT_REGION_READY));
  auto event = reader.link().events[0].fixed<shmbw_region_ready_event>();
  CHECK(event.sequence == 1);
  CHECK(event.watch == watch.watch);
  CHECK(event.region.id == created.ref().id);

  Mapping before = std::move(*Mapping::map(created.memory.get(), 0, 4096, Access::read_write));
  Attached attached = reader.attach_id(created.ref());
  REQUIRE(attached.status == Status::ok);
  CHECK(opened_read_only(attached.memory));
  CHECK(attached.reply.state == SHMBW_REGION_STATE_WRITE_CLOSED);
  CHECK((attached.reply.flags & SHMBW_REGION_WRITE_OPEN) == 0);
  CHECK((*sys::seals(created.memory.get()) & F_SEAL_FUTURE_WRITE) != 0);
  CHECK((*sys::seals(created.memory.get()) & F_SEAL_SEAL) == 0);
  before.data()[0] = std::byte{1};  // the writer goes on
  CHECK(!Mapping::map(created.memory.get(), 0, 4096, Access::read_write));
  CHECK(second.attach_id(created.ref(), kWrite).status == Status::write_closed);
  CHECK(writer.attach_id(created.ref(), kWrite).status == Status::write_closed);
  CHECK(second.attach_id(created.ref()).status == Status::ok);
}

TEST_CASE("private mode: the death or release of a writer that never mapped ends the wait") {
  for (bool dies : {true, false}) {
    World world(private_config());
    Client writer = world.client(1000), reader = world.client(1000);
    writer.make_group({.name = "g"});
    writer.join("g");
    reader.join("g");
    Created created = writer.create({.name = "n"});
    reader.watch_region(created.ref(), SHMBW_WATCH_EVENT_READY | SHMBW_WATCH_EVENT_GONE);
    if (dies) writer.die();
    else writer.release(created.ref());
    REQUIRE(reader.link().events.size() == 1);
    CHECK(event_is(reader.link().events[0], SHMBW_EVENT_REGION_READY));
    CHECK(reader.attach_id(created.ref()).status == Status::ok);
  }
}

TEST_CASE("an unnamed region of a writer that died is gone, and its waiters are notified") {
  World world(private_config());
  Client writer = world.client(1000), reader = world.client(1000);
  Created created = writer.create();
  reader.watch_region(created.ref(), SHMBW_WATCH_EVENT_READY | SHMBW_WATCH_EVENT_GONE);
  writer.die();
  REQUIRE(reader.link().events.size() == 1);
  CHECK(event_is(reader.link().events[0], SHMBW_EVENT_REGION_GONE));
  CHECK(reader.status().watches == 0);  // it ended with its target
}

TEST_CASE("private mode: writers report again after another attach, and a lease without descriptor need not") {
  World world(private_config());
  Client writer = world.client(1000), holder = world.client(1000), reader = world.client(1000);
  Created created = writer.create();
  writer.ready(created.ref());
  CHECK(holder.attach_id(created.ref(), kWrite, SHMBW_ATTACH_NO_FD).status == Status::ok);
  CHECK(writer.attach_id(created.ref(), kWrite).status == Status::ok);
  CHECK(reader.attach_id(created.ref()).status == Status::not_ready);
  // A reference without descriptor does not hide that a descriptor is still to be mapped.
  CHECK(writer.attach_id(created.ref(), kWrite, SHMBW_ATTACH_NO_FD).status == Status::ok);
  CHECK(reader.attach_id(created.ref()).status == Status::not_ready);
  writer.ready(created.ref());
  CHECK(reader.attach_id(created.ref()).status == Status::ok);
}

TEST_CASE("private mode: many_writers seals the seals at birth, and readers are no boundary") {
  World world(private_config());
  Client writer = world.client(1000), reader = world.client(1000);
  Created created = writer.create({.flags = SHMBW_CREATE_MANY_WRITERS});
  CHECK((*sys::seals(created.memory.get()) & F_SEAL_SEAL) != 0);
  Attached attached = reader.attach_id(created.ref());
  CHECK(attached.status == Status::ok);
  CHECK((attached.reply.flags & SHMBW_REGION_MANY_WRITERS) != 0);
  CHECK(opened_read_only(attached.memory));
  CHECK((*sys::seals(created.memory.get()) & F_SEAL_FUTURE_WRITE) == 0);
  CHECK(world.client(1000).attach_id(created.ref(), kWrite).status == Status::ok);
  CHECK(writer.publish(created.ref()).status() == Status::unsupported);
}

TEST_CASE("system mode: a reader gets a read-only descriptor at once, and writing stays open") {
  World world(system_config());
  Client writer = world.client(1000), reader = world.client(1000);
  Created created = writer.create({.flags = SHMBW_CREATE_MANY_WRITERS});
  Attached attached = reader.attach_id(created.ref());
  CHECK(attached.status == Status::ok);
  CHECK(opened_read_only(attached.memory));
  CHECK((attached.reply.flags & SHMBW_REGION_MANY_WRITERS) == 0);
  CHECK((*sys::seals(created.memory.get()) & (F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)) == 0);
  CHECK(reader.attach_id(created.ref(), kWrite).status == Status::ok);
}

TEST_CASE("system mode: mode bits do not bind the broker's own uid, so its readers close writing") {
  World world(system_config(), {.uid = 1000});
  Client writer = world.client(1000), reader = world.client(1000);
  Created created = writer.create();
  CHECK(reader.attach_id(created.ref()).status == Status::not_ready);
  writer.ready(created.ref());
  CHECK(reader.attach_id(created.ref()).status == Status::ok);
  CHECK((*sys::seals(created.memory.get()) & F_SEAL_FUTURE_WRITE) != 0);
}

TEST_CASE("publish seals for good, makes every lease read-only and notifies watchers") {
  for (bool system : {false, true}) {
    World world(system ? system_config() : private_config());
    Client writer = world.client(1000), other = world.client(1000);
    Created created = writer.create();
    other.attach_id(created.ref(), kWrite);
    other.ready(created.ref());
    other.watch_region(created.ref(), SHMBW_WATCH_EVENT_PUBLISHED);
    Packet& reply = writer.publish(created.ref());
    REQUIRE(reply.status() == Status::ok);
    REQUIRE(reply.fds.size() == 1);
    CHECK(opened_read_only(reply.fds[0]));
    CHECK(reply.fixed<shmbw_publish_reply>().rights == (kAll & ~std::uint32_t{SHMBW_RIGHT_MAP_WRITE}));
    int seals = *sys::seals(created.memory.get());
    CHECK((seals & F_SEAL_WRITE) != 0);
    CHECK((seals & F_SEAL_SEAL) != 0);
    REQUIRE(other.link().events.size() == 1);
    CHECK(event_is(other.link().events[0], SHMBW_EVENT_REGION_PUBLISHED));
    CHECK(writer.attach_id(created.ref(), kWrite).status == Status::write_closed);
    Attached attached = other.attach_id(created.ref());
    CHECK(attached.status == Status::ok);
    CHECK(attached.reply.state == SHMBW_REGION_STATE_PUBLISHED);
    auto rows = writer.rows<shmbw_region_record>(SHMBW_TABLE_REGIONS);
    CHECK(rows.at(0).writers == 0);
    CHECK(writer.publish(created.ref()).status() == Status::ok);  // done already
  }
}

TEST_CASE("publish while a process maps it for writing is still_mapped and changes nothing") {
  World world(private_config());
  Client writer = world.client(1000);
  Created created = writer.create();
  {
    Mapping mapping = std::move(*Mapping::map(created.memory.get(), 0, 4096, Access::read_write));
    Packet& refused = writer.publish(created.ref());
    CHECK(refused.status() == Status::still_mapped);
    CHECK(refused.fds.empty());
    CHECK(refused.error().sentence.find("unmap") != std::string::npos);
    CHECK((*sys::seals(created.memory.get()) & F_SEAL_WRITE) == 0);
  }
  CHECK(writer.publish(created.ref()).status() == Status::ok);
}

TEST_CASE("publish works after readers closed writing, and needs the right to write") {
  World world(private_config());
  Client writer = world.client(1000), reader = world.client(1000);
  Created created = writer.create();
  writer.ready(created.ref());
  Attached attached = reader.attach_id(created.ref());
  CHECK(reader.publish(created.ref()).status() == Status::denied);
  Mapping readers = std::move(*Mapping::map(attached.memory.get(), 0, 4096, Access::read));
  CHECK(writer.publish(created.ref()).status() == Status::ok);
}

TEST_CASE("a descriptor that cannot be reopened leaves an attach and a publish undone") {
  World world(private_config());
  Client writer = world.client(1000), reader = world.client(1000);
  Created created = writer.create();
  writer.ready(created.ref());
  fault::clear();
  fault::inject(fault::Call::reopen, EMFILE);
  CHECK(reader.attach_id(created.ref()).status == Status::no_descriptors);
  CHECK(reader.status().leases == 1);
  fault::inject(fault::Call::reopen, EMFILE);
  CHECK(writer.publish(created.ref()).status() == Status::no_descriptors);
  CHECK((*sys::seals(created.memory.get()) & F_SEAL_WRITE) == 0);
  fault::clear();
  CHECK(writer.publish(created.ref()).status() == Status::ok);
}

TEST_CASE("a read-only attach that is refused has not closed writing") {
  using shmb::daemon::Config;
  Config config = private_config();
  config.limits.session_leases = 1;
  World world(config);
  Client writer = world.client(1000), reader = world.client(1000), late = world.client(1000);
  Created created = writer.create(), other = reader.create();
  writer.ready(created.ref());
  auto still_open = [&] {
    CHECK((*sys::seals(created.memory.get()) & F_SEAL_FUTURE_WRITE) == 0);
    shmbw_list wish{};
    wish.region.id = created.ref().id;
    auto row = writer.rows<shmbw_region_record>(SHMBW_TABLE_REGIONS, wish).at(0);
    CHECK((row.flags & SHMBW_REGION_WRITE_OPEN) != 0);
    CHECK(row.holders == 1);
    Attached second = late.attach_id(created.ref(), kWrite);
    CHECK(second.status == Status::ok);
    late.release(created.ref());
  };
  SUBCASE("its limit of leases") {
    CHECK(reader.attach_id(created.ref()).status == Status::limit);
    CHECK(reader.attach_id(created.ref(), kRead, SHMBW_ATTACH_NO_FD).status == Status::limit);
    still_open();
  }
  SUBCASE("no descriptor to reopen it") {
    reader.release(other.ref());
    {
      harness::Injected full(fault::Call::reopen, EMFILE);
      CHECK(reader.attach_id(created.ref()).status == Status::no_descriptors);
    }
    CHECK(reader.create().status == Status::ok);  // the one lease was not used up
    still_open();
  }
  SUBCASE("the seal itself fails") {
    reader.release(other.ref());
    {
      harness::Injected broken(fault::Call::add_seals, EACCES);
      Attached refused = reader.attach_id(created.ref());
      CHECK(refused.status == Status::system);
      CHECK(!refused.memory);
    }
    still_open();
    CHECK(reader.attach_id(created.ref()).status == Status::ok);
    CHECK((*sys::seals(created.memory.get()) & F_SEAL_FUTURE_WRITE) != 0);
  }
}

TEST_CASE("a region whose writer sealed its seals cannot be made read-only, and publish says so") {
  World world(private_config());
  Client writer = world.client(1000), reader = world.client(1000);
  Created created = writer.create();
  writer.ready(created.ref());
  REQUIRE(sys::add_seals(created.memory.get(), F_SEAL_SEAL));
  CHECK(reader.attach_id(created.ref()).status == Status::unsupported);
  CHECK(writer.publish(created.ref()).status() == Status::unsupported);
}

TEST_CASE("only a writer's word about the pages counts") {
  World world(system_config());
  Client writer = world.client(1000), reader = world.client(1000);
  Created created = writer.create();
  CHECK(reader.attach_id(created.ref()).status == Status::ok);
  auto stale = created.ref();
  stale.generation = 2;
  writer.ready(stale, SHMBW_PAGE_KIND_SMALL);
  reader.ready(created.ref(), SHMBW_PAGE_KIND_MIXED);
  CHECK(writer.rows<shmbw_region_record>(SHMBW_TABLE_REGIONS).at(0).page_kind == SHMBW_PAGE_KIND_UNKNOWN);
  writer.ready(created.ref(), 77);
  CHECK(writer.rows<shmbw_region_record>(SHMBW_TABLE_REGIONS).at(0).page_kind == SHMBW_PAGE_KIND_UNKNOWN);
  writer.ready(created.ref(), SHMBW_PAGE_KIND_SMALL);
  auto row = writer.rows<shmbw_region_record>(SHMBW_TABLE_REGIONS).at(0);
  CHECK(row.page_kind == SHMBW_PAGE_KIND_SMALL);
  CHECK(row.state == SHMBW_REGION_STATE_READY);
}

TEST_CASE("a forked child copies its parent's leases, with map_write also where writing is closed") {
  World world(private_config());
  Client parent = world.client(1000), reader = world.client(1000);
  Created created = parent.create();
  parent.ready(created.ref());
  CHECK(reader.attach_id(created.ref()).status == Status::ok);
  Client child = world.silent(1000);
  REQUIRE(child.hello({.fork_session = parent.id, .fork_secret = parent.secret}).status() == Status::ok);
  CHECK(child.inherit(created.ref(), kWrite).status == Status::ok);
  auto rows = child.rows<shmbw_region_record>(SHMBW_TABLE_REGIONS);
  CHECK(rows.at(0).writers == 2);
  CHECK(rows.at(0).holders == 3);
  parent.die();
  CHECK(child.status().regions == 1);
  CHECK(child.publish(created.ref()).status() == Status::ok);
  // No more than the source has, not without a source, and not after its end.
  Client stranger = world.client(1000);
  CHECK(stranger.inherit(created.ref()).status == Status::not_found);
  CHECK(child.inherit(created.ref()).status == Status::not_found);
}

TEST_CASE("inherit gives no right that the parent has not, and of an unmapped writer the child is unmapped too") {
  World world(private_config());
  Client parent = world.client(1000), reader = world.client(1000);
  Created created = reader.create({.rights = kWrite});
  CHECK(parent.attach_id(created.ref(), kWrite).status == Status::ok);
  Client child = world.silent(1000);
  child.hello({.fork_session = parent.id, .fork_secret = parent.secret});
  CHECK(child.inherit(created.ref(), kAll).status == Status::denied);
  CHECK(child.inherit(created.ref(), 1U << 10).status == Status::unknown_flags);
  CHECK(child.inherit(created.ref()).status == Status::ok);
  reader.ready(created.ref());
  parent.ready(created.ref());
  CHECK(reader.attach_id(created.ref()).status == Status::not_ready);
  child.ready(created.ref());
  CHECK(reader.attach_id(created.ref()).status == Status::ok);
}

TEST_CASE("publish is refused while another session has a write lease on the region and has not mapped it yet") {
  enum class Way { reports, maps_later, dies, releases };
  for (bool system : {false, true})
    for (const Way way : {Way::reports, Way::maps_later, Way::dies, Way::releases}) {
      CAPTURE(system);
      CAPTURE(static_cast<int>(way));
      World world(system ? system_config() : private_config());
      Client creator = world.client(1000), writer = world.client(1000);
      Created created = creator.create();
      REQUIRE(writer.attach_id(created.ref(), kWrite).status == Status::ok);
      writer.ready(created.ref());
      Packet& refused = writer.publish(created.ref());
      CHECK(refused.status() == Status::not_ready);
      CHECK(refused.error().sentence.find("1 other writer") != std::string::npos);
      CHECK((*sys::seals(created.memory.get()) & F_SEAL_WRITE) == 0);
      writer.watch_region(created.ref(), SHMBW_WATCH_EVENT_READY);
      if (way == Way::reports) creator.ready(created.ref());
      if (way == Way::maps_later)
        creator.batch(SHMBW_OP_READY, std::vector<shmbw_ready>{{created.ref(), 0, 0, SHMBW_READY_UNMAPPED}});
      if (way == Way::dies) creator.die();
      if (way == Way::releases) creator.release(created.ref());
      REQUIRE(writer.link().events.size() == 1);
      CHECK(event_is(writer.link().events[0], SHMBW_EVENT_REGION_READY));
      CHECK(writer.publish(created.ref()).status() == Status::ok);
    }
}

TEST_CASE("a writer that says it maps later still blocks read-only grants, and a publish once it is lent to again") {
  World world(private_config());
  Client creator = world.client(1000), other = world.client(1000);
  Created created = creator.create();
  const auto later = [&] {
    creator.batch(SHMBW_OP_READY, std::vector<shmbw_ready>{{created.ref(), 0, 0, SHMBW_READY_UNMAPPED}});
  };
  later();
  CHECK(other.attach_id(created.ref()).status == Status::not_ready);
  REQUIRE(other.attach_id(created.ref(), kWrite).status == Status::ok);
  other.ready(created.ref());
  Attached again = creator.attach_id(created.ref(), kWrite);
  REQUIRE(again.status == Status::ok);
  CHECK(other.publish(created.ref()).status() == Status::not_ready);
  later();
  CHECK(other.publish(created.ref()).status() == Status::ok);
}

TEST_CASE("a writer that is granted the same region for reading delays no other") {
  World world(private_config());
  Client writer = world.client(1000), other = world.client(1000);
  Created created = writer.create();
  REQUIRE(other.attach_id(created.ref(), kWrite).status == Status::ok);
  writer.ready(created.ref());
  other.ready(created.ref());
  REQUIRE(other.attach_id(created.ref()).status == Status::ok);
  CHECK(world.client(1000).attach_id(created.ref()).status == Status::ok);
  CHECK(writer.publish(created.ref()).status() == Status::ok);
}
