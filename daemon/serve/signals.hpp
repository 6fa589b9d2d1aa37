// SPDX-License-Identifier: Apache-2.0
// The signals of an administrator. SIGTERM and SIGINT end the broker in order. SIGHUP reads the configuration again,
// in both modes, and applies its limits. So the end of a terminal does not end a private broker that was started in it.
//
// A reload takes effect whole or not at all: with an error in the file all limits stay as they were. It frees nothing.
// Keys outside of [limits] are compared only, and those that differ are named, because they need a restart.
#pragma once

#include <string>

#include "daemon/start/options.hpp"
#include "daemon/start/service_manager.hpp"
#include "daemon/transport/transport.hpp"

namespace shmb::daemon {

class Signals final : private Waiter {
 public:
  // `serving` is the status that the service manager shows.
  Signals(Transport& transport, BrokerEvents& books, ServiceManager& manager, const Options& options,
          std::string serving);
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  ~Signals() { transport_.engine().unwatch(*this); }
  Result<void> start();  // from now on these signals do nothing else

 private:
  void on_readable() override;
  void reload();
  Result<std::string> read_again();  // returns a sentence for log and status

  Transport& transport_;
  BrokerEvents& books_;
  ServiceManager& manager_;
  const Options& options_;
  std::string serving_;
  Fd fd_;
};

}  // namespace shmb::daemon
