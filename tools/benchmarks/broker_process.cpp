// SPDX-License-Identifier: Apache-2.0
// See broker_process.hpp.
#include "tools/benchmarks/broker_process.hpp"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "tools/benchmarks/wire_session.hpp"

namespace shmb::bench {

BrokerProcess BrokerProcess::start(const Settings& settings, Core core, const std::string& engine,
                                   const std::vector<std::string>& more_arguments, bool own_session) {
  BrokerProcess broker;
  broker.folder_ = std::make_unique<TemporaryFolder>();
  broker.socket_ = broker.folder_->path() + "/socket";
  int ready[2];
  must(pipe2(ready, O_CLOEXEC), "pipe2");
  int log = must(open((broker.folder_->path() + "/log").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600), "open log");
  // The broker's end of the pipe and its log survive the exec, nothing else does.
  int ready_there = must(fcntl(ready[1], F_DUPFD, 3), "dup");
  std::vector<std::string> arguments{"--private", "--directory", broker.folder_->path(),     "--engine",
                                     engine,      "--ready-fd",  std::to_string(ready_there)};
  arguments.insert(arguments.end(), more_arguments.begin(), more_arguments.end());
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
