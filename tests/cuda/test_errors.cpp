// SPDX-License-Identifier: Apache-2.0
// Each thing that can go wrong with the driver has a code of its own and a sentence that names the call, the driver's
// result and what to do. States that need a process of their own (no driver, a ruined context) are in
// test_processes.cpp.
#include <sys/mman.h>
#include <unistd.h>

#include "client/calls/gpu_calls.hpp"
#include "tests/cuda/stage.hpp"

namespace cuda_tests {
namespace {

struct Wrong {
  const char* injected;
  Status status;
  const char* says;
};

}  // namespace

TEST_CASE("the driver's refusals of an allocation have codes and sentences of ours") {
  const harness::BrokerFixture broker(gpu_broker());
  auto session = connect(broker.socket());
  for (const Wrong& wrong :
       {Wrong{"cuMemCreate:1:2", Status::out_of_memory, "cuMemCreate"},
        Wrong{"cuMemCreate:1:999,cuMemGetInfo:1:999", Status::device_lost, "answers nothing"},
        Wrong{"cuMemCreate:1:900", Status::busy, "call again after the capture"},
        Wrong{"cuMemsetD8Async:1:906", Status::busy, "call again after the capture"},
        Wrong{"cuEventQuery:1:907", Status::busy, "call again after the capture"},
        Wrong{"cuMemMap:1:806", Status::mps, "806"}, Wrong{"cuMemMap:1:1", Status::too_small, "cuMemMap"},
        Wrong{"cuMemSetAccess:1:101", Status::device_not_visible, "cuMemSetAccess"}}) {
    CAPTURE(wrong.injected);
    const fakecuda::Injected failing(wrong.injected);
    auto made = gpu::Region::try_allocate(session, kMiB);
    CHECK(status_of(made) == wrong.status);
    CHECK(sentence_of(made).find(wrong.says) != std::string::npos);
  }
  // A region that was refused after the device had begun ends when the device is done.
  const bool gone = eventually([&] { return gpu::dispatch(session).waiting == 0; });
  CHECK(gone);
}

TEST_CASE("the driver's refusals of an import have codes and sentences of ours, and the region stays whole") {
  const harness::BrokerFixture broker(gpu_broker());
  auto session = connect(broker.socket());
  auto region = gpu::Region::allocate(session, kMiB);
  region.publish();
  CHECK(status_of(gpu::Region::try_import(session, region.id())) == Status::ok);  // so it is proven to be memory
  for (const Wrong& wrong :
       {Wrong{"cuMemImportFromShareableHandle:1:2", Status::out_of_memory, "GPU region"},
        Wrong{"cuMemImportFromShareableHandle:1:101", Status::device_not_visible, "CUDA_VISIBLE_DEVICES"},
        Wrong{"cuMemImportFromShareableHandle:1:1", Status::bad_fd, "publisher"},
        Wrong{"cuMemImportFromShareableHandle:1:304", Status::driver_failed, "ulimit -n"},
        Wrong{"cuMemImportFromShareableHandle:1:800", Status::not_permitted, "800"},
        Wrong{"cuMemMap:1:1", Status::too_small, "publisher"}}) {
    CAPTURE(wrong.injected);
    {
      const fakecuda::Injected failing(wrong.injected);
      auto made = gpu::Region::try_import(session, region.id());
      CHECK(status_of(made) == wrong.status);
      CHECK(sentence_of(made).find(wrong.says) != std::string::npos);
    }
    CHECK(status_of(gpu::Region::try_import(session, region.id())) == Status::ok);
  }
}

TEST_CASE("a lost device is reported to the broker, which notifies all holders of memory on it") {
  const harness::BrokerFixture broker(gpu_broker());
  auto session = connect(broker.socket());
  auto other = connect(broker.socket());
  auto region = gpu::Region::allocate(session, kMiB);
  region.publish();
  auto imported = gpu::Region::import(other, region.ticket());
  // None of these says that the device is lost, and neither does the trouble of the device that it was imported for.
  for (const Wrong& wrong : {Wrong{"cuMemImportFromShareableHandle:1:46", Status::not_permitted, "mode"},
                             Wrong{"cuMemImportFromShareableHandle:1:802", Status::driver_failed, "fabricmanager"},
                             Wrong{"cuMemSetAccess:1:803", Status::driver_failed, "differ in version"},
                             Wrong{"cuMemSetAccess:1:999", Status::driver_failed, "Xid"}}) {
    CAPTURE(wrong.injected);
    const fakecuda::Injected failing(wrong.injected);
    auto refused = gpu::Region::try_import(session, region.id(), {.devices = {1}});
    CHECK(status_of(refused) == wrong.status);
    CHECK(sentence_of(refused).find(wrong.says) != std::string::npos);
  }
  CHECK(status_of(gpu::Region::try_import(other, region.ticket())) == Status::ok);
  (void)gpu::dispatch(session);
  CHECK(region.state() == gpu::State::ok);
  {
    const fakecuda::Injected failing("cuMemImportFromShareableHandle:1:999,cuMemGetInfo:1:999");
    CHECK(status_of(gpu::Region::try_import(session, region.id())) == Status::device_lost);
  }
  for (const auto& [holder, its] : {std::pair{&session, &region}, std::pair{&other, &imported}}) {
    const bool told = eventually([&] {
      (void)gpu::dispatch(*holder);
      return its->state() == gpu::State::device_lost;
    });
    CHECK(told);
  }
  CHECK(status_of(gpu::Region::try_import(other, region.id())) == Status::device_lost);
}

TEST_CASE("a published export that is no memory fails at each import, and harms no other region") {
  const harness::BrokerFixture broker(gpu_broker());
  auto session = connect(broker.socket());
  Device device;
  auto inside = support::must(support::try_open(broker.socket()));
  const auto known = gpu::devices();
  shmb::client::GpuUuid uuid;
  std::memcpy(uuid.data(), known[0].uuid, 16);
  support::must(shmb::client::gpu_device(*inside, uuid, known[0].pci, -1, shmb::client::Deadline::after(0)));
  const auto group = session.create_group();
  session.join(group.token);
  shmb::client::Token token;
  std::memcpy(token.bytes.data(), group.token.data(), 16);
  support::must(inside->join_group(token, 0, shmb::client::Deadline::after(0)));

  // One importer's own shortage is no fault of the publisher's.
  {
    auto whole = gpu::Region::allocate(session, kMiB);
    const auto sound = whole.publish();
    auto starved = connect(broker.socket());
    starved.join(group.token);
    const fakecuda::Injected failing("cuMemImportFromShareableHandle:1:304");
    CHECK(status_of(gpu::Region::try_import(starved, sound)) == Status::driver_failed);
    CHECK(status_of(gpu::Region::try_import(starved, sound)) == Status::ok);
  }
  // Files that only look like exports: the broker cannot see more.
  const int keeper = ::memfd_create("fakecuda:junk", MFD_CLOEXEC), share = ::memfd_create("fakecuda:junk", MFD_CLOEXEC);
  REQUIRE((keeper >= 0 && share >= 0));
  shmb::client::GpuPublish junk;
  junk.bytes = 2 * kMiB;
  junk.uuid = uuid;
  junk.chunks = {{keeper, share}};
  auto made = support::must(shmb::client::gpu_publish(*inside, {&junk, 1}, shmb::client::Deadline::after(0)));
  ::close(keeper);
  ::close(share);
  const auto id = support::must(std::move(made.front())).region;
  const shmbroker::RegionId there{{}, id.id, id.generation};
  auto first = gpu::Region::try_import(session, there);
  CHECK(status_of(first) == Status::bad_fd);
  CHECK(sentence_of(first).contains("only this import has failed"));
  CHECK(status_of(gpu::Region::try_import(session, there)) == Status::bad_fd);

  // Memory that is shorter than its publisher says.
  auto small = gpu::Region::allocate(session, 2 * kMiB);
  shmb::cuda::MemHandle handle = 0;
  const auto scope = device.hold->enter();
  REQUIRE((*device.driver)->mem_retain(&handle, small.data()) == 0);
  int fds[2] = {-1, -1};
  for (int& fd : fds) REQUIRE((*device.driver)->mem_export(&fd, handle, shmb::cuda::kPosixFd, 0) == 0);
  (*device.driver)->mem_release(handle);
  shmb::client::GpuPublish lie = junk;
  lie.bytes = 4 * kMiB;
  lie.chunks = {{fds[0], fds[1]}};
  auto lied = support::must(shmb::client::gpu_publish(*inside, {&lie, 1}, shmb::client::Deadline::after(0)));
  ::close(fds[0]);
  ::close(fds[1]);
  const auto second = support::must(std::move(lied.front())).region;
  CHECK(status_of(gpu::Region::try_import(session, shmbroker::RegionId{{}, second.id, second.generation})) ==
        Status::too_small);
  // The answer of the driver to one importer is not held against the region: another one may have it.
  auto other = connect(broker.socket());
  other.join(group.token);
  {
    auto whole = gpu::Region::allocate(session, kMiB);
    const auto sound = whole.publish();
    const fakecuda::Injected failing("cuMemImportFromShareableHandle:1:1");
    CHECK(status_of(gpu::Region::try_import(session, sound)) == Status::bad_fd);
    CHECK(status_of(gpu::Region::try_import(other, sound)) == Status::ok);
  }
  const shmb::client::GpuRelease both[] = {{id, 1, false}, {second, 1, false}};
  support::must(shmb::client::gpu_release(*inside, both, shmb::client::Deadline::after(0)));
}

TEST_CASE("memory that the driver does not export is not published, and is when it does") {
  const harness::BrokerFixture broker(gpu_broker());
  auto session = connect(broker.socket());
  auto region = gpu::Region::allocate(session, kMiB);
  {
    const fakecuda::Injected failing("cuMemExportToShareableHandle:1:801");
    auto refused = region.try_publish();
    CHECK(status_of(refused) == Status::not_exportable);
    CHECK(sentence_of(refused).find("POSIX_FILE_DESCRIPTOR") != std::string::npos);
  }
  CHECK(status_of(region.try_publish()) == Status::ok);
}

TEST_CASE("a device whose node the broker cannot hold open refuses the publication with the reason") {
  harness::BrokerOptions options;
  options.seam = "gpu=/nowhere";  // not where this process' driver has its nodes
  const harness::BrokerFixture broker(options);
  auto session = connect(broker.socket());
  auto region = gpu::Region::allocate(session, kMiB);
  auto refused = region.try_publish();
  CHECK(status_of(refused) == Status::device_not_pinned);
  CHECK(region.access() == gpu::Access::read_write);
}

TEST_CASE("operations that this device cannot do are refused before any is tried") {
  const harness::BrokerFixture broker(gpu_broker());
  auto session = connect(broker.socket());
  auto region = gpu::Region::allocate(session, kMiB);
  CHECK((gpu::devices()[0].flags & SHMB_GPU_DEVICE_DMA_BUF) == 0);
  CHECK(status_of(region.try_dma_buf(0, 4096)) == Status::not_supported);
  gpu::AllocateOptions rdma;
  rdma.rdma = true;
  CHECK(status_of(gpu::Region::try_allocate(session, kMiB, rdma)) == Status::ok);  // that it can
  {
    // A driver that has no memory for others to open.
    const fakecuda::Injected failing("cuMemGetAddressRange:1:500");
    CHECK(status_of(gpu::Region::try_adopt(session, region.pointer(), kMiB)) == Status::invalid);
  }
  {
    const fakecuda::Injected failing("cuMemGetAddressRange:1:800");
    const auto refused = gpu::Region::try_adopt(session, region.pointer(), kMiB);
    CHECK(status_of(refused) == Status::not_permitted);
    CHECK(sentence_of(refused).find("cuMemGetAddressRange") != std::string::npos);
  }
  CHECK(status_of(gpu::Region::try_import(session, shmbroker::RegionId{{}, 1'000'000, 0}, {.devices = {7}})) ==
        Status::not_found);
  region.publish();
  CHECK(status_of(gpu::Region::try_import(session, region.id(), {.devices = {7}})) == Status::device_not_found);
  CHECK(status_of(gpu::Region::try_import(session, region.id())) == Status::ok);  // nobody was blamed
}

}  // namespace cuda_tests
