// SPDX-License-Identifier: Apache-2.0
// The tool's connections to the broker. Verbs that move data use the public C API, as any program would. Verbs that
// only look use the library's inner session, because the C API does not offer all of the broker's tables.
#pragma once

#include <memory>
#include <string>

#include "client/face/shmbroker.h"
#include "client/session/session.hpp"
#include "tools/tool.hpp"

namespace shmb::tools {

struct SessionEnd {
  void operator()(shmb_session* session) const { shmb_disconnect(session); }
};
struct RegionEnd {
  void operator()(shmb_region* region) const { (void)shmb_release(region, 0, nullptr); }
};
using Region = std::unique_ptr<shmb_region, RegionEnd>;

enum class Start { never, private_broker };

class Session {
 public:
  // Without a broker, the error says how to start one.
  static Result<Session> connect(const Common& common, Start start);
  shmb_session* get() const { return handle_.get(); }
  const shmb_session_info& info() const { return info_; }
  std::int64_t timeout() const { return timeout_; }

 private:
  std::unique_ptr<shmb_session, SessionEnd> handle_;
  shmb_session_info info_{};
  std::int64_t timeout_ = 0;
};

// For reading the broker's tables. It never starts a broker.
class Viewer {
 public:
  static Result<Viewer> connect(const Common& common, bool admin = false);
  // For the groups of all users the admin socket is needed, beside the socket that a program of the caller finds.
  static Result<Viewer> connect_for(const Common& common, bool all_groups);
  client::Session& session() const { return *session_; }
  const client::SessionFacts& facts() const { return facts_; }
  client::Deadline deadline() const { return client::Deadline::after(timeout_); }

 private:
  std::shared_ptr<client::Session> session_;
  client::SessionFacts facts_;
  std::int64_t timeout_ = 0;
};

// The error of a C API call that failed.
Error failed(const shmb_error& error);

}  // namespace shmb::tools
