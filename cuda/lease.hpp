// SPDX-License-Identifier: Apache-2.0
// Memory that the program made by cudaMalloc and lends to others. If its owner frees it, the driver frees it even while
// others use it. So the broker counts the users, and the owner's `free` waits for the last one. The memory cannot
// outlive its process.
#pragma once

#include <memory>

#include "cuda/notices.hpp"
#include "cuda/region.hpp"

namespace shmb::cuda {

class Lease {
 public:
  static Result<std::unique_ptr<Lease>> lend(std::shared_ptr<client::Session> session, Address pointer,
                                             std::uint64_t length, const PublishSpec& spec,
                                             void (*free)(void*, std::uint64_t), void* context,
                                             const Patience& patience);
  explicit Lease(std::shared_ptr<Lent> lent) : lent_(std::move(lent)) {}
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease();

  shmbw_region_ref ref() const { return lent_->ref; }
  std::uint64_t epoch() const { return lent_->session->epoch(); }
  // No new user gets it, and it is freed when the last user is gone. Also if the call fails: the broker is asked again
  // then.
  Result<void> retire(client::Deadline deadline);
  void retire_later();  // the same without waiting for the broker's reply

 private:
  std::shared_ptr<Lent> lent_;
  bool retired_ = false;
};

}  // namespace shmb::cuda
