// SPDX-License-Identifier: Apache-2.0
// The promises of both engines, without a transport: readiness by level, packets one by one, edges of writability,
// and no call after a removal, even of things that stood in the same turn.
#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <optional>

#include "base/sys_process.hpp"
#include "daemon/transport/engine.hpp"
#include "tests/daemon/books/allocations.hpp"
#include "tests/daemon/books/room.hpp"
#include "tests/harness/injected.hpp"

using namespace shmb;
using namespace shmb::daemon;

namespace {

#define ON_BOTH_ENGINES                              \
  for (EngineChoice choice : room::engine_choices()) \
  DOCTEST_SUBCASE(choice == EngineChoice::epoll ? "epoll" : "io_uring")

struct Ear final : Waiter {
  std::function<void()> body = [] {};
  int calls = 0;
  void on_readable() override {
    ++calls;
    body();
  }
};

struct End final : Port {
  std::vector<std::size_t> sizes;
  int edges = 0;
  std::optional<Arrival> last;
  std::function<void()> on_packet = [] {};
  void on_arrival(Arrival& arrival) override {
    sizes.push_back(arrival.bytes.size());
    last = std::move(arrival);
    last->bytes = {};
    on_packet();
  }
  void on_writable() override { ++edges; }
};

void turn(Engine& engine, int times = 4) {
  for (int i = 0; i < times; ++i) REQUIRE(engine.run_once(200'000));
}

void send(int fd, std::size_t size) {
  std::vector<char> bytes(size, 'x');
  REQUIRE(::send(fd, bytes.data(), size, MSG_DONTWAIT | MSG_NOSIGNAL) == static_cast<ssize_t>(size));
}

}  // namespace

TEST_CASE("a waiter is called as long as its descriptor is readable, and not after unwatch") {
  ON_BOTH_ENGINES {
    auto chosen = std::move(*choose_engine(choice));
    auto event = std::move(*sys::event_fd());
    Ear ear;
    REQUIRE(chosen.engine->watch(event.get(), ear));
    turn(*chosen.engine);
    CHECK(ear.calls == 0);
    std::uint64_t one = 1;
    REQUIRE(::write(event.get(), &one, sizeof one) == sizeof one);
    turn(*chosen.engine);
    CHECK(ear.calls >= 3);  // never read: level
    chosen.engine->unwatch(ear);
    int before = ear.calls;
    turn(*chosen.engine);
    CHECK(ear.calls == before);
  }
}

TEST_CASE("a waiter may leave, and another come, from inside the call") {
  ON_BOTH_ENGINES {
    auto chosen = std::move(*choose_engine(choice));
    auto event = std::move(*sys::event_fd());
    std::uint64_t one = 1;
    REQUIRE(::write(event.get(), &one, sizeof one) == sizeof one);
    Ear first, second;
    first.body = [&] {
      chosen.engine->unwatch(first);
      REQUIRE(chosen.engine->watch(event.get(), second));
    };
    REQUIRE(chosen.engine->watch(event.get(), first));
    turn(*chosen.engine);
    CHECK(first.calls == 1);
    CHECK(second.calls >= 1);
    chosen.engine->unwatch(second);
  }
}

TEST_CASE("two that are ready in one turn: the first may remove the second") {
  ON_BOTH_ENGINES {
    auto chosen = std::move(*choose_engine(choice));
    auto one_event = std::move(*sys::event_fd()), other_event = std::move(*sys::event_fd());
    std::uint64_t one = 1;
    Ear left, right;
    left.body = [&] { chosen.engine->unwatch(right); };
    right.body = [&] { chosen.engine->unwatch(left); };
    REQUIRE(chosen.engine->watch(one_event.get(), left));
    REQUIRE(chosen.engine->watch(other_event.get(), right));
    REQUIRE(::write(one_event.get(), &one, sizeof one) == sizeof one);
    REQUIRE(::write(other_event.get(), &one, sizeof one) == sizeof one);
    turn(*chosen.engine);
    CHECK((left.calls == 0 || right.calls == 0));
    CHECK(left.calls + right.calls >= 1);
    chosen.engine->unwatch(left);
    chosen.engine->unwatch(right);
  }
}

TEST_CASE("one packet for each ask, in order, and nothing unasked") {
  ON_BOTH_ENGINES {
    auto chosen = std::move(*choose_engine(choice));
    auto pair = std::move(*sys::seqpacket_pair());
    End end;
    REQUIRE(chosen.engine->add(pair[0].get(), end, chosen.engine->turns.join(1, 1)));
    send(pair[1].get(), 10);
    send(pair[1].get(), 20);
    send(pair[1].get(), 30);
    turn(*chosen.engine);
    CHECK(end.sizes.empty());
    chosen.engine->receive(end);
    turn(*chosen.engine);
    CHECK(end.sizes == std::vector<std::size_t>{10});
    end.on_packet = [&] { chosen.engine->receive(end); };
    chosen.engine->receive(end);
    turn(*chosen.engine);
    CHECK(end.sizes == std::vector<std::size_t>{10, 20, 30});
    send(pair[1].get(), SHMBW_MAX_MESSAGE);
    turn(*chosen.engine);
    CHECK(end.sizes.back() == SHMBW_MAX_MESSAGE);
    CHECK_FALSE(end.last->truncated);
    send(pair[1].get(), SHMBW_MAX_MESSAGE + 1);
    turn(*chosen.engine);
    CHECK(end.last->truncated);
    end.on_packet = [] {};
    pair[1].reset();
    turn(*chosen.engine);
    CHECK(end.sizes.back() == 0);
    CHECK(end.last->error == 0);
    chosen.engine->remove(end);
  }
}

TEST_CASE("a port that leaves while it waits for a packet hears nothing of it, and its place can be taken") {
  ON_BOTH_ENGINES {
    auto chosen = std::move(*choose_engine(choice));
    auto pair = std::move(*sys::seqpacket_pair()), next = std::move(*sys::seqpacket_pair());
    End old_end, new_end;
    REQUIRE(chosen.engine->add(pair[0].get(), old_end, chosen.engine->turns.join(1, 1)));
    chosen.engine->receive(old_end);
    turn(*chosen.engine);
    send(pair[1].get(), 10);
    chosen.engine->remove(old_end);
    pair[0].reset();
    REQUIRE(chosen.engine->add(next[0].get(), new_end, chosen.engine->turns.join(1, 1)));
    chosen.engine->receive(new_end);
    turn(*chosen.engine);
    CHECK(old_end.sizes.empty());
    CHECK(new_end.sizes.empty());
    send(next[1].get(), 40);
    turn(*chosen.engine);
    CHECK(new_end.sizes == std::vector<std::size_t>{40});
    chosen.engine->remove(new_end);
  }
}

TEST_CASE("writability is reported by edges: once for each packet that the peer reads") {
  ON_BOTH_ENGINES {
    auto chosen = std::move(*choose_engine(choice));
    auto pair = std::move(*sys::seqpacket_pair());
    End end;
    REQUIRE(chosen.engine->add(pair[0].get(), end, chosen.engine->turns.join(1, 1)));
    send(pair[0].get(), 64);
    send(pair[0].get(), 64);
    chosen.engine->await_writable(end, true);
    turn(*chosen.engine);
    int idle = end.edges;
    CHECK(idle <= 1);
    char buffer[64];
    for (int i = 1; i <= 2; ++i) {
      REQUIRE(::recv(pair[1].get(), buffer, sizeof buffer, 0) == 64);
      turn(*chosen.engine);
      CHECK(end.edges == idle + i);
    }
    chosen.engine->await_writable(end, false);
    send(pair[0].get(), 64);
    REQUIRE(::recv(pair[1].get(), buffer, sizeof buffer, 0) == 64);
    turn(*chosen.engine);
    CHECK(end.edges == idle + 2);
    // On, off and on again within a turn: an older wait that is still being taken back must not swallow the new one.
    chosen.engine->await_writable(end, true);
    chosen.engine->await_writable(end, false);
    chosen.engine->await_writable(end, true);
    turn(*chosen.engine);
    idle = end.edges;
    send(pair[0].get(), 64);
    REQUIRE(::recv(pair[1].get(), buffer, sizeof buffer, 0) == 64);
    turn(*chosen.engine);
    CHECK(end.edges > idle);
    chosen.engine->remove(end);
  }
}

TEST_CASE("a port that asked for edges again and again leaves nothing behind that keeps its socket open") {
  ON_BOTH_ENGINES {
    auto chosen = std::move(*choose_engine(choice));
    auto pair = std::move(*sys::seqpacket_pair());
    End end;
    REQUIRE(chosen.engine->add(pair[0].get(), end, chosen.engine->turns.join(1, 1)));
    for (const bool on : {true, false, true, false, true}) chosen.engine->await_writable(end, on);
    turn(*chosen.engine);
    chosen.engine->remove(end);
    turn(*chosen.engine);
    pair[0].reset();
    char byte;
    CHECK(::recv(pair[1].get(), &byte, 1, MSG_DONTWAIT) == 0);  // end of file: no wait of the kernel's holds the socket
  }
}

TEST_CASE("a peer that closes is an edge too, for a port that does not ask for packets") {
  ON_BOTH_ENGINES {
    auto chosen = std::move(*choose_engine(choice));
    auto pair = std::move(*sys::seqpacket_pair());
    End end;
    REQUIRE(chosen.engine->add(pair[0].get(), end, chosen.engine->turns.join(1, 1)));
    send(pair[0].get(), 64);
    chosen.engine->await_writable(end, true);
    turn(*chosen.engine);
    int idle = end.edges;
    pair[1].reset();
    turn(*chosen.engine);
    CHECK(end.edges > idle);
    CHECK(end.edges < idle + 4);  // told, not repeated at each turn
    chosen.engine->remove(end);
  }
}

TEST_CASE("more asks than the kernel takes at once, while it has no memory, are made now and then and none is lost") {
  constexpr std::size_t kMany = 300;  // than io_uring has entries
  constexpr std::int64_t kLeastPause = 9'000'000;
  for (const int code : {ENOMEM, EAGAIN, EBUSY}) {
    for (EngineChoice choice : room::engine_choices()) {
      CAPTURE(code);
      auto chosen = std::move(*choose_engine(choice));
      std::vector<std::array<Fd, 2>> pairs;
      std::vector<std::unique_ptr<End>> ends;
      for (std::size_t i = 0; i < kMany; ++i) {
        pairs.push_back(std::move(*sys::seqpacket_pair()));
        ends.push_back(std::make_unique<End>());
        REQUIRE(chosen.engine->add(pairs.back()[0].get(), *ends.back(), chosen.engine->turns.join(1, 1)));
      }
      const std::int64_t began = sys::now_monotonic();
      {
        const harness::Injected fault(fault::Call::io_uring_enter, code, 1, 5);
        for (auto& end : ends) chosen.engine->receive(*end);
        // Each of those that failed was followed by a pause.
        CHECK(fault::count(fault::Call::io_uring_enter) <= 1 + (sys::now_monotonic() - began) / kLeastPause);
      }
      for (std::size_t i = 0; i < kMany; ++i) send(pairs[i][1].get(), 1 + i);
      const auto all = [&] { return std::ranges::all_of(ends, [](const auto& end) { return !end->sizes.empty(); }); };
      for (int turns = 0; !all() && turns < 10'000; ++turns) REQUIRE(chosen.engine->run_once(1'000'000));
      for (std::size_t i = 0; i < kMany; ++i) CHECK(ends[i]->sizes == std::vector<std::size_t>{1 + i});
      for (auto& end : ends) chosen.engine->remove(*end);
    }
  }
}

TEST_CASE("receives for which the kernel has no memory are asked for again and again without any of ours") {
  ON_BOTH_ENGINES {
    auto chosen = std::move(*choose_engine(choice));
    std::vector<std::array<Fd, 2>> pairs;
    std::vector<std::unique_ptr<End>> ends;
    for (int i = 0; i < 5; ++i) {
      pairs.push_back(std::move(*sys::seqpacket_pair()));
      ends.push_back(std::make_unique<End>());
      REQUIRE(chosen.engine->add(pairs.back()[0].get(), *ends.back(), chosen.engine->turns.join(1, 1)));
      send(pairs.back()[1].get(), 7);
    }
    {
      const harness::Injected fault(fault::Call::receive, ENOMEM, 1, -1);
      const room::AllocationsForbidden here;
      for (auto& end : ends) chosen.engine->receive(*end);
      bool fine = true;
      for (int turns = 0; fault::count(fault::Call::receive) < 20 && turns < 20'000; ++turns)
        fine &= static_cast<bool>(chosen.engine->run_once(20'000'000));
      CHECK(fine);
      CHECK(here.seen() == 0);
      CHECK(fault::count(fault::Call::receive) >= 20);
    }
    const auto all = [&] { return std::ranges::all_of(ends, [](const auto& end) { return end->sizes.size() == 1; }); };
    for (int turns = 0; !all() && turns < 10'000; ++turns) REQUIRE(chosen.engine->run_once(1'000'000));
    CHECK(all());
    for (auto& end : ends) chosen.engine->remove(*end);
  }
}

TEST_CASE("an engine that waits for nothing comes back at its time-out") {
  ON_BOTH_ENGINES {
    auto chosen = std::move(*choose_engine(choice));
    CHECK(chosen.engine->run_once(0));
    CHECK(chosen.engine->run_once(1'000'000));
  }
}

TEST_CASE("the choice: the engine that works, with its reason; a configured engine is never replaced in silence") {
  CHECK(choose_engine(EngineChoice::epoll)->reason == "epoll: as configured");
  harness::Injected fault(fault::Call::io_uring_setup, ENOSYS, 1, -1);
  auto automatic = choose_engine(EngineChoice::automatic);
  REQUIRE(automatic);
  CHECK_FALSE(automatic->io_uring);
  const bool built_with = automatic->reason.find("built without liburing") == std::string::npos;
  if (built_with) CHECK(automatic->reason.find("ENOSYS") != std::string::npos);
  auto forced = choose_engine(EngineChoice::io_uring);
  REQUIRE_FALSE(forced);
  CHECK(forced.error().sentence.find("use --engine epoll or --engine auto") != std::string::npos);
  fault::inject(fault::Call::epoll, EMFILE, 1, -1);
  CHECK_FALSE(choose_engine(EngineChoice::epoll));
}
