// SPDX-License-Identifier: Apache-2.0
// Regions through the library against a real broker, on every engine.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>

#include "base/sys_process.hpp"
#include "client/region/populate.hpp"
#include "client/session/views.hpp"
#include "tests/harness/child.hpp"
#include "tests/harness/injected.hpp"
#include "tests/harness/raw_client.hpp"
#include "tests/harness/sanitizer.hpp"
#include "tests/harness/skip.hpp"
#include "tests/support/session.hpp"
#include "tests/support/until.hpp"

using namespace support;
using namespace shmb;
using namespace shmb::client;

namespace {

harness::BrokerOptions engine(const std::string& name) {
  harness::BrokerOptions options;
  options.engine = name;
  return options;
}

bool all_zero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace

TEST_CASE("a region is created, attached, written, published and read, and its descriptor is closed after mapping") {
  for (const std::string& name : harness::engines()) {
    CAPTURE(name);
    const harness::BrokerFixture broker(engine(name));
    auto session = open(broker), other = open(broker);
    must(other->join_group("#" + std::to_string(must(create_region(session, named("seed", 1)))->facts().group), 0,
                           Deadline::after(0)));
    auto region = must(create_region(session, named("kv", 3 << 20)));
    CHECK(region->facts().length == 3 << 20);
    CHECK(region->facts().bytes == 4 << 20);
    CHECK(all_zero(region->bytes()));
    std::strcpy(reinterpret_cast<char*>(region->data()), "hello");

    auto writer = must(attach_region(other, at("kv", kReadWrite)));
    CHECK(std::strcmp(reinterpret_cast<char*>(writer->data()), "hello") == 0);
    std::strcpy(reinterpret_cast<char*>(writer->data()), "world");
    CHECK(std::strcmp(reinterpret_cast<char*>(region->data()), "world") == 0);
    must(writer->release(0));

    must(region->publish(Deadline::after(0)));
    CHECK(region->facts().state == SHMBW_REGION_STATE_PUBLISHED);
    CHECK(std::strcmp(reinterpret_cast<char*>(region->data()), "world") == 0);
    auto reader = must(attach_region(other, at("kv")));
    CHECK(std::strcmp(reinterpret_cast<char*>(reader->data()), "world") == 0);
    CHECK(status_of(attach_region(other, at("kv", kReadWrite))) == Status::write_closed);
    CHECK(status_of(region->publish(Deadline::after(0))) == Status::invalid);
    must(reader->release(0));
    must(region->release(kReleaseUnname));
    CHECK(status_of(attach_region(other, at("kv"))) == Status::not_found);
    must(unname(*session, must(Target::at("seed")), Deadline::after(0)));
  }
}

TEST_CASE("publishing while a forked child maps the region is refused, and the writer can go on writing") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto region = must(create_region(session, named("", 8192)));
  const harness::Gate go;
  auto child = harness::Child::run([&] {
    go.wait();
    return 0;
  });
  CHECK(status_of(region->publish(Deadline::after(0))) == Status::still_mapped);
  REQUIRE(region->data() != nullptr);
  region->data()[0] = std::byte{7};
  go.open();
  CHECK(child.wait() == 0);
  must(region->publish(Deadline::after(0)));
  CHECK(region->data()[0] == std::byte{7});
}

TEST_CASE("sizes from 2^47 are refused with a sentence, one byte is a page") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  for (std::uint64_t length : {std::uint64_t{1} << 47, std::uint64_t{1} << 63, UINT64_MAX}) {
    auto refused = create_region(session, named("", length));
    CHECK(status_of(refused) == Status::invalid);
    CHECK(refused.error().sentence.size() > 10);
  }
  auto one = must(create_region(session, named("", 1)));
  CHECK(one->facts().length == 1);
  CHECK(one->facts().bytes == 4096);
  CHECK(status_of(create_region(session, named("a/b", 1))) == Status::invalid);
  CHECK(status_of(create_region(session, named(".hidden", 1))) == Status::invalid);
  CHECK(status_of(create_region(session, named(std::string(97, 'a'), 1))) == Status::invalid);
}

TEST_CASE("batches of 253 and more travel in as few packets as they need, and elements fail one by one") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  std::vector<CreateItem> items;
  for (int i = 0; i < 600; ++i) items.push_back(named("r" + std::to_string(i), 4096));
  items[5].length = UINT64_MAX;
  items[300].name = "r1";  // taken in another packet
  auto made = create_regions(session, items, 0);
  REQUIRE(made.size() == 600);
  int good = 0;
  for (auto& one : made) good += one ? 1 : 0;
  CHECK(good == 598);
  CHECK(status_of(made[5]) == Status::invalid);
  CHECK(status_of(made[300]) == Status::exists);
  std::vector<AttachItem> wanted;
  for (int i = 0; i < 253; ++i) wanted.push_back(at("r" + std::to_string(i), kReadWrite));
  auto attached = attach_regions(session, wanted, 0);
  for (int i = 0; i < 253; ++i) {
    CAPTURE(i);
    CHECK(status_of(attached[i]) == (i == 5 ? Status::not_found : Status::ok));
  }
  for (auto& one : made)
    if (one) must((*one)->release(kReleaseUnname));
}

TEST_CASE("recycled memory comes back zeroed, or as it was where that was asked for") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto keeper = must(create_region(session, named("", 4096)));  // the group lives on
  for (std::uint64_t length : {std::uint64_t{2 << 20}, std::uint64_t{5 << 20}}) {
    CAPTURE(length);
    auto first = must(create_region(session, named("", length)));
    std::memset(first->data(), 0x5a, length);
    must(first->release(0));
    auto second = must(create_region(session, named("", length)));
    CHECK(second->facts().recycled);
    CHECK(all_zero(second->bytes()));
    std::memset(second->data(), 0x5a, length);
    must(second->release(0));
    auto item = named("", length);
    item.flags = SHMBW_CREATE_UNINITIALISED;
    auto third = must(create_region(session, item));
    CHECK(third->facts().recycled);
    CHECK(third->data()[length - 1] == std::byte{0x5a});
    must(third->release(kReleaseNoRecycle));
    auto fourth = must(create_region(session, named("", length)));
    CHECK_FALSE(fourth->facts().recycled);
    must(fourth->release(kReleaseNoRecycle));
  }
}

TEST_CASE("memory that a process may still reach is never recycled: a descriptor outside, a child forked since") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto keeper = must(create_region(session, named("", 4096)));
  SUBCASE("a descriptor was handed out") {
    auto region = must(create_region(session, named("", 2 << 20)));
    auto fd = must(region->descriptor(Deadline::after(0)));
    must(region->release(0));
    CHECK_FALSE(must(create_region(session, named("", 2 << 20)))->facts().recycled);
  }
  SUBCASE("a descriptor was handed out by one of two handles, the other is released last") {
    auto region = must(create_region(session, named("", 2 << 20)));
    AttachItem again;
    again.target = Target::with_id(region->ref());
    again.rights = kReadWrite;
    auto second = must(attach_region(session, again));
    auto fd = must(region->descriptor(Deadline::after(0)));
    must(region->release(0));
    must(second->release(0));
    CHECK_FALSE(must(create_region(session, named("", 2 << 20)))->facts().recycled);
  }
  SUBCASE("a part of it was mapped and unmapped again: no process reaches it") {
    auto region = must(create_region(session, named("", 2 << 20)));
    void* part = must(region->map_part(0, 4096, Access::read_write, Deadline::after(0)));
    must(region->unmap_part(part, 4096));
    must(region->release(0));
    CHECK(must(create_region(session, named("", 2 << 20)))->facts().recycled);
  }
  SUBCASE("a child was forked") {
    auto region = must(create_region(session, named("", 2 << 20)));
    const harness::Gate go;
    auto child = harness::Child::run([&] {
      go.wait();
      return region->data()[0] == std::byte{42} ? 0 : 1;
    });
    region->data()[0] = std::byte{42};
    must(region->release(0));
    auto next = must(create_region(session, named("", 2 << 20)));
    CHECK_FALSE(next->facts().recycled);
    go.open();
    CHECK(child.wait() == 0);
  }
}

TEST_CASE("parts are mapped besides the whole, on an unmapped handle too") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto item = named("big", 8 << 20);
  item.flags = kCreateUnmapped;
  auto region = must(create_region(session, item));
  CHECK(region->data() == nullptr);
  CHECK(region->bytes().empty());
  void* part = must(region->map_part(4 << 20, 4096, Access::read_write, Deadline::after(0)));
  std::memset(part, 9, 4096);
  void* again = must(region->map_part(4 << 20, 4096, Access::read, Deadline::after(0)));
  CHECK(static_cast<unsigned char*>(again)[4095] == 9);
  CHECK(status_of(region->map_part(1, 4096, Access::read, Deadline::after(0))) == Status::invalid);
  CHECK(status_of(region->map_part(0, (8 << 20) + 1, Access::read, Deadline::after(0))) == Status::invalid);
  CHECK(status_of(region->map_part(8 << 20, 1, Access::read, Deadline::after(0))) == Status::invalid);
  CHECK(status_of(region->publish(Deadline::after(0))) == Status::still_mapped);
  CHECK(status_of(region->unmap_part(part, 0)) == Status::invalid);  // and it is there still
  must(region->unmap_part(part, 4096));
  must(region->unmap_part(again, 4096));
  must(region->publish(Deadline::after(0)));
  CHECK(status_of(region->map_part(0, 4096, Access::read_write, Deadline::after(0))) != Status::ok);
  part = must(region->map_part(4 << 20, 4096, Access::read, Deadline::after(0)));
  CHECK(static_cast<unsigned char*>(part)[0] == 9);
  must(region->unmap_part(part, 4096));
  must(region->release(kReleaseUnname));
}

TEST_CASE("a writer that maps a part for reading does not close writing") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto region = must(create_region(session, named("", 8192)));
  void* part = must(region->map_part(0, 4096, Access::read, Deadline::after(0)));
  must(region->unmap_part(part, 4096));
  AttachItem again;
  again.target = Target::with_id(region->ref(), region->facts().epoch);
  again.rights = kReadWrite;
  CHECK(status_of(attach_region(session, again)) == Status::ok);
}

TEST_CASE("attach waits for a name that comes later, and no longer than asked") {
  const harness::BrokerFixture broker;
  auto session = open(broker), other = open(broker);
  auto group = must(session->create_group({"job", 0, 0, 0, 0}, Deadline::after(0)));
  must(session->join_group(group.token, 0, Deadline::after(0)));
  must(other->join_group(group.token, 0, Deadline::after(0)));
  CHECK(status_of(attach_region(session, at("late"))) == Status::not_found);
  CHECK(status_of(attach_region(session, at("late"), 0, 50'000'000)) == Status::deadline);
  Result<Region::Handle> attached = error(Status::invalid, "");
  std::thread waiter([&] { attached = attach_region(session, at("late"), 0, 20'000'000'000); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  auto made = must(create_region(other, named("late", 4096)));
  waiter.join();
  CHECK(status_of(attached) == Status::ok);
  must(made->release(kReleaseUnname));
}

TEST_CASE("a wait for a name in another group ends with the reason when that group ends, and may begin before it") {
  const harness::BrokerFixture broker;
  auto maker = open(broker), waiting = open(broker), watcher = open(broker);
  const auto watches = [&] { return must(broker_status(*watcher, Deadline::after(0))).record.watches; };
  Result<Region::Handle> attached = error(Status::invalid, "");
  std::thread waiter([&] { attached = attach_region(waiting, at("job/late"), 0, 60'000'000'000); });
  REQUIRE(support::eventually([&] { return watches() == 1; }));
  auto group = must(maker->create_group({"job", 0, 0, 0, 0}, Deadline::after(0)));
  must(maker->join_group(group.token, 0, Deadline::after(0)));
  auto made = must(create_region(maker, named("late", 4096)));
  waiter.join();
  CHECK(status_of(attached) == Status::ok);
  must(made->release(kReleaseUnname));

  waiter = std::thread([&] { attached = attach_region(waiting, at("job/never"), 0, 60'000'000'000); });
  REQUIRE(support::eventually([&] { return watches() == 2; }));
  must(maker->leave_group(0, Deadline::after(0)));
  waiter.join();
  CHECK(status_of(attached) == Status::group_ended);
  CHECK(attached.error().sentence ==
        "group 'job' has ended while this session waited for 'never' in it: wait again if "
        "it is to be made again");
}

TEST_CASE("a reader waits until the writer has mapped the region") {
  const harness::BrokerFixture broker;
  auto session = open(broker), other = open(broker);
  auto group = must(session->create_group({"job", 0, 0, 0, 0}, Deadline::after(0)));
  must(session->join_group(group.token, 0, Deadline::after(0)));
  must(other->join_group(group.token, 0, Deadline::after(0)));
  auto item = named("slow", 8192);
  item.flags = kCreateUnmapped;
  auto writer = must(create_region(session, item));
  const Status early = status_of(attach_region(other, at("slow"), 0, 50'000'000));
  CHECK((early == Status::deadline || early == Status::not_ready));  // the latter where it had no time left to wait
  fault::clear();
  CHECK(status_of(attach_region(other, at("slow"), 0, 400'000'000)) != Status::ok);
  CHECK(fault::count(fault::Call::send) < 20);  // it waits for an event, and does not ask again and again
  Result<Region::Handle> attached = error(Status::invalid, "");
  std::thread waiter([&] { attached = attach_region(other, at("slow"), 0, 20'000'000'000); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  void* part = must(writer->map_part(0, 8192, Access::read_write, Deadline::after(0)));
  waiter.join();
  CHECK(status_of(attached) == Status::ok);
  must(writer->unmap_part(part, 8192));
  must(writer->release(kReleaseUnname));
}

TEST_CASE("too little address space is an error and leaves no lease behind") {
  const harness::BrokerFixture broker;
  const std::string socket = broker.socket();
  if (harness::kAddressSanitizer || harness::kThreadSanitizer) SKIP_CASE("a sanitizer needs all of the address space");
  auto child = harness::Child::run([&] {
    auto session = try_open(socket);
    if (!session) return 1;
    rlimit limit;
    ::getrlimit(RLIMIT_AS, &limit);
    // From what earlier cases have left mapped.
    std::uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    limit.rlim_cur = pages * 4096 + (std::uint64_t{256} << 20);
    ::setrlimit(RLIMIT_AS, &limit);
    auto refused = create_region(*session, named("huge", std::uint64_t{700} << 20));
    if (refused || refused.error().status != Status::no_memory || refused.error().system_errno != ENOMEM) return 2;
    for (const char* part : {"mapping", "address space", "ulimit -v"})
      if (refused.error().sentence.find(part) == std::string::npos) return 3;
    auto listed = list_regions(**session, {}, Deadline::after(0));
    if (!listed) return 4;
    for (const RegionRow& row : listed->rows)  // a big one is closed on the broker's helper thread
      if (row.record.state != SHMBW_REGION_STATE_FREEING) return 4;
    auto small = create_region(*session, named("", 4096));
    return small ? 0 : 5;
  });
  CHECK(child.wait() == 0);
}

TEST_CASE("a full descriptor table is an error, leaves no lease behind, and the session goes on") {
  const harness::BrokerFixture broker;
  const std::string socket = broker.socket();
  auto child = harness::Child::run([&] {
    auto session = try_open(socket);
    if (!session) return 1;
    std::vector<int> hoard;
    for (int fd; (fd = ::fcntl(1, F_DUPFD_CLOEXEC, 3)) >= 0;) hoard.push_back(fd);
    auto refused = create_region(*session, named("kv", 4096));
    if (refused || refused.error().status != Status::no_descriptors) return 2;
    if (refused.error().sentence.find("ulimit -n") == std::string::npos) return 3;
    ::close(hoard.back());
    hoard.pop_back();
    auto listed = list_regions(**session, {}, Deadline::after(0));
    if (!listed) return 4;
    if (!listed->rows.empty()) return 5;
    auto fine = create_region(*session, named("kv", 4096));
    if (!fine) return 6;
    if (!(*fine)->release(kReleaseUnname)) return 7;
    return 0;
  });
  CHECK(child.wait() == 0);
}

TEST_CASE("5,000 live regions fit under a limit of 1,024 descriptors") {
  const harness::BrokerFixture broker;
  const std::string socket = broker.socket();
  auto child = harness::Child::run([&] {
    const rlimit limit{1024, 1024};
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
    auto session = try_open(socket);
    if (!session) return 2;
    std::vector<CreateItem> items(5000, named("", 4096));
    auto made = create_regions(*session, items, 0);
    for (std::size_t i = 0; i < made.size(); ++i) {
      if (!made[i]) return 3;
      std::memcpy((*made[i])->data(), &i, sizeof i);
    }
    for (std::size_t i = 0; i < made.size(); ++i)
      if (std::memcmp((*made[i])->data(), &i, sizeof i) != 0) return 4;
    auto listed = list_regions(**session, {}, Deadline::after(0));
    return listed && listed->rows.size() == 5000 && listed->total_count == 5000 ? 0 : 5;
  });
  CHECK(child.wait() == 0);
}

TEST_CASE("a ticket carries rights to another group, once, and not more than it says") {
  const harness::BrokerFixture broker;
  auto session = open(broker), stranger = open(broker);
  auto region = must(create_region(session, named("", 8192)));
  region->data()[0] = std::byte{3};
  auto ticket = must(region->make_ticket(SHMBW_RIGHT_MAP_READ, 0, 0, Deadline::after(0)));
  AttachItem item;
  item.target = Target::with_ticket(ticket.token);
  item.rights = kReadWrite;
  CHECK(status_of(attach_region(stranger, item)) == Status::denied);
  item.rights = 0;
  auto reader = must(attach_region(stranger, item));
  CHECK(reader->data()[0] == std::byte{3});
  CHECK(status_of(attach_region(stranger, item)) == Status::not_found);
  item.target.ticket.bytes[3] ^= 1;
  CHECK(status_of(attach_region(stranger, item)) == Status::not_found);
  CHECK(status_of(reader->make_ticket(SHMBW_RIGHT_MAP_READ, 0, 0, Deadline::after(0))) == Status::denied);
}

TEST_CASE("an identity of another life of the broker, or of another generation, is stale") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto region = must(create_region(session, named("", 8192)));
  AttachItem item;
  item.rights = kReadWrite;
  item.target = Target::with_id(region->ref(), region->facts().epoch + 1);
  CHECK(status_of(attach_region(session, item)) == Status::stale);
  item.target = Target::with_id({region->ref().id, region->ref().generation + 1, 0}, 0);
  CHECK(status_of(attach_region(session, item)) == Status::stale);
  item.target = Target::with_id({region->ref().id, 0, 0}, 0);
  CHECK(status_of(attach_region(session, item)) == Status::ok);
  item.target = Target::with_id({region->ref().id + 100, 0, 0}, 0);
  CHECK(status_of(attach_region(session, item)) == Status::not_found);
}

TEST_CASE("a handle without the right to write cannot write, publish or map a part for writing") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto writer = must(create_region(session, named("kv", 8192)));
  auto reader = must(attach_region(session, at("kv")));
  CHECK(status_of(reader->publish(Deadline::after(0))) == Status::denied);
  CHECK(status_of(reader->map_part(0, 4096, Access::read_write, Deadline::after(0))) == Status::denied);
  CHECK(::mprotect(reader->data(), 4096, PROT_READ | PROT_WRITE) == -1);
  auto fd = must(reader->descriptor(Deadline::after(0)));
  CHECK((::fcntl(fd.get(), F_GETFL) & O_ACCMODE) == O_RDONLY);
  CHECK((::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC) != 0);
  // A read-only grant closed writing for newcomers, not for the writer's mapping.
  writer->data()[0] = std::byte{1};
  CHECK(reader->data()[0] == std::byte{1});
  CHECK(status_of(writer->map_part(0, 4096, Access::read_write, Deadline::after(0))) == Status::write_closed);
  void* part = must(writer->map_part(0, 4096, Access::read, Deadline::after(0)));
  must(writer->unmap_part(part, 4096));
  must(writer->release(kReleaseUnname));
}

TEST_CASE("taking the name of a region in use away does not close writing to it") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto region = must(create_region(session, named("kv", 8192)));
  must(unname(*session, must(Target::at("kv")), Deadline::after(0)));
  AttachItem again;
  again.target = Target::with_id(region->ref());
  again.rights = kReadWrite;
  CHECK(status_of(attach_region(session, again)) == Status::ok);
  CHECK(status_of(unname(*session, must(Target::at("kv")), Deadline::after(0))) == Status::not_found);
  auto next = must(create_region(session, named("kv", 8192)));
  auto reader = must(attach_region(session, at("kv")));
  must(unname(*session, must(Target::at("kv")), Deadline::after(0)));
  CHECK(status_of(attach_region(session, at("kv"))) == Status::not_found);
}

TEST_CASE("populating a part stays within the region") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto item = named("", 4 << 20);
  item.flags = kCreateNoPopulate;
  auto region = must(create_region(session, item));
  CHECK(region->facts().page_kind == SHMBW_PAGE_KIND_UNPOPULATED);
  CHECK(region->facts().populated == 0);
  must(region->populate(1 << 20, 10));
  CHECK(region->facts().populated == 4096);
  CHECK(status_of(region->populate(4 << 20, 1)) == Status::invalid);
  CHECK(status_of(region->populate(0, (4 << 20) + 1)) == Status::invalid);
  CHECK(status_of(region->populate(UINT64_MAX, 2)) == Status::invalid);
}

TEST_CASE("a region that is populated later says so to its broker") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto later = named("later", 4 << 20), whole = named("whole", 4 << 20);
  later.flags = kCreateNoPopulate;
  auto region = must(create_region(session, later));
  auto other = must(create_region(session, whole));
  auto kind_of = [&](const char* name) {
    return must(find_region(*session, must(names::parse_region(name)), Deadline::after(0))).record.page_kind;
  };
  CHECK(kind_of("later") == SHMBW_PAGE_KIND_UNPOPULATED);
  must(region->populate(0, 2 << 20));
  must(region->populate(2 << 20, 2 << 20));
  CHECK(region->facts().populated == 4 << 20);
  CHECK(kind_of("later") == region->facts().page_kind);
  CHECK(region->facts().page_kind != SHMBW_PAGE_KIND_UNPOPULATED);
}

TEST_CASE("a name that is given at publication is free, or another's, until then") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto item = named("n", 8192);
  item.flags = SHMBW_CREATE_NAME_AT_PUBLISH | SHMBW_CREATE_KEEP_GIVEN;
  item.keep = kForever;
  {
    auto given_up = must(create_region(session, item));
    CHECK((given_up->facts().flags & SHMBW_REGION_NAMED) == 0);
    CHECK(status_of(attach_region(session, at("n"))) == Status::not_found);
  }
  auto region = must(create_region(session, item));
  must(region->publish(Deadline::after(0)));
  CHECK((region->facts().flags & SHMBW_REGION_NAMED) != 0);
  CHECK(must(attach_region(session, at("n")))->ref().id == region->ref().id);
  CHECK(status_of(create_region(session, item)) == Status::exists);

  item.flags |= SHMBW_CREATE_REPLACE;
  {
    auto given_up = must(create_region(session, item));
    CHECK(must(attach_region(session, at("n")))->ref().id == region->ref().id);
  }
  CHECK(must(attach_region(session, at("n")))->ref().id == region->ref().id);
  auto successor = must(create_region(session, item));
  must(successor->publish(Deadline::after(0)));
  CHECK(must(attach_region(session, at("n")))->ref().id == successor->ref().id);
  CHECK(successor->ref().generation == region->ref().generation + 1);

  // Taken by somebody else between the two: nothing is published.
  auto first = named("m", 8192), second = first;
  first.flags = SHMBW_CREATE_NAME_AT_PUBLISH;
  auto late = must(create_region(session, first));
  auto taken = must(create_region(session, second));
  CHECK(status_of(late->publish(Deadline::after(0))) == Status::exists);
  CHECK(late->data() != nullptr);
  must(taken->release(kReleaseUnname));
  must(late->publish(Deadline::after(0)));
  must(unname(*session, must(Target::at("n")), Deadline::after(0)));
}

TEST_CASE("a region is published once every other writer has mapped it, and not before") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto group = must(session->create_group({"job", 0, 0, 0, 0}, Deadline::after(0)));
  must(session->join_group(group.token, 0, Deadline::after(0)));
  // A creator that has got its answer, and no more.
  auto creator = harness::RawClient::connect(broker.socket());
  REQUIRE(creator.hello().ok());
  shmbw_group_join join{};
  std::memcpy(join.token, group.token.bytes.data(), sizeof join.token);
  REQUIRE(creator.call(SHMBW_OP_GROUP_JOIN, join).ok());
  std::array<std::byte, 256> buffer;
  wire::Writer create(buffer);
  create.begin_batch<shmbw_create>(SHMBW_OP_CREATE, 900, 1);
  shmbw_create wish{};
  wish.length = 8192;
  wish.name_len = 2;
  create.element(0, wish);
  create.text("kv");
  REQUIRE(creator.send(create.finish(0)));
  auto made = creator.reply(900);
  REQUIRE(made.ok());
  REQUIRE(made.fds.size() == 1);

  auto writer = must(attach_region(session, at("kv", kReadWrite | SHMBW_RIGHT_RELEASE)));
  Result<void> refused;
  for (std::int64_t wait = 50'000'000; wait < 60'000'000'000; wait *= 2) {
    refused = writer->publish(Deadline::after(wait));
    if (status_of(refused) != Status::deadline) break;  // else the broker did not answer in time
  }
  CHECK(status_of(refused) == Status::not_ready);
  REQUIRE(writer->data() != nullptr);
  writer->data()[0] = std::byte{7};  // mapped back as before
  Result<void> published = error(Status::invalid, "");
  std::thread publishes([&] { published = writer->publish(Deadline::after(20'000'000'000)); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  auto mapping = Mapping::map(made.fds[0].get(), 0, 8192, Access::read_write);
  CHECK(mapping.has_value());
  if (mapping) {
    CHECK(mapping->data()[0] == std::byte{7});
    mapping->reset();
  }
  wire::Writer ready(buffer);
  ready.begin_batch<shmbw_ready>(SHMBW_OP_READY, 0, 1, SHMBW_HEADER_NO_REPLY);
  ready.element(0, shmbw_ready{writer->ref(), 0, SHMBW_PAGE_KIND_UNKNOWN, 0});
  CHECK(creator.send(ready.finish(0)));
  publishes.join();
  CHECK(status_of(published) == Status::ok);
  auto late = attach_region(session, at("kv", kReadWrite));
  CHECK(status_of(late) == Status::write_closed);
  CHECK(late.error().sentence.find("published") != std::string::npos);
  creator.close();
  must(writer->release(kReleaseUnname));
}

TEST_CASE("a creator that maps nothing does not delay publication, and can map read-only afterwards") {
  const harness::BrokerFixture broker;
  auto session = open(broker), other = open(broker);
  auto group = must(session->create_group({"job", 0, 0, 0, 0}, Deadline::after(0)));
  for (const auto& each : {session, other}) must(each->join_group(group.token, 0, Deadline::after(0)));
  auto item = named("kv", 8192);
  item.flags = kCreateUnmapped;
  auto creator = must(create_region(session, item));
  auto writer = must(attach_region(other, at("kv", kReadWrite)));
  must(writer->publish(Deadline::after(0)));
  auto closed = creator->map_part(0, 4096, Access::read_write, Deadline::after(0));
  CHECK(status_of(closed) == Status::write_closed);
  void* part = must(creator->map_part(0, 4096, Access::read, Deadline::after(0)));
  must(creator->unmap_part(part, 4096));
  must(creator->release(kReleaseUnname));
}
