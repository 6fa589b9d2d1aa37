// SPDX-License-Identifier: Apache-2.0
// Counters in a region of the broker on which streams and threads of several processes meet. The producer's streams
// write them, and all streams and threads can wait for them. A stream is made to wait only for a value that the
// producer has announced, that is enqueued. So no stream waits for a value that may never come. When the producer dies,
// the broker releases every waiter. Pages that a stream still uses stay registered with the driver.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "client/calls/gpu_calls.hpp"
#include "client/region/region.hpp"
#include "cuda/driver.hpp"
#include "proto/timeline_layout.hpp"

namespace shmb::cuda {

class Timeline {
 public:
  using Handle = std::unique_ptr<Timeline>;
  struct Spec {
    std::string name;
    std::uint64_t group = 0;
    std::optional<std::int64_t> keep;
    bool replace = false;
    std::uint32_t words = 1;
  };
  // The caller becomes the producer. It needs no GPU; signal does.
  static Result<Handle> create(const std::shared_ptr<client::Session>& session, const Spec& spec,
                               client::Deadline deadline);
  static Result<Handle> open(const std::shared_ptr<client::Session>& session, const client::Target& target,
                             std::int64_t timeout, std::int64_t wait);
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;
  // Waits up to 5 s for streams that still use it. After that its pages stay until the process ends. The end of a
  // producer is reported in any case.
  ~Timeline();

  shmbw_region_ref ref() const { return ref_; }
  std::uint32_t words() const { return words_; }
  bool producer() const { return !region_; }

  struct Look {
    std::uint64_t counter = 0;    // once the producer is gone: the value at its end
    std::uint64_t announced = 0;  // the highest value whose signal is enqueued
    shmbw_gpu_word_status status = SHMBW_GPU_WORD_STATUS_OK;
  };
  Result<Look> look(std::uint32_t word) const;
  // Enqueues the write of `value`, greater than all before, after the work in the stream, and announces it.
  Result<void> signal(std::uint32_t word, std::uint64_t value, Stream stream);
  // Makes the stream wait. Before that this thread waits, until the deadline, for the announcement.
  Result<void> wait(std::uint32_t word, std::uint64_t value, Stream stream, client::Deadline announced);
  Result<void> wait_host(std::uint32_t word, std::uint64_t value, client::Deadline deadline) const;

 private:
  Timeline(std::shared_ptr<client::Session> session, std::uint32_t words);
  timeline::Word& at(std::uint32_t word) const { return reinterpret_cast<timeline::Word*>(memory_)[word]; }
  Result<void> check(std::uint32_t word) const;  // also that this is no forked child, which has no timelines
  std::string name(std::uint32_t word) const;
  std::unexpected<Error> ended(std::uint32_t word, std::uint64_t value) const;
  struct Way;        // of one use by one stream
  struct OnDevices;  // what drivers and streams have of it
  Result<Way> enter(std::uint32_t word, Stream stream);
  Result<void> register_page(const Driver& driver);
  bool let_go() noexcept;  // false: streams still use it

  std::shared_ptr<client::Session> session_;
  shmbw_region_ref ref_{};  // from when all is made
  std::uint32_t words_;
  client::ForkMark mark_;          // a forked child has neither the lease nor the driver
  Mapping own_;                    // for the producer
  client::Region::Handle region_;  // for all others
  std::byte* memory_ = nullptr;
  mutable std::mutex mutex_;  // guards what follows
  std::unique_ptr<OnDevices> devices_;
};

}  // namespace shmb::cuda
