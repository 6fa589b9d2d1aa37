// SPDX-License-Identifier: Apache-2.0
// Memory that others allocated: adopted where it was made by cuMemCreate, lent where by cudaMalloc, born in a region
// where torch allocates through our hooks; and what can be neither says what to do.
#include <chrono>
#include <csignal>
#include <stdexcept>

#include "tests/cuda/stage.hpp"
#include "tests/harness/stopped.hpp"

namespace cuda_tests {
namespace {

// A foreign allocator with cuMemCreate: chunks one after the other.
class Segments {
 public:
  Segments(const Device& device, std::vector<std::size_t> sizes, int handle_types, int last_on = 0)
      : driver_(*device.driver), hold_(driver_, 0) {
    const auto scope = hold_.enter();
    for (const std::size_t size : sizes) bytes_ += size;
    REQUIRE(driver_->address_reserve(&base_, bytes_, 0, 0, 0) == 0);
    shmb::cuda::Address next = base_;
    for (const std::size_t size : sizes) {
      shmb::cuda::AllocationProp wanted;
      wanted.type = shmb::cuda::kPinnedAllocation;
      wanted.requested_handle_types = handle_types;
      wanted.location = {shmb::cuda::kDeviceLocation, next + size == base_ + bytes_ ? last_on : 0};
      shmb::cuda::MemHandle handle = 0;
      REQUIRE(driver_->mem_create(&handle, size, &wanted, 0) == 0);
      REQUIRE(driver_->mem_map(next, size, 0, handle, 0) == 0);
      REQUIRE(driver_->mem_release(handle) == 0);
      next += size;
      sizes_.push_back(size);
    }
    const shmb::cuda::AccessDesc all{{shmb::cuda::kDeviceLocation, 0}, shmb::cuda::kReadWriteAccess};
    REQUIRE(driver_->mem_set_access(base_, bytes_, &all, 1) == 0);
  }
  Segments(const Segments&) = delete;
  Segments& operator=(const Segments&) = delete;
  ~Segments() {
    const auto scope = hold_.enter();
    shmb::cuda::Address next = base_;
    for (const std::size_t size : sizes_) {
      driver_->mem_unmap(next, size);
      next += size;
    }
    driver_->address_free(base_, bytes_);
  }
  gpu::Pointer base() const { return base_; }

 private:
  const shmb::cuda::Driver& driver_;
  shmb::cuda::ContextHold hold_;
  shmb::cuda::Address base_ = 0;
  std::size_t bytes_ = 0;
  std::vector<std::size_t> sizes_;
};

// Memory of cudaMalloc, with a note of its end.
struct Malloced {
  explicit Malloced(Device& of, std::size_t bytes) : device(of) {
    auto scope = device.hold->enter();
    REQUIRE((*device.driver)->mem_alloc(&pointer, bytes) == 0);
  }
  Malloced(const Malloced&) = delete;
  Malloced& operator=(const Malloced&) = delete;
  ~Malloced() { free(); }
  void free() {
    if (pointer == 0) return;
    auto scope = device.hold->enter();
    CHECK((*device.driver)->mem_free(std::exchange(pointer, 0)) == 0);
  }
  Device& device;
  shmb::cuda::Address pointer = 0;
};

}  // namespace

TEST_CASE("expandable segments of another allocator are shared where they lie, from the middle too") {
  const harness::BrokerFixture broker(gpu_broker());
  auto session = connect(broker.socket());
  auto other = connect(broker.socket());
  Device device;
  std::optional<Segments> segments(std::in_place, device, std::vector<std::size_t>{2 * kMiB, 2 * kMiB, 2 * kMiB},
                                   shmb::cuda::kPosixFd);
  REQUIRE(device.fill(segments->base(), 6 * kMiB, 0x21) == 0);
  REQUIRE(device.fill(segments->base() + 3 * kMiB, 4096, 0x22) == 0);
  auto region = gpu::Region::adopt(session, segments->base() + 3 * kMiB, 4096);  // in the second one
  CHECK(region.info().kind == SHMB_GPU_ADOPTED);
  CHECK(region.info().bytes == 2 * kMiB);
  CHECK(region.info().offset == kMiB);
  CHECK(region.pointer() == segments->base() + 3 * kMiB);
  CHECK(status_of(region.try_sleep()) == Status::invalid);
  region.publish();
  auto across = gpu::Region::adopt(session, segments->base() + kMiB, 4 * kMiB);  // over all three
  CHECK(across.info().chunks == 3);
  across.publish();
  auto imported = gpu::Region::import(other, region.ticket());
  CHECK(imported.size() == 4096);
  CHECK(device.all(imported.pointer(), 4096) == 0x22);
  auto whole = gpu::Region::import(other, across.ticket());
  CHECK(whole.size() == 4 * kMiB);
  CHECK(device.all(whole.pointer(), 2 * kMiB) == 0x21);
  CHECK(device.all(whole.pointer() + 2 * kMiB, 4096) == 0x22);
  segments.reset();  // their owner frees them: the regions live on
  CHECK(device.all(imported.pointer(), 4096) == 0x22);
}

TEST_CASE("memory that cannot be shared by descriptor is refused with what to do instead") {
  const harness::BrokerFixture broker(gpu_broker());
  auto session = connect(broker.socket());
  Device device;
  const Segments plain(device, {2 * kMiB}, 0);
  auto refused = gpu::Region::try_adopt(session, plain.base(), kMiB);
  CHECK(status_of(refused) == Status::not_exportable);
  CHECK(sentence_of(refused).find("cuMemCreate") != std::string::npos);
  auto lent = gpu::Lease::try_lend(session, plain.base(), kMiB, nullptr);
  CHECK(status_of(lent) == Status::not_exportable);
  const Segments uneven(device, {2 * kMiB, 4 * kMiB}, shmb::cuda::kPosixFd);
  CHECK(status_of(gpu::Region::try_adopt(session, uneven.base(), 6 * kMiB)) == Status::not_exportable);
  CHECK(status_of(gpu::Region::try_adopt(session, uneven.base(), 2 * kMiB)) == Status::ok);
  auto wrong_way = gpu::Lease::try_lend(session, uneven.base(), kMiB, nullptr);
  CHECK(status_of(wrong_way) == Status::not_exportable);
  CHECK(sentence_of(wrong_way).find("gpu::adopt") != std::string::npos);
  const Segments on_two(device, {2 * kMiB, 2 * kMiB}, shmb::cuda::kPosixFd, 1);
  auto divided = gpu::Region::try_adopt(session, on_two.base(), 4 * kMiB);
  CHECK(status_of(divided) == Status::not_exportable);
  CHECK(sentence_of(divided).find("more than one device") != std::string::npos);
  CHECK(status_of(gpu::Region::try_adopt(session, on_two.base() + 2 * kMiB, kMiB)) == Status::ok);
  const Malloced malloced(device, kMiB);
  auto adopted = gpu::Region::try_adopt(session, malloced.pointer, kMiB);
  CHECK(status_of(adopted) == Status::not_exportable);
  CHECK(sentence_of(adopted).find("gpu::lend") != std::string::npos);
  int on_the_host = 0;
  const auto host = static_cast<gpu::Pointer>(reinterpret_cast<std::uintptr_t>(&on_the_host));
  CHECK(status_of(gpu::Region::try_adopt(session, host, 4)) == Status::invalid);
  CHECK(status_of(gpu::Lease::try_lend(session, host, 4, nullptr)) == Status::invalid);
  CHECK(status_of(gpu::Region::try_adopt(session, uneven.base() + 5 * kMiB, 4 * kMiB)) == Status::invalid);
  CHECK(status_of(gpu::Lease::try_lend(session, malloced.pointer, 64 * kMiB, nullptr)) == Status::invalid);
}

TEST_CASE("lent memory is freed when its last user has gone, not before") {
  const harness::BrokerFixture broker(gpu_broker());
  auto session = connect(broker.socket());
  auto other = connect(broker.socket());
  Device device;
  Malloced memory(device, 3 * kMiB);
  REQUIRE(device.fill(memory.pointer, 3 * kMiB, 0x77) == 0);
  int freed = 0;
  gpu::LendOptions options;
  options.name = "activations";
  gpu::Tensor tensor;
  tensor.name = "x";
  tensor.shape = {16};
  options.tensors = {tensor};
  std::optional<gpu::Lease> lease = gpu::Lease::lend(
      session, memory.pointer + kMiB, kMiB,
      [&](gpu::Pointer pointer) {
        CHECK(pointer == memory.pointer + kMiB);
        ++freed;
      },
      options);
  CHECK(lease->id().id != 0);
  CHECK(gpu::dispatch(session).waiting == 0);
  std::optional<gpu::Region> user = gpu::Region::import(session, std::string("activations"));
  CHECK(user->info().kind == SHMB_GPU_LENT);
  CHECK(user->size() == kMiB);
  CHECK(user->tensor(0).name == "x");
  CHECK(device.all(user->pointer(), kMiB) == 0x77);
  CHECK(status_of(user->try_sleep()) == Status::invalid);
  lease.reset();
  CHECK(freed == 0);
  CHECK(gpu::dispatch(session).waiting == 1);
  CHECK(status_of(gpu::Region::try_import(session, std::string("activations"))) == Status::not_found);
  user.reset();
  const auto done = gpu::dispatch(session);
  CHECK(done.waiting == 0);
  CHECK(freed == 1);

  // Nobody has it: it is freed at once.
  gpu::Lease::lend(session, memory.pointer, kMiB, [&](gpu::Pointer) { ++freed; }).retire();
  CHECK(freed == 2);
  // The end of a region waits for the device anyway, and frees it as well.
  std::optional<gpu::Lease> again = gpu::Lease::lend(session, memory.pointer, kMiB, [&](gpu::Pointer) { ++freed; });
  user = gpu::Region::import(session, again->id());
  again.reset();
  user->release();
  CHECK(freed == 3);
}

TEST_CASE("a function that throws keeps no other memory from being freed") {
  const harness::BrokerFixture broker(gpu_broker());
  auto session = connect(broker.socket());
  Device device;
  Malloced memory(device, kMiB);
  int freed = 0;
  std::vector<gpu::Lease> leases;
  for (int i = 0; i < 3; ++i)
    leases.push_back(gpu::Lease::lend(session, memory.pointer, kMiB, [&](gpu::Pointer) {
      if (++freed == 1) throw std::runtime_error("of the program's own");
    }));
  leases.clear();
  std::size_t failures = 0;
  CHECK(eventually([&] {
    if (!gpu::try_dispatch(session)) ++failures;
    return freed == 3;
  }));
  CHECK(failures == 1);
  CHECK(gpu::dispatch(session).waiting == 0);
}

TEST_CASE("lent memory waits for users of other sessions, and is freed where the broker is gone") {
  harness::BrokerFixture broker(gpu_broker());
  Device device;
  Malloced memory(device, kMiB);
  int freed = 0;
  auto session = connect(broker.socket());
  auto lease = gpu::Lease::lend(session, memory.pointer, kMiB, [&](gpu::Pointer) { ++freed; });
  auto other = connect(broker.socket());
  std::optional<gpu::Region> user = gpu::Region::import(session, lease.id());
  lease.retire();
  CHECK(freed == 0);
  broker.kill();
  CHECK(eventually([&] {
    (void)gpu::try_dispatch(session);
    return session.info().lost != 0;
  }));
  (void)gpu::try_dispatch(session);
  CHECK(freed == 0);  // this process counts its own users itself
  user.reset();
  (void)gpu::try_dispatch(session);
  CHECK(freed == 1);
}

TEST_CASE("lent memory that is let go while the broker does not answer is freed when it does again") {
  const harness::BrokerFixture broker(gpu_broker());
  Device device;
  Malloced memory(device, kMiB);
  int freed = 0;
  auto session = connect(broker.socket());
  std::optional<gpu::Lease> lease = gpu::Lease::lend(session, memory.pointer, kMiB, [&](gpu::Pointer) { ++freed; });
  harness::stop(broker.pid());
  lease.reset();
  CHECK(freed == 0);
  REQUIRE(::kill(broker.pid(), SIGCONT) == 0);
  CHECK(eventually([&] {
    (void)gpu::try_dispatch(session);
    return freed == 1;
  }));
}

TEST_CASE("a session that was disconnected still frees what it lent") {
  const harness::BrokerFixture broker(gpu_broker());
  Device device;
  Malloced memory(device, kMiB);
  int freed = 0;
  {
    auto session = connect(broker.socket());
    std::optional<gpu::Region> user;
    auto lease = gpu::Lease::lend(session, memory.pointer, kMiB, [&](gpu::Pointer) { ++freed; });
    user = gpu::Region::import(session, lease.id());
    lease.retire();
  }
  auto another = connect(broker.socket());
  (void)gpu::Region::allocate(another, kMiB);
  CHECK(freed == 1);
}

TEST_CASE("tensors of torch are born in regions and published where they lie") {
  const harness::BrokerFixture broker(gpu_broker());
  auto session = connect(broker.socket());
  auto other = connect(broker.socket());
  Device device;
  void* const block = shmb_torch_alloc(6 * kMiB, 0, nullptr);
  REQUIRE(block != nullptr);
  const auto at = static_cast<gpu::Pointer>(reinterpret_cast<std::uintptr_t>(block));
  REQUIRE(device.fill(at + 512, 1024, 0x3c) == 0);
  std::uint64_t offset = 0;
  std::optional<gpu::Region> region = gpu::Region::of_torch(session, static_cast<const char*>(block) + 512, &offset);
  CHECK(offset == 512);
  CHECK(region->size() == 6 * kMiB);
  region->publish({.writing = true});
  CHECK(status_of(gpu::Region::try_of_torch(other, block)) == Status::busy);  // it belongs to the other session
  auto imported = gpu::Region::import(other, region->ticket());
  CHECK(device.all(imported.pointer() + 512, 1024) == 0x3c);
  REQUIRE(device.fill(at, 64, 0x44) == 0);  // torch goes on writing
  CHECK(device.all(imported.pointer(), 64) == 0x44);
  shmb_torch_free(block, 6 * kMiB, 0, nullptr);
  CHECK(device.all(at + 512, 1024) == 0x3c);  // the handle keeps it
  region.reset();
  CHECK(device.all(imported.pointer() + 512, 1024) == 0x3c);
  CHECK(status_of(gpu::Region::try_of_torch(session, block)) == Status::not_found);
  CHECK(shmb_torch_alloc(1024 * kMiB, 0, nullptr) == nullptr);
  shmb_error error;
  CHECK(shmb_torch_last_error(&error) == SHMB_E_OUT_OF_MEMORY);
  CHECK(std::string(error.sentence).find("cuMemCreate") != std::string::npos);
  shmb_torch_free(nullptr, 0, 0, nullptr);
}

}  // namespace cuda_tests
