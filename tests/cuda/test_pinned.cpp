// SPDX-License-Identifier: Apache-2.0
// Regions of the host that devices reach: one memory for both, whatever becomes meanwhile of the handle, the name, the
// group, other users or the broker. The fake pins the pages for real where the kernel lets it, and notes who unmaps
// what is registered.
#include <sys/wait.h>
#include <unistd.h>

#include "tests/cuda/meeting.hpp"

namespace cuda_tests {
namespace {

int cpu_byte(const void* memory, std::size_t at) { return static_cast<const unsigned char*>(memory)[at]; }

// The CPU reads what the device writes, and the reverse.
bool is_one_memory(Worker& worker, void* memory, gpu::Pointer device, unsigned char value) {
  if (worker.fill(device, kMiB, value) != 0 || cpu_byte(memory, 0) != value || cpu_byte(memory, kMiB - 1) != value)
    return false;
  std::memset(memory, value + 1, kMiB);
  return worker.all(device, kMiB) == value + 1;
}

bool nothing_left() {
  const auto audit = fakecuda::Fake::use().audit();
  return audit.left() == 0 && audit.violations == 0;
}

}  // namespace

TEST_CASE("a pinned region is one memory for CPU and device, registered once, and not published meanwhile") {
  const Meeting meeting;
  CHECK(Child::run([&] {
          auto session = meeting.member();
          const auto& fake = fakecuda::Fake::use();
          {
            Worker worker;
            auto region = session.create(kMiB, {.name = "host"});
            std::memset(region.data(), 7, kMiB);
            auto first = gpu::PinnedHost::try_pin(region);
            ACTOR_MUST(first);
            ACTOR_CHECK(worker.all(first->pointer(), kMiB) == 7);
            ACTOR_CHECK(worker.fill(first->pointer(), kMiB, 9) == 0);
            ACTOR_CHECK(static_cast<unsigned char*>(static_cast<void*>(region.data()))[kMiB - 1] == 9);
            {
              auto second = gpu::PinnedHost::try_pin(region);
              ACTOR_MUST(second);
              ACTOR_CHECK(second->pointer() == first->pointer());
              ACTOR_CHECK(fake.audit().registrations == 1);
            }
            shmb_error error;
            ACTOR_CHECK(shmb_publish(region.c(), 0, &error) == static_cast<int>(Status::pinned));
            first = gpu::PinnedHost();
            ACTOR_CHECK(fake.audit().registrations == 0);
            ACTOR_CHECK(shmb_publish(region.c(), 0, &error) == SHMB_OK);
          }
          ACTOR_CHECK(fake.audit().left() == 0 && fake.audit().violations == 0);
          return 0;
        }).wait() == 0);
}

TEST_CASE(
    "a read-only region is pinned for reading where the device can, else refused; foreign registrations are reported") {
  const Meeting meeting;
  for (const bool can : {true, false}) {
    CHECK(Child::run([&] {
            if (!can) ::setenv("FAKECUDA_ATTRIBUTE", "113:0", 1);
            auto maker = meeting.member(), session = meeting.member();
            auto writable = maker.create(kMiB, {.name = "host", .replace = true});
            std::memset(writable.data(), 3, kMiB);
            auto region = session.attach("host");
            Worker worker;
            auto pin = gpu::PinnedHost::try_pin(region);
            if (!can) {
              ACTOR_CHECK(status_of(pin) == Status::not_supported);
              return 0;
            }
            ACTOR_MUST(pin);
            ACTOR_CHECK(worker.all(pin->pointer(), kMiB) == 3);
            auto other = maker.create(kMiB);
            ACTOR_CHECK((*worker.driver)->host_register(other.data(), kMiB, 0) == 0);
            ACTOR_CHECK(status_of(gpu::PinnedHost::try_pin(other)) == Status::already_registered);
            ACTOR_CHECK((*worker.driver)->host_unregister(other.data()) == 0);
            ACTOR_MUST(gpu::PinnedHost::try_pin(other));
            return 0;
          }).wait() == 0);
  }
}

TEST_CASE("a handle that is released while it is pinned leaves mapping and lease to the pin") {
  const Meeting meeting;
  CHECK(Child::run([&] {
          auto session = meeting.member(), other = meeting.member();
          shmbroker::RegionId id;
          {
            Worker worker;
            gpu::PinnedHost first, second;
            void* memory = nullptr;
            {
              auto region = session.create(kMiB, {.name = "host"});
              id = region.id();
              memory = region.data();
              first = gpu::PinnedHost::pin(region);
              second = gpu::PinnedHost::pin(region);
              ACTOR_MUST(region.try_release(true));
            }
            ACTOR_CHECK(status_of(other.try_attach("host")) == Status::not_found);  // the name went at once
            ACTOR_CHECK(is_one_memory(worker, memory, second.pointer(), 3));
            first = gpu::PinnedHost();
            ACTOR_CHECK(is_one_memory(worker, memory, second.pointer(), 5));
            ACTOR_MUST(other.try_attach_writable(id));
          }
          ACTOR_CHECK(eventually([&] { return status_of(other.try_attach(id)) == Status::not_found; }));
          ACTOR_CHECK(nothing_left());
          return 0;
        }).wait() == 0);
}

TEST_CASE("a refused publication leaves a pinned region where it is, and readers see what the device writes") {
  const Meeting meeting;
  CHECK(Child::run([&] {
          auto session = meeting.member(), other = meeting.member();
          {
            Worker worker;
            auto region = session.create(kMiB, {.name = "host"});
            void* const memory = region.data();
            const auto pin = gpu::PinnedHost::pin(region);
            shmb_error error;
            ACTOR_CHECK(shmb_publish(region.c(), 0, &error) == static_cast<int>(Status::pinned));
            ACTOR_CHECK(std::string(error.sentence).contains("unpin"));
            ACTOR_CHECK(region.data() == memory);
            // Another writer cannot publish it either; the broker says so before anything is sealed.
            auto writer = other.attach_writable("host");
            ACTOR_CHECK(shmb_publish(writer.c(), 0, &error) == static_cast<int>(Status::pinned));
            ACTOR_CHECK(std::string(error.sentence).contains("registered"));
            ACTOR_CHECK(is_one_memory(worker, memory, pin.pointer(), 7));
            // A reader closes writing for those who come later, and changes nothing for who has it registered.
            auto reader = other.attach("host");
            ACTOR_CHECK(is_one_memory(worker, memory, pin.pointer(), 9));
            ACTOR_CHECK(cpu_byte(reader.data(), kMiB - 1) == 10);
          }
          ACTOR_CHECK(nothing_left());
          return 0;
        }).wait() == 0);
}

TEST_CASE("the end of its group and of its broker changes nothing for the holder of a pinned region") {
  harness::BrokerOptions options;
  options.expect_empty_books = false;
  options.expect_exit_0 = false;
  Meeting meeting(options);
  const Gate pinned, killed;
  auto user = Child::run([&] {
    auto session = meeting.member();
    {
      Worker worker;
      auto region = session.create(kMiB, {.name = "host"});
      const auto pin = gpu::PinnedHost::pin(region);
      auto other = meeting.member();
      ACTOR_MUST(other.try_end_group(meeting.group.id));
      ACTOR_CHECK(is_one_memory(worker, region.data(), pin.pointer(), 11));
      pinned.open();
      ACTOR_CHECK(killed.wait());
      ACTOR_CHECK(is_one_memory(worker, region.data(), pin.pointer(), 13));
      void* const memory = region.data();
      (void)region.try_release();
      ACTOR_CHECK(is_one_memory(worker, memory, pin.pointer(), 15));
    }
    ACTOR_CHECK(nothing_left());
    return 0;
  });
  CHECK(pinned.wait());
  meeting.broker.kill();
  killed.open();
  CHECK(user.wait() == 0);
}

TEST_CASE("memory that was pinned is never recycled") {
  const Meeting meeting;
  CHECK(Child::run([&] {
          auto session = meeting.member();
          {
            Worker worker;
            for (const bool released_first : {true, false}) {
              auto region = session.create(4 * kMiB);
              auto pin = gpu::PinnedHost::pin(region);
              ACTOR_CHECK(worker.fill(pin.pointer(), 4 * kMiB, 0x5a) == 0);
              if (released_first) region.release();
              pin = gpu::PinnedHost();
              if (!released_first) region.release();
              shmbroker::CreateOptions raw;
              raw.uninitialised = true;
              auto next = session.create(4 * kMiB, raw);
              ACTOR_CHECK(cpu_byte(next.data(), 0) == 0 && cpu_byte(next.data(), 4 * kMiB - 1) == 0);
            }
          }
          ACTOR_CHECK(nothing_left());
          return 0;
        }).wait() == 0);
}

TEST_CASE("a forked child that lets go of a pin and its region takes nothing from its parent") {
  const Meeting meeting;
  CHECK(Child::run([&] {
          auto session = meeting.member(), other = meeting.member();
          {
            Worker worker;
            auto left = session.create(kMiB), kept = session.create(kMiB);
            const shmbroker::RegionId id = left.id();
            void* const memory = left.data();
            auto first = gpu::PinnedHost::pin(left), second = gpu::PinnedHost::pin(kept);
            ACTOR_MUST(left.try_release());
            const pid_t child = ::fork();
            if (child == 0) {
              first = gpu::PinnedHost();
              second = gpu::PinnedHost();
              (void)kept.try_release();
              ::_exit(0);
            }
            int status = -1;
            ACTOR_CHECK(::waitpid(child, &status, 0) == child && status == 0);
            ACTOR_CHECK(is_one_memory(worker, memory, first.pointer(), 17));
            ACTOR_CHECK(is_one_memory(worker, kept.data(), second.pointer(), 19));
            ACTOR_MUST(other.try_attach_writable(id));
          }
          ACTOR_CHECK(nothing_left());
          return 0;
        }).wait() == 0);
}

}  // namespace cuda_tests
