// SPDX-License-Identifier: Apache-2.0
// See spawner.hpp. A failure to start is sent as a verdict, because the parent always waits for one.
#include "spawn/ranks/spawner.hpp"

#include <sys/prctl.h>
#include <unistd.h>

#include "base/sys_process.hpp"
#include "client/session/connect.hpp"
#include "spawn/ranks/bystander.hpp"
#include "spawn/ranks/supervised_group.hpp"
#include "spawn/ranks/supervisor.hpp"

namespace shmb::spawn {
namespace {

int cannot(int socket, const Error& why) {
  Verdict verdict;
  verdict.why = why;
  (void)deliver(socket, verdict);
  return kExitFailed;
}

// Ranks without a group. They may connect all the same, to the broker that their environment names.
class Ungrouped final : public Reporter {
 public:
  explicit Ungrouped(const Plan& plan) : broker_(socket_of(plan)) {}
  std::vector<pid_t> bystanders() override { return broker_.pids(); }

 private:
  static std::string socket_of(const Plan& plan) {
    client::Places places = client::process_places();
    for (const auto& [name, value] : plan.environment) {
      if (value.empty()) continue;
      if (name == "SHMBROKER_SOCKET") places.socket_variable = value;
      if (name == "XDG_RUNTIME_DIR") places.runtime_dir_variable = value;
    }
    if (!plan.socket.empty()) return plan.socket;
    return places.socket_variable.value_or(client::private_directory(places).path + "/socket");
  }
  Bystander broker_;
};

}  // namespace

int guard_ranks(Plan plan, Fd parent_socket) {
  (void)::prctl(PR_SET_NAME, "shmb-spawner");
  auto pidfd = sys::pidfd_open(plan.parent);
  // The check comes after the open: a match proves that the pidfd is the parent.
  if (::getppid() != plan.parent) return kExitFailed;
  const Parent parent{parent_socket.get(), pidfd ? pidfd->get() : -1};
  std::unique_ptr<SupervisedGroup> group;
  if (plan.group) {
    const std::string program = plan.function.empty() && !plan.command.empty() ? plan.command.front() : plan.function;
    auto made = SupervisedGroup::create({plan.socket, plan.group_name, program, plan.group_limit});
    if (!made) return cannot(parent.socket, made.error());
    group = std::move(*made);
    for (auto& variable : group->environment()) plan.environment.push_back(std::move(variable));
  } else if (!plan.socket.empty()) {
    plan.environment.emplace_back("SHMBROKER_SOCKET", plan.socket);
  }
  Ungrouped ungrouped(plan);
  Reporter& reporter = group ? static_cast<Reporter&>(*group) : ungrouped;
  const Outcome outcome = run_job(plan, reporter, parent);
  if (!outcome.sentence.empty()) (void)cannot(parent.socket, Error{Status::system, 0, {}, outcome.sentence});
  return 0;
}

}  // namespace shmb::spawn
