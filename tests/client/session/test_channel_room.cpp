// SPDX-License-Identifier: Apache-2.0
// Packets that find no room in the socket, or no memory in the kernel, are sent later.
#include <doctest/doctest.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/sys_socket.hpp"
#include "tests/client/session/channel_peer.hpp"
#include "tests/harness/child.hpp"
#include "tests/harness/injected.hpp"
#include "tests/harness/skip.hpp"

using namespace channel_tests;

TEST_CASE(
    "descriptors are sent once so many of this user are no longer under way, or the sentence says why they were not") {
  constexpr int kNone = 96;  // this kernel knows no such bound, or not for us
  const auto body = [] {
    Peer peer;
    auto stuffed = Peer::must_pair();
    rlimit files;
    ::getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = 64;
    if (::setrlimit(RLIMIT_NOFILE, &files) != 0) return 1;
    const int one = stuffed[0].get();
    const std::byte byte{1};
    int code = 0;
    for (int i = 0; i < 1000 && code == 0; ++i) {
      const auto sent = sys::send(stuffed[0].get(), {&byte, 1}, {}, std::span(&one, 1), false);
      if (!sent) code = sent.error().value;
    }
    if (code == EAGAIN || code == 0) return kNone;
    if (code != ETOOMANYREFS) return 2;
    auto packet = status_request();
    const auto refused = peer.channel.call(packet, Deadline::after(20'000'000), nullptr, std::span(&one, 1));
    if (status_of(refused) != Status::no_descriptors) return 3;
    if (refused.error().sentence.find("ulimit -n") == std::string::npos) return 4;
    std::atomic<bool> over = false;
    Result<Reply> outcome = error(Status::ok, "");
    std::thread caller([&] {
      outcome = peer.channel.call(packet, Deadline::after(kForever), nullptr, std::span(&one, 1));
      over = true;
    });
    ::usleep(20'000);
    const bool early = over;
    std::byte room[16];
    std::vector<Fd> taken;
    while (sys::receive(stuffed[1].get(), room, taken, false)) taken.clear();
    std::vector<Fd> brought;
    std::vector<std::byte> bytes(SHMBW_MAX_MESSAGE);
    const auto got = sys::receive(peer.socket.get(), bytes, brought, true);
    shmbw_header header{};
    std::memcpy(&header, bytes.data(), sizeof header);
    peer.answer_status(header.tag, 5);
    caller.join();
    if (early || !got || brought.size() != 1 || !outcome) return 5;
    return 0;
  };
  // Root may do as it likes.
  auto child = harness::can_change_uid() ? harness::Child::run_as(64'321, 64'321, body) : harness::Child::run(body);
  const int status = child.wait();
  if (status == kNone) SKIP_CASE("no bound on descriptors under way");
  CHECK(status == 0);
}

TEST_CASE("a broker that takes no request is a deadline, not a hang") {
  Peer peer;
  Result<Reply> last = error(Status::ok, "");
  for (int i = 0; i < 3000; ++i) {
    last = ask(peer.channel, 1'000'000);
    if (status_of(last) == Status::deadline && last.error().sentence.find("did not take") != std::string::npos) break;
  }
  CHECK(last.error().sentence.find("did not take") != std::string::npos);
}

TEST_CASE("packets that the broker reads late arrive in order, up to a bound") {
  constexpr std::int64_t kPatience = 1'000'000'000;
  Peer peer;
  const auto release = [&](std::uint64_t region) {
    std::array<std::byte, 128> buffer;
    wire::Writer writer(buffer);
    writer.begin_batch<shmbw_release>(SHMBW_OP_RELEASE, 0, 1, SHMBW_HEADER_NO_REPLY);
    writer.element(0, shmbw_release{{region, 1, 0}, 1, 0});
    const auto packet = writer.finish(0);
    return peer.channel.post(std::span(buffer).first(packet.size()), Deadline::after(kPatience));
  };
  // Only the first that does not fit waits, and the one that is too many.
  std::uint64_t posted = 0;
  Result<void> last;
  while (posted < 100'000 && (last = release(posted + 1))) ++posted;
  CHECK(status_of(last) == Status::deadline);
  CHECK(posted >= 4096);
  CHECK(posted < 100'000);
  auto one_more = status_request();
  CHECK(status_of(peer.channel.post(one_more, Deadline::now())) == Status::deadline);
  auto leave = [&] {
    std::array<std::byte, 128> buffer;
    wire::Writer writer(buffer);
    writer.begin(SHMBW_OP_POOL_LEAVE, 0, Status::ok, shmbw_pool_leave{9, 0, 0});
    const auto packet = writer.finish(0);
    return peer.channel.call(std::span(buffer).first(packet.size()), Deadline::after(kPatience));
  };
  for (int i = 0; i < 2; ++i) CHECK(peer.take().header.op == SHMBW_OP_RELEASE);
  CHECK(peer.channel.pump());  // which makes room
  CHECK(status_of(leave()) == Status::deadline);
  std::uint64_t heard = 2, left = 0;
  std::thread reads([&] {
    for (auto request = peer.take(); !request.bytes.empty(); request = peer.take()) {
      if (request.header.op == SHMBW_OP_RELEASE) {
        shmbw_region_ref region;
        std::memcpy(&region, request.bytes.data() + sizeof(shmbw_header) + sizeof(shmbw_batch), sizeof region);
        if (region.id == heard + 1) ++heard;
      } else if (request.header.op == SHMBW_OP_POOL_LEAVE) {
        left += heard == posted ? 1U : 0U;
      } else {
        return peer.answer_status(request.header.tag, 7);
      }
    }
  });
  CHECK(ask(peer.channel, kForever).has_value());
  reads.join();
  CHECK(heard == posted);
  CHECK(left == 1);
}

namespace {

// Until packets wait for room: how many there are in all.
int fill(Channel& channel) {
  int posted = 0;
  for (auto packet = status_request(); posted < 100'000 && !channel.wants_room(); ++posted)
    must(channel.post(packet, Deadline::now()));
  for (auto packet = status_request(); posted % 10 != 0; ++posted) must(channel.post(packet, Deadline::now()));
  REQUIRE(channel.wants_room());
  return posted;
}

bool ready_now(int fd, int milliseconds = 0) {
  pollfd watched{fd, POLLIN, 0};
  return ::poll(&watched, 1, milliseconds) == 1;
}

}  // namespace

TEST_CASE("packets that a full socket refused go when there is room, while a caller waits for something else") {
  Peer peer;
  const int posted = fill(peer.channel);
  std::thread reads([&] {
    for (int i = 0; i < posted; ++i) CHECK(peer.take().header.op == SHMBW_OP_STATUS);
    peer.gone(3);
  });
  CHECK(must(peer.channel.next_event(Deadline::after(60'000'000'000))).watch == 3);
  reads.join();
  CHECK_FALSE(peer.channel.wants_room());
}

TEST_CASE("a descriptor of an event loop says when there is room for what a full socket has left behind") {
  Peer peer;
  bool was_there = false;
  SUBCASE("one that was there before") { was_there = true; }
  SUBCASE("one that is made then") {}
  int fd = was_there ? must(peer.channel.event_descriptor()) : -1;
  const int posted = fill(peer.channel);
  if (!was_there) fd = must(peer.channel.event_descriptor());
  pollfd watched{fd, POLLIN, 0};
  CHECK(::poll(&watched, 1, 0) == 0);
  std::atomic<int> taken = 0;
  std::thread reads([&] {
    for (; taken < posted; ++taken) CHECK(peer.take().header.op == SHMBW_OP_STATUS);
  });
  while (peer.channel.wants_room()) {
    CHECK(::poll(&watched, 1, 60'000) == 1);
    CHECK(peer.channel.pump());
  }
  reads.join();
  CHECK(taken == posted);
  CHECK(::poll(&watched, 1, 0) == 0);
}

TEST_CASE("a thread that waits already sends what another thread leaves behind") {
  Peer peer;
  std::thread waits([&] { CHECK(must(peer.channel.next_event(Deadline::after(60'000'000'000))).watch == 3); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // too short on a busy machine, the case proves less
  const int posted = fill(peer.channel);
  for (int i = 0; i < posted; ++i) CHECK(peer.take().header.op == SHMBW_OP_STATUS);
  CHECK_FALSE(peer.channel.wants_room());
  peer.gone(3);
  waits.join();
}

TEST_CASE("a thread that waits already wakes threads whose requests found no room") {
  Peer peer;
  std::thread waits([&] { CHECK(must(peer.channel.next_event(Deadline::after(60'000'000'000))).watch == 3); });
  const int posted = fill(peer.channel);
  std::vector<std::thread> senders;
  for (int i = 0; i < 2; ++i) senders.emplace_back([&] { CHECK(ask(peer.channel, 60'000'000'000).has_value()); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // too short on a busy machine, the case proves less
  for (int i = 0; i < posted; ++i) CHECK(peer.take().header.op == SHMBW_OP_STATUS);
  for (std::size_t i = 0; i < senders.size(); ++i) peer.answer_status(peer.take().header.tag, 7);
  for (std::thread& sender : senders) sender.join();
  peer.gone(3);
  waits.join();
}

TEST_CASE("a broker that answers requests before they are sent ends no program and no session") {
  Peer peer;
  const int posted = fill(peer.channel);
  constexpr std::uint64_t kWaitsForRoom = std::uint64_t{1} << 63;
  for (std::uint64_t place = 1; place <= 8; ++place) peer.answer_status(kWaitsForRoom | place, 7);
  std::thread caller([&] { (void)ask(peer.channel, kForever); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // too short on a busy machine, the case proves less
  for (int i = 0; i < posted; ++i) CHECK(peer.take().header.op == SHMBW_OP_STATUS);
  peer.answer_status(peer.take().header.tag, 7);
  caller.join();
  std::thread answers([&] { peer.answer_status(peer.take().header.tag, 7); });
  CHECK(ask(peer.channel, kForever).has_value());
  answers.join();
}

TEST_CASE("threads whose requests the kernel has no memory for pause between their tries, however many they are") {
  Peer peer;
  std::thread waits([&] { CHECK(must(peer.channel.next_event(Deadline::after(60'000'000'000))).watch == 3); });
  {
    const harness::Injected none(fault::Call::send, ENOMEM, 1, -1);
    std::vector<std::thread> senders;
    for (int i = 0; i < 2; ++i)
      senders.emplace_back([&] { CHECK(status_of(ask(peer.channel, 300'000'000)) == Status::deadline); });
    for (std::thread& sender : senders) sender.join();
    CHECK(fault::count(fault::Call::send) < 1000);
  }
  fault::clear();
  peer.gone(3);
  waits.join();
}

TEST_CASE("an event loop beside a thread that waits already is quiet once the packets are sent") {
  Peer peer;
  std::thread waits([&] { CHECK(must(peer.channel.next_event(Deadline::after(60'000'000'000))).watch == 3); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const int fd = must(peer.channel.event_descriptor());
  const int posted = fill(peer.channel);
  for (int i = 0; i < posted; ++i) {
    // The next call does the work that woke the loop, also while another thread reads the socket.
    if (ready_now(fd)) CHECK(status_of(peer.channel.next_event(Deadline::now())) == Status::deadline);
    CHECK(peer.take().header.op == SHMBW_OP_STATUS);
  }
  CHECK_FALSE(peer.channel.wants_room());
  CHECK_FALSE(ready_now(fd));
  peer.gone(3);
  waits.join();
}

TEST_CASE("a packet that the kernel had no memory for is sent later, also by an event loop") {
  namespace fault = shmb::fault;
  Peer peer;
  const int fd = must(peer.channel.event_descriptor());
  for (const int code : {ENOBUFS, ENOMEM}) {
    auto packet = status_request();
    const harness::Injected short_of_memory(fault::Call::send, code, 1, 4);
    must(peer.channel.post(packet, Deadline::now()));
    int turns = 0;
    for (; peer.channel.wants_room(); ++turns) {
      REQUIRE(ready_now(fd, 60'000));
      CHECK(status_of(peer.channel.next_event(Deadline::now())) == Status::deadline);
    }
    CHECK(turns > 0);
    CHECK(peer.take().header.op == SHMBW_OP_STATUS);
    CHECK_FALSE(ready_now(fd));
  }
}

TEST_CASE(
    "a kernel without memory for packets is waited for with growing pauses, and the request goes when it has some") {
  Peer peer;
  {
    const harness::Injected none(fault::Call::send, ENOBUFS, 1, -1);
    const auto late = ask(peer.channel, 300'000'000);
    CHECK(status_of(late) == Status::deadline);
    CHECK(fault::count(fault::Call::send) < 100);  // the socket is writable all the time
  }
  const harness::Injected some(fault::Call::send, ENOBUFS, 1, 3);
  std::thread answers([&] { peer.answer_status(peer.take().header.tag, 7); });
  CHECK(ask(peer.channel, kForever).has_value());
  answers.join();
}

TEST_CASE("a kernel without memory for an answer that is there is waited for with pauses, and the session goes on") {
  Peer peer;
  CHECK(status_of(ask(peer.channel, 1'000'000)) == Status::deadline);
  peer.answer_status(peer.take().header.tag, 7);  // the socket is readable from now on
  {
    const harness::Injected none(fault::Call::receive, ENOMEM, 1, -1);
    CHECK(status_of(ask(peer.channel, 100'000'000)) == Status::deadline);
    CHECK(fault::count(fault::Call::receive) < 1000);
  }
  (void)peer.take();
  std::thread answers([&] { peer.answer_status(peer.take().header.tag, 7); });
  CHECK(ask(peer.channel, kForever).has_value());
  answers.join();
}
