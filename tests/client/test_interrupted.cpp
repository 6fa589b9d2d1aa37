// SPDX-License-Identifier: Apache-2.0
// Waits that a signal ends, in threads that have asked for it (shmb_thread_interruptible). Every wait below is without
// end, or longer than the case may take: if the signal did not end it, the case would not end.
#include <doctest/doctest.h>
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "client/face/shmbroker_pool.h"
#include "client/session/views.hpp"
#include "tests/harness/stopped.hpp"
#include "tests/support/session.hpp"

using namespace support;
using harness::BrokerFixture;

namespace {

constexpr std::int64_t kLong = 100'000'000'000;

std::atomic<int> signals_handled = 0;

// Handlers for the two signals of these cases: SIGUSR1 without SA_RESTART, SIGALRM with it.
class Handlers {
 public:
  Handlers() {
    struct sigaction mine{};
    mine.sa_handler = [](int) { ++signals_handled; };
    ::sigaction(SIGUSR1, &mine, &before_[0]);
    mine.sa_flags = SA_RESTART;
    ::sigaction(SIGALRM, &mine, &before_[1]);
  }
  Handlers(const Handlers&) = delete;
  Handlers& operator=(const Handlers&) = delete;
  ~Handlers() {
    ::sigaction(SIGUSR1, &before_[0], nullptr);
    ::sigaction(SIGALRM, &before_[1], nullptr);
  }

 private:
  struct sigaction before_[2];
};

class Interruptible {
 public:
  Interruptible() : before_(shmb_thread_interruptible(1)) {}
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;
  ~Interruptible() { shmb_thread_interruptible(before_); }

 private:
  int before_;
};

// Sends a signal to the thread that made it, again and again: one may come before the thread waits.
class Storm {
 public:
  explicit Storm(int signal, useconds_t pause = 2000)
      : thread_([this, signal, pause, to = ::pthread_self()] {
          while (!over_) {
            ::pthread_kill(to, signal);
            ::usleep(pause);
          }
        }) {}
  Storm(const Storm&) = delete;
  Storm& operator=(const Storm&) = delete;
  ~Storm() {
    over_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> over_ = false;
  std::thread thread_;
};

template <class T>
T sized() {
  T value{};
  value.size = sizeof value;
  return value;
}

struct CSession {
  shmb_session* raw = nullptr;
  explicit CSession(const BrokerFixture& broker) {
    auto options = sized<shmb_connect_options>();
    options.socket = broker.socket().c_str();
    options.flags = SHMB_CONNECT_NO_GROUP;
    shmb_error error{};
    REQUIRE_MESSAGE(shmb_connect(&options, &raw, &error) == SHMB_OK, error.sentence);
  }
  CSession(const CSession&) = delete;
  CSession& operator=(const CSession&) = delete;
  ~CSession() { shmb_disconnect(raw); }
};

struct CPool {
  shmb_pool* raw = nullptr;
  CPool(shmb_session* session, const char* name, std::uint32_t slots) {
    auto options = sized<shmb_pool_options>();
    options.name = name;
    shmb_size_class one{};
    one.slot_size = 4096;
    one.slots = slots;
    options.classes = &one;
    options.class_count = 1;
    shmb_error error{};
    REQUIRE_MESSAGE(shmb_pool_create(session, &options, &raw, &error) == SHMB_OK, error.sentence);
  }
  CPool(const CPool&) = delete;
  CPool& operator=(const CPool&) = delete;
  ~CPool() { shmb_pool_close(raw); }
};

struct CQueue {
  shmb_queue* raw = nullptr;
  CQueue(shmb_pool* pool, const char* name, std::uint32_t kind, std::uint32_t role, std::uint32_t cells = 4) {
    auto options = sized<shmb_queue_options>();
    options.kind = kind;
    options.role = role;
    options.cells = cells;
    shmb_error error{};
    REQUIRE_MESSAGE(shmb_queue_open(pool, name, &options, &raw, &error) == SHMB_OK, error.sentence);
  }
  CQueue(const CQueue&) = delete;
  CQueue& operator=(const CQueue&) = delete;
  ~CQueue() { shmb_queue_close(raw, 0, nullptr); }
};

struct CMessage {
  shmb_message* raw = nullptr;
  CMessage() { REQUIRE(shmb_message_new(&raw, nullptr) == SHMB_OK); }
  CMessage(const CMessage&) = delete;
  CMessage& operator=(const CMessage&) = delete;
  ~CMessage() { shmb_message_free(raw); }
};

struct Wait {
  std::string name;
  std::function<int(shmb_error*)> make;
};

// Each of them is ended by each kind of signal.
void check_all(const std::vector<Wait>& waits) {
  const Handlers handlers;
  const Interruptible interruptible;
  for (const int signal : {SIGUSR1, SIGALRM})
    for (const Wait& wait : waits) {
      CAPTURE(wait.name);
      CAPTURE(signal);
      shmb_error error{};
      const Storm storm(signal);
      const int status = wait.make(&error);
      CHECK_MESSAGE(status == SHMB_E_INTERRUPTED, error.sentence);
      CHECK(error.status == SHMB_E_INTERRUPTED);
      CHECK(std::string(error.sentence).find("signal") != std::string::npos);
    }
}

}  // namespace

TEST_CASE("a signal ends every call to a stopped broker, and what is granted late is given back") {
  BrokerFixture broker;
  const CSession session(broker);
  shmb_session* const s = session.raw;
  shmb_region* kept = nullptr;
  auto named_kept = sized<shmb_create_options>();
  named_kept.name = "kept";
  REQUIRE(shmb_create(s, 8192, &named_kept, &kept, nullptr) == SHMB_OK);
  const CPool pool(s, "pool", 1);
  auto create = sized<shmb_create_options>();
  create.name = "late";
  create.timeout_ns = kLong;
  auto attach = sized<shmb_attach_options>();
  attach.timeout_ns = kLong;
  attach.rights = SHMB_RIGHT_READ | SHMB_RIGHT_WRITE;
  auto group = sized<shmb_group_options>();
  group.timeout_ns = kLong;
  auto connect = sized<shmb_connect_options>();
  connect.socket = broker.socket().c_str();
  connect.timeout_ns = kLong;
  auto watch = sized<shmb_watch_options>();
  watch.kind = SHMB_WATCH_REGION;
  watch.region = shmb_region_get_id(kept);
  watch.timeout_ns = kLong;
  auto other_pool = sized<shmb_pool_options>();
  other_pool.name = "late";
  other_pool.timeout_ns = kLong;
  auto queue_options = sized<shmb_queue_options>();
  queue_options.kind = SHMB_QUEUE_MPMC;
  queue_options.role = SHMB_QUEUE_READER;
  queue_options.timeout_ns = kLong;
  auto stat = sized<shmb_region_stat>();
  shmb_region* no_region = nullptr;
  shmb_session* no_session = nullptr;
  shmb_pool* no_pool = nullptr;
  shmb_queue* no_queue = nullptr;
  shmb_group no_group{};
  std::uint64_t number = 0;
  std::uint8_t ticket[16] = {1};
  const std::vector<Wait> calls = {
      {"connect", [&](shmb_error* e) { return shmb_connect(&connect, &no_session, e); }},
      {"ping", [&](shmb_error* e) { return shmb_ping(s, kLong, e); }},
      {"create", [&](shmb_error* e) { return shmb_create(s, 8192, &create, &no_region, e); }},
      {"attach", [&](shmb_error* e) { return shmb_attach(s, "kept", &attach, &no_region, e); }},
      {"stat", [&](shmb_error* e) { return shmb_stat(s, "kept", kLong, &stat, e); }},
      {"unname", [&](shmb_error* e) { return shmb_unname(s, "absent", kLong, e); }},
      {"ticket_create", [&](shmb_error* e) { return shmb_ticket_create(kept, 0, 1, 0, kLong, ticket, nullptr, e); }},
      {"group_create", [&](shmb_error* e) { return shmb_group_create(s, &group, &no_group, e); }},
      {"group_join", [&](shmb_error* e) { return shmb_group_join(s, "absent", 0, kLong, &number, e); }},
      {"watch", [&](shmb_error* e) { return shmb_watch(s, &watch, &number, nullptr, e); }},
      {"pool_create", [&](shmb_error* e) { return shmb_pool_create(s, &other_pool, &no_pool, e); }},
      {"queue_open", [&](shmb_error* e) { return shmb_queue_open(pool.raw, "late", &queue_options, &no_queue, e); }},
  };
  const auto books = [&] {
    auto admin = must(try_open(broker.admin()));
    const auto now = must(shmb::client::broker_status(*admin, Deadline::after(0))).record;
    return std::vector<std::uint64_t>{now.regions, now.sessions, now.groups, now.leases, now.tickets, now.watches};
  };
  const auto before = books();
  {
    const harness::Stopped stopped(broker.pid());
    check_all(calls);
  }
  // The next caller takes in the late replies. Then what they granted goes back.
  REQUIRE(shmb_ping(s, 0, nullptr) == SHMB_OK);
  REQUIRE(shmb_ping(s, 0, nullptr) == SHMB_OK);
  for (int i = 0; i < 10'000 && books() != before; ++i, ::usleep(1000)) REQUIRE(shmb_ping(s, 0, nullptr) == SHMB_OK);
  CHECK(books() == before);
  REQUIRE(shmb_create(s, 8192, &create, &no_region, nullptr) == SHMB_OK);
  CHECK(shmb_release(no_region, 0, nullptr) == SHMB_OK);
  CHECK(shmb_release(kept, 0, nullptr) == SHMB_OK);
}

TEST_CASE("a signal ends every wait for others") {
  BrokerFixture broker;
  const CSession session(broker);
  shmb_session* const s = session.raw;
  const CPool pool(s, "pool", 1), other_pool(s, "other", 1);
  const CQueue empty(pool.raw, "empty", SHMB_QUEUE_SPSC, SHMB_QUEUE_READER);
  const CQueue other_empty(other_pool.raw, "empty", SHMB_QUEUE_SPSC, SHMB_QUEUE_READER);
  const CQueue full(pool.raw, "full", SHMB_QUEUE_SPSC, SHMB_QUEUE_READER | SHMB_QUEUE_WRITER);
  std::size_t filled = 0;
  while (shmb_queue_send(full.raw, "x", 1, SHMB_NO_WAIT, nullptr) == SHMB_OK) ++filled;
  shmb_slot slot{};
  REQUIRE(shmb_slot_acquire(pool.raw, 4096, SHMB_NO_WAIT, &slot, nullptr) == SHMB_OK);
  shmb_slot no_slot{};
  CMessage message;
  shmb_queue_set *one = nullptr, *two = nullptr;
  REQUIRE(shmb_queue_set_new(&one, nullptr) == SHMB_OK);
  REQUIRE(shmb_queue_set_new(&two, nullptr) == SHMB_OK);
  REQUIRE(shmb_queue_set_add(one, empty.raw, nullptr, nullptr) == SHMB_OK);
  REQUIRE(shmb_queue_set_add(two, empty.raw, nullptr, nullptr) == SHMB_OK);
  REQUIRE(shmb_queue_set_add(two, other_empty.raw, nullptr, nullptr) == SHMB_OK);
  auto attach = sized<shmb_attach_options>();
  attach.wait_ns = SHMB_FOREVER;
  auto open_pool = sized<shmb_pool_open_options>();
  open_pool.wait_ns = SHMB_FOREVER;
  auto open_queue = sized<shmb_queue_options>();
  open_queue.role = SHMB_QUEUE_READER;
  open_queue.flags = SHMB_QUEUE_OPEN_ONLY;
  open_queue.wait_ns = SHMB_FOREVER;
  auto event = sized<shmb_event>();
  shmb_region* no_region = nullptr;
  shmb_pool* no_pool = nullptr;
  shmb_queue* no_queue = nullptr;
  shmb_part part{};
  part.kind = SHMB_PART_BYTES;
  part.data = "x";
  part.length = 1;
  shmb_outgoing outgoing{};
  outgoing.parts = &part;
  outgoing.count = 1;
  std::size_t count = 7;
  check_all({
      {"next_event", [&](shmb_error* e) { return shmb_next_event(s, SHMB_FOREVER, &event, e); }},
      {"attach", [&](shmb_error* e) { return shmb_attach(s, "absent", &attach, &no_region, e); }},
      {"pool_open", [&](shmb_error* e) { return shmb_pool_open(s, "absent", &open_pool, &no_pool, e); }},
      {"queue_open", [&](shmb_error* e) { return shmb_queue_open(pool.raw, "absent", &open_queue, &no_queue, e); }},
      {"open_alone", [&](shmb_error* e) { return shmb_queue_open_alone(s, "absent", &open_queue, &no_queue, e); }},
      {"acquire", [&](shmb_error* e) { return shmb_slot_acquire(pool.raw, 4096, SHMB_FOREVER, &no_slot, e); }},
      {"send", [&](shmb_error* e) { return shmb_queue_send(full.raw, "y", 1, SHMB_FOREVER, e); }},
      {"send_message", [&](shmb_error* e) { return shmb_queue_send_message(full.raw, &outgoing, SHMB_FOREVER, e); }},
      {"send_many",
       [&](shmb_error* e) { return shmb_queue_send_many(full.raw, &outgoing, 1, SHMB_FOREVER, &count, e); }},
      {"send in a slot",
       [&](shmb_error* e) { return shmb_queue_send(full.raw, std::string(4000, 'x').data(), 4000, SHMB_FOREVER, e); }},
      {"drain", [&](shmb_error* e) { return shmb_queue_drain(full.raw, SHMB_FOREVER, e); }},
      {"receive", [&](shmb_error* e) { return shmb_queue_receive(empty.raw, message.raw, 0, SHMB_FOREVER, e); }},
      {"receive_many",
       [&](shmb_error* e) { return shmb_queue_receive_many(empty.raw, &message.raw, 1, SHMB_FOREVER, &count, e); }},
      {"set of one pool", [&](shmb_error* e) { return shmb_queue_set_wait(one, SHMB_FOREVER, &no_queue, nullptr, e); }},
      {"set of two pools",
       [&](shmb_error* e) { return shmb_queue_set_wait(two, SHMB_FOREVER, &no_queue, nullptr, e); }},
  });
  CHECK(count == 0);
  // Nothing of what was interrupted has been sent.
  for (std::size_t i = 0; i < filled; ++i) {
    REQUIRE(shmb_queue_receive(full.raw, message.raw, 0, SHMB_NO_WAIT, nullptr) == SHMB_OK);
    CHECK(std::string(static_cast<const char*>(shmb_message_data(message.raw)), 1) == "x");
  }
  CHECK(shmb_queue_receive(full.raw, message.raw, 0, SHMB_NO_WAIT, nullptr) == SHMB_E_EMPTY);
  shmb_queue_set_free(one);
  shmb_queue_set_free(two);
  CHECK(shmb_slot_release(pool.raw, &slot, nullptr) == SHMB_OK);
}

TEST_CASE("without the switch no signal ends a wait") {
  BrokerFixture broker;
  const CSession session(broker);
  const CPool pool(session.raw, "pool", 1);
  const CQueue queue(pool.raw, "queue", SHMB_QUEUE_SPSC, SHMB_QUEUE_READER | SHMB_QUEUE_WRITER);
  const Handlers handlers;
  CHECK(shmb_thread_interruptible(1) == 0);
  CHECK(shmb_thread_interruptible(0) == 1);
  CMessage message;
  for (const int signal : {SIGUSR1, SIGALRM}) {
    const int before = signals_handled;
    std::thread sender([&] {
      while (signals_handled < before + 20) ::usleep(1000);
      (void)shmb_queue_send(queue.raw, "x", 1, 0, nullptr);
    });
    const Storm storm(signal);
    CHECK(shmb_queue_receive(queue.raw, message.raw, 0, SHMB_FOREVER, nullptr) == SHMB_OK);
    sender.join();
  }
}

TEST_CASE("a signal ends the wait of its own thread, and no other thread's") {
  BrokerFixture broker;
  const CSession session(broker);
  const Handlers handlers;
  const CPool pool(session.raw, "pool", 1);  // a name is waited for in a group, and this makes it
  std::atomic<bool> other_ended = false;
  shmb_region* found = nullptr;
  std::thread other([&] {
    const Interruptible interruptible;
    auto attach = sized<shmb_attach_options>();
    attach.wait_ns = SHMB_FOREVER;
    CHECK(shmb_attach(session.raw, "awaited", &attach, &found, nullptr) == SHMB_OK);
    other_ended = true;
  });
  for (int i = 0; i < 20; ++i) {
    const Interruptible interruptible;
    const Storm storm(SIGUSR1);
    auto event = sized<shmb_event>();
    CHECK(shmb_next_event(session.raw, SHMB_FOREVER, &event, nullptr) == SHMB_E_INTERRUPTED);
  }
  CHECK(!other_ended);
  auto create = sized<shmb_create_options>();
  create.name = "awaited";
  shmb_region* made = nullptr;
  REQUIRE(shmb_create(session.raw, 4096, &create, &made, nullptr) == SHMB_OK);
  other.join();
  CHECK(shmb_release(found, 0, nullptr) == SHMB_OK);
  CHECK(shmb_release(made, 0, nullptr) == SHMB_OK);
}

TEST_CASE("no message is lost or doubled in a storm of signals") {
  BrokerFixture broker;
  const CSession session(broker), other_session(broker);
  const Handlers handlers;
  for (const std::uint32_t kind : {SHMB_QUEUE_SPSC, SHMB_QUEUE_MPMC, SHMB_QUEUE_BROADCAST}) {
    CAPTURE(kind);
    const std::string name = "pool" + std::to_string(kind);
    const CPool pool(session.raw, name.c_str(), 2);
    auto info = sized<shmb_session_info>();
    REQUIRE(shmb_session_get_info(session.raw, &info, nullptr) == SHMB_OK);
    auto joining = sized<shmb_pool_open_options>();
    shmb_pool* other_pool = nullptr;
    const std::string address = "@" + std::to_string(info.group) + "/" + name;
    REQUIRE(shmb_pool_open(other_session.raw, address.c_str(), &joining, &other_pool, nullptr) == SHMB_OK);
    {
      const CQueue in(pool.raw, "queue", kind, SHMB_QUEUE_READER);
      const CQueue out(other_pool, "queue", kind, SHMB_QUEUE_WRITER);
      constexpr std::uint64_t kMessages = 3000;
      std::atomic<std::uint64_t> interruptions = 0;
      int last_sent = SHMB_OK;
      std::thread sender([&] {
        const Interruptible interruptible;
        const Storm storm(SIGUSR1, 50);
        std::vector<std::uint64_t> body(300);
        for (std::uint64_t i = 0; i < kMessages;) {
          body[0] = i;
          const std::size_t words = i % 3 == 0 ? body.size() : 1;  // in a slot, or in the cell
          const int sent = shmb_queue_send(out.raw, body.data(), words * 8, kLong, nullptr);
          last_sent = sent;
          if (sent == SHMB_OK) ++i;
          else if (sent == SHMB_E_INTERRUPTED) ++interruptions;
          else break;
        }
      });
      {
        const Interruptible interruptible;
        const Storm storm(SIGUSR1, 70);
        CMessage message;
        for (std::uint64_t i = 0; i < kMessages;) {
          const int received = shmb_queue_receive(in.raw, message.raw, 0, kLong, nullptr);
          if (received == SHMB_E_INTERRUPTED) {
            ++interruptions;
            continue;
          }
          REQUIRE(received == SHMB_OK);
          CHECK(*static_cast<const std::uint64_t*>(shmb_message_data(message.raw)) == i);
          CHECK(shmb_message_length(message.raw) == (i % 3 == 0 ? 2400 : 8));
          ++i;
          if (i % 100 == 0) ::usleep(2000);  // so that the writer waits for room, too
        }
      }
      sender.join();
      CHECK(last_sent == SHMB_OK);
      CHECK(interruptions > 0);
      CMessage rest;
      CHECK(shmb_queue_receive(in.raw, rest.raw, 0, SHMB_NO_WAIT, nullptr) == SHMB_E_EMPTY);
    }
    shmb_pool_close(other_pool);
  }
}

TEST_CASE("calls to a broker that answers succeed in a storm of signals, with nothing left behind") {
  BrokerFixture broker;
  const CSession session(broker);
  const Handlers handlers;
  const auto work = [&](const std::string& name) {
    const Interruptible interruptible;
    const Storm storm(SIGUSR1, 100);
    auto create = sized<shmb_create_options>();
    create.name = name.c_str();
    for (int i = 0; i < 200; ++i) {
      shmb_region *made = nullptr, *found = nullptr;
      shmb_error error{};
      int status = 0;
      while ((status = shmb_create(session.raw, 4096, &create, &made, &error)) == SHMB_E_INTERRUPTED) {
      }
      CHECK_MESSAGE(status == SHMB_OK, error.sentence);
      while ((status = shmb_attach(session.raw, name.c_str(), nullptr, &found, &error)) == SHMB_E_INTERRUPTED) {
      }
      CHECK_MESSAGE(status == SHMB_OK, error.sentence);
      CHECK(shmb_release(found, 0, nullptr) == SHMB_OK);
      CHECK(shmb_release(made, SHMB_RELEASE_UNNAME, nullptr) == SHMB_OK);
    }
  };
  std::thread other([&] { work("one"); });
  work("two");
  other.join();
}
