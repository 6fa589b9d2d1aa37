// SPDX-License-Identifier: Apache-2.0
// See pool_library.hpp.
#include "tools/benchmarks/kit/pool_library.hpp"

#include <errno.h>

#include "tools/benchmarks/kit/process.hpp"

namespace shmb::bench {

PoolLibrary::PoolLibrary(const std::string& socket, const PoolShape& shape) : library_(socket) {
  shmb_size_class slots{shape.slot_size, shape.slots, 0};
  shmb_pool_options options{};
  options.size = sizeof options;
  if (shape.slot_size != 0) {
    options.classes = &slots;
    options.class_count = 1;
  }
  options.lane_bytes = shape.lane_bytes;
  must_succeed(shmb_pool_create(library_.session(), &options, &pool_, &error_), error_);
  shmb_pool_info info{};
  info.size = sizeof info;
  must_succeed(shmb_pool_get_info(pool_, &info, &error_), error_);
  id_ = info.id;
}

PoolLibrary::PoolLibrary(const std::string& socket, std::uint64_t pool) : library_(socket), id_(pool) {
  shmb_pool_open_options options{};
  options.size = sizeof options;
  options.id = pool;
  must_succeed(shmb_pool_open(library_.session(), nullptr, &options, &pool_, &error_), error_);
}

void PoolLibrary::open(shmb_queue*& queue, const char* name, std::uint32_t role, const QueueShape& shape) {
  shmb_queue_options options{};
  options.size = sizeof options;
  options.kind = shape.kind;
  options.role = role;
  options.cells = shape.cells;
  options.spin_ns = shape.spin_ns;
  options.inline_bytes = shape.inline_bytes;
  must_succeed(shmb_queue_open(pool_, name, &options, &queue, &error_), error_);
}

shmb_message* PoolLibrary::message() {
  shmb_message* message = nullptr;
  must_succeed(shmb_message_new(&message, &error_), error_);
  return message;
}

shmb_region* PoolLibrary::region(std::uint64_t bytes) {
  shmb_region* region = nullptr;
  must_succeed(shmb_create(library_.session(), bytes, nullptr, &region, &error_), error_);
  return region;
}

void PoolLibrary::failed() {
  errno = error_.system_errno;
  give_up(error_.sentence);
}

}  // namespace shmb::bench
