// SPDX-License-Identifier: Apache-2.0
// Events of the broker: each reaches the thread that waits for it, and none reaches another one.
#include <doctest/doctest.h>
#include <poll.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/client/session/channel_peer.hpp"

using namespace channel_tests;

TEST_CASE("an event read by a waiting caller still wakes a poll of the event descriptor") {
  Peer peer;
  const int fd = must(peer.channel.event_descriptor());
  pollfd watched{fd, POLLIN, 0};
  CHECK(::poll(&watched, 1, 0) == 0);
  std::thread caller([&] { CHECK(ask(peer.channel, 20'000'000'000).has_value()); });
  const auto request = peer.take();
  peer.gone(9);
  peer.answer_status(request.header.tag, 1);
  caller.join();  // it has read both packets: only the private eventfd can tell now
  CHECK(::poll(&watched, 1, 10'000) == 1);
  auto event = must(peer.channel.next_event(Deadline::now()));
  CHECK(event.kind == Event::Kind::region_gone);
  CHECK(event.watch == 9);
  CHECK(event.region.id == 5);
  CHECK(::poll(&watched, 1, 0) == 0);
  CHECK(status_of(peer.channel.next_event(Deadline::now())) == Status::deadline);
}

TEST_CASE("each consumer of the event descriptor learns that the session is lost, whichever took BROKER_AWAY") {
  Peer peer;
  int fd = -1;
  const auto readable = [&] {
    pollfd watched{fd, POLLIN, 0};
    return ::poll(&watched, 1, 60'000) == 1;
  };
  SUBCASE("it was there before the end") { fd = must(peer.channel.event_descriptor()); }
  SUBCASE("it is made after the end") {}
  peer.gone(9);
  peer.socket.reset();
  while (peer.channel.pump()) {
  }
  if (fd < 0) fd = must(peer.channel.event_descriptor());
  REQUIRE(readable());
  CHECK(must(peer.channel.next_event(Deadline::now())).kind == Event::Kind::region_gone);
  REQUIRE(readable());
  CHECK(must(peer.channel.next_event(Deadline::now())).kind == Event::Kind::broker_away);
  for (int others = 0; others < 3; ++others) {
    REQUIRE(readable());
    CHECK(status_of(peer.channel.next_event(Deadline::now())) == Status::session_lost);
  }
}

TEST_CASE("an event of a world that one thread reads wakes the thread that waits for it, while the first waits on") {
  Peer peer;
  std::thread reader([&] { CHECK(ask(peer.channel, 600'000'000'000).has_value()); });
  const auto request = peer.take();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // it reads now, as a rule: else the other thread does
  std::atomic<bool> told = false;
  std::thread waiting([&] {
    const auto event = must(peer.channel.next_remote_event(Deadline::after(600'000'000'000)));
    CHECK(event.has_value());
    if (event) CHECK(event->world == 5);
    told = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  std::array<std::byte, 128> buffer;
  wire::Writer writer(buffer);
  writer.begin(SHMBW_EVENT | SHMBW_EVENT_WORLD_CHANGED, 0, Status::ok, shmbw_world_changed_event{1, 0, 5, 0, 0, 1, 1});
  peer.give(writer.finish(0));
  for (int i = 0; i < 3000 && !told; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  CHECK(told);
  peer.answer_status(request.header.tag, 1);
  reader.join();
  waiting.join();
}

TEST_CASE("a caller that cannot wait still gets an event that lies on the socket") {
  Peer peer;
  peer.gone(4);
  CHECK(must(peer.channel.next_event(Deadline::now())).watch == 4);
}

TEST_CASE("events of the library's own subscriptions do not reach the user") {
  Peer peer;
  Channel::Subscription own;
  std::vector<std::byte> buffer(256);
  wire::Writer writer(buffer);
  writer.begin(SHMBW_OP_WATCH, 0, Status::ok, shmbw_watch{});
  buffer.resize(writer.finish(0).size());
  std::thread caller([&] { CHECK(peer.channel.call(buffer, Deadline::after(0), &own).has_value()); });
  const auto request = peer.take();
  std::array<std::byte, 128> out;
  wire::Writer reply(out);
  reply.begin(SHMBW_OP_WATCH | SHMBW_REPLY, request.header.tag, Status::ok, shmbw_watch_reply{31, 0, 0});
  peer.give(reply.finish(0));
  peer.gone(31);  // at once: before the caller can have done anything
  peer.gone(32);
  caller.join();
  CHECK(must(peer.channel.await(own, Deadline::after(0))).watch == 31);
  CHECK(own.events.empty());  // it was taken out under the lock, not looked at behind it
  CHECK(must(peer.channel.next_event(Deadline::after(0))).watch == 32);
  peer.channel.unsubscribe(own);
  CHECK(peer.take().header.op == SHMBW_OP_WATCH);  // the cancellation
  peer.gone(31);                                   // it crossed: nobody's any more, but harmless
  CHECK(must(peer.channel.next_event(Deadline::after(0))).watch == 31);
}

TEST_CASE("a subscription's events are taken while another thread reads more of them") {
  constexpr std::uint64_t kLast = 1'000'000;
  const std::uint64_t rounds = 500;
  Peer peer;
  std::thread broker([&] {
    std::array<std::byte, 128> out;
    for (std::uint64_t watch = 1; watch <= 2 * rounds; ++watch) {  // each is asked for, and cancelled
      const auto request = peer.take();
      wire::Writer reply(out);
      reply.begin(SHMBW_OP_WATCH | SHMBW_REPLY, request.header.tag, Status::ok, shmbw_watch_reply{watch, 0, 0});
      peer.give(reply.finish(0));
      if (watch % 2 == 0) continue;
      for (int i = 0; i < 4; ++i) peer.gone(watch);
    }
    peer.gone(kLast);
  });
  std::thread reader([&] {  // mostly the leader
    while (must(peer.channel.next_event(Deadline::after(kForever))).watch != kLast) {
    }
  });
  for (std::uint64_t i = 0; i < rounds; ++i) {
    Channel::Subscription own;
    std::vector<std::byte> buffer(256);
    wire::Writer writer(buffer);
    writer.begin(SHMBW_OP_WATCH, 0, Status::ok, shmbw_watch{});
    buffer.resize(writer.finish(0).size());
    REQUIRE(peer.channel.call(buffer, Deadline::after(60'000'000'000), &own).has_value());
    CHECK(must(peer.channel.await(own, Deadline::after(60'000'000'000))).watch == own.watch);
    peer.channel.unsubscribe(own);
  }
  broker.join();
  reader.join();
}

TEST_CASE("events that are never asked for do not grow without bound: a gap tells how many went") {
  Peer peer;
  std::thread flood([&] {
    for (std::uint64_t i = 1; i <= 5000; ++i) peer.gone(i);
    peer.answer_status(peer.take().header.tag, 1);
  });
  CHECK(ask(peer.channel, 60'000'000'000).has_value());
  flood.join();
  const auto gap = must(peer.channel.next_event(Deadline::now()));
  CHECK(gap.kind == Event::Kind::gap);
  CHECK(gap.lost == 5000 - 4096);
  CHECK(must(peer.channel.next_event(Deadline::now())).watch == gap.lost + 1);
}

TEST_CASE("a device's event is the last of its watch, and a gap tells that events of GPU regions may be lost too") {
  Peer peer;
  std::array<std::byte, 256> buffer;
  wire::Writer writer(buffer);
  writer.begin(SHMBW_OP_WATCH, 0, Status::ok, shmbw_watch{});
  std::vector<std::byte> request(buffer.begin(), buffer.begin() + static_cast<std::ptrdiff_t>(writer.finish(0).size()));
  const auto tell = [&](auto op, std::uint64_t tag, const auto& fixed) {
    writer.begin(static_cast<std::uint16_t>(op), tag, Status::ok, fixed);
    peer.give(writer.finish(0));
  };
  std::thread broker(
      [&] { tell(SHMBW_OP_WATCH | SHMBW_REPLY, peer.take().header.tag, shmbw_watch_reply{.watch = 8}); });
  Channel::Subscription own;
  CHECK(peer.channel.call(request, Deadline::after(60'000'000'000), &own).has_value());
  broker.join();
  tell(SHMBW_EVENT | SHMBW_EVENT_GPU_DEVICE, 0, shmbw_gpu_device_event{.watch = 8});
  CHECK(peer.channel.take_gpu_events().empty());
  CHECK(own.events.size() == 1);
  tell(SHMBW_EVENT | SHMB_EVENT_GAP, 0, shmbw_gap_event{1, 0, 3});
  CHECK(peer.channel.take_gpu_events().size() == 1);
  CHECK(own.events.size() == 1);  // the channel has forgotten it
}
