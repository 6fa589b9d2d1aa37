// SPDX-License-Identifier: Apache-2.0
// Local sessions: the same handles without a broker.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "base/compat.hpp"
#include "base/sys_memory.hpp"
#include "client/session/views.hpp"
#include "tests/harness/child.hpp"
#include "tests/support/session.hpp"

using namespace support;
using namespace shmb;
using namespace shmb::client;

TEST_CASE("a local region is created, inherited, published and passed by descriptor") {
  auto session = must(Session::local("test"));
  CHECK(session->is_local());
  must(session->ping(Deadline::after(0)));
  auto region = must(create_region(session, named("", (3 << 20) + 5)));
  CHECK(region->facts().bytes == 4 << 20);
  CHECK(region->facts().length == (3 << 20) + 5);
  std::strcpy(reinterpret_cast<char*>(region->data()), "from the parent");
  auto child = harness::Child::run([&] {
    if (std::strcmp(reinterpret_cast<char*>(region->data()), "from the parent") != 0) return 1;
    region->data()[0] = std::byte{'F'};
    auto own = create_region(session, named("", 4096));
    return own && session->ping(Deadline::after(0)) ? 0 : 2;
  });
  CHECK(child.wait() == 0);
  CHECK(region->data()[0] == std::byte{'F'});

  auto fd = must(region->descriptor(Deadline::after(0)));
  CHECK((::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC) != 0);
  auto adopted = must(adopt_local(session, fd.get(), kReadWrite));
  adopted->data()[1] = std::byte{'R'};
  CHECK(region->data()[1] == std::byte{'R'});
  CHECK(status_of(region->publish(Deadline::after(0))) == Status::still_mapped);
  CHECK(region->data()[1] == std::byte{'R'});
  adopted.reset();
  must(region->publish(Deadline::after(0)));
  CHECK(region->data()[1] == std::byte{'R'});
  CHECK(::mprotect(region->data(), 4096, PROT_READ | PROT_WRITE) == -1);
  CHECK(status_of(adopt_local(session, fd.get(), kReadWrite)) == Status::write_closed);
  auto reader = must(adopt_local(session, fd.get(), 0));
  CHECK(reader->data()[1] == std::byte{'R'});
}

TEST_CASE("calls that need a broker are refused by name") {
  auto session = must(Session::local("test"));
  CHECK(status_of(create_region(session, named("kv", 4096))) == Status::local_only);
  CHECK(status_of(attach_region(session, at("kv"))) == Status::local_only);
  CHECK(status_of(session->create_group({}, Deadline::after(0))) == Status::local_only);
  CHECK(status_of(session->join_group(std::string("g"), 0, Deadline::after(0))) == Status::local_only);
  CHECK(status_of(session->leave_group(0, Deadline::after(0))) == Status::local_only);
  CHECK(status_of(session->wait_group(0, Deadline::after(0), Deadline::now())) == Status::local_only);
  CHECK(status_of(session->event_descriptor()) == Status::local_only);
  CHECK(status_of(session->next_event(Deadline::now())) == Status::local_only);
  CHECK(status_of(list_regions(*session, {}, Deadline::after(0))) == Status::local_only);
  auto region = must(create_region(session, named("", 4096)));
  CHECK(status_of(region->make_ticket(SHMBW_RIGHT_MAP_READ, 0, 0, Deadline::after(0))) == Status::local_only);
  CHECK(status_of(create_region(session, named("", UINT64_MAX))) == Status::invalid);
}

TEST_CASE("a descriptor that could bring a SIGBUS, or is none of memory, is not adopted") {
  auto session = must(Session::local("test"));
  auto unsealed = std::move(*sys::memfd_create("unsealed", false));
  REQUIRE(sys::truncate(unsealed.get(), 4096).has_value());
  auto refused = adopt_local(session, unsealed.get(), 0);
  CHECK(status_of(refused) == Status::invalid);
  CHECK(refused.error().sentence.find("F_SEAL_SHRINK") != std::string::npos);
  CHECK(status_of(adopt_local(session, 0, 0)) == Status::invalid);
  CHECK(status_of(adopt_local(session, -1, 0)) == Status::system);
  auto empty = std::move(*sys::memfd_create("empty", false));
  REQUIRE(sys::add_seals(empty.get(), F_SEAL_SHRINK).has_value());
  CHECK(status_of(adopt_local(session, empty.get(), 0)) == Status::invalid);
  CHECK(status_of(adopt_local(session, empty.get(), 8)) == Status::invalid);
  const harness::BrokerFixture broker;
  CHECK(status_of(adopt_local(open(broker), empty.get(), 0)) == Status::unsupported);
}

TEST_CASE("parts of a local region are mapped and unmapped") {
  auto session = must(Session::local("test"));
  auto item = named("", 1 << 20);
  item.flags = kCreateUnmapped;
  auto region = must(create_region(session, item));
  void* part = must(region->map_part(8192, 4096, Access::read_write, Deadline::after(0)));
  std::memset(part, 1, 4096);
  void* again = must(region->map_part(8192, 4096, Access::read, Deadline::after(0)));
  CHECK(static_cast<char*>(again)[4095] == 1);
  must(region->unmap_part(part, 4096));
  must(region->unmap_part(again, 4096));
}
