// SPDX-License-Identifier: Apache-2.0
// See library.hpp.
#include "tools/benchmarks/kit/library.hpp"

#include <errno.h>

#include "tools/benchmarks/kit/process.hpp"

namespace shmb::bench {

void must_succeed(int status, const shmb_error& error) {
  if (status == SHMB_OK) return;
  errno = error.system_errno;
  give_up(error.sentence);
}

Library::Library(const std::string& socket) {
  shmb_connect_options options{};
  options.size = sizeof options;
  options.socket = socket.c_str();
  options.flags = SHMB_CONNECT_NO_GROUP;
  shmb_error error{};
  must_succeed(shmb_connect(&options, &session_, &error), error);
}

shmb_region* Library::create(std::size_t bytes, const shmb_create_options& options) {
  shmb_region* region = nullptr;
  shmb_error error{};
  must_succeed(shmb_create(session_, bytes, &options, &region, &error), error);
  return region;
}

shmb_region* Library::attach(const shmb_region_id& id, const shmb_attach_options& options) {
  shmb_region* region = nullptr;
  shmb_error error{};
  must_succeed(shmb_attach_id(session_, &id, &options, &region, &error), error);
  return region;
}

void Library::release(shmb_region* region) {
  shmb_error error{};
  must_succeed(shmb_release(region, 0, &error), error);
}

void Library::ping() {
  shmb_error error{};
  must_succeed(shmb_ping(session_, SHMB_DEFAULT_TIMEOUT, &error), error);
}

}  // namespace shmb::bench
