// SPDX-License-Identifier: Apache-2.0
// Packets and descriptors on SEQPACKET sockets, with every way in which the kernel cuts them. The harness proves that
// no descriptor is left in any of these cases.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "base/compat.hpp"
#include "base/kernel.hpp"
#include "base/sys_memory.hpp"
#include "base/sys_process.hpp"
#include "base/sys_socket.hpp"
#include "tests/harness/child.hpp"
#include "tests/harness/emulator.hpp"
#include "tests/harness/injected.hpp"
#include "tests/harness/skip.hpp"
#include "tests/harness/temp_dir.hpp"

using shmb::Fd;
using shmb::fault::Call;
namespace sys = shmb::sys;

namespace {

std::span<const std::byte> bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

std::array<Fd, 2> pair() {
  auto ends = sys::seqpacket_pair();
  REQUIRE(ends);
  return std::move(*ends);
}

struct Packet {
  sys::Received received;
  std::string text;
  std::vector<Fd> fds;
};

Packet receive(const Fd& end, std::size_t room = 256) {
  Packet packet;
  std::vector<std::byte> buffer(room);
  auto received = sys::receive(end.get(), buffer, packet.fds, false);
  REQUIRE(received);
  packet.received = *received;
  packet.text.assign(reinterpret_cast<const char*>(buffer.data()), received->size);
  return packet;
}

Fd some_file() { return Fd::adopt(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

// Sends without the wrapper's checks, with the descriptors of `fds` in one control message.
void send_raw(const Fd& end, std::string_view text, std::span<const int> fds) {
  std::vector<std::byte> control(CMSG_SPACE(fds.size_bytes()));
  iovec part{const_cast<char*>(text.data()), text.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(rights), fds.data(), fds.size_bytes());
  }
  REQUIRE(::sendmsg(end.get(), &message, MSG_NOSIGNAL) == static_cast<ssize_t>(text.size()));
}

}  // namespace

TEST_CASE("an end of a socket pair is recognized, and sockets with a name, datagram sockets and files are not") {
  auto pair = sys::seqpacket_pair();
  CHECK(sys::is_pair_end((*pair)[0].get()));
  CHECK(sys::is_pair_end((*pair)[1].get()));
  int stream[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, stream) == 0);
  const Fd one = Fd::adopt(stream[0]), other = Fd::adopt(stream[1]);
  CHECK(sys::is_pair_end(one.get()));
  REQUIRE(::socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, stream) == 0);
  const Fd letter = Fd::adopt(stream[0]), box = Fd::adopt(stream[1]);
  CHECK_FALSE(sys::is_pair_end(letter.get()));
  const harness::TempDir folder;
  auto listener = sys::seqpacket_socket(true), client = sys::seqpacket_socket(false);
  CHECK_FALSE(sys::is_pair_end(client->get()));
  REQUIRE(sys::bind_path(listener->get(), folder.file("socket")));
  REQUIRE(sys::listen(listener->get(), 1));
  REQUIRE(sys::connect_path(client->get(), folder.file("socket")));
  auto accepted = sys::accept(listener->get());
  for (const int fd : {listener->get(), client->get(), accepted->get()}) CHECK_FALSE(sys::is_pair_end(fd));
  const Fd file = Fd::adopt(::open("/dev/null", O_RDWR | O_CLOEXEC));
  CHECK_FALSE(sys::is_pair_end(file.get()));
}

TEST_CASE("a packet of head and body arrives as one") {
  auto [left, right] = pair();
  REQUIRE(sys::send(left.get(), bytes("head"), bytes("body"), {}, true));
  const Packet packet = receive(right);
  CHECK(packet.text == "headbody");
  CHECK(packet.fds.empty());
  CHECK_FALSE(packet.received.truncated);
  CHECK_FALSE(packet.received.control_truncated);
  CHECK_FALSE(packet.received.bad_control);
  CHECK_FALSE(packet.received.end_of_file);
}

TEST_CASE("descriptors arrive whole, in order and closed at exec, up to 253") {
  for (const std::size_t count : {std::size_t{1}, std::size_t{2}, std::size_t{3}, sys::kMaxFdsPerMessage}) {
    CAPTURE(count);
    auto [left, right] = pair();
    std::vector<Fd> files;
    std::vector<int> numbers;
    for (std::size_t i = 0; i < count; ++i) {
      files.push_back(Fd::adopt(::memfd_create("sent", MFD_CLOEXEC)));
      numbers.push_back(files.back().get());
    }
    REQUIRE(sys::send(left.get(), bytes("x"), {}, numbers, true));
    const Packet packet = receive(right);
    REQUIRE(packet.fds.size() == count);
    CHECK_FALSE(packet.received.control_truncated);
    CHECK_FALSE(packet.received.bad_control);
    bool in_order = true, closed_at_exec = true;
    for (std::size_t i = 0; i < count; ++i) {
      in_order &= sys::file_facts(packet.fds[i].get())->inode == sys::file_facts(numbers[i])->inode;
      closed_at_exec &= (::fcntl(packet.fds[i].get(), F_GETFD) & FD_CLOEXEC) != 0;
    }
    CHECK(in_order);
    CHECK(closed_at_exec);
  }
}

TEST_CASE("254 descriptors in one packet are EINVAL and nothing is sent") {
  auto [left, right] = pair();
  const Fd file = some_file();
  const std::vector<int> numbers(sys::kMaxFdsPerMessage + 1, file.get());
  CHECK(sys::send(left.get(), bytes("x"), {}, numbers, true).error().value == EINVAL);
  std::vector<Fd> fds;
  std::byte buffer[8];
  CHECK(sys::receive(right.get(), buffer, fds, false).error().value == EAGAIN);
}

TEST_CASE("received descriptors are appended to what the caller has") {
  auto [left, right] = pair();
  const Fd file = some_file();
  const int number = file.get();
  std::vector<Fd> fds;
  std::byte buffer[8];
  for (std::size_t i = 1; i <= 3; ++i) {
    REQUIRE(sys::send(left.get(), bytes("x"), {}, {&number, 1}, true));
    REQUIRE(sys::receive(right.get(), buffer, fds, false));
    CHECK(fds.size() == i);
  }
}

TEST_CASE("a packet longer than the buffer says so and brings its descriptors") {
  auto [left, right] = pair();
  const Fd file = some_file();
  const int number = file.get();
  REQUIRE(sys::send(left.get(), bytes("0123456789"), {}, {&number, 1}, true));
  const Packet packet = receive(right, 4);
  CHECK(packet.received.truncated);
  CHECK(packet.text == "0123");
  CHECK(packet.fds.size() == 1);
}

TEST_CASE("with a full descriptor table the control data is cut, and what did arrive is owned") {
  auto child = harness::Child::run([] {
    auto ends = sys::seqpacket_pair();
    if (!ends) return 1;
    const Fd file = some_file();
    const std::vector<int> numbers(3, file.get());
    send_raw((*ends)[0], "x", numbers);
    // Room for exactly one more number.
    const Fd next = some_file();
    const rlimit tight{static_cast<rlim_t>(next.get()) + 2, 20000};
    if (::setrlimit(RLIMIT_NOFILE, &tight) != 0) return 2;
    std::vector<Fd> fds;
    std::byte buffer[8];
    auto received = sys::receive((*ends)[1].get(), buffer, fds, false);
    if (!received || !received->control_truncated || fds.size() != 1) return 3;
    fds.clear();
    return sys::event_fd() ? 0 : 4;  // the one that came was closed: its number is free again
  });
  CHECK(child.wait() == 0);
}

TEST_CASE("a message with other control data is marked, its descriptors are still owned") {
  auto [left, right] = pair();
  const int on = 1;
  REQUIRE(::setsockopt(right.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof on) == 0);
  const Fd file = some_file();
  const int number = file.get();
  send_raw(left, "x", {&number, 1});
  const Packet packet = receive(right);
  CHECK(packet.received.bad_control);
  CHECK(packet.fds.size() == 1);
}

TEST_CASE("an empty packet and a closed peer look alike, and descriptors of the empty packet are owned") {
  auto [left, right] = pair();
  const Fd file = some_file();
  const int number = file.get();
  REQUIRE(sys::send(left.get(), {}, {}, {&number, 1}, true));
  const Packet empty = receive(right);
  CHECK(empty.received.end_of_file);
  CHECK(empty.received.size == 0);
  CHECK(empty.fds.size() == 1);
  left.reset();
  CHECK(receive(right).received.end_of_file);
}

TEST_CASE("receiving without room for descriptors keeps none and tells") {
  auto [left, right] = pair();
  const Fd file = some_file();
  const int number = file.get();
  send_raw(left, "data", {&number, 1});
  std::byte buffer[8];
  auto received = sys::receive_data(right.get(), buffer);
  REQUIRE(received);
  CHECK(received->size == 4);
  CHECK(received->control_truncated);
  CHECK(sys::receive_data(right.get(), buffer).error().value == EAGAIN);
}

TEST_CASE("nothing to read without waiting is EAGAIN, and a peer that does not read is EAGAIN for the sender") {
  auto [left, right] = pair();
  std::vector<Fd> fds;
  std::byte buffer[8];
  CHECK(sys::receive(right.get(), buffer, fds, false).error().value == EAGAIN);
  int sent = 0;
  shmb::Sys<void> last;
  while ((last = sys::send(left.get(), bytes(std::string(64, 'x')), {}, {}, false)) && sent < 100'000) ++sent;
  REQUIRE_FALSE(last);
  CHECK(last.error().value == EAGAIN);
  CHECK(sent > 0);
}

TEST_CASE("writing to a closed peer is EPIPE and no signal") {
  auto [left, right] = pair();
  right.reset();
  CHECK(sys::send(left.get(), bytes("x"), {}, {}, true).error().value == EPIPE);
}

TEST_CASE("shutdown ends both directions, also for a copy of the socket") {
  auto [left, right] = pair();
  const Fd copy = std::move(*left.dup());
  REQUIRE(sys::shutdown(left.get()));
  CHECK(receive(right).received.end_of_file);
  CHECK(sys::send(copy.get(), bytes("x"), {}, {}, true).error().value == EPIPE);
  CHECK_FALSE(sys::shutdown(-1));
}

TEST_CASE("unread bytes fall to nothing once the peer has read") {
  auto [left, right] = pair();
  CHECK(sys::unread_bytes(left.get()).value() == 0);
  REQUIRE(sys::send(left.get(), bytes("hello"), {}, {}, true));
  CHECK(sys::unread_bytes(left.get()).value() > 0);
  (void)receive(right);
  CHECK(sys::unread_bytes(left.get()).value() == 0);
}

TEST_CASE("a listener at a path accepts non-blocking connections that close at exec") {
  const harness::TempDir folder;
  auto listener = sys::seqpacket_socket(true), client = sys::seqpacket_socket(false);
  REQUIRE(listener);
  REQUIRE(client);
  REQUIRE(sys::bind_path(listener->get(), folder.file("socket")));
  REQUIRE(sys::listen(listener->get(), 4));
  CHECK(sys::accept(listener->get()).error().value == EAGAIN);
  REQUIRE(sys::connect_path(client->get(), folder.file("socket")));
  auto served = sys::accept(listener->get());
  REQUIRE(served);
  CHECK((::fcntl(served->get(), F_GETFL) & O_NONBLOCK) != 0);
  CHECK((::fcntl(served->get(), F_GETFD) & FD_CLOEXEC) != 0);
  CHECK((::fcntl(client->get(), F_GETFL) & O_NONBLOCK) == 0);
  REQUIRE(sys::send(client->get(), bytes("hello"), {}, {}, true));
  CHECK(receive(*served).text == "hello");
}

TEST_CASE("paths of up to 107 bytes work, longer ones are ENAMETOOLONG, odd ones EINVAL") {
  const harness::TempDir folder;
  const std::string longest = folder.file(std::string(107 - folder.path().size() - 1, 'x'));
  REQUIRE(longest.size() == 107);
  auto listener = sys::seqpacket_socket(true);
  REQUIRE(listener);
  for (const std::string& path : {longest + "y", std::string(4096, 'z')}) {
    CHECK(sys::bind_path(listener->get(), path).error().value == ENAMETOOLONG);
    CHECK(sys::connect_path(listener->get(), path).error().value == ENAMETOOLONG);
  }
  for (const std::string& path :
       {std::string(), std::string("\0abstract", 9), folder.path() + std::string("/a\0b", 4)}) {
    CHECK(sys::bind_path(listener->get(), path).error().value == EINVAL);
    CHECK(sys::connect_path(listener->get(), path).error().value == EINVAL);
  }
  REQUIRE(sys::bind_path(listener->get(), longest));
  REQUIRE(sys::listen(listener->get(), 1));
  auto client = sys::seqpacket_socket(false);
  REQUIRE(client);
  CHECK(sys::connect_path(client->get(), longest));
}

TEST_CASE("connecting to nothing says whether the path or the listener is missing") {
  const harness::TempDir folder;
  auto client = sys::seqpacket_socket(false);
  REQUIRE(client);
  CHECK(sys::connect_path(client->get(), folder.file("none")).error().value == ENOENT);
  {
    auto listener = sys::seqpacket_socket(true);
    REQUIRE(listener);
    REQUIRE(sys::bind_path(listener->get(), folder.file("stale")));
    CHECK(sys::bind_path(sys::seqpacket_socket(true)->get(), folder.file("stale")).error().value == EADDRINUSE);
  }
  CHECK(sys::connect_path(client->get(), folder.file("stale")).error().value == ECONNREFUSED);
}

TEST_CASE("the kernel names the process, user and groups that connected") {
  const harness::TempDir folder;
  REQUIRE(::chmod(folder.path().c_str(), 0755) == 0);
  auto listener = sys::seqpacket_socket(false);
  REQUIRE(listener);
  REQUIRE(sys::bind_path(listener->get(), folder.file("socket")));
  REQUIRE(::chmod(folder.file("socket").c_str(), 0666) == 0);
  REQUIRE(sys::listen(listener->get(), 4));
  const bool other_user = harness::can_change_uid();
  const auto connect = [&] {
    auto client = sys::seqpacket_socket(false);
    if (!client || !sys::connect_path(client->get(), folder.file("socket"))) return 1;
    ::pause();
    return 0;
  };
  auto child = other_user ? harness::Child::run_as(65534, 65533, connect) : harness::Child::run(connect);
  REQUIRE(sys::poll_readable(listener->get(), 30'000'000'000).value());
  auto served = sys::accept(listener->get());
  REQUIRE(served);
  auto peer = sys::peer_credentials(served->get());
  REQUIRE(peer);
  CHECK(peer->pid == static_cast<std::uint32_t>(child.pid()));
  CHECK(peer->uid == (other_user ? 65534 : ::geteuid()));
  CHECK(peer->gid == (other_user ? 65533 : ::getegid()));
  auto groups = sys::peer_groups(served->get());
  REQUIRE(groups);
  if (other_user) CHECK(groups->empty());
  if (shmb::kernel().peer_pidfd) {
    auto pidfd = sys::peer_pidfd(served->get());
    REQUIRE(pidfd);
    CHECK(sys::pidfd_pid(pidfd->get()).value() == child.pid());
    CHECK((::fcntl(pidfd->get(), F_GETFD) & FD_CLOEXEC) != 0);
  }
}

TEST_CASE("a peer with more groups than a first guess has them all reported") {
  if (!harness::can_change_uid()) SKIP_CASE("setgroups needs root");
  if (harness::emulated()) SKIP_CASE("the emulator passes on one number of SO_PEERGROUPS");
  auto child = harness::Child::run([] {
    std::vector<gid_t> many(100);
    for (std::size_t i = 0; i < many.size(); ++i) many[i] = static_cast<gid_t>(5000 + i);
    if (::syscall(SYS_setgroups, many.size(), many.data()) != 0) return 1;
    auto ends = sys::seqpacket_pair();
    if (!ends) return 2;
    const auto groups = sys::peer_groups((*ends)[0].get());
    return groups && std::ranges::equal(*groups, many) ? 0 : 3;
  });
  CHECK(child.wait() == 0);
}

TEST_CASE("a socket that refuses descriptors gets none, and its peer gets an error") {
  if (!shmb::kernel().pass_rights) SKIP_CASE("SO_PASSRIGHTS needs Linux 6.16");
  if (harness::emulated()) SKIP_CASE("the emulator reads SO_PASSRIGHTS but does not set it");
  auto [left, right] = pair();
  REQUIRE(sys::refuse_descriptors(right.get()));
  const Fd file = some_file();
  const int number = file.get();
  CHECK(sys::send(left.get(), bytes("x"), {}, {&number, 1}, true).error().value == EPERM);
  CHECK(sys::send(left.get(), bytes("x"), {}, {}, true));
}

TEST_CASE("every socket call can be made to fail") {
  auto [left, right] = pair();
  struct Probe {
    Call call;
    bool (*works)(int);
  };
  for (const Probe& probe :
       {Probe{Call::socket, [](int) { return sys::seqpacket_socket(true).has_value(); }},
        Probe{Call::socket, [](int) { return sys::seqpacket_pair().has_value(); }},
        Probe{Call::send, [](int f) { return sys::send(f, bytes("x"), {}, {}, false).has_value(); }},
        Probe{Call::outq, [](int f) { return sys::unread_bytes(f).has_value(); }},
        Probe{Call::getsockopt, [](int f) { return sys::peer_credentials(f).has_value(); }},
        Probe{Call::getsockopt, [](int f) { return sys::peer_groups(f).has_value(); }}}) {
    CAPTURE(static_cast<int>(probe.call));
    CHECK(probe.works(left.get()));
    const harness::Injected failing(probe.call, EIO);
    CHECK_FALSE(probe.works(left.get()));
    CHECK(probe.works(left.get()));
  }
  const harness::TempDir folder;
  auto listener = sys::seqpacket_socket(true), client = sys::seqpacket_socket(false);
  REQUIRE(listener);
  REQUIRE(client);
  for (const Call call :
       {Call::bind, Call::listen, Call::connect, Call::accept, Call::receive, Call::peer_pidfd, Call::setsockopt})
    shmb::fault::inject(call, EIO);
  std::vector<Fd> fds;
  std::byte buffer[8];
  CHECK(sys::bind_path(listener->get(), folder.file("socket")).error().value == EIO);
  REQUIRE(sys::bind_path(listener->get(), folder.file("socket")));
  CHECK(sys::listen(listener->get(), 1).error().value == EIO);
  REQUIRE(sys::listen(listener->get(), 1));
  CHECK(sys::connect_path(client->get(), folder.file("socket")).error().value == EIO);
  REQUIRE(sys::connect_path(client->get(), folder.file("socket")));
  CHECK(sys::accept(listener->get()).error().value == EIO);
  CHECK(sys::accept(listener->get()));
  CHECK(sys::receive(right.get(), buffer, fds, false).error().value == EIO);
  CHECK(sys::peer_pidfd(left.get()).error().value == EIO);
  CHECK(sys::refuse_descriptors(left.get()).error().value == EIO);
  shmb::fault::inject(Call::shutdown, EIO);
  CHECK(sys::shutdown(left.get()).error().value == EIO);
  shmb::fault::clear();
}

TEST_CASE("what a socket is: family, type, whether it listens, and the path of its file") {
  const harness::TempDir folder;
  auto socket = sys::seqpacket_socket(true);
  REQUIRE(socket);
  auto facts = sys::socket_facts(socket->get());
  REQUIRE(facts);
  CHECK(facts->domain == AF_UNIX);
  CHECK(facts->type == SOCK_SEQPACKET);
  CHECK_FALSE(facts->listening);
  CHECK(facts->path == "");
  REQUIRE(sys::bind_path(socket->get(), folder.file("socket")));
  REQUIRE(sys::listen(socket->get(), 1));
  facts = sys::socket_facts(socket->get());
  REQUIRE(facts);
  CHECK(facts->listening);
  CHECK(facts->path == folder.file("socket"));
  auto other = sys::event_fd();
  REQUIRE(other);
  CHECK(sys::socket_facts(other->get()).error().value == ENOTSOCK);
}

TEST_CASE("a datagram socket goes to a path or to an abstract name, and to nothing else") {
  CHECK(sys::datagram_socket_to("").error().value == EINVAL);
  CHECK(sys::datagram_socket_to("@").error().value == EINVAL);
  CHECK(sys::datagram_socket_to("relative").error().value == EINVAL);
  CHECK(sys::datagram_socket_to("/" + std::string(200, 'x')).error().value == ENAMETOOLONG);
  CHECK(sys::datagram_socket_to("/nowhere/at-all").error().value == ENOENT);
  CHECK(sys::datagram_socket_to("@shmbroker-no-such-name").error().value == ECONNREFUSED);
}
