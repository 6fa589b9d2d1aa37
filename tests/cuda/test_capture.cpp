// SPDX-License-Identifier: Apache-2.0
// Streams that the program captures into graphs: what cannot be done meanwhile is busy, changes nothing and can be done
// later; what can is done, and spoils no capture. That cuCtxRecordEvent spoils captures is NVIDIA's word
// (docs/gpu.md).
#include "tests/cuda/stage.hpp"
#include "tests/harness/broker_fixture.hpp"

namespace cuda_tests {
namespace {

struct CaptureLeavesNothing {
  fakecuda::Audit before = fakecuda::Fake::use().audit();
  ~CaptureLeavesNothing() {
    const fakecuda::Audit after = fakecuda::Fake::use().audit();
    CHECK(after.left() == before.left());
    CHECK(after.violations == before.violations);
  }
};

struct CaptureBench {
  CaptureBench() { REQUIRE(scope); }
  const CaptureLeavesNothing guard;
  const harness::BrokerFixture broker{gpu_broker()};
  shmbroker::Session session = connect(broker.socket());
  Device device;
  shmb::Result<shmb::cuda::ContextHold::Scope> scope = device.hold->enter_primary();

  std::pair<std::size_t, std::size_t> dispatched() const {
    std::size_t done = 0, waiting = 0;
    CHECK(shmb_dispatch(session.c(), &done, &waiting, nullptr) == SHMB_OK);
    return {done, waiting};
  }
};

}  // namespace

TEST_CASE("law 11: during a stream capture the state of the device is unknown: busy, and later it goes") {
  CaptureBench bench;
  auto kept = gpu::Region::allocate(bench.session, kMiB), released = gpu::Region::allocate(bench.session, kMiB);
  auto written = gpu::Region::allocate(bench.session, kMiB);
  written.publish({.writing = true});
  shmb::cuda::Address plain = 0;
  REQUIRE((*bench.device.driver)->mem_alloc(&plain, kMiB) == 0);
  {
    Captured captured(bench.device);
    const auto refused = kept.try_publish();
    CHECK(status_of(refused) == Status::busy);
    CHECK(sentence_of(refused).contains("end the capture first"));
    CHECK(status_of(kept.try_sleep()) == Status::busy);
    CHECK(kept.pointer() != 0);
    CHECK(status_of(written.try_written()) == Status::busy);
    CHECK(written.access() == gpu::Access::read_write);
    CHECK(status_of(gpu::Lease::try_lend(bench.session, plain, kMiB, nullptr)) == Status::busy);
    CHECK(status_of(released.try_release()) == Status::busy);
    CHECK(bench.dispatched() == std::pair<std::size_t, std::size_t>(0, 1));
    const auto spoilt = kept.try_publish({.sync = gpu::Sync::stream(gpu::Stream(captured.stream()))});
    CHECK(status_of(spoilt) == Status::busy);
    CHECK(sentence_of(spoilt).contains("which gives no graph"));
  }
  CHECK(bench.dispatched() == std::pair<std::size_t, std::size_t>(1, 0));
  CHECK(status_of(kept.try_publish()) == Status::ok);
  CHECK(status_of(written.try_written()) == Status::ok);
  CHECK((*bench.device.driver)->mem_free(plain) == 0);
}

TEST_CASE("to allocate, import, pin and wait for another stream spoils no capture, of this thread or another") {
  CaptureBench bench;
  auto region = gpu::Region::allocate(bench.session, kMiB);
  auto host = bench.session.create(kMiB);
  shmb::cuda::Stream stream = nullptr;
  REQUIRE((*bench.device.driver)->stream_create(&stream, shmb::cuda::kNonBlocking) == 0);
  std::optional<gpu::Region> fresh, imported;
  {
    Captured captured(bench.device);
    const auto refused = region.try_publish({.sync = gpu::Sync::stream(gpu::Stream(captured.stream()))});
    CHECK(status_of(refused) == Status::busy);
    CHECK(sentence_of(refused).contains("end the capture first"));
    std::thread elsewhere([&] {
      CHECK(status_of(region.try_publish({.sync = gpu::Sync::stream(gpu::Stream(stream))})) == Status::ok);
      CHECK(status_of(gpu::PinnedHost::try_pin(host)) == Status::ok);
    });
    elsewhere.join();
    CHECK(status_of(gpu::PinnedHost::try_pin(host)) == Status::ok);
    fresh = gpu::Region::allocate(bench.session, kMiB);
    imported = gpu::Region::import(bench.session, region.id());
    CHECK(captured.end());
  }
  REQUIRE((*bench.device.driver)->stream_destroy(stream) == 0);
}

TEST_CASE("while a blocking stream is captured nothing goes into the default stream, and the capture stays whole") {
  CaptureBench bench;
  auto region = gpu::Region::allocate(bench.session, kMiB);
  const std::size_t used = fakecuda::Fake::use().bytes_in_use();
  {
    Captured captured(bench.device, 0);
    const auto zeroed = gpu::Region::try_allocate(bench.session, kMiB);
    CHECK(status_of(zeroed) == Status::busy);
    CHECK(sentence_of(zeroed).contains("CU_STREAM_NON_BLOCKING"));
    CHECK(status_of(region.try_publish({.sync = gpu::Sync::stream(nullptr)})) == Status::busy);
    CHECK(captured.end());
  }
  CHECK(fakecuda::Fake::use().bytes_in_use() == used);
  CHECK(status_of(region.try_publish()) == Status::ok);
}

}  // namespace cuda_tests
