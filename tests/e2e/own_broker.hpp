// SPDX-License-Identifier: Apache-2.0
// A user's own world: a runtime directory in which the library finds or starts a private broker, by the environment as
// any program would. Brokers started in it end with it.
#pragma once

#include <sys/types.h>

#include <string>

#include "tests/e2e/support.hpp"
#include "tests/harness/temp_dir.hpp"

namespace e2e {

class OwnBroker {
 public:
  // `options` are given to the broker besides those of the library ("--idle-exit 300ms").
  explicit OwnBroker(const std::string& options = {});
  OwnBroker(const OwnBroker&) = delete;
  OwnBroker& operator=(const OwnBroker&) = delete;
  ~OwnBroker();

  // For actors: from now on this process finds its broker here.
  void enter() const;
  const std::string& runtime_directory() const { return folder_.path(); }
  std::string directory() const { return folder_.file("shmbroker"); }
  std::string socket() const { return directory() + "/socket"; }
  std::string log() const;
  pid_t pid() const;  // of the broker that serves now; -1: none
  bool ended() const {
    return eventually([this] { return pid() < 0; });
  }

 private:
  harness::TempDir folder_;
};

}  // namespace e2e
