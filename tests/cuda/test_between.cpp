// SPDX-License-Identifier: Apache-2.0
// Events in the middle of another call, and refusals of the driver when something is given back.
#include <fcntl.h>

#include "client/calls/gpu_calls.hpp"
#include "tests/cuda/stage.hpp"

namespace cuda_tests {
namespace {

gpu::Tensor one_float() {
  gpu::Tensor tensor;
  tensor.name = "t";
  tensor.shape = {1};
  return tensor;
}

}  // namespace

TEST_CASE("a DLPack tensor that is asked for while its region falls asleep is refused, or keeps it awake") {
  const harness::BrokerFixture broker(gpu_broker());
  auto session = connect(broker.socket());
  Device device;
  auto region = gpu::Region::allocate(session, 2 * kMiB);
  Status asked = Status::ok;
  std::function<void()> ask = [&] { asked = status_of(region.try_dlpack(one_float())); };
  fakecuda::Fake::use().before("cuCtxRecordEvent", ask);
  CHECK(status_of(region.try_sleep()) == Status::ok);
  CHECK(asked == Status::invalid);
  region.wake();
  // A sleep that fails leaves it as it was.
  {
    const fakecuda::Injected failing("cuCtxRecordEvent:1:999");
    CHECK(status_of(region.try_sleep()) == Status::driver_failed);
  }
  CHECK(region.pointer() != 0);
  CHECK(device.all(region.pointer(), kMiB) == 0);
}

TEST_CASE("an event about a region during its import or publication is not lost") {
  const harness::BrokerFixture broker(gpu_broker());
  auto maker = connect(broker.socket()), session = connect(broker.socket());
  auto inside = support::must(support::try_open(broker.socket()));
  const auto lose = [&](shmbroker::Session& listener) {
    shmb::client::GpuReport report;
    report.what = SHMBW_GPU_FINDING_DEVICE_LOST;
    report.code = 999;
    std::memcpy(report.uuid.data(), gpu::devices()[0].uuid, report.uuid.size());
    (void)support::must(shmb::client::gpu_report(*inside, report, shmb::client::Deadline::after(60'000'000'000)));
    (void)listener.create(4096);  // an answer, and before it what was told
    (void)gpu::dispatch(listener);
  };
  auto region = gpu::Region::allocate(maker, kMiB);
  region.publish();
  std::function<void()> now = [&] { lose(session); };
  fakecuda::Fake::use().before("cuMemMap", now);
  auto imported = gpu::Region::import(session, region.ticket());
  CHECK(imported.state() == gpu::State::device_lost);
  (void)gpu::dispatch(session);
  CHECK(imported.state() == gpu::State::device_lost);
  CHECK(imported.info().cu_result == 999);
}

TEST_CASE("the device is waited for in its primary context too where the caller has one of his own") {
  const harness::BrokerFixture broker(gpu_broker());
  auto session = connect(broker.socket());
  Device device;
  auto region = gpu::Region::allocate(session, kMiB);
  auto scope = device.hold->enter();
  REQUIRE(scope);
  shmb::cuda::Stream stream = nullptr;
  REQUIRE((*device.driver)->stream_create(&stream, shmb::cuda::kNonBlocking) == 0);
  fakecuda::Fake::use().delay_us(500'000);
  REQUIRE((*device.driver)->memset8_async(region.pointer(), 7, 64, stream) == 0);
  shmb::cuda::Context own = nullptr;
  REQUIRE((*device.driver)->context_create(&own, 0, 0) == 0);
  const Status published = status_of(region.try_publish());
  CHECK((*device.driver)->context_destroy(own) == 0);  // the primary one is current again
  CHECK((*device.driver)->stream_query(stream) == 0);
  fakecuda::Fake::use().delay_us(0);
  CHECK(published == Status::ok);
  CHECK((*device.driver)->stream_destroy(stream) == 0);
}

}  // namespace cuda_tests
