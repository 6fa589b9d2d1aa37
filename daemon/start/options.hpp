// SPDX-License-Identifier: Apache-2.0
// The command line of shmbrokerd. It is parsed by hand over getopt_long(3): a privileged process needs no option
// library.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "daemon/start/config.hpp"

namespace shmb::daemon {

// The options of the command line. They override the file, whenever that is read.
struct Given {
  std::optional<std::string> file, directory, user;
  std::optional<EngineChoice> engine;
  std::optional<Mode> mode;
  std::optional<std::int64_t> idle_exit;
  std::optional<int> log_priority;
  bool keep = false;
};

struct Options {
  enum class Action { serve, check, help, version } action = Action::serve;
  Config config;  // from the file first, then from the command line
  Given given;
  std::vector<std::string> notes;  // for the log
  int ready_fd = -1;
  std::string seam;  // used only in the test build
};

// A usage error is a sentence with Status::invalid and errno EINVAL (exit status 2). An unusable file has errno 0.
Result<Options> parse_options(int argc, char** argv);
// Reads the file and puts the command line over it; the directory is left out.
Result<Config> read_settings(const Given& given, std::vector<std::string>& notes);
// At a reload, and in a broker that takes a dead one's place.
Result<Config> read_settings_again(const Options& options, std::vector<std::string>& notes);
const char* help_text();

}  // namespace shmb::daemon
