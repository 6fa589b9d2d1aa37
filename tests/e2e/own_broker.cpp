// SPDX-License-Identifier: Apache-2.0
// See own_broker.hpp.
#include "tests/e2e/own_broker.hpp"

#include <signal.h>
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>

#include "tests/e2e/machine.hpp"
#include "tests/harness/leak_guard.hpp"

namespace e2e {

OwnBroker::OwnBroker(const std::string& options) {
  const std::string wrapper = folder_.file("daemon");
  std::ofstream(wrapper) << "#!/bin/sh\nexec '" << E2E_DAEMON << "' \"$@\" " << options << "\n";
  ::chmod(wrapper.c_str(), 0755);
}

OwnBroker::~OwnBroker() {
  const pid_t served = pid();
  if (served < 0) return;
  ::kill(served, SIGTERM);
  if (!eventually([&] { return !process_lives(served); }))
    harness::report_leak("the broker that the library started does not end at SIGTERM");
}

void OwnBroker::enter() const {
  for (const char* name : {"SHMBROKER_SOCKET", "SHMBROKER_GROUP"}) ::unsetenv(name);
  ::setenv("XDG_RUNTIME_DIR", folder_.path().c_str(), 1);
  ::setenv("SHMBROKER_DAEMON", folder_.file("daemon").c_str(), 1);
}

std::string OwnBroker::log() const { return contents(directory() + "/log"); }

pid_t OwnBroker::pid() const {
  const auto found = processes_with(directory());
  return found.empty() ? -1 : found.front();
}

}  // namespace e2e
