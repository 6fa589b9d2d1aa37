// SPDX-License-Identifier: Apache-2.0
// See session.hpp.
#include "tools/session.hpp"

#include <cerrno>
#include <cstdlib>

#include "base/result.hpp"
#include "client/session/connect.hpp"
#include "spawn/ranks/supervised_group.hpp"

namespace shmb::tools {

namespace {

// Only where a broker would be started: a caller that names a socket gets that broker or none.
void tell_how_to_start(const Common& common, Error& refusal) {
  const char* named = std::getenv("SHMBROKER_SOCKET");
  if (refusal.status != Status::no_broker || !common.socket.empty() || (named != nullptr && *named != '\0')) return;
  refusal.sentence += "; `shmbroker put`, `shmbroker run` or any program of the library starts a private one";
}

}  // namespace

Error failed(const shmb_error& error) { return spawn::error_from(error); }

Result<Session> Session::connect(const Common& common, Start start) {
  Session session;
  session.timeout_ = common.timeout;
  shmb_connect_options options{};
  options.size = sizeof options;
  options.socket = common.socket.empty() ? nullptr : common.socket.c_str();
  options.program = "shmbroker";
  options.timeout_ns = common.timeout;
  if (start == Start::never) options.flags |= SHMB_CONNECT_NO_START;
  shmb_error error{};
  shmb_session* handle = nullptr;
  if (shmb_connect(&options, &handle, &error) != SHMB_OK) {
    Error refusal = failed(error);
    if (start == Start::never) tell_how_to_start(common, refusal);
    return std::unexpected(refusal);
  }
  session.handle_.reset(handle);
  session.info_.size = sizeof session.info_;
  if (shmb_session_get_info(handle, &session.info_, &error) != SHMB_OK) return std::unexpected(failed(error));
  return session;
}

Result<Viewer> Viewer::connect(const Common& common, bool admin) {
  client::ConnectOptions options;
  options.socket = common.socket;
  options.program = "shmbroker";
  options.no_start = true;
  options.admin = admin;
  options.timeout = common.timeout;
  auto session = client::connect(options);
  if (!session) {
    if (!admin) tell_how_to_start(common, session.error());
    return std::unexpected(session.error());
  }
  Viewer viewer;
  viewer.session_ = std::move(*session);
  viewer.facts_ = viewer.session_->facts();
  viewer.timeout_ = common.timeout;
  return viewer;
}

Result<Viewer> Viewer::connect_for(const Common& common, bool all_groups) {
  if (!all_groups) return connect(common);
  if (auto admin = connect(common, true)) return admin;  // works also when ordinary clients find no room
  auto viewer = connect(common);
  if (!viewer) return viewer;
  Common beside = common;
  beside.socket = viewer->facts().socket;
  auto admin = connect(beside, true);
  if (!admin && (admin.error().system_errno == EACCES || admin.error().system_errno == EPERM))
    return error(Status::denied, "the broker at " + beside.socket +
                                     " shows the groups of all users to root and to its own user alone: leave out "
                                     "--all-groups for your own groups, or run as root");
  return admin;
}

}  // namespace shmb::tools
