// SPDX-License-Identifier: Apache-2.0
// GPU memory between processes that die, fork and ruin their contexts. Only actors use the driver.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "client/calls/gpu_calls.hpp"
#include "client/session/views.hpp"
#include "tests/cuda/meeting.hpp"
#include "tests/harness/ptrace_killer.hpp"
#include "tests/harness/skip.hpp"

namespace cuda_tests {
namespace {

// How many sessions have leases on a region of the broker, without its publisher.
std::uint32_t importers(const harness::BrokerFixture& broker, shmbroker::RegionId id) {
  auto asking = support::must(support::try_open(broker.socket()));
  shmb::client::Selection only;
  only.region = {id.id, id.generation, 0};
  const auto listed =
      support::must(shmb::client::list_gpu_regions(*asking, only, shmb::client::Deadline::after(60'000'000'000)));
  return listed.rows.empty() ? 0 : listed.rows.front().record.importers;
}

}  // namespace

TEST_CASE("a region of a killed producer is imported afterwards, byte for byte") {
  const Meeting meeting;
  const Gate published;
  auto producer = Child::run([&] { return publish_w(meeting, 0x61, published); });
  REQUIRE(published.wait());
  producer.kill();
  CHECK(producer.wait() == 128 + SIGKILL);
  CHECK(Child::run([&] { return read_w(meeting, 0x61); }).wait() == 0);
  CHECK(Child::run([&] { return read_w(meeting, 0x61); }).wait() == 0);  // and again
}

TEST_CASE("importers of a producer that is killed meanwhile get all of it or an answer, and never half") {
  const Meeting meeting;
  for (int round = 0; round < 4; ++round) {
    const Gate begun;
    auto producer = Child::run([&] {
      auto session = meeting.member();
      Device device;
      begun.open();
      gpu::AllocateOptions patient;  // what was replaced is closed on a thread of the broker's
      patient.retry = shmbroker::Timeout(std::chrono::seconds(60));
      for (unsigned char i = 0;; ++i) {
        auto region = gpu::Region::allocate(session, 2 * kMiB, patient);
        ACTOR_CHECK(device.fill(region.pointer(), 2 * kMiB, i) == 0);
        ACTOR_MUST(region.try_publish({.name = "w", .replace = true}));
      }
    });
    auto consumer = Child::run([&] {
      auto session = meeting.member();
      Device device;
      for (int i = 0; i < 40; ++i) {
        auto region = gpu::Region::try_import(session, std::string("w"));
        if (!region) {
          ACTOR_CHECK(status_of(region) == Status::not_found);
          continue;
        }
        ACTOR_CHECK(device.all(region->pointer(), 2 * kMiB) >= 0);
        ACTOR_CHECK(gpu::try_dispatch(session));
        ACTOR_CHECK(region->state() == gpu::State::ok);
      }
      return 0;
    });
    REQUIRE(begun.wait());
    std::this_thread::sleep_for(std::chrono::milliseconds(5 + 10 * round));
    producer.kill();
    CHECK(producer.wait() == 128 + SIGKILL);
    CHECK(consumer.wait() == 0);
  }
}

TEST_CASE("a consumer that is killed leaves no reference behind") {
  const Meeting meeting;
  const Gate published, holding;
  auto producer = Child::run([&] { return publish_w(meeting, 1, published); });
  REQUIRE(published.wait());
  auto consumer = Child::run([&] {
    auto session = meeting.member();
    auto region = gpu::Region::try_import(session, std::string("w"));
    ACTOR_MUST(region);
    holding.open();
    ::pause();
    return 0;
  });
  REQUIRE(holding.wait());
  const auto stat = [&] { return meeting.session.try_stat("w"); };
  CHECK(stat()->holders == 2);
  consumer.kill();
  CHECK(consumer.wait() == 128 + SIGKILL);
  const bool gone = eventually([&] { return stat()->holders == 1; });
  CHECK(gone);
  producer.kill();
  CHECK(producer.wait() == 128 + SIGKILL);
}

TEST_CASE("a writer that dies poisons its region: readers get an error, and writing is refused") {
  const Meeting meeting;
  const Gate published, imported;
  gpu::PublishOptions writing;
  writing.writing = writing.many_writers = true;
  auto producer = Child::run([&] { return publish_w(meeting, 5, published, writing); });
  REQUIRE(published.wait());
  auto consumer = Child::run([&] {
    auto session = meeting.member();
    Device device;
    auto region = gpu::Region::try_import(session, std::string("w"));
    ACTOR_MUST(region);
    auto watch = session.try_watch(region->id());
    ACTOR_MUST(watch);
    imported.open();
    auto event = session.try_next_event(shmbroker::Timeout(std::chrono::seconds(60)));
    ACTOR_MUST(event);
    ACTOR_CHECK(event->kind == shmbroker::EventKind::gpu_state);
    ACTOR_CHECK(event->how == SHMB_GPU_POISONED);
    ACTOR_CHECK(event->region == region->id());
    ACTOR_CHECK(eventually([&] {
      (void)gpu::try_dispatch(session);
      return region->state() == gpu::State::poisoned;
    }));
    ACTOR_CHECK(device.all(region->pointer(), 4 * kMiB) == 5);  // what there is can be read
    gpu::ImportOptions as_writer;
    as_writer.access = gpu::Access::read_write;
    ACTOR_CHECK(status_of(gpu::Region::try_import(session, region->id(), as_writer)) == Status::region_poisoned);
    auto another = gpu::Region::try_import(session, region->id());
    ACTOR_MUST(another);
    ACTOR_CHECK(another->state() == gpu::State::poisoned);
    return 0;
  });
  REQUIRE(imported.wait());
  producer.kill();
  CHECK(producer.wait() == 128 + SIGKILL);
  CHECK(consumer.wait() == 0);
}

TEST_CASE("a writer that ends as it should, or has said `written`, poisons nothing") {
  const Meeting meeting;
  const Gate published;
  auto producer = Child::run([&] {
    auto session = meeting.member();
    Device device;
    auto region = gpu::Region::allocate(session, 4 * kMiB);
    ACTOR_MUST(region.try_publish({.name = "w", .writing = true}));
    ACTOR_CHECK(device.fill(region.pointer(), 4 * kMiB, 6) == 0);
    ACTOR_MUST(region.try_written());
    published.open();
    ::pause();
    return 0;
  });
  REQUIRE(published.wait());
  producer.kill();
  CHECK(producer.wait() == 128 + SIGKILL);
  CHECK(Child::run([&] {
          if (read_w(meeting, 6) != 0) return 1;
          auto session = meeting.member();
          auto region = gpu::Region::try_import(session, std::string("w"));
          ACTOR_MUST(region);
          ACTOR_CHECK(region->state() == gpu::State::ok);
          return 0;
        }).wait() == 0);
}

TEST_CASE("kept weights outlive their loader and its group, until they are released") {
  harness::BrokerOptions options;
  const harness::BrokerFixture broker(gpu_broker(options));
  CHECK(Child::run([&] {
          auto session = connect(broker.socket());
          auto group = session.try_create_group({.name = "loader"});
          ACTOR_MUST(group);
          ACTOR_MUST(session.try_join(group->token));
          Device device;
          auto region = gpu::Region::allocate(session, 2 * kMiB);
          ACTOR_CHECK(device.fill(region.pointer(), 2 * kMiB, 0x42) == 0);
          ACTOR_MUST(region.try_publish({.name = "weights", .keep = shmbroker::Keep::until_released()}));
          return 0;
        }).wait() == 0);
  CHECK(Child::run([&] {
          auto session = connect(broker.socket());
          Device device;
          auto region = gpu::Region::try_import(session, std::string("loader/weights"));
          ACTOR_MUST(region);
          ACTOR_CHECK(device.all(region->pointer(), 2 * kMiB) == 0x42);
          ACTOR_MUST(region->try_release(true));
          ACTOR_CHECK(status_of(gpu::Region::try_import(session, std::string("loader/weights"))) == Status::not_found);
          return 0;
        }).wait() == 0);
}

TEST_CASE("a region of many chunks needs the descriptors of one packet, not of all of them") {
  const Meeting meeting;
  CHECK(Child::run([&] {
          ::setenv("FAKECUDA_BYTES", "2G", 1);
          constexpr std::uint64_t chunks = 260;
          auto session = meeting.member(), other = meeting.member();
          gpu::AllocateOptions options;
          options.chunk_bytes = 2 * kMiB;
          options.uninitialised = true;
          auto region = gpu::Region::allocate(session, chunks * 2 * kMiB, options);
          auto& fake = fakecuda::Fake::use();
          const long before = fake.audit().fds;
          long most = 0;
          std::function<void()> each = [&] {
            most = std::max(most, fake.audit().fds);
            fake.before("cuMemExportToShareableHandle", each);
          };
          fake.before("cuMemExportToShareableHandle", each);
          gpu::PublishOptions named;
          named.name = "many";
          ACTOR_MUST(region.try_publish(named));
          ACTOR_CHECK(most == before + 251);
          // The fake keeps one of its own for each chunk that it has imported, so only the first import tells.
          long at_first = 0;
          std::function<void()> first = [&] { at_first = fake.audit().fds; };
          fake.before("cuMemImportFromShareableHandle", first);
          {
            auto imported = gpu::Region::try_import(other, std::string("many"));
            ACTOR_MUST(imported);
            ACTOR_CHECK(imported->info().chunks == chunks);
            ACTOR_CHECK(at_first == before + 253);
            at_first = 0;
            ACTOR_MUST(imported->try_sleep());
            fake.before("cuMemImportFromShareableHandle", first);
            ACTOR_MUST(imported->try_wake());
            ACTOR_CHECK(at_first == before + 253);
          }
          // A failure between two packets leaves nothing, and no name.
          auto successor = gpu::Region::allocate(session, chunks * 2 * kMiB, options);
          named.replace = true;
          {
            const fakecuda::Injected failing("cuMemExportToShareableHandle:400:304");
            ACTOR_CHECK(!successor.try_publish(named));
          }
          ACTOR_CHECK(gpu::Region::try_import(other, std::string("many"))->id() == region.id());
          ACTOR_CHECK(successor.access() == gpu::Access::read_write);
          ACTOR_MUST(successor.try_publish(named));
          ACTOR_CHECK(gpu::Region::try_import(other, std::string("many"))->id() == successor.id());
          successor.release(true);
          return 0;
        }).wait() == 0);
}

TEST_CASE("lent memory: a killed user drains it, a killed owner leaves its users what they have") {
  const Meeting meeting;
  const Gate lent, used, retired, told;
  const Note note;
  auto owner = Child::run([&] {
    auto session = meeting.member();
    Device device;
    shmb::cuda::Address memory = 0;
    {
      auto scope = device.hold->enter();
      ACTOR_CHECK((*device.driver)->mem_alloc(&memory, kMiB) == 0);
    }
    ACTOR_CHECK(device.fill(memory, kMiB, 0x15) == 0);
    int freed = 0;
    gpu::LendOptions options;
    options.name = "lent";
    auto lease = gpu::Lease::try_lend(session, memory, kMiB, [&](gpu::Pointer) { ++freed; }, options);
    ACTOR_MUST(lease);
    lent.open();
    ACTOR_CHECK(used.wait());
    ACTOR_MUST(lease->try_retire());
    ACTOR_CHECK(freed == 0);
    auto waiting = gpu::try_dispatch(session);
    ACTOR_CHECK(waiting && waiting->waiting == 1);
    retired.open();
    ACTOR_CHECK(eventually([&] {
      (void)gpu::try_dispatch(session);
      return freed == 1;
    }));
    // The second life, whose owner is killed.
    auto again = gpu::Lease::try_lend(session, memory, kMiB, nullptr, options);
    ACTOR_MUST(again);
    note.tell('x');
    ::pause();
    return 0;
  });
  auto user = Child::run([&] {
    ACTOR_CHECK(lent.wait());
    auto session = meeting.member();
    Device device;
    (void)gpu::devices();
    // With any answer of the driver about the handle, its owner is not to blame, and others may try.
    for (const auto& [code, status] : {std::pair{"1", Status::producer_dead},
                                       {"400", Status::producer_dead},
                                       {"205", Status::not_supported},
                                       {"711", Status::not_supported}}) {
      const fakecuda::Injected failing(std::string("cuIpcOpenMemHandle:1:") + code);
      auto refused = gpu::Region::try_import(session, std::string("lent"));
      ACTOR_CHECK(status_of(refused) == status);
      ACTOR_CHECK(sentence_of(refused).find("cuIpcOpenMemHandle") != std::string::npos);
    }
    {
      // From a context of the program's own, which is gone before the region is.
      shmb::cuda::Context own = nullptr;
      ACTOR_CHECK((*device.driver)->context_create(&own, 0, 0) == 0);
      auto early = gpu::Region::try_import(session, std::string("lent"));
      ACTOR_MUST(early);
      ACTOR_CHECK((*device.driver)->context_destroy(own) == 0);
      auto second = gpu::Region::try_import(session, std::string("lent"));
      ACTOR_MUST(second);
      ACTOR_CHECK(device.all(early->pointer(), kMiB) == 0x15);
    }
    ACTOR_CHECK(eventually([&] { return gpu::dispatch(session).waiting == 0; }));
    ACTOR_CHECK(fakecuda::Fake::use().audit().opened == 0);
    ACTOR_CHECK(fakecuda::Fake::use().audit().violations == 0);
    auto region = gpu::Region::try_import(session, std::string("lent"));
    ACTOR_MUST(region);
    ACTOR_CHECK(device.all(region->pointer(), kMiB) == 0x15);
    gpu::ImportOptions on;
    on.devices = {0, 1};
    ACTOR_CHECK(status_of(gpu::Region::try_import(session, std::string("lent"), on)) == Status::not_supported);
    on.devices = {1};
    {
      Device second(1);
      auto there = gpu::Region::try_import(session, std::string("lent"), on);
      ACTOR_MUST(there);
      ACTOR_CHECK(there->pointer() != region->pointer());
      ACTOR_CHECK(second.all(there->pointer(), kMiB) == 0x15);
    }
    ACTOR_CHECK(device.all(region->pointer(), kMiB) == 0x15);
    used.open();
    ACTOR_CHECK(retired.wait());
    ACTOR_CHECK(eventually([&] {
      (void)gpu::try_dispatch(session);
      return region->state() == gpu::State::retired;
    }));
    ACTOR_CHECK(status_of(gpu::Region::try_import(session, region->id())) == Status::producer_dead);
    told.open();
    ::pause();
    return 0;
  });
  REQUIRE(told.wait());
  user.kill();
  CHECK(user.wait() == 128 + SIGKILL);
  CHECK(note.hear<char>() == 'x');

  const Gate second, dead;
  auto survivor = Child::run([&] {
    auto session = meeting.member();
    Device device;
    auto region = gpu::Region::try_import(session, std::string("lent"));
    ACTOR_MUST(region);
    second.open();
    ACTOR_CHECK(dead.wait());
    ACTOR_CHECK(eventually([&] {
      (void)gpu::try_dispatch(session);
      return region->state() == gpu::State::producer_dead;
    }));
    ACTOR_CHECK(device.all(region->pointer(), kMiB) == 0x15);
    ACTOR_CHECK(status_of(gpu::Region::try_import(session, region->id())) == Status::producer_dead);
    return 0;
  });
  REQUIRE(second.wait());
  owner.kill();
  CHECK(owner.wait() == 128 + SIGKILL);
  dead.open();
  CHECK(survivor.wait() == 0);
}

TEST_CASE("a forked child may only let go, and its parent notices nothing") {
  const Meeting meeting;
  CHECK(Child::run([&] {
          auto session = meeting.member();
          Device device;
          auto region = gpu::Region::allocate(session, 4 * kMiB);
          ACTOR_CHECK(device.fill(region.pointer(), 4 * kMiB, 3) == 0);
          ACTOR_MUST(region.try_publish({.name = "w"}));
          auto inside = gpu::Region::allocate(session, kMiB);
          const pid_t child = ::fork();
          if (child == 0) {
            const auto only = [&](auto result) { return status_of(result) == Status::forked_child; };
            bool right = only(gpu::try_devices()) && only(gpu::try_driver_version());
            right = right && only(gpu::Region::try_allocate(session, 1)) && only(inside.try_publish());
            right = right && only(gpu::Region::try_import(session, std::string("w"))) && only(region.try_sleep());
            right = right && shmb_torch_alloc(1, 0, nullptr) == nullptr;
            right = right && region.try_release().has_value() && inside.try_release().has_value();
            right = right && gpu::try_dispatch(session).has_value();
            ::_exit(right ? 0 : 1);
          }
          int status = -1;
          ACTOR_CHECK(::waitpid(child, &status, 0) == child);
          ACTOR_CHECK(WIFEXITED(status));
          ACTOR_CHECK(WEXITSTATUS(status) == 0);
          ACTOR_CHECK(device.all(region.pointer(), 4 * kMiB) == 3);
          auto again = gpu::Region::try_import(session, std::string("w"));
          ACTOR_MUST(again);
          ACTOR_CHECK(device.all(again->pointer(), 4 * kMiB) == 3);
          ACTOR_MUST(inside.try_publish());
          return 0;
        }).wait() == 0);
}

TEST_CASE("a store to read-only memory ruins the context of the writing process, and no other") {
  const Meeting meeting;
  const Gate published;
  auto producer = Child::run([&] { return publish_w(meeting, 0x33, published); });
  REQUIRE(published.wait());
  CHECK(Child::run([&] {
          auto session = meeting.member();
          Device device;
          auto region = gpu::Region::try_import(session, std::string("w"));
          ACTOR_MUST(region);
          const char byte = 1;
          const int code = device.write(region->pointer(), &byte, 1);
          ACTOR_CHECK(code == 700);
          // The library learns of it from the next call that fails.
          auto first = gpu::Region::try_allocate(session, kMiB);
          ACTOR_CHECK(status_of(first) == Status::context_poisoned);
          ACTOR_CHECK(std::string(first.error().what()).find("700") != std::string::npos);
          ACTOR_CHECK(status_of(gpu::Region::try_import(session, std::string("w"))) == Status::context_poisoned);
          ACTOR_CHECK(status_of(gpu::try_devices()) == Status::context_poisoned);
          ACTOR_MUST(region->try_release());  // letting go works
          ACTOR_MUST(session.try_ping());
          return 0;
        }).wait() == 0);
  CHECK(Child::run([&] { return read_w(meeting, 0x33); }).wait() == 0);
  const bool given_back = eventually([&] { return meeting.session.try_stat("w")->holders == 1; });
  CHECK(given_back);
  producer.kill();
  CHECK(producer.wait() == 128 + SIGKILL);
}

TEST_CASE("a process killed at a system call of publication, import or release leaves nothing in the books") {
  const harness::BrokerFixture broker(gpu_broker());
  const auto life = [&](const std::function<void()>& start) {
    auto session = connect(broker.socket());
    auto region = gpu::Region::allocate(session, 2 * kMiB, {.uninitialised = true});
    start();
    ACTOR_MUST(region.try_publish({.writing = true}));
    auto imported = gpu::Region::try_import(session, region.id());
    ACTOR_MUST(imported);
    ACTOR_MUST(imported->try_release());
    ACTOR_MUST(region.try_release());
    return 0;
  };
  const harness::Stepped whole = harness::run_killed_at(0, life);
  if (!whole.traced) {
    harness::skip("a process killed at a system call of publication: ptrace is not to be had here");
    return;
  }
  REQUIRE(whole.ended);
  CHECK(whole.status == 0);
  REQUIRE(whole.stops > 20);
  // Two dozen points, other ones than the last time where the number of calls has changed.
  const long step = whole.stops / 24 + 1;
  for (long k = 1; k <= whole.stops; k += step) {
    CAPTURE(k);
    (void)harness::run_killed_at(k, life);
    CHECK(broker.books(60'000) == "");
  }
}

TEST_CASE("memory that the driver does not unmap stays in the broker's books") {
  const harness::BrokerFixture broker(gpu_broker());
  const auto actor = [&]() -> int {
    auto maker = connect(broker.socket()), session = connect(broker.socket());
    Device device;
    auto region = gpu::Region::allocate(maker, kMiB);
    const auto id = region.publish();
    const auto ticket = region.ticket();
    {
      auto sleeper = gpu::Region::import(session, ticket);
      const fakecuda::Injected failing("cuMemUnmap:1:1");
      ACTOR_CHECK(status_of(sleeper.try_sleep()) == Status::invalid);
      ACTOR_CHECK(sleeper.pointer() != 0);  // as it was
      ACTOR_CHECK(device.all(sleeper.pointer(), kMiB) == 0);
    }
    ACTOR_CHECK(eventually([&] {
      (void)gpu::dispatch(session);
      return importers(broker, id) == 0;
    }));
    {
      auto imported = gpu::Region::import(session, region.ticket());
      const fakecuda::Injected failing("cuMemUnmap:1:1");
      imported.release();
    }
    (void)session.create(4096);  // what was sent before has arrived
    ACTOR_CHECK(importers(broker, id) == 1);
    // An import that fails in the middle unmaps before it gives the reference back.
    auto third = connect(broker.socket());
    {
      const fakecuda::Injected failing("cuMemSetAccess:1:2,cuMemUnmap:1:1");
      ACTOR_CHECK(status_of(gpu::Region::try_import(third, region.ticket())) == Status::out_of_memory);
    }
    (void)third.create(4096);
    ACTOR_CHECK(importers(broker, id) == 2);
    return 0;
  };
  CHECK(Child::run(actor).wait() == 0);  // what is not unmapped goes with it alone
}

}  // namespace cuda_tests
