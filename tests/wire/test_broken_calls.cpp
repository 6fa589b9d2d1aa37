// SPDX-License-Identifier: Apache-2.0
// Each system call of the broker fails once: every kind of call, every time it is made, with every errno that it can
// plausibly give. A broker that cannot start says why and ends by itself; one that serves answers with a reason or
// drops the connection cleanly, lives, serves the next request, and has empty books in the end. Usually a few places of
// each kind are taken; --all takes all of them.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cctype>
#include <map>
#include <set>

#include "base/sys_socket.hpp"
#include "tests/harness/stopped.hpp"
#include "tests/support/wire.hpp"

namespace wire_test {
namespace {

// Not EPIPE and ECONNRESET from send: they say that the peer is gone, and one that is not would wait for ever.
const std::map<std::string, std::vector<std::string>>& errnos() {
  static const std::map<std::string, std::vector<std::string>> all = {
      {"memfd_create", {"EMFILE", "ENFILE", "ENOMEM"}},
      {"ftruncate", {"ENOMEM", "EFBIG", "EPERM"}},
      {"fchmod", {"EPERM"}},
      {"mmap", {"ENOMEM"}},
      {"madvise", {"ENOMEM"}},
      {"fstat", {"ENOMEM"}},
      {"add_seals", {"EPERM", "EBUSY"}},
      {"get_seals", {"EINVAL"}},
      {"reopen", {"EMFILE", "ENFILE", "ENOENT", "EACCES"}},
      {"socket", {"EMFILE", "ENFILE", "ENOMEM"}},
      {"bind", {"EADDRINUSE", "EACCES", "ENOSPC"}},
      {"listen", {"EADDRINUSE"}},
      {"accept", {"EMFILE", "ENFILE", "ENOBUFS", "ENOMEM", "ECONNABORTED", "EPERM"}},
      {"send", {"EAGAIN", "ENOBUFS", "ENOMEM", "ETOOMANYREFS", "EMSGSIZE"}},
      {"receive", {"ECONNRESET", "ENOMEM", "EAGAIN"}},
      {"getsockopt", {"ENOPROTOOPT", "ENODATA", "ESRCH", "EMFILE"}},
      {"setsockopt", {"ENOPROTOOPT", "EPERM"}},
      {"outq", {"EINVAL"}},
      {"pidfd_open", {"EMFILE", "ESRCH", "ENOSYS"}},
      {"peer_pidfd", {"EMFILE", "ENODATA", "ENOPROTOOPT", "ESRCH"}},
      {"pidfd_info", {"ENOTTY", "ESRCH", "EINVAL"}},
      {"dup", {"EMFILE"}},
      {"epoll", {"ENOMEM", "ENOSPC", "EMFILE"}},
      {"eventfd", {"EMFILE", "ENOMEM"}},
      {"io_uring_setup", {"ENOSYS", "EPERM", "ENOMEM"}},
      {"io_uring_enter", {"EAGAIN", "EBUSY", "ENOMEM"}},
      {"open", {"EMFILE", "ENOENT", "EACCES"}},
      {"read", {"EIO"}},
      {"getrandom", {"ENOSYS", "EAGAIN"}},
      {"poll", {"ENOMEM"}},
      {"prctl", {"EINVAL", "EPERM"}},
      {"signalfd", {"EMFILE"}},
      {"rlimit", {"EPERM"}},
      {"shutdown", {"ENOTCONN"}},
  };
  return all;
}

// Of a ticket that a failed call may leave behind: longer than a slow machine needs to use it, and shorter than the
// patience with which the books are looked at.
constexpr std::int64_t kTicketLife = 3'000'000'000;

// A walk through everything that the broker does. A failure is noted, not required; only a missing answer, a
// malformed one, or an error without a reason is wrong.
class Walk {
 public:
  explicit Walk(const BrokerFixture& broker) : broker_(broker) {}
  std::string wrong, failed;  // what is not right; all that failed, right or not
  int failures = 0;

  void run() {
    connect(maker_);
    connect(taker_);
    shmbw_create create{};
    create.length = 4096;
    create.name_len = 1;
    auto named = element<shmbw_create_reply>(maker_, SHMBW_OP_CREATE, create, "n").region;
    create.name_len = 0;
    create.length = 80 << 20;  // from 64 MiB on the close is on another thread
    auto large = element<shmbw_create_reply>(maker_, SHMBW_OP_CREATE, create).region;
    create.length = 2 << 20;
    auto recycled = element<shmbw_create_reply>(maker_, SHMBW_OP_CREATE, create).region;
    watch(named);
    shmbw_attach attach{};
    attach.by = SHMBW_ATTACH_BY_ID;
    attach.rights = kRead | kWrite;
    attach.region = named;
    element<shmbw_attach_reply>(taker_, SHMBW_OP_ATTACH, attach);
    for (RawClient* client : {&maker_, &taker_})
      if (client->connected())
        (void)client->send(batch(SHMBW_OP_READY, 0, std::vector{shmbw_ready{named, 4096, 1, 0}}));
    RawPacket ticket = call(maker_, SHMBW_OP_TICKET_CREATE, shmbw_ticket_create{named, kRead, 1, kTicketLife});
    attach.rights = kRead;
    element<shmbw_attach_reply>(taker_, SHMBW_OP_ATTACH, attach);
    attach.by = SHMBW_ATTACH_BY_TICKET;
    if (ticket.ok()) std::memcpy(attach.ticket, ticket.fixed<shmbw_ticket_create_reply>().ticket, sizeof attach.ticket);
    element<shmbw_attach_reply>(taker_, SHMBW_OP_ATTACH, attach);
    call(maker_, SHMBW_OP_PUBLISH, shmbw_publish{named});
    for (std::uint32_t table = 1; table <= 6; ++table) {
      shmbw_list list{};
      list.table = table;
      call(taker_, SHMBW_OP_LIST, list);
    }
    call(taker_, SHMBW_OP_GROUP_CREATE, shmbw_group_create{});
    element<shmbw_release_reply>(maker_, SHMBW_OP_RELEASE, shmbw_release{recycled, 0, SHMBW_RELEASE_RECYCLE});
    element<shmbw_create_reply>(maker_, SHMBW_OP_CREATE, create);
    element<shmbw_release_reply>(maker_, SHMBW_OP_RELEASE, shmbw_release{large, 0, 0});
    call(maker_, SHMBW_OP_STATUS, shmbw_status{});
    maker_.close();
    call(taker_, SHMBW_OP_STATUS, shmbw_status{});
    RawClient admin = RawClient::connect(broker_.admin());
    if (admin.connected()) answered(admin, admin.hello()), call(admin, SHMBW_OP_STATUS, shmbw_status{});
    taker_.close();
  }

 private:
  // A reply of any kind, or the end of the connection; never nothing.
  RawPacket answered(RawClient& client, RawPacket reply) {
    if (reply.kind == RawPacket::Kind::nothing) wrong = "no answer in time";
    if (reply.kind != RawPacket::Kind::packet) client.close();
    else if (reply.status() != 0)
      if (std::string lacks = wrong_with_sentence(error_of(reply)); !lacks.empty()) wrong = lacks;
    if (!reply.ok())
      ++failures, failed += "op " + std::to_string(reply.header().op & 0xff) + ": " + reply.sentence() + "; ";
    return reply;
  }
  void connect(RawClient& client) {
    client = RawClient::connect(broker_.socket());
    if (!client.connected()) wrong = "the broker does not listen";
    else answered(client, client.hello());
  }
  template <class T>
  RawPacket call(RawClient& client, std::uint16_t op, const T& fixed, std::string_view texts = {}) {
    if (!client.connected()) connect(client);
    return client.connected() ? answered(client, client.call(op, fixed, texts)) : RawPacket();
  }
  template <class Reply, class Element>
  Reply element(RawClient& client, std::uint16_t op, const Element& wish, std::string_view texts = {}) {
    if (!client.connected()) connect(client);
    if (!client.connected()) return {};
    RawPacket reply = answered(client, client.call_batch(op, one(wish), texts));
    if (!reply.ok()) return {};
    if (reply.element<shmbw_outcome>(0).status != 0) {
      ++failures;
      failed += "op " + std::to_string(op) + ": " + error_of_element(reply).sentence + "; ";
      if (std::string lacks = wrong_with_sentence(error_of_element(reply)); !lacks.empty()) wrong = lacks;
    }
    return reply.element<Reply>(0);
  }
  void watch(const shmbw_region_ref& region) {
    shmbw_watch wish{};
    wish.kind = SHMBW_WATCH_KIND_REGION;
    wish.events = SHMBW_WATCH_EVENT_PUBLISHED | SHMBW_WATCH_EVENT_GONE;
    wish.region = region;
    call(taker_, SHMBW_OP_WATCH, wish);
  }

  const BrokerFixture& broker_;
  RawClient maker_, taker_;
};

BrokerOptions options_for(const std::string& engine, const std::string& seam) {
  BrokerOptions options;
  options.engine = engine;
  options.seam = seam;
  return options;
}

// The broker's calls during the walk, by its own count, from the start to the end of its life.
std::map<std::string, int> calls_made(const std::string& engine) {
  BrokerFixture broker(options_for(engine, ""));
  REQUIRE_MESSAGE(broker.running(), broker.log());
  Walk walk(broker);
  walk.run();
  CHECK(walk.wrong == "");
  CHECK(walk.failures == 0);
  CHECK(settled(broker, {.answered = true}, 1000) == "");
  REQUIRE(broker.stop() == 0);
  const std::string log = broker.log();
  std::map<std::string, int> calls;
  std::size_t at = log.find("seam: calls");
  REQUIRE(at != std::string::npos);
  for (const auto& [name, errors] : errnos()) {
    std::size_t found = log.find(" " + name + "=", at);
    REQUIRE_MESSAGE(found != std::string::npos, name);
    calls[name] = std::atoi(log.c_str() + found + name.size() + 2);
  }
  return calls;
}

std::set<int> places(int count) {
  std::set<int> places;
  for (int n = 1; n <= count; ++n)
    if (thorough() || n <= 2 || n == count || n == count / 2 || n == count / 4) places.insert(n);
  return places;
}

bool gives_a_reason(const std::string& log) {
  const std::string mark = "] error: ";
  std::size_t at = log.find(mark);
  return at != std::string::npos && log.find(' ', at + mark.size() + 8) != std::string::npos;
}

// "started", "served" or what is wrong.
std::string live_through(const std::string& engine, const std::string& seam, long& not_started) {
  BrokerFixture broker(options_for(engine, seam));
  if (!broker.running()) {
    ++not_started;
    if (broker.start_status() != 1)
      return "it did not start and ended with status " + std::to_string(broker.start_status());
    return gives_a_reason(broker.log()) ? "" : "it did not start and does not say why: " + broker.log();
  }
  Walk walk(broker);
  walk.run();
  if (!walk.wrong.empty()) return walk.wrong;
  Walk again(broker);
  again.run();
  if (!again.wrong.empty()) return "the next time: " + again.wrong;
  // The failing call may be one that the first walk did not reach.
  if (again.failures != 0) {
    Walk last(broker);
    last.run();
    if (last.failures != 0 || !last.wrong.empty())
      return "requests go on failing, " + std::to_string(last.failures) + " of a walk: " + last.failed + last.wrong;
  }
  std::string left = broker.books();
  if (left.find("does not answer") != left.npos) left = broker.books();  // the failing call was the question's own
  if (!left.empty()) return left;
  if (int status = broker.stop(); status != 0)
    return "it ended with status " + std::to_string(status) + ": " + broker.log();
  return {};
}

}  // namespace

TEST_CASE("each system call of the broker fails once: an answer or a clean drop, and the broker lives") {
  for (const std::string& engine : harness::engines()) {
    INFO("engine: ", engine);
    long cases = 0, not_started = 0;
    const std::map<std::string, int> calls = calls_made(engine);
    for (const auto& [call, errors] : errnos()) {
      for (int n : places(calls.at(call))) {
        for (std::size_t i = 0; i < errors.size(); ++i) {
          // Without --all each place fails with one errno, in turn.
          if (!thorough() && i != static_cast<std::size_t>(n) % errors.size()) continue;
          std::string seam = "fail=" + call + ":" + errors[i] + ":" + std::to_string(n);
          INFO("seam: ", seam);
          ++cases;
          CHECK(live_through(engine, seam, not_started) == "");
        }
      }
    }
    CHECK(cases > 50);
    CHECK(not_started < cases / 2);
    MESSAGE(engine << ": " << cases << " failing calls, " << not_started << " of them kept the broker from starting");
  }
}

TEST_CASE("an interrupted call is made again, wherever it happens") {
  for (const std::string& engine : harness::engines()) {
    INFO("engine: ", engine);
    std::string seam;
    for (const auto& [call, errors] : errnos())
      for (int n : {1, 2, 3, 5, 8, 13})
        if (call != "io_uring_setup")
          seam += (seam.empty() ? "" : ";") + ("fail=" + call + ":EINTR:" + std::to_string(n));
    BrokerFixture broker(options_for(engine, seam));
    REQUIRE_MESSAGE(broker.running(), broker.log());
    for (int i = 0; i < 3; ++i) {
      Walk walk(broker);
      walk.run();
      CHECK(walk.wrong == "");
      CHECK_MESSAGE(walk.failures == 0, walk.failed);
    }
  }
}

TEST_CASE("an accept that fails for lack of a resource is retried, and no waiting client is lost") {
  for (const std::string& engine : harness::engines()) {
    for (const char* error : {"EMFILE", "ENFILE", "ENOBUFS", "ENOMEM", "ECONNABORTED", "EPROTO"}) {
      BrokerFixture broker(options_for(engine, std::string("fail=accept:") + error + ":2:3"));
      INFO(engine, " ", error);
      REQUIRE_MESSAGE(broker.running(), broker.log());
      std::vector<RawClient> waiting;
      for (int i = 0; i < 12; ++i) waiting.push_back(RawClient::connect(broker.socket()));
      for (RawClient& client : waiting) CHECK(client.hello().ok());
      for (RawClient& client : waiting) CHECK(client.status().ok());
    }
  }
}

TEST_CASE("each connection over its user's limit is refused, though those refused before stay open") {
  BrokerOptions options;
  options.config = "[limits]\nuid_sessions = 4\n";
  on_each_engine(options, [](BrokerFixture& broker) {
    std::vector<RawClient> served, told;
    while (served.size() < 4) served.push_back(greeted(broker));
    for (std::uint64_t i = 0; i < 40; ++i) {
      told.push_back(RawClient::connect(broker.socket()));
      RawPacket reply = told.back().hello();
      REQUIRE(reply.kind == RawPacket::Kind::packet);
      const shmb::Error error = error_of(reply);
      CHECK(error.status == shmb::Status::limit);
      CHECK(wrong_with_sentence(error) == "");
    }
    for (RawClient& client : served) CHECK(client.status().ok());
    served.pop_back();
    // The newest of those that were told has its connection still.
    for (int tries = 0; tries < 30'000 && !told.back().hello().ok(); ++tries) ::usleep(1000);
    CHECK(told.back().status().ok());
  });
}

TEST_CASE("a client that says HELLO while the broker is stopped is served, however late the broker reads it") {
  BrokerOptions options;
  options.config = "hello_timeout = \"300ms\"\n";
  on_each_engine(options, [](BrokerFixture& broker) {
    std::vector<RawClient> clients;
    for (int i = 0; i < 8; ++i) clients.push_back(RawClient::connect(broker.socket()));
    const harness::Stopped stopped(broker.pid());
    for (RawClient& client : clients) REQUIRE(client.ask(SHMBW_OP_HELLO, RawClient::greeting()) != 0);
    ::usleep(400'000);
    stopped.resume();
    for (RawClient& client : clients) CHECK(client.receive().ok());
  });
}

TEST_CASE("with a full descriptor table the broker serves its sessions, and newcomers as others leave") {
  BrokerOptions options;
  options.config = "descriptors = 128\n";
  on_each_engine(options, [](BrokerFixture& broker) {
    RawClient first = greeted(broker);
    auto region = create_region(first, 4096).region;
    std::vector<RawClient> crowd;
    for (int i = 0; i < 300; ++i) {
      auto socket = shmb::sys::seqpacket_socket(true);
      REQUIRE(socket);
      // Behind a full backlog connect says EAGAIN.
      if (!shmb::sys::connect_path(socket->get(), broker.socket())) continue;
      crowd.emplace_back(std::move(*socket));
      REQUIRE(crowd.back().ask(SHMBW_OP_HELLO, RawClient::greeting()) != 0);
    }
    CHECK(crowd.size() > 64);
    // Those that got in are served, with descriptors too.
    std::size_t served = 0;
    // The first are sure to come; where it ends is only seen by waiting.
    while (served < crowd.size() && crowd[served].receive(served <= 20 ? harness::kRawPatience : 500).ok()) ++served;
    CHECK(served > 20);
    CHECK(served < 96);
    shmbw_attach attach{};
    attach.by = SHMBW_ATTACH_BY_ID;
    attach.rights = kRead | kWrite;
    attach.region = region;
    std::vector<shmb::Fd> fds;
    ok_element<shmbw_attach_reply>(first, SHMBW_OP_ATTACH, attach, {}, &fds);
    CHECK(fds.size() == 1);
    CHECK(first.status().ok());
    CHECK(broker.descriptors() <= 128);
    // An admin gets in by the reserve.
    RawClient admin = greeted(broker.admin());
    auto status = admin.status().fixed<shmbw_status_reply>();
    CHECK(status.descriptors_limit == 128);
    CHECK(status.descriptors <= 128);
    // Everybody is answered in the end, as others leave: served, or told that the table is full.
    for (std::size_t next = 0; next < crowd.size(); ++next) {
      if (next > served) {
        RawPacket reply = crowd[next].receive(30'000);
        REQUIRE_MESSAGE(reply.kind == RawPacket::Kind::packet, broker.log());
        if (!reply.ok()) CHECK(wrong_with_sentence(error_of(reply)) == "");
      }
      crowd[next].close();
    }
    CHECK(first.status().ok());
    CHECK(greeted(broker).status().ok());
    CHECK(broker.log().find("descriptor table is full") != std::string::npos);
  });
}

}  // namespace wire_test
