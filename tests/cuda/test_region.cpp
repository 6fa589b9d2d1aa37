// SPDX-License-Identifier: Apache-2.0
// GPU regions in one process with two sessions: birth, publication, import, sleep, DLPack, tickets, and what is left
// behind, which is nothing.
#include <atomic>
#include <chrono>
#include <fstream>

#include "cuda/dlpack.hpp"
#include "tests/cuda/stage.hpp"

namespace cuda_tests {
namespace {

gpu::Tensor floats(const std::string& name, std::vector<std::int64_t> shape, std::uint64_t offset) {
  gpu::Tensor tensor;
  tensor.name = name;
  tensor.shape = std::move(shape);
  tensor.offset = offset;
  return tensor;
}

int access_of(const Device& device, gpu::Pointer pointer) {
  const shmb::cuda::Location where{shmb::cuda::kDeviceLocation, 0};
  unsigned long long flags = 99;
  if ((*device.driver)->mem_get_access(&flags, &where, pointer) != 0) return -1;
  return static_cast<int>(flags);
}

}  // namespace

TEST_CASE("an allocated region is zeroed, rounded and gone with its handle") {
  const NothingLeft guard;
  const harness::BrokerFixture broker(gpu_broker());
  auto session = connect(broker.socket());
  auto region = gpu::Region::allocate(session, 3 * kMiB);
  Device device;
  CHECK(device.all(region.pointer(), 3 * kMiB) == 0);
  const auto info = region.info();
  CHECK(info.length == 3 * kMiB);
  CHECK(info.bytes == 4 * kMiB);
  CHECK(info.state == SHMB_GPU_UNPUBLISHED);
  CHECK(info.access == SHMB_ACCESS_READ_WRITE);
  CHECK(info.kind == SHMB_GPU_VMM);
  CHECK(info.id.id == 0);
  CHECK(info.device == 0);
  const auto devices = gpu::devices();
  REQUIRE(devices.size() == 2);
  CHECK(std::memcmp(info.uuid, devices[0].uuid, 16) == 0);
  CHECK((devices[0].flags & SHMB_GPU_DEVICE_VMM) != 0);
  gpu::AllocateOptions there;
  there.uuid.emplace();
  std::memcpy(there.uuid->bytes.data(), devices[1].uuid, 16);
  CHECK(gpu::Region::allocate(session, 1, there).info().device == 1);
  there.uuid->bytes[0] ^= 1;
  CHECK(status_of(gpu::Region::try_allocate(session, 1, there)) == Status::device_not_found);
  CHECK(status_of(gpu::Region::try_allocate(session, 0)) == Status::invalid);
}

TEST_CASE("a published region is imported by name, identity and ticket, with its tensors") {
  const NothingLeft guard;
  const harness::BrokerFixture broker(gpu_broker());
  auto session = connect(broker.socket());
  auto other = connect(broker.socket());
  const auto group = session.create_group();
  session.join(group.token);
  other.join(group.token);
  Device device;
  auto region = gpu::Region::allocate(session, 4 * kMiB);
  REQUIRE(device.fill(region.pointer(), 4 * kMiB, 0x5a) == 0);
  gpu::PublishOptions options;
  options.name = "weights";
  options.tensors = {floats("a", {16, 16}, 0), floats("b", {4}, 1024)};
  const auto id = region.publish(options);
  CHECK(id.id != 0);
  CHECK(region.state() == gpu::State::ok);
  CHECK(region.id() == id);
  CHECK(region.info().notes == 0);
  {
    auto by_name = gpu::Region::import(other, std::string("weights"));
    auto by_id = gpu::Region::import(other, id);
    auto by_ticket = gpu::Region::import(other, region.ticket());
    for (const gpu::Region* imported : {&by_name, &by_id, &by_ticket}) {
      CHECK(imported->id() == id);
      CHECK(imported->size() == 4 * kMiB);
      CHECK(device.all(imported->pointer(), 4 * kMiB) == 0x5a);
      CHECK(access_of(device, imported->pointer()) == shmb::cuda::kReadAccess);
      CHECK(imported->state() == gpu::State::ok);
      REQUIRE(imported->tensor_count() == 2);
      CHECK(imported->tensor(0).name == "a");
      CHECK(imported->tensor("b").offset == 1024);
      CHECK(imported->tensor("b").shape == std::vector<std::int64_t>{4});
      CHECK(status_of(imported->try_tensor("c")) == Status::not_found);
      CHECK(status_of(imported->try_tensor(2)) == Status::not_found);
      CHECK(imported->info().kind == SHMB_GPU_VMM);
    }
    gpu::ImportOptions writing;
    writing.access = gpu::Access::read_write;
    CHECK(status_of(gpu::Region::try_import(other, id, writing)) == Status::write_closed);
  }
  CHECK(status_of(region.try_publish()) == Status::invalid);  // twice
  region.release(true);
  CHECK(status_of(gpu::Region::try_import(other, std::string("weights"))) == Status::not_found);
}

TEST_CASE("a region outlives the session that published it while another one has it") {
  const NothingLeft guard;
  const harness::BrokerFixture broker(gpu_broker());
  Device device;
  auto other = connect(broker.socket());
  std::optional<gpu::Region> imported;
  {
    auto session = connect(broker.socket());
    auto region = gpu::Region::allocate(session, 2 * kMiB);
    REQUIRE(device.fill(region.pointer(), 2 * kMiB, 7) == 0);
    region.publish();
    imported = gpu::Region::import(other, region.ticket());
  }
  CHECK(device.all(imported->pointer(), 2 * kMiB) == 7);
  CHECK(eventually([&] { return gpu::dispatch(other).freed == 0; }));
  CHECK(imported->state() == gpu::State::ok);
}

TEST_CASE("a region that is still written says so until `written`") {
  const NothingLeft guard;
  const harness::BrokerFixture broker(gpu_broker());
  auto session = connect(broker.socket());
  auto other = connect(broker.socket());
  Device device;
  auto one = gpu::Region::allocate(session, 2 * kMiB);
  CHECK(status_of(one.try_written()) == Status::invalid);  // not published
  gpu::PublishOptions options;
  options.many_writers = true;
  CHECK(status_of(one.try_publish(options)) == Status::invalid);  // of what is not written
  options.writing = true;
  one.publish(options);
  gpu::ImportOptions writing;
  writing.access = gpu::Access::read_write;
  {
    auto writer = gpu::Region::import(other, one.ticket(shmbroker::Rights::read | shmbroker::Rights::write), writing);
    REQUIRE(device.fill(writer.pointer(), 2 * kMiB, 3) == 0);
    CHECK(device.all(one.pointer(), 2 * kMiB) == 3);
    REQUIRE(device.fill(one.pointer(), 2 * kMiB, 4) == 0);
    CHECK(device.all(writer.pointer(), 2 * kMiB) == 4);
    writer.written();
    CHECK(status_of(writer.try_written()) == Status::denied);
  }
  one.written();

  auto two = gpu::Region::allocate(session, 2 * kMiB);
  options.many_writers = false;
  two.publish(options);
  CHECK(access_of(device, two.pointer()) == shmb::cuda::kReadWriteAccess);
  CHECK(status_of(gpu::Region::try_import(session, two.id(), writing)) == Status::write_closed);
  CHECK(status_of(gpu::Region::try_import(session, two.id())) == Status::ok);
}

TEST_CASE("the publisher's own mapping is left alone, unless the caller asks for its end") {
  const NothingLeft guard;
  const harness::BrokerFixture broker(gpu_broker());
  auto session = connect(broker.socket());
  Device device;
  const auto changes = [] { return fakecuda::Fake::use().calls("cuMemSetAccess"); };
  auto left = gpu::Region::allocate(session, 2 * kMiB), written = gpu::Region::allocate(session, 2 * kMiB);
  const long before = changes();
  left.publish();
  written.publish({.writing = true});
  written.written();
  CHECK(changes() == before);
  CHECK(access_of(device, left.pointer()) == shmb::cuda::kReadWriteAccess);
  CHECK(access_of(device, written.pointer()) == shmb::cuda::kReadWriteAccess);
  // It may not be written all the same, and says so to those who ask.
  auto* managed = reinterpret_cast<shmb::cuda::DlManaged*>(left.dlpack(floats("t", {4}, 0)));
  CHECK(managed->flags == shmb::cuda::kDlReadOnly);
  managed->deleter(reinterpret_cast<DLManagedTensorVersioned*>(managed));

  auto closed = gpu::Region::allocate(session, 2 * kMiB), later = gpu::Region::allocate(session, 2 * kMiB);
  closed.publish({.close_own = true});
  CHECK(access_of(device, closed.pointer()) == shmb::cuda::kReadAccess);
  CHECK(closed.access() == gpu::Access::read_only);
  later.publish({.writing = true, .close_own = true});
  CHECK(access_of(device, later.pointer()) == shmb::cuda::kReadWriteAccess);
  later.written();
  CHECK(access_of(device, later.pointer()) == shmb::cuda::kReadAccess);

  // A driver that refuses costs no publication.
  auto refused = gpu::Region::allocate(session, 2 * kMiB);
  const fakecuda::Injected failing("cuMemSetAccess:1:801");
  CHECK(status_of(refused.try_publish({.close_own = true})) == Status::ok);
  CHECK(refused.info().notes == SHMB_GPU_NOTE_NOT_CLOSED);
  CHECK(refused.access() == gpu::Access::read_write);
}

TEST_CASE("a name is taken over only where that was asked for, and the generation tells") {
  const NothingLeft guard;
  const harness::BrokerFixture broker(gpu_broker());
  auto session = connect(broker.socket());
  gpu::PublishOptions options;
  options.name = "model";
  auto first = gpu::Region::allocate(session, kMiB);
  const auto old = first.publish(options);
  auto second = gpu::Region::allocate(session, kMiB);
  CHECK(status_of(second.try_publish(options)) == Status::exists);
  CHECK(second.access() == gpu::Access::read_write);  // as before the failure
  options.replace = true;
  const auto now = second.publish(options);
  CHECK(now.generation == old.generation + 1);
  CHECK(gpu::Region::import(session, std::string("model")).id() == now);
  CHECK(status_of(gpu::Region::try_import(session, shmbroker::RegionId{old.epoch, old.id, old.generation + 7})) ==
        Status::generation_mismatch);
  CHECK(status_of(gpu::Region::try_import(session, shmbroker::RegionId{{old.epoch.value ^ 1}, old.id, 0})) ==
        Status::stale);
  auto host = session.create(4096, {.name = "host"});
  CHECK(status_of(gpu::Region::try_import(session, std::string("host"))) == Status::other_kind);
  CHECK(status_of(session.try_attach("model")) == Status::other_kind);
  second.release(true);
}

TEST_CASE("100 regions are published and imported in few requests, and a bad one among them fails alone") {
  const NothingLeft guard;
  const harness::BrokerFixture broker(gpu_broker());
  auto session = connect(broker.socket());
  Device device;
  constexpr std::size_t kRegions = 100;
  std::vector<gpu::Region> regions;
  for (std::size_t i = 0; i < kRegions; ++i) {
    regions.push_back(gpu::Region::allocate(session, 4096, {.uninitialised = true}));
    REQUIRE(device.fill(regions.back().pointer(), 4096, static_cast<unsigned char>(i)) == 0);
  }
  const gpu::Tensor too_long = floats("too long", {4096}, 0);
  const auto bad = too_long.to_c();
  shmb_gpu_publish_options wrong{};
  wrong.size = sizeof wrong;
  wrong.tensors = &bad;
  wrong.tensor_count = 1;
  std::vector<shmb_gpu_publish_item> items;
  for (const gpu::Region& region : regions) items.push_back({region.c(), nullptr});
  items[40].options = &wrong;
  items[60].region = items[59].region;  // twice
  std::vector<int> statuses(items.size(), -1);
  shmb_error error;
  CHECK(shmb_gpu_publish_many(items.data(), items.size(), 0, statuses.data(), &error) == SHMB_E_INVALID);
  CHECK(std::string(error.sentence).find("'too long'") != std::string::npos);
  std::vector<shmbroker::RegionId> ids;
  for (std::size_t i = 0; i < kRegions; ++i) {
    CHECK(statuses[i] == (i == 40 || i == 60 ? SHMB_E_INVALID : SHMB_OK));
    if (statuses[i] == SHMB_OK) ids.push_back(regions[i].id());
  }
  ids.push_back({{}, 1'000'000, 0});
  auto imported = gpu::Region::import_many(session, ids);
  REQUIRE(imported.size() == kRegions - 1);
  CHECK(status_of(imported.back()) == Status::not_found);
  imported.pop_back();
  for (std::size_t i = 0, at = 0; i < kRegions; ++i) {
    if (i == 40 || i == 60) continue;
    REQUIRE(imported[at]);
    CHECK(device.all(imported[at]->pointer(), 4096) == static_cast<int>(i));
    ++at;
  }
}

TEST_CASE("a region of more chunks than one packet carries comes whole") {
  const NothingLeft guard;
  const harness::BrokerFixture broker(gpu_broker());
  auto session = connect(broker.socket());
  auto other = connect(broker.socket());
  Device device(1);
  gpu::AllocateOptions options;
  options.device = 1;
  options.chunk_bytes = 1;  // rounded up to the granularity
  options.uninitialised = true;
  const std::uint64_t bytes = 2 * kMiB * 127 - kMiB;
  auto region = gpu::Region::allocate(session, bytes, options);
  CHECK(region.info().chunks == 127);
  for (std::uint64_t at = 0; at < bytes; at += 2 * kMiB)
    REQUIRE(device.fill(region.pointer() + at, 64, static_cast<unsigned char>(at / (2 * kMiB))) == 0);
  region.publish();
  auto imported = gpu::Region::import(other, region.ticket(), {.devices = {1}});
  CHECK(imported.info().chunks == 127);
  CHECK(imported.size() == bytes);
  for (std::uint64_t at = 0; at < bytes; at += 2 * kMiB)
    CHECK(device.all(imported.pointer() + at, 64) == static_cast<int>(at / (2 * kMiB)));
}

TEST_CASE("a sleeping region keeps its address and its contents") {
  const NothingLeft guard;
  const harness::BrokerFixture broker(gpu_broker());
  auto session = connect(broker.socket());
  Device device;
  auto region = gpu::Region::allocate(session, 4 * kMiB);
  REQUIRE(device.fill(region.pointer(), 4 * kMiB, 9) == 0);
  const gpu::Pointer at = region.pointer();
  region.sleep();  // not published: its own references keep the memory
  CHECK(region.pointer() == 0);
  CHECK(region.info().asleep == 1);
  CHECK(status_of(region.try_sleep()) == Status::invalid);
  CHECK(status_of(region.try_publish()) == Status::invalid);
  CHECK(status_of(region.try_dlpack(floats("t", {1}, 0))) == Status::invalid);
  region.wake();
  CHECK(region.pointer() == at);
  CHECK(device.all(at, 4 * kMiB) == 9);
  CHECK(status_of(region.try_wake()) == Status::invalid);
  region.publish();
  auto imported = gpu::Region::import(session, region.id());
  const gpu::Pointer there = imported.pointer();
  region.sleep();
  imported.sleep();
  const long mapped = fakecuda::Fake::use().audit().mappings;
  region.wake();
  imported.wake();
  CHECK(fakecuda::Fake::use().audit().mappings == mapped + 2);
  CHECK(region.pointer() == at);
  CHECK(imported.pointer() == there);
  CHECK(device.all(there, 4 * kMiB) == 9);
  CHECK(access_of(device, there) == shmb::cuda::kReadAccess);
  {
    const fakecuda::Injected failing("cuMemMap:1:2");
    imported.sleep();
    CHECK(status_of(imported.try_wake()) == Status::out_of_memory);
    CHECK(imported.pointer() == 0);
  }
  imported.wake();  // after the failure it can be tried again
  CHECK(device.all(there, 4 * kMiB) == 9);
  // One that is still written goes on being written after it has slept, also where nobody else may write.
  auto written = gpu::Region::allocate(session, 2 * kMiB);
  written.publish({.writing = true});
  written.sleep();
  written.wake();
  CHECK(written.access() == gpu::Access::read_write);
  REQUIRE(device.fill(written.pointer(), 2 * kMiB, 4) == 0);
  written.written();
  gpu::ImportOptions fixed;
  fixed.at = there;
  CHECK_FALSE(gpu::Region::try_import(session, region.id(), fixed));  // taken
}

TEST_CASE("a DLPack tensor keeps its memory mapped after the handle has gone") {
  const NothingLeft guard;
  const harness::BrokerFixture broker(gpu_broker());
  auto session = connect(broker.socket());
  Device device;
  std::optional<gpu::Region> region = gpu::Region::allocate(session, 2 * kMiB);
  REQUIRE(device.fill(region->pointer(), 2 * kMiB, 0x11) == 0);
  gpu::Tensor tensor = floats("t", {8, 4}, 256);
  tensor.type = {4, 16, 1};
  auto* writable = reinterpret_cast<shmb::cuda::DlManaged*>(region->dlpack(tensor));
  CHECK(writable->flags == 0);
  writable->deleter(reinterpret_cast<DLManagedTensorVersioned*>(writable));
  auto* old = reinterpret_cast<shmb::cuda::DlUnversioned*>(region->dlpack_unversioned(tensor));
  CHECK(old->tensor.data == reinterpret_cast<void*>(static_cast<std::uintptr_t>(region->pointer() + 256)));
  CHECK(old->tensor.byte_offset == 0);
  old->deleter(reinterpret_cast<DLManagedTensor*>(old));
  region->publish();
  const auto unsaid = region->try_dlpack_unversioned(tensor);
  CHECK(status_of(unsaid) == Status::denied);
  CHECK(sentence_of(unsaid).contains("read-only"));
  CHECK(status_of(region->try_dlpack(floats("over", {std::int64_t{1} << 40}, 0))) == Status::invalid);
  CHECK(status_of(region->try_dlpack_unversioned(floats("over", {std::int64_t{1} << 40}, 0))) == Status::invalid);
  auto* managed = reinterpret_cast<shmb::cuda::DlManaged*>(region->dlpack(tensor));
  CHECK(status_of(region->try_sleep()) == Status::busy);
  const gpu::Pointer at = region->pointer();
  region.reset();
  CHECK(managed->major == 1);
  CHECK(managed->flags == shmb::cuda::kDlReadOnly);
  // PyTorch up to 2.9 ignores the offset: the address alone must say where the tensor is.
  CHECK(managed->tensor.data == reinterpret_cast<void*>(static_cast<std::uintptr_t>(at + 256)));
  CHECK(managed->tensor.byte_offset == 0);
  CHECK(managed->tensor.device.type == 2);
  CHECK(managed->tensor.device.id == 0);
  CHECK(managed->tensor.dimensions == 2);
  CHECK(managed->tensor.shape[0] == 8);
  CHECK(managed->tensor.strides[0] == 4);
  CHECK(managed->tensor.strides[1] == 1);
  CHECK(managed->tensor.type.code == 4);
  CHECK(device.all(at, 2 * kMiB) == 0x11);
  managed->deleter(reinterpret_cast<DLManagedTensorVersioned*>(managed));
  (void)gpu::dispatch(session);
  CHECK(access_of(device, at) == -1);  // now it is gone
}

TEST_CASE("a copy that cannot be made says why, and leaves nothing") {
  const NothingLeft guard;
  const harness::BrokerFixture broker(gpu_broker());
  auto session = connect(broker.socket());
  auto region = gpu::Region::allocate(session, kMiB);
  region.sleep();
  const auto asleep = region.try_copy();
  CHECK(status_of(asleep) == Status::invalid);
  CHECK(sentence_of(asleep).contains("wake it first"));
  region.wake();
  const auto failing_at = [&](const char* injected) {
    const fakecuda::Injected failing(injected);
    return status_of(region.try_copy(std::chrono::milliseconds(20)));
  };
  CHECK(failing_at("cuMemCreate:1:2") == Status::out_of_memory);
  CHECK(failing_at("cuStreamCreate:1+:2") == Status::out_of_memory);
  CHECK(failing_at("cuMemcpyDtoDAsync:1:801") == Status::not_supported);
  CHECK(failing_at("cuEventQuery:1+:600") == Status::deadline);  // the device works on, and both stay until it is done
  CHECK(eventually([&] { return gpu::dispatch(session).waiting == 0; }));
  CHECK(status_of(region.try_copy()) == Status::ok);
  (void)gpu::dispatch(session);
  shmb_gpu_region* raw = nullptr;
  CHECK(shmb_gpu_copy(nullptr, 0, &raw, nullptr) == SHMB_E_INVALID);
  CHECK(shmb_gpu_copy(region.c(), 0, nullptr, nullptr) == SHMB_E_INVALID);
}

TEST_CASE("the import waits for a name that comes later, and not for ever") {
  const NothingLeft guard;
  const harness::BrokerFixture broker(gpu_broker());
  auto session = connect(broker.socket());
  const auto group = session.create_group();
  session.join(group.token);
  gpu::ImportOptions options;
  CHECK(status_of(gpu::Region::try_import(session, std::string("later"), options)) == Status::not_found);
  options.wait = shmbroker::Timeout(std::chrono::milliseconds(20));
  CHECK(status_of(gpu::Region::try_import(session, std::string("later"), options)) == Status::deadline);
  auto region = gpu::Region::allocate(session, kMiB);
  std::thread publisher([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    region.publish({.name = "later"});
  });
  options.wait = shmbroker::Timeout(std::chrono::seconds(60));
  CHECK(status_of(gpu::Region::try_import(session, std::string("later"), options)) == Status::ok);
  publisher.join();
  region.release(true);
}

TEST_CASE("a full device refuses with what it has, and a retry gets what others free") {
  const NothingLeft guard;
  const harness::BrokerFixture broker(gpu_broker());
  auto session = connect(broker.socket());
  std::optional<gpu::Region> most = gpu::Region::allocate(session, 200 * kMiB, {.uninitialised = true});
  auto refused = gpu::Region::try_allocate(session, 100 * kMiB, {.uninitialised = true});
  CHECK(status_of(refused) == Status::out_of_memory);
  CHECK(sentence_of(refused).find("256.0 MiB in all") != std::string::npos);
  CHECK(status_of(gpu::Region::try_allocate(session, 20 * kMiB)) == Status::ok);
  std::thread freer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    most.reset();
  });
  gpu::AllocateOptions patient;
  patient.uninitialised = true;
  patient.retry = shmbroker::Timeout(std::chrono::seconds(60));
  CHECK(status_of(gpu::Region::try_allocate(session, 100 * kMiB, patient)) == Status::ok);
  freer.join();
}

TEST_CASE("a failure at any call of the driver leaves nothing behind, and the next attempt succeeds") {
  const NothingLeft guard;
  const harness::BrokerFixture broker(gpu_broker());
  auto session = connect(broker.socket());
  auto published = gpu::Region::allocate(session, 4 * kMiB);
  published.publish();
  const fakecuda::Audit before = fakecuda::Fake::use().audit();
  for (const char* call :
       {"cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuMemsetD8Async", "cuEventCreate",
        "cuEventRecord", "cuEventQuery", "cuMemRetainAllocationHandle", "cuMemExportToShareableHandle",
        "cuMemImportFromShareableHandle", "cuCtxRecordEvent", "cuCtxGetCurrent"}) {
    CAPTURE(call);
    for (int number = 1; number <= 4; ++number) {
      const fakecuda::Injected failing(std::string(call) + ":" + std::to_string(number) + ":2");
      gpu::AllocateOptions chunked;
      chunked.chunk_bytes = 2 * kMiB;
      auto made = gpu::Region::try_allocate(session, 4 * kMiB, chunked);
      if (made) {
        auto told = made->try_publish();
        if (!told) CHECK(status_of(told) == Status::out_of_memory);
        if (!told) CHECK(made->access() == gpu::Access::read_write);
      } else {
        CHECK(status_of(made) == Status::out_of_memory);
      }
      auto imported = gpu::Region::try_import(session, published.id());
      if (!imported) CHECK(status_of(imported) == Status::out_of_memory);
    }
    CHECK(eventually([&] { return gpu::dispatch(session).waiting == 0; }));
    const fakecuda::Audit after = fakecuda::Fake::use().audit();
    CHECK(after.left() == before.left());
    CHECK(after.fds == before.fds);
    CHECK(status_of(gpu::Region::try_import(session, published.id())) == Status::ok);
  }
}

namespace {

// The host memory of a process. Sanitizers keep freed memory for a while, so theirs proves nothing.
struct Footprint {
  std::size_t maps = 0, resident_pages = 0;
  static Footprint of(pid_t pid) {
    Footprint seen;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    const std::string folder = "/proc/" + std::to_string(pid);
    std::ifstream maps(folder + "/maps"), pages(folder + "/statm");
    for (std::string line; std::getline(maps, line);) ++seen.maps;
    std::size_t all = 0;
    pages >> all >> seen.resident_pages;
#else
    (void)pid;
#endif
    return seen;
  }
  // 900 cycles that lost 8 KiB each would be seen.
  bool like(const Footprint& early) const {
    return maps <= early.maps + 16 && resident_pages <= early.resident_pages + 1536;
  }
};

}  // namespace

TEST_CASE("1,000 cycles leave no descriptor, mapping or memory behind") {
  const NothingLeft guard;
  const harness::BrokerFixture broker(gpu_broker());
  auto session = connect(broker.socket());
  auto other = connect(broker.socket());
  std::size_t descriptors = 0;
  fakecuda::Audit early;
  Footprint mine, its;
  for (int i = 0; i < 1000; ++i) {
    auto region = gpu::Region::allocate(session, 4096, {.uninitialised = true});
    const auto id = region.publish({.sync = gpu::Sync::none()});
    auto imported = gpu::Region::import(other, region.ticket());
    CHECK(imported.id() == id);
    if (i == 100) {
      descriptors = broker.descriptors();
      early = fakecuda::Fake::use().audit();
      mine = Footprint::of(::getpid());
      its = Footprint::of(broker.pid());
    }
  }
  const fakecuda::Audit late = fakecuda::Fake::use().audit();
  CHECK(late.left() <= early.left());
  const bool flat = eventually([&] { return broker.descriptors() <= descriptors; });
  CHECK(flat);
  CHECK(Footprint::of(::getpid()).like(mine));
  const bool steady = eventually([&] { return Footprint::of(broker.pid()).like(its); });
  CHECK(steady);
}

TEST_CASE("a region is imported for several devices at once, all with the same right") {
  const NothingLeft guard;
  const harness::BrokerFixture broker(gpu_broker());
  auto session = connect(broker.socket()), other = connect(broker.socket());
  Device device, second(1);
  auto region = gpu::Region::allocate(session, kMiB);
  REQUIRE(device.fill(region.pointer(), kMiB, 0x2b) == 0);
  region.publish({.writing = true, .many_writers = true});
  const auto flags_of = [&](gpu::Pointer pointer, int ordinal) {
    const shmb::cuda::Location where{shmb::cuda::kDeviceLocation, ordinal};
    unsigned long long flags = 99;
    return (*device.driver)->mem_get_access(&flags, &where, pointer) == 0 ? static_cast<int>(flags) : -1;
  };
  const auto reads = gpu::Region::import(other, region.ticket(), {.devices = {0, 1}});
  const auto writes = gpu::Region::import(other, region.ticket(shmbroker::Rights::read | shmbroker::Rights::write),
                                          {.access = gpu::Access::read_write, .devices = {1, 0}});
  for (int ordinal : {0, 1}) {
    CAPTURE(ordinal);
    CHECK(flags_of(reads.pointer(), ordinal) == shmb::cuda::kReadAccess);
    CHECK(flags_of(writes.pointer(), ordinal) == shmb::cuda::kReadWriteAccess);
  }
  CHECK(second.all(reads.pointer(), kMiB) == 0x2b);
  REQUIRE(second.fill(writes.pointer(), 64, 0x2c) == 0);
  CHECK(device.all(reads.pointer(), 64) == 0x2c);
}

TEST_CASE("without a broker a region may be used alone and not published; with one that goes, it stays mapped") {
  const NothingLeft guard;
  Device device;
  {
    auto local = shmbroker::Session::connect({.local_only = true});
    auto region = gpu::Region::allocate(local, kMiB);
    CHECK(device.all(region.pointer(), kMiB) == 0);
    CHECK(status_of(region.try_publish()) == Status::local_only);
    CHECK(status_of(gpu::Region::try_import(local, std::string("any"))) == Status::local_only);
    CHECK(region.access() == gpu::Access::read_write);
  }
  harness::BrokerFixture broker(gpu_broker());
  auto session = connect(broker.socket());
  auto region = gpu::Region::allocate(session, kMiB);
  REQUIRE(device.fill(region.pointer(), kMiB, 8) == 0);
  region.publish();
  auto fresh = gpu::Region::allocate(session, kMiB);
  broker.kill();
  CHECK(device.all(region.pointer(), kMiB) == 8);
  CHECK(status_of(fresh.try_publish()) == Status::session_lost);
  CHECK(status_of(gpu::Region::try_import(session, region.id())) == Status::session_lost);
}

TEST_CASE("bad options are refused before anything happens") {
  const NothingLeft guard;
  const harness::BrokerFixture broker(gpu_broker());
  auto session = connect(broker.socket());
  shmb_gpu_region* raw = nullptr;
  shmb_error error;
  shmb_gpu_allocate_options allocate{};
  CHECK(shmb_gpu_allocate(session.c(), 1, &allocate, &raw, &error) == SHMB_E_INVALID);  // size not set
  allocate.size = sizeof allocate;
  allocate.flags = 1U << 31;
  CHECK(shmb_gpu_allocate(session.c(), 1, &allocate, &raw, &error) == SHMB_E_UNKNOWN_FLAGS);
  allocate.flags = 0;
  allocate.device = 7;
  CHECK(shmb_gpu_allocate(session.c(), 1, &allocate, &raw, &error) == SHMB_E_DEVICE_NOT_FOUND);
  allocate.device = -2;
  CHECK(shmb_gpu_allocate(session.c(), 1, &allocate, &raw, &error) == SHMB_E_INVALID);
  CHECK(shmb_gpu_allocate(nullptr, 1, nullptr, &raw, &error) == SHMB_E_INVALID);
  CHECK(shmb_gpu_allocate(session.c(), 1, nullptr, nullptr, &error) == SHMB_E_INVALID);
  CHECK(shmb_gpu_import(session.c(), nullptr, nullptr, &raw, &error) == SHMB_E_INVALID);
  CHECK(shmb_gpu_import(session.c(), "a//b", nullptr, &raw, &error) == SHMB_E_INVALID);
  shmb_gpu_import_options import{};
  import.size = sizeof import;
  import.access = 2;
  CHECK(shmb_gpu_import(session.c(), "x", &import, &raw, &error) == SHMB_E_INVALID);
  import.access = 0;
  import.device_count = 1;
  CHECK(shmb_gpu_import(session.c(), "x", &import, &raw, &error) == SHMB_E_INVALID);
  CHECK(shmb_gpu_publish(nullptr, nullptr, &error) == SHMB_E_INVALID);
  CHECK(shmb_gpu_release(nullptr, 0, 0, &error) == SHMB_OK);
  CHECK(shmb_gpu_retire(nullptr, &error) == SHMB_OK);
  CHECK(shmb_dispatch(nullptr, nullptr, nullptr, &error) == SHMB_E_INVALID);
  auto region = gpu::Region::allocate(session, kMiB);
  CHECK(shmb_gpu_release(nullptr, 1U << 31, 0, nullptr) == SHMB_OK);
  shmb_gpu_publish_options publish{};
  publish.size = sizeof publish;
  publish.sync = 9;
  CHECK(shmb_gpu_publish(region.c(), &publish, &error) == SHMB_E_INVALID);
  publish.sync = 0;
  publish.tensor_count = 1;
  CHECK(shmb_gpu_publish(region.c(), &publish, &error) == SHMB_E_INVALID);
  publish.tensor_count = 0;
  publish.name = "a/b";
  CHECK(shmb_gpu_publish(region.c(), &publish, &error) == SHMB_E_INVALID);
  CHECK(status_of(region.try_ticket()) == Status::invalid);  // nobody could import it
}

}  // namespace cuda_tests
