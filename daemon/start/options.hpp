// SPDX-License-Identifier: Apache-2.0
// The command line of shmbrokerd. It is parsed by hand over getopt_long(3): a privileged process needs no option
// library.
#pragma once

#include <string>
#include <vector>

#include "daemon/start/config.hpp"

namespace shmb::daemon {

struct Options {
  enum class Action { serve, check, help, version } action = Action::serve;
  Config config;                   // from the file first, then from the command line
  std::vector<std::string> notes;  // for the log
  int ready_fd = -1;
  std::string seam;  // used only in the test build
};

// A usage error is a sentence with Status::invalid and errno EINVAL (exit status 2). An unusable file has errno 0.
Result<Options> parse_options(int argc, char** argv);
const char* help_text();

}  // namespace shmb::daemon
