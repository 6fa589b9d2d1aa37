// SPDX-License-Identifier: Apache-2.0
// Pools over real sockets and processes, on both engines: a place ends with the process and not with its socket, and a
// descriptor gets in only where HELLO asked for it and the request states it.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <optional>
#include <vector>

#include "base/mapping.hpp"
#include "base/sys_memory.hpp"
#include "base/sys_process.hpp"
#include "base/sys_socket.hpp"
#include "proto/pool_layout.hpp"
#include "tests/harness/child.hpp"
#include "tests/harness/skip.hpp"
#include "tests/harness/stopped.hpp"
#include "tests/support/wire.hpp"

namespace wire_test {
namespace {

using shmb::pool::ParticipantState;

struct OpenPool {
  std::uint64_t id = 0;
  shmb::Mapping directory, control;
  shmb::pool::View view;

  ParticipantState state(std::uint32_t index) const {
    return static_cast<ParticipantState>(shmb::pool::Stamp::of(view.participant(index).stamp.load()).state);
  }
};

OpenPool make_pool(RawClient& client) {
  shmbw_pool_create wish{};
  wish.slots = 4;
  RawPacket made = client.call(SHMBW_OP_POOL_CREATE, wish);
  REQUIRE_MESSAGE(made.ok(), made.sentence());
  REQUIRE(made.fds.size() == 2);
  auto reply = made.fixed<shmbw_pool_create_reply>();
  auto directory = shmb::Mapping::map(made.fds[0].get(), 0, reply.directory_bytes, shmb::Access::read);
  auto control = shmb::Mapping::map(made.fds[1].get(), 0, reply.control_bytes, shmb::Access::read_write);
  REQUIRE(directory);
  REQUIRE(control);
  OpenPool out{reply.pool, std::move(*directory), std::move(*control), {}};
  auto view =
      shmb::pool::View::open({out.directory.data(), out.directory.size()}, {out.control.data(), out.control.size()});
  REQUIRE(view);
  out.view = *view;
  return out;
}

// Each round goes once through the broker's loop; a place that never changes ends the test by its rounds.
bool becomes(RawClient& client, const OpenPool& pool, std::uint32_t index, ParticipantState wanted) {
  for (int round = 0; round < 20'000; ++round) {
    if (pool.state(index) == wanted) return true;
    if (!client.status().ok()) return false;
    ::usleep(500);
  }
  return false;
}

shmbw_hello passing() {
  shmbw_hello hello = RawClient::greeting();
  hello.features = SHMBW_FEATURE_PASS_RIGHTS;
  return hello;
}

Packet with_fds(Packet packet, std::uint16_t count) {
  shmbw_header header = header_of(packet);
  header.n_fds = count;
  set_header(packet, header);
  return packet;
}

}  // namespace

TEST_CASE("a process that closed its socket keeps its place until it is killed, and then loses it") {
  on_each_engine({}, [](BrokerFixture& broker) {
    RawClient maker = greeted(broker);
    OpenPool pool = make_pool(maker);
    harness::Gate closed, never;
    const std::string path = broker.socket();
    harness::Child child = harness::Child::run([&] {
      RawClient own = RawClient::connect(path);
      if (!own.hello().ok()) return 1;
      shmbw_pool_join join{};
      join.pool = pool.id;
      if (!own.call(SHMBW_OP_POOL_JOIN, join).ok()) return 2;
      own.close();
      closed.open();
      never.wait(60'000);
      return 3;
    });
    REQUIRE(closed.wait());
    // The broker has seen the end of the socket: the session is not in its table any more.
    for (int round = 0; round < 20'000 && maker.status().fixed<shmbw_status_reply>().sessions > 1; ++round)
      ::usleep(500);
    REQUIRE(maker.status().fixed<shmbw_status_reply>().sessions == 1);
    for (int round = 0; round < 20; ++round) REQUIRE(maker.status().ok());
    CHECK(pool.state(1) == ParticipantState::live);
    child.kill();
    CHECK(becomes(maker, pool, 1, ParticipantState::free));
    CHECK(child.wait() == 128 + SIGKILL);
    CHECK(maker.call(SHMBW_OP_POOL_LEAVE, shmbw_pool_leave{pool.id, 0, 0}).ok());  // this process lives on
  });
}

TEST_CASE("a process that is killed with its socket open is dead in the directory, and its bits are swept") {
  on_each_engine({}, [](BrokerFixture& broker) {
    RawClient maker = greeted(broker);
    OpenPool pool = make_pool(maker);
    harness::Gate joined, never;
    const std::string path = broker.socket();
    harness::Child child = harness::Child::run([&] {
      RawClient own = RawClient::connect(path);
      if (!own.hello().ok()) return 1;
      shmbw_pool_join join{};
      join.pool = pool.id;
      if (!own.call(SHMBW_OP_POOL_JOIN, join).ok()) return 2;
      pool.view.slot(2).holders.fetch_or(0b10);
      joined.open();
      never.wait(60'000);
      return 3;
    });
    REQUIRE(joined.wait());
    CHECK(pool.state(1) == ParticipantState::live);
    child.kill();
    CHECK(becomes(maker, pool, 1, ParticipantState::free));
    CHECK(pool.view.slot(2).holders.load() == 0);
    CHECK(child.wait() == 128 + SIGKILL);
    CHECK(maker.call(SHMBW_OP_POOL_LEAVE, shmbw_pool_leave{pool.id, 0, 0}).ok());  // this process lives on
  });
}

TEST_CASE("a descriptor of a wrong kind is refused, one too many or where none belongs costs the connection") {
  on_each_engine({}, [](BrokerFixture& broker) {
    auto memory = shmb::sys::memfd_create("no socket", false);
    auto pair = shmb::sys::seqpacket_pair();
    REQUIRE(memory);
    REQUIRE(pair);
    const int file[] = {memory->get()}, bell[] = {(*pair)[0].get()}, two[] = {bell[0], bell[0]};
    const Books books = books_of(broker);
    const std::size_t before = descriptors_at_rest(broker);
    auto connect = [&] {
      RawClient client = RawClient::connect(broker.socket());
      REQUIRE(client.call(SHMBW_OP_HELLO, passing()).ok());
      return client;
    };
    {
      RawClient client = connect();
      OpenPool pool = make_pool(client);
      const Packet set =
          with_fds(plain(SHMBW_OP_POOL_DOORBELL, 5, shmbw_pool_doorbell{pool.id, SHMBW_DOORBELL_SET, 0, 0, 0}), 1);
      REQUIRE(client.send(set, file));
      CHECK(client.reply(5).header().status == static_cast<int>(shmb::Status::invalid));
      REQUIRE(client.send(set, bell));
      CHECK(client.reply(5).ok());
      CHECK(client.call(SHMBW_OP_POOL_LEAVE, shmbw_pool_leave{pool.id, 0, 0}).ok());
      CHECK(client.status().ok());
      const Packet other =
          with_fds(plain(SHMBW_OP_POOL_DOORBELL, 6, shmbw_pool_doorbell{77, SHMBW_DOORBELL_SET, 0, 0, 0}), 1);
      REQUIRE(client.send(other, bell));  // refused, and closed all the same
      CHECK(client.reply(6).header().status == static_cast<int>(shmb::Status::not_found));
    }
    const Packet set = plain(SHMBW_OP_POOL_DOORBELL, 5, shmbw_pool_doorbell{1, SHMBW_DOORBELL_SET, 0, 0, 0});
    const Packet status = plain(SHMBW_OP_STATUS, 5, shmbw_status{});
    const std::pair<Packet, std::span<const int>> bad[] = {{set, {}},
                                                           {with_fds(set, 1), {}},
                                                           {set, bell},
                                                           {with_fds(set, 1), two},
                                                           {with_fds(set, 2), two},
                                                           {with_fds(status, 1), bell},
                                                           {status, bell}};
    for (const auto& [packet, fds] : bad) {
      RawClient client = connect();
      REQUIRE(client.send(packet, fds));
      CHECK(hung_up(client));
    }
    CHECK(settled(broker, books, before) == "");
  });
}

namespace {

// A stream that nobody reads, full, and with an hour of linger: its last close waits for the reader.
struct NeverClosed {
  shmb::Fd writer, reader;
  static std::optional<NeverClosed> make() {
    const auto stream = [] { return shmb::Fd::adopt(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); };
    const shmb::Fd listener = stream();
    NeverClosed out{stream(), {}};
    sockaddr_in here{};
    here.sin_family = AF_INET;
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof here;
    const linger hour{1, 3600};
    if (::bind(listener.get(), reinterpret_cast<sockaddr*>(&here), sizeof here) != 0 ||
        ::listen(listener.get(), 1) != 0 ||
        ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&here), &length) != 0 ||
        ::connect(out.writer.get(), reinterpret_cast<sockaddr*>(&here), sizeof here) != 0 ||
        ::setsockopt(out.writer.get(), SOL_SOCKET, SO_LINGER, &hour, sizeof hour) != 0)
      return std::nullopt;
    out.reader = shmb::Fd::adopt(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const std::vector<char> bytes(1 << 16);
    while (::send(out.writer.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) continue;
    return out;
  }
};

// For a pool that is not there: refused, and closed in the broker.
bool send_in_vain(RawClient& client, const shmb::Fd& fd) {
  const Packet set =
      with_fds(plain(SHMBW_OP_POOL_DOORBELL, 5, shmbw_pool_doorbell{77, SHMBW_DOORBELL_SET, 0, 0, 0}), 1);
  const int numbers[] = {fd.get()};
  return client.send(set, numbers);
}
bool refused_in_vain(RawClient& client) {
  return client.reply(5).header().status == static_cast<int>(shmb::Status::not_found);
}

}  // namespace

TEST_CASE("a descriptor whose maker lets its close wait for ever keeps neither the broker's service nor its end") {
  on_each_engine({}, [](BrokerFixture& broker) {
    auto stuck = NeverClosed::make();
    if (!stuck) SKIP_CASE("no network of this machine's own here");
    {
      RawClient client = RawClient::connect(broker.socket());
      REQUIRE(client.call(SHMBW_OP_HELLO, passing()).ok());
      // The broker's must be the last one: its close waits.
      harness::stop(broker.pid());
      const bool sent = send_in_vain(client, stuck->writer);
      stuck->writer.reset();
      ::kill(broker.pid(), SIGCONT);
      CHECK(sent);
      CHECK(refused_in_vain(client));
      CHECK(client.status().ok());
    }
    CHECK(broker.stop() == 0);
  });
}

TEST_CASE("law 8: a user whose close never ends keeps no other user's descriptors open in the broker") {
  if (!harness::can_change_uid()) SKIP_CASE("to be two users needs root");
  BrokerOptions options;
  options.system = true;
  on_each_engine(options, [](BrokerFixture& broker) {
    const harness::Gate greeted, stopped, sent, going_on, refused, over;
    const std::string path = broker.socket();
    harness::Child other = harness::Child::run_as(1001, 1001, [&] {
      auto stuck = NeverClosed::make();
      RawClient client = RawClient::connect(path);
      if (!stuck || !client.call(SHMBW_OP_HELLO, passing()).ok()) return 1;
      greeted.open();
      if (!stopped.wait() || !send_in_vain(client, stuck->writer)) return 2;
      stuck->writer.reset();
      sent.open();
      if (!going_on.wait() || !refused_in_vain(client)) return 3;
      refused.open();
      over.wait(60'000);
      return 0;
    });
    REQUIRE(greeted.wait());
    harness::stop(broker.pid());
    stopped.open();
    const bool came = sent.wait();
    ::kill(broker.pid(), SIGCONT);
    REQUIRE(came);
    going_on.open();
    REQUIRE(refused.wait());
    RawClient client = RawClient::connect(path);
    REQUIRE(client.call(SHMBW_OP_HELLO, passing()).ok());
    auto pair = shmb::sys::seqpacket_pair();
    REQUIRE(pair);
    CHECK(send_in_vain(client, (*pair)[0]));
    CHECK(refused_in_vain(client));
    (*pair)[0].reset();
    pollfd end{(*pair)[1].get(), POLLIN, 0};
    CHECK(::poll(&end, 1, 30'000) == 1);
    over.open();
    CHECK(other.wait() == 0);
  });
}

}  // namespace wire_test
