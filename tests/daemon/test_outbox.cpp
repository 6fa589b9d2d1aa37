// SPDX-License-Identifier: Apache-2.0
// The gate over a bare pair of sockets: what counts as unread, and what happens to what the kernel does not take.
#include <doctest/doctest.h>
#include <malloc.h>
#include <sys/socket.h>

#include <cstring>
#include <deque>
#include <memory>

#include "base/fault.hpp"
#include "base/sys_socket.hpp"
#include "daemon/transport/outbox.hpp"
#include "proto/shmb_wire.h"
#include "tests/harness/injected.hpp"

using namespace shmb;
using namespace shmb::daemon;

namespace {

struct Pair {
  std::array<Fd, 2> ends = std::move(*sys::seqpacket_pair());
  InFlight in_flight{1000};
  Outbox box{ends[0].get(), 4, in_flight, this, {0, 1}};
  std::byte bytes[64] = {};

  Outbox::Sent reply(int fds) {
    std::vector<int> numbers(static_cast<std::size_t>(fds), 0);
    return box.reply(bytes, numbers, 1);
  }
  void event(std::uint64_t sequence) {
    std::byte buffer[64];
    wire::Writer writer(buffer);
    shmbw_region_gone_event fixed{};
    fixed.sequence = sequence;
    writer.begin(SHMBW_EVENT | SHMBW_EVENT_REGION_GONE, 0, Status::ok, fixed);
    box.event(writer.finish(0));
    box.send_events();
  }
  // Size of the packet, 0 when there is none; its descriptors are closed.
  std::size_t read(std::size_t* fds = nullptr) {
    std::vector<Fd> arrived;
    std::byte buffer[256];
    auto received = sys::receive(ends[1].get(), buffer, arrived, false);
    if (fds != nullptr) *fds = arrived.size();
    return received ? received->size : 0;
  }
};

}  // namespace

TEST_CASE("the gate closes with a reply and opens when the peer has read it") {
  Pair pair;
  CHECK(pair.box.open());
  CHECK(pair.reply(0) == Outbox::Sent::sent);
  CHECK_FALSE(pair.box.open());
  CHECK(pair.read() == 64);
  CHECK(pair.box.open());
}

TEST_CASE(
    "descriptors in flight are counted over all sessions, and leave the count when read or when the session ends") {
  Pair first;
  CHECK(first.reply(7) == Outbox::Sent::sent);
  CHECK(first.in_flight.descriptors() == 7);
  CHECK(first.in_flight.oldest() == &first.box);
  {
    Outbox second(first.ends[1].get(), 4, first.in_flight, &first, {0, 2});
    int number = 0;
    CHECK(second.reply(first.bytes, std::span<const int>(&number, 1), 2) == Outbox::Sent::sent);
    CHECK(first.in_flight.descriptors() == 8);
    CHECK(first.in_flight.oldest() == &first.box);
  }
  CHECK(first.in_flight.descriptors() == 7);
  std::size_t fds = 0;
  CHECK(first.read(&fds) == 64);
  CHECK(fds == 7);
  CHECK(first.in_flight.descriptors() == 7);  // nobody has asked yet
  first.in_flight.look_again();
  CHECK(first.in_flight.descriptors() == 0);
  CHECK(first.in_flight.oldest() == nullptr);
}

TEST_CASE("an unread event does not close the gate, and an event never overtakes an unread reply") {
  Pair pair;
  pair.event(1);
  CHECK(pair.box.open());
  CHECK(pair.reply(0) == Outbox::Sent::sent);
  CHECK_FALSE(pair.box.open());
  pair.event(2);
  CHECK(pair.box.wants_edge());
  CHECK(pair.read() == 56 - 0);
  CHECK(pair.read() == 64);
  CHECK(pair.read() == 0);
  CHECK(pair.box.flush(1) == Outbox::Sent::sent);
  CHECK(pair.read() > 0);
  CHECK_FALSE(pair.box.wants_edge());
}

TEST_CASE("a reply that cannot go now is kept with its own descriptors, in order before events") {
  Pair pair;
  harness::Injected fault(fault::Call::send, ETOOMANYREFS, 1, 2);
  CHECK(pair.reply(3) == Outbox::Sent::kept);
  CHECK(pair.in_flight.kept() == 3);
  CHECK_FALSE(pair.box.open());
  CHECK(pair.box.wants_timer());
  pair.event(1);
  CHECK(pair.box.flush(1) == Outbox::Sent::kept);
  CHECK(pair.read() == 0);
  CHECK(pair.box.flush(1) == Outbox::Sent::sent);
  CHECK(pair.in_flight.kept() == 0);
  std::size_t fds = 0;
  CHECK(pair.read(&fds) == 64);
  CHECK(fds == 3);
  pair.box.flush(1);
  CHECK(pair.read() > 0);
}

TEST_CASE("a kept reply dies with its session, and one that cannot even be kept is reported lost") {
  InFlight in_flight(1000);
  auto ends = std::move(*sys::seqpacket_pair());
  std::byte bytes[32] = {};
  int number = 0;
  {
    Outbox box(ends[0].get(), 4, in_flight, &in_flight, {0, 1});
    harness::Injected fault(fault::Call::send, ENOBUFS, 1, -1);
    CHECK(box.reply(bytes, std::span<const int>(&number, 1), 1) == Outbox::Sent::kept);
    CHECK(in_flight.kept() == 1);
  }
  CHECK(in_flight.kept() == 0);
  Outbox box(ends[0].get(), 4, in_flight, &in_flight, {0, 1});
  harness::Injected fault(fault::Call::send, EAGAIN, 1, -1);
  fault::inject(fault::Call::dup, EMFILE, 1, -1);
  CHECK(box.reply(bytes, std::span<const int>(&number, 1), 1) == Outbox::Sent::lost);
  CHECK(in_flight.kept() == 0);
}

TEST_CASE("a peer that is gone is no error of ours") {
  Pair pair;
  pair.ends[1].reset();
  CHECK(pair.reply(0) == Outbox::Sent::peer_gone);
  pair.event(1);
  CHECK_FALSE(pair.box.wants_edge());
}

TEST_CASE("a kernel that does not report unread bytes delays no session") {
  Pair pair;
  CHECK(pair.reply(0) == Outbox::Sent::sent);
  harness::Injected fault(fault::Call::outq, EPERM, 1, -1);
  CHECK(pair.box.open());
}

TEST_CASE("one process may have half of all unread; once that is passed, each process a small share") {
  InFlight in_flight(160);  // half is 80, the small share 40
  auto ends = std::move(*sys::seqpacket_pair()), other_ends = std::move(*sys::seqpacket_pair()),
       third_ends = std::move(*sys::seqpacket_pair());
  Outbox one(ends[0].get(), 4, in_flight, &in_flight, {0, 1}),
      same(other_ends[0].get(), 4, in_flight, &in_flight, {0, 1}),
      other(third_ends[0].get(), 4, in_flight, &in_flight, {0, 2});
  constexpr std::int64_t kSecondLater = 1'000'000'000;
  std::int64_t now = 0;
  std::byte bytes[32] = {};
  std::vector<int> numbers(100, 0);
  CHECK(one.reply(bytes, std::span(numbers).first(79), 1) == Outbox::Sent::sent);
  CHECK(in_flight.within_share(same, 1, now += kSecondLater));
  CHECK(same.reply(bytes, std::span(numbers).first(1), 1) == Outbox::Sent::sent);
  CHECK_FALSE(in_flight.within_share(same, 1, now += kSecondLater));
  CHECK(in_flight.within_share(other, 1, now += kSecondLater));
  CHECK_FALSE(in_flight.crowded());
  CHECK(other.reply(bytes, std::span(numbers).first(60), 1) == Outbox::Sent::sent);
  CHECK(in_flight.crowded());
  CHECK_FALSE(in_flight.within_share(other, 1, now += kSecondLater));
  std::byte buffer[64];
  std::vector<Fd> fds;
  REQUIRE(sys::receive(ends[1].get(), buffer, fds, false));
  CHECK(in_flight.within_share(same, 1,
                               now += kSecondLater));  // it asked again: 61 are unread now, 1 of them by this process
  CHECK(in_flight.within_share(other, 1, now += kSecondLater));
  CHECK(other.reply(bytes, std::span(numbers).first(40), 1) == Outbox::Sent::sent);
  CHECK(in_flight.within_share(same, 1, now += kSecondLater));
  CHECK_FALSE(in_flight.within_share(other, 1, now += kSecondLater));
  SUBCASE("an abandoned session's descriptors stay in the count until they are read") {
    other.abandon();
    CHECK_FALSE(in_flight.crowded());
    CHECK(in_flight.descriptors() == 101);
    Outbox back(third_ends[1].get(), 4, in_flight, &in_flight, {0, 2});
    CHECK_FALSE(in_flight.within_share(back, 1, now += kSecondLater));
    REQUIRE(sys::receive(third_ends[1].get(), buffer, fds, false));
    REQUIRE(sys::receive(third_ends[1].get(), buffer, fds, false));
    CHECK(in_flight.within_share(back, 1, now += kSecondLater));
    CHECK(in_flight.descriptors() == 1);
  }
}

TEST_CASE("a user with many processes that do not read leaves other users room") {
  InFlight in_flight(1000);
  struct Reader {
    Reader(InFlight& all, std::uint32_t uid, std::uint32_t pid) : box(ends[0].get(), 4, all, &all, {uid, pid}) {}
    std::array<Fd, 2> ends = std::move(*sys::seqpacket_pair());
    Outbox box;
  };
  Reader bystander(in_flight, 2, 1);
  std::deque<Reader> greedy;
  constexpr std::int64_t kSecondLater = 1'000'000'000;
  std::int64_t now = 0;
  std::byte bytes[32] = {};
  const std::vector<int> numbers(100, 0);
  for (std::uint32_t pid = 1; pid <= 25; ++pid) {
    greedy.emplace_back(in_flight, 1, pid);
    if (!in_flight.within_share(greedy.back().box, numbers.size(), now += kSecondLater)) continue;
    CHECK(greedy.back().box.reply(bytes, numbers, 1) == Outbox::Sent::sent);
  }
  CHECK(in_flight.descriptors() == 400);  // a third, and the message that went past it
  CHECK(in_flight.within_share(bystander.box, 253, now += kSecondLater));
  // As the others have more, it may have less: what it left is not taken back.
  bystander.box.promise(253);
  CHECK_FALSE(in_flight.within_share(greedy.back().box, 1, now += kSecondLater));
  bystander.box.promise(0);
  std::byte buffer[64];
  std::vector<Fd> fds;
  REQUIRE(sys::receive(greedy.front().ends[1].get(), buffer, fds, false));
  CHECK(in_flight.within_share(greedy.back().box, 1, now += kSecondLater));
}

TEST_CASE("a batch waits while three quarters of the allowance are unread or promised; a single descriptor does not") {
  InFlight in_flight(400);
  auto ends = std::move(*sys::seqpacket_pair()), making_ends = std::move(*sys::seqpacket_pair()),
       other_ends = std::move(*sys::seqpacket_pair());
  Outbox one(ends[0].get(), 4, in_flight, &in_flight, {0, 1}),
      making(making_ends[0].get(), 4, in_flight, &in_flight, {0, 2}),
      other(other_ends[0].get(), 4, in_flight, &in_flight, {0, 3});
  constexpr std::int64_t kSecondLater = 1'000'000'000;
  std::int64_t now = 0;
  std::byte bytes[32] = {};
  const std::vector<int> numbers(150, 0);
  CHECK(one.reply(bytes, numbers, 1) == Outbox::Sent::sent);
  making.promise(150);
  CHECK(in_flight.within_share(other, 250, now += kSecondLater));
  making.promise(151);
  CHECK_FALSE(in_flight.within_share(other, 250, now += kSecondLater));
  CHECK(in_flight.within_share(other, 1, now += kSecondLater));
  making.promise(0);
  CHECK(in_flight.within_share(other, 250, now += kSecondLater));
}

TEST_CASE("a process over its share that asks on and on makes the others' sockets be looked at now and then only") {
  constexpr int kSessions = 300;
  InFlight in_flight(400);  // half is 200, the small share 100
  struct Unread {
    std::array<Fd, 2> ends = std::move(*sys::seqpacket_pair());
    Outbox box;
    explicit Unread(InFlight& all) : box(ends[0].get(), 4, all, &all, {0, 1}) {}
  };
  std::vector<std::unique_ptr<Unread>> greedy;
  const std::byte bytes[32] = {};
  const std::vector<int> one(1, 0);
  for (int i = 0; i < kSessions; ++i) {
    greedy.push_back(std::make_unique<Unread>(in_flight));
    REQUIRE(greedy.back()->box.reply(bytes, one, 1) == Outbox::Sent::sent);
  }
  Unread asks(in_flight);
  fault::clear();
  std::int64_t now = 1'000'000'000;
  for (int i = 0; i < 10'000; ++i) CHECK_FALSE(in_flight.within_share(asks.box, 1, now += 100));  // a millisecond of it
  CHECK(fault::count(fault::Call::outq) == kSessions);
  for (int i = 0; i < 1'000; ++i) CHECK_FALSE(in_flight.within_share(asks.box, 1, now += 1'000'000));  // a second
  CHECK(fault::count(fault::Call::outq) <= 201 * kSessions);
  std::byte buffer[64];
  std::vector<Fd> fds;
  for (auto& peer : greedy) REQUIRE(sys::receive(peer->ends[1].get(), buffer, fds, false));
  CHECK(in_flight.within_share(asks.box, 1, now += 1'000'000'000));  // nobody is forgotten
}

TEST_CASE("sessions of one user that read no event keep a bounded amount of memory, and each gets its gap") {
  InFlight in_flight(1000);
  auto ends = std::move(*sys::seqpacket_pair());
  auto heap = [] {
    const auto now = mallinfo2();
    return now.uordblks + now.hblkhd;
  };
  const std::size_t before = heap();
  {
    std::deque<Outbox> lazy;
    constexpr std::uint32_t kSessions = 2048;
    for (std::uint32_t i = 0; i < kSessions; ++i)
      lazy.emplace_back(ends[0].get(), 256, in_flight, &in_flight, Sharer{1000, i});
    std::byte buffer[64];
    for (std::uint64_t sequence = 1; sequence <= 300; ++sequence) {
      wire::Writer writer(buffer);
      shmbw_region_gone_event fixed{};
      fixed.sequence = sequence;
      writer.begin(SHMBW_EVENT | SHMBW_EVENT_REGION_GONE, 0, Status::ok, fixed);
      const wire::Bytes packet = writer.finish(0);
      for (Outbox& box : lazy) {
        box.event(packet);
        box.send_events();
      }
    }
    CHECK(heap() - before < (std::size_t{12} << 20));
    auto own = std::move(*sys::seqpacket_pair());
    Outbox reads(own[0].get(), 256, in_flight, &in_flight, Sharer{1000, 1});
    std::byte bytes[64] = {};
    reads.event(bytes);
    reads.send_events();
    std::byte received[64];
    CHECK(sys::receive_data(own[1].get(), received)->size == 64);
  }
  CHECK(heap() - before < 64 * 1024);
}
