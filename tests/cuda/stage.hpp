// SPDX-License-Identifier: Apache-2.0
// The common part of the tests of GPU memory: a broker that takes the fake's memory for a GPU's, sessions on it, and a
// look at device memory by copies, because the host can no more read it here than on a real device.
//
// A process that has used the driver must not fork actors (they would be forked children, as with NVIDIA's). So there
// are two kinds of programs: those that define CUDA_TESTS_IN_PROCESS use the driver themselves, from before the first
// case on; in the others only actors do.
#pragma once

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cuda/context.hpp"
#include "cuda/cuda.hpp"
#include "cuda/driver.hpp"
#include "tests/fakecuda/fake.hpp"
#include "tests/harness/broker_fixture.hpp"
#include "tests/harness/temp_dir.hpp"
#include "tests/support/face.hpp"
#include "tests/support/session.hpp"
#include "tests/support/until.hpp"

namespace cuda_tests {

namespace gpu = shmbroker::gpu;
using shmbroker::Status;
using support::connect;
using support::eventually;
using support::sentence_of;
using support::status_of;
inline constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

// A card of this program's own, with device nodes that only its broker knows.
class Card {
 public:
  static Card& get() {
    static Card one;
    return one;
  }
  const std::string& nodes() const { return nodes_.path(); }

 private:
  Card() {
    ::setenv("FAKECUDA_CARD", ("t" + std::to_string(::getpid())).c_str(), 1);
    ::setenv("FAKECUDA_NODES", nodes_.path().c_str(), 1);
    ::setenv("SHMB_LIBCUDA", SHMB_TEST_FAKECUDA, 1);
    ::setenv("FAKECUDA_BYTES", "256M", 0);
    ::setenv("FAKECUDA_DEVICES", "2", 0);
    ::setenv("FAKECUDA_STRICT", "1", 1);
    ::unsetenv("CUDA_VISIBLE_DEVICES");
  }
  harness::TempDir nodes_;
};

inline harness::BrokerOptions gpu_broker(harness::BrokerOptions options = {}) {
  options.seam += (options.seam.empty() ? "gpu=" : ";gpu=") + Card::get().nodes();
  return options;
}

// Device memory, by copies of the driver.
struct Device {
  const shmb::cuda::Driver* driver = nullptr;
  std::optional<shmb::cuda::ContextHold> hold;

  explicit Device(int ordinal = 0) {
    auto loaded = shmb::cuda::Driver::load();
    if (!loaded) {
      std::fprintf(stderr, "the fake driver does not load: %s\n", loaded.error().sentence.c_str());
      std::abort();
    }
    driver = *loaded;
    hold.emplace(*driver, ordinal);
  }
  int write(gpu::Pointer to, const void* from, std::size_t bytes) {
    auto scope = hold->enter();
    return scope ? (*driver)->copy_to_device(to, from, bytes) : -1;
  }
  int read(void* to, gpu::Pointer from, std::size_t bytes) {
    auto scope = hold->enter();
    return scope ? (*driver)->copy_to_host(to, from, bytes) : -1;
  }
  int fill(gpu::Pointer to, std::size_t bytes, unsigned char value) {
    const std::vector<unsigned char> from(bytes, value);
    return write(to, from.data(), bytes);
  }
  // The byte that all of it is; -1: not one, -2: it could not be read.
  int all(gpu::Pointer from, std::size_t bytes) {
    std::vector<unsigned char> copy(bytes);
    if (read(copy.data(), from, bytes) != 0) return -2;
    for (const unsigned char byte : copy)
      if (byte != copy.front()) return -1;
    return copy.front();
  }
};

// The fake must have everything back at the end of a case, with the broker.
struct NothingLeft {
  fakecuda::Audit before = fakecuda::Fake::use().audit();
  std::size_t bytes = fakecuda::Fake::use().bytes_in_use(0);
  ~NothingLeft() {
    const fakecuda::Audit after = fakecuda::Fake::use().audit();
    CHECK(after.left() == before.left());
    CHECK(after.fds == before.fds);
    CHECK(after.violations == before.violations);
    const bool freed = eventually([&] { return fakecuda::Fake::use().bytes_in_use(0) == bytes; });  // the broker's too
    CHECK(freed);
  }
};

// A stream of the context that is current, being captured into a graph.
class Captured {
 public:
  explicit Captured(const Device& device, unsigned flags = shmb::cuda::kNonBlocking) : driver_(*device.driver) {
    constexpr int kGlobal = 0;  // the mode that forbids most
    if (driver_->stream_create(&stream_, flags) != 0 || driver_->begin_capture(stream_, kGlobal) != 0) std::abort();
  }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;
  ~Captured() {
    (void)end();
    (void)driver_->stream_destroy(stream_);
  }
  shmb::cuda::Stream stream() const { return stream_; }
  // Whether it gives a graph: nothing has spoilt it.
  bool end() {
    shmb::cuda::Graph graph = nullptr;
    const bool whole = driver_->end_capture(stream_, &graph) == 0;
    return whole && driver_->graph_destroy(graph) == 0;
  }

 private:
  const shmb::cuda::Driver& driver_;
  shmb::cuda::Stream stream_ = nullptr;
};

// In actors, where doctest's assertions do not reach the parent.
#define ACTOR_CHECK(condition)                                                                 \
  do {                                                                                         \
    if (!(condition)) {                                                                        \
      std::fprintf(stderr, "%s:%d: not so in an actor: %s\n", __FILE__, __LINE__, #condition); \
      return 1;                                                                                \
    }                                                                                          \
  } while (false)
#define ACTOR_MUST(result)                                                                                            \
  do {                                                                                                                \
    if (const auto& must_ = (result); !must_) {                                                                       \
      std::fprintf(stderr, "%s:%d: failed in an actor: %s: %s\n", __FILE__, __LINE__, #result, must_.error().what()); \
      return 1;                                                                                                       \
    }                                                                                                                 \
  } while (false)

}  // namespace cuda_tests
