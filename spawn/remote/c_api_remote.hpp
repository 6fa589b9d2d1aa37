// SPDX-License-Identifier: Apache-2.0
// The objects behind the handles of the C face of remote.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "spawn/face/shmbroker_remote.h"
#include "spawn/remote/state.hpp"

struct shmb_content {
  shmb::remote::Content* it = nullptr;
  shmb::remote::Agent* keeper = nullptr;  // of a value, which keeps what is taken
};
struct shmb_remote {
  std::shared_ptr<shmb::remote::Agent> it;
};
struct shmb_future {
  std::shared_ptr<shmb::remote::Future> it;
  shmb_content content;
  std::vector<shmb_cause> causes{};  // as shmb_future_failure gives them
};
struct shmb_request {
  std::unique_ptr<shmb::remote::Request> it;
  shmb_content content;
};
struct shmb_reference {
  std::shared_ptr<shmb::remote::Reference> it;
  std::shared_ptr<shmb::remote::Value> value;  // of shmb_reference_local
  shmb_content content;
  std::optional<shmb::remote::Failure> told;
  std::vector<shmb_cause> causes{};  // of it
};
