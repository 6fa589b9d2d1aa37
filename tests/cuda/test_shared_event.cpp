// SPDX-License-Identifier: Apache-2.0
// The driver's events between processes: the orders that cases 59 to 62 of docs/conformance.md ask for, and what is
// refused. tests/gpu (T27e) shows how a real driver treats a dead maker.
#include <unistd.h>

#include <atomic>
#include <csignal>

#include "tests/cuda/meeting.hpp"

namespace cuda_tests {
namespace {

constexpr auto kEventPatience = std::chrono::seconds(60);
constexpr gpu::EventOptions kStays{.maker_stays = true};

}  // namespace

TEST_CASE("59 by events: a consumer's stream waits for the producer's late work, and the producer for the answer") {
  const Meeting meeting;
  const Note there, back;
  const Gate recorded, answered, done;
  auto producer = Child::run([&] {
    ::setenv("FAKECUDA_DELAY_US", "20000", 1);
    auto session = meeting.member();
    Worker worker;
    auto event = gpu::SharedEvent::create(kStays);
    there.tell(event.handle());
    auto answer = gpu::SharedEvent::try_open(back.hear<gpu::EventHandle>(), kStays);
    ACTOR_MUST(answer);
    auto region = gpu::Region::allocate(session, 2 * kMiB);
    ACTOR_MUST(region.try_publish({.name = "x", .writing = true, .many_writers = true}));
    ACTOR_CHECK(worker.fill_later(region.pointer(), 4096, 2) == 0);
    ACTOR_MUST(event.try_record(worker.stream()));
    recorded.open();
    ACTOR_CHECK(answered.wait());
    ACTOR_MUST(answer->try_wait(worker.stream()));
    ACTOR_CHECK(worker.finish() == 0);
    ACTOR_CHECK(worker.all(region.pointer() + 4096, 4096) == 2);
    done.open();  // the events go after all have passed
    return 0;
  });
  auto consumer = Child::run([&] {
    auto session = meeting.member();
    Worker worker;
    auto answer = gpu::SharedEvent::create(kStays);
    back.tell(answer.handle());
    auto event = gpu::SharedEvent::try_open(there.hear<gpu::EventHandle>(), kStays);
    ACTOR_MUST(event);
    ACTOR_CHECK(recorded.wait());
    auto region = gpu::Region::try_import(session, std::string("x"), {.access = gpu::Access::read_write});
    ACTOR_MUST(region);
    ACTOR_MUST(event->try_wait(worker.stream()));
    ACTOR_CHECK(worker.copy_later(region->pointer() + 4096, region->pointer(), 4096) == 0);
    ACTOR_MUST(answer.try_record(worker.stream()));
    answered.open();
    ACTOR_CHECK(done.wait());
    return 0;
  });
  CHECK(producer.wait() == 0);
  CHECK(consumer.wait() == 0);
}

TEST_CASE("60 to 62 by events: open before it is recorded, asked and waited for from either side and on any device") {
  (void)Card::get();
  const Note there;
  const Gate opened, recorded, passed;
  auto maker = Child::run([&] {
    Worker other(0), worker(1);  // the second is current now
    auto event = gpu::SharedEvent::create({.device = 0, .maker_stays = true});
    there.tell(event.handle());
    ACTOR_CHECK(opened.wait());
    fakecuda::Fake::use().delay_us(100'000);
    ACTOR_MUST(event.try_record(other.stream()));
    recorded.open();
    ACTOR_MUST(event.try_wait_host(kEventPatience));
    ACTOR_CHECK(event.done());
    ACTOR_CHECK(passed.wait());
    const auto again = event.try_handle();  // after the record too
    ACTOR_MUST(again);
    ACTOR_CHECK(*again == event.handle());
    return 0;
  });
  auto user = Child::run([&] {
    const Worker worker;
    auto event = gpu::SharedEvent::try_open(there.hear<gpu::EventHandle>(), kStays);
    ACTOR_MUST(event);
    ACTOR_CHECK(event->done());  // nothing was recorded yet
    ACTOR_CHECK(status_of(event->try_handle()) == Status::denied);
    opened.open();
    ACTOR_CHECK(recorded.wait());
    ACTOR_MUST(event->try_wait_host(kEventPatience));
    ACTOR_CHECK(event->done());
    event = gpu::SharedEvent();
    passed.open();
    return 0;
  });
  CHECK(maker.wait() == 0);
  CHECK(user.wait() == 0);
}

TEST_CASE("an event whose recorder was killed is waited for until the deadline, and the sentence says what it cannot") {
  (void)Card::get();
  const Note there;
  const Gate recorded, killed;
  auto maker = Child::run([&] {
    const Worker worker;
    auto event = gpu::SharedEvent::create(kStays);
    fakecuda::Fake::use().delay_us(60'000'000);
    ACTOR_MUST(event.try_record(worker.stream()));
    there.tell(event.handle());
    recorded.open();
    ::pause();
    return 0;
  });
  auto user = Child::run([&] {
    const Worker worker;
    ACTOR_CHECK(recorded.wait());
    const auto handle = there.hear<gpu::EventHandle>();
    auto event = gpu::SharedEvent::try_open(handle, kStays);
    ACTOR_MUST(event);
    killed.open();
    const auto waited = event->try_wait_host(std::chrono::milliseconds(100));
    ACTOR_CHECK(status_of(waited) == Status::deadline);
    ACTOR_CHECK(sentence_of(waited).contains("a timeline does"));
    return 0;
  });
  CHECK(killed.wait());
  maker.kill();
  CHECK(maker.wait() == 128 + SIGKILL);
  CHECK(user.wait() == 0);
}

TEST_CASE("only a caller that says their maker stays gets events, on devices that have them, by a true handle") {
  (void)Card::get();
  CHECK(Child::run([] {
          {
            const Worker worker;
            const auto unsaid = gpu::SharedEvent::try_create({});
            ACTOR_CHECK(status_of(unsaid) == Status::invalid);
            ACTOR_CHECK(sentence_of(unsaid).contains("EventOptions::maker_stays") &&
                        sentence_of(unsaid).contains("timeline"));
            auto event = gpu::SharedEvent::create(kStays);
            const auto handle = event.handle();
            ACTOR_CHECK(status_of(gpu::SharedEvent::try_open(handle, {})) == Status::invalid);
            auto same = gpu::SharedEvent::try_open(handle, kStays);  // which the driver would refuse
            ACTOR_MUST(same);
            ACTOR_MUST(same->try_record(worker.stream()));
            ACTOR_MUST(event.try_wait_host(kEventPatience));
            gpu::EventHandle junk{};
            junk[3] = 7;
            const auto opened = gpu::SharedEvent::try_open(junk, kStays);
            ACTOR_CHECK(status_of(opened) == Status::invalid);
            ACTOR_CHECK(sentence_of(opened).contains("PID namespace"));
            ACTOR_CHECK(status_of(gpu::SharedEvent::try_create({.device = 9, .maker_stays = true})) ==
                        Status::device_not_found);
            shmb_error error;
            shmb_gpu_event* raw = nullptr;
            const shmb_gpu_event_options unknown{sizeof unknown, 0, 6};
            ACTOR_CHECK(shmb_gpu_event_create(&unknown, &raw, &error) == SHMB_E_UNKNOWN_FLAGS && raw == nullptr);
            ACTOR_CHECK(shmb_gpu_event_record(nullptr, nullptr, &error) == SHMB_E_INVALID);
            ACTOR_CHECK(shmb_gpu_event_close(nullptr, nullptr) == SHMB_OK);
            for (const char* failure : {"cuEventCreate:1:2", "cuIpcGetEventHandle:1:801"}) {
              const fakecuda::Injected injected(failure);
              ACTOR_CHECK(!gpu::SharedEvent::try_create(kStays));
            }
          }
          const auto audit = fakecuda::Fake::use().audit();
          ACTOR_CHECK(audit.left() == 0 && audit.violations == 0);
          return 0;
        }).wait() == 0);
  CHECK(Child::run([] {
          ::setenv("FAKECUDA_ATTRIBUTE", "125:0", 1);
          const auto refused = gpu::SharedEvent::try_create(kStays);
          ACTOR_CHECK(status_of(refused) == Status::not_supported);
          ACTOR_CHECK(sentence_of(refused).contains("use a timeline"));
          return 0;
        }).wait() == 0);
}

TEST_CASE("an event is recorded behind streams of other contexts and devices, whatever is current") {
  (void)Card::get();
  CHECK(Child::run([] {
          {
            const Worker far(1), worker;  // the second is current
            const auto& driver = *worker.driver;
            auto event = gpu::SharedEvent::create(kStays);
            shmb::cuda::Context own = nullptr;
            shmb::cuda::Stream beside = nullptr;
            ACTOR_CHECK(driver->context_create(&own, 0, 0) == 0);
            ACTOR_CHECK(driver->stream_create(&beside, shmb::cuda::kNonBlocking) == 0);
            for (const gpu::Stream stream : {worker.stream(), far.stream(), gpu::Stream(beside), gpu::Stream()}) {
              std::atomic<bool> held = true;
              const auto wait = [](void* until) {
                while (*static_cast<std::atomic<bool>*>(until)) ::usleep(1000);
              };
              ACTOR_CHECK(driver->launch_host(static_cast<shmb::cuda::Stream>(stream), wait, &held) == 0);
              ACTOR_MUST(event.try_record(stream));
              ACTOR_MUST(event.try_wait(beside));  // and any stream waits for it
              ACTOR_CHECK(!event.done());
              held = false;
              ACTOR_MUST(event.try_wait_host(kEventPatience));
              ACTOR_CHECK(driver->stream_synchronize(beside) == 0);
            }
            // A stream is followed by one of ours, which stays.
            const long before = fakecuda::Fake::use().calls("cuStreamCreate");
            for (int i = 0; i < 5; ++i) ACTOR_MUST(event.try_record(beside));
            ACTOR_MUST(event.try_wait_host(kEventPatience));
            ACTOR_CHECK(fakecuda::Fake::use().calls("cuStreamCreate") == before);
            // Of streams that come and go no more than some are followed at a time.
            for (int i = 0; i < 40; ++i) {
              shmb::cuda::Stream passing = nullptr;
              ACTOR_CHECK(driver->stream_create(&passing, shmb::cuda::kNonBlocking) == 0);
              ACTOR_MUST(event.try_record(gpu::Stream(passing)));
              ACTOR_CHECK(driver->stream_destroy(passing) == 0);
            }
            ACTOR_MUST(event.try_wait_host(kEventPatience));
            ACTOR_CHECK(fakecuda::Fake::use().audit().streams <= 2 + 1 + 32);
            for (const char* failure : {"cuEventCreate:1:2", "cuStreamWaitEvent:1:2", "cuEventRecord:2:2"}) {
              const fakecuda::Injected injected(failure);
              ACTOR_CHECK(status_of(event.try_record(beside)) == Status::out_of_memory);
            }
            {
              Captured captured(worker);  // of that context, which is current
              for (const auto& refused :
                   {event.try_record(gpu::Stream(captured.stream())), event.try_wait(gpu::Stream(captured.stream()))}) {
                ACTOR_CHECK(status_of(refused) == Status::not_supported);
                ACTOR_CHECK(sentence_of(refused).contains("captured"));
              }
              ACTOR_MUST(event.try_record(beside));
              ACTOR_MUST(event.try_wait_host(kEventPatience));
              ACTOR_CHECK(captured.end());  // which none of these has spoilt
            }
            ACTOR_CHECK(driver->stream_destroy(beside) == 0 && driver->context_destroy(own) == 0);
            ACTOR_MUST(event.try_record(worker.stream()));  // the event does not depend on that context
            ACTOR_MUST(event.try_wait_host(kEventPatience));
          }
          const auto audit = fakecuda::Fake::use().audit();
          ACTOR_CHECK(audit.left() == 0 && audit.violations == 0);
          return 0;
        }).wait() == 0);
}

}  // namespace cuda_tests
