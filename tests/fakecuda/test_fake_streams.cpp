// SPDX-License-Identifier: Apache-2.0
// Order: streams, words on which they meet, events, registered host memory.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/fakecuda/process.hpp"
#include "tests/support/until.hpp"

using namespace fakecuda;
using support::eventually;

namespace {

constexpr std::size_t kWordsPage = 4096;

std::uint64_t* shared_words(int* fd) {
  *fd = ::memfd_create("words", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (*fd < 0 || ::ftruncate(*fd, kWordsPage) != 0) return nullptr;
  void* page = ::mmap(nullptr, kWordsPage, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
  return page == MAP_FAILED ? nullptr : static_cast<std::uint64_t*>(page);
}

}  // namespace

TEST_CASE("fake: a stream does its work in order and behind the caller's back") {
  CHECK(holds({}, [] {
          const Calls cu = plain_calls();
          NEED(with_context(cu));
          Stream stream = nullptr;
          NEED(cu.stream_create(&stream, kNonBlocking) == kSuccess);
          Address at = 0, gate = 0;
          NEED(cu.mem_alloc(&at, 4096) == kSuccess);
          NEED(cu.mem_alloc(&gate, 4096) == kSuccess);
          std::uint64_t word = 0;
          NEED(cu.copy_to_device(gate, &word, sizeof word) == kSuccess);
          NEED(cu.stream_wait64(stream, gate, 1, kWaitGeq) == kSuccess);
          for (int i = 0; i <= 20; ++i)
            NEED(cu.memset8_async(at, static_cast<unsigned char>(i), 4096, stream) == kSuccess);
          NEED(cu.stream_query(stream) == kNotReady);
          word = 1;
          NEED(cu.copy_to_device(gate, &word, sizeof word) == kSuccess);
          NEED(cu.stream_synchronize(stream) == kSuccess);
          NEED(cu.stream_query(stream) == kSuccess);
          unsigned char seen = 0;
          NEED(cu.copy_to_host(&seen, at + 4095, 1) == kSuccess);
          NEED(seen == 20);
          NEED(cu.mem_free(at) == kSuccess);
          NEED(cu.mem_free(gate) == kSuccess);
          NEED(cu.stream_destroy(stream) == kSuccess);
          NEED(cu.stream_destroy(stream) == kInvalidHandle);
          NEED(without_context(cu));
          return 0;
        }) == 0);
}

TEST_CASE("fake: calls that need a context say so without one") {
  CHECK(holds({}, [] {
          const Calls cu = plain_calls();
          NEED(cu.init(0) == kSuccess);
          Address at = 0;
          Stream stream = nullptr;
          NEED(cu.mem_alloc(&at, 4096) == kInvalidContext);
          NEED(cu.stream_create(&stream, 0) == kInvalidContext);
          NEED(cu.context_synchronize() == kInvalidContext);
          return 0;
        }) == 0);
}

TEST_CASE("fake: an event is recorded in streams of its own context only, and goes with it") {
  CHECK(process({{"FAKECUDA_DEVICES", "2"}}, [] {
          const Calls cu = plain_calls();
          NEED(with_context(cu));
          Context primary = nullptr, own = nullptr, seen = nullptr;
          unsigned long long id = 0, other = 0;
          NEED(cu.context_get(&primary) == kSuccess && cu.context_id(nullptr, &id) == kSuccess);
          Stream in_primary = nullptr, in_own = nullptr;
          Event of_primary = nullptr, of_own = nullptr;
          NEED(cu.stream_create(&in_primary, 0) == kSuccess);
          NEED(cu.event_create(&of_primary, kDisableTiming) == kSuccess);
          NEED(cu.context_create(&own, 0, 1) == kSuccess);
          NEED(cu.context_get(&seen) == kSuccess && seen == own);
          NEED(cu.context_id(own, &other) == kSuccess && other != id);
          NEED(cu.stream_create(&in_own, 0) == kSuccess && cu.event_create(&of_own, kDisableTiming) == kSuccess);
          NEED(cu.stream_context(in_primary, &seen) == kSuccess && seen == primary);
          NEED(cu.stream_context(nullptr, &seen) == kSuccess && seen == own);
          NEED(cu.stream_id(in_primary, &id) == kSuccess && cu.stream_id(in_own, &other) == kSuccess && id != other);
          NEED(cu.event_record(of_primary, in_own) == kInvalidHandle);
          NEED(cu.event_record(of_primary, nullptr) == kInvalidHandle);
          NEED(cu.event_record(of_own, in_own) == kSuccess && cu.event_record(of_own, nullptr) == kSuccess);
          NEED(Fake::use().audit().violations == 0);
          NEED(cu.context_destroy(own) == kSuccess);
          NEED(cu.context_get(&seen) == kSuccess && seen == primary);  // as popped
          NEED(cu.stream_context(in_own, &seen) == kInvalidHandle);
          NEED(cu.event_query(of_own) == kInvalidHandle && Fake::use().audit().violations == 1);
          NEED(cu.context_push(own) == kInvalidContext && Fake::use().audit().violations == 2);
          NEED(cu.event_destroy(of_primary) == kSuccess && cu.stream_destroy(in_primary) == kSuccess);
          NEED(cu.primary_release(0) == kSuccess);
          NEED(cu.context_id(nullptr, &id) == kContextDestroyed);  // still current
          NEED(cu.context_set(nullptr) == kSuccess && cu.stream_context(nullptr, &seen) == kInvalidContext);
          NEED(Fake::use().audit().left() == 0);
          return 0;
        }).wait() == 0);
}

TEST_CASE("fake: a stream waits for a word of the host, also past the largest number, and is seen writing one") {
  CHECK(holds({}, [] {
          const Calls cu = plain_calls();
          NEED(with_context(cu));
          int fd = -1;
          std::uint64_t* words = shared_words(&fd);
          NEED(words != nullptr);
          NEED(cu.host_register(words, kWordsPage, kHostPortable | kHostDeviceMap) == kSuccess);
          NEED(cu.host_register(words, kWordsPage, kHostPortable) == kAlreadyRegistered);
          Address device = 0;
          NEED(cu.host_address(&device, words, 0) == kSuccess);
          Stream stream = nullptr;
          NEED(cu.stream_create(&stream, kNonBlocking) == kSuccess);
          std::atomic_ref<std::uint64_t> first(words[0]), second(words[8]);
          first = ~std::uint64_t{0} - 1;
          NEED(cu.stream_wait64(stream, device, 3, kWaitGeq) == kSuccess);
          NEED(cu.stream_write64(stream, device + 64, 7, kWriteDefault) == kSuccess);
          NEED(cu.stream_query(stream) == kNotReady);
          NEED(second == 0);
          first = 4;  // five further, over the end
          NEED(eventually([&] { return second == 7; }));
          NEED(cu.stream_synchronize(stream) == kSuccess);
          NEED(cu.stream_destroy(stream) == kSuccess);
          NEED(cu.host_unregister(words) == kSuccess);
          NEED(cu.host_unregister(words) == kNotRegistered);
          NEED(without_context(cu));
          return 0;
        }) == 0);
}

TEST_CASE("fake: registered pages cannot be sealed, and unmapping them first is noted") {
  CHECK(process({}, [] {
          const Calls cu = plain_calls();
          NEED(with_context(cu));
          int fd = -1;
          std::uint64_t* words = shared_words(&fd);
          NEED(cu.host_register(words, kWordsPage, kHostPortable | kHostDeviceMap) == kSuccess);
          ::munmap(words, kWordsPage);
          NEED(::fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) != 0);  // the second mapping, or the pin
          NEED(Fake::use().audit().violations == 0);
          NEED(cu.host_unregister(words) == kSuccess);
          NEED(Fake::use().audit().violations == 1);
          return 0;
        }).wait() == 0);
}

TEST_CASE("fake: read-only memory is registered with the flag only, and then only read") {
  CHECK(holds({}, [] {
          const Calls cu = plain_calls();
          NEED(with_context(cu));
          int fd = -1;
          std::uint64_t* words = shared_words(&fd);
          words[0] = 42;
          void* reader = ::mmap(nullptr, kWordsPage, PROT_READ, MAP_SHARED, fd, 0);
          NEED(cu.host_register(reader, kWordsPage, kHostPortable | kHostDeviceMap) == kInvalidValue);
          NEED(cu.host_register(reader, kWordsPage, kHostPortable | kHostDeviceMap | kHostReadOnly) == kSuccess);
          Address device = 0;
          NEED(cu.host_address(&device, reader, 0) == kSuccess);
          std::uint64_t seen = 0;
          NEED(cu.copy_to_host(&seen, device, sizeof seen) == kSuccess);
          NEED(seen == 42);
          NEED(cu.stream_write64(nullptr, device, 1, 0) == kSuccess);
          NEED(cu.stream_synchronize(nullptr) == kIllegalAddress);
          NEED(words[0] == 42);
          NEED(cu.host_unregister(reader) == kSuccess);
          NEED(without_context(cu));
          return 0;
        }) == 0);
}

TEST_CASE("fake: an event between processes is waited for, and its destruction under a user is noted") {
  Talk talk;
  auto maker = process({}, [&] {
    const Calls cu = plain_calls();
    NEED(with_context(cu));
    Event event = nullptr;
    NEED(cu.event_create(&event, kInterprocess) == kInvalidValue);  // timing must be off
    NEED(cu.event_create(&event, kInterprocess | kDisableTiming) == kSuccess);
    int fd = -1;
    std::uint64_t* words = shared_words(&fd);
    NEED(cu.host_register(words, kWordsPage, kHostPortable | kHostDeviceMap) == kSuccess);
    Address device = 0;
    NEED(cu.host_address(&device, words, 0) == kSuccess);
    NEED(cu.stream_wait64(nullptr, device, 1, kWaitGeq) == kSuccess);
    NEED(cu.event_record(event, nullptr) == kSuccess);
    IpcHandle handle{};
    NEED(cu.ipc_get_event(&handle, event) == kSuccess);
    NEED(talk.say(0, handle));
    char turn = 0;
    NEED(talk.hear(0, &turn));
    std::atomic_ref first(words[0]);
    first = 1;
    NEED(talk.hear(0, &turn));
    NEED(cu.event_destroy(event) == kSuccess);
    NEED(talk.say(0, turn));
    return 0;
  });
  IpcHandle handle{};
  REQUIRE(talk.hear(1, &handle));
  CHECK(process({}, [&] {
          const Calls cu = plain_calls();
          NEED(with_context(cu));
          Event event = nullptr;
          NEED(cu.ipc_open_event(&event, handle) == kSuccess);
          NEED(cu.event_query(event) == kNotReady);
          NEED(cu.stream_wait_event(nullptr, event, 0) == kSuccess);
          NEED(cu.stream_query(nullptr) == kNotReady);
          char turn = 1;
          NEED(talk.say(1, turn));
          NEED(cu.stream_synchronize(nullptr) == kSuccess);
          NEED(cu.event_query(event) == kSuccess);
          NEED(talk.say(1, turn));
          NEED(talk.hear(1, &turn));
          NEED(Fake::use().audit().violations == 0);
          NEED(cu.event_query(event) == kSuccess);
          NEED(Fake::use().audit().violations == 1);
          return 0;
        }).wait() == 0);
  CHECK(maker.wait() == 0);
}

TEST_CASE("fake: functions are found by name and version, and never one newer than asked for or played") {
  using Find = Code(const char*, void**, int, std::uint64_t, int*);
  CHECK(holds({{"FAKECUDA_DRIVER_VERSION", "12040"}}, [] {
          const auto find = Fake::use().call<Find>("cuGetProcAddress_v2");
          void* found = nullptr;
          int status = -1;
          NEED(find("cuMemCreate", &found, 10020, 0, &status) == kSuccess && found != nullptr && status == 0);
          NEED(find("cuMemCreate", &found, 10010, 0, &status) == kNotFound && found == nullptr && status == 2);
          NEED(find("cuNoSuchCall", &found, 12000, 0, &status) == kNotFound && status == 1);
          void *old = nullptr, *newest = nullptr;
          NEED(find("cuCtxGetDevice", &old, 2000, 0, &status) == kSuccess);
          NEED(find("cuCtxGetDevice", &newest, 13000, 0, &status) == kSuccess);
          NEED(old == newest);  // this driver does not know the newer one
          return 0;
        }) == 0);
  CHECK(holds({}, [] {
          const auto find = Fake::use().call<Find>("cuGetProcAddress_v2");
          void *old = nullptr, *newest = nullptr;
          NEED(find("cuCtxGetDevice", &old, 2000, 0, nullptr) == kSuccess);
          NEED(find("cuCtxGetDevice", &newest, 13000, 0, nullptr) == kSuccess);
          NEED(old != newest);
          return 0;
        }) == 0);
}
