// SPDX-License-Identifier: Apache-2.0
// See broker_process.hpp.
#include "tools/benchmarks/kit/broker_process.hpp"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string_view>

#include "tools/benchmarks/kit/wire_session.hpp"

namespace shmb::bench {

BrokerProcess BrokerProcess::start(const Settings& settings, Core core, const std::string& engine,
                                   const std::vector<std::string>& more_arguments, bool own_session) {
  std::vector<std::string> mode{"--private"};
  mode.insert(mode.end(), more_arguments.begin(), more_arguments.end());
  return start_with(settings, core, engine, mode, own_session, "");
}

BrokerProcess BrokerProcess::start_system(const Settings& settings, Core core, const std::string& engine,
                                          unsigned uid) {
  // A flood of creates would be refused most of the time: by default a user makes 10,000 regions in a second at most.
  const TemporaryFolder folder;
  const std::string config = folder.path() + "/shmbroker.conf";
  const Fd file = Fd::adopt(must(open(config.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600), "open the configuration"));
  constexpr std::string_view kLimits = "[limits]\nuid_creates = 0\n";
  must(write(file.get(), kLimits.data(), kLimits.size()), "write the configuration");
  return start_with(settings, core, engine, {"--system", "--user", std::to_string(uid), "--config", config}, false,
                    "/system");
}

void BrokerProcess::end() {
  child_.kill(SIGTERM);
  if (const int status = child_.wait(); status != 0) give_up("the broker ended with status " + std::to_string(status));
}

BrokerProcess BrokerProcess::start_with(const Settings& settings, Core core, const std::string& engine,
                                        const std::vector<std::string>& mode, bool own_session,
                                        const std::string& directory_in_folder) {
  BrokerProcess broker;
  broker.folder_ = std::make_unique<TemporaryFolder>();
  const std::string directory = broker.folder_->path() + directory_in_folder;
  // The broker makes a directory of its own in it, which other users reach through it.
  if (!directory_in_folder.empty()) must(chmod(broker.folder_->path().c_str(), 0755), "chmod");
  broker.socket_ = directory + "/socket";
  int ready[2];
  must(pipe2(ready, O_CLOEXEC), "pipe2");
  int log = must(open((broker.folder_->path() + "/log").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600), "open log");
  // The broker's end of the pipe and its log survive the exec, nothing else does.
  int ready_there = must(fcntl(ready[1], F_DUPFD, 3), "dup");
  std::vector<std::string> arguments{"--directory", directory,    "--engine",
                                     engine,        "--ready-fd", std::to_string(ready_there)};
  arguments.insert(arguments.end(), mode.begin(), mode.end());
  broker.child_ = Child::execute(core, settings.broker, arguments, log, own_session);
  close(ready_there);
  close(ready[1]);
  close(log);
  char line;
  ssize_t got = read(ready[0], &line, 1);
  close(ready[0]);
  errno = 0;
  if (got != 1) give_up(settings.broker + " did not start with --engine " + engine);
  auto status = WireSession::open(broker.socket_).status();
  broker.engine_ = status.engine == SHMBW_ENGINE_IO_URING ? "io_uring" : "epoll";
  return broker;
}

}  // namespace shmb::bench
