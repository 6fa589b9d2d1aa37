// SPDX-License-Identifier: Apache-2.0
// The fake driver's answers about memory, held against the documentation and the facts of tests/gpu: our tests of GPU
// regions are worth as much as these rules.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "tests/fakecuda/process.hpp"
#include "tests/harness/skip.hpp"

using namespace fakecuda;

TEST_CASE("fake: allocations without a context are exported, outlive their maker and are read by another process") {
  Talk talk;
  auto maker = process({}, [&] {
    const Calls cu = plain_calls();
    NEED(with_context(cu));
    MemHandle handle = 0;
    const AllocationProp prop = shareable();
    NEED(cu.mem_create(&handle, 4 * kMega, &prop, 0) == kSuccess);
    const Address at = map_for(cu, handle, 4 * kMega, kReadWriteAccess);
    const std::uint64_t word = 0x1234;
    NEED(cu.copy_to_device(at + 3 * kMega, &word, sizeof word) == kSuccess);
    int fd = -1;
    NEED(cu.mem_export(&fd, handle, kPosixFd, 0) == kSuccess);
    NEED(talk.say(0, word, fd));
    ::pause();
    return 1;
  });
  std::uint64_t word = 0;
  int fd = -1;
  REQUIRE(talk.hear(1, &word, &fd));
  maker.kill();
  maker.wait();
  CHECK(holds({}, [&] {
          const Calls cu = plain_calls();
          NEED(with_context(cu));
          MemHandle handle = 0;
          NEED(cu.mem_import(&handle, as_pointer(fd), kPosixFd) == kSuccess);
          const Address at = map_for(cu, handle, 4 * kMega, kReadAccess);
          NEED(cu.mem_release(handle) == kSuccess);  // the mapping keeps the memory
          std::uint64_t seen = 0;
          NEED(cu.copy_to_host(&seen, at + 3 * kMega, sizeof seen) == kSuccess);
          NEED(seen == word);
          NEED(unmap_all(cu, at, 4 * kMega));
          NEED(without_context(cu));
          return 0;
        }) == 0);
  ::close(fd);
}

TEST_CASE("fake: each export is a new open file, each import another handle, and each is released once") {
  CHECK(holds({}, [] {
          const Calls cu = plain_calls();
          NEED(cu.init(0) == kSuccess);
          MemHandle handle = 0, first = 0, second = 0;
          const AllocationProp prop = shareable();
          NEED(cu.mem_create(&handle, 2 * kMega, &prop, 0) == kSuccess);
          int keeper = -1, share = -1;
          NEED(cu.mem_export(&keeper, handle, kPosixFd, 0) == kSuccess);
          NEED(cu.mem_export(&share, handle, kPosixFd, 0) == kSuccess);
          NEED(::syscall(SYS_kcmp, ::getpid(), ::getpid(), KCMP_FILE, keeper, share) != 0);
          NEED(cu.mem_import(&first, as_pointer(share), kPosixFd) == kSuccess);
          NEED(cu.mem_import(&second, as_pointer(share), kPosixFd) == kSuccess);
          NEED(first != second && first != handle);
          for (const MemHandle one : {handle, first, second}) NEED(cu.mem_release(one) == kSuccess);
          NEED(cu.mem_release(second) == kInvalidValue);
          NEED(::ftruncate(share, 0) != 0);  // sealed
          NEED(Fake::use().bytes_in_use() == 2 * kMega);
          ::close(keeper);
          ::close(share);
          NEED(Fake::use().bytes_in_use() == 0);
          return 0;
        }) == 0);
}

TEST_CASE("fake: sizes, flags, types and overlaps that the driver refuses are refused") {
  CHECK(holds({}, [] {
          const Calls cu = plain_calls();
          MemHandle handle = 0;
          AllocationProp prop = shareable();
          NEED(cu.mem_create(&handle, 2 * kMega, &prop, 0) == kNotInitialized);
          NEED(cu.init(0) == kSuccess);
          NEED(cu.mem_create(&handle, kMega, &prop, 0) == kInvalidValue);
          NEED(cu.mem_create(&handle, 2 * kMega, &prop, 1) == kInvalidValue);
          const AllocationProp nowhere = shareable(7);
          NEED(cu.mem_create(&handle, 2 * kMega, &nowhere, 0) == kInvalidDevice);
          prop.requested_handle_types = 0;
          NEED(cu.mem_create(&handle, 2 * kMega, &prop, 0) == kSuccess);
          int fd = -1;
          NEED(cu.mem_export(&fd, handle, kPosixFd, 0) == kInvalidValue);  // not asked for at birth
          Address at = 0;
          NEED(cu.address_reserve(&at, 4 * kMega, 0, 0, 0) == kSuccess);
          NEED(cu.mem_map(at, 4 * kMega, 0, handle, 0) == kInvalidValue);  // larger than it is
          NEED(cu.mem_map(at, 2 * kMega, 2 * kMega, handle, 0) == kInvalidValue);
          NEED(cu.mem_map(at + 4 * kMega, 2 * kMega, 0, handle, 0) == kInvalidValue);
          NEED(cu.mem_map(at, 2 * kMega, 0, handle, 0) == kSuccess);
          NEED(cu.mem_map(at, 2 * kMega, 0, handle, 0) == kInvalidValue);
          NEED(cu.address_free(at, 4 * kMega) == kInvalidValue);  // still mapped
          NEED(cu.mem_unmap(at, kMega) == kInvalidValue);
          NEED(cu.mem_map(at + 2 * kMega, 2 * kMega, 0, handle, 0) == kSuccess);
          NEED(cu.mem_unmap(at, 4 * kMega) == kInvalidValue);  // two mappings
          NEED(cu.mem_unmap(at + 2 * kMega, 2 * kMega) == kSuccess);
          NEED(cu.mem_unmap(at, 2 * kMega) == kSuccess);
          NEED(cu.address_free(at, 2 * kMega) == kInvalidValue);  // not the whole
          NEED(cu.address_free(at, 4 * kMega) == kSuccess);
          NEED(cu.mem_release(handle) == kSuccess);
          return 0;
        }) == 0);
}

TEST_CASE("fake: a descriptor that is no export of this card's memory is refused at import") {
  CHECK(holds({}, [] {
          const Calls cu = plain_calls();
          NEED(cu.init(0) == kSuccess);
          MemHandle handle = 0;
          const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
          const int other = ::memfd_create("other", MFD_CLOEXEC);
          NEED(cu.mem_import(&handle, as_pointer(null), kPosixFd) == kInvalidValue);
          NEED(cu.mem_import(&handle, as_pointer(other), kPosixFd) == kInvalidValue);
          ::close(other);
          NEED(cu.mem_import(&handle, as_pointer(other), kPosixFd) == kInvalidValue);
          ::close(null);
          return 0;
        }) == 0);
}

TEST_CASE("fake: the host cannot follow a device's address, and a device faults where it has no access, for good") {
  CHECK(holds({}, [] {
          const Calls cu = plain_calls();
          NEED(with_context(cu));
          MemHandle handle = 0;
          const AllocationProp prop = shareable();
          NEED(cu.mem_create(&handle, 2 * kMega, &prop, 0) == kSuccess);
          const Address at = map_for(cu, handle, 2 * kMega, kReadAccess);
          NEED(at != 0);
          int ends[2];
          NEED(::pipe2(ends, O_CLOEXEC) == 0);
          NEED(::write(ends[1], reinterpret_cast<const void*>(at), 1) < 0);  // EFAULT, where a store would be SIGSEGV
          std::uint64_t word = 0;
          NEED(cu.copy_to_host(&word, at, sizeof word) == kSuccess);
          NEED(word == 0xa5a5a5a5a5a5a5a5);  // fresh memory is garbage
          NEED(cu.copy_to_device(at, &word, sizeof word) == kIllegalAddress);
          NEED(cu.copy_to_host(&word, at, sizeof word) == kIllegalAddress);  // sticky
          NEED(cu.stream_synchronize(nullptr) == kIllegalAddress);
          NEED(unmap_all(cu, at, 2 * kMega));  // what only gives back goes on
          NEED(cu.mem_release(handle) == kSuccess);
          NEED(without_context(cu));
          return 0;
        }) == 0);
}

TEST_CASE("fake: visibility renumbers devices, hides their memory, and UUIDs stay") {
  Talk talk;
  CHECK(process({{"FAKECUDA_DEVICES", "3"}}, [&] {
          const Calls cu = plain_calls();
          NEED(cu.init(0) == kSuccess);
          MemHandle handle = 0;
          const AllocationProp prop = shareable(1);
          NEED(cu.mem_create(&handle, 2 * kMega, &prop, 0) == kSuccess);
          Uuid uuid;
          NEED(cu.device_uuid(&uuid, 1) == kSuccess);
          int fd = -1;
          NEED(cu.mem_export(&fd, handle, kPosixFd, 0) == kSuccess);
          NEED(talk.say(0, uuid, fd));
          return 0;
        }).wait() == 0);
  Uuid uuid;
  int fd = -1;
  REQUIRE(talk.hear(1, &uuid, &fd));
  CHECK(holds({{"FAKECUDA_DEVICES", "3"}, {"CUDA_VISIBLE_DEVICES", "2,1"}}, [&] {
          const Calls cu = plain_calls();
          NEED(cu.init(0) == kSuccess);
          int count = 0;
          NEED(cu.device_count(&count) == kSuccess && count == 2);
          Uuid second;
          NEED(cu.device_uuid(&second, 1) == kSuccess && second == uuid);
          MemHandle handle = 0;
          AllocationProp prop;
          NEED(cu.mem_import(&handle, as_pointer(fd), kPosixFd) == kSuccess);
          NEED(cu.mem_properties(&prop, handle) == kSuccess && prop.location.id == 1);
          NEED(cu.mem_release(handle) == kSuccess);
          return 0;
        }) == 0);
  CHECK(holds({{"FAKECUDA_DEVICES", "3"}, {"CUDA_VISIBLE_DEVICES", "0"}}, [&] {
          const Calls cu = plain_calls();
          NEED(cu.init(0) == kSuccess);
          MemHandle handle = 0;
          NEED(cu.mem_import(&handle, as_pointer(fd), kPosixFd) == kNotSupported);
          return 0;
        }) == 0);
  for (const char* none : {"", "NoDevFiles", "9,0"}) {
    CAPTURE(none);
    CHECK(holds({{"CUDA_VISIBLE_DEVICES", none}}, [&] {
            NEED(plain_calls().init(0) == kNoDevice);
            return 0;
          }) == 0);
  }
  ::close(fd);
}

TEST_CASE("fake: instances of one GPU under MIG share no memory") {
  Talk talk;
  CHECK(process({{"FAKECUDA_MIG", "1"}}, [&] {
          const Calls cu = plain_calls();
          NEED(cu.init(0) == kSuccess);
          int count = 0;
          NEED(cu.device_count(&count) == kSuccess && count == 1);
          MemHandle handle = 0;
          const AllocationProp prop = shareable();
          NEED(cu.mem_create(&handle, 2 * kMega, &prop, 0) == kSuccess);
          int fd = -1;
          NEED(cu.mem_export(&fd, handle, kPosixFd, 0) == kSuccess);
          NEED(talk.say(0, count, fd));
          return 0;
        }).wait() == 0);
  int count = 0, fd = -1;
  REQUIRE(talk.hear(1, &count, &fd));
  for (const bool same : {true, false}) {
    const char* visible =
        same ? "MIG-fa4ec0da-0000-4000-8000-000000000100" : "MIG-fa4ec0da-0000-4000-8000-000000000200";
    CHECK(holds({{"FAKECUDA_MIG", "1"}, {"CUDA_VISIBLE_DEVICES", visible}}, [&] {
            const Calls cu = plain_calls();
            NEED(cu.init(0) == kSuccess);
            MemHandle handle = 0;
            NEED(cu.mem_import(&handle, as_pointer(fd), kPosixFd) == (same ? kSuccess : kNotSupported));
            if (same) NEED(cu.mem_release(handle) == kSuccess);
            return 0;
          }) == 0);
  }
  ::close(fd);
}

TEST_CASE("fake: a card is full for all its processes, and what is freed can be had again") {
  CHECK(holds({{"FAKECUDA_BYTES", "8M"}}, [] {
          const Calls cu = plain_calls();
          NEED(cu.init(0) == kSuccess);
          const AllocationProp prop = shareable();
          std::vector<MemHandle> handles;
          MemHandle handle = 0;
          while (cu.mem_create(&handle, 2 * kMega, &prop, 0) == kSuccess) handles.push_back(handle);
          NEED(handles.size() == 4);
          NEED(cu.mem_create(&handle, 2 * kMega, &prop, 0) == kOutOfMemory);
          NEED(cu.mem_release(handles.back()) == kSuccess);
          NEED(cu.mem_create(&handles.back(), 2 * kMega, &prop, 0) == kSuccess);
          for (const MemHandle one : handles) NEED(cu.mem_release(one) == kSuccess);
          return 0;
        }) == 0);
}

TEST_CASE("fake: legacy memory is opened once for each device and counted, never in its own process") {
  bool early = false;
  SUBCASE("closed before it is freed") {}
  SUBCASE("freed while it is open: both sides see it") { early = true; }
  Talk talk;
  auto maker = process({}, [&] {
    const Calls cu = plain_calls();
    NEED(with_context(cu));
    Address at = 0;
    NEED(cu.mem_alloc(&at, 1000) == kSuccess);
    NEED(cu.memset8_async(at, 0x55, 1000, nullptr) == kSuccess);
    NEED(cu.stream_synchronize(nullptr) == kSuccess);
    IpcHandle handle{};
    NEED(cu.ipc_get_memory(&handle, at) == kSuccess);
    Address own = 0;
    NEED(cu.ipc_open_memory(&own, handle, kLazyPeer) == kInvalidContext);
    NEED(talk.say(0, handle));
    char done = 0;
    NEED(talk.hear(0, &done));  // 'o': it is open there, 'e': early
    NEED(cu.mem_free(at) == kSuccess);
    NEED(Fake::use().audit().violations == (done == 'e' ? 1 : 0));
    NEED(talk.say(0, done));
    return 0;
  });
  IpcHandle handle{};
  REQUIRE(talk.hear(1, &handle));
  CHECK(process({}, [&] {
          const Calls cu = plain_calls();
          NEED(with_context(cu));
          Address first = 0, second = 0;
          NEED(cu.ipc_open_memory(&first, handle, kLazyPeer) == kSuccess);
          NEED(cu.ipc_open_memory(&second, handle, kLazyPeer) == kSuccess);
          NEED(first == second);
          NEED(cu.ipc_close_memory(first) == kSuccess);
          std::uint64_t word = 0;
          NEED(cu.copy_to_host(&word, first, sizeof word) == kSuccess);
          NEED(word == 0x5555555555555555);
          char done = early ? 'e' : 'o';
          if (!early) NEED(cu.ipc_close_memory(first) == kSuccess);
          NEED(talk.say(1, done));
          NEED(talk.hear(1, &done));
          if (!early) return 0;
          NEED(cu.copy_to_host(&word, first, sizeof word) == kSuccess);
          NEED(word == 0xdddddddddddddddd);  // freed under us
          NEED(cu.ipc_close_memory(first) == kSuccess);
          NEED(Fake::use().audit().violations == 1);
          return 0;
        }).wait() == 0);
  CHECK(maker.wait() == 0);
}

TEST_CASE("fake: a call fails where a test wants it, once or from then on") {
  CHECK(holds({{"FAKECUDA_FAIL", "cuMemCreate:2:2"}}, [] {
          const Calls cu = plain_calls();
          NEED(cu.init(0) == kSuccess);
          const AllocationProp prop = shareable();
          MemHandle one = 0, two = 0;
          NEED(cu.mem_create(&one, 2 * kMega, &prop, 0) == kSuccess);
          NEED(cu.mem_create(&two, 2 * kMega, &prop, 0) == kOutOfMemory);
          NEED(cu.mem_create(&two, 2 * kMega, &prop, 0) == kSuccess);
          NEED(cu.mem_release(two) == kSuccess);
          {
            const Injected injected("cuMemCreate:1+:999");
            for (int i = 0; i < 3; ++i) NEED(cu.mem_create(&two, 2 * kMega, &prop, 0) == kUnknown);
          }
          NEED(!Fake::use().fail("cuMemCreate") && !Fake::use().fail("cuMemCreate:0:2"));
          NEED(Fake::use().calls("cuMemCreate") == 6);
          NEED(cu.mem_release(one) == kSuccess);
          return 0;
        }) == 0);
}

TEST_CASE("fake: a forked child of a process that used the driver gets nothing from it") {
  CHECK(holds({}, [] {
          const Calls cu = plain_calls();
          NEED(cu.init(0) == kSuccess);
          const pid_t child = ::fork();
          if (child == 0) {
            MemHandle handle = 0;
            const AllocationProp prop = shareable();
            ::_exit(cu.init(0) == kNotInitialized && cu.mem_create(&handle, 2 * kMega, &prop, 0) == kNotInitialized
                        ? 0
                        : 1);
          }
          int status = -1;
          NEED(::waitpid(child, &status, 0) == child && status == 0);
          return 0;
        }) == 0);
}

TEST_CASE("fake: the audit at a process' end fails it by name of what is left") {
  for (const bool leaves : {true, false}) {
    CHECK(process({{"FAKECUDA_AUDIT", "1"}}, [&] {
            const Calls cu = plain_calls();
            if (cu.init(0) != kSuccess) return 1;
            MemHandle handle = 0;
            const AllocationProp prop = shareable();
            if (cu.mem_create(&handle, 2 * kMega, &prop, 0) != kSuccess) return 1;
            if (!leaves && cu.mem_release(handle) != kSuccess) return 1;
            std::exit(0);  // with the handlers, unlike the child's own end
          }).wait() == (leaves ? 86 : 0));
  }
}
