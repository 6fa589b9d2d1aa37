// SPDX-License-Identifier: Apache-2.0
// Streams that the program captures into graphs: calls that ask the device are busy, and handles may end. That
// cuCtxRecordEvent spoils captures is NVIDIA's word (docs/gpu.md).
#include "tests/cuda/stage.hpp"
#include "tests/harness/broker_fixture.hpp"

namespace cuda_tests {
namespace {

struct CaptureBench {
  CaptureBench() { REQUIRE(scope); }
  const NothingLeft guard;
  const harness::BrokerFixture broker{gpu_broker()};
  shmbroker::Session session = connect(broker.socket());
  Device device;
  shmb::Result<shmb::cuda::ContextHold::Scope> scope = device.hold->enter();

  std::pair<std::size_t, std::size_t> dispatched() const {
    std::size_t done = 0, waiting = 0;
    CHECK(shmb_dispatch(session.c(), &done, &waiting, nullptr) == SHMB_OK);
    return {done, waiting};
  }
};

}  // namespace

TEST_CASE("law 11: during a stream capture what asks the device is busy, and can be called again afterwards") {
  CaptureBench bench;
  auto kept = gpu::Region::allocate(bench.session, kMiB), released = gpu::Region::allocate(bench.session, kMiB);
  {
    Captured captured(bench.device);
    const auto refused = kept.try_publish();
    CHECK(status_of(refused) == Status::busy);
    CHECK(sentence_of(refused).contains("call again after the capture"));
    CHECK(status_of(kept.try_sleep()) == Status::busy);
    CHECK(kept.pointer() != 0);
    CHECK(status_of(kept.try_publish({.sync = gpu::Sync::stream(gpu::Stream(captured.stream()))})) == Status::busy);
    CHECK(status_of(released.try_release()) == Status::busy);
    CHECK(bench.dispatched() == std::pair<std::size_t, std::size_t>(0, 1));
  }
  CHECK(bench.dispatched() == std::pair<std::size_t, std::size_t>(1, 0));
  CHECK(status_of(kept.try_publish()) == Status::ok);
}

TEST_CASE("a handle that ends during a capture spoils nothing, and its region goes with the next call") {
  CaptureBench bench;
  const std::size_t used = fakecuda::Fake::use().bytes_in_use();
  std::optional<gpu::Region> region = gpu::Region::allocate(bench.session, kMiB);
  void* const block = shmb_torch_alloc(2 * kMiB, 0, nullptr);
  REQUIRE(block != nullptr);
  {
    Captured captured(bench.device);
    region.reset();  // as a finaliser does
    shmb_torch_free(block, 2 * kMiB, 0, nullptr);
    CHECK(captured.end());
  }
  CHECK(bench.dispatched().second == 0);
  CHECK(fakecuda::Fake::use().bytes_in_use() == used);
}

TEST_CASE("torch frees and allocates for a stream under capture, and the capture gives its graph") {
  CaptureBench bench;
  void* const before = shmb_torch_alloc(2 * kMiB, 0, nullptr);
  REQUIRE(before != nullptr);
  void* during = nullptr;
  {
    Captured captured(bench.device);
    shmb_torch_free(before, 2 * kMiB, 0, captured.stream());
    during = shmb_torch_alloc(2 * kMiB, 0, captured.stream());
    CHECK(during != nullptr);
    CHECK(captured.end());
  }
  shmb_torch_free(during, 2 * kMiB, 0, nullptr);
  CHECK(bench.dispatched().second == 0);
}

TEST_CASE("to allocate spoils no capture of this thread or another, also of a blocking stream") {
  CaptureBench bench;
  for (const unsigned flags : {shmb::cuda::kNonBlocking, 0U}) {
    std::optional<gpu::Region> fresh;
    CHECK(bench.dispatched().second == 0);  // no question about ended memory during the capture
    Captured captured(bench.device, flags);
    fresh = gpu::Region::allocate(bench.session, kMiB);
    std::thread elsewhere([&] { CHECK(status_of(gpu::Region::try_allocate(bench.session, kMiB)) == Status::ok); });
    elsewhere.join();
    CHECK(captured.end());
  }
}

}  // namespace cuda_tests
