// SPDX-License-Identifier: Apache-2.0
// One process in one pool, through the C face, as the figures of pools and queues use it. Any failure ends the
// bench with the library's own sentence.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "client/face/shmbroker.h"
#include "tools/benchmarks/kit/library.hpp"

namespace shmb::bench {

struct PoolShape {
  std::uint64_t slot_size = 0;  // 0: no slots
  std::uint32_t slots = 0;
  std::uint64_t lane_bytes = 0;  // 0: the default
};
struct QueueShape {
  std::uint32_t kind = SHMB_QUEUE_SPSC;
  std::uint32_t cells = 0;   // 0: the default
  std::int64_t spin_ns = 0;  // 0: the default; SHMB_NO_WAIT: asleep at once
  std::uint32_t inline_bytes = 0;
};
inline constexpr std::int64_t kSpinForEver = 1'000'000'000'000;

class PoolLibrary {
 public:
  PoolLibrary(const std::string& socket, const PoolShape& shape);  // makes it
  PoolLibrary(const std::string& socket, std::uint64_t pool);      // joins it
  PoolLibrary(PoolLibrary&&) = delete;
  std::uint64_t id() const { return id_; }
  void open(shmb_queue*& queue, const char* name, std::uint32_t role, const QueueShape& shape);

  void send(shmb_queue* queue, const void* data, std::uint64_t bytes) {
    if (shmb_queue_send(queue, data, bytes, SHMB_FOREVER, &error_) != SHMB_OK) failed();
  }
  void send_slot(shmb_queue* queue, const shmb_slot& slot) {
    if (shmb_queue_send_slot(queue, &slot, SHMB_FOREVER, &error_) != SHMB_OK) failed();
  }
  void receive(shmb_queue* queue, shmb_message* message, std::uint32_t flags = 0) {
    if (shmb_queue_receive(queue, message, flags, SHMB_FOREVER, &error_) != SHMB_OK) failed();
  }
  void send_message(shmb_queue* queue, const shmb_outgoing& message) {
    if (shmb_queue_send_message(queue, &message, SHMB_FOREVER, &error_) != SHMB_OK) failed();
  }
  void send_many(shmb_queue* queue, const shmb_outgoing* messages, std::size_t count) {
    if (shmb_queue_send_many(queue, messages, count, SHMB_FOREVER, nullptr, &error_) != SHMB_OK) failed();
  }
  shmb_region* region(std::uint64_t bytes);
  bool receive_by(shmb_queue* queue, shmb_message* message, std::int64_t wait_ns) {  // false: it took too long
    int status = shmb_queue_receive(queue, message, 0, wait_ns, &error_);
    if (status != SHMB_OK && status != SHMB_E_DEADLINE) failed();
    return status == SHMB_OK;
  }
  // As receive_by(), up to `capacity`; 0: it took too long.
  std::size_t receive_many_by(shmb_queue* queue, shmb_message* const* messages, std::size_t capacity,
                              std::int64_t wait_ns) {
    std::size_t count = 0;
    const int status = shmb_queue_receive_many(queue, messages, capacity, wait_ns, &count, &error_);
    if (status != SHMB_OK && status != SHMB_E_DEADLINE) failed();
    return count;
  }
  shmb_slot acquire(std::uint64_t bytes) {
    shmb_slot slot;
    if (shmb_slot_acquire(pool_, bytes, SHMB_FOREVER, &slot, &error_) != SHMB_OK) failed();
    return slot;
  }
  bool acquire_now(std::uint64_t bytes, shmb_slot& slot) {  // false: all are in use
    const int status = shmb_slot_acquire(pool_, bytes, SHMB_NO_WAIT, &slot, &error_);
    if (status != SHMB_OK && status != SHMB_E_FULL) failed();
    return status == SHMB_OK;
  }
  void release(const shmb_slot& slot) {
    if (shmb_slot_release(pool_, &slot, &error_) != SHMB_OK) failed();
  }
  shmb_message* message();

 private:
  [[noreturn]] void failed();
  Library library_;
  shmb_pool* pool_ = nullptr;
  std::uint64_t id_ = 0;
  shmb_error error_;
};

}  // namespace shmb::bench
