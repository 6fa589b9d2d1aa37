// SPDX-License-Identifier: Apache-2.0
// Packets with descriptors over a real socket: what is whole arrives whole, what is broken leaves no descriptor behind.
// The harness counts descriptors around each case.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <filesystem>

#include "base/fault.hpp"
#include "base/sys_process.hpp"
#include "base/sys_socket.hpp"
#include "proto/packet.hpp"
#include "tests/harness/proc.hpp"

namespace {

using namespace shmb;
using namespace shmb::wire;
using Kind = Incoming::Kind;

struct Line {
  Line() {
    auto pair = sys::seqpacket_pair();
    REQUIRE(pair);
    ends = std::move(*pair);
    const int large = 1 << 20;
    setsockopt(ends[0].get(), SOL_SOCKET, SO_SNDBUF, &large, sizeof large);
  }
  // A STATUS request that says `said` descriptors and carries `sent`.
  void send(std::size_t said, std::size_t sent, std::size_t text = 0) {
    Writer writer(memory);
    writer.begin(SHMBW_OP_STATUS, 5, Status::ok, shmbw_status{});
    writer.text(std::string(text, 't'));
    Bytes packet = writer.finish(said);
    REQUIRE_FALSE(packet.empty());
    send_raw(packet, sent);
  }
  void send_raw(Bytes packet, std::size_t descriptors) {
    std::vector<int> fds(descriptors, ends[0].get());
    REQUIRE(sys::send(ends[0].get(), packet, {}, fds, false));
  }
  Incoming receive(std::size_t room = SHMBW_MAX_MESSAGE) {
    return receive_packet(ends[1].get(), std::span(memory).first(room), Direction::request, false);
  }
  std::array<Fd, 2> ends;
  std::vector<std::byte> memory = std::vector<std::byte>(SHMBW_MAX_MESSAGE + 8);
};

struct DescriptorLimit {
  explicit DescriptorLimit(rlim_t soft) {
    getrlimit(RLIMIT_NOFILE, &before);
    rlimit now = before;
    now.rlim_cur = soft;
    REQUIRE(setrlimit(RLIMIT_NOFILE, &now) == 0);
  }
  ~DescriptorLimit() { setrlimit(RLIMIT_NOFILE, &before); }
  rlimit before;
};

TEST_CASE("a packet arrives with 0, 1 and 253 descriptors, each close-on-exec") {
  DescriptorLimit limit(1024);
  for (std::size_t count : {0, 1, 253}) {
    Line line;
    line.send(count, count, 3);
    Incoming incoming = line.receive();
    CAPTURE(count);
    REQUIRE(incoming.kind == Kind::packet);
    CHECK(incoming.view.header.tag == 5);
    CHECK(incoming.view.fixed.size() == sizeof(shmbw_status));
    CHECK(incoming.view.rest.size() == 3);
    REQUIRE(incoming.fds.size() == count);
    for (const Fd& fd : incoming.fds) CHECK((fcntl(fd.get(), F_GETFD) & FD_CLOEXEC) != 0);
    CHECK(line.receive().kind == Kind::would_block);
  }
}

TEST_CASE("a wrong count of descriptors is malformed and closes those that came") {
  for (auto [said, sent] : {std::pair{0, 1}, {1, 0}, {1, 2}, {2, 1}, {3, 200}}) {
    Line line;
    line.send(static_cast<std::size_t>(said), static_cast<std::size_t>(sent));
    const long before = harness::open_descriptors();
    Incoming incoming = line.receive();
    CHECK(incoming.kind == Kind::malformed);
    CHECK_FALSE(incoming.descriptors_lost);
    CHECK(incoming.reason == malformed_text(Malformed::fd_count));
    CHECK(incoming.fds.empty());
    CHECK(harness::open_descriptors() == before);
  }
}

TEST_CASE("descriptors cut off by a full table: those that fitted are closed, and the packet says what happened") {
  for (rlim_t fitting : {0, 1, 3}) {
    Line line;
    line.send(5, 5);
    const long before = harness::open_descriptors();
    // The lowest free number is what the limit counts, not how many are open.
    const int lowest = fcntl(0, F_DUPFD_CLOEXEC, 0);
    REQUIRE(lowest >= 0);
    close(lowest);
    Incoming incoming;
    {
      DescriptorLimit limit(static_cast<rlim_t>(lowest) + fitting);
      incoming = line.receive();
    }
    CAPTURE(fitting);
    CHECK(incoming.kind == Kind::malformed);
    CHECK(incoming.descriptors_lost);
    CHECK(incoming.reason.find("descriptor table full") != std::string::npos);
    CHECK(incoming.view.header.tag == 5);  // the bytes arrived: a client can give back what they grant
    CHECK(incoming.view.header.n_fds == 5);
    CHECK(incoming.fds.empty());
    CHECK(harness::open_descriptors() == before);
  }
}

TEST_CASE("a packet that lost its descriptors and is broken besides shows nothing of itself") {
  Line line;
  line.send_raw(std::vector<std::byte>(40), 2);
  const int lowest = fcntl(0, F_DUPFD_CLOEXEC, 0);
  close(lowest);
  DescriptorLimit limit(static_cast<rlim_t>(lowest));
  Incoming incoming = line.receive();
  CHECK(incoming.kind == Kind::malformed);
  CHECK(incoming.descriptors_lost);
  CHECK(incoming.view.header.size == 0);
  CHECK(incoming.view.rest.empty());
}

TEST_CASE("a packet longer than the buffer is malformed and closes what it carried") {
  Line line;
  line.send(2, 2, 100);
  const long before = harness::open_descriptors();
  Incoming incoming = line.receive(64);
  CHECK(incoming.kind == Kind::malformed);
  CHECK(incoming.reason == "packet longer than 64 bytes");
  CHECK(harness::open_descriptors() == before);
}

TEST_CASE("a broken frame is malformed, whatever came with it") {
  Line line;
  std::vector<std::byte> short_packet(23);
  line.send_raw(short_packet, 4);
  const long before = harness::open_descriptors();
  Incoming incoming = line.receive();
  CHECK(incoming.kind == Kind::malformed);
  CHECK(incoming.reason == malformed_text(Malformed::short_header));
  CHECK(harness::open_descriptors() == before);
}

TEST_CASE("an empty packet ends the connection, with descriptors it is malformed") {
  Line plain;
  plain.send_raw({}, 0);
  CHECK(plain.receive().kind == Kind::end_of_file);
  Line loaded;
  loaded.send_raw({}, 2);
  const long before = harness::open_descriptors();
  Incoming incoming = loaded.receive();
  CHECK(incoming.kind == Kind::malformed);
  CHECK(harness::open_descriptors() == before);
}

TEST_CASE("a control message of another kind is malformed") {
  Line line;
  const int on = 1;
  REQUIRE(setsockopt(line.ends[1].get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof on) == 0);
  line.send(0, 0);
  CHECK(line.receive().kind == Kind::malformed);
  line.send(1, 1);
  const long before = harness::open_descriptors();
  CHECK(line.receive().kind == Kind::malformed);
  CHECK(harness::open_descriptors() == before);
}

TEST_CASE("the end of the connection differs from an empty queue, also when our packets were left unread") {
  Line line;
  CHECK(line.receive().kind == Kind::would_block);
  line.ends[0].reset();
  CHECK(line.receive().kind == Kind::end_of_file);

  Line reset;
  std::byte byte{1};
  REQUIRE(sys::send(reset.ends[1].get(), std::span(&byte, 1), {}, {}, false));
  reset.ends[0].reset();  // with one packet unread: the next recvmsg says ECONNRESET
  CHECK(reset.receive().kind == Kind::end_of_file);
}

TEST_CASE("packets that a peer sent before it closed are read, also when it left our packets unread") {
  Line line;
  std::byte byte{1};
  REQUIRE(sys::send(line.ends[1].get(), std::span(&byte, 1), {}, {}, false));
  line.send(0, 0);
  line.send(0, 0);
  line.ends[0].reset();
  CHECK(line.receive().kind == Kind::packet);
  CHECK(line.receive().kind == Kind::packet);
  CHECK(line.receive().kind == Kind::end_of_file);
}

TEST_CASE("a failing recvmsg is reported with its error, and what passes is not a failure") {
  Line line;
  fault::inject(fault::Call::receive, EIO);
  Incoming incoming = line.receive();
  CHECK(incoming.kind == Kind::malformed);
  CHECK(incoming.reason.find("EIO") != std::string::npos);
  fault::inject(fault::Call::receive, ECONNRESET, 1, 2);  // one is read past
  CHECK(line.receive().kind == Kind::end_of_file);
  for (const int passes : {EAGAIN, ENOMEM, ENOBUFS}) {
    fault::inject(fault::Call::receive, passes);
    CHECK(line.receive().kind == Kind::would_block);
  }
  fault::clear();
  line.send(0, 0);
  CHECK(line.receive().kind == Kind::packet);
}

TEST_CASE("the direction decides which op bits are whole") {
  Line line;
  Writer writer(line.memory);
  writer.begin_empty(SHMBW_REPLY | SHMBW_OP_STATUS, 5, Status::ok);
  line.send_raw(writer.finish(0), 0);
  CHECK(line.receive().kind == Kind::malformed);
  writer.begin_empty(SHMBW_REPLY | SHMBW_OP_STATUS, 5, Status::ok);
  line.send_raw(writer.finish(0), 0);
  CHECK(receive_packet(line.ends[1].get(), line.memory, Direction::from_broker, true).kind == Kind::packet);
}

}  // namespace
