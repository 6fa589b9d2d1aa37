// SPDX-License-Identifier: Apache-2.0
// The channel against a peer that is played by the test: late, wrong, silent and dying brokers.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <optional>
#include <thread>

#include "base/sys_memory.hpp"
#include "base/sys_socket.hpp"
#include "client/session/channel.hpp"
#include "tests/client/support.hpp"
#include "tests/harness/child.hpp"
#include "tests/harness/injected.hpp"
#include "tests/harness/raw_client.hpp"
#include "tests/harness/skip.hpp"

using namespace shmb;
using namespace shmb::client;
using client_tests::must;
using client_tests::status_of;

namespace {

struct Peer {
  Channel channel;
  Fd socket;

  Peer() {
    auto ends = must_pair();
    socket = std::move(ends[0]);
    channel.open(std::move(ends[1]));
  }
  static std::array<Fd, 2> must_pair() {
    auto ends = sys::seqpacket_pair();
    REQUIRE(ends.has_value());
    return std::move(*ends);
  }
  struct Request {
    std::vector<std::byte> bytes;
    shmbw_header header{};
  };
  Request take() const {
    Request request;
    request.bytes.resize(SHMBW_MAX_MESSAGE);
    std::vector<Fd> fds;
    auto got = sys::receive(socket.get(), request.bytes, fds, true);
    request.bytes.resize(got ? got->size : 0);
    if (request.bytes.size() >= sizeof request.header)
      std::memcpy(&request.header, request.bytes.data(), sizeof request.header);
    return request;
  }
  void give(wire::Bytes packet, std::span<const int> fds = {}) const {
    CHECK(sys::send(socket.get(), packet, {}, fds, true).has_value());
  }
  void answer_status(std::uint64_t tag, std::uint64_t epoch) const {
    std::array<std::byte, 512> buffer;
    wire::Writer writer(buffer);
    shmbw_status_reply reply{};
    reply.epoch = epoch;
    writer.begin(SHMBW_OP_STATUS | SHMBW_REPLY, tag, Status::ok, reply);
    give(writer.finish(0));
  }
  void grant(std::uint64_t tag, std::uint64_t id, int fd) const {
    std::array<std::byte, 512> buffer;
    wire::Writer writer(buffer);
    writer.begin_batch<shmbw_attach_reply>(SHMBW_OP_ATTACH | SHMBW_REPLY, tag, 1);
    shmbw_attach_reply reply{};
    reply.region = {id, 1, 0};
    writer.element(0, reply);
    give(writer.finish(1), std::span(&fd, 1));
  }
  void gone(std::uint64_t watch) const {
    std::array<std::byte, 128> buffer;
    wire::Writer writer(buffer);
    writer.begin(SHMBW_EVENT | 3, 0, Status::ok, shmbw_region_gone_event{1, watch, {5, 1, 0}});
    give(writer.finish(0));
  }
};

std::vector<std::byte> status_request() {
  std::vector<std::byte> buffer(64);
  wire::Writer writer(buffer);
  writer.begin(SHMBW_OP_STATUS, 0, Status::ok, shmbw_status{});
  buffer.resize(writer.finish(0).size());
  return buffer;
}
std::vector<std::byte> attach_request() {
  std::vector<std::byte> buffer(256);
  wire::Writer writer(buffer);
  writer.begin_batch<shmbw_attach>(SHMBW_OP_ATTACH, 0, 1);
  buffer.resize(writer.finish(0).size());
  return buffer;
}

Result<Reply> ask(Channel& channel, std::int64_t timeout = 0) {
  auto packet = status_request();
  return channel.call(packet, Deadline::after(timeout));
}

int open_descriptors() {
  int count = 0;
  for (int fd = 0; fd < 1024; ++fd) count += ::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

}  // namespace

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
  const int before = open_descriptors();
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
  CHECK(open_descriptors() == before);
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
  CHECK(batch.operator()<shmbw_gpu_publish, shmbw_gpu_publish_reply>(SHMBW_OP_GPU_PUBLISH) == SHMBW_RELEASE_UNNAME);
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
    peer.answer_status(99, 1);  // nobody's: who reads it leads
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
