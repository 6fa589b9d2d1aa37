// SPDX-License-Identifier: Apache-2.0
// Answers of the broker: late ones, refusals, and the loss of the session.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/fault.hpp"
#include "base/sys_socket.hpp"
#include "tests/client/session/channel_peer.hpp"
#include "tests/harness/proc.hpp"

using namespace channel_tests;

TEST_CASE("answers that come in another order reach the threads that asked") {
  Peer peer;
  constexpr int kThreads = 6;
  std::array<std::uint64_t, kThreads> heard{};
  std::vector<std::thread> threads;
  std::vector<std::uint64_t> tags;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      auto reply = ask(peer.channel);
      if (reply) heard[i] = fixed_of<shmbw_status_reply>(*reply)->epoch;
    });
    tags.push_back(peer.take().header.tag);  // one after the other, so that tag i is thread i's
  }
  for (int i = kThreads; i-- > 0;) peer.answer_status(tags[i], 100 + i);
  for (auto& thread : threads) thread.join();
  for (int i = 0; i < kThreads; ++i) CHECK(heard[i] == 100u + i);
}

TEST_CASE("a call gives up at its deadline while another thread reads, and the session goes on") {
  Peer peer;
  std::thread patient([&] { CHECK(ask(peer.channel, 20'000'000'000).has_value()); });
  const auto first = peer.take();
  CHECK(status_of(ask(peer.channel, 30'000'000)) == Status::deadline);
  const auto second = peer.take();
  peer.answer_status(second.header.tag, 2);  // late: nobody wants it any more
  peer.answer_status(first.header.tag, 1);
  patient.join();
  std::thread again([&] { CHECK(ask(peer.channel).has_value()); });
  peer.answer_status(peer.take().header.tag, 3);
  again.join();
}

TEST_CASE("the thread that reads a late grant gives it back and closes its descriptor") {
  Peer peer;
  auto packet = attach_request();
  CHECK(status_of(peer.channel.call(packet, Deadline::after(20'000'000))) == Status::deadline);
  const auto late = peer.take();
  const int before = harness::open_descriptors();
  peer.grant(late.header.tag, 77, 1);
  std::thread other([&] { CHECK(ask(peer.channel).has_value()); });
  const auto request = peer.take();
  auto release = request;
  std::uint64_t asked = 0;
  if (request.header.op == SHMBW_OP_STATUS) {
    asked = request.header.tag;
    release = peer.take();
  } else {
    asked = peer.take().header.tag;
  }
  peer.answer_status(asked, 1);
  other.join();
  CHECK(release.header.op == SHMBW_OP_RELEASE);
  CHECK((release.header.flags & SHMBW_HEADER_NO_REPLY) != 0);
  shmbw_release element;
  std::memcpy(&element, release.bytes.data() + sizeof(shmbw_header) + sizeof(shmbw_batch), sizeof element);
  CHECK(element.region.id == 77);
  CHECK(element.count == 1);
  CHECK(harness::open_descriptors() == before);
}

TEST_CASE("a queue's end and a pool that came too late are given back as what they are") {
  Peer peer;
  std::array<std::byte, 256> buffer;
  const auto late = [&](shmbw_op op, const auto& request, const auto& reply) {
    wire::Writer writer(buffer);
    writer.begin(op, 0, Status::ok, request);
    const auto size = writer.finish(0).size();
    CHECK(status_of(peer.channel.call(std::span(buffer).first(size), Deadline::after(20'000'000))) == Status::deadline);
    const auto asked = peer.take();
    wire::Writer answer(buffer);
    answer.begin(op | SHMBW_REPLY, asked.header.tag, Status::ok, reply);
    peer.give(answer.finish(0));
    (void)peer.channel.pump();
    return peer.take();
  };
  shmbw_queue_open open{};
  open.pool = 77;
  open.flags = SHMBW_QUEUE_OPEN_READER | SHMBW_QUEUE_OPEN_CREATE_ONLY;
  auto undone = late(SHMBW_OP_QUEUE_OPEN, open, shmbw_queue_open_reply{3, 9, 0, 0});
  REQUIRE(undone.header.op == SHMBW_OP_QUEUE_CLOSE);
  shmbw_queue_close close{};
  std::memcpy(&close, undone.bytes.data() + sizeof(shmbw_header), sizeof close);
  CHECK(close.pool == 77);
  CHECK(close.queue == 3);
  CHECK(close.serial == 9);
  CHECK(close.flags == (SHMBW_QUEUE_CLOSE_READER | SHMBW_QUEUE_CLOSE_REMOVE));
  CHECK(peer.channel.ends_given_back() == 1);
  shmbw_pool_create_reply created{};
  created.pool = 5;
  undone = late(SHMBW_OP_POOL_CREATE, shmbw_pool_create{}, created);
  REQUIRE(undone.header.op == SHMBW_OP_POOL_LEAVE);
  shmbw_pool_leave leave{};
  std::memcpy(&leave, undone.bytes.data() + sizeof(shmbw_header), sizeof leave);
  CHECK(leave.pool == 5);
  CHECK(leave.flags == SHMBW_POOL_LEAVE_REMOVE);
  CHECK(peer.channel.ends_given_back() == 1);  // it was no end of a queue
}

TEST_CASE("GPU regions and timelines that came too late are given back, those that were made with their name") {
  Peer peer;
  std::array<std::byte, 512> buffer;
  const shmbw_region_ref region{77, 1, 0};
  const auto given_back = [&](shmbw_op op, const auto& write_request, const auto& write_reply) {
    wire::Writer writer(buffer);
    write_request(writer);
    const auto size = writer.finish(0).size();
    CHECK(status_of(peer.channel.call(std::span(buffer).first(size), Deadline::after(20'000'000))) == Status::deadline);
    const auto asked = peer.take();
    wire::Writer answer(buffer);
    write_reply(answer, asked.header.tag);
    peer.give(answer.finish(0));
    (void)peer.channel.pump();
    // Behind what is given back, so that the test need not wait for what never comes.
    CHECK(status_of(ask(peer.channel, 20'000'000)) == Status::deadline);
    const auto undone = peer.take();
    CAPTURE(op);
    REQUIRE(undone.header.op == SHMBW_OP_RELEASE);
    CHECK(peer.take().header.op == SHMBW_OP_STATUS);
    shmbw_release element;
    std::memcpy(&element, undone.bytes.data() + sizeof(shmbw_header) + sizeof(shmbw_batch), sizeof element);
    CHECK(element.region.id == region.id);
    CHECK(element.count == 1);
    return element.flags;
  };
  const auto batch = [&]<class Wanted, class Granted>(shmbw_op op) {
    return given_back(
        op, [&](wire::Writer& writer) { writer.begin_batch<Wanted>(op, 0, 1); },
        [&](wire::Writer& writer, std::uint64_t tag) {
          writer.begin_batch<Granted>(op | SHMBW_REPLY, tag, 1);
          Granted granted{};
          granted.region = region;
          writer.element(0, granted);
        });
  };
  CHECK(batch.operator()<shmbw_gpu_publish, shmbw_gpu_publish_reply>(SHMBW_OP_GPU_PUBLISH) == SHMBW_RELEASE_UNDO);
  CHECK(batch.operator()<shmbw_gpu_open, shmbw_gpu_open_reply>(SHMBW_OP_GPU_OPEN) == 0);
  CHECK(given_back(
            SHMBW_OP_GPU_TIMELINE,
            [](wire::Writer& writer) { writer.begin(SHMBW_OP_GPU_TIMELINE, 0, Status::ok, shmbw_gpu_timeline{}); },
            [&](wire::Writer& writer, std::uint64_t tag) {
              shmbw_gpu_timeline_reply made{};
              made.region = region;
              writer.begin(SHMBW_OP_GPU_TIMELINE | SHMBW_REPLY, tag, Status::ok, made);
            }) == SHMBW_RELEASE_UNNAME);
}

TEST_CASE("a grant whose descriptor does not fit into the table is given back, and the session goes on") {
  Peer peer;
  std::thread caller;
  rlimit old;
  ::getrlimit(RLIMIT_NOFILE, &old);
  Result<Reply> outcome = error(Status::ok, "");
  caller = std::thread([&] {
    auto packet = attach_request();
    outcome = peer.channel.call(packet, Deadline::after(0));
  });
  const auto request = peer.take();
  const rlimit tight{1, old.rlim_max};  // no new descriptor; 0 would refuse poll(2) as well
  ::setrlimit(RLIMIT_NOFILE, &tight);
  peer.grant(request.header.tag, 78, 1);
  caller.join();
  ::setrlimit(RLIMIT_NOFILE, &old);
  CHECK(status_of(outcome) == Status::no_descriptors);
  CHECK(peer.take().header.op == SHMBW_OP_RELEASE);
  std::thread again([&] { CHECK(ask(peer.channel).has_value()); });
  peer.answer_status(peer.take().header.tag, 3);
  again.join();
}

TEST_CASE("end of file and a broken protocol lose the session for all waiters, with a reason, and one event") {
  Peer peer;
  std::thread waiting([&] {
    auto lost = ask(peer.channel, 20'000'000'000);
    CHECK(status_of(lost) == Status::session_lost);
  });
  std::thread listening([&] {
    auto event = peer.channel.next_event(Deadline::after(kForever));
    CHECK(event.has_value());
    if (event) CHECK(event->kind == Event::Kind::broker_away);
  });
  (void)peer.take();
  SUBCASE("end of file") { peer.socket.reset(); }
  SUBCASE("not a packet of ours") {
    const std::array<std::byte, 30> garbage{};
    peer.give(garbage);
  }
  waiting.join();
  listening.join();
  CHECK(peer.channel.lost());
  auto again = ask(peer.channel);
  CHECK(status_of(again) == Status::session_lost);
  CHECK(again.error().sentence.find("mappings stay valid") != std::string::npos);
  CHECK(status_of(peer.channel.next_event(Deadline::after(kForever))) == Status::session_lost);
}

TEST_CASE("a packet that is read while the session is lost does not change an answer that was reported") {
  bool met = false;
  for (int round = 0; round < 500 && !met; ++round) {
    Peer peer;
    auto packet = attach_request();
    const auto later = must(peer.channel.ask(packet));
    const auto request = peer.take();
    const auto all_read = [&] {
      for (int i = 0; i < 60'000; ++i) {
        if (sys::unread_bytes(peer.socket.get()).value_or(0) <= 128) return true;
        ::usleep(1000);
      }
      return false;
    };
    std::thread leader([&] { (void)peer.channel.next_event(Deadline::after(kForever)); });
    peer.answer_status(99, 1);  // no call's: the thread that reads it leads
    CHECK(all_read());
    bool taken = false;
    {
      const std::lock_guard lock(peer.channel.mutex());
      peer.grant(request.header.tag, 78, 1);
      for (int i = 0; i < 100 && !taken; ++i) {  // not, where the leader waits for the lock since before
        taken = sys::unread_bytes(peer.socket.get()).value_or(0) <= 128;
        if (!taken) ::usleep(1000);
      }
    }
    // The leader has the packet, and is about to get the lock.
    peer.channel.set_lost_reason("by the test");
    CHECK(peer.channel.has_come(*later));
    const bool lost_first = later->fds.empty();
    peer.answer_status(99, 1);  // it may be at its poll again
    leader.join();
    CHECK(later->fds.empty() == lost_first);
    met = taken && lost_first;
  }
  CHECK(met);
}

TEST_CASE("a refusal arrives as it was written") {
  Peer peer;
  std::thread caller([&] {
    auto refused = ask(peer.channel);
    CHECK(status_of(refused) == Status::limit);
    CHECK(refused.error().sentence == "no more");
    CHECK(refused.error().shortage.limit == 7);
  });
  Error no;
  no.status = Status::limit;
  no.sentence = "no more";
  no.shortage.limit = 7;
  std::array<std::byte, 512> buffer;
  const auto request = peer.take();
  peer.give(wire::write_error_reply(buffer, SHMBW_OP_STATUS, request.header.tag, no));
  caller.join();
}

TEST_CASE("a descriptor of the library that the program closed ends the session with a sentence that says so") {
  std::optional<Peer> peer(std::in_place);
  const Fd always_readable = Fd::adopt(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
  int broken = -1;
  bool taken_again = true;
  SUBCASE("the set that the library waits for") {
    broken = peer->channel.watch_descriptor();
    ::close(broken);
  }
  SUBCASE("the socket") {
    broken = peer->channel.socket_descriptor();
    ::close(broken);
  }
  SUBCASE("the set, and a file has its number") {
    broken = peer->channel.watch_descriptor();
    REQUIRE(::dup2(always_readable.get(), broken) == broken);
    taken_again = false;
  }
  SUBCASE("the socket, and a file has its number") {
    broken = peer->channel.socket_descriptor();
    REQUIRE(::dup2(always_readable.get(), broken) == broken);
    taken_again = false;
  }
  SUBCASE("the socket, and a socket that has ended has its number") {
    std::array<int, 2> pair{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data()) == 0);
    broken = peer->channel.socket_descriptor();
    REQUIRE(::dup2(pair[0], broken) == broken);
    ::close(pair[0]);
    ::close(pair[1]);
    taken_again = false;
  }
  const auto event = peer->channel.next_event(Deadline::after(60'000'000'000));
  REQUIRE(event.has_value());
  CHECK(event->kind == Event::Kind::broker_away);
  CHECK(event->text.find("closed a descriptor of the library") != std::string::npos);
  const auto refused = ask(peer->channel);
  CHECK(status_of(refused) == Status::session_lost);
  CHECK(refused.error().sentence.find("closed a descriptor of the library") != std::string::npos);
  // The number is the program's now: the session's end does not close its file.
  if (taken_again) REQUIRE(::dup2(always_readable.get(), broken) == broken);
  peer.reset();
  CHECK(::fcntl(broken, F_GETFD) >= 0);
  ::close(broken);
}

TEST_CASE("a request finds that the program closed the socket of the library") {
  Peer peer;
  ::close(peer.channel.socket_descriptor());
  const auto refused = ask(peer.channel, 60'000'000'000);
  CHECK(status_of(refused) == Status::session_lost);
  CHECK(refused.error().sentence.find("closed a descriptor of the library") != std::string::npos);
}

TEST_CASE("a group is left when the broker says so, whether or not a thread still waits for that") {
  Peer peer;
  peer.channel.groups = {5, 6};
  const auto leave = [&](std::uint64_t group, std::int64_t timeout) {
    std::array<std::byte, 64> buffer;
    wire::Writer writer(buffer);
    writer.begin(SHMBW_OP_GROUP_LEAVE, 0, Status::ok, shmbw_group_leave{group});
    const auto packet = writer.finish(0);
    return peer.channel.call(std::span(buffer).first(packet.size()), Deadline::after(timeout));
  };
  const auto answer = [&](std::uint64_t now_in) {
    std::array<std::byte, 64> buffer;
    wire::Writer writer(buffer);
    writer.begin(SHMBW_OP_GROUP_LEAVE | SHMBW_REPLY, peer.take().header.tag, Status::ok,
                 shmbw_group_leave_reply{now_in});
    peer.give(writer.finish(0));
  };
  SUBCASE("its caller gets the answer") {
    std::thread answers([&] { answer(5); });
    CHECK(leave(6, 20'000'000'000).has_value());
    answers.join();
    CHECK(peer.channel.groups.member == 5);
    CHECK(peer.channel.groups.supervised == 0);
  }
  SUBCASE("the answer comes too late for its caller") {
    CHECK(status_of(leave(0, 1'000'000)) == Status::deadline);
    answer(0);
    CHECK(peer.channel.pump());
    CHECK(peer.channel.groups.member == 0);
    CHECK(peer.channel.groups.supervised == 6);
  }
}

TEST_CASE("a call whose answer is there already takes it without a sleep") {
  Peer peer;
  peer.answer_status(1, 5);  // the first tag
  fault::clear();
  CHECK(ask(peer.channel).has_value());
  CHECK(fault::count(fault::Call::poll) == 0);
}

TEST_CASE("after a call that looked in vain, the next call sleeps at once") {
  Peer peer;
  fault::clear();
  CHECK(status_of(ask(peer.channel, 200'000'000)) == Status::deadline);
  CHECK(fault::count(fault::Call::receive) > 0);
  fault::clear();
  CHECK(status_of(ask(peer.channel, 200'000'000)) == Status::deadline);
  CHECK(fault::count(fault::Call::receive) == 0);
}
