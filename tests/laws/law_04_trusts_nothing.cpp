// SPDX-License-Identifier: Apache-2.0
// Law 4: the broker takes no lock in, and trusts no word of, memory that a client can write, asserts nothing about
// bytes a peer sent, and never reads or writes an open file description that a client also holds. One exception: the
// flag O_NONBLOCK of two exports of GPU memory, where nothing else tells them apart (base/sys_gpu.cpp).
//
// To see it fail: in daemon/serve/views.cpp, list_regions, lock the region's file before
//   sys::file_facts(region.fd.get())
// by ::flock(region.fd.get(), LOCK_EX): a client that holds such a lock stops the broker.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tests/laws/law.hpp"

using namespace laws;

namespace {

constexpr std::uint64_t kLength = 1 << 20;

// All that one region goes through in the broker, by a bystander.
void whole_life(const std::shared_ptr<Session>& bystander, const std::string& address) {
  must(bystander->ping(soon()));
  auto listed = regions(bystander);
  REQUIRE(!listed.empty());
  auto writer = must(attach_region(bystander, at(address, kReadWrite | SHMBW_RIGHT_SHARE)));
  (void)must(writer->make_ticket(SHMBW_RIGHT_MAP_READ, 1, 1'000'000, soon()));
  (void)must(writer->descriptor(soon()));
}

}  // namespace

TEST_CASE("law 4: the broker continues, whatever a client does to its copy of a descriptor") {
  on_each_engine([](BrokerFixture& broker) {
    auto session = open(broker);
    auto bystander = open(broker);
    auto region = must(create_region(session, named("shared", kLength)));
    const std::string address = "#" + std::to_string(region->facts().group) + "/shared";
    auto fd = must(region->descriptor(soon()));

    // The flags, the offset, the owner and the locks of an open file description are common to all who hold it.
    REQUIRE(::fcntl(fd.get(), F_SETFL, O_NONBLOCK | O_APPEND | O_NOATIME) == 0);
    REQUIRE(::lseek(fd.get(), static_cast<off_t>(kLength), SEEK_SET) == static_cast<off_t>(kLength));
    REQUIRE(::fcntl(fd.get(), F_SETOWN, ::getpid()) == 0);
    REQUIRE(::flock(fd.get(), LOCK_EX) == 0);
    whole_life(bystander, address);

    // A lock by another description of the same file: a process that takes one as well waits for ever.
    const Fd own = Fd::adopt(::open(("/proc/self/fd/" + std::to_string(fd.get())).c_str(), O_RDWR | O_CLOEXEC));
    REQUIRE(own);
    REQUIRE(::flock(fd.get(), LOCK_UN) == 0);
    REQUIRE(::flock(own.get(), LOCK_EX) == 0);
    struct flock record{};
    record.l_type = F_WRLCK;
    REQUIRE(::fcntl(own.get(), F_OFD_SETLK, &record) == 0);
    REQUIRE(::fcntl(own.get(), F_SETLEASE, F_WRLCK) <= 0);  // EAGAIN: others have it open
    whole_life(bystander, address);

    must(region->release(kReleaseUnname));
    fd.reset();
    auto next = must(create_region(session, named("next", kLength)));
    CHECK(next->data()[0] == std::byte{0});
    must(next->release(kReleaseUnname));
  });
}

TEST_CASE("law 4: no byte of a region means anything to the broker") {
  on_each_engine([](BrokerFixture& broker) {
    auto session = open(broker);
    auto bystander = open(broker);
    auto region = must(create_region(session, named("scribbled", kLength)));
    const std::string address = "#" + std::to_string(region->facts().group) + "/scribbled";
    const auto before = regions(bystander)[0].record;
    for (const int pattern : {0x00, 0xff, 0x7f, 0x80, 0x53}) {
      CAPTURE(pattern);
      std::memset(region->data(), pattern, kLength);
      whole_life(bystander, address);
      const auto now = regions(bystander)[0].record;
      CHECK(now.length == before.length);
      CHECK(now.bytes == before.bytes);
      CHECK(now.holders == before.holders);
      CHECK(now.state == before.state);
    }
    // Even its pages: a hole in the file is nothing that the broker could stumble over.
    REQUIRE(::madvise(region->data(), kLength, MADV_REMOVE) == 0);
    whole_life(bystander, address);
    must(region->release(kReleaseUnname));
  });
}

TEST_CASE("law 4: the broker neither keeps nor writes a descriptor that a client sends") {
  for (const char* kernel : {"", "6.1"}) {  // 6.16 refuses them at the sender
    CAPTURE(kernel);
    BrokerOptions options;
    options.kernel = kernel;
    on_each_engine(options, [](BrokerFixture& broker) {
      auto bystander = open(broker);
      const auto resting = broker.descriptors();
      RawClient client = RawClient::connect(broker.socket());
      REQUIRE(client.hello().ok());
      const Fd event = Fd::adopt(::eventfd(0, EFD_CLOEXEC));  // blocking: a full one would hold its writer
      std::uint64_t full = UINT64_MAX - 1;
      REQUIRE(::write(event.get(), &full, sizeof full) == sizeof full);
      std::vector<std::byte> buffer(256);
      wire::Writer writer(buffer);
      writer.begin(SHMBW_OP_STATUS, 9, Status::ok, shmbw_status{});
      const auto packet = writer.finish(1);
      const int fds[] = {event.get()};
      if (client.send(packet, fds)) {
        const RawPacket answer = client.receive();
        CHECK((answer.kind == RawPacket::Kind::end_of_file || answer.kind == RawPacket::Kind::failed));
      }
      client.close();
      must(bystander->ping(soon()));
      CHECK(eventually([&] { return broker.descriptors() == resting; }));
      std::uint64_t value = 0;
      REQUIRE(::read(event.get(), &value, sizeof value) == sizeof value);
      CHECK(value == full);
    });
  }
}

TEST_CASE("law 4: a client that changes the flags of its socket end stops no other client") {
  on_each_engine([](BrokerFixture& broker) {
    auto bystander = open(broker);
    RawClient client = RawClient::connect(broker.socket());
    REQUIRE(client.hello().ok());
    const int smallest = 1;
    REQUIRE(::setsockopt(client.fd(), SOL_SOCKET, SO_RCVBUF, &smallest, sizeof smallest) == 0);
    REQUIRE(::setsockopt(client.fd(), SOL_SOCKET, SO_SNDBUF, &smallest, sizeof smallest) == 0);
    REQUIRE(::fcntl(client.fd(), F_SETOWN, ::getpid()) == 0);
    REQUIRE(::shutdown(client.fd(), SHUT_RD) == 0);
    for (int i = 0; i < 10; ++i) (void)client.ask(SHMBW_OP_STATUS, shmbw_status{});
    must(bystander->ping(soon()));
    auto region = must(create_region(bystander, named("", 4096)));
  });
}
