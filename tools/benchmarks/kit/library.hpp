// SPDX-License-Identifier: Apache-2.0
// The C face as a bench uses it: any failure ends the bench with the library's own sentence.
#pragma once

#include <string>

#include "client/face/shmbroker.h"

namespace shmb::bench {

void must_succeed(int status, const shmb_error& error);  // gives up with the library's sentence

class Library {
 public:
  explicit Library(const std::string& socket);
  Library(Library&&) = delete;
  ~Library() { shmb_disconnect(session_); }

  shmb_region* create(std::size_t bytes, const shmb_create_options& options);
  shmb_region* attach(const shmb_region_id& id, const shmb_attach_options& options);
  void release(shmb_region* region);  // one-way; a ping afterwards waits until it has been served
  void ping();
  shmb_session* session() const { return session_; }

 private:
  shmb_session* session_ = nullptr;
};

}  // namespace shmb::bench
