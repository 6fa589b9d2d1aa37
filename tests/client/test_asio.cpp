// SPDX-License-Identifier: Apache-2.0
// A queue in somebody else's event loop, Boost.Asio here: the loop waits for the queue's descriptor, the program
// receives until EMPTY, and waits again. Everything arrives, the end of the queue too, beside the loop's other work.
//
// The descriptor belongs to the queue: the loop must release it and never close it.
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <span>
#include <vector>

#include "client/face/shmbroker.hpp"
#include "client/face/shmbroker_pool.hpp"
#include "tests/harness/broker_fixture.hpp"
#include "tests/harness/child.hpp"

namespace {

using boost::asio::posix::stream_descriptor;
using namespace std::chrono_literals;

constexpr std::uint64_t kMessages = 2000;

// Reads one queue for as long as its loop runs.
class QueueInLoop {
 public:
  QueueInLoop(boost::asio::io_context& loop, shmbroker::Queue queue)
      : queue_(std::move(queue)), descriptor_(loop, queue_.descriptor()) {
    receive();  // the first wait comes after a receive that answered EMPTY
  }
  ~QueueInLoop() { descriptor_.release(); }
  QueueInLoop(const QueueInLoop&) = delete;
  QueueInLoop& operator=(const QueueInLoop&) = delete;

  std::vector<std::uint64_t> numbers;
  std::uint64_t wakes = 0;
  bool closed = false;

 private:
  void receive() {
    for (;;) {
      auto received = queue_.try_receive(message_, shmbroker::Timeout::no_wait());
      if (received) {
        numbers.push_back(message_.as_span<std::uint64_t>()[0]);
        continue;
      }
      const shmbroker::Status status = received.error().status();
      if (status == shmbroker::Status::peer_gone) continue;  // told once
      if (status == shmbroker::Status::empty) return wait();
      closed = status == shmbroker::Status::closed;
      return;
    }
  }
  void wait() {
    descriptor_.async_wait(stream_descriptor::wait_read, [this](boost::system::error_code failure) {
      if (failure) return;
      ++wakes;
      receive();
    });
  }

  shmbroker::Queue queue_;
  stream_descriptor descriptor_;
  shmbroker::Message message_;
};

// Its own end of the queue, in a forked child: in bursts, so that the reader's loop sleeps between them.
int send_numbers(const shmbroker::Pool& pool, bool killed) {
  auto queue = pool.open_queue("q", shmbroker::Role::writer);
  for (std::uint64_t i = 0; i < kMessages; ++i) {
    if (i % 100 == 0) ::usleep(1000);
    if (i % 2 == 0) {
      auto slot = pool.acquire(8, 60s);
      slot.as_span<std::uint64_t>()[0] = i;
      queue.send(slot, 60s);
    } else {
      queue.send(std::as_bytes(std::span(&i, 1)), 60s);
    }
  }
  if (killed) ::raise(SIGKILL);
  queue.shutdown();
  return 0;
}

}  // namespace

TEST_CASE("a queue's descriptor in an event loop of Boost.Asio") {
  const harness::BrokerFixture broker;
  shmbroker::ConnectOptions connect;
  connect.socket = broker.socket();
  connect.join_group = false;
  auto session = shmbroker::Session::connect(connect);
  shmbroker::PoolOptions make;
  make.name = "p";
  make.classes = {{64, 32, 32}};
  const auto pool = shmbroker::Pool::create(session, make);
  bool killed = false;
  SUBCASE("its writer closes the queue") {}
  SUBCASE("its writer is killed") { killed = true; }
  CAPTURE(killed);

  auto child = harness::Child::run([&] { return send_numbers(pool, killed); });
  boost::asio::io_context loop;
  QueueInLoop reader(loop, pool.open_queue("q", shmbroker::Role::reader));
  // The loop's other work: it ends the loop when all is there, or after far too long.
  boost::asio::steady_timer timer(loop);
  std::uint64_t ticks = 0;
  std::function<void()> tick = [&] {
    if (++ticks == 6000 || reader.closed || (killed && reader.numbers.size() == kMessages)) return loop.stop();
    timer.expires_after(10ms);
    timer.async_wait([&](boost::system::error_code) { tick(); });
  };
  tick();
  loop.run();
  CHECK(child.wait() == (killed ? 128 + SIGKILL : 0));
  CHECK(reader.closed == !killed);
  CHECK(reader.wakes > 0);
  REQUIRE(reader.numbers.size() == kMessages);
  for (std::uint64_t i = 0; i < kMessages; ++i) REQUIRE(reader.numbers[i] == i);
}
