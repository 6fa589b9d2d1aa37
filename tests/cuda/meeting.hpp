// SPDX-License-Identifier: Apache-2.0
// A group that the actors of one case share, made without the driver; words and streams for them.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include "tests/cuda/stage.hpp"
#include "tests/harness/child.hpp"

namespace cuda_tests {

using harness::Child;
using harness::Gate;

struct Meeting {
  explicit Meeting(harness::BrokerOptions options = {})
      : broker(gpu_broker(std::move(options))), session(connect(broker.socket())) {
    group = session.create_group({.name = "meeting"});
    session.join(group.token);
  }
  shmbroker::Session member() const {
    auto own = connect(broker.socket());
    own.join(group.token);
    return own;
  }
  harness::BrokerFixture broker;
  shmbroker::Session session;
  shmbroker::Group group;
};

// A value's way from one actor to another.
struct Note {
  Note() { REQUIRE(::pipe2(ends, O_CLOEXEC) == 0); }
  Note(const Note&) = delete;
  Note& operator=(const Note&) = delete;
  ~Note() {
    ::close(ends[0]);
    ::close(ends[1]);
  }
  template <class T>
  void tell(const T& value) const {
    if (::write(ends[1], &value, sizeof value) != sizeof value) std::abort();
  }
  template <class T>
  T hear() const {
    T value{};
    if (::read(ends[0], &value, sizeof value) != sizeof value) std::abort();
    return value;
  }
  int ends[2];
};

// A device with its context current in this thread, and one stream.
struct Worker : Device {
  explicit Worker(int ordinal = 0) : Device(ordinal), scope(hold->enter().value()) {
    if ((*driver)->stream_create(&raw, shmb::cuda::kNonBlocking) != 0) std::abort();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker() { (*driver)->stream_destroy(raw); }

  gpu::Stream stream() const { return raw; }
  int fill_later(gpu::Pointer to, std::size_t bytes, unsigned char value) const {
    return (*driver)->memset8_async(to, value, bytes, raw);
  }
  int copy_later(gpu::Pointer to, gpu::Pointer from, std::size_t bytes) const {
    return (*driver)->copy_on_device_async(to, from, bytes, raw);
  }
  int finish() const { return (*driver)->stream_synchronize(raw); }
  bool busy() const { return (*driver)->stream_query(raw) == shmb::cuda::kNotReady; }

  shmb::cuda::ContextHold::Scope scope;
  shmb::cuda::Stream raw = nullptr;
};

// Publishes "w", all of one byte, and tells.
inline int publish_w(const Meeting& meeting, unsigned char value, const Gate& done, gpu::PublishOptions options = {}) {
  auto session = meeting.member();
  Device device;
  auto region = gpu::Region::allocate(session, 4 * kMiB);
  ACTOR_CHECK(device.fill(region.pointer(), 4 * kMiB, value) == 0);
  options.name = "w";
  ACTOR_MUST(region.try_publish(options));
  done.open();
  ::pause();
  return 0;
}

// Imports "w" and compares.
inline int read_w(const Meeting& meeting, int value) {
  auto session = meeting.member();
  Device device;
  auto region = gpu::Region::try_import(session, std::string("w"));
  ACTOR_MUST(region);
  ACTOR_CHECK(device.all(region->pointer(), 4 * kMiB) == value);
  return 0;
}

// The producer of a timeline whose stream never comes to the signal that it has announced.
inline Child stuck_producer(const Meeting& meeting, const std::string& name) {
  const Gate enqueued;
  auto child = Child::run([&] {
    ::setenv("FAKECUDA_DELAY_US", "600000000", 1);  // what is enqueued never runs in this process' life
    auto session = meeting.member();
    auto timeline = gpu::Timeline::create(session, {.name = name});
    const Worker worker;
    ACTOR_MUST(timeline.try_signal(1, worker.stream()));
    enqueued.open();
    ::pause();
    return 0;
  });
  REQUIRE(enqueued.wait());
  return child;
}

}  // namespace cuda_tests
