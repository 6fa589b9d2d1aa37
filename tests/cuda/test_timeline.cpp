// SPDX-License-Identifier: Apache-2.0
// Streams and threads of several processes that meet on a timeline, and a producer that dies.
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <future>
#include <thread>

#include "cuda/driver.hpp"
#include "tests/cuda/meeting.hpp"

namespace cuda_tests {
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
          const auto too_far = mine.try_signal(3 + 2 * kStep, worker.stream(), 1);
          ACTOR_CHECK(status_of(too_far) == Status::invalid);
          ACTOR_CHECK(sentence_of(too_far).contains("too far ahead"));
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
  const Gate waiting;
  auto producer = stuck_producer(meeting, "t");
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
          ACTOR_CHECK(sentence_of(refused).contains("64-bit"));
          return 0;
        }).wait() == 0);
  CHECK(Child::run([&] {
          auto session = meeting.member();
          auto mine = gpu::Timeline::create(session);
          Worker worker;
          Captured captured(worker);
          const auto refused = mine.try_signal(1, gpu::Stream(captured.stream()));
          ACTOR_CHECK(status_of(refused) == Status::busy);
          ACTOR_CHECK(sentence_of(refused).contains("after the capture"));
          ACTOR_MUST(mine.try_signal(1, worker.stream()));  // others are free, and none of it harms the capture
          ACTOR_CHECK(captured.end());
          Captured blocking(worker, 0);
          const auto implied = mine.try_signal(2, nullptr);
          ACTOR_CHECK(status_of(implied) == Status::busy);
          ACTOR_CHECK(mine.look().announced == 1);
          ACTOR_CHECK(blocking.end());
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
                                        "cuStreamGetCtx:1:400", "cuStreamGetId:1:400", "cuStreamWriteValue64:1:999"}) {
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

TEST_CASE("registered memory is unregistered also where no context is current any more") {
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
            ACTOR_CHECK(fake.audit().registrations == 2);  // the pin and the words
          }
          ACTOR_CHECK(fake.audit().left() == 0 && fake.audit().violations == 0);
          return 0;
        }).wait() == 0);
}

TEST_CASE("a thread without a context signals in a stream of the second GPU, and the first GPU gets no context") {
  const Meeting meeting;
  CHECK(Child::run([&] {
          auto session = meeting.member();
          auto mine = gpu::Timeline::create(session, {.name = "t"});
          auto other = gpu::Timeline::try_open(session, "t");
          ACTOR_MUST(other);
          auto region = session.create(kMiB);
          Worker worker(1);
          Status signalled = Status::deadline, awaited = Status::deadline, pinned = Status::deadline;
          std::thread([&] {
            signalled = status_of(mine.try_signal(1, worker.stream()));
            awaited = status_of(other->try_wait(1, worker.stream()));
            pinned = status_of(gpu::PinnedHost::try_pin(region));
          }).join();
          ACTOR_CHECK(signalled == Status::ok);
          ACTOR_CHECK(awaited == Status::ok);
          ACTOR_CHECK(pinned == Status::ok);
          ACTOR_MUST(mine.try_wait_host(1, 0, kLong));
          ACTOR_CHECK(worker.finish() == 0);
          unsigned flags = 0;
          int active = -1;
          ACTOR_CHECK((*worker.driver)->primary_state(0, &flags, &active) == 0 && active == 0);
          return 0;
        }).wait() == 0);
}

TEST_CASE("one handle serves default streams of several devices, and refuses a stream of another context than theirs") {
  const Meeting meeting;
  CHECK(Child::run([&] {
          auto session = meeting.member();
          const auto& fake = fakecuda::Fake::use();
          {
            std::optional<gpu::Timeline> mine = gpu::Timeline::create(session, {.name = "t"});
            auto other = gpu::Timeline::try_open(session, "t");
            ACTOR_MUST(other);
            std::uint64_t value = 0;
            for (int ordinal = 0; ordinal < 2; ++ordinal) {
              const Worker worker(ordinal);
              ACTOR_MUST(mine->try_signal(++value, nullptr));
              ACTOR_MUST(other->try_wait(value, nullptr));
              ACTOR_CHECK((*worker.driver)->stream_synchronize(nullptr) == 0);
            }
            const shmb::cuda::Driver& driver = *shmb::cuda::Driver::load().value();
            shmb::cuda::Context own = nullptr;
            shmb::cuda::Stream stream = nullptr;
            ACTOR_CHECK(driver->context_create(&own, 0, 1) == 0 && driver->stream_create(&stream, 0) == 0);
            const auto refused = mine->try_signal(value + 1, stream);
            ACTOR_CHECK(status_of(refused) == Status::invalid);
            ACTOR_CHECK(sentence_of(refused).contains("primary context"));
            ACTOR_CHECK(driver->context_destroy(own) == 0);
            ACTOR_MUST(other->try_wait_host(value, 0, kLong));
          }
          ACTOR_CHECK(fake.audit().left() == 0 && fake.audit().violations == 0);
          return 0;
        }).wait() == 0);
}

TEST_CASE("an announced value is a success, and a stream that cannot be followed any more keeps its pages") {
  const Meeting meeting;
  CHECK(Child::run([&] {
          auto session = meeting.member();
          const auto& fake = fakecuda::Fake::use();
          {
            auto mine = gpu::Timeline::create(session, {.name = "t"});
            auto other = gpu::Timeline::try_open(session, "t");
            ACTOR_MUST(other);
            Worker worker;
            {
              const fakecuda::Injected injected("cuEventRecord:1:1");
              ACTOR_MUST(mine.try_signal(1, worker.stream()));
            }
            ACTOR_MUST(other->try_wait_host(1, 0, kLong));
            ACTOR_MUST(other->try_wait(1, worker.stream()));
            ACTOR_CHECK(worker.finish() == 0);
          }
          ACTOR_CHECK(fake.audit().registrations == 1);  // the producer's words
          return 0;
        }).wait() == 0);
}

TEST_CASE("two threads' own default streams are two, and closing waits for both") {
  const Meeting meeting;
  auto producer = stuck_producer(meeting, "t");
  CHECK(Child::run([&] {
          auto session = meeting.member();
          std::optional<gpu::Timeline> timeline = gpu::Timeline::open(session, "t");
          const Worker worker;
          const auto per_thread = reinterpret_cast<gpu::Stream>(std::uintptr_t{2});
          std::promise<void> over;
          const std::shared_future<void> until(over.get_future());
          const auto in_thread = [&](std::uint64_t value) {
            std::promise<Status> done;
            auto told = done.get_future();
            std::thread([&, value, until, done = std::move(done)]() mutable {
              shmb::cuda::ContextHold hold(*worker.driver, 0);
              auto scope = hold.enter();
              done.set_value(scope ? status_of(timeline->try_wait(value, per_thread)) : Status::no_driver);
              until.wait();  // with its stream, as long as the other
            }).detach();
            return told.get();
          };
          ACTOR_CHECK(in_thread(1) == Status::ok);  // this one waits
          ACTOR_CHECK(in_thread(0) == Status::ok);  // this one passes
          timeline.reset();
          const auto audit = fakecuda::Fake::use().audit();
          ACTOR_CHECK(audit.registrations == 1 && audit.violations == 0);
          ::_exit(0);  // with a stream that waits still
        }).wait() == 0);
  producer.kill();
  CHECK(producer.wait() == 128 + SIGKILL);
}

TEST_CASE("a producer whose own stream is stuck releases its waiters all the same when it closes") {
  const Meeting meeting;
  const Gate ready, closed;
  auto stuck = stuck_producer(meeting, "stuck");
  auto producer = Child::run([&] {
    auto session = meeting.member();
    auto before = gpu::Timeline::try_open(session, "stuck");
    ACTOR_MUST(before);
    std::optional<gpu::Timeline> mine = gpu::Timeline::create(session, {.name = "mine"});
    Worker worker;
    ACTOR_MUST(before->try_wait(1, worker.stream()));
    ACTOR_MUST(mine->try_signal(1, worker.stream()));
    ready.open();
    ACTOR_CHECK(closed.wait());
    mine.reset();
    ::pause();
    return 0;
  });
  REQUIRE(ready.wait());
  CHECK(Child::run([&] {
          auto session = meeting.member();
          auto timeline = gpu::Timeline::try_open(session, "mine");
          ACTOR_MUST(timeline);
          closed.open();
          ACTOR_CHECK(status_of(timeline->try_wait_host(1, 0, kLong)) == Status::producer_dead);
          return 0;
        }).wait() == 0);
  for (auto* child : {&producer, &stuck}) {
    child->kill();
    CHECK(child->wait() == 128 + SIGKILL);
  }
}

TEST_CASE("every call of a timeline says forked child in a child, with and without a driver") {
  const Meeting meeting;
  for (const bool with_driver : {false, true}) {
    CAPTURE(with_driver);
    CHECK(Child::run([&] {
            if (!with_driver) ::setenv("SHMB_LIBCUDA", "libcuda-not-there.so.1", 1);
            auto session = meeting.member();
            const std::string name = with_driver ? "driven" : "plain";
            auto mine = gpu::Timeline::create(session, {.name = name});
            auto other = gpu::Timeline::try_open(session, name);
            ACTOR_MUST(other);
            std::optional<Worker> worker;
            if (with_driver) {
              worker.emplace();
              ACTOR_MUST(mine.try_signal(1, worker->stream()));
              ACTOR_CHECK(worker->finish() == 0);
            }
            const pid_t child = ::fork();
            if (child == 0) {
              const bool told = status_of(mine.try_signal(2, nullptr)) == Status::forked_child &&
                                status_of(other->try_wait(0, nullptr)) == Status::forked_child &&
                                status_of(other->try_wait_host(0, 0, kShort)) == Status::forked_child &&
                                status_of(other->try_look()) == Status::forked_child;
              ::_exit(told ? 0 : 1);
            }
            int status = -1;
            ACTOR_CHECK(::waitpid(child, &status, 0) == child && status == 0);
            ACTOR_CHECK(other->look().status == Status::ok);
            return 0;
          }).wait() == 0);
  }
}

TEST_CASE("a region of the host that is no timeline is not opened as one") {
  const Meeting meeting;
  auto session = meeting.member();
  auto region = session.create(4096, {.name = "config"});
  const auto refused = gpu::Timeline::try_open(session, "config");
  CHECK(status_of(refused) == Status::invalid);
  CHECK(sentence_of(refused).find("no timeline") != std::string::npos);
}

TEST_CASE("lent memory that waits to be freed holds up no signal, though freeing it waits for the device") {
  const Meeting meeting;
  const Gate lent, imported, waits, signalled;
  auto stuck = stuck_producer(meeting, "taken");
  auto user = Child::run([&] {
    ACTOR_CHECK(lent.wait());
    auto session = meeting.member();
    auto region = gpu::Region::try_import(session, std::string("lent"));
    ACTOR_MUST(region);
    imported.open();
    ACTOR_CHECK(waits.wait());
    return 0;
  });
  auto producer = Child::run([&] {
    auto session = meeting.member();
    auto taken = gpu::Timeline::try_open(session, "taken");
    ACTOR_MUST(taken);
    auto ready = gpu::Timeline::create(session, {.name = "ready"});
    Worker blocked, worker;
    shmb::cuda::Address memory = 0;
    ACTOR_CHECK((*worker.driver)->mem_alloc(&memory, kMiB) == 0);
    int freed = 0;
    gpu::LendOptions options;
    options.name = "lent";
    auto lease = gpu::Lease::try_lend(
        session, memory, kMiB, [&](gpu::Pointer pointer) { freed += (*worker.driver)->mem_free(pointer) == 0; },
        options);
    ACTOR_MUST(lease);
    lent.open();
    ACTOR_CHECK(imported.wait());
    ACTOR_MUST(taken->try_wait(1, blocked.stream()));
    ACTOR_MUST(lease->try_retire());
    ACTOR_CHECK(freed == 0);
    auto told = session.try_event_descriptor();
    ACTOR_MUST(told);
    waits.open();
    pollfd readable{*told, POLLIN, 0};
    ACTOR_CHECK(::poll(&readable, 1, 60'000) == 1);  // nobody has it any more
    ACTOR_MUST(ready.try_signal(1, worker.stream()));
    ACTOR_MUST(ready.try_wait_host(1, 0, kLong));
    ACTOR_CHECK(freed == 0);
    signalled.open();
    ACTOR_CHECK(eventually([&] {
      (void)gpu::try_dispatch(session);
      return freed == 1;
    }));
    return 0;
  });
  CHECK(signalled.wait());
  stuck.kill();
  CHECK(stuck.wait() == 128 + SIGKILL);
  CHECK(user.wait() == 0);
  CHECK(producer.wait() == 0);
}

}  // namespace cuda_tests
