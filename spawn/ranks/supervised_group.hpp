// SPDX-License-Identifier: Apache-2.0
// A group whose end a supervisor reports: the requests of guard and supervisor to the broker. Each has a session of its
// own in the supervisor's role, which is no membership. So if one dies, the other still reports.
//
// The order of its life: create() connects while the caller is no subreaper yet, because a broker that is started by it
// would become its child. The supervisor forks and takes a session of its own (enter_supervisor). tree_gone() is the
// last report: from then on the supervisors do not hold the group any more.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "client/face/shmbroker.h"
#include "spawn/ranks/bystander.hpp"
#include "spawn/ranks/supervisor.hpp"

namespace shmb::spawn {

struct GroupRequest {
  std::string socket;             // empty: searched, and started if there is none
  std::string name;               // empty: made from `program` and the pid
  std::string program;            // the program to run
  std::uint64_t limit_bytes = 0;  // 0: the broker's default
};

class SupervisedGroup final : public Reporter {
 public:
  // Connects (before the caller becomes a subreaper), makes the group and takes the role.
  static Result<std::unique_ptr<SupervisedGroup>> create(const GroupRequest& wish);
  ~SupervisedGroup() override;
  SupervisedGroup(const SupervisedGroup&) = delete;
  SupervisedGroup& operator=(const SupervisedGroup&) = delete;

  const std::string& name() const { return name_; }
  // The variables that make the command's processes members, at this broker and no other.
  std::vector<std::pair<std::string, std::string>> environment() const;

  Result<void> enter_supervisor() override;
  void tree_gone() override;
  std::vector<pid_t> bystanders() override;
  void forget() override;
  std::vector<int> descriptors() override;

 private:
  SupervisedGroup() = default;
  Result<void> take_role();

  shmb_session* session_ = nullptr;
  shmb_group group_{};
  std::string name_, socket_, variable_;
  std::optional<Bystander> broker_;
};

// Converts an error of the C API.
Error error_from(const shmb_error& error);

}  // namespace shmb::spawn
