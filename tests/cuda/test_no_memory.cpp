// SPDX-License-Identifier: Apache-2.0
// Each allocation that the library makes in an operation on GPU memory fails once, one after the other, until a run
// of the operation passes untouched. The operation succeeds all the same or says that there is no memory. Nothing is
// left in the driver or in the broker's books, and the operation succeeds when it is repeated. The allocations of the
// driver itself are none of these: it brings an operator new of its own.
#include <array>
#include <new>

#include "cuda/dlpack.hpp"
#include "tests/cuda/stage.hpp"
#include "tests/daemon/books/allocations.hpp"
#include "tests/harness/raw_client.hpp"

namespace cuda_tests {
namespace {

using Done = shmbroker::Result<void>;

template <class T>
Done done(const shmbroker::Result<T>& result) {
  if (!result) return result.error();
  return {};
}

std::vector<gpu::Tensor> two_tensors() {
  std::vector<gpu::Tensor> tensors(2);
  tensors[0].name = "a-tensor-whose-name-is-longer-than-a-short-string";
  tensors[0].shape = {16, 16};
  tensors[1].name = "b";
  tensors[1].shape = {4};
  tensors[1].offset = 1024;
  return tensors;
}

// The world in which an operation begins and ends. `weights` is another session's, and published.
struct Stage {
  Device device;
  shmb::cuda::Address memory = 0;  // of cudaMalloc
  shmbroker::Session session, other;
  gpu::Region weights;
  std::optional<gpu::Region> own, made;
  std::optional<gpu::Timeline> timeline;

  explicit Stage(const std::string& socket)
      : session(connect(socket)), other(connect(socket)), weights([&] {
          const auto group = session.create_group();
          session.join(group.token);
          other.join(group.token);
          return gpu::Region::allocate(other, 2 * kMiB);
        }()) {
    gpu::PublishOptions options;
    options.name = "weights";
    options.tensors = two_tensors();
    weights.publish(options);
  }
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;
  ~Stage() {
    if (memory == 0) return;
    auto scope = device.hold->enter();
    (void)(*device.driver)->mem_free(memory);
  }
  void settle() const {
    (void)gpu::try_dispatch(session);
    (void)gpu::try_dispatch(other);
  }
};

struct Operation {
  const char* name;
  std::function<Done(Stage&)> prepare, run;
  bool ends = false;  // `own` goes by it, whatever it says
};

Done kept(shmbroker::Result<gpu::Region>&& result, std::optional<gpu::Region>& place) {
  if (!result) return result.error();
  place.emplace(std::move(*result));
  return {};
}

Done nothing(Stage&) { return {}; }
Done with_own(Stage& stage) { return kept(gpu::Region::try_allocate(stage.session, 2 * kMiB), stage.own); }
Done publish_own(Stage& stage) {
  gpu::PublishOptions options;
  options.name = "a-region-whose-name-is-longer-than-a-short-string";
  options.tensors = two_tensors();
  return done(stage.own->try_publish(options));
}
Done with_import(Stage& stage) { return kept(gpu::Region::try_import(stage.session, stage.weights.id()), stage.own); }
Done with_published(Stage& stage) {
  if (auto made = with_own(stage); !made) return made;
  return publish_own(stage);
}
Done asleep(Stage& stage, Done made) { return made ? stage.own->try_sleep() : made; }

std::vector<Operation> operations() {
  return {
      {"the devices", nothing, [](Stage&) { return done(gpu::try_devices()); }},
      {"allocate", nothing,
       [](Stage& stage) { return kept(gpu::Region::try_allocate(stage.session, 2 * kMiB), stage.made); }},
      {"allocate chunks", nothing,
       [](Stage& stage) {
         return kept(gpu::Region::try_allocate(stage.session, 6 * kMiB, {.chunk_bytes = 2 * kMiB}), stage.made);
       }},
      {"publish", with_own, publish_own},
      {"end of writing",
       [](Stage& stage) {
         if (auto made = with_own(stage); !made) return made;
         return done(stage.own->try_publish({.writing = true}));
       },
       [](Stage& stage) { return stage.own->try_written(); }},
      {"import by name", nothing,
       [](Stage& stage) { return kept(gpu::Region::try_import(stage.session, "weights"), stage.made); }},
      {"import by identity", nothing,
       [](Stage& stage) { return kept(gpu::Region::try_import(stage.session, stage.weights.id()), stage.made); }},
      {"import three at once", nothing,
       [](Stage& stage) {
         const std::array<shmbroker::RegionId, 3> ids{stage.weights.id(), stage.weights.id(), stage.weights.id()};
         auto imported = gpu::Region::try_import_many(stage.session, ids);
         if (!imported) return done(imported);
         for (const auto& one : *imported)
           if (!one) return done(one);
         return Done();
       }},
      {"a tensor of it", with_import,
       [](Stage& stage) { return done(stage.own->try_tensor("a-tensor-whose-name-is-longer-than-a-short-string")); }},
      {"a tensor for others", with_import,
       [](Stage& stage) {
         auto managed = stage.own->try_dlpack(two_tensors()[1]);
         if (!managed) return done(managed);
         auto* const tensor = reinterpret_cast<shmb::cuda::DlManaged*>(*managed);
         tensor->deleter(*managed);
         return Done();
       }},
      {"copy", with_import, [](Stage& stage) { return kept(stage.own->try_copy(), stage.made); }},
      {"sleep", with_import, [](Stage& stage) { return stage.own->try_sleep(); }},
      {"wake", [](Stage& stage) { return asleep(stage, with_import(stage)); },
       [](Stage& stage) { return stage.own->try_wake(); }},
      {"wake what nobody else knows", [](Stage& stage) { return asleep(stage, with_own(stage)); },
       [](Stage& stage) { return stage.own->try_wake(); }},
      {"a ticket", nothing,
       [](Stage& stage) {
         return done(stage.weights.try_ticket(shmbroker::Rights::read, 1, std::chrono::milliseconds(20)));
       }},
      {"publish a set", with_own,
       [](Stage& stage) {
         gpu::Region* const all[] = {&*stage.own};
         return kept(gpu::Region::try_publish_set(stage.session, "set", all), stage.made);
       }},
      {"lend memory and retire it",
       [](Stage& stage) {
         auto scope = stage.device.hold->enter();
         if (!scope || (*stage.device.driver)->mem_alloc(&stage.memory, kMiB) != 0) std::abort();
         return Done();
       },
       [](Stage& stage) {
         auto lent = gpu::Lease::try_lend(stage.session, stage.memory, kMiB, {});
         return lent ? lent->try_retire() : done(lent);
       }},
      {"release", with_import, [](Stage& stage) { return std::exchange(stage.own, std::nullopt)->try_release(); },
       true},
      {"release with its name", with_published,
       [](Stage& stage) { return std::exchange(stage.own, std::nullopt)->try_release(true); }, true},
      {"let go without a call", with_import,
       [](Stage& stage) {
         stage.own.reset();
         return done(gpu::try_dispatch(stage.session));
       },
       true},
      {"make a timeline", nothing,
       [](Stage& stage) {
         auto made = gpu::Timeline::try_create(stage.session, {.name = "steps"});
         if (!made) return done(made);
         stage.timeline.emplace(std::move(*made));
         return Done();
       }},
  };
}

struct Books {
  std::uint64_t regions, leases, bytes;
  friend bool operator==(const Books&, const Books&) = default;
};
Books books(harness::RawClient& admin) {
  const auto now = admin.status().fixed<shmbw_status_reply>();
  return {now.regions, now.leases, now.bytes};
}

struct Score {
  long trials = 0, failed = 0, lost = 0;
};

// What there is of GPU memory, in the broker and in the driver.
struct Facts {
  Books booked;
  long left, fds;
  std::size_t bytes;
  friend bool operator==(const Facts&, const Facts&) = default;
};
Facts facts(harness::RawClient& admin) {
  const fakecuda::Audit audit = fakecuda::Fake::use().audit();
  return {books(admin), audit.left(), audit.fds, fakecuda::Fake::use().bytes_in_use(0)};
}

Done with_failure(const Operation& operation, Stage& stage, long nth, bool& reached) {
  const room::OneAllocationFails one(nth);
  Done result;
  try {
    result = operation.run(stage);
  } catch (const std::bad_alloc&) {
    result = shmbroker::Error(Status::no_memory, "out of memory");
  }
  reached = one.failed();
  return result;
}

// Whether the operation made so many allocations.
bool trial(const std::string& socket, harness::RawClient& admin, const Operation& operation, long nth, Score& score) {
  Stage stage(socket);
  const Facts at_first = facts(admin);
  if (auto ready = operation.prepare(stage); !ready) FAIL("not prepared: " << ready.error().what());
  const Facts before = operation.ends ? at_first : facts(admin);
  bool reached = false;
  const Done result = with_failure(operation, stage, nth, reached);
  const bool lost = stage.session.info().lost != 0;
  score.trials += reached;
  score.failed += !result;
  score.lost += lost;
  if (!result) {
    CHECK(reached);
    // A descriptor that came and could not be noted.
    const bool says_so = status_of(result) == Status::no_memory || status_of(result) == Status::no_descriptors ||
                         sentence_of(result).find("out of memory") != std::string::npos;
    if (!lost) CHECK_MESSAGE(says_so, sentence_of(result));
  }
  if (lost) return reached;
  if (!result || operation.ends) {
    stage.made.reset();
    const bool back = eventually([&] {
      stage.settle();
      return facts(admin) == before;
    });
    CHECK(back);
  }
  if (!result) {
    if (operation.ends) CHECK(status_of(operation.prepare(stage)) == Status::ok);
    const auto again = operation.run(stage);
    CHECK_MESSAGE(again.has_value(), sentence_of(again));
  }
  stage.settle();  // what there was no memory to free
  return reached;
}

}  // namespace

TEST_CASE("every allocation of an operation on GPU memory fails once: it says so or succeeds, and nothing is left") {
  const harness::BrokerFixture broker(gpu_broker());
  harness::RawClient admin = harness::RawClient::connect(broker.admin());
  REQUIRE(admin.hello().ok());
  Score score;
  for (const Operation& operation : operations()) {
    const std::string name = operation.name;
    CAPTURE(name);
    Score warm;  // objects that are made once and stay are there now
    (void)trial(broker.socket(), admin, operation, 0, warm);
    const auto in_use = [] { return fakecuda::Fake::use().bytes_in_use(0); };
    const bool idle = eventually([&] { return books(admin) == Books{} && in_use() == 0; });
    CHECK(idle);
    long nth = 0;
    for (bool more = true; more && nth < 1000;) {
      ++nth;
      CAPTURE(nth);
      const NothingLeft guard;
      more = trial(broker.socket(), admin, operation, nth, score);
      const bool empty = eventually([&] { return books(admin) == Books{}; });
      CHECK_MESSAGE(empty, books(admin).regions << " regions, " << books(admin).leases << " leases");
    }
    CHECK(nth < 1000);
  }
  MESSAGE(score.trials << " allocations failed in turn, " << score.failed << " operations failed by it, " << score.lost
                       << " sessions were lost");
  CHECK(score.trials > 100);
}

}  // namespace cuda_tests
