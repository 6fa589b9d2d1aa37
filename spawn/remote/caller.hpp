// SPDX-License-Identifier: Apache-2.0
// How this worker calls: it checks what is asked, begins the call, and sends the request, or gives it to its own
// server. A call that cannot be sent is undone before the error is returned. All functions are called without the lock,
// by any thread. Timeouts are in ns: 0 is the default, client::kForever no limit.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "spawn/remote/workers.hpp"

namespace shmb::remote {

class Caller {
 public:
  Caller(const Place& place, Monitor& monitor, const Life& life, const Roster& roster, References& references,
         Calls& calls, Sender& sender, Server& server, const Memory& memory, Workers& workers, Stepper& stepper,
         TestHooks& hooks)
      : place_(place),
        monitor_(monitor),
        life_(life),
        roster_(roster),
        references_(references),
        calls_(calls),
        sender_(sender),
        server_(server),
        memory_(memory),
        workers_(workers),
        stepper_(stepper),
        hooks_(hooks) {}

  // `on_object`: of the value that the first reference of the payload refers to.
  Result<std::shared_ptr<Future>> call(std::uint32_t to, std::string_view function, const Payload& payload,
                                       bool on_object, std::int64_t timeout);
  Result<std::shared_ptr<Reference>> create(std::uint32_t to, std::string_view function, const Payload& payload,
                                            bool on_object, std::int64_t timeout);
  // `kind`: the value, or its type, which is asked once.
  Result<std::shared_ptr<Future>> fetch(const std::shared_ptr<Reference>& reference, Kind kind, std::int64_t timeout);

 private:
  Result<void> may_call(std::uint32_t to, std::string_view function, const Payload& payload, bool on_object);
  // `life` 0: of whichever worker has the place.
  Result<std::shared_ptr<Future>> begin(Kind kind, std::uint32_t to, std::uint32_t life, std::string_view function,
                                        std::int64_t timeout, RefId reference);
  Result<void> send(const std::shared_ptr<Future>& future, std::uint8_t flags, const Payload& payload);
  Result<void> send_to_self(const std::shared_ptr<Future>& future, const Head& head, const Payload& payload);

  const Place& place_;
  Monitor& monitor_;
  const Life& life_;
  const Roster& roster_;
  References& references_;
  Calls& calls_;
  Sender& sender_;
  Server& server_;
  const Memory& memory_;
  Workers& workers_;
  Stepper& stepper_;
  TestHooks& hooks_;
};

}  // namespace shmb::remote
