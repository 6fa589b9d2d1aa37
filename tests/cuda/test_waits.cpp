// SPDX-License-Identifier: Apache-2.0
// Law 11 on the device: a call that waits for it gives up at its deadline, changes nothing by that, and loses nothing.
// A stream is held by a function of the host, so nothing here depends on how long the device takes.
#include <atomic>

#include "client/session/views.hpp"
#include "tests/cuda/stage.hpp"
#include "tests/harness/broker_fixture.hpp"

namespace cuda_tests {
namespace {

constexpr shmbroker::Timeout kSoon = std::chrono::milliseconds(30);

// A stream that is not through until it is told; of the context that is current.
class HeldStream {
 public:
  explicit HeldStream(const Device& device) : driver_(*device.driver) {
    if (driver_->stream_create(&stream_, shmb::cuda::kNonBlocking) != 0) std::abort();
    hold();
  }
  HeldStream(const HeldStream&) = delete;
  HeldStream& operator=(const HeldStream&) = delete;
  ~HeldStream() {
    let_go();
    (void)driver_->stream_synchronize(stream_);
    (void)driver_->stream_destroy(stream_);
  }
  void hold() {
    held_ = true;
    const auto wait = [](void* held) {
      while (*static_cast<std::atomic<bool>*>(held)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
    if (driver_->launch_host(stream_, wait, &held_) != 0) std::abort();
  }
  void let_go() { held_ = false; }
  gpu::Stream stream() const { return stream_; }

 private:
  const shmb::cuda::Driver& driver_;
  shmb::cuda::Stream stream_ = nullptr;
  std::atomic<bool> held_ = false;
};

// A broker, a session on it, and the first device's primary context current.
struct WaitsStage {
  WaitsStage() { REQUIRE(scope); }
  const NothingLeft guard;
  const harness::BrokerFixture broker{gpu_broker()};
  shmbroker::Session session = connect(broker.socket());
  Device device;
  shmb::Result<shmb::cuda::ContextHold::Scope> scope = device.hold->enter();
};

std::pair<std::size_t, std::size_t> dispatched(shmbroker::Session& session) {
  std::size_t done = 0, waiting = 0;
  CHECK(shmb_dispatch(session.c(), &done, &waiting, nullptr) == SHMB_OK);
  return {done, waiting};
}

}  // namespace

TEST_CASE("law 11: a wait for a busy device gives up, keeps what it has, and may be repeated") {
  WaitsStage stage;
  auto& [guard, broker, session, device, scope] = stage;
  auto written = gpu::Region::allocate(session, kMiB), asleep = gpu::Region::allocate(session, kMiB),
       published = gpu::Region::allocate(session, kMiB);
  shmb::cuda::Address plain = 0;
  REQUIRE((*device.driver)->mem_alloc(&plain, kMiB) == 0);
  written.publish({.name = "w", .writing = true});
  {
    HeldStream held(device);
    const auto not_written = written.try_written({}, kSoon);
    CHECK(status_of(not_written) == Status::deadline);
    CHECK(sentence_of(not_written).contains("nothing has changed for GPU region"));
    CHECK(written.access() == gpu::Access::read_write);
    CHECK(status_of(written.try_written(gpu::Sync::stream(held.stream()), kSoon)) == Status::deadline);
    CHECK(status_of(asleep.try_sleep(kSoon)) == Status::deadline);
    CHECK(asleep.pointer() != 0);
    gpu::PublishOptions options;
    options.timeout = kSoon;
    CHECK(status_of(published.try_publish(options)) == Status::deadline);
    CHECK(published.state() == gpu::State::unpublished);
    CHECK(published.access() == gpu::Access::read_write);
    options.sync = gpu::Sync::stream(held.stream());
    CHECK(status_of(published.try_publish(options)) == Status::deadline);
    gpu::LendOptions lend;
    lend.timeout = kSoon;
    CHECK(status_of(gpu::Lease::try_lend(session, plain, kMiB, nullptr, lend)) == Status::deadline);
    // Another stream, and no waiting at all, are no business of the held one.
    REQUIRE(device.fill(written.pointer(), 64, 5) == 0);
    CHECK(status_of(written.try_written(gpu::Sync::stream(nullptr))) == Status::ok);
    CHECK(status_of(published.try_publish({.sync = gpu::Sync::none()})) == Status::ok);
  }
  CHECK(status_of(asleep.try_sleep()) == Status::ok);
  CHECK(asleep.pointer() == 0);
  asleep.wake();
  CHECK(status_of(gpu::Lease::try_lend(session, plain, kMiB, nullptr)) == Status::ok);
  (void)gpu::dispatch(session);
  CHECK((*device.driver)->mem_free(plain) == 0);
}

TEST_CASE("law 11: a region released under a device that works goes when that is through, and is counted until then") {
  const NothingLeft guard;
  const harness::BrokerFixture broker(gpu_broker());
  auto session = connect(broker.socket());
  auto inside = support::must(support::try_open(broker.socket()));
  Device device;
  auto scope = device.hold->enter();
  REQUIRE(scope);
  const std::size_t empty = fakecuda::Fake::use().bytes_in_use();
  auto region = gpu::Region::allocate(session, 4 * kMiB);
  shmb::client::Selection only;
  const auto id = region.publish();
  only.region = {id.id, id.generation};
  const gpu::Pointer at = region.pointer();
  const auto at_the_broker = [&] {
    return support::must(shmb::client::list_gpu_regions(*inside, only, shmb::client::Deadline::after(0))).rows.size();
  };
  HeldStream held(device);
  const auto released = region.try_release(false, kSoon);
  CHECK(status_of(released) == Status::deadline);
  CHECK(sentence_of(released).contains("gpu::dispatch"));
  CHECK(dispatched(session) == std::pair<std::size_t, std::size_t>(0, 1));
  CHECK(device.all(at, kMiB) == 0);  // a kernel may go on with it
  CHECK(at_the_broker() == 1);
  held.let_go();
  const bool ended = eventually([&] { return dispatched(session).second == 0; });
  CHECK(ended);
  const bool forgotten = eventually([&] { return at_the_broker() == 0; });
  CHECK(forgotten);
  const bool freed = eventually([&] { return fakecuda::Fake::use().bytes_in_use() == empty; });
  CHECK(freed);
}

TEST_CASE("law 11: a busy device does not block torch, and an allocation without memory waits for what was freed") {
  const NothingLeft guard;
  Device device;
  auto scope = device.hold->enter();
  REQUIRE(scope);
  constexpr std::ptrdiff_t kMost = 200 * kMiB;  // of 256
  void* const block = shmb_torch_alloc(kMost, 0, nullptr);
  REQUIRE(block != nullptr);
  HeldStream held(device);
  shmb_torch_free(block, kMost, 0, nullptr);
  CHECK(fakecuda::Fake::use().bytes_in_use() >= std::size_t{kMost});
  const long before = fakecuda::Fake::use().calls("cuMemCreate");
  std::thread later([&] {
    (void)eventually([&] { return fakecuda::Fake::use().calls("cuMemCreate") > before + 1; });  // it was refused once
    held.let_go();
  });
  void* const again = shmb_torch_alloc(kMost, 0, nullptr);
  later.join();
  REQUIRE(again != nullptr);
  shmb_torch_free(again, kMost, 0, nullptr);
  // Where the device was not quick enough to say that it is idle.
  const harness::BrokerFixture broker(gpu_broker());
  auto session = connect(broker.socket());
  const bool gone = eventually([&] { return dispatched(session).second == 0; });
  CHECK(gone);
}

TEST_CASE("law 11: a region is zeroed while the default stream is busy, and copied too") {
  WaitsStage stage;
  auto& [guard, broker, session, device, scope] = stage;
  std::atomic<bool> held = true;
  const auto wait = [](void* flag) {
    while (*static_cast<std::atomic<bool>*>(flag)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  REQUIRE((*device.driver)->launch_host(nullptr, wait, &held) == 0);
  auto made = gpu::Region::try_allocate(session, kMiB);
  CHECK(status_of(made) == Status::ok);
  auto copied = made->try_copy();
  CHECK(status_of(copied) == Status::ok);
  held = false;
  REQUIRE((*device.driver)->stream_synchronize(nullptr) == 0);
  CHECK(device.all(made->pointer(), kMiB) == 0);
  REQUIRE(device.fill(made->pointer(), kMiB, 7) == 0);
  made->publish();
  auto again = gpu::Region::try_import(session, made->id())->copy();
  CHECK(device.all(again.pointer(), kMiB) == 7);
  CHECK(again.access() == gpu::Access::read_write);
  CHECK(again.state() == gpu::State::unpublished);
}

TEST_CASE("law 11: a driver that refuses cuCtxRecordEvent is waited for, and does what was asked") {
  WaitsStage stage;
  auto& [guard, broker, session, device, scope] = stage;
  auto region = gpu::Region::allocate(session, kMiB);
  const fakecuda::Injected refused("cuCtxRecordEvent:1+:801");
  std::optional<HeldStream> held(std::in_place, device);
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    held->let_go();
  });
  const long before = fakecuda::Fake::use().calls("cuCtxSynchronize");
  CHECK(status_of(region.try_publish()) == Status::ok);
  later.join();
  held.reset();
  CHECK(fakecuda::Fake::use().calls("cuCtxSynchronize") > before);
  CHECK(status_of(region.try_sleep()) == Status::ok);
  CHECK(status_of(region.try_wake()) == Status::ok);
  CHECK(status_of(region.try_release()) == Status::ok);
  CHECK(dispatched(session).second == 0);
}

TEST_CASE("a thread without a context publishes, imports, puts to sleep, wakes and releases") {
  const NothingLeft guard;
  const harness::BrokerFixture broker(gpu_broker());
  auto session = connect(broker.socket());
  Device device;
  shmb::cuda::Context current = nullptr;
  REQUIRE((*device.driver)->context_get(&current) == 0);
  REQUIRE(current == nullptr);
  auto region = gpu::Region::allocate(session, kMiB);
  CHECK(status_of(region.try_publish()) == Status::ok);
  auto imported = gpu::Region::try_import(session, region.id());
  REQUIRE(imported);
  for (gpu::Region* const one : {&region, &*imported}) {
    CHECK(status_of(one->try_sleep()) == Status::ok);
    CHECK(status_of(one->try_wake()) == Status::ok);
    CHECK(status_of(one->try_release()) == Status::ok);
  }
  REQUIRE((*device.driver)->context_get(&current) == 0);
  CHECK(current == nullptr);
}

TEST_CASE("law 11: another thread's wait for the device delays no call beyond its deadline") {
  WaitsStage stage;
  auto& [guard, broker, session, device, scope] = stage;
  auto region = gpu::Region::allocate(session, kMiB);
  HeldStream held(device);
  const long before = fakecuda::Fake::use().calls("cuEventQuery");
  std::thread sleeper([&] { CHECK(status_of(region.try_sleep()) == Status::ok); });
  CHECK(eventually([&] { return fakecuda::Fake::use().calls("cuEventQuery") > before; }));
  const auto refused = region.try_sleep(kSoon);
  CHECK(status_of(refused) == Status::busy);
  CHECK(sentence_of(refused).contains("another thread"));
  held.let_go();
  sleeper.join();
  CHECK(region.pointer() == 0);
}

TEST_CASE("law 11: where the driver has no memory for the question, nothing is unmapped under a kernel") {
  WaitsStage stage;
  auto& [guard, broker, session, device, scope] = stage;
  auto region = gpu::Region::allocate(session, kMiB);
  const gpu::Pointer at = region.pointer();
  HeldStream held(device);
  {
    const fakecuda::Injected no_room("cuEventCreate:1+:2");
    CHECK(status_of(region.try_sleep(kSoon)) == Status::out_of_memory);
    CHECK(region.pointer() == at);
    CHECK(status_of(region.try_release(false, kSoon)) == Status::out_of_memory);
    CHECK(dispatched(session) == std::pair<std::size_t, std::size_t>(0, 1));
  }
  CHECK(device.all(at, kMiB) == 0);  // a kernel may go on with it
  CHECK(dispatched(session) == std::pair<std::size_t, std::size_t>(0, 1));
  held.let_go();
  const bool ended = eventually([&] { return dispatched(session).second == 0; });
  CHECK(ended);
}

}  // namespace cuda_tests
