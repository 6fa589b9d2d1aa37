// SPDX-License-Identifier: Apache-2.0
// Streams and threads of several processes that meet on a timeline, and a producer that dies.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "cuda/driver.hpp"
#include "tests/cuda/meeting.hpp"

using cuda_tests::comes_true;
using cuda_tests::kMiB;
using cuda_tests::Meeting;
using cuda_tests::session_on;
using cuda_tests::Status;
using cuda_tests::status_of;
using cuda_tests::Worker;
using harness::Child;
using harness::Gate;
namespace gpu = shmbroker::gpu;

namespace {

constexpr auto kShort = std::chrono::milliseconds(50);
constexpr auto kLong = std::chrono::seconds(60);
constexpr std::uint64_t kStep = std::uint64_t{1} << 60;

}  // namespace

TEST_CASE("a stream sees what another process' stream wrote before its signal, and not before") {
  const Meeting meeting;
  constexpr int kRounds = 30;
  auto producer = Child::run([&] {
    ::setenv("FAKECUDA_DELAY_US", "300", 1);
    auto session = meeting.member();
    auto there = gpu::Timeline::create(session, {.name = "there"});
    Worker worker;
    auto region = gpu::Region::allocate(session, 2 * kMiB);
    ACTOR_MUST(region.try_publish({.name = "data", .writing = true}));
    auto back = gpu::Timeline::try_open(session, "back", kLong);
    ACTOR_MUST(back);
    for (int i = 1; i <= kRounds; ++i) {
      ACTOR_CHECK(worker.fill_later(region.pointer(), kMiB, static_cast<unsigned char>(i)) == 0);
      ACTOR_MUST(there.try_signal(static_cast<std::uint64_t>(i), worker.stream()));
      ACTOR_MUST(back->try_wait(static_cast<std::uint64_t>(i), worker.stream(), 0, kLong));
    }
    ACTOR_CHECK(worker.finish() == 0);
    return 0;
  });
  auto consumer = Child::run([&] {
    ::setenv("FAKECUDA_DELAY_US", "300", 1);
    auto session = meeting.member();
    auto back = gpu::Timeline::create(session, {.name = "back"});
    auto there = gpu::Timeline::try_open(session, "there", kLong);
    ACTOR_MUST(there);
    Worker worker;
    gpu::ImportOptions wait;
    wait.wait = kLong;
    auto region = gpu::Region::try_import(session, std::string("data"), wait);
    ACTOR_MUST(region);
    auto copies = gpu::Region::allocate(session, 64 * kMiB);
    for (int i = 1; i <= kRounds; ++i) {
      const std::size_t at = static_cast<std::size_t>(i) * kMiB;
      ACTOR_MUST(there->try_wait(static_cast<std::uint64_t>(i), worker.stream(), 0, kLong));
      ACTOR_CHECK(worker.copy_later(copies.pointer() + at, region->pointer(), kMiB) == 0);
      ACTOR_MUST(back.try_signal(static_cast<std::uint64_t>(i), worker.stream()));
    }
    ACTOR_CHECK(worker.finish() == 0);  // the first time that the host waits
    for (int i = 1; i <= kRounds; ++i)
      ACTOR_CHECK(worker.all(copies.pointer() + static_cast<std::size_t>(i) * kMiB, kMiB) == i);
    return 0;
  });
  CHECK(producer.wait() == 0);
  CHECK(consumer.wait() == 0);
}

TEST_CASE("a wait needs an announced signal, a signal a greater value, and both a word that is there") {
  const Meeting meeting;
  CHECK(Child::run([&] {
          auto session = meeting.member();
          auto mine = gpu::Timeline::create(session, {.name = "t", .words = 2});
          auto other = gpu::Timeline::try_open(session, "t");
          ACTOR_MUST(other);
          Worker worker;
          ACTOR_CHECK(status_of(other->try_wait(1, worker.stream(), 0, kShort)) == Status::deadline);
          ACTOR_CHECK(status_of(other->try_wait_host(1, 0, kShort)) == Status::deadline);
          ACTOR_CHECK(status_of(other->try_signal(1, worker.stream())) == Status::denied);
          ACTOR_CHECK(status_of(mine.try_signal(0, worker.stream())) == Status::invalid);
          ACTOR_MUST(mine.try_signal(3, worker.stream(), 1));
          ACTOR_CHECK(status_of(mine.try_signal(3, worker.stream(), 1)) == Status::invalid);
          ACTOR_CHECK(status_of(mine.try_signal(2, worker.stream(), 1)) == Status::invalid);
          ACTOR_CHECK(status_of(mine.try_signal(1, worker.stream(), 2)) == Status::invalid);
          ACTOR_CHECK(status_of(other->try_wait_host(1, 2)) == Status::invalid);
          ACTOR_MUST(other->try_wait_host(3, 1, kLong));
          ACTOR_MUST(other->try_wait(2, worker.stream(), 1));
          ACTOR_CHECK(worker.finish() == 0);
          const auto state = other->try_look(1);
          ACTOR_CHECK(state && state->counter == 3 && state->announced == 3 && state->status == Status::ok);
          ACTOR_CHECK(state->words == 2);
          ACTOR_CHECK(status_of(gpu::Timeline::try_create(session, {.words = 1025})) == Status::invalid);
          return 0;
        }).wait() == 0);
}

TEST_CASE("values go on past the largest number") {
  const Meeting meeting;
  CHECK(Child::run([&] {
          auto session = meeting.member();
          auto mine = gpu::Timeline::create(session, {.name = "t"});
          auto other = gpu::Timeline::try_open(session, "t");
          ACTOR_MUST(other);
          Worker worker;
          std::uint64_t value = 0;
          for (int i = 0; i < 40; ++i) {
            value += kStep;
            ACTOR_MUST(mine.try_signal(value, worker.stream()));
            ACTOR_MUST(other->try_wait(value, worker.stream()));
            ACTOR_MUST(other->try_wait_host(value, 0, kLong));
          }
          return 0;
        }).wait() == 0);
}

TEST_CASE("a producer killed between the enqueuing and the work releases streams and threads, with a status") {
  const Meeting meeting;
  const Gate enqueued, waiting;
  auto producer = Child::run([&] {
    ::setenv("FAKECUDA_DELAY_US", "600000000", 1);  // what is enqueued never runs in this process' life
    auto session = meeting.member();
    auto timeline = gpu::Timeline::create(session, {.name = "t"});
    Worker worker;
    ACTOR_MUST(timeline.try_signal(1, worker.stream()));
    enqueued.open();
    ::pause();
    return 0;
  });
  REQUIRE(enqueued.wait());
  const auto until_dead = [&](bool by_host) {
    auto session = meeting.member();
    auto timeline = gpu::Timeline::try_open(session, "t");
    ACTOR_MUST(timeline);
    if (by_host) {
      ACTOR_CHECK(status_of(timeline->try_wait_host(1, 0, kLong)) == Status::producer_dead);
      return 0;
    }
    Worker worker;
    ACTOR_MUST(timeline->try_wait(1, worker.stream()));
    ACTOR_CHECK(worker.busy());
    waiting.open();
    ACTOR_CHECK(worker.finish() == 0);
    const auto state = timeline->try_look();
    ACTOR_CHECK(state && state->status == Status::producer_dead);
    ACTOR_CHECK(status_of(timeline->try_wait(1, worker.stream())) == Status::producer_dead);
    ACTOR_CHECK(status_of(timeline->try_wait_host(1, 0, kLong)) == Status::producer_dead);
    return 0;
  };
  auto stream = Child::run([&] { return until_dead(false); });
  auto thread = Child::run([&] { return until_dead(true); });
  REQUIRE(waiting.wait());
  producer.kill();
  CHECK(producer.wait() == 128 + SIGKILL);
  CHECK(stream.wait() == 0);
  CHECK(thread.wait() == 0);
}

TEST_CASE("a producer that closes its timeline releases waiters, and a successor takes the name") {
  const Meeting meeting;
  CHECK(Child::run([&] {
          auto session = meeting.member(), second = meeting.member();
          std::optional<gpu::Timeline> mine = gpu::Timeline::create(session, {.name = "t"});
          auto other = gpu::Timeline::try_open(second, "t");
          ACTOR_MUST(other);
          Worker worker;
          ACTOR_MUST(mine->try_signal(1, worker.stream()));
          ACTOR_MUST(other->try_wait_host(1, 0, kLong));
          mine.reset();
          ACTOR_CHECK(status_of(other->try_wait_host(2, 0, kLong)) == Status::producer_dead);
          ACTOR_MUST(other->try_wait_host(1, 0, kLong));  // what was reached before stays so
          ACTOR_MUST(other->try_wait(1, worker.stream(), 0, kLong));
          ACTOR_CHECK(status_of(other->try_wait(2, worker.stream(), 0, kLong)) == Status::producer_dead);
          ACTOR_CHECK(other->look().counter == 1);
          auto next = gpu::Timeline::try_create(session, {.name = "t", .replace = true});
          ACTOR_MUST(next);
          auto again = gpu::Timeline::try_open(second, "t");
          ACTOR_MUST(again);
          ACTOR_MUST(next->try_signal(1, worker.stream()));
          ACTOR_MUST(again->try_wait_host(1, 0, kLong));
          return 0;
        }).wait() == 0);
}

TEST_CASE("a timeline is followed from the host without a driver, and signalled only with one") {
  const Meeting meeting;
  CHECK(Child::run([&] {
          ::setenv("SHMB_LIBCUDA", "libcuda-not-there.so.1", 1);
          auto session = meeting.member();
          auto mine = gpu::Timeline::create(session, {.name = "t"});
          auto other = gpu::Timeline::try_open(session, "t");
          ACTOR_MUST(other);
          ACTOR_CHECK(status_of(other->try_wait_host(1, 0, kShort)) == Status::deadline);
          ACTOR_CHECK(status_of(mine.try_signal(1, nullptr)) == Status::no_driver);
          ACTOR_CHECK(other->look().announced == 0);  // nothing was promised
          return 0;
        }).wait() == 0);
}

TEST_CASE("a device without 64-bit stream operations, or a stream under capture, is refused by name") {
  const Meeting meeting;
  CHECK(Child::run([&] {
          ::setenv("FAKECUDA_ATTRIBUTE", "122:0", 1);
          auto session = meeting.member();
          auto mine = gpu::Timeline::create(session);
          Worker worker;
          const auto refused = mine.try_signal(1, worker.stream());
          ACTOR_CHECK(status_of(refused) == Status::not_supported);
          ACTOR_CHECK(cuda_tests::sentence_of(refused).contains("64-bit"));
          return 0;
        }).wait() == 0);
  CHECK(Child::run([&] {
          auto session = meeting.member();
          auto mine = gpu::Timeline::create(session);
          Worker worker;
          fakecuda::Fake::use().call<void(bool)>("fakecuda_capture")(true);
          const auto refused = mine.try_signal(1, worker.stream());
          ACTOR_CHECK(status_of(refused) == Status::not_supported);
          ACTOR_CHECK(cuda_tests::sentence_of(refused).contains("captured"));
          return 0;
        }).wait() == 0);
}

TEST_CASE("timelines leave nothing behind in the driver, also where a call fails in the middle") {
  const Meeting meeting;
  CHECK(Child::run([&] {
          auto session = meeting.member();
          const auto& fake = fakecuda::Fake::use();
          {
            Worker worker;
            for (const char* failure : {"cuMemHostRegister:1:2", "cuMemHostGetDevicePointer:1:1",
                                        "cuStreamWriteValue64:1:999", "cuEventCreate:1:2", "cuEventRecord:1:2"}) {
              auto mine = gpu::Timeline::create(session);
              const fakecuda::Injected injected(failure);
              ACTOR_CHECK(!mine.try_signal(1, worker.stream()));
              ACTOR_MUST(mine.try_signal(2, worker.stream()));
              ACTOR_MUST(mine.try_wait_host(2, 0, kLong));
            }
            for (int i = 0; i < 200; ++i) {
              auto mine = gpu::Timeline::create(session, {.name = "t", .replace = true});
              auto other = gpu::Timeline::try_open(session, "t");
              ACTOR_MUST(other);
              ACTOR_MUST(mine.try_signal(1, worker.stream()));
              ACTOR_MUST(other->try_wait(1, worker.stream()));
            }
          }
          const auto audit = fake.audit();
          ACTOR_CHECK(audit.registrations == 0 && audit.events == 0 && audit.streams == 0 && audit.contexts == 0);
          ACTOR_CHECK(audit.violations == 0);
          return 0;
        }).wait() == 0);
}

TEST_CASE("what was registered is given back also where no context is current any more") {
  const Meeting meeting;
  CHECK(Child::run([&] {
          auto session = meeting.member();
          const auto& fake = fakecuda::Fake::use();
          auto region = session.create(kMiB);
          {
            std::optional<gpu::Timeline> timeline = gpu::Timeline::create(session);
            gpu::PinnedHost pin;
            {
              Worker worker;
              pin = gpu::PinnedHost::pin(region);
              ACTOR_MUST(timeline->try_signal(1, worker.stream()));
              ACTOR_CHECK(worker.finish() == 0);
            }
            ACTOR_CHECK(fake.audit().registrations == 2);
          }
          ACTOR_CHECK(fake.audit().left() == 0 && fake.audit().violations == 0);
          return 0;
        }).wait() == 0);
}
