// SPDX-License-Identifier: Apache-2.0
// See supervised_group.hpp.
#include "spawn/ranks/supervised_group.hpp"

#include <unistd.h>

#include <utility>

#include "client/c_api/c_api.hpp"
#include "proto/names.hpp"

namespace shmb::spawn {
namespace {

// "python3" of "/usr/bin/python3", without characters that a name may not hold.
std::string name_for(const std::string& program, int attempt) {
  std::string base;
  for (char c : program.substr(program.rfind('/') + 1))
    if (base.size() < 64 &&
        (std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || (c == '.' && !base.empty())))
      base += c;
  std::string name = (base.empty() ? "run" : base) + "-" + std::to_string(::getpid());
  return attempt == 0 ? name : name + "." + std::to_string(attempt);
}

}  // namespace

Error error_from(const shmb_error& error) {
  return {static_cast<Status>(error.status),
          error.system_errno,
          {static_cast<std::uint16_t>(error.slot), static_cast<std::uint16_t>(error.scope), error.scope_id, error.limit,
           error.used, error.asked},
          error.sentence};
}

Result<std::unique_ptr<SupervisedGroup>> SupervisedGroup::create(const GroupRequest& wish) {
  shmb_error error{};
  std::unique_ptr<SupervisedGroup> made(new SupervisedGroup);
  shmb_connect_options connect{};
  connect.size = sizeof connect;
  connect.socket = wish.socket.empty() ? nullptr : wish.socket.c_str();
  connect.program = "shmbroker run";
  connect.flags = SHMB_CONNECT_NO_GROUP;
  if (shmb_connect(&connect, &made->session_, &error) != SHMB_OK) return std::unexpected(error_from(error));

  shmb_group_options options{};
  options.size = sizeof options;
  options.limit_bytes = wish.limit_bytes;
  options.flags = SHMB_GROUP_SUPERVISED;
  constexpr int kAttempts = 8;
  for (int attempt = 0;; ++attempt) {
    made->name_ = wish.name.empty() ? name_for(wish.program, attempt) : wish.name;
    options.name = made->name_.c_str();
    const int status = shmb_group_create(made->session_, &options, &made->group_, &error);
    if (status == SHMB_OK) break;
    // If the generated name is taken, an earlier process with the same pid made that group.
    if (status != SHMB_E_EXISTS || !wish.name.empty() || attempt == kAttempts)
      return std::unexpected(error_from(error));
  }
  char variable[SHMB_VARIABLE_TEXT];
  if (shmb_group_variable(made->name_.c_str(), made->group_.token, variable, &error) != SHMB_OK)
    return std::unexpected(error_from(error));
  made->variable_ = variable;

  shmb_session_info info{};
  info.size = sizeof info;
  if (shmb_session_get_info(made->session_, &info, &error) != SHMB_OK) return std::unexpected(error_from(error));
  made->socket_ = info.socket;
  made->broker_.emplace(made->socket_);
  SHMB_TRY_VOID(made->take_role());
  return made;
}

SupervisedGroup::~SupervisedGroup() { shmb_disconnect(session_); }

std::vector<std::pair<std::string, std::string>> SupervisedGroup::environment() const {
  return {{"SHMBROKER_GROUP", variable_}, {"SHMBROKER_SOCKET", socket_}};
}

Result<void> SupervisedGroup::take_role() {
  shmb_error error{};
  if (shmb_group_join_token(session_, group_.token, SHMB_JOIN_SUPERVISOR, 0, nullptr, &error) != SHMB_OK)
    return std::unexpected(error_from(error));
  return {};
}

Result<void> SupervisedGroup::enter_supervisor() {
  shmb_disconnect(session_);  // the guard's: this process only drops its copy of the descriptor
  session_ = nullptr;
  shmb_error error{};
  shmb_connect_options connect{};
  connect.size = sizeof connect;
  connect.socket = socket_.c_str();
  connect.program = "shmbroker run (supervisor)";
  connect.flags = SHMB_CONNECT_NO_START | SHMB_CONNECT_NO_GROUP;
  if (shmb_connect(&connect, &session_, &error) != SHMB_OK) return std::unexpected(error_from(error));
  return take_role();
}

void SupervisedGroup::forget() { shmb_disconnect(std::exchange(session_, nullptr)); }

std::vector<int> SupervisedGroup::descriptors() {
  if (session_ == nullptr) return {};
  return {session_->it->socket_descriptor(), session_->it->watch_descriptor()};
}

void SupervisedGroup::tree_gone() {
  // A broker that went away took the group with it. One that ended the group already returns not found.
  if (session_ != nullptr) (void)shmb_group_end(session_, group_.id, nullptr, SHMB_END_TREE_GONE, 0, nullptr, nullptr);
}

std::vector<pid_t> SupervisedGroup::bystanders() { return broker_->pids(); }

}  // namespace shmb::spawn
